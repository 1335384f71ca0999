//! What a later daemon has to know of a container: a file per instance.
//!
//! There is no shim that could keep it. The files are written whole and never synced: they
//! matter after the death of a daemon, not after that of the machine, which no container
//! survives. They hold what the settings hold, so they are for nobody else's eyes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::log::older;
use super::missed::Place;
use super::stream::TakenFile;
use crate::instance::InstanceKey;
use crate::plain_file::open_own;
use crate::whole_file::read_bounded;

const FORMAT: u32 = 1;

/// No file of ours is longer.
const LONGEST: u64 = 8 << 20;

/// What is known of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    format: u32,
    /// Its id at its engine.
    pub(super) container: String,
    /// Where that listens.
    pub(super) socket: PathBuf,
    /// When it was started, in milliseconds since 1970.
    pub(super) began_ms: u64,
    /// When the note was left.
    pub(super) noted_ms: u64,
    /// What its task and its speaker left.
    pub(super) note: String,
    /// Its end has been asked for.
    pub(super) stopping: bool,
    /// Somebody holds its stream while there is no daemon (`grip.rs`).
    #[serde(default)]
    pub(super) held: bool,
}

/// Keeps one file, for as long as its container is there.
#[derive(Debug)]
pub(super) struct Keeper {
    stem: PathBuf,
    kept: Kept,
}

impl Keeper {
    /// Of a container that has been made.
    pub(super) fn new(folder: &Path, key: &InstanceKey, container: &str, socket: &Path) -> Self {
        let kept = Kept {
            format: FORMAT,
            container: container.to_owned(),
            socket: socket.to_owned(),
            began_ms: 0,
            noted_ms: 0,
            note: String::new(),
            stopping: false,
            held: false,
        };
        Self { stem: stem(folder, key), kept }
    }

    /// Of one that an earlier daemon left.
    pub(super) fn of(folder: &Path, key: &InstanceKey, kept: Kept) -> Self {
        Self { stem: stem(folder, key), kept }
    }

    pub(super) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Changes what is kept. What cannot be written costs an adoption, no more.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Kept)) {
        change(&mut self.kept);
        if let Err(error) = self.write() {
            tracing::warn!(file = %self.stem.display(), %error, "a later daemon would not know it");
        }
    }

    fn write(&self) -> io::Result<()> {
        let folder = self.stem.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let temporary = with(&self.stem, "new");
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let bytes = serde_json::to_vec(&self.kept)?;
        open_own(&mut options, &temporary)?.write_all(&bytes)?;
        fs::rename(&temporary, with(&self.stem, "json"))
    }

    /// The file in which it is marked how far its output has been heard.
    pub(super) fn place(&self) -> PlaceFile {
        PlaceFile::open(&with(&self.stem, "at"))
    }

    /// The file in which it is marked how much has been taken off its stream.
    pub(super) fn taken(&self) -> io::Result<TakenFile> {
        TakenFile::find(&with(&self.stem, "taken"))
    }

    /// The same of a stream that begins.
    pub(super) fn begin_taken(&self) -> io::Result<TakenFile> {
        TakenFile::begin(&with(&self.stem, "taken"))
    }

    /// It is gone: nothing has to be known.
    pub(super) fn forget(&self) {
        let lines = self.lines();
        let others = ["json", "at", "taken", "torn", "new"].map(|it| with(&self.stem, it));
        for path in others.into_iter().chain([older(&lines), lines]) {
            let _ = fs::remove_file(path); // Not every one was ever written.
        }
    }

    /// The ledger of its log.
    pub(super) fn lines(&self) -> PathBuf {
        with(&self.stem, "lines")
    }

    /// Where it is marked that a message to it is half written.
    pub(super) fn torn_mark(&self) -> TornMark {
        TornMark { file: with(&self.stem, "torn"), is_set: false }
    }
}

/// All that earlier daemons left, and whether a message to it was half written.
pub(super) fn all(folder: &Path) -> Vec<(InstanceKey, Kept, bool)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let path = entry.path();
        let is_ours = path.extension().is_some_and(|it| it == "json");
        let key = InstanceKey::parse(path.file_stem().filter(|_| is_ours)?.to_str()?)?;
        let is_long = entry.metadata().ok()?.len() > LONGEST;
        let kept: Kept = serde_json::from_slice(&read_bounded(&path, LONGEST).ok()?).ok()?;
        let is_torn = with(&stem(folder, &key), "torn").exists();
        (kept.format == FORMAT && !is_long).then_some((key, kept, is_torn))
    };
    entries.filter_map(read).collect()
}

fn stem(folder: &Path, key: &InstanceKey) -> PathBuf {
    folder.join(key.to_string())
}

fn with(stem: &Path, ending: &str) -> PathBuf {
    let mut path = stem.as_os_str().to_owned();
    path.push(".");
    path.push(ending);
    path.into()
}

/// A mark on disk that a message to a server is half written.
#[derive(Debug)]
pub(super) struct TornMark {
    file: PathBuf,
    is_set: bool,
}

impl TornMark {
    pub(super) fn set(&mut self, is_torn: bool) {
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

/// How far the output of a container has been heard, on disk.
#[derive(Debug)]
pub(super) struct PlaceFile {
    file: Option<File>,
    noted: Place,
}

impl PlaceFile {
    fn open(path: &Path) -> Self {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = open_own(&mut options, path).ok();
        let mut bytes = [0; Place::BYTES];
        let read = file.as_ref().map(|file| file.read_exact_at(&mut bytes, 0));
        let is_noted = matches!(read, Some(Ok(())));
        let noted = if is_noted { Place::from_bytes(&bytes) } else { Place::default() };
        Self { file, noted }
    }

    pub(super) fn noted(&self) -> Place {
        self.noted
    }

    pub(super) fn write(&mut self, place: &Place) {
        self.noted = *place;
        if let Some(file) = &self.file {
            let _ = file.write_all_at(&place.to_bytes(), 0); // A later daemon hears some twice.
        }
    }
}

#[cfg(test)]
mod tests {
    use xy_protocol::server::ServerName;

    use super::*;

    #[test]
    fn what_is_kept_is_found_again_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let key = InstanceKey::shared(ServerName::new("git").unwrap());
        let mut keeper = Keeper::new(folder.path(), &key, "abc", Path::new("/d.sock"));
        keeper.change(|kept| kept.note = "a note".into());
        keeper.torn_mark().set(true);
        assert!(keeper.taken().is_err());
        keeper.begin_taken().unwrap();
        keeper.taken().unwrap();
        for path in [keeper.lines(), older(&keeper.lines())] {
            fs::write(path, "").unwrap();
        }
        let place = Place { out: 7, err: 8, ..Place::default() };
        keeper.place().write(&place);
        assert_eq!(keeper.place().noted(), place);
        let found = all(folder.path());
        assert_eq!(found, [(key, keeper.kept().clone(), true)]);
        keeper.forget();
        assert!(all(folder.path()).is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_file_of_ours_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("git.json"), "{").unwrap();
        fs::write(folder.path().join("b.json"), r#"{"format":9}"#).unwrap();
        fs::write(folder.path().join("README"), "x").unwrap();
        assert!(all(folder.path()).is_empty());
        assert!(all(Path::new("/nowhere")).is_empty());
    }
}
