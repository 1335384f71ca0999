//! What is understood but cannot be done yet.
//!
//! All of it is read as if it worked, so that a wrong word is told as such; only
//! what is right is then refused, plainly. A feature that gets built moves from
//! here to `fields.rs`.

use super::read::{Reader, Spanned};
use super::values::Zero;
use super::words::Word;
use crate::raw::RawNode;

/// Fields of a server file of which some or all values have to wait.
pub(super) fn server_field(reader: &mut Reader<'_>, node: &RawNode, word: Word) {
    match word.name {
        "start" => {
            let now = "use `\"eager\"`, or leave it out: servers start with the daemon";
            only_first(reader, node, word, ["eager", "lazy"], now);
        }
        "share-key" => refuse(reader, node, word, "leave it out", |reader| {
            reader.filled_text(node, word);
        }),
        _ => {
            let now = "leave it out: servers run until they are stopped";
            refuse(reader, node, word, now, |reader| {
                let zero = Zero::Senseless("leave it out to turn it off");
                reader.duration(node, word, zero);
            });
        }
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

/// Reads a word out of two, of which only the first can be used now.
fn only_first(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
    words: [&'static str; 2],
    now: &str,
) {
    let choices = [(words[0], true), (words[1], false)];
    let choice = reader.choice(node, word, word.name, &choices);
    if let Some(Spanned { value: false, at }) = choice {
        let what = format!("`{} \"{}\"`", word.name, words[1]);
        reader.unavailable(at.span, &what, now);
    }
}
