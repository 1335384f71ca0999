//! Names and states of servers, as clients see them.

use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::control::Problem;
use crate::time::Timestamp;

/// One of the two kinds of MCP revisions, which are different protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Era {
    /// Revisions up to 2025-11-25: a session begins with `initialize`, and servers ask clients.
    Legacy,
    /// Revisions from 2026-07-28 on: every request stands for itself.
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

    /// Returns its name, as settings and logs have it.
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

/// The longest name a server may have.
pub const MAX_NAME_LENGTH: usize = 32;

/// The name of a server: the stem of its file.
///
/// Letters, digits, `-` and single `_`, so that `{server}__{tool}` can be taken
/// apart again and every client accepts it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerName(String);

impl ServerName {
    /// Accepts `name`, or says which rule it breaks.
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

    /// The name as text.
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

/// Why a text cannot be the name of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadName {
    /// There is no text at all.
    Empty,
    /// It is longer than [`MAX_NAME_LENGTH`].
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// It holds something other than letters, digits, `-` and `_`.
    Character {
        /// The first such character.
        character: char,
    },
    /// It starts or ends with `_`.
    EdgeUnderscore,
    /// It contains `__`, which separates a server from its tools.
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

/// What a server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// Not there, and nothing will start it by itself.
    Stopped,
    /// Launched, not ready yet.
    Starting,
    /// Ready.
    Running,
    /// Waiting for the back-off before the next try.
    Restarting,
    /// Given up; `reason` says why.
    Failed,
    /// Being ended.
    Stopping,
    /// Not there, as nobody uses it; the next call starts it.
    Asleep,
}

impl ServerState {
    /// The word on the wire.
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

    /// Whether nothing more will happen at once: a request that led here is answered.
    pub fn is_settled(self) -> bool {
        !matches!(self, Self::Starting | Self::Stopping)
    }
}

impl fmt::Display for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What the operator wants of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// Keep it alive.
    Up,
    /// Leave it alone until somebody starts it.
    Down,
}

/// What probes say of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// No probe has said anything yet.
    Unknown,
    /// The last probe was answered.
    Healthy,
    /// Several probes in a row failed.
    Unhealthy,
    /// A remote server does not answer at all.
    Unreachable,
}

/// How a server speaks MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Over its stdin and stdout.
    Stdio,
    /// Streamable HTTP, on `port` or at `url`.
    Http,
    /// The older HTTP+SSE pair, on `port` or at `url`.
    Sse,
}

impl Transport {
    /// The word in files and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Sse => "sse",
        }
    }
}

/// Which of its two outputs a server wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Its stdout: for a stdio server, what was not protocol.
    Stdout,
    /// Its stderr.
    Stderr,
}

/// How the last life of a server ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastExit {
    /// Its exit code, unless a signal ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code: Option<i32>,
    /// The number of the signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signal: Option<i32>,
    /// Whether xy or an operator had asked for it; false if xy ended a server that did not work.
    pub expected: bool,
    /// Whether xy ended it, and sent the signal if there was one.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub by_xy: bool,
    /// When it was seen.
    pub at: Timestamp,
    /// Whether the kernel had killed any of it for want of memory, and why.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oom: Option<Oom>,
}

/// Why the kernel killed for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Oom {
    /// The server used more than its limit.
    Limit,
    /// The machine, or a control group above the server's, had no more.
    Machine,
}

/// What finds all processes of a server, from the strongest to the weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A control group of its own, and its shim as the parent of all orphans.
    Cgroup,
    /// Its shim as the parent of all orphans.
    Subreaper,
    /// Its group of processes, which each of them may leave.
    Group,
    /// The engine whose container it is.
    Container,
}

/// What a server may use of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Of what.
    pub name: LimitName,
    /// How much: a number, or bytes.
    pub value: u64,
    /// How it is kept, while the server lives.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kept_by: Option<KeptBy>,
}

/// What can be limited: the words of a server file.
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

/// How a limit is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptBy {
    /// By a control group, for all processes together.
    Cgroup,
    /// By a resource limit, for each process alone.
    Rlimit,
    /// By the engine whose container it is, for all processes together.
    Engine,
}

/// What will happen by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The back-off is over: it is tried again.
    Restart,
    /// It is ended, because it did not become ready.
    GiveUpWaiting,
    /// It is ended by force.
    Kill,
}

/// The next thing that will happen by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextStep {
    /// What.
    pub what: Step,
    /// In how many milliseconds from the answer on.
    pub in_ms: u64,
}

/// What goes on before a server can begin, and how far that is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is done, such as `pulling x:1`.
    pub what: String,
    /// How much of it is done, in hundredths, as far as that can be said.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub percent: Option<u8>,
}

/// One server in `list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEntry {
    /// Its name.
    pub name: ServerName,
    /// What it is doing.
    pub state: ServerState,
    /// The leader of its processes, while there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// The port its file declares; null for stdio servers, and for those somewhere else.
    pub port: Option<u16>,
    /// Where it is, if it lives somewhere else; without the query, which may hold a key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub url: Option<String>,
    /// Seconds since it became ready.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uptime_secs: Option<u64>,
    /// Restarts since an operator last started it.
    pub restart_count: u32,
    /// How its last life ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_exit: Option<LastExit>,
    /// What the operator wants.
    pub wanted: Wanted,
    /// What probes say.
    pub health: Health,
    /// How it speaks MCP.
    pub transport: Transport,
    /// Restarts since the daemon first knew it.
    pub restarts_total: u64,
    /// The server whose process it shares, if it is another's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shares: Option<ServerName>,
    /// Why it is in this state.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// The kind of that, where clients treat it apart.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason_kind: Option<ReasonKind>,
    /// What goes on before it can begin: the fetch of its image, for one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub progress: Option<Progress>,
    /// What will happen next by itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<NextStep>,
    /// Who starts the server again when it ends, if its restart policy says that xy does not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub not_restarted: Option<String>,
    /// What does not work as it should, though the server runs: its log, for one.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// A kind of reason that clients treat apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonKind {
    /// Its file cannot be used, so nothing is known of it but its name.
    BadFile,
    /// A kind that a newer daemon knows.
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
    /// Why.
    pub reason: String,
    /// When.
    pub at: Timestamp,
    /// Why the life that it begins is the last to be tried, if it is: should that fail too, the
    /// server is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<String>,
}

/// One server in full: the answer to `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// What `list` shows of it.
    #[serde(flatten)]
    pub entry: ServerEntry,
    /// The revision of MCP that is spoken with it, while it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub protocol: Option<String>,
    /// How many calls wait for it.
    #[serde(default)]
    pub parked: u64,
    /// Whether its process exists; of one that lives somewhere else, whether it answers.
    #[serde(default)]
    pub alive: bool,
    /// Whether it is ready: it serves its clients.
    #[serde(default)]
    pub ready: bool,
    /// How much of the limits on its restarts is used.
    #[serde(default)]
    pub limits_used: RestartLimits,
    /// Its latest changes of state, oldest first.
    pub transitions: Vec<Transition>,
    /// The last lines of its stderr, when it has failed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub last_stderr: Vec<String>,
    /// What is wrong with its file, when it has failed for that.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problems: Vec<Problem>,
    /// The program and its arguments; empty if it lives somewhere else.
    pub command: Vec<String>,
    /// The file that configures it.
    pub config_file: String,
    /// Where its output is kept; null if it lives somewhere else.
    #[serde(default)]
    pub log_file: Option<String>,
    /// The same under another name.
    #[serde(default)]
    pub log_path: Option<String>,
    /// What finds all its processes, while it lives.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub containment: Option<Containment>,
    /// What it may use, where its file limits that.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub limits: Vec<Limit>,
    /// Its container, while it is one that lives.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container: Option<ContainerEntry>,
    /// Its instances: one that all clients share, or one for each client.
    #[serde(default)]
    pub instances: Vec<InstanceEntry>,
    /// When a probe last told something about its health; null before the first.
    #[serde(default)]
    pub last_health_check: Option<Timestamp>,
    /// The last instance of one client that was failing when that client left.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_failed: Option<FailedEntry>,
}

/// An instance of one client that was failing when that client left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedEntry {
    /// The client; null if xy itself started it, for a request or for the self-test.
    pub holder: Option<u64>,
    /// Why it was failing.
    pub reason: String,
    /// When its client left.
    pub at: Timestamp,
    /// How its last process ended.
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
    /// The version of that engine, as it says itself.
    pub version: String,
    /// Where that engine listens.
    pub socket: String,
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Whether it ends when the daemon is killed, as its engine then closes its stdin.
    pub ends_with_daemon: bool,
}

/// How much of the limits on restarts is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RestartLimits {
    /// Restarts in a row, none of which has led to `reset-after` of ready uptime.
    pub in_a_row: u32,
    /// How many there may be; 0 for any number.
    pub max_attempts: u32,
    /// Unexpected exits within the last minute; beyond the limit they are not counted.
    pub exits_last_minute: u32,
    /// How many there may be; 0 for any number.
    pub max_retries_per_minute: u32,
}

/// Clients that use an instance and call themselves the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceClients {
    /// What they call themselves; empty if they do not say.
    pub name: String,
    /// How many there are.
    pub count: usize,
}

/// One instance of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceEntry {
    /// The client it is for; null if all share it.
    pub holder: Option<u64>,
    /// The era of its clients, if it is the second process of a server that speaks both.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub era: Option<Era>,
    /// The revision of MCP that is spoken with that process.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub protocol: Option<String>,
    /// The leader of its processes, while there is one.
    pub pid: Option<u32>,
    /// What it is doing.
    pub state: ServerState,
    /// The clients that have used it and are still there.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub clients: Vec<InstanceClients>,
    /// Bytes of memory that all its processes use.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
    /// The processors' time that they have used so far.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_ms: Option<u64>,
    /// Where its output is written, if it is to a file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub log_file: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules() {
        for good in ["a", "git-hub", "a_b", "A9", &"x".repeat(32)] {
            assert!(ServerName::new(good).is_ok(), "{good}");
        }
        let bad = ["", "_a", "a_", "a__b", "a b", "a.b", "é", "a/b", &"x".repeat(33)];
        let told: Vec<String> =
            bad.iter().map(|name| ServerName::new(name).unwrap_err().to_string()).collect();
        insta::assert_snapshot!(told.join("\n"), @"
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
    fn a_name_off_the_wire_is_checked_too() {
        assert!(serde_json::from_str::<ServerName>(r#""a__b""#).is_err());
    }
}
