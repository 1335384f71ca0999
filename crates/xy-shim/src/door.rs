//! Where a daemon that did not start this shim finds it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::sys;

/// The longest path a socket may have everywhere: `sun_path` of macOS without its zero.
const MAX_SOCKET_PATH: usize = 103;

/// A socket that others may connect to; its file goes with it.
#[derive(Debug)]
pub(crate) struct Door {
    listener: UnixListener,
    path: PathBuf,
}

impl Door {
    /// Listens at `path`, where nothing may be yet.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::of(listen(path)?, path.to_owned())
    }

    /// The same, where somebody has bound it: no other file goes with it.
    pub(crate) fn of(listener: UnixListener, path: PathBuf) -> io::Result<Self> {
        // The folder may have been said in another way.
        if listener.local_addr()?.as_pathname().and_then(Path::file_name) != path.file_name() {
            return Err(io::Error::other("another socket is bound there"));
        }
        let door = Self { listener, path };
        door.listener.set_nonblocking(true)?;
        Ok(door)
    }

    /// The file stays when the door goes: it means something to whoever finds it.
    pub(crate) fn leave_file(&mut self) {
        self.path = PathBuf::new();
    }

    /// Whoever has come, if it is somebody of ours.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let (stream, _) = match self.listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            accepted => accepted?,
        };
        let is_ours = is_ours(stream.as_fd());
        stream.set_nonblocking(true)?;
        Ok(is_ours.then(|| stream.into()))
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // Somebody may have been quicker.
    }
}

/// Binds a socket at `path`, where nothing may be yet.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    with_short_path(path, |path| UnixListener::bind(path))
}

/// Connects to the shim that listens at `path`.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    with_short_path(path, |path| UnixStream::connect(path))
}

/// Returns true if a process of this user is at the other end of a socket; a listener counts as
/// the user that made it listen. Root is another user: a daemon that root runs is not ours.
pub fn is_ours(socket: BorrowedFd<'_>) -> bool {
    sys::peer_uid(socket) == Some(rustix::process::geteuid().as_raw())
}

/// A socket's path may be too long for the system while that of its folder is not.
fn with_short_path<T>(path: &Path, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= MAX_SOCKET_PATH || !cfg!(target_os = "linux") {
        return act(path);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return act(path);
    };
    let folder = std::fs::File::open(folder)?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&folder);
    act(&Path::new("/proc/self/fd").join(number.to_string()).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_socket_may_be_long() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("a-folder-with-a-long-name".repeat(8));
        std::fs::create_dir(&folder).unwrap();
        for path in [folder.join("x.sock"), home.path().join("x.sock")] {
            let door = Door::open(&path).unwrap();
            assert!(door.accept().unwrap().is_none(), "nobody has come yet");
            let _ours = connect(&path).unwrap();
            assert!(door.accept().unwrap().is_some());
            drop(door);
            assert!(!path.exists());
            assert!(connect(&path).is_err());
        }
    }

    #[test]
    fn what_is_there_already_stays() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("x.sock");
        std::fs::write(&path, "mine").unwrap();
        assert!(Door::open(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
