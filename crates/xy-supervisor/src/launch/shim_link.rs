//! The daemon's end of the conversation with one shim: frames in, frames out.
//!
//! Log frames go straight to the book; reports are handed on. One read buffer per
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

/// What one read takes.
const READ_BYTES: usize = 64 * 1024;

/// Descriptors that may come with one message.
const MAX_FDS: usize = 2;

/// While more than this waits to be sent, nothing is added that can wait elsewhere.
const ROOM: usize = 1024 * 1024;

/// What one frame of stray output holds.
const STRAY_BYTES: usize = wire::MAX_FRAME / 2;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Runs `read` on this thread's buffer.
fn with_scratch<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| read(scratch))
}

/// What a wait for the shim brought.
#[derive(Debug)]
pub(super) enum Heard {
    /// It told something.
    Report(Report),
    /// It has heard so much that there is room again for more.
    Room,
    /// It is gone.
    End,
}

#[derive(Debug)]
pub(super) struct ShimLink {
    stream: UnixStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    /// What an earlier daemon left with the shim.
    note: Vec<u8>,
    /// What stdout said while no daemon was there.
    unread: Vec<u8>,
    /// How much has ever been sent.
    sent: u64,
    /// Who wants to know when so much has been.
    awaited: VecDeque<(u64, oneshot::Sender<()>)>,
}

impl ShimLink {
    /// A link on which `first` is to be sent.
    pub(super) fn new(stream: UnixStream, first: Vec<u8>) -> Self {
        Self {
            stream,
            inbox: Vec::new(),
            outbox: first,
            fds: VecDeque::new(),
            note: Vec::new(),
            unread: Vec::new(),
            sent: 0,
            awaited: VecDeque::new(),
        }
    }

    pub(super) fn queue(&mut self, order: &Order) {
        wire::put_order(&mut self.outbox, order).expect("all orders but the first are short");
    }

    /// Queues an order; `sent` is told once the shim will hear it whatever becomes of us.
    pub(super) fn queue_then(&mut self, order: &Order, sent: oneshot::Sender<()>) {
        self.queue(order);
        self.awaited.push_back((self.sent + self.outbox.len() as u64, sent));
    }

    /// Whether what could wait elsewhere need not.
    pub(super) fn has_room(&self) -> bool {
        self.outbox.len() < ROOM
    }

    /// Queues output that was no protocol, for the log.
    pub(super) fn put_stray(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(STRAY_BYTES) {
            wire::put_stray(&mut self.outbox, part);
        }
    }

    /// Gives back what could not be used yet of stdout; all the rest of it has been.
    pub(super) fn give_back(&mut self, unread: &[u8]) {
        wire::put_all_read(&mut self.outbox);
        wire::put_unread(&mut self.outbox, unread);
    }

    /// What stdout said while no daemon was there.
    pub(super) fn take_unread(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unread)
    }

    /// Leaves a note for a later daemon.
    pub(super) fn leave_note(&mut self, note: &[u8]) {
        wire::put_note(&mut self.outbox, note);
    }

    /// The note that an earlier daemon left.
    pub(super) fn take_note(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.note)
    }

    /// Says everything that is queued, then goodbye; resolves when the shim has heard it.
    pub(super) async fn leave(&mut self, logs: &LogBook) -> io::Result<()> {
        while !self.outbox.is_empty() {
            self.stream.writable().await?;
            self.send_some()?;
        }
        self.hang_up();
        while !matches!(self.next(logs).await?, Heard::End) {}
        Ok(())
    }

    /// How many descriptors have come and not been taken.
    pub(super) fn descriptors(&self) -> usize {
        self.fds.len()
    }

    /// A descriptor that came with a report.
    pub(super) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }

    /// Tells the shim that nobody is here any more.
    pub(super) fn hang_up(&self) {
        // A link that is already broken needs no hanging up.
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write);
    }

    /// Sends what is queued and waits for the next report.
    ///
    /// Cancel-safe: what was read and not returned is still in the inbox.
    pub(super) async fn next(&mut self, logs: &LogBook) -> io::Result<Heard> {
        loop {
            if let Some(report) = self.take_report(logs)? {
                return Ok(Heard::Report(report));
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
                    return Ok(Heard::Room);
                }
            }
            if ready.is_readable() && self.receive_some()? == Some(0) {
                return Ok(Heard::End);
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
                // The shim is going; what it still said is to be read.
                self.outbox = Vec::new();
                self.awaited.clear();
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn on_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        while let Some((_, sent)) = self.awaited.pop_front_if(|(until, _)| *until <= self.sent) {
            let _ = sent.send(()); // Whoever asked may have left.
        }
    }

    /// How much came; `None` if nothing was there after all.
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
                        fds.extend(received.map(private));
                    }
                }
                inbox.extend_from_slice(&scratch[..got.bytes]);
                Ok(got.bytes)
            })
        });
        match received {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The shim was killed with words of ours unread: that is its end.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// Takes whole frames off the inbox up to the first report.
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
                Frame::Order(_) | Frame::Stray(_) => {
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

#[cfg(target_os = "linux")]
pub(super) fn receive_flags() -> RecvFlags {
    RecvFlags::CMSG_CLOEXEC
}

#[cfg(not(target_os = "linux"))]
pub(super) fn receive_flags() -> RecvFlags {
    RecvFlags::empty() // There is no such flag; each descriptor is marked when it is taken.
}

/// A descriptor that no shim shall inherit: it would keep a server's stdin open.
pub(super) fn private(fd: OwnedFd) -> OwnedFd {
    // It can only fail for a descriptor that is not open.
    let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
    fd
}
