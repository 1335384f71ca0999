//! Parses the `park` block of `xy.kdl`: limits of calls that wait for a server.

use super::read::Reader;
use super::values::Zero;
use super::words::{Word, word};
use crate::raw::RawNode;
use crate::settings::ParkSettings;

const PARK_WORDS: [Word; 7] = [
    word("queue", r#"queue "30s""#),
    word("calls", "calls 1000"),
    word("bytes", r#"bytes "64MiB""#),
    word("total-calls", "total-calls 10000"),
    word("total-bytes", r#"total-bytes "512MiB""#),
    word("held-calls", "held-calls 1000"),
    word("held-bytes", r#"held-bytes "64MiB""#),
];

/// Reads a `park` block. Absent fields keep their defaults.
pub(super) fn read(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> ParkSettings {
    let mut park = ParkSettings::default();
    let Some(children) = reader.block(node, word) else { return park };
    for (node, word) in reader.known(children, &PARK_WORDS, Some("park")) {
        match word.name {
            // With zero, no call waits.
            "queue" => {
                let queue = reader.duration(node, word, Zero::Allowed);
                park.queue = queue.map_or(park.queue, |queue| queue.value);
            }
            "calls" | "total-calls" | "held-calls" => {
                let limit = match word.name {
                    "calls" => &mut park.calls,
                    "total-calls" => &mut park.total_calls,
                    _ => &mut park.held_calls,
                };
                let calls = reader.count(node, word, 0..=u32::MAX);
                let calls = calls.and_then(|calls| usize::try_from(calls.value).ok());
                *limit = calls.unwrap_or(*limit);
            }
            _ => {
                let limit = match word.name {
                    "bytes" => &mut park.bytes,
                    "total-bytes" => &mut park.total_bytes,
                    _ => &mut park.held_bytes,
                };
                *limit = reader.size(node, word).map_or(*limit, |bytes| bytes.value);
            }
        }
    }
    park
}
