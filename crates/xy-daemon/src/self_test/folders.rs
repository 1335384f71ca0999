//! The folders that xy writes to: whether it can, and new ones for those that have vanished.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use tokio::task::spawn_blocking;
use xy_protocol::control::{PlaceHealth, Repair, Verdict};

use crate::daemon::Daemon;
use crate::files::{Lock, is_locked};

/// Written and removed again. One that a killed daemon left is written over.
const TRIAL: &str = ".self-test";

/// Looks at the state folder and at that of the logs.
pub(super) async fn test(
    daemon: &Daemon,
    repair: bool,
    repairs: &mut Vec<Repair>,
) -> (PlaceHealth, PlaceHealth) {
    let paths = daemon.paths.clone();
    let looked = spawn_blocking(move || {
        let mut repairs = Vec::new();
        let mut database = look(&paths.state_dir, repair, &mut repairs);
        let shims = look(&paths.shims_dir, repair, &mut repairs);
        if database.status == Verdict::Ok && shims.status == Verdict::Error {
            database = shims; // It is a part of the other.
        }
        let logs = look(&paths.logs_dir, repair, &mut repairs);
        (database, logs, repairs)
    });
    let (database, logs, made) = match looked.await {
        Ok(looked) => looked,
        Err(cause) => {
            let failed = |path: &Path| health(path, Err(cause.to_string()));
            return (failed(&daemon.paths.state_dir), failed(&daemon.paths.logs_dir));
        }
    };
    if !made.is_empty() {
        keep_lock(daemon).await;
    }
    repairs.extend(made);
    (database, logs)
}

/// Looks at one folder, and makes it if it is missing.
fn look(folder: &Path, repair: bool, repairs: &mut Vec<Repair>) -> PlaceHealth {
    let tried = try_to_write(folder);
    let is_missing = matches!(&tried, Err(cause) if cause.kind() == io::ErrorKind::NotFound);
    if !(is_missing && repair) {
        return health(folder, tried.map_err(|cause| cause.to_string()));
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let made = made.and_then(|()| try_to_write(folder));
    if made.is_ok() {
        let reason = "it was missing".to_owned();
        repairs.push(Repair::FolderCreated { path: folder.display().to_string(), reason });
    }
    health(folder, made.map_err(|cause| format!("it is missing, and cannot be made: {cause}")))
}

/// Writes a file there, reads it again, and removes it.
fn try_to_write(folder: &Path) -> io::Result<()> {
    let trial = folder.join(TRIAL);
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let written = options.open(&trial).and_then(|mut file| {
        file.write_all(b"xy\n")?;
        file.sync_all()
    });
    let read = written.and_then(|()| fs::read(&trial));
    let removed = match read.as_ref().map_err(io::Error::kind) {
        Err(io::ErrorKind::NotFound) => Ok(()),
        _ => fs::remove_file(&trial),
    };
    if read? != b"xy\n" {
        return Err(io::Error::other("what was written there is not what is read"));
    }
    removed
}

fn health(folder: &Path, tried: Result<(), String>) -> PlaceHealth {
    let path = folder.display().to_string();
    match tried {
        Ok(()) => PlaceHealth { status: Verdict::Ok, path, note: None },
        Err(why) => PlaceHealth { status: Verdict::Error, path, note: Some(why) },
    }
}

/// Who loses the state folder loses its lock, and a second daemon could begin: it is taken
/// again.
async fn keep_lock(daemon: &Daemon) {
    let file = daemon.paths.lock_file.clone();
    if spawn_blocking(move || is_locked(&file)).await.unwrap_or(true) {
        return;
    }
    match Lock::take(&daemon.paths.lock_file).await {
        Ok(lock) => daemon.keep_lock(lock),
        Err(error) => tracing::error!(%error, "the lock was lost with its folder"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_well_if_it_can_be_written_to_and_nothing_stays_there() {
        let home = tempfile::tempdir().unwrap();
        let mut repairs = Vec::new();
        assert_eq!(look(home.path(), true, &mut repairs).status, Verdict::Ok);
        fs::write(home.path().join(TRIAL), "of one that was killed").unwrap();
        assert_eq!(look(home.path(), true, &mut repairs).status, Verdict::Ok);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        assert!(repairs.is_empty());
    }

    #[test]
    fn a_missing_folder_is_made_unless_one_only_looks() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("a/b");
        let mut repairs = Vec::new();
        assert_eq!(look(&folder, false, &mut repairs).status, Verdict::Error);
        assert!(!folder.exists() && repairs.is_empty());
        assert_eq!(look(&folder, true, &mut repairs).status, Verdict::Ok);
        assert!(folder.is_dir() && repairs.len() == 1);
    }

    #[test]
    fn what_is_no_folder_or_holds_something_in_the_way_is_told_and_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "precious").unwrap();
        let mut repairs = Vec::new();
        let told = look(&file, true, &mut repairs);
        assert_eq!((told.status, told.note.is_some()), (Verdict::Error, true));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        fs::create_dir(home.path().join(TRIAL)).unwrap();
        assert_eq!(look(home.path(), true, &mut repairs).status, Verdict::Error);
        assert!(home.path().join(TRIAL).is_dir() && repairs.is_empty());
    }
}
