//! Parses the `instances` block of `xy.kdl`: limits on the number and memory of instances.

use super::read::Reader;
use super::words::{Word, word};
use crate::raw::RawNode;
use crate::settings::InstanceSettings;

const INSTANCES_WORDS: [Word; 2] = [word("most", "most 200"), word("memory", r#"memory "4GiB""#)];

/// Reads an `instances` block. Absent fields keep their defaults.
pub(super) fn read(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> InstanceSettings {
    let mut instances = InstanceSettings::default();
    let Some(children) = reader.block(node, word) else { return instances };
    for (node, word) in reader.known(children, &INSTANCES_WORDS, Some("instances")) {
        match word.name {
            "most" => {
                let max = reader.count(node, word, 1..=u32::MAX);
                let max = max.and_then(|max| usize::try_from(max.value).ok());
                instances.most = max.unwrap_or(instances.most);
            }
            _ => instances.memory = reader.size(node, word).map(|size| size.value),
        }
    }
    instances
}
