//! Parses the `limits` block: resource limits of a server, which this machine must be able to
//! enforce.
//!
//! A limit that cannot be enforced is an error, since the server would run without it.

use super::Enforcement;
use super::read::{Reader, Spanned};
use super::words::{Word, word};
use crate::raw::RawNode;
use crate::report::Problem;
use crate::settings::Limits;

const LIMITS_WORDS: [Word; 3] =
    [word("nofile", "nofile 4096"), word("memory", r#"memory "1GiB""#), word("pids", "pids 200")];

/// Minimum memory: no program can be loaded into less.
const MIN_MEMORY: u64 = 1 << 20;

/// The fields of a `limits` block.
#[derive(Debug, Clone, Default)]
pub(super) struct LimitFields {
    nofile: Option<Spanned<u32>>,
    memory: Option<Spanned<u64>>,
    pids: Option<Spanned<u32>>,
}

impl LimitFields {
    /// Fills absent fields from `defaults`.
    pub(super) fn or(self, defaults: &Self) -> Self {
        let other = defaults.clone();
        Self {
            nofile: self.nofile.or(other.nofile),
            memory: self.memory.or(other.memory),
            pids: self.pids.or(other.pids),
        }
    }

    /// Returns the limits, without their spans.
    pub(super) fn to_limits(&self) -> Limits {
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
    let max = reader.machine.limits().max_open_files.unwrap_or(u64::MAX);
    if u64::from(files.value) <= max {
        return Some(files);
    }
    let problem = Problem::error(&files.at, format!("`nofile` cannot be more than {max} here"))
        .label("more than the system allows (`ulimit -Hn`)")
        .suggest("lower it, or raise the hard limit of open files for the daemon");
    reader.report(problem);
    None
}

fn memory(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<Spanned<u64>> {
    let memory = reader.size(node, word)?;
    if memory.value < MIN_MEMORY {
        let problem = Problem::error(&memory.at, "this is too little memory for any program");
        reader
            .report(problem.suggest("use at least `\"1MiB\"`; most servers need 50 times as much"));
        return None;
    }
    let enforcement = reader.machine.limits().memory;
    require_enforcement(reader, memory, word, enforcement)
}

fn pids(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<Spanned<u32>> {
    let pids = reader.count(node, word, 1..=u32::MAX)?;
    let enforcement = reader.machine.limits().pids;
    require_enforcement(reader, pids, word, enforcement)
}

/// Returns the limit, or reports that it cannot be enforced.
fn require_enforcement<T>(
    reader: &mut Reader<'_>,
    limit: Spanned<T>,
    word: Word,
    enforcement: Enforcement,
) -> Option<Spanned<T>> {
    let Enforcement::Unavailable { why } = enforcement else { return Some(limit) };
    let message = format!("a limit of `{}` cannot be enforced on this machine", word.name);
    let instead = format!("leave `{}` out, or run the daemon where it can be enforced", word.name);
    reader.report(Problem::error(&limit.at, message).label(why).suggest(instead));
    None
}
