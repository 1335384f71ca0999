//! What a server is that is a container.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use xy_protocol::server::Transport;

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
