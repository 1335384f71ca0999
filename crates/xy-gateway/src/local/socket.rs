//! The socket of one local client, which is asked only for what is waited for.
//!
//! On Linux a Unix socket is told of room whenever its other side has read something, also if
//! there was room all the time. Who listens for that is woken once more for every answer. So
//! this listens for what comes, and for room only while there is none. Tokio's own stream
//! always listens for both; its ends of pipes listen for one, and do not ask what they are.

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

use crate::upstream::pipes::with_scratch;

/// To listen for room takes a descriptor. If none is free, it is tried again after so long.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Socket {
    /// Borrowed for one call at a time.
    end: RefCell<pipe::Receiver>,
}

impl Socket {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let stream = OwnedFd::from(stream.into_std()?);
        let end = pipe::Receiver::from_owned_fd_unchecked(stream)?;
        Ok(Self { end: RefCell::new(end) })
    }

    /// One read; `false` at the end.
    pub(super) async fn read(&self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        poll_fn(|context| {
            with_scratch(|scratch| {
                let mut buffer = ReadBuf::new(scratch);
                let read = Pin::new(&mut *self.end.borrow_mut()).poll_read(context, &mut buffer);
                read.map_ok(|()| {
                    take(buffer.filled());
                    !buffer.filled().is_empty()
                })
            })
        })
        .await
    }

    /// Writes what there is room for now.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&*self.end.borrow(), bytes)?)
    }

    /// Waits until there is room, or it fails: then a write will tell.
    pub(super) async fn room(&self) -> io::Result<()> {
        let another = rustix::io::fcntl_dupfd_cloexec(&*self.end.borrow(), 0);
        let another = another.map_err(io::Error::from);
        if let Ok(another) = another.and_then(pipe::Sender::from_owned_fd_unchecked) {
            return another.writable().await;
        }
        sleep(LOOK_FOR_ROOM).await;
        Ok(())
    }

    /// Whether nobody is at the other end, for reading nor for writing.
    pub(super) fn is_hung_up(&self) -> bool {
        xy_ipc::is_hung_up(&*self.end.borrow())
    }
}
