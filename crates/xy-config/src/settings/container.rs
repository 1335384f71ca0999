//! The settings of servers that are containers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use xy_protocol::server::Transport;

/// The settings of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSettings {
    /// The image, with its tag or digest.
    pub image: String,
    /// The command that replaces the image's entry point.
    pub command: Option<String>,
    /// The arguments; the image's own if absent.
    pub args: Option<Vec<String>>,
    /// Variables that extend or override the image's environment.
    pub env: BTreeMap<String, String>,
    /// The mounts.
    pub volumes: Vec<Mount>,
    /// The working directory inside the container.
    pub working_dir: Option<String>,
    /// The user inside the container.
    pub user: Option<String>,
    /// Maximum memory in bytes, without additional swap.
    pub memory: Option<u64>,
    /// Processor limit, in billionths of a processor.
    pub nano_cpus: Option<u64>,
    /// Maximum number of processes and threads; [`DEFAULT_CONTAINER_PIDS`] if absent.
    pub pids: Option<u32>,
    /// The network; the engine's default if absent.
    pub network: Option<String>,
    /// Whether the root file system is read-only.
    pub read_only: bool,
    /// The dropped capabilities; all if absent.
    pub cap_drop: Option<Vec<String>>,
    /// The capabilities that are kept despite `cap_drop`.
    pub cap_add: Vec<String>,
    /// Folders that are mounted as tmpfs.
    pub tmpfs: Vec<Tmpfs>,
    /// When the image is pulled.
    pub pull: Pull,
    /// The operating system and architecture; the engine's own if absent.
    pub platform: Option<String>,
    /// Labels in addition to xy's own.
    pub labels: BTreeMap<String, String>,
    /// The engine to use, if there are several.
    pub engine: Option<EngineKind>,
    /// The socket of the engine: `unix://…`.
    pub host: Option<String>,
    /// Whether an init process reaps children and forwards signals.
    pub init: bool,
    /// The MCP transport.
    pub transport: Transport,
    /// The port on this machine's loopback that leads to the container.
    pub port: Option<u16>,
    /// The port on which the server listens inside, if it differs.
    pub inner_port: Option<u16>,
    /// The path of its endpoint; `/mcp`, or `/sse` for the legacy transport, if absent.
    pub path: Option<String>,
}

/// The default maximum number of processes and threads in a container.
pub const DEFAULT_CONTAINER_PIDS: u32 = 512;

impl ContainerSettings {
    /// Returns the settings of an image alone, with the stdio transport.
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

/// A mount of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The mounted folder or volume.
    pub source: MountSource,
    /// The path inside the container.
    pub target: String,
    /// Whether the mount is read-only.
    pub read_only: bool,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountSource {
    /// A folder or file of this machine.
    Folder(String),
    /// A named volume of the engine, which is created if it is missing and outlives the container.
    Volume(String),
}

/// A tmpfs mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    /// The path inside the container.
    pub target: String,
    /// The mount options, separated by commas.
    pub options: String,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pull {
    /// If the engine does not have it.
    Missing,
    /// Before every start; if that fails, an older local image is used.
    Always,
    /// Never.
    Never,
}

/// A container engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EngineKind {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}
