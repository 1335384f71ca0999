//! What the rest of xy sees of the files: valid by construction.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xy_protocol::server::{Era, ServerName, Transport};

use crate::profile::ProfileSettings;

mod container;
mod rules;

pub use container::*;
pub use rules::*;

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
    /// Files of MCP clients whose servers are among these.
    pub mcp_json: Vec<PathBuf>,
    /// Whether servers are supervised, if the daemon's own file says so.
    pub supervisor: Option<bool>,
    /// Whether a bad file keeps a daemon from starting, if the daemon's own file says so.
    pub strict: Option<bool>,
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
    /// So many calls whose clients were asked something and are to come back.
    pub held_calls: usize,
    /// So many bytes of these, and as many of requests that servers may ask more about.
    pub held_bytes: u64,
}

impl Default for ParkSettings {
    fn default() -> Self {
        Self {
            queue: Duration::from_secs(30),
            calls: 1000,
            bytes: 64 << 20,
            total_calls: 10_000,
            total_bytes: 512 << 20,
            held_calls: 1000,
            held_bytes: 64 << 20,
        }
    }
}

/// Where MCP clients come in over HTTP, and how much of it they may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// The address; port 0 is any that is free. `None`: nobody comes in over HTTP.
    pub listen: Option<SocketAddr>,
    /// Names by which clients call it, beside its addresses and those of loopback.
    pub hosts: Vec<String>,
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
            hosts: Vec::new(),
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
    /// The only era in which xy speaks with it: a change here needs a new life. Without it, a
    /// server that speaks both eras gets a process for each that its clients use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub era: Option<Era>,
}

impl ServerSettings {
    /// Returns the only era in which xy speaks with the server, if it is bound to one.
    ///
    /// Names that share a process share its state, which lives in one era.
    pub fn only_era(&self) -> Option<Era> {
        self.era.or(self.share_key.as_ref().map(|_| Era::Legacy))
    }
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
