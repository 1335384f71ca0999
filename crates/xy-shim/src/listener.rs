//! The Unix socket at which a daemon that did not start this shim finds it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::sys;

/// Maximum length of a socket path on every system: `sun_path` of macOS without its NUL.
const MAX_SOCKET_PATH: usize = 103;

/// A listening Unix socket; its file is removed with it.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Binds a socket at `path`, where no file may exist yet.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        Self::from_bound(bind(path)?, path.to_owned())
    }

    /// Wraps a socket that another process has bound at `path`.
    pub(crate) fn from_bound(listener: UnixListener, path: PathBuf) -> io::Result<Self> {
        // Only the file names are compared: the folder may be spelled in another way.
        if listener.local_addr()?.as_pathname().and_then(Path::file_name) != path.file_name() {
            return Err(io::Error::other("another socket is bound there"));
        }
        let this = Self { listener, path };
        this.listener.set_nonblocking(true)?;
        Ok(this)
    }

    /// Keeps the file when the listener is dropped, as a sign for the process that finds it.
    pub(crate) fn keep_file(&mut self) {
        self.path = PathBuf::new();
    }

    /// Accepts a connection if it comes from a process of the same user.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let (stream, _) = match self.listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            accepted => accepted?,
        };
        let is_same_user = is_same_user(stream.as_fd());
        stream.set_nonblocking(true)?;
        Ok(is_same_user.then(|| stream.into()))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // The file may be gone already.
    }
}

/// Binds a socket at `path`, where no file may exist yet.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    with_short_path(path, |path| UnixListener::bind(path))
}

/// Connects to the shim that listens at `path`.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    with_short_path(path, |path| UnixStream::connect(path))
}

/// Returns true if the process at the other end of a socket runs as the same user. A listening
/// socket counts as the user that made it listen. Root is another user: a daemon run by root is not
/// trusted.
pub fn is_same_user(socket: BorrowedFd<'_>) -> bool {
    sys::peer_uid(socket) == Some(rustix::process::geteuid().as_raw())
}

/// Calls `act` with a path short enough for a socket, through the folder's descriptor if needed.
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
    fn long_socket_paths_work() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("a-folder-with-a-long-name".repeat(8));
        std::fs::create_dir(&folder).unwrap();
        for path in [folder.join("x.sock"), temp.path().join("x.sock")] {
            let listener = Listener::bind(&path).unwrap();
            assert!(listener.accept().unwrap().is_none(), "no client has connected yet");
            let _client = connect(&path).unwrap();
            assert!(listener.accept().unwrap().is_some());
            drop(listener);
            assert!(!path.exists());
            assert!(connect(&path).is_err());
        }
    }

    #[test]
    fn existing_file_is_not_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("x.sock");
        std::fs::write(&path, "mine").unwrap();
        assert!(Listener::bind(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
