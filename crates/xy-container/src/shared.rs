//! State shared by all containers of a daemon.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::time::Instant;
use xy_supervisor::launch::{Shims, new_life};
use xy_supervisor::protocol::ProtocolDriver;

use crate::engines::Engines;
use crate::owned_names::OwnedNames;

/// State shared by all containers.
pub(crate) struct SharedState {
    /// Id of this home, in the labels of all its containers.
    pub(crate) home: String,
    /// Folder of the state files for a later daemon.
    pub(crate) state_dir: PathBuf,
    pub(crate) logs_dir: PathBuf,
    pub(crate) driver: Arc<dyn ProtocolDriver>,
    /// The child processes of this daemon, which include credential helpers.
    pub(crate) shims: Shims,
    /// The program that becomes a stream holder. Without it a stream ends with its daemon.
    pub(crate) holder_program: Option<PathBuf>,
    pub(crate) began_at: Instant,
    pub(crate) owned: OwnedNames,
    pub(crate) engines: Engines,
}

impl SharedState {
    /// Returns a new id that distinguishes one life from all others.
    pub(crate) fn new_life(&self) -> String {
        new_life(&self.home)
    }
}
