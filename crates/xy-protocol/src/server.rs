//! Names and states of servers, as clients see them.

use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::problem::Problem;
use crate::time::Timestamp;

/// One of the two kinds of MCP revisions, which are different protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Era {
    /// Revisions up to 2025-11-25: a session begins with `initialize`, and servers send requests to
    /// clients.
    Legacy,
    /// Revisions from 2026-07-28 on: every request is self-contained.
    Modern,
}

impl Era {
    /// Returns the other era.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Modern,
            Self::Modern => Self::Legacy,
        }
    }

    /// Returns the name used in settings and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Maximum length of a server's name.
pub const MAX_NAME_LENGTH: usize = 32;

/// The name of a server: the stem of its file.
///
/// Consists of letters, digits, `-` and single `_`, so that `{server}__{tool}` can be split again
/// and every client accepts it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerName(String);

impl ServerName {
    /// Validates a name. Returns the rule it breaks, if any.
    pub fn new(name: &str) -> Result<Self, BadName> {
        if name.is_empty() {
            return Err(BadName::Empty);
        }
        if name.len() > MAX_NAME_LENGTH {
            return Err(BadName::TooLong { length: name.len() });
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if let Some(character) = name.chars().find(|&c| !allowed(c)) {
            return Err(BadName::Character { character });
        }
        if name.starts_with('_') || name.ends_with('_') {
            return Err(BadName::EdgeUnderscore);
        }
        if name.contains("__") {
            return Err(BadName::DoubleUnderscore);
        }
        Ok(Self(name.to_owned()))
    }

    /// Returns the name as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Borrow<str> for ServerName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ServerName {
    type Error = BadName;

    fn try_from(name: String) -> Result<Self, BadName> {
        Self::new(&name)
    }
}

impl From<ServerName> for String {
    fn from(name: ServerName) -> Self {
        name.0
    }
}

/// Why a text is not a valid server name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadName {
    /// The text is empty.
    Empty,
    /// The text is longer than [`MAX_NAME_LENGTH`].
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// The text contains a character other than letters, digits, `-` and `_`.
    Character {
        /// The first such character.
        character: char,
    },
    /// The text starts or ends with `_`.
    EdgeUnderscore,
    /// The text contains `__`, which separates a server from its tools.
    DoubleUnderscore,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a server's name cannot be empty"),
            Self::TooLong { length } => {
                write!(f, "a server's name has at most {MAX_NAME_LENGTH} characters, not {length}")
            }
            Self::Character { character } => write!(
                f,
                "a server's name has only letters, digits, `-` and `_`, not {character:?}"
            ),
            Self::EdgeUnderscore => write!(f, "a server's name cannot start or end with `_`"),
            Self::DoubleUnderscore => write!(
                f,
                "a server's name cannot contain `__`, which separates a server from its tools"
            ),
        }
    }
}

impl std::error::Error for BadName {}

/// The state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// It is not running, and only a user starts it again.
    Stopped,
    /// It has been started and is not ready yet.
    Starting,
    /// It is ready.
    Running,
    /// It waits for the back-off before the next attempt.
    Restarting,
    /// It has been given up; `reason` says why.
    Failed,
    /// It is being stopped.
    Stopping,
    /// It is not running because no client uses it; the next call starts it.
    Asleep,
}

impl ServerState {
    /// Returns the name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Restarting => "restarting",
            Self::Failed => "failed",
            Self::Stopping => "stopping",
            Self::Asleep => "asleep",
        }
    }

    /// Returns true if the state will not change by itself soon, so that a pending request is
    /// answered.
    pub fn is_settled(self) -> bool {
        !matches!(self, Self::Starting | Self::Stopping)
    }
}

impl fmt::Display for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The state that the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// The server should run.
    Up,
    /// The server should stay stopped until a user starts it.
    Down,
}

/// The health of a server, according to its probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// No probe has finished yet.
    Unknown,
    /// The last probe was answered.
    Healthy,
    /// Several probes in a row failed.
    Unhealthy,
    /// A remote server cannot be reached.
    Unreachable,
}

/// The transport of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// MCP over stdin and stdout.
    Stdio,
    /// Streamable HTTP, on `port` or at `url`.
    Http,
    /// The older HTTP+SSE transport, on `port` or at `url`.
    Sse,
}

impl Transport {
    /// Returns the name in files and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Sse => "sse",
        }
    }
}

/// An output stream of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Its stdout: for a stdio server, only what is not protocol.
    Stdout,
    /// Its stderr.
    Stderr,
}

/// How the last process of a server exited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastExit {
    /// Exit code, unless a signal ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signal: Option<i32>,
    /// True if xy or a user requested the exit. False if xy ended a server that did not work.
    pub expected: bool,
    /// True if xy ended the process and sent the signal, if there was one.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub by_xy: bool,
    /// When the exit was noticed.
    pub at: Timestamp,
    /// Why the kernel killed one of its processes for lack of memory, if it did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oom: Option<Oom>,
}

/// Why the kernel killed a process for lack of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Oom {
    /// The server exceeded its limit.
    Limit,
    /// The machine, or a control group above the server's, ran out of memory.
    Machine,
}

/// The mechanisms that find all processes of a server, from the strongest to the weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A control group of its own, and the shim as the parent of all orphans.
    Cgroup,
    /// The shim as the parent of all orphans.
    Subreaper,
    /// The leader's process group, which each process may leave.
    Group,
    /// The engine that runs its container.
    Container,
}

/// A limit of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The limited resource.
    pub name: LimitName,
    /// The limit: a number, or bytes.
    pub value: u64,
    /// The mechanism that enforces it, while the server runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kept_by: Option<EnforcedBy>,
}

/// A resource that can be limited, as it is named in a server file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitName {
    /// Open files.
    Nofile,
    /// Bytes of memory.
    Memory,
    /// Processes and threads.
    Pids,
}

/// The mechanism that enforces a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnforcedBy {
    /// A control group, for all processes together.
    Cgroup,
    /// A resource limit, for each process alone.
    Rlimit,
    /// The engine that runs its container, for all processes together.
    Engine,
}

/// A step that will be taken without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The back-off ends, and the server is started again.
    Restart,
    /// The server is stopped because it did not become ready.
    GiveUpWaiting,
    /// The server is killed.
    Kill,
}

/// The next step that will be taken without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextStep {
    /// The step.
    pub what: Step,
    /// Milliseconds from the answer until the step.
    pub in_ms: u64,
}

/// Work that precedes the start of a server, and its progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The work, such as `pulling x:1`.
    pub what: String,
    /// The completed part in percent, as far as it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub percent: Option<u8>,
}

/// One server in `list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEntry {
    /// Its name.
    pub name: ServerName,
    /// Its state.
    pub state: ServerState,
    /// The leader of its processes, if it runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// The port that its file declares; null for stdio and remote servers.
    pub port: Option<u16>,
    /// The URL of a remote server, without the query, which may contain a key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub url: Option<String>,
    /// Seconds since it became ready.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uptime_secs: Option<u64>,
    /// Restarts since a user last started it.
    pub restart_count: u32,
    /// How its last process exited.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_exit: Option<LastExit>,
    /// The state that the user wants.
    pub wanted: Wanted,
    /// The result of its probes.
    pub health: Health,
    /// Its transport.
    pub transport: Transport,
    /// Restarts since the daemon first knew it.
    pub restarts_total: u64,
    /// The server whose process it shares, if it does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shares: Option<ServerName>,
    /// The reason for its state.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// The kind of that reason, if clients treat it specially.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason_kind: Option<ReasonKind>,
    /// Work that precedes its start, such as pulling its image.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub progress: Option<Progress>,
    /// The next step that will be taken without a request.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<NextStep>,
    /// The note on who restarts the server, if its restart policy excludes xy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub not_restarted: Option<String>,
    /// Problems of a running server, such as a log that cannot be written.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// A kind of reason that clients treat specially.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonKind {
    /// Its file is invalid, so only its name is known.
    BadFile,
    /// A kind that only a newer daemon knows.
    #[serde(other)]
    Other,
}

/// One change of state in the past.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// The state before.
    pub from: ServerState,
    /// The state after.
    pub to: ServerState,
    /// The reason.
    pub reason: String,
    /// When it happened.
    pub at: Timestamp,
    /// Why the instance that it starts is the last attempt, if it is: should it fail too, the
    /// server is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<String>,
}

/// All details of one server: the answer to `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its entry in `list`.
    #[serde(flatten)]
    pub entry: ServerEntry,
    /// The MCP revision in use, while the server is connected.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub protocol: Option<String>,
    /// Number of calls that wait for it.
    #[serde(default)]
    pub parked: u64,
    /// True if its process exists or, for a remote server, if it answers.
    #[serde(default)]
    pub alive: bool,
    /// True if it is ready to serve clients.
    #[serde(default)]
    pub ready: bool,
    /// How much of its restart limits is used.
    #[serde(default)]
    pub limits_used: RestartLimits,
    /// Its latest changes of state, oldest first.
    pub transitions: Vec<Transition>,
    /// The last lines of its stderr, if it has failed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub last_stderr: Vec<String>,
    /// The problems of its file, if it has failed because of them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problems: Vec<Problem>,
    /// The program and its arguments; empty for a remote server.
    pub command: Vec<String>,
    /// The file that configures it.
    pub config_file: String,
    /// Its log file; null for a remote server.
    #[serde(default)]
    pub log_file: Option<String>,
    /// The value of `log_file` under another name.
    #[serde(default)]
    pub log_path: Option<String>,
    /// The mechanism that finds all its processes, while it runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub containment: Option<Containment>,
    /// Its limits, as far as its file sets any.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub limits: Vec<Limit>,
    /// Its container, while it runs in one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container: Option<ContainerEntry>,
    /// Its instances: one that all clients share, or one for each client.
    #[serde(default)]
    pub instances: Vec<InstanceEntry>,
    /// When a probe last reported its health; null before the first.
    #[serde(default)]
    pub last_health_check: Option<Timestamp>,
    /// The last instance of a single client that was failing when the client left.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_failed: Option<FailedEntry>,
}

/// An instance of a single client that was failing when the client left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedEntry {
    /// The client; null if xy itself started the instance, for a request or for the self-test.
    pub holder: Option<u64>,
    /// Why it was failing.
    pub reason: String,
    /// When its client left.
    pub at: Timestamp,
    /// How its last process exited.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_exit: Option<LastExit>,
    /// The last lines of its stderr.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub last_stderr: Vec<String>,
    /// Its log, until the next instance fails or the daemon ends.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub log_file: Option<String>,
}

/// A container, as its engine knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerEntry {
    /// `docker` or `podman`.
    pub engine: String,
    /// The version that the engine reports.
    pub version: String,
    /// The socket at which the engine listens.
    pub socket: String,
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// True if it ends when the daemon is killed, because its engine then closes its stdin.
    pub ends_with_daemon: bool,
}

/// Usage of the restart limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RestartLimits {
    /// Consecutive restarts, none of which was followed by `reset-after` of ready uptime.
    pub in_a_row: u32,
    /// Maximum number of consecutive restarts; 0 for no limit.
    pub max_attempts: u32,
    /// Unexpected exits within the last minute, counted up to the limit.
    pub exits_last_minute: u32,
    /// Maximum number of exits per minute; 0 for no limit.
    pub max_retries_per_minute: u32,
}

/// Clients of an instance with the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceClients {
    /// The name that they report; empty if they report none.
    pub name: String,
    /// Number of clients.
    pub count: usize,
}

/// One instance of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceEntry {
    /// The client it belongs to; null if clients share it.
    pub holder: Option<u64>,
    /// The era of its clients, if it is the second process of a server that speaks both.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub era: Option<Era>,
    /// The MCP revision in use.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub protocol: Option<String>,
    /// The leader of its processes, if it runs.
    pub pid: Option<u32>,
    /// Its state.
    pub state: ServerState,
    /// Connected clients that have used it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub clients: Vec<InstanceClients>,
    /// Memory of all its processes, in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
    /// CPU time of all its processes, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_ms: Option<u64>,
    /// Its log file, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub log_file: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_are_validated() {
        for good in ["a", "git-hub", "a_b", "A9", &"x".repeat(32)] {
            assert!(ServerName::new(good).is_ok(), "{good}");
        }
        let bad = ["", "_a", "a_", "a__b", "a b", "a.b", "é", "a/b", &"x".repeat(33)];
        let errors: Vec<String> =
            bad.iter().map(|name| ServerName::new(name).unwrap_err().to_string()).collect();
        insta::assert_snapshot!(errors.join("\n"), @"
        a server's name cannot be empty
        a server's name cannot start or end with `_`
        a server's name cannot start or end with `_`
        a server's name cannot contain `__`, which separates a server from its tools
        a server's name has only letters, digits, `-` and `_`, not ' '
        a server's name has only letters, digits, `-` and `_`, not '.'
        a server's name has only letters, digits, `-` and `_`, not 'é'
        a server's name has only letters, digits, `-` and `_`, not '/'
        a server's name has at most 32 characters, not 33
        ");
    }

    #[test]
    fn deserialised_name_is_validated() {
        assert!(serde_json::from_str::<ServerName>(r#""a__b""#).is_err());
    }
}
