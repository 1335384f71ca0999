//! Streams of events with any bytes, cut anywhere: nothing panics, nothing grows beyond its
//! limit, and how a stream is cut makes no difference.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xy_mcp::sse::{EventParser, StreamItem};

const LIMIT: usize = 64;

fn read(pieces: &[&[u8]]) -> Vec<StreamItem> {
    let mut parser = EventParser::new(LIMIT);
    let mut all = Vec::new();
    for mut bytes in pieces.iter().copied() {
        while let Some(item) = parser.next(&mut bytes) {
            all.push(item);
        }
    }
    all
}

fuzz_target!(|input: (usize, &[u8])| {
    let (cut, stream) = input;
    let whole = read(&[stream]);
    for item in &whole {
        if let StreamItem::Event(event) = item {
            assert!(event.data.len() <= LIMIT + 8192);
        }
    }
    let (first, second) = stream.split_at(cut.min(stream.len()));
    // The reported beginning of a long event depends on the chunks, so it is not compared.
    let is_event = |item: &&StreamItem| !matches!(item, StreamItem::TooLong(_));
    let cut = read(&[first, second]);
    assert!(cut.iter().filter(is_event).eq(whole.iter().filter(is_event)));
});
