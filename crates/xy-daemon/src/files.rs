//! The daemon's folders and its lock.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use tokio::time::{Instant, sleep};
use xy_config::Paths;
use xy_config::trust::{self, Untrusted};

/// Whoever has just taken the lock writes its number in a moment: so often it is looked for.
const LOOKS: u32 = 20;

/// How long between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Why the daemon cannot have its files.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("the folder `{}` cannot be made", .path.display())]
    Folder {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{untrusted}")]
    Untrusted { untrusted: Untrusted },
    #[error("the lock `{}` cannot be had", .path.display())]
    Lock {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("another daemon runs already{}", holder_of(.pid.as_deref()))]
    Held { path: PathBuf, pid: Option<String> },
}

fn holder_of(pid: Option<&str>) -> String {
    pid.map(|pid| format!(", pid {pid}")).unwrap_or_default()
}

/// Makes the folders that are missing, for us alone; refuses one that another user can write.
pub(crate) fn make_folders(paths: &Paths) -> Result<(), FilesError> {
    let home = paths.state_dir.parent().unwrap_or(&paths.state_dir);
    let untrusted = |untrusted| FilesError::Untrusted { untrusted };
    trust::check_folders(&paths.state_dir, home).map_err(untrusted)?;
    for path in [&paths.state_dir, &paths.logs_dir, &paths.shims_dir] {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|cause| FilesError::Folder { path: path.clone(), cause })?;
    }
    for folder in [&paths.logs_dir, &paths.shims_dir, &paths.manifests_dir] {
        trust::check_folders(folder, &paths.state_dir).map_err(untrusted)?;
    }
    Ok(())
}

/// Held for life; the system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, waiting a while for its holder to go.
    pub(crate) async fn take_within(limit: Duration, path: &Path) -> Result<Self, FilesError> {
        let give_up_at = Instant::now() + limit;
        loop {
            match Self::take(path).await {
                Err(FilesError::Held { .. }) if Instant::now() < give_up_at => {
                    sleep(LOOK_AGAIN).await;
                }
                settled => return settled,
            }
        }
    }

    /// Takes the lock, or says who has it. The number in the file is for people.
    pub(crate) async fn take(path: &Path) -> Result<Self, FilesError> {
        let failed = |cause| FilesError::Lock { path: path.to_owned(), cause };
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = trust::open_own(&mut options, path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = holder(&mut file).await;
                return Err(FilesError::Held { path: path.to_owned(), pid });
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        // The lock is what counts: a full disk keeps nobody from serving.
        if let Err(error) = write_pid(&mut file) {
            tracing::warn!(%error, "the pid could not be written to {}", path.display());
        }
        Ok(Self { _file: file })
    }
}

/// Whether somebody holds the lock, for a daemon that has let go of it.
pub(crate) fn is_locked(path: &Path) -> bool {
    let file = File::options().read(true).open(path);
    file.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Who holds the lock. A number of the dead is that of a holder before it.
async fn holder(file: &mut File) -> Option<String> {
    for _ in 0..LOOKS {
        let pid = read_pid(file).filter(|&pid| test_kill_process(pid) != Err(Errno::SRCH));
        if let Some(pid) = pid {
            return Some(pid.to_string());
        }
        sleep(LOOK_AGAIN).await;
    }
    None
}

fn read_pid(file: &mut File) -> Option<Pid> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    let number: u32 = text.trim().parse().ok()?;
    Pid::from_raw(number.try_into().ok()?)
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_second_taker_is_told_who_has_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        let lock = Lock::take(&path).await.unwrap();
        let refused = Lock::take(&path).await.unwrap_err().to_string();
        assert_eq!(refused, format!("another daemon runs already, pid {}", std::process::id()));
        drop(lock);
        assert!(Lock::take(&path).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("xy.pid"), folder.path().join("target"));
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(matches!(Lock::take(&path).await, Err(FilesError::Lock { .. })));
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }

    #[tokio::test(start_paused = true)]
    async fn a_number_left_by_the_dead_does_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        std::fs::write(&path, "1\nand more than a number, 123456789012345678901234567890").unwrap();
        drop(Lock::take(&path).await.unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[tokio::test(start_paused = true)]
    async fn nonsense_in_the_file_of_a_living_daemon_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        let _lock = Lock::take(&path).await.unwrap();
        std::fs::write(&path, "rm -rf\x1b[31m").unwrap();
        let refused = Lock::take(&path).await.unwrap_err().to_string();
        assert_eq!(refused, "another daemon runs already");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_a_holder_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        let _lock = Lock::take(&path).await.unwrap();
        // Above what any system gives: left by the dead, and not yet written over.
        std::fs::write(&path, "2147483647\n").unwrap();
        let writes = async {
            sleep(LOOK_AGAIN * 3 / 2).await;
            std::fs::write(&path, format!("{}\n", std::process::id())).unwrap();
        };
        let (refused, ()) = tokio::join!(Lock::take(&path), writes);
        let told = format!("another daemon runs already, pid {}", std::process::id());
        assert_eq!(refused.unwrap_err().to_string(), told);
    }
}
