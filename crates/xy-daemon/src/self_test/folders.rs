//! The test of the folders that xy writes to. Missing folders are created.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use xy_protocol::control::{CheckStatus, PathHealth, Repair};

use crate::daemon::{Daemon, Phase};
use crate::files::{Lock, is_locked};

/// The file that the test writes and removes. A leftover of a killed daemon is overwritten.
const PROBE_FILE: &str = ".self-test";

/// Maximum time for file access. A disk that has vanished may never respond.
const DISK_TIMEOUT: Duration = Duration::from_secs(5);

/// The permit to check folders, held beyond the timeout: a disk that never responds blocks one
/// thread, not one per test.
static CHECKING: Semaphore = Semaphore::const_new(1);

/// Tests the state folder and the log folder.
pub(super) async fn test(
    daemon: &Daemon,
    repair: bool,
    repairs: &mut Vec<Repair>,
) -> (PathHealth, PathHealth) {
    let paths = daemon.paths.clone();
    let checked = run_with_timeout(DISK_TIMEOUT, &CHECKING, move || {
        let mut repairs = Vec::new();
        let mut database = check_folder(&paths.state_dir, repair, &mut repairs);
        let shims = check_folder(&paths.shims_dir, repair, &mut repairs);
        if database.status == CheckStatus::Ok && shims.status == CheckStatus::Error {
            database = shims; // The shim folder is in the state folder.
        }
        let logs = check_folder(&paths.logs_dir, repair, &mut repairs);
        let has_lost_lock = !is_locked(&paths.lock_file);
        (database, logs, repairs, has_lost_lock)
    });
    let (mut database, logs, created, has_lost_lock) = match checked.await {
        Ok(checked) => checked,
        Err(why) => {
            let failed = |path: &Path| health(path, Err(why.clone()));
            return (failed(&daemon.paths.state_dir), failed(&daemon.paths.logs_dir));
        }
    };
    repairs.extend(created);
    if has_lost_lock && is_serving(daemon) {
        let path = daemon.paths.lock_file.display().to_string();
        let reason = format!("{path} was missing: a second daemon could have started");
        match take_lock_again(daemon, repair).await {
            Ok(()) => repairs.push(Repair::LockTaken { path, reason }),
            Err(why) if database.status == CheckStatus::Ok => {
                database = health(&daemon.paths.state_dir, Err(why));
            }
            Err(_) => {} // The folder's own problem matters more.
        }
    }
    (database, logs)
}

/// Runs a check that may block on a blocking thread. Returns an error if it does not finish in
/// time.
pub(super) async fn run_with_timeout<T: Send + 'static>(
    limit: Duration,
    turn: &'static Semaphore,
    check_folder: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let checking = async {
        let turn = turn.acquire().await.map_err(|cause| cause.to_string())?;
        let checked = spawn_blocking(move || {
            let _turn = turn;
            check_folder()
        });
        checked.await.map_err(|cause| cause.to_string())
    };
    let late = || format!("the disk did not answer within {} s", limit.as_secs());
    timeout(limit, checking).await.unwrap_or_else(|_| Err(late()))
}

/// Tests one folder, and creates it if it is missing and `repair` is set.
fn check_folder(folder: &Path, repair: bool, repairs: &mut Vec<Repair>) -> PathHealth {
    let result = try_to_write(folder);
    let is_missing = matches!(&result, Err(cause) if cause.kind() == io::ErrorKind::NotFound);
    if !(is_missing && repair) {
        return health(folder, result.map_err(|cause| cause.to_string()));
    }
    let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let created = created.and_then(|()| try_to_write(folder));
    if created.is_ok() {
        let reason = "it was missing".to_owned();
        repairs.push(Repair::FolderCreated { path: folder.display().to_string(), reason });
    }
    health(
        folder,
        created.map_err(|cause| format!("it is missing, and cannot be created: {cause}")),
    )
}

/// Writes a file in the folder, reads it back, and removes it.
fn try_to_write(folder: &Path) -> io::Result<()> {
    let trial = folder.join(PROBE_FILE);
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
        return Err(io::Error::other("a file written there reads back with different content"));
    }
    removed
}

fn health(folder: &Path, result: Result<(), String>) -> PathHealth {
    let path = folder.display().to_string();
    match result {
        Ok(()) => PathHealth { status: CheckStatus::Ok, path, note: None },
        Err(why) => PathHealth { status: CheckStatus::Error, path, note: Some(why) },
    }
}

/// Returns true if the daemon keeps serving. A daemon that is ending has released the lock for
/// another.
fn is_serving(daemon: &Daemon) -> bool {
    *daemon.phase.borrow() == Phase::Serving
}

/// Takes the lock again. Without its file, a second daemon could start.
async fn take_lock_again(daemon: &Daemon, repair: bool) -> Result<(), String> {
    let file = daemon.paths.lock_file.display();
    if !repair {
        return Err(format!("{file} is missing, so a second daemon could start"));
    }
    match Lock::take(&daemon.paths.lock_file).await {
        Ok(lock) => {
            if is_serving(daemon) {
                tracing::warn!("the lock file was missing; took the lock again");
                daemon.hold_lock(lock);
            }
            Ok(())
        }
        Err(error) => {
            tracing::error!(%error, "the lock file is missing");
            Err(format!("{file} was missing, and cannot be taken again: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writable_folder_is_ok_and_left_empty() {
        let home = tempfile::tempdir().unwrap();
        let mut repairs = Vec::new();
        assert_eq!(check_folder(home.path(), true, &mut repairs).status, CheckStatus::Ok);
        fs::write(home.path().join(PROBE_FILE), "left by a killed daemon").unwrap();
        assert_eq!(check_folder(home.path(), true, &mut repairs).status, CheckStatus::Ok);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        assert!(repairs.is_empty());
    }

    #[test]
    fn missing_folder_is_created_only_with_repair() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("a/b");
        let mut repairs = Vec::new();
        assert_eq!(check_folder(&folder, false, &mut repairs).status, CheckStatus::Error);
        assert!(!folder.exists() && repairs.is_empty());
        assert_eq!(check_folder(&folder, true, &mut repairs).status, CheckStatus::Ok);
        assert!(folder.is_dir() && repairs.len() == 1);
    }

    #[test]
    fn unusable_folder_is_reported_and_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "precious").unwrap();
        let mut repairs = Vec::new();
        let health_of_file = check_folder(&file, true, &mut repairs);
        assert_eq!(
            (health_of_file.status, health_of_file.note.is_some()),
            (CheckStatus::Error, true)
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        fs::create_dir(home.path().join(PROBE_FILE)).unwrap();
        assert_eq!(check_folder(home.path(), true, &mut repairs).status, CheckStatus::Error);
        assert!(home.path().join(PROBE_FILE).is_dir() && repairs.is_empty());
    }

    #[tokio::test]
    async fn unresponsive_disk_is_reported_and_blocks_one_thread() {
        static TURN: Semaphore = Semaphore::const_new(1);
        let soon = Duration::from_millis(10);
        let (answers, answer) = std::sync::mpsc::channel::<()>();
        let stuck = run_with_timeout(soon, &TURN, move || answer.recv().is_ok());
        assert!(stuck.await.unwrap_err().contains("did not answer"));
        let next = run_with_timeout(soon, &TURN, || unreachable!("the first has not returned"));
        assert!(matches!(next.await, Err::<(), _>(why) if why.contains("did not answer")));
        answers.send(()).unwrap();
        assert_eq!(run_with_timeout(Duration::from_secs(600), &TURN, || 7).await, Ok(7));
    }
}
