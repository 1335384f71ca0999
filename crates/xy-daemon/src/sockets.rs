//! The daemon's listening sockets, which are recreated when they are lost.
//!
//! If the file of a socket is lost, a new one is bound, and connected clients notice nothing. If
//! its folder is lost, as a runtime folder is at the last logout, the socket moves to the state
//! folder.

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::net::UnixListener;
use tokio::sync::mpsc;
use xy_ipc::listen::{BindError, BoundSocket, SocketFile, bind};

use crate::socket_links::remove_link;

/// The capacity of a queue of new listeners. The server that takes them keeps the latest.
const REBIND_QUEUE: usize = 4;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// The path of the socket, and the fallback for when the folder of the first is gone.
    places: [PathBuf; 2],
    /// The file of the socket; `None` while it does not exist.
    file: Mutex<Option<SocketFile>>,
    queue: ListenerQueue,
}

/// The queue to the server that accepts connections on the socket.
#[derive(Debug)]
enum ListenerQueue {
    Control(mpsc::Sender<UnixListener>),
    Gateway(mpsc::Sender<StdListener>),
}

/// The sockets of a daemon.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// The control socket, for the `xy` command.
    pub(crate) control: Socket,
    /// The gateway's socket, for MCP clients of this machine.
    pub(crate) mcp: Socket,
}

impl Socket {
    /// Creates the control socket from its file. The receiver yields each new listener, should the
    /// socket be lost.
    pub(crate) fn of_control(
        file: SocketFile,
        fallback: &Path,
    ) -> (Self, mpsc::Receiver<UnixListener>) {
        let (sender, listeners) = mpsc::channel(REBIND_QUEUE);
        (Self::new(file, fallback, ListenerQueue::Control(sender)), listeners)
    }

    /// Creates the gateway's socket from its file. The receiver yields each new listener, should
    /// the socket be lost.
    pub(crate) fn of_gateway(
        file: SocketFile,
        fallback: &Path,
    ) -> (Self, mpsc::Receiver<StdListener>) {
        let (sender, listeners) = mpsc::channel(REBIND_QUEUE);
        (Self::new(file, fallback, ListenerQueue::Gateway(sender)), listeners)
    }

    fn new(file: SocketFile, fallback: &Path, queue: ListenerQueue) -> Self {
        let places = [file.path().to_owned(), fallback.to_owned()];
        Self { places, file: Mutex::new(Some(file)), queue }
    }

    /// Returns the current path of the socket.
    pub(crate) fn path(&self) -> PathBuf {
        let file = self.file();
        file.as_ref().map_or(&*self.places[0], SocketFile::path).to_owned()
    }

    /// Returns true if the socket is lost with its folder, and can be recreated elsewhere.
    pub(crate) fn has_lost_folder(&self) -> bool {
        let [place, fallback] = &self.places;
        place != fallback && is_gone(place) && !self.is_in_place()
    }

    /// Returns true if the socket's file is at its path.
    pub(crate) fn is_in_place(&self) -> bool {
        self.file().as_ref().is_some_and(SocketFile::is_in_place)
    }

    /// Binds the socket again at its path, or at the fallback if the folder is gone.
    pub(crate) fn rebind(&self) -> Result<(), BindError> {
        let mut file = self.file();
        // The old file is dropped first: the new one may get its inode number, and would be removed
        // with it.
        *file = None;
        let [place, fallback] = &self.places;
        let path = if is_gone(place) { fallback } else { place };
        let failed = |cause| BindError::Io { path: path.clone(), cause };
        if path != place {
            remove_link(path).map_err(failed)?; // The link to the lost socket.
        }
        let BoundSocket { listener, file: made } = bind(path)?;
        let is_taken = match &self.queue {
            ListenerQueue::Control(to) => to.try_send(listener).is_ok(),
            ListenerQueue::Gateway(to) => to.try_send(listener.into_std().map_err(failed)?).is_ok(),
        };
        if !is_taken {
            return Err(failed(io::Error::other("the server does not accept the new listener")));
        }
        *file = Some(made);
        Ok(())
    }

    /// Removes the socket's file, unless it belongs to another daemon.
    pub(crate) fn remove(&self) {
        *self.file() = None;
    }

    fn file(&self) -> MutexGuard<'_, Option<SocketFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the folder of a socket does not exist.
fn is_gone(socket: &Path) -> bool {
    socket.parent().is_some_and(|folder| {
        std::fs::metadata(folder).is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn lost_socket_is_recreated_and_removed_with_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (socket, mut listeners) = Socket::of_control(bind(&path).unwrap().file, &path);
        assert!(socket.is_in_place());
        std::fs::remove_file(&path).unwrap();
        assert!(!socket.is_in_place());
        socket.rebind().unwrap();
        let _listener = listeners.try_recv().unwrap();
        assert!(socket.is_in_place());
        UnixStream::connect(&path).unwrap();
        socket.remove();
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn foreign_file_at_the_socket_path_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (socket, mut listeners) = Socket::of_gateway(bind(&path).unwrap().file, &path);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(socket.rebind(), Err(BindError::NotASocket { .. })));
        socket.remove();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        socket.rebind().unwrap();
        assert!(listeners.try_recv().is_ok() && socket.is_in_place());
    }
    #[tokio::test]
    async fn socket_moves_when_its_folder_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (runtime, fallback) = (folder.path().join("run"), folder.path().join("s"));
        std::fs::create_dir(&runtime).unwrap();
        let path = runtime.join("s");
        let (socket, mut listeners) = Socket::of_control(bind(&path).unwrap().file, &fallback);
        std::os::unix::fs::symlink(&path, &fallback).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!socket.has_lost_folder(), "only its file is lost");
        std::fs::remove_dir(&runtime).unwrap();
        assert!(socket.has_lost_folder());
        socket.rebind().unwrap();
        let _listener = listeners.try_recv().unwrap();
        assert!(socket.is_in_place() && !socket.has_lost_folder());
        assert_eq!(socket.path(), fallback);
        UnixStream::connect(&fallback).unwrap();
    }
}
