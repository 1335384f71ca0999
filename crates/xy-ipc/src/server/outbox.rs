//! The output queue of a connection, bounded in messages and in bytes.
//!
//! Senders wait for room. So a client that does not read delays its own tasks and no others.

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

/// Maximum number of queued bytes: enough for a burst of log lines, and little for the daemon.
const MAX_BYTES: usize = 1024 * 1024;

/// Maximum number of queued messages. Bytes are the real bound; this one limits tiny messages.
const MAX_MESSAGES: usize = 256;

/// Amount of queued messages that is gathered into one write.
const MAX_WRITE: usize = 64 * 1024;

/// The connection has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection has closed")]
pub struct OutboxClosed;

/// The sending end of a connection's queue; cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    messages: mpsc::Sender<QueuedMessage>,
    room: Arc<Semaphore>,
}

/// A queued message.
#[derive(Debug)]
struct QueuedMessage {
    bytes: Vec<u8>,
    /// A descriptor sent with the bytes.
    descriptor: Option<OwnedFd>,
    /// Released when the bytes are written.
    permit: OwnedSemaphorePermit,
}

/// The receiving end of the queue, in order.
#[derive(Debug)]
pub struct Outgoing {
    messages: mpsc::Receiver<QueuedMessage>,
}

/// Creates an empty queue.
pub fn channel() -> (Outbox, Outgoing) {
    let (sender, receiver) = mpsc::channel(MAX_MESSAGES);
    let outbox = Outbox { messages: sender, room: Arc::new(Semaphore::new(MAX_BYTES)) };
    (outbox, Outgoing { messages: receiver })
}

impl Outbox {
    /// Waits for room, then queues `bytes`: whole messages, each with its newline.
    ///
    /// If the future is dropped, nothing was sent. A message is never sent in part.
    pub async fn send(&self, bytes: Vec<u8>) -> Result<(), OutboxClosed> {
        // A message larger than the whole queue is sent alone.
        let needed = u32::try_from(bytes.len().min(MAX_BYTES)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.room).acquire_many_owned(needed).await;
        let queued =
            QueuedMessage { bytes, descriptor: None, permit: permit.map_err(|_| OutboxClosed)? };
        self.messages.send(queued).await.map_err(|_| OutboxClosed)
    }

    /// Waits for room, then queues a descriptor. It is sent with an empty line, which is not a
    /// message.
    pub(super) async fn send_descriptor(&self, descriptor: OwnedFd) -> Result<(), OutboxClosed> {
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(|_| OutboxClosed)?;
        let queued = QueuedMessage { bytes: vec![b'\n'], descriptor: Some(descriptor), permit };
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
    /// Returns the next message; `None` once every [`Outbox`] is gone and the queue is empty.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.messages.recv().await.map(|queued| queued.bytes)
    }

    /// Writes messages until every [`Outbox`] or the client is gone.
    pub(super) async fn write_to(mut self, mut socket: OwnedWriteHalf) {
        while let Some(QueuedMessage { mut bytes, descriptor, mut permit }) =
            self.messages.recv().await
        {
            let mut descriptor_to_send = descriptor;
            while descriptor_to_send.is_none()
                && bytes.len() < MAX_WRITE
                && let Ok(next) = self.messages.try_recv()
            {
                bytes.extend_from_slice(&next.bytes);
                permit.merge(next.permit);
                descriptor_to_send = next.descriptor;
            }
            // The empty line that carries the descriptor comes last.
            let line = descriptor_to_send.as_ref().and_then(|_| bytes.pop());
            if socket.write_all(&bytes).await.is_err() {
                return;
            }
            if let (Some(line), Some(descriptor)) = (line, &descriptor_to_send)
                && send_with_descriptor(&socket, line, descriptor.as_fd()).await.is_err()
            {
                return;
            }
            drop(permit);
        }
    }
}

/// Writes one byte together with a descriptor.
async fn send_with_descriptor(
    socket: &OwnedWriteHalf,
    byte: u8,
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let stream = socket.as_ref();
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
    async fn full_outbox_delays_the_sender() {
        let (outbox, mut outgoing) = channel();
        outbox.send(vec![b'x'; MAX_BYTES]).await.unwrap();
        let more = outbox.send(vec![b'y']);
        assert!(timeout(Duration::from_secs(60), more).await.is_err());
        assert_eq!(outgoing.next().await.unwrap().len(), MAX_BYTES);
        outbox.send(vec![b'z']).await.unwrap();
        assert_eq!(outgoing.next().await.unwrap(), b"z");
    }

    #[tokio::test]
    async fn oversized_message_is_sent_alone() {
        let (outbox, mut outgoing) = channel();
        outbox.send(vec![b'x'; 3 * MAX_BYTES]).await.unwrap();
        assert_eq!(outgoing.next().await.unwrap().len(), 3 * MAX_BYTES);
    }

    #[tokio::test]
    async fn closed_connection_is_reported() {
        let (outbox, outgoing) = channel();
        drop(outgoing);
        assert_eq!(outbox.notify("log", 1).await, Err(OutboxClosed));
    }
}
