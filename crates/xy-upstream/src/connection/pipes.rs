//! The transport to a stdio server: moves bytes between its pipes and its [`Connection`].
//!
//! Input is handled in place, in one buffer that all servers share. Only an incomplete last line is
//! copied.
//!
//! Output is gathered for one turn of the runtime, and written in as few writes as possible. A
//! daemon that is killed never leaves a message half written unannounced.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use xy_protocol::framing::{Line, LineSplitter};
use xy_supervisor::protocol::DriverEvent;
use xy_transport::chunks::Chunks;
use xy_transport::large::{self, LARGE_THRESHOLD};
use xy_transport::message_text::MAX_MESSAGE;
use xy_transport::pace::Pace;
use xy_transport::scratch::{READ_BYTES, with_scratch};

use super::Connection;
use super::assembler::{Assembler, Step};
use super::wire::Wire;
use super::write_buffer::{ATOMIC, Block, WriteBuffer};

/// Maximum size of one write of a long message before other tasks run, unless the pipe holds more.
const MAX_WRITE: usize = 64 * 1024;

/// The transport to a stdio server.
pub struct Pipes {
    out: RefCell<WriteBuffer>,
    /// Signals that there is something to write.
    flush: Notify,
    /// The server's stdin, until the transport is closed.
    stdin: RefCell<Option<Rc<pipe::Sender>>>,
    /// The server's stdout, split into lines.
    lines: RefCell<LineSplitter>,
    /// A large line, which is parsed on another thread, and the lines after it.
    queued_lines: RefCell<VecDeque<Bytes>>,
    /// Lines that may be one message together.
    assembler: RefCell<Assembler>,
    /// A write is under way that could tear a message, or that has to keep its turn.
    is_writing: Cell<bool>,
    is_closed: Cell<bool>,
    /// Offset from which nothing was read, or ever will be.
    unread_from: Cell<Option<u64>>,
    /// The reading end of stdin, kept while the server is being ended.
    #[cfg(target_os = "linux")]
    rest: RefCell<Option<OwnedFd>>,
    driver_events: mpsc::Sender<DriverEvent>,
}

impl Wire for Pipes {
    fn put(&self, _call: Option<u64>, write: &mut dyn FnMut(&mut Chunks)) -> u64 {
        self.out.borrow_mut().append(write)
    }

    /// Writes the output at once if the server has no other call, as there is nothing to gather.
    /// Otherwise lets the writing task do it, together with what other clients send.
    fn flush(&self, is_alone: bool) {
        if !(is_alone && self.write_now()) {
            self.flush.notify_one();
        }
    }

    fn is_written(&self, offset: u64) -> bool {
        offset < self.out.borrow().written()
    }

    fn unread_from(&self) -> Option<u64> {
        self.unread_from.get()
    }

    #[cfg(target_os = "linux")]
    fn read_up_to(&self) -> Option<u64> {
        let stdin = self.stdin.borrow();
        let unread = rustix::io::ioctl_fionread(stdin.as_ref()?.as_fd()).ok()?;
        // Part of the unread bytes may be from an earlier daemon.
        Some(self.out.borrow().written().saturating_sub(unread))
    }

    fn waiting(&self) -> usize {
        self.out.borrow().len()
    }

    fn retained(&self) -> usize {
        self.out.borrow().messages()
    }

    fn close(&self) {
        self.is_closed.set(true);
        if let Some(stdin) = self.stdin.take() {
            self.look_at_rest(&stdin);
        }
    }
}

impl Pipes {
    /// Creates the transport to a server with this `stdin`.
    pub fn new(stdin: &Rc<pipe::Sender>, driver_events: mpsc::Sender<DriverEvent>) -> Rc<Self> {
        Rc::new(Self {
            out: RefCell::default(),
            flush: Notify::new(),
            stdin: RefCell::new(Some(stdin.clone())),
            lines: RefCell::new(LineSplitter::new(MAX_MESSAGE)),
            queued_lines: RefCell::default(),
            assembler: RefCell::default(),
            is_writing: Cell::new(false),
            is_closed: Cell::new(false),
            unread_from: Cell::new(None),
            #[cfg(target_os = "linux")]
            rest: RefCell::default(),
            driver_events,
        })
    }

    /// Determines what the server has left unread, once it and all its processes are dead.
    #[cfg(target_os = "linux")]
    pub fn mark_dead(&self) {
        if let Some(rest) = self.rest.take() {
            self.settle(&rest);
        }
    }

    /// Does nothing: the system does not tell what was read.
    #[cfg(not(target_os = "linux"))]
    pub fn mark_dead(&self) {}

    /// Determines what the server has left unread, as nothing more is written.
    ///
    /// A living server may still read before it ends. Then a reading end of the pipe is kept for a
    /// later look. Unlike a writing end, it does not hide from the server that its stdin is closed.
    #[cfg(target_os = "linux")]
    fn look_at_rest(&self, stdin: &pipe::Sender) {
        if has_no_reader(stdin) {
            self.settle(stdin);
        } else {
            *self.rest.borrow_mut() = other_end(stdin);
        }
    }

    /// Does nothing: the system does not tell what was read.
    #[cfg(not(target_os = "linux"))]
    fn look_at_rest(&self, _stdin: &pipe::Sender) {}

    /// Records that the bytes that are in this pipe now will never be read.
    #[cfg(target_os = "linux")]
    fn settle(&self, pipe: &impl AsFd) {
        if let Ok(unread) = rustix::io::ioctl_fionread(pipe) {
            let written = self.out.borrow().written();
            // Part of the unread bytes may be from an earlier daemon.
            self.unread_from.set(Some(written.saturating_sub(unread)));
        }
    }

    /// Reads until the server closes its stdout. Cancel-safe: nothing that was read is lost.
    pub async fn read_all(
        &self,
        connection: &Rc<Connection>,
        mut stdout: pipe::Receiver,
    ) -> io::Result<()> {
        loop {
            self.handle_queued(connection).await;
            let mut length = 0;
            let read = poll_fn(|context| {
                with_scratch(|scratch| {
                    let mut buffer = ReadBuf::new(scratch);
                    Pin::new(&mut stdout).poll_read(context, &mut buffer).map_ok(|()| {
                        length = buffer.filled().len();
                        self.take(connection, buffer.filled());
                        !buffer.filled().is_empty()
                    })
                })
            });
            let is_more = tokio::select! {
                biased;
                read = read => read?,
                () = self.until_overdue() => {
                    self.release_held(connection);
                    true
                }
            };
            if !is_more {
                break;
            }
            connection.log_unparsed().await;
            if length == READ_BYTES {
                connection.pace().give_way(length).await;
            }
        }
        self.release_held(connection);
        let rest = self.take_partial();
        connection.unparsed(&rest);
        connection.log_unparsed().await;
        Ok(())
    }

    /// Handles bytes from the server, line by line.
    pub fn take(&self, connection: &Rc<Connection>, mut bytes: &[u8]) {
        connection.record_read();
        let mut lines = self.lines.borrow_mut();
        while let Some(line) = lines.next_line(&mut bytes) {
            match line {
                Line::Whole(line) if self.must_wait(line) => {
                    let line = Bytes::copy_from_slice(line);
                    self.queued_lines.borrow_mut().push_back(line);
                }
                Line::Whole(line) => self.take_whole(connection, line),
                Line::TooLong(head) => {
                    self.release_held(connection);
                    connection.too_long(head);
                }
            }
        }
    }

    /// Returns true if a line is large, or stands behind one that is.
    fn must_wait(&self, line: &[u8]) -> bool {
        let is_large = line.len() > LARGE_THRESHOLD && self.assembler.borrow().is_empty();
        is_large || !self.queued_lines.borrow().is_empty()
    }

    /// Handles the queued lines. Cancel-safe: a line leaves the queue when it is handled.
    async fn handle_queued(&self, connection: &Rc<Connection>) {
        loop {
            let Some(line) = self.queued_lines.borrow().front().cloned() else { return };
            if line.len() <= LARGE_THRESHOLD || !self.assembler.borrow().is_empty() {
                self.take_whole(connection, &line);
            } else {
                let may_begin =
                    |line: &[u8]| self.assembler.borrow_mut().begin(line, Instant::now());
                connection.handle_large_unless(line, None, may_begin).await;
            }
            let handled = self.queued_lines.borrow_mut().pop_front();
            handled.into_iter().for_each(large::free);
            connection.log_unparsed().await;
        }
    }

    /// Handles the queued lines on this thread, for a server that has ended: there is no time for
    /// another thread.
    pub fn handle_rest(&self, connection: &Rc<Connection>) {
        while let Some(line) = self.queued_lines.borrow_mut().pop_front() {
            self.take_whole(connection, &line);
        }
    }

    fn take_whole(&self, connection: &Rc<Connection>, line: &[u8]) {
        if self.assembler.borrow().is_empty() {
            self.take_line(connection, line);
        } else {
            self.take_next(connection, line);
        }
    }

    /// Handles a line that is a message, or may begin one.
    fn take_line(&self, connection: &Rc<Connection>, line: &[u8]) {
        let may_begin = |line: &[u8]| self.assembler.borrow_mut().begin(line, Instant::now());
        connection.handle_unless(line, None, may_begin);
    }

    /// Handles a line that may continue held lines.
    fn take_next(&self, connection: &Rc<Connection>, line: &[u8]) {
        let step = self.assembler.borrow_mut().go_on(line);
        match step {
            Step::Held => {}
            Step::Whole(text) => connection.handle_lines(text),
            Step::NotMessage(lines) => {
                handle_each(connection, &lines);
                self.take_line(connection, line);
            }
        }
    }

    /// Handles held lines one by one, as they are no message together.
    fn release_held(&self, connection: &Rc<Connection>) {
        let held = self.assembler.borrow_mut().give_up();
        handle_each(connection, &held);
    }

    /// Waits until the held lines are overdue. Never resolves if none are held.
    async fn until_overdue(&self) {
        let overdue_at = self.assembler.borrow().overdue_at();
        match overdue_at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Returns true if the server has read everything that was written, as far as the system tells.
    pub fn is_all_read(&self) -> bool {
        let is_read = |stdin: &Rc<pipe::Sender>| !has_unread(stdin);
        self.out.borrow().len() == 0 && self.stdin.borrow().as_ref().is_none_or(is_read)
    }

    /// Writes everything if the pipe takes it at once. Returns true if it did.
    fn write_now(&self) -> bool {
        let Some(stdin) = self.stdin.borrow().clone() else { return false };
        let mut out = self.out.borrow_mut();
        let all = out.len();
        if self.is_writing.get() || out.is_amid() || all > ATOMIC {
            return false;
        }
        let is_written = stdin.try_write(out.bytes()).is_ok_and(|written| written == all);
        if is_written {
            out.wrote(all);
        }
        is_written
    }

    /// Writes output until the pipe fails. Must not be dropped while a message that should arrive
    /// is half written.
    ///
    /// `begun` gets the offset of each message that exceeds the pipe's capacity, once it is written
    /// and the server has read some of it.
    pub async fn write_all(
        &self,
        stdin: &pipe::Sender,
        pace: &Pace,
        begun: impl Fn(u64),
    ) -> io::Result<()> {
        let capacity = capacity(stdin);
        loop {
            self.flush.notified().await;
            // Other ready tasks may have something to write too.
            tokio::task::yield_now().await;
            while let Some(block) = self.next_block(stdin, capacity) {
                self.is_writing.set(true);
                match block {
                    Block::AtOnce(bytes) => {
                        self.write_block(stdin, bytes, (capacity, pace)).await?;
                    }
                    Block::InParts(bytes) => {
                        let offset = self.out.borrow().written();
                        self.announce().await;
                        self.write_block(stdin, bytes, (capacity, pace)).await?;
                        if bytes > capacity && self.is_written(offset) && is_begun(stdin, bytes) {
                            begun(offset);
                        }
                        self.report(DriverEvent::WriteEnds).await;
                    }
                }
                self.is_writing.set(false);
            }
        }
    }

    fn next_block(&self, stdin: &pipe::Sender, capacity: usize) -> Option<Block> {
        let out = self.out.borrow();
        if self.is_closed.get() && !out.is_amid() {
            return None; // A begun message is completed, and no other is begun.
        }
        // The system is only asked if the result can make a difference.
        let room = if out.len() > ATOMIC && is_empty(stdin) { capacity } else { 0 };
        out.next(room)
    }

    /// Writes the next `left` bytes, which are at least one. A single write is limited to about the
    /// capacity of an empty pipe: the kernel would go on for as long as the server reads.
    async fn write_block(
        &self,
        stdin: &pipe::Sender,
        mut left: usize,
        (capacity, pace): (usize, &Pace),
    ) -> io::Result<()> {
        loop {
            stdin.writable().await?;
            let written = match self.write_some(stdin, left.min(capacity.max(MAX_WRITE))) {
                Ok(written) if written == left => return Ok(()),
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => return Err(error),
            };
            left -= written;
            // A server that reads fast always leaves room.
            pace.give_way(written).await;
        }
    }

    /// Writes at most `most` bytes. Fails with `NotConnected` if the transport is closed between
    /// two messages.
    fn write_some(&self, stdin: &pipe::Sender, most: usize) -> io::Result<usize> {
        let mut out = self.out.borrow_mut();
        if self.is_closed.get() && !out.is_amid() {
            // The callers of unwritten messages have already got errors that say so.
            return Err(io::ErrorKind::NotConnected.into());
        }
        let bytes = out.bytes();
        let written = stdin.try_write(&bytes[..most.min(bytes.len())])?;
        out.wrote(written);
        Ok(written)
    }

    /// Announces to the shim that a message may be torn, and waits until it knows.
    async fn announce(&self) {
        let (known, is_known) = oneshot::channel();
        self.report(DriverEvent::WriteBegins(known)).await;
        let _ = is_known.await; // Without a supervisor no daemon can adopt the server either.
    }

    async fn report(&self, event: DriverEvent) {
        let _ = self.driver_events.send(event).await; // The receiver may be gone.
    }

    /// Returns true if a message is being written, or announced.
    pub fn is_amid_writing(&self) -> bool {
        self.is_writing.get()
    }

    /// Returns input that is no complete line yet, or not yet known to be a message.
    pub fn take_partial(&self) -> Vec<u8> {
        let mut partial = self.assembler.borrow_mut().give_up();
        if !partial.is_empty() {
            partial.push(b'\n');
        }
        for line in self.queued_lines.borrow_mut().drain(..) {
            partial.extend_from_slice(&line);
            partial.push(b'\n');
        }
        partial.append(&mut self.lines.borrow_mut().take_partial());
        partial
    }
}

fn handle_each(connection: &Rc<Connection>, lines: &[u8]) {
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        connection.handle(line, None);
    }
}

/// Returns how much an empty pipe takes at once.
#[cfg(target_os = "linux")]
fn capacity(pipe: &pipe::Sender) -> usize {
    rustix::pipe::fcntl_getpipe_size(pipe.as_fd()).unwrap_or(ATOMIC)
}

#[cfg(target_os = "linux")]
fn is_empty(pipe: &pipe::Sender) -> bool {
    rustix::io::ioctl_fionread(pipe.as_fd()).is_ok_and(|unread| unread == 0)
}

/// Returns true if no process holds the reading end of the pipe, so that nothing will ever be read.
#[cfg(target_os = "linux")]
fn has_no_reader(pipe: &pipe::Sender) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut polled = [PollFd::new(pipe, PollFlags::empty())];
    let at_once = Timespec::default();
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

/// Opens the reading end of a pipe, if the system still provides it.
#[cfg(target_os = "linux")]
fn other_end(pipe: &pipe::Sender) -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};

    let path = format!("/proc/self/fd/{}", pipe.as_fd().as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Returns true if the pipe holds unread bytes.
#[cfg(target_os = "linux")]
fn has_unread(pipe: &pipe::Sender) -> bool {
    rustix::io::ioctl_fionread(pipe.as_fd()).is_ok_and(|unread| unread > 0)
}

/// Returns false: the writing end does not tell on this system.
#[cfg(not(target_os = "linux"))]
fn has_unread(_pipe: &pipe::Sender) -> bool {
    false
}

/// Returns true if the server has read some of the last message in the pipe, which has this size
/// and is completely written.
#[cfg(target_os = "linux")]
fn is_begun(pipe: &pipe::Sender, bytes: usize) -> bool {
    rustix::io::ioctl_fionread(pipe.as_fd()).is_ok_and(|unread| unread < bytes as u64)
}

/// Returns true: the writing end does not tell on this system, so the message may have been read.
#[cfg(not(target_os = "linux"))]
fn is_begun(_pipe: &pipe::Sender, _bytes: usize) -> bool {
    true
}

#[cfg(not(target_os = "linux"))]
fn capacity(_pipe: &pipe::Sender) -> usize {
    ATOMIC
}

/// Returns false: the writing end does not tell on this system.
#[cfg(not(target_os = "linux"))]
fn is_empty(_pipe: &pipe::Sender) -> bool {
    false
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
