//! `tail`: the last lines of a server as one answer, for clients that follow no stream.

use serde::{Deserialize, Serialize};

use super::DEFAULT_TAIL;
use crate::error::CallError;
use crate::server::{ServerName, Stream};
use crate::time::Timestamp;

/// Maximum number of lines in one answer.
pub const MAX_TAIL_LINES: u32 = 1000;

/// Maximum number of bytes of text in one answer.
pub const MAX_TAIL_BYTES: usize = 1 << 20;

/// The params of `tail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tail {
    /// The server.
    pub name: String,
    /// Number of latest lines, at most [`MAX_TAIL_LINES`].
    #[serde(default = "default_lines")]
    pub lines: u32,
    /// Only lines of this stream, if given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stream: Option<Stream>,
}

fn default_lines() -> u32 {
    DEFAULT_TAIL
}

impl Tail {
    pub(super) fn checked(self) -> Result<Self, CallError> {
        if self.lines > MAX_TAIL_LINES {
            let message = format!("`lines` is {}, and may be {MAX_TAIL_LINES} at most", self.lines);
            return Err(CallError::invalid_params(message));
        }
        Ok(self)
    }
}

/// The answer to `tail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailResult {
    /// The server.
    pub name: ServerName,
    /// The lines, oldest first.
    pub lines: Vec<TailLine>,
    /// Number of requested lines left out because the answer would have been too long: the oldest
    /// ones.
    pub left_out: usize,
}

/// One line of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailLine {
    /// The stream it was written to.
    pub stream: Stream,
    /// The text, invalid UTF-8 replaced.
    pub line: String,
    /// When it was read; null for lines from before this daemon.
    pub ts: Option<Timestamp>,
}
