//! `tail`: the last lines of a server as one answer, for who follows no stream.

use serde::{Deserialize, Serialize};

use super::DEFAULT_TAIL;
use crate::error::CallError;
use crate::server::{ServerName, Stream};
use crate::time::Timestamp;

/// The most lines that one answer has.
pub const MOST_TAIL: u32 = 1000;

/// The most bytes of text that one answer has.
pub const MOST_TAIL_BYTES: usize = 1 << 20;

/// Which lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tail {
    /// Of which server.
    pub name: String,
    /// How many of the latest, at most [`MOST_TAIL`].
    #[serde(default = "default_lines")]
    pub lines: u32,
    /// Only those of one output.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stream: Option<Stream>,
}

fn default_lines() -> u32 {
    DEFAULT_TAIL
}

impl Tail {
    pub(super) fn checked(self) -> Result<Self, CallError> {
        if self.lines > MOST_TAIL {
            let told = format!("`lines` is {}, and may be {MOST_TAIL} at most", self.lines);
            return Err(CallError::invalid_params(told));
        }
        Ok(self)
    }
}

/// The answer to `tail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tailed {
    /// Whose.
    pub name: ServerName,
    /// Oldest first.
    pub lines: Vec<TailLine>,
    /// How many of the wanted ones were left out, as the answer would have been too long: the
    /// oldest.
    pub left_out: usize,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailLine {
    /// Which output.
    pub stream: Stream,
    /// The text, invalid UTF-8 replaced.
    pub line: String,
    /// When it was read; null for lines from before this daemon.
    pub ts: Option<Timestamp>,
}
