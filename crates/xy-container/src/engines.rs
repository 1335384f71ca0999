//! The engines that may have containers of this home, including those that earlier daemons used.
//!
//! An engine that is away when a container should be removed keeps it. The daemon may end before
//! that engine is back, and its servers may never start again. Then only this file tells a later
//! daemon where to look.
//!
//! The file is written whole, when this daemon first uses an engine. It holds a bounded number of
//! sockets; a damaged file is quarantined.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use xy_config::atomic_file::write_unsynced;
use xy_config::stored_file::StoredFile;

/// Name of the file. No server can have this name, so it collides with no state file.
const FILE: &str = "_engines.json";

/// Maximum number of engines; those used longest ago are forgotten.
const MAX_ENGINES: usize = 32;

/// Maximum size of the file.
const MAX_FILE_BYTES: u64 = 256 * 1024;

#[derive(Debug, Default, Serialize, Deserialize)]
struct StoredEngines {
    /// Their sockets; the most recently used is last.
    sockets: Vec<PathBuf>,
}

impl StoredFile for StoredEngines {
    const FORMAT: u32 = 1;
    const FILE_SIZE: u64 = MAX_FILE_BYTES;
    const IS_PRETTY: bool = false;

    /// Writes the file. It is not synced, like the state files beside it: it matters after the
    /// death of a daemon.
    fn write(&self, file: &Path) -> io::Result<()> {
        write_unsynced(file, &self.to_text()?)
    }
}

/// The engines that may have containers of this home.
#[derive(Debug)]
pub(crate) struct Engines {
    file: PathBuf,
    sockets: Mutex<Sockets>,
    /// Sockets of engines without an init.
    without_init: Mutex<BTreeSet<PathBuf>>,
    /// Notified when an engine is first used.
    new_engine: Notify,
}

#[derive(Debug)]
struct Sockets {
    /// All known sockets; the most recently used is last.
    known: Vec<PathBuf>,
    /// Sockets that this daemon has used.
    used: BTreeSet<PathBuf>,
}

impl Engines {
    /// Loads the engines that earlier daemons have used.
    pub(crate) fn load(folder: &Path) -> Self {
        let file = folder.join(FILE);
        let (stored, problem) = StoredEngines::read(&file).unwrap_or_else(|error| {
            let problem = format!("{} cannot be read: {error}", file.display());
            (StoredEngines::default(), Some(problem))
        });
        let mut known = stored.sockets;
        known.drain(..known.len().saturating_sub(MAX_ENGINES));
        if let Some(problem) = problem {
            tracing::warn!("{problem}; leftover containers of its engines are not removed");
        }
        let new_engine = Notify::new();
        if !known.is_empty() {
            new_engine.notify_one();
        }
        let sockets = Mutex::new(Sockets { known, used: BTreeSet::new() });
        Self { file, sockets, without_init: Mutex::default(), new_engine }
    }

    /// Records that an engine is used, so that it may have containers of this home.
    pub(crate) fn record_use(&self, socket: &Path) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if !sockets.used.insert(socket.to_owned()) {
            return;
        }
        sockets.known = with(std::mem::take(&mut sockets.known), socket);
        // If it cannot be written, a later daemon does not look there; nothing else is lost.
        let stored = StoredEngines { sockets: sockets.known.clone() };
        if let Err(error) = stored.write(&self.file) {
            tracing::warn!(file = %self.file.display(), %error, "could not store the list of engines");
        }
        self.new_engine.notify_one();
    }

    /// Records that an engine has no init. Returns true if that was not known.
    pub(crate) fn record_missing_init(&self, socket: &Path) -> bool {
        let mut known = self.without_init.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(socket.to_owned())
    }

    pub(crate) fn all(&self) -> Vec<PathBuf> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).known.clone()
    }

    /// Resolves when an engine was first used. Cancel-safe.
    pub(crate) async fn wait_for_new(&self) {
        self.new_engine.notified().await;
    }
}

/// Returns the known sockets with the one that was just used. Pure.
fn with(mut known: Vec<PathBuf>, socket: &Path) -> Vec<PathBuf> {
    known.retain(|it| it != socket);
    known.push(socket.to_owned());
    known.split_off(known.len().saturating_sub(MAX_ENGINES))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn paths(all: &[&str]) -> Vec<PathBuf> {
        all.iter().map(PathBuf::from).collect()
    }

    #[tokio::test]
    async fn used_engine_is_known_to_later_daemons() {
        let folder = tempfile::tempdir().unwrap();
        let first = Engines::load(folder.path());
        assert!(first.all().is_empty());
        first.record_use(Path::new("/d.sock"));
        first.record_use(Path::new("/p.sock"));
        let second = Engines::load(folder.path());
        assert_eq!(second.all(), paths(&["/d.sock", "/p.sock"]));
        second.wait_for_new().await; // Loaded engines count as new.
        second.record_use(Path::new("/d.sock"));
        let third = Engines::load(folder.path());
        assert_eq!(third.all(), paths(&["/p.sock", "/d.sock"]), "that was used last");
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "no temporary file is left");
    }

    #[test]
    fn least_recently_used_engines_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let engines = Engines::load(folder.path());
        for number in 0..=MAX_ENGINES {
            engines.record_use(&PathBuf::from(format!("/{number}.sock")));
        }
        let known = Engines::load(folder.path()).all();
        assert_eq!((known.len(), known[0].as_path()), (MAX_ENGINES, Path::new("/1.sock")));
    }

    #[test]
    fn file_of_first_release_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"format":1,"sockets":["/run/docker.sock"]}"#;
        fs::write(folder.path().join(FILE), text).unwrap();
        assert_eq!(Engines::load(folder.path()).all(), paths(&["/run/docker.sock"]));
    }
}
