//! Any bytes on the control socket, in any pieces: no panic, and the same lines whatever
//! the pieces are.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xy_protocol::framing::{Line, LineSplitter};
use xy_protocol::control::Request;
use xy_protocol::jsonrpc::Incoming;

fn lines(pieces: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
    let mut splitter = LineSplitter::new(64);
    let mut lines = Vec::new();
    for mut piece in pieces.iter().copied() {
        while let Some(line) = splitter.next_line(&mut piece) {
            lines.push(match line {
                Line::Whole(line) => Some(line.to_vec()),
                Line::TooLong(_) => None,
            });
        }
    }
    lines
}

fuzz_target!(|bytes: &[u8]| {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    assert_eq!(lines(&[bytes]), lines(&[first, second]));
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(incoming) = Incoming::parse(line) {
            let _ = Request::parse(&incoming.method, incoming.params.as_deref());
        }
    }
});
