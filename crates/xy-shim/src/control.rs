//! The connection to the daemon: frames in, frames out, never waiting for it.
//!
//! The daemon may read slowly or not at all. Reports are kept for it however long that
//! takes (there are few); log batches only while there is room. Once the daemon is gone,
//! everything for it is forgotten at once.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::clock;
use crate::wire::{self, Frame, Order, Report};

/// Batches are dropped while more than this waits for the daemon.
const ROOM: usize = 1024 * 1024;

/// What a quiet connection keeps allocated.
const KEPT: usize = 4 * 1024;

/// Both directions of the connection.
#[derive(Debug)]
pub(crate) struct Control {
    /// `None` once the daemon is gone.
    socket: Option<OwnedFd>,
    inbox: Inbox,
    pub(crate) outbox: Outbox,
}

/// Bytes of frames that are not whole yet.
#[derive(Debug, Default)]
struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
}

/// Frames on their way to the daemon.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    attached: Option<Attached>,
    is_bottomless: bool,
    is_closed: bool,
}

/// Descriptors that travel with one frame, and with no byte of another.
#[derive(Debug)]
struct Attached {
    begins: usize,
    ends: usize,
    /// One or two.
    descriptors: Vec<OwnedFd>,
}

/// What a daemon says that is no order.
#[derive(Debug)]
pub(crate) enum Said<'a> {
    /// Output that was no protocol.
    Stray(&'a [u8]),
    /// To be kept for a daemon that comes later.
    Note(&'a [u8]),
    /// Output that it could not use yet.
    Unread(&'a [u8]),
}

impl Control {
    /// `socket` must be non-blocking.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket: Some(socket), inbox: Inbox::default(), outbox: Outbox::default() }
    }

    /// A connection to somebody who is told nothing yet.
    pub(crate) fn silent(socket: OwnedFd) -> Self {
        Self { outbox: Outbox::closed(), ..Self::new(socket) }
    }

    /// From here on it is told everything.
    pub(crate) fn speak_up(&mut self) {
        self.outbox = Outbox::default();
    }

    /// What to poll for; nothing once the daemon is gone.
    pub(crate) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let socket = self.socket.as_ref()?.as_fd();
        let writing = if self.outbox.waiting() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        Some((socket, PollFlags::IN | writing))
    }

    /// Whether the daemon has hung up, or is no longer understood.
    pub(crate) fn is_gone(&self) -> bool {
        self.socket.is_none()
    }

    /// Reads once. `chunk` is where the bytes pass through.
    pub(crate) fn read(&mut self, chunk: &mut [u8]) {
        let Some(socket) = &self.socket else { return };
        match rustix::io::read(socket, &mut *chunk) {
            Ok(0) => self.hang_up(),
            Ok(count) => self.inbox.bytes.extend_from_slice(&chunk[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.hang_up(),
        }
    }

    /// The next order that has come; what was said before it goes to `hear`.
    pub(crate) fn next_order(
        &mut self,
        mut hear: impl FnMut(Said<'_>, &mut Outbox),
    ) -> Option<Order> {
        loop {
            let (frame, length) = match wire::parse(&self.inbox.bytes[self.inbox.taken..]) {
                Ok(Some(parsed)) => parsed,
                Ok(None) => {
                    self.inbox.forget_taken();
                    return None;
                }
                Err(_) => {
                    self.hang_up();
                    return None;
                }
            };
            let said = match frame {
                Frame::Order(order) => Err(order),
                Frame::Stray(bytes) => Ok(Said::Stray(bytes)),
                Frame::Note(bytes) => Ok(Said::Note(bytes)),
                Frame::Unread(bytes) => Ok(Said::Unread(bytes)),
                // These are words of ours: the other side is no daemon.
                Frame::Report(_) | Frame::Log { .. } => {
                    self.hang_up();
                    return None;
                }
            };
            self.inbox.taken += length;
            match said {
                Err(order) => return Some(order),
                Ok(said) => hear(said, &mut self.outbox),
            }
        }
    }

    /// Sends what the daemon takes now.
    pub(crate) fn flush(&mut self) {
        let Some(socket) = &self.socket else { return };
        if self.outbox.send(socket.as_fd()).is_err() {
            self.outbox = Outbox::closed(); // What it said before it left is still to be read.
        }
    }

    /// Sends everything, unless the daemon takes longer than this to read it.
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

    /// Gives memory back after a burst.
    pub(crate) fn trim(&mut self) {
        self.inbox.forget_taken();
        self.inbox.bytes.shrink_to(KEPT);
        self.outbox.forget_sent();
        self.outbox.bytes.shrink_to(KEPT);
    }

    /// Forgets the daemon, and everything that was for it.
    pub(crate) fn hang_up(&mut self) {
        self.socket = None;
        self.inbox = Inbox::default();
        self.outbox = Outbox::closed();
    }
}

impl Inbox {
    fn forget_taken(&mut self) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
    }
}

impl Outbox {
    fn closed() -> Self {
        Self { is_closed: true, ..Self::default() }
    }

    /// Puts a report, which is never dropped.
    pub(crate) fn put_report(&mut self, report: &Report) {
        if !self.is_closed {
            wire::put_report(&mut self.bytes, report);
        }
    }

    /// Puts what was left for a later daemon, and what stdout said meanwhile.
    pub(crate) fn put_heritage(&mut self, note: &[u8], unread: &[u8]) {
        if !self.is_closed {
            wire::put_note(&mut self.bytes, note);
            wire::put_unread(&mut self.bytes, unread);
        }
    }

    /// Puts a report that carries descriptors; once to each daemon.
    pub(crate) fn put_report_with(&mut self, report: &Report, descriptors: Vec<OwnedFd>) {
        let begins = self.bytes.len();
        self.put_report(report);
        if self.is_closed || descriptors.is_empty() {
            return;
        }
        self.attached = Some(Attached { begins, ends: self.bytes.len(), descriptors });
    }

    /// Puts a batch, if there is room; a daemon that is gone has all the room.
    pub(crate) fn put_log(&mut self, next_seq: u64, batch: &[u8]) -> bool {
        if self.is_closed {
            return true;
        }
        if self.waiting() > ROOM && !self.is_bottomless {
            return false;
        }
        self.make_space();
        wire::put_log(&mut self.bytes, next_seq, batch);
        true
    }

    /// From here on there is always room: only the end is still to come.
    pub(crate) fn take_everything(&mut self) {
        self.is_bottomless = true;
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
                Err(_) => return Ok(()), // No room, or the system is short of something.
            }
        }
        self.forget_sent();
        Ok(())
    }

    fn send_some(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let Some(attached) = &self.attached else {
            return rustix::io::write(socket, &self.bytes[self.sent..]);
        };
        if self.sent < attached.begins {
            return rustix::io::write(socket, &self.bytes[self.sent..attached.begins]);
        }
        let descriptors: Vec<_> = attached.descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let frame = IoSlice::new(&self.bytes[attached.begins..attached.ends]);
        let count = sendmsg(socket, &[frame], &mut ancillary, SendFlags::empty())?;
        self.attached = None; // They went with the first byte.
        Ok(count)
    }

    /// Moves what waits to the front once that is the smaller part.
    fn make_space(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.forget_sent();
        }
    }

    fn forget_sent(&mut self) {
        if self.attached.is_none() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests;
