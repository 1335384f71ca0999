//! The daemon's folders and its lock.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use xy_config::Paths;

/// Why the daemon cannot have its files.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("the folder `{}` cannot be made", .path.display())]
    Folder {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
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

/// Makes the folders that are missing, for us alone.
pub(crate) fn make_folders(paths: &Paths) -> Result<(), FilesError> {
    for path in [&paths.state_dir, &paths.logs_dir] {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|cause| FilesError::Folder { path: path.clone(), cause })?;
    }
    Ok(())
}

/// Held for life; the system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or says who has it. The number in the file is for people.
    pub(crate) fn take(path: &Path) -> Result<Self, FilesError> {
        let failed = |cause| FilesError::Lock { path: path.to_owned(), cause };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = read_pid(&mut file);
                return Err(FilesError::Held { path: path.to_owned(), pid });
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        write_pid(&mut file).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn read_pid(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    let pid: u32 = text.trim().parse().ok()?;
    Some(pid.to_string())
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_taker_is_told_who_has_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        let lock = Lock::take(&path).unwrap();
        let refused = Lock::take(&path).unwrap_err().to_string();
        assert_eq!(refused, format!("another daemon runs already, pid {}", std::process::id()));
        drop(lock);
        assert!(Lock::take(&path).is_ok());
    }

    #[test]
    fn a_number_left_by_the_dead_does_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        std::fs::write(&path, "1\nand more than a number, 123456789012345678901234567890").unwrap();
        drop(Lock::take(&path).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[test]
    fn nonsense_in_the_file_of_a_living_daemon_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        let _lock = Lock::take(&path).unwrap();
        std::fs::write(&path, "rm -rf\x1b[31m").unwrap();
        let refused = Lock::take(&path).unwrap_err().to_string();
        assert_eq!(refused, "another daemon runs already");
    }
}
