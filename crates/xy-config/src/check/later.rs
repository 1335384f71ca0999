//! What is understood but cannot be done yet.
//!
//! All of it is read as if it worked, so that a wrong word is told as such; only
//! what is right is then refused, plainly. A feature that gets built moves from
//! here to `fields.rs`.

use super::environment;
use super::read::Reader;
use super::words::{Word, word};
use crate::raw::{RawNode, Value};

const CONTAINER_WORDS: [Word; 10] = [
    word("image", r#"image "ghcr.io/x/y:1""#),
    word("args", r#"args "--verbose""#),
    word("env", r#"env { RUST_LOG "info" }"#),
    word("volumes", r#"volumes "/srv/x:/x""#),
    word("memory", r#"memory "1GiB""#),
    word("cpus", "cpus 2"),
    word("pids", "pids 200"),
    word("network", r#"network "none""#),
    word("read-only", "read-only #true"),
    word("user", r#"user "1000""#),
];

const NO_CONTAINERS: &str = "only servers with a `command` or a `url` can be used now";

/// Fields of a server file of which some or all values have to wait.
pub(super) fn server_field(reader: &mut Reader<'_>, node: &RawNode, word: Word) {
    refuse(reader, node, word, NO_CONTAINERS, |reader| container(reader, node, word));
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

fn container(reader: &mut Reader<'_>, node: &RawNode, word: Word) {
    let Some(children) = reader.block(node, word) else { return };
    let fields = reader.known(children, &CONTAINER_WORDS, Some("container"));
    if !fields.iter().any(|(_, word)| word.name == "image") {
        let problem = reader.error(node.name_span, "`container` needs an `image`");
        reader.report(problem.suggest("for example `image \"ghcr.io/x/y:1\"`"));
    }
    for (node, word) in fields {
        container_field(reader, node, word);
    }
}

fn container_field(reader: &mut Reader<'_>, node: &RawNode, word: Word) {
    match word.name {
        "args" | "volumes" => {
            for value in reader.values(node) {
                reader.as_text(value, word.name);
            }
        }
        "env" => {
            environment::read(reader, node, word);
        }
        "memory" => {
            reader.size(node, word);
        }
        "cpus" => cpus(reader, node, word),
        "pids" => {
            reader.count(node, word, 1..=u32::MAX);
        }
        "read-only" => {
            reader.flag(node, word);
        }
        _ => {
            reader.filled_text(node, word);
        }
    }
}

fn cpus(reader: &mut Reader<'_>, node: &RawNode, word: Word) {
    let Some(value) = reader.value(node, word) else { return };
    let enough = match value.value {
        Value::Whole(number) => number > 0,
        Value::Fraction(number) => number > 0.0 && number.is_finite(),
        _ => false,
    };
    if !enough {
        let problem = reader.error(value.span, "`cpus` must be a number above 0");
        reader.report(problem.suggest("for example `cpus 1.5`"));
    }
}
