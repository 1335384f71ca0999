//! The state of a container for a later daemon: a few files per instance.
//!
//! There is no shim to keep it. The main file is replaced atomically and never synced: it matters
//! after the death of a daemon, not of the machine, which no container survives. It contains the
//! settings, so only the user may read it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xy_config::atomic_file::{read_bounded, write_unsynced};
use xy_config::trust::open_own;
use xy_supervisor::instance::InstanceKey;

use crate::log::older;
use crate::log_gap::OutputPosition;
use crate::stream::ReadJournal;

const FORMAT: u32 = 1;

/// Maximum size of a state file.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// The saved state of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedState {
    format: u32,
    /// Id of the container at its engine.
    pub(crate) container: String,
    /// Socket of the engine.
    pub(crate) socket: PathBuf,
    /// When it was started, in milliseconds since 1970.
    pub(crate) began_ms: u64,
    /// When the note was left, in milliseconds since 1970.
    pub(crate) noted_ms: u64,
    /// The notes of its task and of its protocol driver.
    pub(crate) note: String,
    /// Its end has been requested.
    pub(crate) stopping: bool,
    /// A stream holder keeps its stream open while there is no daemon (`stream_holder.rs`).
    #[serde(default)]
    pub(crate) held: bool,
}

/// The state file of one container, with the files beside it.
#[derive(Debug)]
pub(crate) struct StateFile {
    stem: PathBuf,
    state: SavedState,
}

impl StateFile {
    /// Creates the state of a new container. Nothing is written yet.
    pub(crate) fn new(folder: &Path, key: &InstanceKey, container: &str, socket: &Path) -> Self {
        let state = SavedState {
            format: FORMAT,
            container: container.to_owned(),
            socket: socket.to_owned(),
            began_ms: 0,
            noted_ms: 0,
            note: String::new(),
            stopping: false,
            held: false,
        };
        Self { stem: stem(folder, key), state }
    }

    /// Continues the state that an earlier daemon left.
    pub(crate) fn of(folder: &Path, key: &InstanceKey, state: SavedState) -> Self {
        Self { stem: stem(folder, key), state }
    }

    pub(crate) fn state(&self) -> &SavedState {
        &self.state
    }

    /// Changes the state and writes it. If it cannot be written, a later daemon cannot adopt the
    /// container; nothing else is lost.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut SavedState)) {
        change(&mut self.state);
        if let Err(error) = self.write() {
            tracing::warn!(file = %self.stem.display(), %error, "the state file cannot be written: a later daemon cannot take over the container");
        }
    }

    fn write(&self) -> io::Result<()> {
        let folder = self.stem.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        write_unsynced(&with_extension(&self.stem, "json"), &serde_json::to_vec(&self.state)?)
    }

    /// Opens the file with the position up to which output was received.
    pub(crate) fn position_file(&self) -> PositionFile {
        PositionFile::open(&with_extension(&self.stem, "at"))
    }

    /// Opens the file with the position within the stream.
    pub(crate) fn read_journal(&self) -> io::Result<ReadJournal> {
        ReadJournal::find(&with_extension(&self.stem, "taken"))
    }

    /// Creates the file with the position within a new stream.
    pub(crate) fn create_read_journal(&self) -> io::Result<ReadJournal> {
        ReadJournal::begin(&with_extension(&self.stem, "taken"))
    }

    /// Removes all files, once the container is gone.
    pub(crate) fn remove(&self) {
        let lines = self.ledger_path();
        let others =
            ["json", "at", "taken", "torn", "json.new"].map(|it| with_extension(&self.stem, it));
        for path in others.into_iter().chain([older(&lines), lines]) {
            let _ = fs::remove_file(path); // It may not exist.
        }
    }

    /// Returns the path of the log's ledger.
    pub(crate) fn ledger_path(&self) -> PathBuf {
        with_extension(&self.stem, "lines")
    }

    /// Returns the mark that a message to the server is partly written.
    pub(crate) fn torn_mark(&self) -> TornMark {
        TornMark { file: with_extension(&self.stem, "torn"), is_set: false }
    }
}

/// Reads all states that earlier daemons left. The flag tells whether a message to the server was
/// partly written.
pub(crate) fn read_all(folder: &Path) -> Vec<(InstanceKey, SavedState, bool)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let path = entry.path();
        let is_ours = path.extension().is_some_and(|it| it == "json");
        let key = InstanceKey::parse(path.file_stem().filter(|_| is_ours)?.to_str()?)?;
        let is_long = entry.metadata().ok()?.len() > MAX_FILE_BYTES;
        let state: SavedState =
            serde_json::from_slice(&read_bounded(&path, MAX_FILE_BYTES).ok()?).ok()?;
        let is_torn = with_extension(&stem(folder, &key), "torn").exists();
        (state.format == FORMAT && !is_long).then_some((key, state, is_torn))
    };
    entries.filter_map(read).collect()
}

fn stem(folder: &Path, key: &InstanceKey) -> PathBuf {
    folder.join(key.to_string())
}

fn with_extension(stem: &Path, ending: &str) -> PathBuf {
    let mut path = stem.as_os_str().to_owned();
    path.push(".");
    path.push(ending);
    path.into()
}

/// A mark on disk that a message to a server is partly written.
#[derive(Debug)]
pub(crate) struct TornMark {
    file: PathBuf,
    is_set: bool,
}

impl TornMark {
    pub(crate) fn set(&mut self, is_torn: bool) {
        if is_torn != self.is_set {
            self.is_set = is_torn;
            let _ = if is_torn {
                open_own(File::options().write(true).create(true).mode(0o600), &self.file).map(drop)
            } else {
                fs::remove_file(&self.file)
            };
        }
    }
}

/// The position up to which output was received, on disk.
#[derive(Debug)]
pub(crate) struct PositionFile {
    file: Option<File>,
    noted: OutputPosition,
}

impl PositionFile {
    fn open(path: &Path) -> Self {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = open_own(&mut options, path).ok();
        let mut bytes = [0; OutputPosition::BYTES];
        let read = file.as_ref().map(|file| file.read_exact_at(&mut bytes, 0));
        let is_noted = matches!(read, Some(Ok(())));
        let noted =
            if is_noted { OutputPosition::from_bytes(&bytes) } else { OutputPosition::default() };
        Self { file, noted }
    }

    pub(crate) fn noted(&self) -> OutputPosition {
        self.noted
    }

    pub(crate) fn write(&mut self, position: &OutputPosition) {
        self.noted = *position;
        if let Some(file) = &self.file {
            // If this fails, a later daemon receives some output twice.
            let _ = file.write_all_at(&position.to_bytes(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use xy_protocol::server::ServerName;

    use super::*;

    #[test]
    fn state_is_found_until_removed() {
        let folder = tempfile::tempdir().unwrap();
        let key = InstanceKey::shared(ServerName::new("git").unwrap());
        let mut state_file = StateFile::new(folder.path(), &key, "abc", Path::new("/d.sock"));
        state_file.change(|state| state.note = "a note".into());
        state_file.torn_mark().set(true);
        assert!(state_file.read_journal().is_err());
        state_file.create_read_journal().unwrap();
        state_file.read_journal().unwrap();
        for path in [state_file.ledger_path(), older(&state_file.ledger_path())] {
            fs::write(path, "").unwrap();
        }
        let position = OutputPosition { out: 7, err: 8, ..OutputPosition::default() };
        state_file.position_file().write(&position);
        assert_eq!(state_file.position_file().noted(), position);
        let found = read_all(folder.path());
        assert_eq!(found, [(key, state_file.state().clone(), true)]);
        state_file.remove();
        assert!(read_all(folder.path()).is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn foreign_files_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("git.json"), "{").unwrap();
        fs::write(folder.path().join("b.json"), r#"{"format":9}"#).unwrap();
        fs::write(folder.path().join("README"), "x").unwrap();
        assert!(read_all(folder.path()).is_empty());
        assert!(read_all(Path::new("/nowhere")).is_empty());
    }
}
