//! The `limits` block: what a server may use, and whether that can be kept here.
//!
//! A limit that this machine cannot keep is an error: a server would run without it.

use super::Kept;
use super::read::{Reader, Spanned};
use super::words::{Word, word};
use crate::raw::RawNode;
use crate::report::Problem;
use crate::settings::Limits;

const LIMITS_WORDS: [Word; 3] =
    [word("nofile", "nofile 4096"), word("memory", r#"memory "1GiB""#), word("pids", "pids 200")];

/// No program can even be loaded into less.
const LEAST_MEMORY: u64 = 1 << 20;

/// What a `limits` block says.
#[derive(Debug, Clone, Default)]
pub(super) struct LimitFields {
    nofile: Option<Spanned<u32>>,
    memory: Option<Spanned<u64>>,
    pids: Option<Spanned<u32>>,
}

impl LimitFields {
    /// These limits, and what `defaults` say where these say nothing.
    pub(super) fn or(self, defaults: &Self) -> Self {
        let other = defaults.clone();
        Self {
            nofile: self.nofile.or(other.nofile),
            memory: self.memory.or(other.memory),
            pids: self.pids.or(other.pids),
        }
    }

    /// The limits, without their places.
    pub(super) fn settled(&self) -> Limits {
        Limits {
            nofile: self.nofile.as_ref().map(|it| u64::from(it.value)),
            memory: self.memory.as_ref().map(|it| it.value),
            pids: self.pids.as_ref().map(|it| it.value),
        }
    }
}

/// Reads a `limits` block.
pub(super) fn read(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> LimitFields {
    let mut fields = LimitFields::default();
    let Some(children) = reader.block(node, word) else { return fields };
    for (node, word) in reader.known(children, &LIMITS_WORDS, Some("limits")) {
        match word.name {
            "nofile" => fields.nofile = nofile(reader, node, word),
            "memory" => fields.memory = memory(reader, node, word),
            _ => fields.pids = pids(reader, node, word),
        }
    }
    fields
}

fn nofile(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<Spanned<u32>> {
    let files = reader.count(node, word, 1..=u32::MAX)?;
    let most = reader.surroundings.limits().most_files.unwrap_or(u64::MAX);
    if u64::from(files.value) <= most {
        return Some(files);
    }
    let problem = Problem::error(&files.at, format!("`nofile` cannot be more than {most} here"))
        .label("more than the system allows (`ulimit -Hn`)")
        .suggest("lower it, or raise the hard limit of open files for the daemon");
    reader.report(problem);
    None
}

fn memory(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<Spanned<u64>> {
    let memory = reader.size(node, word)?;
    if memory.value < LEAST_MEMORY {
        let problem = Problem::error(&memory.at, "no program can run in so little memory");
        reader.report(problem.suggest("give it at least `\"1MiB\"`; most need 50 times as much"));
        return None;
    }
    let kept = reader.surroundings.limits().memory;
    keepable(reader, memory, word, kept)
}

fn pids(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<Spanned<u32>> {
    let pids = reader.count(node, word, 1..=u32::MAX)?;
    let kept = reader.surroundings.limits().pids;
    keepable(reader, pids, word, kept)
}

/// The limit, unless it cannot be kept.
fn keepable<T>(
    reader: &mut Reader<'_>,
    limit: Spanned<T>,
    word: Word,
    kept: Kept,
) -> Option<Spanned<T>> {
    let Kept::NotAtAll { why } = kept else { return Some(limit) };
    let message = format!("a limit of `{}` cannot be kept on this machine", word.name);
    let instead = format!("leave `{}` out, or run the daemon where it can be kept", word.name);
    reader.report(Problem::error(&limit.at, message).label(why).suggest(instead));
    None
}
