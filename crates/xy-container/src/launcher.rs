//! The launcher: starts containers and removes those without an owner.

use std::fmt;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::Instrument;
use xy_supervisor::launch::home::home_id;
use xy_supervisor::launch::process::ProcessLauncher;
use xy_supervisor::launch::{Launch, LaunchOrder, LifeHandle};
use xy_supervisor::protocol::ProtocolDriver;

use crate::engines::Engines;
use crate::owned_names::OwnedNames;
use crate::reconcile::{self, UnownedContainers};
use crate::runner;
use crate::shared::SharedState;

/// Starts containers.
#[derive(Clone)]
pub struct ContainerLauncher {
    pub(crate) shared: Arc<SharedState>,
}

impl fmt::Debug for ContainerLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerLauncher")
            .field("state_dir", &self.shared.state_dir)
            .finish_non_exhaustive()
    }
}

impl ContainerLauncher {
    /// Creates a launcher.
    ///
    /// `state_dir` holds the state files and identifies the home; `logs_dir` holds the logs.
    /// `driver` speaks the servers' protocol. `processes` knows the children that are not orphans.
    pub fn new(
        state_dir: PathBuf,
        logs_dir: PathBuf,
        driver: Arc<dyn ProtocolDriver>,
        processes: &ProcessLauncher,
    ) -> Self {
        // The home id is derived from the folder, so the folder must exist.
        let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&state_dir);
        let engines = Engines::load(&state_dir);
        let shared = SharedState {
            home: home_id(&state_dir),
            state_dir,
            logs_dir,
            driver,
            shims: processes.shims().clone(),
            holder_program: Some(processes.program().to_owned()),
            began_at: Instant::now(),
            owned: OwnedNames::default(),
            engines,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Removes containers with our label that no server owns: at each engine once it is first used,
    /// and at intervals. Runs as long as the daemon.
    pub async fn reconcile(self) {
        reconcile::run(self.shared).await;
    }

    /// Looks for such containers once, at all known engines. Only lists them if `removes` is false.
    pub async fn tidy_up(&self, removes: bool) -> UnownedContainers {
        reconcile::once(&self.shared, removes).await
    }
}

impl Launch for ContainerLauncher {
    fn launch(&self, order: LaunchOrder) -> LifeHandle {
        let (handle, ends) = LifeHandle::pair();
        tokio::spawn(runner::run(self.shared.clone(), order, ends).in_current_span());
        handle
    }
}
