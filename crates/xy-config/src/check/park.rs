//! The `park` block of `xy.kdl`: how much may wait for a server, and for how long.

use super::read::Reader;
use super::values::Zero;
use super::words::{Word, word};
use crate::raw::RawNode;
use crate::settings::ParkSettings;

const PARK_WORDS: [Word; 3] = [
    word("queue", r#"queue "30s""#),
    word("calls", "calls 1000"),
    word("bytes", r#"bytes "64MiB""#),
];

/// Reads a `park` block; what it does not say is as if there was none.
pub(super) fn read(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> ParkSettings {
    let mut park = ParkSettings::default();
    let Some(children) = reader.block(node, word) else { return park };
    for (node, word) in reader.known(children, &PARK_WORDS, Some("park")) {
        match word.name {
            // In no time at all nothing comes up: then no call waits.
            "queue" => {
                let queue = reader.duration(node, word, Zero::Allowed);
                park.queue = queue.map_or(park.queue, |queue| queue.value);
            }
            "calls" => {
                let calls = reader.count(node, word, 0..=u32::MAX);
                let calls = calls.and_then(|calls| usize::try_from(calls.value).ok());
                park.calls = calls.unwrap_or(park.calls);
            }
            _ => {
                let bytes = reader.size(node, word);
                park.bytes = bytes.map_or(park.bytes, |bytes| bytes.value);
            }
        }
    }
    park
}
