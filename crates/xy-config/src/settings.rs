//! The settings that the rest of xy uses: valid by construction.

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

/// Maximum duration in any setting.
pub const MAX_DURATION: Duration = Duration::from_hours(365 * 24);

/// The default time that servers wait for a new daemon.
pub const DEFAULT_ORPHAN_TIMEOUT: Duration = Duration::from_secs(60);

/// All settings from the files.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// All servers, by name.
    pub servers: BTreeMap<ServerName, Arc<ServerSettings>>,
    /// All profiles, by name.
    pub profiles: Profiles,
    /// The HTTP gateway.
    pub gateway: GatewaySettings,
    /// Limits of calls that wait for a server.
    pub park: ParkSettings,
    /// Limits of instances.
    pub instances: InstanceSettings,
    /// The files of MCP clients whose servers are among these.
    pub mcp_json: Vec<PathBuf>,
    /// Whether servers are supervised; `None` if the daemon's own file does not set it.
    pub supervisor: Option<bool>,
    /// Whether a bad file keeps a daemon from starting; `None` if the daemon's own file does not
    /// set it.
    pub strict: Option<bool>,
}

/// Limits of the instances of all servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceSettings {
    /// Maximum number of instances; at least one.
    pub most: usize,
    /// Maximum memory of all instances together, in bytes; unlimited if absent.
    pub memory: Option<u64>,
}

impl Default for InstanceSettings {
    fn default() -> Self {
        Self { most: 200, memory: None }
    }
}

/// The profiles, by name.
pub type Profiles = BTreeMap<String, Arc<ProfileSettings>>;

/// Limits of calls that wait for a server that is not running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParkSettings {
    /// Maximum time that a call waits.
    pub queue: Duration,
    /// Maximum number of waiting calls per server.
    pub calls: usize,
    /// Maximum size of waiting calls per server, in bytes. In-flight calls have the same limit.
    pub bytes: u64,
    /// Maximum number of waiting calls of all servers together.
    pub total_calls: usize,
    /// Maximum size of waiting calls of all servers together, in bytes.
    pub total_bytes: u64,
    /// Maximum number of calls that wait for their client's input.
    pub held_calls: usize,
    /// Maximum size of those calls, in bytes. Requests for which servers may ask for input have the
    /// same limit.
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

/// The HTTP gateway and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// The address to listen on; port 0 selects a free one. `None` turns HTTP off.
    pub listen: Option<SocketAddr>,
    /// Host names that clients use, besides the listen address and loopback names.
    pub hosts: Vec<String>,
    /// The authentication of clients.
    pub auth: Auth,
    /// Maximum number of sessions.
    pub sessions: usize,
    /// Maximum number of streams per session.
    pub streams: usize,
    /// Maximum size of a request body, in bytes.
    pub body: u64,
    /// The time without activity after which a session ends.
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

/// The authentication of HTTP clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Auth {
    /// Clients send the token from the state folder.
    Token,
    /// Clients send nothing: every process on this machine has access.
    None,
}

/// The settings of one server, with defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSettings {
    /// The name of the server: the stem of its file.
    pub name: ServerName,
    /// Where the server is configured.
    pub source: Source,
    /// The kind of the server. A change requires a restart.
    #[serde(flatten)]
    pub kind: ServerKind,
    /// The lifecycle rules of the server. A change applies to the running instance.
    pub rules: Rules,
    /// Which clients share an instance. A change ends the old instances. Settings that were stored
    /// without this field are shared.
    #[serde(default)]
    pub isolation: Isolation,
    /// The key of servers that are one process under several names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_key: Option<String>,
    /// The only MCP era in which xy speaks with the server. A change requires a restart. Without
    /// it, a server that speaks both eras gets a process for each era that its clients use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub era: Option<Era>,
}

impl ServerSettings {
    /// Returns the only era in which xy speaks with the server, if it is bound to one.
    ///
    /// Names that share a process share its state, which belongs to one era.
    pub fn only_era(&self) -> Option<Era> {
        self.era.or(self.share_key.as_ref().map(|_| Era::Legacy))
    }
}

/// The kind of a server. Stored under the variant's name beside the other settings, since older
/// versions knew only processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerKind {
    /// A process on this machine.
    Process(ProcessSettings),
    /// A remote server.
    Remote(RemoteSettings),
    /// A container of an engine on this machine.
    Container(Box<ContainerSettings>),
}

/// The endpoint of a server that runs elsewhere, or that another supervisor manages.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteSettings {
    /// The URL, `http://…` or `https://…`, with a path. Its query may hold a key.
    pub url: String,
    /// The headers of every request. Values may be secrets.
    pub headers: BTreeMap<String, String>,
    /// True if the server speaks the legacy HTTP+SSE transport instead of Streamable HTTP.
    pub is_older: bool,
}

impl RemoteSettings {
    /// Returns the URL without its query, which is safe to show.
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

/// Returns a URL without its query, which may hold a key.
pub fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or_default()
}

/// The HTTP endpoint of a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The URL, `http://…` or `https://…`, including the path.
    pub url: String,
    /// The headers of every request. Values may be secrets.
    pub headers: BTreeMap<String, String>,
    /// True if the server speaks the legacy HTTP+SSE transport instead of Streamable HTTP.
    pub is_older: bool,
    /// True if the server is remote: it can be unreachable, and the daemon cannot stop it.
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
    /// Returns the process settings, if the server is a process.
    pub fn process(&self) -> Option<&ProcessSettings> {
        match &self.kind {
            ServerKind::Process(process) => Some(process),
            ServerKind::Remote(_) | ServerKind::Container(_) => None,
        }
    }

    /// Returns the remote settings, if the server is remote.
    pub fn remote(&self) -> Option<&RemoteSettings> {
        match &self.kind {
            ServerKind::Process(_) | ServerKind::Container(_) => None,
            ServerKind::Remote(remote) => Some(remote),
        }
    }

    /// Returns the container settings, if the server is a container.
    pub fn container(&self) -> Option<&ContainerSettings> {
        match &self.kind {
            ServerKind::Process(_) | ServerKind::Remote(_) => None,
            ServerKind::Container(container) => Some(container),
        }
    }

    /// Returns the MCP transport of the server.
    pub fn transport(&self) -> Transport {
        match &self.kind {
            ServerKind::Process(process) => process.transport,
            ServerKind::Container(container) => container.transport,
            ServerKind::Remote(RemoteSettings { is_older: true, .. }) => Transport::Sse,
            ServerKind::Remote(_) => Transport::Http,
        }
    }

    /// Returns the port on this machine that the server uses.
    pub fn port(&self) -> Option<u16> {
        match &self.kind {
            ServerKind::Process(process) => process.port,
            ServerKind::Container(container) => container.port,
            ServerKind::Remote(_) => None,
        }
    }

    /// Returns the endpoint of the server, unless it speaks over stdin and stdout.
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
        let default = if is_older { "/sse" } else { "/mcp" };
        let path = path.as_deref().unwrap_or(default);
        Some(Endpoint {
            url: format!("http://127.0.0.1:{}{path}", self.port()?),
            headers: BTreeMap::new(),
            is_older,
            is_remote: false,
        })
    }
}

/// Which clients share an instance of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Isolation {
    /// All clients share one instance, which runs whether or not there are clients.
    #[default]
    Shared,
    /// Each client has its own instance, which starts and ends with it.
    Client,
}

/// Where a server is configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The file.
    pub file: PathBuf,
    /// The line of `command`, `url` or `container`, from 1.
    pub command_line: u32,
    /// True if the file has changed since and cannot be used now.
    #[serde(default)]
    pub is_outdated: bool,
    /// True if no file configures the server: it was added while the daemon ran, and `file` is the
    /// file that stores added servers.
    #[serde(default)]
    pub added: bool,
}

/// The settings of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSettings {
    /// The program: a path, or a name to look up on PATH.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables that extend or override the inherited environment.
    pub env: BTreeMap<String, String>,
    /// The working directory; the daemon's own if absent.
    pub working_dir: Option<PathBuf>,
    /// The MCP transport.
    pub transport: Transport,
    /// The port of an http or sse server.
    pub port: Option<u16>,
    /// The path of its endpoint; `/mcp`, or `/sse` for the legacy transport, if absent.
    pub path: Option<String>,
    /// The resource limits. Settings that were stored without this field have none.
    #[serde(default)]
    pub limits: Limits,
}

/// The resource limits of a server; an absent limit is not enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum number of open files, in each process.
    pub nofile: Option<u64>,
    /// Maximum memory, in bytes.
    pub memory: Option<u64>,
    /// Maximum number of processes and threads.
    pub pids: Option<u32>,
}
