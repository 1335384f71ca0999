//! Answers and notifications of the daemon.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::error::CallError;
use crate::problem::Problem;
use crate::server::{Era, ServerEntry, ServerName, ServerState, Stream};
use crate::time::Timestamp;

/// A server for which a request failed, among several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The server.
    pub name: ServerName,
    /// The error.
    pub error: CallError,
}

/// The answer to `start`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartResult {
    /// Servers that were down and have been started.
    pub started: Vec<ServerName>,
    /// Servers that were running already.
    pub already_running: Vec<ServerName>,
    /// Servers with one instance per client and no client: an instance starts with the next client.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub when_needed: Vec<ServerName>,
    /// Servers that did not start.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<Failure>,
    /// Problems that did not prevent the request.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// The answer to `stop`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopResult {
    /// Servers that were up and have been stopped.
    pub stopped: Vec<ServerName>,
    /// Servers that were down already.
    pub not_running: Vec<ServerName>,
    /// Servers that did not stop.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<Failure>,
    /// Problems that did not prevent the request.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// The answer to `restart`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartResult {
    /// Servers that are up again.
    pub restarted: Vec<ServerName>,
    /// Servers that did not start.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<Failure>,
    /// Problems that did not prevent the request.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// The answer to `reload`: the changes made, or with `dry_run` those that would be made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadResult {
    /// Servers with a new file.
    pub added: Vec<ServerName>,
    /// Servers whose file is gone.
    pub removed: Vec<ServerName>,
    /// Servers whose file has changed: `restarted` and `updated` together.
    pub changed: Vec<ServerName>,
    /// Servers whose file has not changed.
    pub unchanged: Vec<ServerName>,
    /// Of `changed`: servers whose process settings have changed, so that they were restarted.
    pub restarted: Vec<ServerName>,
    /// Of `changed`: servers whose running instance follows the changed settings.
    pub updated: Vec<ServerName>,
    /// Profiles that are new, removed or changed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub profiles: Vec<String>,
    /// Of `profiles`: the new ones.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub profiles_added: Vec<String>,
    /// Of `profiles`: the removed ones.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub profiles_removed: Vec<String>,
    /// True if nothing was changed.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub dry_run: bool,
    /// Servers of `added` and `restarted` that did not start.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<Failure>,
    /// Warnings about valid files.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problems: Vec<Problem>,
}

/// The answer to `add`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddResult {
    /// The server's name.
    pub name: ServerName,
    /// Its state; stopped, if it waits for a client.
    pub state: ServerState,
    /// The leader of its processes, if it runs.
    pub pid: Option<u32>,
    /// Warnings about settings that look like a mistake.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problems: Vec<Problem>,
}

/// The answer to `remove`. The server is not listed any more and is being stopped. If its logs were
/// to be deleted, it has stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveResult {
    /// The server's name.
    pub name: ServerName,
    /// Problems that did not prevent the request.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
    /// Its log, if it has one that was not deleted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub log_file: Option<String>,
    /// The deleted logs.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub purged: Vec<String>,
}

/// The answer to a request that starts a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscribeResult {
    /// The stream's ID, repeated in each of its notifications.
    pub subscription_id: u64,
}

/// The answer to a request that ends a stream. The stream's end notification follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelResult {
    /// The stream's ID.
    pub subscription_id: u64,
}

/// The notification `log`: one line of a server. Borrowed, because there are very many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogLine<'a> {
    /// The stream's ID.
    pub subscription_id: u64,
    /// The server.
    pub name: &'a ServerName,
    /// The stream it was written to.
    pub stream: Stream,
    /// The text, invalid UTF-8 replaced.
    pub line: Cow<'a, str>,
    /// When it was read; null for lines from before this daemon, whose time was not recorded.
    pub ts: Option<Timestamp>,
    /// Its sequence number; absent for lines from before this daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// True if it continues the previous line, which was too long for one record.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub continued: bool,
}

/// The notifications `log_skipped` and `event_skipped`, for a client that reads too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkipNotice {
    /// The stream's ID.
    pub subscription_id: u64,
    /// Number of notifications that it misses.
    pub count: u64,
}

/// The notifications `log_end` and `event_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnd {
    /// The stream's ID.
    pub subscription_id: u64,
}

/// The notification `event`: a change of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The stream's ID.
    pub subscription_id: u64,
    /// The server.
    pub name: ServerName,
    /// The client that this instance belongs to, unless clients share it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client: Option<u64>,
    /// The era of this instance, if it is the second one of a server that speaks both.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub era: Option<Era>,
    /// The state before.
    pub from: ServerState,
    /// The state after.
    pub state: ServerState,
    /// The reason for the change.
    pub reason: String,
    /// The leader of its processes, if it runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// Restarts since a user last started it.
    pub restart_count: u32,
    /// When it happened.
    pub ts: Timestamp,
    /// The kind of event.
    #[serde(default)]
    pub kind: EventKind,
    /// Its number among all events of one daemon.
    #[serde(default)]
    pub seq: u64,
    /// The ID of that daemon. Numbers of different daemons do not compare.
    #[serde(default)]
    pub boot: String,
}

/// A kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The state has changed.
    #[default]
    Changed,
    /// A change reported before begins the last attempt: if this instance fails too, the server is
    /// given up.
    LastAttempt,
    /// A client has requested a change: the reason names the client, the change and the command.
    Asked,
    /// A kind that only a newer daemon knows.
    #[serde(other)]
    Other,
}

/// The answer to `check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// True if a daemon would accept these files.
    pub valid: bool,
    /// Number of server files.
    pub files: usize,
    /// Number of all files, including those of profiles and the daemon's own.
    #[serde(default)]
    pub all_files: usize,
    /// Number of `files` that describe a server without an error.
    pub servers: usize,
    /// The names of the servers without an error.
    #[serde(default)]
    pub server_names: Vec<ServerName>,
    /// All errors and warnings.
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
    /// The control socket.
    pub control_socket: String,
    /// The socket for MCP clients; null until it exists.
    pub mcp_socket: Option<String>,
    /// The address for MCP clients; null until it exists.
    pub gateway_url: Option<String>,
    /// Why clients cannot connect to the gateway, if they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_problem: Option<String>,
    /// The directory of server files.
    pub config_dir: String,
    /// The directory of logs and state.
    pub state_dir: String,
    /// Why events cannot be recorded, if they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_problem: Option<String>,
    /// Warnings about profiles and about what they show.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Limits that rejected clients in the last minute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limit_hits: Vec<LimitHit>,
    /// Seconds since the daemon started.
    pub uptime_secs: u64,
    /// Files of MCP clients that `--mcp-json` told the daemon to read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_json: Vec<String>,
    /// Number of known servers.
    pub servers: usize,
    /// Number of running servers.
    pub running: usize,
}

/// A limit that rejected a client in the last minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitHit {
    /// The limited resource.
    pub limit: String,
    /// The rejected client: the description of a token, `local clients`, or `unauthenticated`.
    pub by: String,
    /// Number of rejections.
    pub times: u64,
}

/// The answer to `shutdown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownResult {
    /// The process that is ending.
    pub pid: u32,
}

/// The answer to `handover`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverResult {
    /// The process that can end, or ends.
    pub pid: u32,
    /// True if it ends: no daemon watches the servers any more.
    pub gone: bool,
    /// True if the listening HTTP socket can be passed, or comes with this answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub listener: bool,
}

/// The answer to `list`.
pub type ListResult = Vec<ServerEntry>;
