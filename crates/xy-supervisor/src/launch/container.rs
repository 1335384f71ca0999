//! Lives that are containers of an engine, Docker or Podman, each with nobody between.
//!
//! There is no shim: the engine itself keeps a container going when a daemon is killed, keeps
//! what it says, and knows how it ended. What only a daemon knows is in a file (`kept.rs`). Of
//! Podman, the stream of a stdio server is held by a small process beside (`grip.rs`).
//! What no engine does is to end a container that no daemon comes back for: that is left to
//! the next daemon.
//!
//! ```text
//! start ── engine, image (pull), create, attach, start ──► life ─┬─ attach   bytes, both ways
//!                                                                ├─ stream   one that can be left
//!                                                                ├─ grip     and who holds it then
//!                                                                ├─ log      its file, the ring
//! adopt ── kept, attach, missed, overlap ────────────────────────┼─ fate     what became of it
//!                                                                └─ faults   in words
//! reconcile ── removes what carries our label and nobody owns, at all `engines` ever used
//! ```

use std::fmt;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

pub use cli::is_run_by_cli;
pub use reconcile::Unowned;
use tokio::time::Instant;

use super::adopt::home_id;
use super::orphans::{self, Shims};
use super::process::ProcessLauncher;
use super::{Instance, Launch, LaunchOrder};
use crate::speak::Speak;

mod adopt;
mod attach;
mod cli;
mod create;
mod engine;
mod engines;
mod fate;
mod faults;
mod grip;
mod kept;
mod life;
mod log;
mod login;
mod missed;
mod overlap;
mod pull;
mod reconcile;
mod start;
mod stream;
#[cfg(test)]
mod tests;
mod witness;

/// Begins lives that are containers.
#[derive(Clone)]
pub struct ContainerLauncher {
    shared: Arc<Shared>,
}

/// What all lives have.
struct Shared {
    /// In the labels of all containers that are ours.
    home: String,
    /// Where is kept what a later daemon has to know.
    kept_dir: PathBuf,
    logs_dir: PathBuf,
    speaker: Arc<dyn Speak>,
    /// Who knows the children of this daemon: the programs that keep logins are such.
    shims: Shims,
    /// The program that becomes a grip; without it a stream ends with its daemon.
    grip: Option<PathBuf>,
    began_at: Instant,
    owned: reconcile::Owned,
    engines: engines::Engines,
}

impl Shared {
    /// What tells one life from all others.
    fn new_life(&self) -> String {
        orphans::new_life(&self.home)
    }
}

impl fmt::Debug for ContainerLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerLauncher")
            .field("kept_dir", &self.shared.kept_dir)
            .finish_non_exhaustive()
    }
}

impl ContainerLauncher {
    /// What is known of each is kept in `kept_dir`, which also says whose they are; their logs
    /// are in `logs_dir`. `speaker` speaks with them, and `processes` knows whom it must not take
    /// for an orphan.
    pub fn new(
        kept_dir: PathBuf,
        logs_dir: PathBuf,
        speaker: Arc<dyn Speak>,
        processes: &ProcessLauncher,
    ) -> Self {
        // Whose they are is told by the folder itself, so it has to be there.
        let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&kept_dir);
        let engines = engines::Engines::remembered(&kept_dir);
        let shared = Shared {
            home: home_id(&kept_dir),
            kept_dir,
            logs_dir,
            speaker,
            shims: processes.shims().clone(),
            grip: Some(processes.program().to_owned()),
            began_at: Instant::now(),
            owned: reconcile::Owned::default(),
            engines,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Removes what carries our label and nobody owns: at each engine once it is seen, and at
    /// intervals. For as long as the daemon lives.
    pub async fn reconcile(self) {
        reconcile::run(self.shared).await;
    }

    /// The same, once and now; with `removes` off, it is only looked.
    pub async fn tidy_up(&self, removes: bool) -> Unowned {
        reconcile::once(&self.shared, removes).await
    }
}

impl Launch for ContainerLauncher {
    fn launch(&self, order: LaunchOrder) -> Instance {
        let (instance, ends) = Instance::pair();
        tokio::spawn(life::run(self.shared.clone(), order, ends));
        instance
    }
}
