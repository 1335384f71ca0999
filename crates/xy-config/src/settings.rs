//! What the rest of xy sees of the files: valid by construction.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xy_protocol::server::{ServerName, Transport};

/// No duration is longer.
pub const LONGEST: Duration = Duration::from_hours(365 * 24);

/// How long servers wait for a new daemon unless a file says otherwise.
pub const ORPHAN_TIMEOUT: Duration = Duration::from_secs(60);

/// Everything the files say.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// All servers, by name.
    pub servers: BTreeMap<ServerName, Arc<ServerSettings>>,
    /// Where MCP clients come in.
    pub gateway: GatewaySettings,
}

/// Where MCP clients come in over HTTP, and how much of it they may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewaySettings {
    /// The address; port 0 is any that is free. `None`: nobody comes in over HTTP.
    pub listen: Option<SocketAddr>,
    /// What clients have to show.
    pub auth: Auth,
    /// Sessions at the same time.
    pub sessions: usize,
    /// Streams at the same time, in each session.
    pub streams: usize,
    /// Bytes of one request's body.
    pub body: u64,
    /// A session in which nothing happens for so long ends.
    pub idle: Duration,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7979))),
            auth: Auth::Token,
            sessions: 1000,
            streams: 64,
            body: 32 << 20,
            idle: Duration::from_hours(1),
        }
    }
}

/// What a client has to show to come in over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Auth {
    /// The token that is kept in the state folder.
    Token,
    /// Nothing: everybody on this machine comes in.
    None,
}

/// What one file says of one server, defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSettings {
    /// The stem of its file.
    pub name: ServerName,
    /// Where that is written.
    pub source: Source,
    /// What the process is: a change here needs a new process.
    pub process: ProcessSettings,
    /// The rules it lives by: a change here applies to the living one.
    pub rules: Rules,
    /// Who shares an instance of it: a change here ends the old instances. What was stored
    /// by a version that knew only shared ones is shared.
    #[serde(default)]
    pub isolation: Isolation,
}

/// Where a server listens for MCP over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `http://…` or `https://…`, the path included.
    pub url: String,
    /// Sent with every request. Values may be secrets.
    pub headers: BTreeMap<String, String>,
    /// Whether it speaks the older HTTP+SSE pair; else Streamable HTTP.
    pub is_older: bool,
    /// Whether it lives somewhere else: then it can be unreachable, and nobody here can end it.
    pub is_remote: bool,
}

impl ServerSettings {
    /// Where it listens, unless it speaks over its stdin and stdout.
    pub fn endpoint(&self) -> Option<Endpoint> {
        let process = &self.process;
        let is_older = match process.transport {
            Transport::Stdio => return None,
            Transport::Http => false,
            Transport::Sse => true,
        };
        let usual = if is_older { "/sse" } else { "/mcp" };
        let path = process.path.as_deref().unwrap_or(usual);
        Some(Endpoint {
            url: format!("http://127.0.0.1:{}{path}", process.port?),
            headers: BTreeMap::new(),
            is_older,
            is_remote: false,
        })
    }
}

/// Who shares an instance of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Isolation {
    /// All clients have one instance, which is there whether or not there are clients.
    #[default]
    Shared,
    /// Each client has its own, which comes and goes with it.
    Client,
}

/// Where a server is configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The file.
    pub file: PathBuf,
    /// The line of its `command`, from 1.
    pub command_line: u32,
    /// The file has since been changed, and cannot be used as it is now.
    #[serde(default)]
    pub is_outdated: bool,
    /// No file configures it: it was added while the daemon ran, and `file` is where that
    /// is kept.
    #[serde(default)]
    pub added: bool,
}

/// What a process is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSettings {
    /// A path, or a name to look up on PATH.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Set over the inherited environment.
    pub env: BTreeMap<String, String>,
    /// Where it runs; the daemon's own folder if absent.
    pub working_dir: Option<PathBuf>,
    /// How it speaks MCP.
    pub transport: Transport,
    /// Where an http or sse server listens.
    pub port: Option<u16>,
    /// The endpoint of an http server.
    pub path: Option<String>,
    /// What it may use. What was stored by a version that knew no limits has none.
    #[serde(default)]
    pub limits: Limits,
}

/// What a server may use; nothing is said of what is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Open files, in each of its processes.
    pub nofile: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
}

/// The rules a server lives by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// What happens when it dies.
    pub restart: RestartRules,
    /// How it is ended.
    pub stop: StopRules,
    /// When it counts as ready.
    pub ready: ReadyRules,
    /// How long it waits for a new daemon after its own was killed.
    pub orphan_timeout: Duration,
    /// How long its calls may take. What was stored by a version that knew no such rules has
    /// none.
    #[serde(default)]
    pub calls: CallRules,
}

/// How long calls to a server may take; for ever, where nothing is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CallRules {
    /// Without a word about it.
    pub idle: Option<Duration>,
    /// In all.
    pub within: Option<Duration>,
}

impl Rules {
    /// Whether no duration is longer than a file may say: what was stored may be damaged, and
    /// others would not fit a clock.
    pub fn are_sane(&self) -> bool {
        let Self { restart, stop, ready, orphan_timeout, calls } = self;
        let all = [
            restart.backoff_initial,
            restart.backoff_max,
            restart.reset_after,
            stop.grace,
            ready.within,
            *orphan_timeout,
        ];
        let all = all.iter().chain(&calls.idle).chain(&calls.within);
        all.into_iter().all(|duration| *duration <= LONGEST)
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            restart: RestartRules::default(),
            stop: StopRules::default(),
            ready: ReadyRules::default(),
            orphan_timeout: ORPHAN_TIMEOUT,
            calls: CallRules::default(),
        }
    }
}

/// What happens when a server dies unasked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRules {
    /// Whether it is started again.
    pub policy: RestartPolicy,
    /// The first delay; it doubles from there.
    pub backoff_initial: Duration,
    /// No delay is longer.
    pub backoff_max: Duration,
    /// More unexpected exits than this within 60 s are too many; 0 turns the limit off.
    pub max_retries_per_minute: u32,
    /// More restarts in a row than this are too many; 0 turns the limit off.
    pub max_attempts: u32,
    /// This much ready uptime ends a row.
    pub reset_after: Duration,
    /// Whether delays vary by up to a quarter.
    pub jitter: bool,
}

impl Default for RestartRules {
    fn default() -> Self {
        Self {
            policy: RestartPolicy::OnFailure,
            backoff_initial: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            max_retries_per_minute: 5,
            max_attempts: 5,
            reset_after: Duration::from_secs(60),
            jitter: true,
        }
    }
}

/// Whether a server that died unasked is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RestartPolicy {
    /// Whatever its exit.
    Always,
    /// Unless it exited with code 0.
    OnFailure,
    /// No.
    Never,
}

/// How a server is ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRules {
    /// From the request to the KILL.
    pub grace: Duration,
}

impl Default for StopRules {
    fn default() -> Self {
        Self { grace: Duration::from_secs(10) }
    }
}

/// When a server counts as ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyRules {
    /// How that is found out.
    pub probe: Probe,
    /// It must be so within this time.
    pub within: Duration,
}

impl Default for ReadyRules {
    fn default() -> Self {
        Self { probe: Probe::Mcp, within: Duration::from_secs(10) }
    }
}

/// How readiness is found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Probe {
    /// It is ready once its program runs.
    Process,
    /// It is ready once it has answered as an MCP server does.
    Mcp,
}
