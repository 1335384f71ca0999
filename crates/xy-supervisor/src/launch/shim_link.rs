//! The daemon's end of the socket to one shim.
//!
//! Log frames go straight to the log book; reports are returned to the caller. One read buffer per
//! thread serves all links, so an idle server costs almost nothing.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use xy_shim::wire::{self, Frame, Order, Report};

use crate::logs::LogBook;

/// Size of one read.
const READ_BYTES: usize = 64 * 1024;

/// Maximum number of descriptors in one message.
const MAX_FDS: usize = 2;

/// Outbox size from which nothing is added that can wait elsewhere.
const OUTBOX_LIMIT: usize = 1024 * 1024;

/// Size of the output in one frame of unparsed output.
const UNPARSED_CHUNK_BYTES: usize = wire::MAX_FRAME / 2;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Runs `read` with this thread's buffer.
fn with_scratch<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| read(scratch))
}

/// The result of waiting for the shim.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// The shim has sent a report.
    Report(Report),
    /// The outbox has fallen below its limit.
    Writable,
    /// The shim has closed the connection.
    Closed,
}

#[derive(Debug)]
pub(super) struct ShimLink {
    stream: UnixStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    /// The note that an earlier daemon left with the shim.
    note: Vec<u8>,
    /// Stdout of the server from the time without a daemon.
    unread: Vec<u8>,
    /// Number of bytes ever sent.
    sent: u64,
    /// Notified once that many bytes have been sent.
    sent_waiters: VecDeque<(u64, oneshot::Sender<()>)>,
}

impl ShimLink {
    /// Creates a link that sends `first`.
    pub(super) fn new(stream: UnixStream, first: Vec<u8>) -> Self {
        Self {
            stream,
            inbox: Vec::new(),
            outbox: first,
            fds: VecDeque::new(),
            note: Vec::new(),
            unread: Vec::new(),
            sent: 0,
            sent_waiters: VecDeque::new(),
        }
    }

    pub(super) fn queue(&mut self, order: &Order) {
        wire::put_order(&mut self.outbox, order).expect("all orders but the first are short");
    }

    /// Queues an order. `sent` is notified once the order is in the socket, where the shim reads it
    /// even if this daemon dies.
    pub(super) fn queue_then(&mut self, order: &Order, sent: oneshot::Sender<()>) {
        self.queue(order);
        self.sent_waiters.push_back((self.sent + self.outbox.len() as u64, sent));
    }

    /// Returns true if there is room for data that could wait elsewhere.
    pub(super) fn has_room(&self) -> bool {
        self.outbox.len() < OUTBOX_LIMIT
    }

    /// Queues output that is not protocol, for the log.
    pub(super) fn queue_unparsed(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(UNPARSED_CHUNK_BYTES) {
            wire::put_unparsed_output(&mut self.outbox, part);
        }
    }

    /// Returns the stdout that could not be used yet. The shim may discard all earlier stdout.
    pub(super) fn return_unread(&mut self, unread: &[u8]) {
        wire::put_all_read(&mut self.outbox);
        wire::put_unread(&mut self.outbox, unread);
    }

    /// Takes the stdout of the server from the time without a daemon.
    pub(super) fn take_unread(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unread)
    }

    /// Leaves a note for a later daemon.
    pub(super) fn leave_note(&mut self, note: &[u8]) {
        wire::put_note(&mut self.outbox, note);
    }

    /// Takes the note that an earlier daemon left.
    pub(super) fn take_note(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.note)
    }

    /// Sends everything that is queued and closes the sending side. Resolves when the shim has
    /// received it.
    pub(super) async fn detach(&mut self, logs: &LogBook) -> io::Result<()> {
        while !self.outbox.is_empty() {
            self.stream.writable().await?;
            self.send_some()?;
        }
        self.hang_up();
        while !matches!(self.next(logs).await?, LinkEvent::Closed) {}
        Ok(())
    }

    /// Returns how many received descriptors have not been taken.
    pub(super) fn descriptors(&self) -> usize {
        self.fds.len()
    }

    /// Takes a descriptor that came with a report.
    pub(super) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }

    /// Tells the shim that this daemon detaches.
    pub(super) fn hang_up(&self) {
        // Fails only on a link that is already broken.
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write);
    }

    /// Sends what is queued and waits for the next report.
    ///
    /// Cancel-safe: data that was read and not returned is still in the inbox.
    pub(super) async fn next(&mut self, logs: &LogBook) -> io::Result<LinkEvent> {
        loop {
            if let Some(report) = self.take_report(logs)? {
                return Ok(LinkEvent::Report(report));
            }
            let interest = if self.outbox.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            let ready = self.stream.ready(interest).await?;
            if ready.is_writable() && !self.outbox.is_empty() {
                let had_room = self.has_room();
                self.send_some()?;
                if !had_room && self.has_room() {
                    return Ok(LinkEvent::Writable);
                }
            }
            if ready.is_readable() && self.receive_some()? == Some(0) {
                return Ok(LinkEvent::Closed);
            }
        }
    }

    fn send_some(&mut self) -> io::Result<()> {
        match self.stream.try_write(&self.outbox) {
            Ok(sent) => {
                if sent == self.outbox.len() {
                    self.outbox = Vec::new();
                } else {
                    self.outbox.drain(..sent);
                }
                self.on_sent(sent);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                // The shim is exiting; its last frames still have to be read.
                self.outbox = Vec::new();
                self.sent_waiters.clear();
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn on_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        while let Some((_, sent)) = self.sent_waiters.pop_front_if(|(until, _)| *until <= self.sent)
        {
            let _ = sent.send(()); // The receiver may be gone.
        }
    }

    /// Returns how many bytes were received, or `None` if there was nothing to read.
    fn receive_some(&mut self) -> io::Result<Option<usize>> {
        let (stream, inbox, fds) = (&self.stream, &mut self.inbox, &mut self.fds);
        let received = stream.try_io(Interest::READABLE, || {
            with_scratch(|scratch| {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut parts = [IoSliceMut::new(scratch)];
                let got = recvmsg(stream, &mut parts, &mut control, receive_flags())?;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = message {
                        fds.extend(received.map(set_cloexec));
                    }
                }
                inbox.extend_from_slice(&scratch[..got.bytes]);
                Ok(got.bytes)
            })
        });
        match received {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The shim was killed with unread data of ours, which is its end.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// Takes whole frames off the inbox, up to the first report.
    fn take_report(&mut self, logs: &LogBook) -> io::Result<Option<Report>> {
        let mut taken = 0;
        let mut report = None;
        while report.is_none() {
            let rest = &self.inbox[taken..];
            let parsed = wire::parse(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let Some((frame, used)) = parsed else { break };
            taken += used;
            match frame {
                Frame::Log { next_seq, batch } => logs.push(next_seq, batch),
                Frame::Report(heard) => report = Some(heard),
                Frame::Note(note) => self.note = note.to_vec(),
                Frame::Unread(bytes) => self.unread.extend_from_slice(bytes),
                Frame::Order(_) | Frame::UnparsedOutput(_) => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the shim gave an order",
                    ));
                }
            }
        }
        if taken == self.inbox.len() {
            self.inbox = Vec::new();
        } else {
            self.inbox.drain(..taken);
        }
        Ok(report)
    }
}

/// Returns the flags to receive descriptors with: close-on-exec, where the system can set it.
#[cfg(target_os = "linux")]
pub fn receive_flags() -> RecvFlags {
    RecvFlags::CMSG_CLOEXEC
}

/// Returns the flags to receive descriptors with: close-on-exec, where the system can set it.
#[cfg(not(target_os = "linux"))]
pub fn receive_flags() -> RecvFlags {
    RecvFlags::empty() // There is no such flag; each descriptor is marked when it is taken.
}

/// Marks a descriptor close-on-exec. A shim that inherited it would keep a server's stdin open.
pub fn set_cloexec(fd: OwnedFd) -> OwnedFd {
    // Fails only for a closed descriptor.
    let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
    fd
}
