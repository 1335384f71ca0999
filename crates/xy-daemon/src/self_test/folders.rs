//! The folders that xy writes to: whether it can, and new ones for those that have vanished.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use xy_protocol::control::{PlaceHealth, Repair, Verdict};

use crate::daemon::{Daemon, Ending};
use crate::files::{Lock, is_locked};

/// Written and removed again. One that a killed daemon left is written over.
const TRIAL: &str = ".self-test";

/// How long a disk may take. Of one that is gone without a word nothing ever comes back.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

/// Who looks holds it, also beyond its time: a disk that is gone keeps one thread, not one
/// more for each test.
static LOOKING: Semaphore = Semaphore::const_new(1);

/// Looks at the state folder and at that of the logs.
pub(super) async fn test(
    daemon: &Daemon,
    repair: bool,
    repairs: &mut Vec<Repair>,
) -> (PlaceHealth, PlaceHealth) {
    let paths = daemon.paths.clone();
    let looked = within_reason(WRITTEN_WITHIN, &LOOKING, move || {
        let mut repairs = Vec::new();
        let mut database = look(&paths.state_dir, repair, &mut repairs);
        let shims = look(&paths.shims_dir, repair, &mut repairs);
        if database.status == Verdict::Ok && shims.status == Verdict::Error {
            database = shims; // It is a part of the other.
        }
        let logs = look(&paths.logs_dir, repair, &mut repairs);
        let has_lost_lock = !is_locked(&paths.lock_file);
        (database, logs, repairs, has_lost_lock)
    });
    let (mut database, logs, made, has_lost_lock) = match looked.await {
        Ok(looked) => looked,
        Err(why) => {
            let failed = |path: &Path| health(path, Err(why.clone()));
            return (failed(&daemon.paths.state_dir), failed(&daemon.paths.logs_dir));
        }
    };
    repairs.extend(made);
    if has_lost_lock && stays(daemon) {
        let path = daemon.paths.lock_file.display().to_string();
        let reason = format!("{path} was missing: a second daemon could have started");
        match take_lock_again(daemon, repair).await {
            Ok(()) => repairs.push(Repair::LockTaken { path, reason }),
            Err(why) if database.status == Verdict::Ok => {
                database = health(&daemon.paths.state_dir, Err(why));
            }
            Err(_) => {} // The folder itself is the trouble.
        }
    }
    (database, logs)
}

/// What comes of a look that may block, or why nothing did in this time.
pub(super) async fn within_reason<T: Send + 'static>(
    limit: Duration,
    turn: &'static Semaphore,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let looking = async {
        let turn = turn.acquire().await.map_err(|cause| cause.to_string())?;
        let looked = spawn_blocking(move || {
            let _turn = turn;
            look()
        });
        looked.await.map_err(|cause| cause.to_string())
    };
    let late = || format!("the disk did not answer within {} s", limit.as_secs());
    timeout(limit, looking).await.unwrap_or_else(|_| Err(late()))
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

/// Whether it is to be the daemon from now on too: who goes has let go of the lock for another.
fn stays(daemon: &Daemon) -> bool {
    *daemon.ending.borrow() == Ending::No
}

/// Who loses the state folder, or the file in it, loses the lock, and a second daemon could
/// begin: it is taken again.
async fn take_lock_again(daemon: &Daemon, repair: bool) -> Result<(), String> {
    let file = daemon.paths.lock_file.display();
    if !repair {
        return Err(format!("{file} is missing, so a second daemon could start"));
    }
    match Lock::take(&daemon.paths.lock_file).await {
        Ok(lock) => {
            if stays(daemon) {
                tracing::warn!("the lock was lost, and is taken again");
                daemon.keep_lock(lock);
            }
            Ok(())
        }
        Err(error) => {
            tracing::error!(%error, "the lock was lost");
            Err(format!("{file} was missing, and cannot be had again: {error}"))
        }
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

    #[tokio::test]
    async fn a_disk_that_does_not_answer_is_told_and_keeps_one_thread() {
        static TURN: Semaphore = Semaphore::const_new(1);
        let soon = Duration::from_millis(10);
        let (answers, answer) = std::sync::mpsc::channel::<()>();
        let stuck = within_reason(soon, &TURN, move || answer.recv().is_ok());
        assert!(stuck.await.unwrap_err().contains("did not answer"));
        let next = within_reason(soon, &TURN, || unreachable!("the first has not come back"));
        assert!(matches!(next.await, Err::<(), _>(why) if why.contains("did not answer")));
        answers.send(()).unwrap();
        assert_eq!(within_reason(Duration::from_secs(600), &TURN, || 7).await, Ok(7));
    }
}
