//! The engines that there may be something of ours at, also from earlier daemons.
//!
//! An engine that is away when a container should be removed keeps it. If the daemon ends before
//! that engine is back, and no server of it is started again, only this file tells a later one
//! where to look. It is written whole, when an engine is used that this daemon had not used yet,
//! and holds a bounded number; one that is damaged is put aside.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::plain_file::open_own;
use crate::whole_file::{put_aside, read_bounded};

/// No server can have this name, so it is nobody's note.
const FILE: &str = "_engines.json";

const FORMAT: u32 = 1;

/// Hardly anybody has more engines; those used longest ago are forgotten.
const MOST: usize = 32;

/// No file of ours is longer: so many paths.
const LONGEST: u64 = 256 * 1024;

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    format: u32,
    /// Where they listen; those used last are last.
    sockets: Vec<PathBuf>,
}

/// The engines that there may be something of ours at.
#[derive(Debug)]
pub(super) struct Engines {
    file: PathBuf,
    sockets: Mutex<Sockets>,
    /// Those that have no init.
    without_init: Mutex<BTreeSet<PathBuf>>,
    /// There is one that was not looked at yet.
    is_news: Notify,
}

#[derive(Debug)]
struct Sockets {
    /// Those used last are last.
    known: Vec<PathBuf>,
    /// Those that this daemon has used.
    used: BTreeSet<PathBuf>,
}

impl Engines {
    /// Those that earlier daemons have used.
    pub(super) fn remembered(folder: &Path) -> Self {
        let file = folder.join(FILE);
        let (known, problem) = read(&file);
        if let Some(problem) = problem {
            tracing::warn!("{problem}; what is left at engines is not looked for there");
        }
        let is_news = Notify::new();
        if !known.is_empty() {
            is_news.notify_one();
        }
        let sockets = Mutex::new(Sockets { known, used: BTreeSet::new() });
        Self { file, sockets, without_init: Mutex::default(), is_news }
    }

    /// One is used: from now on there may be something of ours at it.
    pub(super) fn saw(&self, socket: &Path) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if !sockets.used.insert(socket.to_owned()) {
            return;
        }
        sockets.known = with(std::mem::take(&mut sockets.known), socket);
        // What cannot be written costs a later daemon a look, no more.
        if let Err(error) = write(&self.file, &sockets.known) {
            tracing::warn!(file = %self.file.display(), %error, "engines are not remembered");
        }
        self.is_news.notify_one();
    }

    /// One has no init; whether that is new.
    pub(super) fn lacks_init(&self, socket: &Path) -> bool {
        let mut known = self.without_init.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(socket.to_owned())
    }

    pub(super) fn all(&self) -> Vec<PathBuf> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).known.clone()
    }

    /// Resolves when there is one that was not looked at yet. Cancel-safe.
    pub(super) async fn until_news(&self) {
        self.is_news.notified().await;
    }
}

/// All that is known, with one that was used just now. Pure.
fn with(mut known: Vec<PathBuf>, socket: &Path) -> Vec<PathBuf> {
    known.retain(|it| it != socket);
    known.push(socket.to_owned());
    known.split_off(known.len().saturating_sub(MOST))
}

/// What the file says, or what is wrong with it.
fn read(file: &Path) -> (Vec<PathBuf>, Option<String>) {
    let text = match read_bounded(file, LONGEST) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (Vec::new(), None),
        Err(error) => {
            return (Vec::new(), Some(format!("{} cannot be read: {error}", file.display())));
        }
    };
    let problem = match serde_json::from_slice::<Stored>(&text) {
        Ok(Stored { format: FORMAT, mut sockets }) => {
            return (sockets.split_off(sockets.len().saturating_sub(MOST)), None);
        }
        Ok(stored) => format!("format {} is unknown", stored.format),
        Err(error) => error.to_string(),
    };
    (Vec::new(), Some(put_aside(file, &problem)))
}

/// Not synced, as the notes beside it: it matters after the death of a daemon.
fn write(file: &Path, sockets: &[PathBuf]) -> io::Result<()> {
    let temporary = file.with_extension("new");
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let stored = Stored { format: FORMAT, sockets: sockets.to_vec() };
    open_own(&mut options, &temporary)?.write_all(&serde_json::to_vec(&stored)?)?;
    fs::rename(&temporary, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(all: &[&str]) -> Vec<PathBuf> {
        all.iter().map(PathBuf::from).collect()
    }

    #[tokio::test]
    async fn an_engine_that_was_used_is_known_to_later_daemons() {
        let folder = tempfile::tempdir().unwrap();
        let first = Engines::remembered(folder.path());
        assert!(first.all().is_empty());
        first.saw(Path::new("/d.sock"));
        first.saw(Path::new("/p.sock"));
        let second = Engines::remembered(folder.path());
        assert_eq!(second.all(), paths(&["/d.sock", "/p.sock"]));
        second.until_news().await; // They are looked at as it begins.
        second.saw(Path::new("/d.sock"));
        let third = Engines::remembered(folder.path());
        assert_eq!(third.all(), paths(&["/p.sock", "/d.sock"]), "that was used last");
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "no temporary file is left");
    }

    #[test]
    fn those_used_longest_ago_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let engines = Engines::remembered(folder.path());
        for number in 0..=MOST {
            engines.saw(&PathBuf::from(format!("/{number}.sock")));
        }
        let known = Engines::remembered(folder.path()).all();
        assert_eq!((known.len(), known[0].as_path()), (MOST, Path::new("/1.sock")));
    }

    #[test]
    fn a_damaged_file_is_put_aside_and_nobody_is_known() {
        for text in ["", "{", "[]", r#"{"format":9,"sockets":[]}"#, r#"{"format":1,"sockets":7}"#] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join(FILE);
            fs::write(&file, text).unwrap();
            let engines = Engines::remembered(folder.path());
            assert!(engines.all().is_empty());
            let aside = folder.path().join("_engines.json.damaged");
            assert_eq!(fs::read_to_string(aside).unwrap(), text);
            engines.saw(Path::new("/d.sock"));
            assert_eq!(Engines::remembered(folder.path()).all(), paths(&["/d.sock"]));
        }
    }

    #[test]
    fn the_file_of_the_first_release_is_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"format":1,"sockets":["/run/docker.sock"]}"#;
        fs::write(folder.path().join(FILE), text).unwrap();
        assert_eq!(Engines::remembered(folder.path()).all(), paths(&["/run/docker.sock"]));
    }
}
