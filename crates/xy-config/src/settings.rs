//! What the rest of xy sees of the files: valid by construction.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xy_protocol::server::{ServerName, Transport};

use crate::profile::ProfileSettings;

/// No duration is longer.
pub const LONGEST: Duration = Duration::from_hours(365 * 24);

/// How long servers wait for a new daemon unless a file says otherwise.
pub const ORPHAN_TIMEOUT: Duration = Duration::from_secs(60);

/// Everything the files say.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// All servers, by name.
    pub servers: BTreeMap<ServerName, Arc<ServerSettings>>,
    /// All profiles, by name.
    pub profiles: Profiles,
    /// Where MCP clients come in.
    pub gateway: GatewaySettings,
    /// How much may wait for each server, and for how long.
    pub park: ParkSettings,
    /// How many instances there may be, and how much they may use.
    pub instances: InstanceSettings,
}

/// How many instances of servers there may be at once, and how much memory they may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceSettings {
    /// So many; at least one.
    pub most: usize,
    /// So many bytes, all of them together; any number, if absent.
    pub memory: Option<u64>,
}

impl Default for InstanceSettings {
    fn default() -> Self {
        Self { most: 200, memory: None }
    }
}

/// What profiles show, by their names.
pub type Profiles = BTreeMap<String, Arc<ProfileSettings>>;

/// How much may wait for a server that is not there, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParkSettings {
    /// So long a call waits.
    pub queue: Duration,
    /// So many calls of each server.
    pub calls: usize,
    /// So many bytes of them. As many are kept of calls that are under way.
    pub bytes: u64,
    /// So many calls of all servers together.
    pub total_calls: usize,
    /// So many bytes of these.
    pub total_bytes: u64,
}

impl Default for ParkSettings {
    fn default() -> Self {
        Self {
            queue: Duration::from_secs(30),
            calls: 1000,
            bytes: 64 << 20,
            total_calls: 10_000,
            total_bytes: 512 << 20,
        }
    }
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
    /// What it is: a change here needs a new life.
    #[serde(flatten)]
    pub kind: ServerKind,
    /// The rules it lives by: a change here applies to the living one.
    pub rules: Rules,
    /// Who shares an instance of it: a change here ends the old instances. What was stored
    /// by a version that knew only shared ones is shared.
    #[serde(default)]
    pub isolation: Isolation,
    /// Servers with the same key are one process under several names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_key: Option<String>,
}

/// What a server is. Stored under its name, beside the other settings: older versions knew
/// only processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerKind {
    /// A process of this machine.
    Process(ProcessSettings),
    /// It lives somewhere else.
    Remote(RemoteSettings),
    /// A container of an engine on this machine.
    Container(Box<ContainerSettings>),
}

/// Where a server lives that is not of this machine, or that somebody else looks after.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteSettings {
    /// `http://…` or `https://…`, with a path. Its query may hold a key.
    pub url: String,
    /// Sent with every request. Values may be secrets.
    pub headers: BTreeMap<String, String>,
    /// Whether it speaks the older HTTP+SSE pair; else Streamable HTTP.
    pub is_older: bool,
}

impl RemoteSettings {
    /// The URL as it may be shown to anybody.
    pub fn shown_url(&self) -> &str {
        without_query(&self.url)
    }
}

impl fmt::Debug for RemoteSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSettings")
            .field("url", &self.shown_url())
            .field("headers", &self.headers.keys())
            .field("is_older", &self.is_older)
            .finish()
    }
}

/// A URL without its query, in which keys are kept at times.
pub fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or_default()
}

/// Where a server listens for MCP over HTTP.
#[derive(Clone, PartialEq, Eq)]
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

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("url", &without_query(&self.url))
            .field("headers", &self.headers.keys())
            .field("is_older", &self.is_older)
            .field("is_remote", &self.is_remote)
            .finish()
    }
}

impl ServerSettings {
    /// The process it is, if it is one of this machine.
    pub fn process(&self) -> Option<&ProcessSettings> {
        match &self.kind {
            ServerKind::Process(process) => Some(process),
            ServerKind::Remote(_) | ServerKind::Container(_) => None,
        }
    }

    /// Where it lives, if that is somewhere else.
    pub fn remote(&self) -> Option<&RemoteSettings> {
        match &self.kind {
            ServerKind::Process(_) | ServerKind::Container(_) => None,
            ServerKind::Remote(remote) => Some(remote),
        }
    }

    /// The container it is, if it is one.
    pub fn container(&self) -> Option<&ContainerSettings> {
        match &self.kind {
            ServerKind::Process(_) | ServerKind::Remote(_) => None,
            ServerKind::Container(container) => Some(container),
        }
    }

    /// How it speaks MCP.
    pub fn transport(&self) -> Transport {
        match &self.kind {
            ServerKind::Process(process) => process.transport,
            ServerKind::Container(container) => container.transport,
            ServerKind::Remote(RemoteSettings { is_older: true, .. }) => Transport::Sse,
            ServerKind::Remote(_) => Transport::Http,
        }
    }

    /// The port of this machine that is its own.
    pub fn port(&self) -> Option<u16> {
        match &self.kind {
            ServerKind::Process(process) => process.port,
            ServerKind::Container(container) => container.port,
            ServerKind::Remote(_) => None,
        }
    }

    /// Where it listens, unless it speaks over its stdin and stdout.
    pub fn endpoint(&self) -> Option<Endpoint> {
        let path = match &self.kind {
            ServerKind::Process(process) => &process.path,
            ServerKind::Container(container) => &container.path,
            ServerKind::Remote(remote) => {
                let RemoteSettings { url, headers, is_older } = remote.clone();
                return Some(Endpoint { url, headers, is_older, is_remote: true });
            }
        };
        let is_older = match self.transport() {
            Transport::Stdio => return None,
            Transport::Http => false,
            Transport::Sse => true,
        };
        let usual = if is_older { "/sse" } else { "/mcp" };
        let path = path.as_deref().unwrap_or(usual);
        Some(Endpoint {
            url: format!("http://127.0.0.1:{}{path}", self.port()?),
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
    /// The line that says what it is, from 1: that of its `command`, its `url` or its `container`.
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
    /// The path of its endpoint; `/mcp`, or `/sse` for the older pair, if absent.
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
    /// How it is found out whether it still works. What was stored by a version that knew no
    /// such rules is judged by the usual ones.
    #[serde(default)]
    pub health: HealthRules,
    /// When it is started. What was stored by a version that knew no other is started with
    /// the daemon.
    #[serde(default, skip_serializing_if = "Start::is_eager")]
    pub start: Start,
    /// It sleeps after it was not used for so long; never, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_stop: Option<Duration>,
}

/// When a server is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Start {
    /// With the daemon.
    #[default]
    Eager,
    /// When it is first used.
    Lazy,
}

impl Start {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks like this")]
    fn is_eager(&self) -> bool {
        *self == Self::Eager
    }
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
    /// Whether it may be away while nobody uses it: a call starts it.
    pub fn may_sleep(&self) -> bool {
        self.start == Start::Lazy || self.idle_stop.is_some()
    }

    /// Whether no duration is longer than a file may say: what was stored may be damaged, and
    /// others would not fit a clock.
    pub fn are_sane(&self) -> bool {
        let Self { restart, stop, ready, orphan_timeout, calls, health, start: _, idle_stop } =
            self;
        let all = [
            restart.backoff_initial,
            restart.backoff_max,
            restart.reset_after,
            stop.grace,
            ready.within,
            ready.timeout,
            *orphan_timeout,
            health.interval,
            health.timeout,
        ];
        let all = all.iter().chain(&calls.idle).chain(&calls.within).chain(idle_stop);
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
            health: HealthRules::default(),
            start: Start::default(),
            idle_stop: None,
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
    /// What an `http` probe asks for; [`PROBED_PATH`] if absent.
    #[serde(default)]
    pub path: Option<String>,
    /// How long one try of a `tcp` or `http` probe may take.
    #[serde(default = "one_try")]
    pub timeout: Duration,
}

fn one_try() -> Duration {
    Duration::from_secs(2)
}

impl Default for ReadyRules {
    fn default() -> Self {
        let within = Duration::from_secs(10);
        Self { probe: Probe::Mcp, within, path: None, timeout: one_try() }
    }
}

/// What an `http` probe asks for, unless a file says otherwise.
pub const PROBED_PATH: &str = "/mcp/health";

/// How it is found out whether a server that was ready still works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthRules {
    /// What is asked.
    pub probe: HealthProbe,
    /// From one probe to the next.
    pub interval: Duration,
    /// A probe that is not answered by then has failed.
    pub timeout: Duration,
    /// So many that fail in a row, against all evidence that it lives, end it. Never 0.
    pub failures: u32,
    /// What an `http` probe asks for; [`PROBED_PATH`] if absent.
    pub path: Option<String>,
}

impl Default for HealthRules {
    fn default() -> Self {
        Self {
            probe: HealthProbe::Mcp,
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(5),
            failures: 3,
            path: None,
        }
    }
}

/// What is asked of a server to see whether it still works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HealthProbe {
    /// Nothing, and nothing is said of it.
    Off,
    /// Nothing: it works as long as it lives.
    Process,
    /// Whether it takes a connection at its port.
    Tcp,
    /// Whether it answers a GET with success.
    Http,
    /// Whether it answers as an MCP server does.
    Mcp,
}

/// How a server that lives somewhere else is tried again: nothing of it is counted, so its
/// delays may grow longer than those of a process.
pub const REMOTE_BACKOFF_MAX: Duration = Duration::from_mins(1);

/// How readiness is found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Probe {
    /// It is ready once its program runs.
    Process,
    /// It is ready once it takes a connection at its port.
    Tcp,
    /// It is ready once it answers a GET with success.
    Http,
    /// It is ready once it has answered as an MCP server does.
    Mcp,
}

/// What a container is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSettings {
    /// The image, with its tag or digest.
    pub image: String,
    /// What is run instead of the image's entry point.
    pub command: Option<String>,
    /// Its arguments; absent, those that the image has.
    pub args: Option<Vec<String>>,
    /// Set over the environment of the image.
    pub env: BTreeMap<String, String>,
    /// What of this machine it sees.
    pub volumes: Vec<Mount>,
    /// Where it runs, inside.
    pub working_dir: Option<String>,
    /// As whom, inside.
    pub user: Option<String>,
    /// Bytes of memory, without any swap beyond.
    pub memory: Option<u64>,
    /// Billionths of a processor.
    pub nano_cpus: Option<u64>,
    /// Processes and threads; [`CONTAINER_PIDS`] if absent.
    pub pids: Option<u32>,
    /// The network it is in; the engine's own default if absent.
    pub network: Option<String>,
    /// Whether its files cannot be changed.
    pub read_only: bool,
    /// The capabilities that are taken from it; all if absent.
    pub cap_drop: Option<Vec<String>>,
    /// The capabilities that it has all the same.
    pub cap_add: Vec<String>,
    /// Folders of it that are in memory.
    pub tmpfs: Vec<Tmpfs>,
    /// When its image is fetched.
    pub pull: Pull,
    /// For which system and architecture; the engine's own if absent.
    pub platform: Option<String>,
    /// Labels beside ours.
    pub labels: BTreeMap<String, String>,
    /// Which engine, where there are several.
    pub engine: Option<EngineKind>,
    /// Where that listens: `unix://…`.
    pub host: Option<String>,
    /// Whether a small init reaps its processes and passes on signals.
    pub init: bool,
    /// How it speaks MCP.
    pub transport: Transport,
    /// The port of this machine's loopback at which it is reached.
    pub port: Option<u16>,
    /// The port at which it listens inside, if another.
    pub inner_port: Option<u16>,
    /// The path of its endpoint; `/mcp`, or `/sse` for the older pair, if absent.
    pub path: Option<String>,
}

/// So many processes and threads a container may have unless its file says otherwise.
pub const CONTAINER_PIDS: u32 = 512;

impl ContainerSettings {
    /// Of an image alone, spoken with over stdio.
    pub fn of_image(image: String) -> Self {
        Self {
            image,
            command: None,
            args: None,
            env: BTreeMap::new(),
            volumes: Vec::new(),
            working_dir: None,
            user: None,
            memory: None,
            nano_cpus: None,
            pids: None,
            network: None,
            read_only: false,
            cap_drop: None,
            cap_add: Vec::new(),
            tmpfs: Vec::new(),
            pull: Pull::Missing,
            platform: None,
            labels: BTreeMap::new(),
            engine: None,
            host: None,
            init: true,
            transport: Transport::Stdio,
            port: None,
            inner_port: None,
            path: None,
        }
    }
}

/// Something of this machine that a container sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// What.
    pub source: MountSource,
    /// Where, inside.
    pub target: String,
    /// Whether it cannot be changed from inside.
    pub read_only: bool,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountSource {
    /// A folder or a file of this machine.
    Folder(String),
    /// A volume of the engine, which is made if it is not there, and stays.
    Volume(String),
}

/// A folder in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    /// Where, inside.
    pub target: String,
    /// As `mount` takes them, separated by commas.
    pub options: String,
}

/// When an image is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pull {
    /// When the engine has none of that name.
    Missing,
    /// Before every start; an older one will do if there is one and none can be had.
    Always,
    /// Never.
    Never,
}

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EngineKind {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}
