//! What is understood but cannot be done yet.
//!
//! All of it is read as if it worked, so that a wrong word is told as such; only
//! what is right is then refused, plainly. A feature that gets built moves from
//! here to `fields.rs`.

use super::read::Reader;
use super::words::Word;
use crate::raw::RawNode;

/// Fields of a server file of which some or all values have to wait.
pub(super) fn server_field(reader: &mut Reader<'_>, node: &RawNode, word: Word) {
    match word.name {
        "share-key" => refuse(reader, node, word, "leave it out", |reader| {
            reader.filled_text(node, word);
        }),
        _ => {}
    }
}

/// Reads a field; if it is right, refuses it.
fn refuse(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
    now: &str,
    read: impl FnOnce(&mut Reader<'_>),
) {
    let errors_before = reader.problems.errors();
    read(reader);
    if reader.problems.errors() == errors_before {
        reader.unavailable(node.name_span, &format!("`{}`", word.name), now);
    }
}
