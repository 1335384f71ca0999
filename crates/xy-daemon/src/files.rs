//! The daemon's folders and its lock file.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use tokio::time::{Instant, sleep};
use xy_config::Paths;
use xy_config::trust::{self, TrustError};

/// How often the pid in the lock file is read: a daemon that has just taken the lock writes it a
/// moment later.
const MAX_POLLS: u32 = 20;

/// The interval between two reads.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The reason why the daemon cannot use its files.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("the folder `{}` cannot be created", .path.display())]
    Folder {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{untrusted}")]
    Untrusted { untrusted: TrustError },
    #[error("the lock `{}` cannot be taken", .path.display())]
    Lock {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("another daemon is already running{}", holder_of(.pid.as_deref()))]
    Held { path: PathBuf, pid: Option<String> },
}

fn holder_of(pid: Option<&str>) -> String {
    pid.map(|pid| format!(", pid {pid}")).unwrap_or_default()
}

/// Creates missing folders with access for their owner only. Refuses a folder that another user can
/// write.
pub(crate) fn create_folders(paths: &Paths) -> Result<(), FilesError> {
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

/// The daemon's lock, held until it exits. The kernel releases it when the process ends, however it
/// ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock; waits up to this time for its holder to exit.
    pub(crate) async fn take_within(limit: Duration, path: &Path) -> Result<Self, FilesError> {
        let give_up_at = Instant::now() + limit;
        loop {
            match Self::take(path).await {
                Err(FilesError::Held { .. }) if Instant::now() < give_up_at => {
                    sleep(POLL_INTERVAL).await;
                }
                settled => return settled,
            }
        }
    }

    /// Takes the lock, or returns an error that names its holder. The pid in the file is for users
    /// only.
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
        // Only the lock matters: a full disk must not keep the daemon from serving.
        if let Err(error) = write_pid(&mut file) {
            tracing::warn!(%error, "the pid could not be written to {}", path.display());
        }
        Ok(Self { _file: file })
    }
}

/// Returns true if another process holds the lock. For a daemon that has released it.
pub(crate) fn is_locked(path: &Path) -> bool {
    let file = File::options().read(true).open(path);
    file.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Returns the pid of the lock's holder. The pid of a dead process is from an earlier holder, and
/// is ignored.
async fn holder(file: &mut File) -> Option<String> {
    for _ in 0..MAX_POLLS {
        let pid = read_pid(file).filter(|&pid| test_kill_process(pid) != Err(Errno::SRCH));
        if let Some(pid) = pid {
            return Some(pid.to_string());
        }
        sleep(POLL_INTERVAL).await;
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
    async fn second_daemon_learns_the_pid_of_the_lock_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        let lock = Lock::take(&path).await.unwrap();
        let refused = Lock::take(&path).await.unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("another daemon is already running, pid {}", std::process::id())
        );
        drop(lock);
        assert!(Lock::take(&path).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn lock_file_that_is_a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("xy.pid"), folder.path().join("target"));
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(matches!(Lock::take(&path).await, Err(FilesError::Lock { .. })));
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }

    #[tokio::test(start_paused = true)]
    async fn pid_of_a_dead_process_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        std::fs::write(&path, "1\nand more than a number, 123456789012345678901234567890").unwrap();
        drop(Lock::take(&path).await.unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_pid_in_a_held_lock_file_is_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        let _lock = Lock::take(&path).await.unwrap();
        std::fs::write(&path, "rm -rf\x1b[31m").unwrap();
        let refused = Lock::take(&path).await.unwrap_err().to_string();
        assert_eq!(refused, "another daemon is already running");
    }

    #[tokio::test(start_paused = true)]
    async fn pid_of_the_lock_holder_is_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        let _lock = Lock::take(&path).await.unwrap();
        // A pid above the system's maximum: left by a dead daemon, not yet overwritten.
        std::fs::write(&path, "2147483647\n").unwrap();
        let writes = async {
            sleep(POLL_INTERVAL * 3 / 2).await;
            std::fs::write(&path, format!("{}\n", std::process::id())).unwrap();
        };
        let (refused, ()) = tokio::join!(Lock::take(&path), writes);
        let expected = format!("another daemon is already running, pid {}", std::process::id());
        assert_eq!(refused.unwrap_err().to_string(), expected);
    }
}
