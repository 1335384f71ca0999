//! The connection to the daemon: frames in and frames out, without ever waiting for the daemon.
//!
//! A daemon may read slowly or not at all. The few reports are queued for it without a limit, log
//! batches only while there is room. Once the daemon is gone, everything queued for it is
//! discarded.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::clock;
use crate::wire::{self, Frame, Order, Report};

/// Log batches are dropped while more than this many bytes are queued for the daemon.
const MAX_QUEUED_LOG: usize = 1024 * 1024;

/// How long the shim waits at its end for the daemon to read the remaining frames.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Buffer capacity that an idle connection retains.
const RETAINED_CAPACITY: usize = 4 * 1024;

/// Both directions of the connection.
#[derive(Debug)]
pub(crate) struct Control {
    /// `None` once the daemon is gone.
    socket: Option<OwnedFd>,
    inbox: Inbox,
    pub(crate) outbox: Outbox,
}

/// Received bytes that do not form a whole frame yet.
#[derive(Debug, Default)]
struct Inbox {
    bytes: Vec<u8>,
    parsed: usize,
}

/// Frames queued for the daemon.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    attached: Option<AttachedDescriptors>,
    is_unbounded: bool,
    is_closed: bool,
}

/// File descriptors that are sent with one frame, and with no byte of another.
#[derive(Debug)]
struct AttachedDescriptors {
    start: usize,
    end: usize,
    /// One or two.
    descriptors: Vec<OwnedFd>,
}

/// A frame from the daemon that is not an order.
#[derive(Debug)]
pub(crate) enum DaemonData<'a> {
    /// Output of stdout that was not protocol.
    UnparsedOutput(&'a [u8]),
    /// The note for the next daemon.
    Note(&'a [u8]),
    /// Output of stdout that the daemon could not use yet.
    Unread(&'a [u8]),
}

impl Control {
    /// Wraps a connection; `socket` must be non-blocking.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket: Some(socket), inbox: Inbox::default(), outbox: Outbox::default() }
    }

    /// Wraps a connection to which nothing is sent until [`open_outbox`](Self::open_outbox).
    pub(crate) fn without_output(socket: OwnedFd) -> Self {
        Self { outbox: Outbox::closed(), ..Self::new(socket) }
    }

    /// Starts to queue frames for the daemon.
    pub(crate) fn open_outbox(&mut self) {
        self.outbox = Outbox::default();
    }

    /// Returns what to poll for, or `None` once the daemon is gone.
    pub(crate) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let socket = self.socket.as_ref()?.as_fd();
        let writing = if self.outbox.waiting() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        Some((socket, PollFlags::IN | writing))
    }

    /// Returns true if the daemon has hung up or has violated the protocol.
    pub(crate) fn is_gone(&self) -> bool {
        self.socket.is_none()
    }

    /// Reads once; the bytes pass through `chunk`.
    pub(crate) fn read(&mut self, chunk: &mut [u8]) {
        let Some(socket) = &self.socket else { return };
        match rustix::io::read(socket, &mut *chunk) {
            Ok(0) => self.hang_up(),
            Ok(count) => self.inbox.bytes.extend_from_slice(&chunk[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.hang_up(),
        }
    }

    /// Returns the next order received; data received before it is passed to `on_data`.
    pub(crate) fn next_order(
        &mut self,
        mut on_data: impl FnMut(DaemonData<'_>, &mut Outbox),
    ) -> Option<Order> {
        loop {
            let (frame, length) = match wire::parse(&self.inbox.bytes[self.inbox.parsed..]) {
                Ok(Some(parsed)) => parsed,
                Ok(None) => {
                    self.inbox.discard_parsed();
                    return None;
                }
                Err(_) => {
                    self.hang_up();
                    return None;
                }
            };
            let data = match frame {
                Frame::Order(order) => Err(order),
                Frame::UnparsedOutput(bytes) => Ok(DaemonData::UnparsedOutput(bytes)),
                Frame::Note(bytes) => Ok(DaemonData::Note(bytes)),
                Frame::Unread(bytes) => Ok(DaemonData::Unread(bytes)),
                // Only a shim sends these, so the peer is not a daemon.
                Frame::Report(_) | Frame::Log { .. } => {
                    self.hang_up();
                    return None;
                }
            };
            self.inbox.parsed += length;
            match data {
                Err(order) => return Some(order),
                Ok(data) => on_data(data, &mut self.outbox),
            }
        }
    }

    /// Sends as much as the daemon accepts now.
    pub(crate) fn flush(&mut self) {
        let Some(socket) = &self.socket else { return };
        if self.outbox.send(socket.as_fd()).is_err() {
            // The orders that it sent before it left are still to be read.
            self.outbox = Outbox::closed();
        }
    }

    /// Sends everything, unless the daemon takes longer than `limit` to read it.
    pub(crate) fn flush_within(&mut self, limit: Duration) {
        let end = clock::now() + limit;
        self.flush();
        while let Some((socket, _)) = self.interest()
            && self.outbox.waiting() > 0
        {
            let left = end.saturating_duration_since(clock::now());
            let Ok(timeout) = left.try_into() else { return };
            let mut ready = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
            if poll(&mut ready, Some(&timeout)) == Ok(0) {
                return;
            }
            self.flush();
        }
    }

    /// Releases memory after a burst.
    pub(crate) fn trim(&mut self) {
        self.inbox.discard_parsed();
        self.inbox.bytes.shrink_to(RETAINED_CAPACITY);
        self.outbox.discard_sent();
        self.outbox.bytes.shrink_to(RETAINED_CAPACITY);
    }

    /// Closes the connection and discards everything queued for the daemon.
    pub(crate) fn hang_up(&mut self) {
        self.socket = None;
        self.inbox = Inbox::default();
        self.outbox = Outbox::closed();
    }
}

impl Inbox {
    fn discard_parsed(&mut self) {
        self.bytes.drain(..self.parsed);
        self.parsed = 0;
    }
}

impl Outbox {
    fn closed() -> Self {
        Self { is_closed: true, ..Self::default() }
    }

    /// Queues a report, which is never dropped.
    pub(crate) fn put_report(&mut self, report: &Report) {
        if !self.is_closed {
            wire::put_report(&mut self.bytes, report);
        }
    }

    /// Queues the note and the unread output for a newly attached daemon.
    pub(crate) fn put_handover(&mut self, note: &[u8], unread: &[u8]) {
        if !self.is_closed {
            wire::put_note(&mut self.bytes, note);
            wire::put_unread(&mut self.bytes, unread);
        }
    }

    /// Queues a report that carries file descriptors; at most once for each daemon.
    pub(crate) fn put_report_with(&mut self, report: &Report, descriptors: Vec<OwnedFd>) {
        let start = self.bytes.len();
        self.put_report(report);
        if self.is_closed || descriptors.is_empty() {
            return;
        }
        self.attached = Some(AttachedDescriptors { start, end: self.bytes.len(), descriptors });
    }

    /// Queues a batch and returns true if there was room. For a daemon that is gone there always
    /// is.
    pub(crate) fn put_log(&mut self, next_seq: u64, batch: &[u8]) -> bool {
        if self.is_closed {
            return true;
        }
        if self.waiting() > MAX_QUEUED_LOG && !self.is_unbounded {
            return false;
        }
        self.compact();
        wire::put_log(&mut self.bytes, next_seq, batch);
        true
    }

    /// Lifts the limit on queued batches, at the end of a life.
    pub(crate) fn set_unbounded(&mut self) {
        self.is_unbounded = true;
    }

    fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn send(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while self.waiting() > 0 {
            match self.send_some(socket) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(gone @ (Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)) => return Err(gone),
                Err(_) => return Ok(()), // The socket is full, or the system lacks a resource.
            }
        }
        self.discard_sent();
        Ok(())
    }

    fn send_some(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let Some(attached) = &self.attached else {
            return rustix::io::write(socket, &self.bytes[self.sent..]);
        };
        if self.sent < attached.start {
            return rustix::io::write(socket, &self.bytes[self.sent..attached.start]);
        }
        let descriptors: Vec<_> = attached.descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let frame = IoSlice::new(&self.bytes[attached.start..attached.end]);
        let count = sendmsg(socket, &[frame], &mut ancillary, SendFlags::empty())?;
        self.attached = None; // They were sent with the first byte.
        Ok(count)
    }

    /// Moves the unsent bytes to the front once they are the smaller part.
    fn compact(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.discard_sent();
        }
    }

    fn discard_sent(&mut self) {
        if self.attached.is_none() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests;
