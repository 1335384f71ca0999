//! The sockets that the daemon listens at, for as long as it lives: if the file of one is
//! lost, it is made again, and who is connected does not notice. If its folder is lost, as a
//! runtime folder is at the last logout, the socket moves to the state folder.

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::net::UnixListener;
use tokio::sync::mpsc;
use xy_ipc::listen::{BindError, Bound, SocketFile, bind};

use crate::signs::take_down;

/// Listeners that wait to be taken; the last of them is the one that stays.
const AGAIN: usize = 4;

/// One socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Where it is made. The second place serves if the folder of the first is gone.
    places: [PathBuf; 2],
    /// `None` while there is none.
    file: Mutex<Option<SocketFile>>,
    to: To,
}

/// Whoever serves what comes in.
#[derive(Debug)]
enum To {
    Control(mpsc::Sender<UnixListener>),
    Gateway(mpsc::Sender<StdListener>),
}

/// Both of them.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// For front ends.
    pub(crate) control: Socket,
    /// For MCP clients of this machine.
    pub(crate) mcp: Socket,
}

impl Socket {
    /// The control socket, of which only the file is held here; and where the next listener
    /// comes from, should it be lost.
    pub(crate) fn of_control(
        file: SocketFile,
        fallback: &Path,
    ) -> (Self, mpsc::Receiver<UnixListener>) {
        let (to, again) = mpsc::channel(AGAIN);
        (Self::new(file, fallback, To::Control(to)), again)
    }

    /// The gateway's socket, and the same.
    pub(crate) fn of_gateway(
        file: SocketFile,
        fallback: &Path,
    ) -> (Self, mpsc::Receiver<StdListener>) {
        let (to, again) = mpsc::channel(AGAIN);
        (Self::new(file, fallback, To::Gateway(to)), again)
    }

    fn new(file: SocketFile, fallback: &Path, to: To) -> Self {
        let places = [file.path().to_owned(), fallback.to_owned()];
        Self { places, file: Mutex::new(Some(file)), to }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> PathBuf {
        let file = self.file();
        file.as_ref().map_or(&*self.places[0], SocketFile::path).to_owned()
    }

    /// Returns true if it is lost with its folder, and can be made elsewhere.
    pub(crate) fn has_lost_folder(&self) -> bool {
        let [place, fallback] = &self.places;
        place != fallback && is_gone(place) && !self.is_in_place()
    }

    /// Whether whoever looks there finds it.
    pub(crate) fn is_in_place(&self) -> bool {
        self.file().as_ref().is_some_and(SocketFile::is_in_place)
    }

    /// Makes it again where it was, or at the fallback if that folder is gone.
    pub(crate) fn renew(&self) -> Result<(), BindError> {
        let mut file = self.file();
        // Before the new one is there: it may get the old one's number, and go with it.
        *file = None;
        let [place, fallback] = &self.places;
        let path = if is_gone(place) { fallback } else { place };
        let failed = |cause| BindError::Io { path: path.clone(), cause };
        if path != place {
            take_down(path).map_err(failed)?; // The link to the place that is gone.
        }
        let Bound { listener, file: made } = bind(path)?;
        let is_taken = match &self.to {
            To::Control(to) => to.try_send(listener).is_ok(),
            To::Gateway(to) => to.try_send(listener.into_std().map_err(failed)?).is_ok(),
        };
        if !is_taken {
            return Err(failed(io::Error::other("nobody takes the new one")));
        }
        *file = Some(made);
        Ok(())
    }

    /// Takes the file away, unless another's is there.
    pub(crate) fn remove(&self) {
        *self.file() = None;
    }

    fn file(&self) -> MutexGuard<'_, Option<SocketFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the folder of a socket is not there.
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
    async fn a_socket_that_was_lost_is_made_again_and_goes_with_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (socket, mut again) = Socket::of_control(bind(&path).unwrap().file, &path);
        assert!(socket.is_in_place());
        std::fs::remove_file(&path).unwrap();
        assert!(!socket.is_in_place());
        socket.renew().unwrap();
        let _listener = again.try_recv().unwrap();
        assert!(socket.is_in_place());
        UnixStream::connect(&path).unwrap();
        socket.remove();
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_somebody_else_has_put_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (socket, mut again) = Socket::of_gateway(bind(&path).unwrap().file, &path);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(socket.renew(), Err(BindError::NotASocket { .. })));
        socket.remove();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        socket.renew().unwrap();
        assert!(again.try_recv().is_ok() && socket.is_in_place());
    }
    #[tokio::test]
    async fn socket_moves_when_its_folder_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (runtime, fallback) = (folder.path().join("run"), folder.path().join("s"));
        std::fs::create_dir(&runtime).unwrap();
        let path = runtime.join("s");
        let (socket, mut again) = Socket::of_control(bind(&path).unwrap().file, &fallback);
        std::os::unix::fs::symlink(&path, &fallback).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!socket.has_lost_folder(), "only its file is lost");
        std::fs::remove_dir(&runtime).unwrap();
        assert!(socket.has_lost_folder());
        socket.renew().unwrap();
        let _listener = again.try_recv().unwrap();
        assert!(socket.is_in_place() && !socket.has_lost_folder());
        assert_eq!(socket.path(), fallback);
        UnixStream::connect(&fallback).unwrap();
    }
}
