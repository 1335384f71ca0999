//! Streams of events with any bytes, cut anywhere: nothing panics, nothing grows beyond its
//! limit, and how a stream is cut makes no difference.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xy_mcp::sse::{Events, Piece};

const LIMIT: usize = 64;

fn read(pieces: &[&[u8]]) -> Vec<Piece> {
    let mut events = Events::new(LIMIT);
    let mut all = Vec::new();
    for mut bytes in pieces.iter().copied() {
        while let Some(piece) = events.next(&mut bytes) {
            all.push(piece);
        }
    }
    all
}

fuzz_target!(|input: (usize, &[u8])| {
    let (cut, stream) = input;
    let whole = read(&[stream]);
    for piece in &whole {
        if let Piece::Event(event) = piece {
            assert!(event.data.len() <= LIMIT + 8192);
        }
    }
    let (first, second) = stream.split_at(cut.min(stream.len()));
    // What is too long is told with as much of it as had come.
    let is_event = |piece: &&Piece| !matches!(piece, Piece::TooLong(_));
    let cut = read(&[first, second]);
    assert!(cut.iter().filter(is_event).eq(whole.iter().filter(is_event)));
});
