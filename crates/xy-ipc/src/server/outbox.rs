//! What a connection still has to send, bounded in messages and in bytes.
//!
//! Who puts something in waits for room. A client that does not read makes its own
//! tasks wait, and nobody else's.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Serialize;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use xy_protocol::jsonrpc::OutgoingNotification;

use super::encode;

/// Bytes that may wait: a burst of log lines, and small beside the daemon.
const MAX_BYTES: usize = 1024 * 1024;

/// Messages that may wait; the bytes are the real bound, this one is for tiny ones.
const MAX_MESSAGES: usize = 256;

/// What is gathered into one write.
const GATHERED: usize = 64 * 1024;

/// The connection has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection has closed")]
pub struct OutboxClosed;

/// Where a connection's messages are put; cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    messages: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Queued {
    bytes: Vec<u8>,
    /// What goes with the bytes.
    descriptor: Option<OwnedFd>,
    /// Given back when the bytes are written.
    room: OwnedSemaphorePermit,
}

/// Where they come out, in the order they were put in.
#[derive(Debug)]
pub struct Outgoing {
    messages: mpsc::Receiver<Queued>,
}

/// An empty outbox and its other end.
pub fn channel() -> (Outbox, Outgoing) {
    let (sender, receiver) = mpsc::channel(MAX_MESSAGES);
    let outbox = Outbox { messages: sender, room: Arc::new(Semaphore::new(MAX_BYTES)) };
    (outbox, Outgoing { messages: receiver })
}

impl Outbox {
    /// Waits for room, then queues `bytes`: whole messages, each with its newline.
    ///
    /// If the wait is given up, nothing was sent; nothing is ever sent in part.
    pub async fn send(&self, bytes: Vec<u8>) -> Result<(), OutboxClosed> {
        // What is larger than all the room there is goes alone.
        let needed = u32::try_from(bytes.len().min(MAX_BYTES)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(needed).await;
        let queued = Queued { bytes, descriptor: None, room: room.map_err(|_| OutboxClosed)? };
        self.messages.send(queued).await.map_err(|_| OutboxClosed)
    }

    /// Waits for room, then queues a descriptor. It goes with an empty line, which is no message.
    pub(super) async fn send_descriptor(&self, descriptor: OwnedFd) -> Result<(), OutboxClosed> {
        let room = Arc::clone(&self.room).acquire_owned().await.map_err(|_| OutboxClosed)?;
        let queued = Queued { bytes: vec![b'\n'], descriptor: Some(descriptor), room };
        self.messages.send(queued).await.map_err(|_| OutboxClosed)
    }

    /// Waits for room, then queues the notification `method`.
    pub async fn notify(
        &self,
        method: &str,
        params: impl Serialize + Send,
    ) -> Result<(), OutboxClosed> {
        self.send(encode(&OutgoingNotification::new(method, params))).await
    }
}

impl Outgoing {
    /// What was put in next; `None` once every [`Outbox`] is gone and all is out.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.messages.recv().await.map(|queued| queued.bytes)
    }

    /// Writes everything until every [`Outbox`] is gone, or the reader is.
    pub(super) async fn write_to(mut self, mut wire: OwnedWriteHalf) {
        while let Some(Queued { mut bytes, descriptor, mut room }) = self.messages.recv().await {
            let mut passed = descriptor;
            while passed.is_none()
                && bytes.len() < GATHERED
                && let Ok(next) = self.messages.try_recv()
            {
                bytes.extend_from_slice(&next.bytes);
                room.merge(next.room);
                passed = next.descriptor;
            }
            // The line that goes with it is the last.
            let line = passed.as_ref().and_then(|_| bytes.pop());
            if wire.write_all(&bytes).await.is_err() {
                return;
            }
            if let (Some(line), Some(descriptor)) = (line, &passed)
                && pass(&wire, line, descriptor.as_fd()).await.is_err()
            {
                return;
            }
            drop(room);
        }
    }
}

/// Writes one byte, and a descriptor with it.
async fn pass(wire: &OwnedWriteHalf, byte: u8, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let stream = wire.as_ref();
    let send = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let bytes = [byte];
        let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::empty());
        Ok(sent.map(drop)?)
    };
    stream.async_io(Interest::WRITABLE, send).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_sends_waits_for_room_and_nothing_is_lost() {
        let (outbox, mut outgoing) = channel();
        outbox.send(vec![b'x'; MAX_BYTES]).await.unwrap();
        let more = outbox.send(vec![b'y']);
        assert!(timeout(Duration::from_secs(60), more).await.is_err());
        assert_eq!(outgoing.next().await.unwrap().len(), MAX_BYTES);
        outbox.send(vec![b'z']).await.unwrap();
        assert_eq!(outgoing.next().await.unwrap(), b"z");
    }

    #[tokio::test]
    async fn what_is_larger_than_all_the_room_still_goes() {
        let (outbox, mut outgoing) = channel();
        outbox.send(vec![b'x'; 3 * MAX_BYTES]).await.unwrap();
        assert_eq!(outgoing.next().await.unwrap().len(), 3 * MAX_BYTES);
    }

    #[tokio::test]
    async fn a_closed_connection_is_told() {
        let (outbox, outgoing) = channel();
        drop(outgoing);
        assert_eq!(outbox.notify("log", 1).await, Err(OutboxClosed));
    }
}
