//! The `instances` block of `xy.kdl`: how many there may be, and how much memory they may use.

use super::read::Reader;
use super::words::{Word, word};
use crate::raw::RawNode;
use crate::settings::InstanceSettings;

const INSTANCES_WORDS: [Word; 2] = [word("most", "most 200"), word("memory", r#"memory "4GiB""#)];

/// Reads an `instances` block; what it does not say is as if there was none.
pub(super) fn read(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> InstanceSettings {
    let mut instances = InstanceSettings::default();
    let Some(children) = reader.block(node, word) else { return instances };
    for (node, word) in reader.known(children, &INSTANCES_WORDS, Some("instances")) {
        match word.name {
            "most" => {
                let most = reader.count(node, word, 1..=u32::MAX);
                let most = most.and_then(|most| usize::try_from(most.value).ok());
                instances.most = most.unwrap_or(instances.most);
            }
            _ => instances.memory = reader.size(node, word).map(|size| size.value),
        }
    }
    instances
}
