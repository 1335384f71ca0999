//! Any bytes as an MCP message: no panic, and one whose id is replaced is still a message, on
//! one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{Message, parse};

fuzz_target!(|bytes: &[u8]| {
    let Ok(Message::Request { id, .. }) = parse(bytes) else { return };
    let mut edits = Edits::of(bytes);
    edits.replace(id, "900");
    let edited = edits.to_vec();
    assert!(!edited.contains(&b'\n'));
    assert!(matches!(parse(&edited), Ok(Message::Request { id: "900", .. })));
});
