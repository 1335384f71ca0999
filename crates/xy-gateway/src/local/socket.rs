//! The socket of one local client. It registers only for the readiness that a task awaits.
//!
//! On Linux, a Unix socket reports that it is writable after each read of its peer, even if it was
//! writable before. A task registered for that wakes once more for every response. So this socket
//! is registered for reading, and for writing only while its buffer is full. Tokio's stream always
//! registers for both. Its pipe ends register for one, and accept any descriptor.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::time::sleep;
use xy_transport::scratch::with_scratch;

/// Waiting for writability needs a file descriptor. If none is available, this is the retry delay.
const WRITE_RETRY_DELAY: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Socket {
    /// Borrowed for one call at a time.
    socket: RefCell<pipe::Receiver>,
}

impl Socket {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let stream = OwnedFd::from(stream.into_std()?);
        let socket = pipe::Receiver::from_owned_fd_unchecked(stream)?;
        Ok(Self { socket: RefCell::new(socket) })
    }

    /// Reads once. Returns false at the end.
    pub(super) async fn read(&self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        poll_fn(|context| {
            with_scratch(|scratch| {
                let mut buffer = ReadBuf::new(scratch);
                let read = Pin::new(&mut *self.socket.borrow_mut()).poll_read(context, &mut buffer);
                read.map_ok(|()| {
                    take(buffer.filled());
                    !buffer.filled().is_empty()
                })
            })
        })
        .await
    }

    /// Writes as much as the socket's buffer takes.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&*self.socket.borrow(), bytes)?)
    }

    /// Waits until the socket is writable or broken. The next write tells which.
    pub(super) async fn wait_writable(&self) -> io::Result<()> {
        let duplicate = rustix::io::fcntl_dupfd_cloexec(&*self.socket.borrow(), 0);
        let duplicate = duplicate.map_err(io::Error::from);
        if let Ok(duplicate) = duplicate.and_then(pipe::Sender::from_owned_fd_unchecked) {
            return duplicate.writable().await;
        }
        sleep(WRITE_RETRY_DELAY).await;
        Ok(())
    }

    /// Returns true if the client has closed both directions.
    pub(super) fn is_closed_by_peer(&self) -> bool {
        xy_ipc::is_hung_up(&*self.socket.borrow())
    }
}
