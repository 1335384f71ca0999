//! What the daemon answers, and what it tells by itself.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::error::CallError;
use crate::server::{Era, ServerEntry, ServerName, ServerState, Stream};
use crate::time::Timestamp;

/// A server that did not become what was asked, among several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which.
    pub name: ServerName,
    /// Why.
    pub error: CallError,
}

/// The answer to `start`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// They were down.
    pub started: Vec<ServerName>,
    /// They were up.
    pub already_running: Vec<ServerName>,
    /// Each client has its own, and there is none: they start with the next.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub when_needed: Vec<ServerName>,
    /// They did not come up.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<Failure>,
    /// What went wrong beside it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// The answer to `stop`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// They were up.
    pub stopped: Vec<ServerName>,
    /// They were down.
    pub not_running: Vec<ServerName>,
    /// They did not go down.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<Failure>,
    /// What went wrong beside it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// The answer to `restart`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarted {
    /// They are up again.
    pub restarted: Vec<ServerName>,
    /// They did not come up.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<Failure>,
    /// What went wrong beside it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// The answer to `reload`: what changed, or with `dry_run` what would.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// New files.
    pub added: Vec<ServerName>,
    /// Files that are gone.
    pub removed: Vec<ServerName>,
    /// Files that say something else: `restarted` and `updated` together.
    pub changed: Vec<ServerName>,
    /// Files that say the same.
    pub unchanged: Vec<ServerName>,
    /// Of `changed`: what the process is has changed, so it was replaced.
    pub restarted: Vec<ServerName>,
    /// Of `changed`: only rules have changed, and the living instance follows them.
    pub updated: Vec<ServerName>,
    /// Profiles that are new, gone, or say something else.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub profiles: Vec<String>,
    /// Of `profiles`: those that are new.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub profiles_added: Vec<String>,
    /// Of `profiles`: those that are gone.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub profiles_removed: Vec<String>,
    /// Whether nothing was done.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub dry_run: bool,
    /// Those of `added` and `restarted` that did not come up.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<Failure>,
    /// What is odd in the files, though they are valid.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problems: Vec<Problem>,
}

/// The answer to `add`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// Its name.
    pub name: ServerName,
    /// What it is doing: stopped, if it waits for a client.
    pub state: ServerState,
    /// The leader of its processes, while there is one.
    pub pid: Option<u32>,
    /// What looks like a mistake, though it runs.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problems: Vec<Problem>,
}

/// The answer to `remove`: it is in no list any more, and is being ended. If its logs were to be
/// deleted, it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Its name.
    pub name: ServerName,
    /// What went wrong beside it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
    /// Its log, if it has one and it was not deleted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub log_file: Option<String>,
    /// The logs that were deleted.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub purged: Vec<String>,
}

/// A stream has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscribed {
    /// Its id, in every notification of it.
    pub subscription_id: u64,
}

/// A stream has been told to end; its end notification follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// Its id.
    pub subscription_id: u64,
}

/// The notification `log`: one line of a server. Borrowed, because there are very many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogLine<'a> {
    /// Whose stream.
    pub subscription_id: u64,
    /// Which server.
    pub name: &'a ServerName,
    /// Which of its outputs.
    pub stream: Stream,
    /// The text, invalid UTF-8 replaced.
    pub line: Cow<'a, str>,
    /// When it was read; null for lines from before this daemon, whose time was not kept.
    pub ts: Option<Timestamp>,
    /// Its number; absent for lines from before this daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Whether it goes on the line before it, which was too long for one record.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub continued: bool,
}

/// The notifications `log_skipped` and `event_skipped`: the reader was too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Whose stream.
    pub subscription_id: u64,
    /// How many it will not see.
    pub count: u64,
}

/// The notifications `log_end` and `event_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnd {
    /// Whose stream.
    pub subscription_id: u64,
}

/// The notification `event`: a server changed its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Whose stream.
    pub subscription_id: u64,
    /// Which server.
    pub name: ServerName,
    /// The client that this instance of it is for, unless all share it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client: Option<u64>,
    /// The era of this instance, if it is the second one of a server that speaks both.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub era: Option<Era>,
    /// The state before.
    pub from: ServerState,
    /// The state after.
    pub state: ServerState,
    /// Why.
    pub reason: String,
    /// The leader of its processes, while there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// Restarts since an operator last started it.
    pub restart_count: u32,
    /// When.
    pub ts: Timestamp,
    /// What about the change this tells.
    #[serde(default)]
    pub kind: EventKind,
    /// Its number among all events that one daemon has seen.
    #[serde(default)]
    pub seq: u64,
    /// Which daemon that was: numbers of different ones do not compare.
    #[serde(default)]
    pub boot: String,
}

/// What an event tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A change of state.
    #[default]
    Changed,
    /// That a change, which was told before, begins the last attempt: if this life fails too,
    /// the server is given up.
    LastAttempt,
    /// That somebody asked to change the server: who, what, and which command runs.
    Asked,
    /// Something that a newer daemon tells.
    #[serde(other)]
    Other,
}

/// How bad a problem in the files is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but it looks like a mistake.
    Warning,
}

/// One problem in the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// How bad.
    pub severity: Severity,
    /// What.
    pub message: String,
    /// The file.
    pub file: String,
    /// The line, from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line: Option<u32>,
    /// The column, from 1, in characters.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub column: Option<u32>,
    /// What would be right.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub suggestion: Option<String>,
    /// All of it as a person reads it, with the text underlined.
    pub rendered: String,
}

/// The answer to `check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Whether a daemon would accept these files.
    pub valid: bool,
    /// How many server files there are.
    pub files: usize,
    /// How many files there are in all: also those of profiles, and the daemon's own.
    #[serde(default)]
    pub all_files: usize,
    /// How many of `files` describe a server without a fault.
    pub servers: usize,
    /// The names of the servers without a fault.
    #[serde(default)]
    pub server_names: Vec<ServerName>,
    /// Everything that is wrong or odd.
    pub problems: Vec<Problem>,
}

/// The answer to `version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The daemon's version.
    pub version: String,
    /// [`crate::PROTOCOL_VERSION`].
    pub protocol: u32,
}

/// The answer to `info`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The daemon's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// The socket this was asked on.
    pub control_socket: String,
    /// The socket for MCP clients; null until there is one.
    pub mcp_socket: Option<String>,
    /// The address for MCP clients; null until there is one.
    pub gateway_url: Option<String>,
    /// Why nobody can come in there, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_problem: Option<String>,
    /// Where server files are read from.
    pub config_dir: String,
    /// Where logs and state are kept.
    pub state_dir: String,
    /// Why events are not kept there, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_problem: Option<String>,
    /// What is odd about profiles, and about what clients are shown by them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Limits that kept clients out in the last minute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limit_hits: Vec<LimitHit>,
    /// How long the daemon has been up.
    pub uptime_secs: u64,
    /// The files of MCP clients that it was told to read by `--mcp-json`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_json: Vec<String>,
    /// How many servers it knows.
    pub servers: usize,
    /// How many of them are running.
    pub running: usize,
}

/// A limit that kept a client out in the last minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitHit {
    /// What there may be no more of.
    pub limit: String,
    /// Who was refused: the words for a token, `local clients`, or `unauthenticated`.
    pub by: String,
    /// How often it was refused.
    pub times: u64,
}

/// The answer to `shutdown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShuttingDown {
    /// The process that is going.
    pub pid: u32,
}

/// The answer to `handover`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOver {
    /// The process that can go, or goes.
    pub pid: u32,
    /// Whether it goes: nobody minds the servers any more.
    pub gone: bool,
    /// Whether the socket that listens for HTTP can come, or comes, with this answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub listener: bool,
}

/// The answer to `list`.
pub type Listed = Vec<ServerEntry>;
