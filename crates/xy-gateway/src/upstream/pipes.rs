//! A server that is spoken with over its stdin and stdout: moves the bytes between these and
//! its [`Upstream`].
//!
//! What is read is handled where it was read, in one buffer that all servers share; only
//! the beginning of a line whose end has not come is kept. What is to be written is gathered
//! for one turn of the runtime, and goes out in as few writes as can be without ever leaving
//! a message half written by a daemon that is killed.

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
use xy_ipc::framing::{Line, LineSplitter};
use xy_supervisor::speak::Said;

use super::Upstream;
use super::assembler::{Assembler, Step};
use super::outgoing::{ATOMIC, Block, Outgoing};
use super::wire::{MAX_MESSAGE, Wire};
use crate::chunks::Chunks;
use crate::large::{self, LARGE};

/// What one read takes.
pub(crate) const READ_BYTES: usize = 64 * 1024;

/// What one write of a long message gives, before others have their turn, unless the pipe holds
/// more.
const WRITE_MAX: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Runs `read` on this thread's buffer. What it does with the bytes must not read again.
pub(crate) fn with_scratch<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| read(scratch))
}

/// The way to a stdio server.
pub(crate) struct Pipes {
    out: RefCell<Outgoing>,
    /// There is something to write.
    flush: Notify,
    /// Where it is written, while it can be spoken to.
    stdin: RefCell<Option<Rc<pipe::Sender>>>,
    /// What the server says, cut into lines.
    lines: RefCell<LineSplitter>,
    /// A large line and those after it, which wait until it is parsed on another thread.
    later: RefCell<VecDeque<Bytes>>,
    /// Lines that may be one message.
    assembler: RefCell<Assembler>,
    /// Whether something is being written that can be torn, or may be written only in its turn.
    is_writing: Cell<bool>,
    is_closed: Cell<bool>,
    /// From this place on nobody has read, nor will.
    unread_from: Cell<Option<u64>>,
    /// What is left of the pipe of a server that is being ended.
    #[cfg(target_os = "linux")]
    rest: RefCell<Option<OwnedFd>>,
    said: mpsc::Sender<Said>,
}

impl Wire for Pipes {
    fn put(&self, _call: Option<u64>, write: &mut dyn FnMut(&mut Chunks)) -> u64 {
        self.out.borrow_mut().append(write)
    }

    /// Has what there is written: now, if nobody else speaks with this server, as nothing
    /// would gather; else a little later, together with what others say.
    fn flush(&self, is_alone: bool) {
        if !(is_alone && self.write_now()) {
            self.flush.notify_one();
        }
    }

    fn is_written(&self, place: u64) -> bool {
        place < self.out.borrow().written()
    }

    fn unread_from(&self) -> Option<u64> {
        self.unread_from.get()
    }

    #[cfg(target_os = "linux")]
    fn read_up_to(&self) -> Option<u64> {
        let stdin = self.stdin.borrow();
        let unread = rustix::io::ioctl_fionread(stdin.as_ref()?.as_fd()).ok()?;
        // Some of it may be from an earlier daemon.
        Some(self.out.borrow().written().saturating_sub(unread))
    }

    fn waiting(&self) -> usize {
        self.out.borrow().len()
    }

    fn kept(&self) -> usize {
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
    /// The way to a server that hears at `stdin`.
    pub(crate) fn new(stdin: &Rc<pipe::Sender>, said: mpsc::Sender<Said>) -> Rc<Self> {
        Rc::new(Self {
            out: RefCell::default(),
            flush: Notify::new(),
            stdin: RefCell::new(Some(stdin.clone())),
            lines: RefCell::new(LineSplitter::new(MAX_MESSAGE)),
            later: RefCell::default(),
            assembler: RefCell::default(),
            is_writing: Cell::new(false),
            is_closed: Cell::new(false),
            unread_from: Cell::new(None),
            #[cfg(target_os = "linux")]
            rest: RefCell::default(),
            said,
        })
    }

    /// The server is dead, with all that belonged to it.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_dead(&self) {
        if let Some(rest) = self.rest.take() {
            self.settle(&rest);
        }
    }

    /// Nothing tells what it has read.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn is_dead(&self) {}

    /// Nothing more is written. What is in the pipe stays there if nobody can read it. One that
    /// lives may still do so before it ends: then an end of it is kept to look again, an end to
    /// read from, with which the server still hears that its stdin is closed.
    #[cfg(target_os = "linux")]
    fn look_at_rest(&self, stdin: &pipe::Sender) {
        if has_no_reader(stdin) {
            self.settle(stdin);
        } else {
            *self.rest.borrow_mut() = other_end(stdin);
        }
    }

    /// Nothing tells what was read, at this end of a pipe.
    #[cfg(not(target_os = "linux"))]
    fn look_at_rest(&self, _stdin: &pipe::Sender) {}

    /// What is in this pipe now stays there.
    #[cfg(target_os = "linux")]
    fn settle(&self, pipe: &impl AsFd) {
        if let Ok(unread) = rustix::io::ioctl_fionread(pipe) {
            let written = self.out.borrow().written();
            // Some of it may be from an earlier daemon.
            self.unread_from.set(Some(written.saturating_sub(unread)));
        }
    }

    /// Reads until the server closes its stdout. Cancel-safe: nothing that was read is lost.
    pub(crate) async fn read_all(
        &self,
        upstream: &Rc<Upstream>,
        mut stdout: pipe::Receiver,
    ) -> io::Result<()> {
        loop {
            self.hear_later(upstream).await;
            let read = poll_fn(|context| {
                with_scratch(|scratch| {
                    let mut buffer = ReadBuf::new(scratch);
                    Pin::new(&mut stdout).poll_read(context, &mut buffer).map_ok(|()| {
                        self.take(upstream, buffer.filled());
                        !buffer.filled().is_empty()
                    })
                })
            });
            let is_more = tokio::select! {
                biased;
                read = read => read?,
                () = self.until_overdue() => {
                    self.release_held(upstream);
                    true
                }
            };
            if !is_more {
                break;
            }
            upstream.log_unparsed().await;
        }
        self.release_held(upstream);
        let rest = self.take_partial();
        upstream.unparsed(&rest);
        upstream.log_unparsed().await;
        Ok(())
    }

    /// Takes what the server has said, line by line.
    pub(crate) fn take(&self, upstream: &Rc<Upstream>, mut bytes: &[u8]) {
        upstream.was_read();
        let mut lines = self.lines.borrow_mut();
        while let Some(line) = lines.next_line(&mut bytes) {
            match line {
                Line::Whole(line) if self.must_wait(line) => {
                    let line = Bytes::copy_from_slice(line);
                    self.later.borrow_mut().push_back(line);
                }
                Line::Whole(line) => self.take_whole(upstream, line),
                Line::TooLong(head) => {
                    self.release_held(upstream);
                    upstream.too_long(head);
                }
            }
        }
    }

    /// Returns true if a line is large, or stands behind one that is.
    fn must_wait(&self, line: &[u8]) -> bool {
        let is_large = line.len() > LARGE && self.assembler.borrow().is_empty();
        is_large || !self.later.borrow().is_empty()
    }

    /// Handles the lines that wait. Cancel-safe: a line leaves the queue when it is handled.
    async fn hear_later(&self, upstream: &Rc<Upstream>) {
        loop {
            let Some(line) = self.later.borrow().front().cloned() else { return };
            if line.len() <= LARGE || !self.assembler.borrow().is_empty() {
                self.take_whole(upstream, &line);
            } else {
                let may_begin =
                    |line: &[u8]| self.assembler.borrow_mut().begin(line, Instant::now());
                upstream.hear_large_unless(line, None, may_begin).await;
            }
            let heard = self.later.borrow_mut().pop_front();
            heard.into_iter().for_each(large::free);
            upstream.log_unparsed().await;
        }
    }

    /// Handles the lines that wait, on this thread. For a server that has ended: there is no time
    /// for another thread.
    pub(crate) fn hear_rest(&self, upstream: &Rc<Upstream>) {
        while let Some(line) = self.later.borrow_mut().pop_front() {
            self.take_whole(upstream, &line);
        }
    }

    fn take_whole(&self, upstream: &Rc<Upstream>, line: &[u8]) {
        if self.assembler.borrow().is_empty() {
            self.take_line(upstream, line);
        } else {
            self.take_next(upstream, line);
        }
    }

    /// Takes a line that is a message, or may be the beginning of one.
    fn take_line(&self, upstream: &Rc<Upstream>, line: &[u8]) {
        let may_begin = |line: &[u8]| self.assembler.borrow_mut().begin(line, Instant::now());
        upstream.hear_unless(line, None, may_begin);
    }

    /// Takes a line after others that may be the beginning of a message.
    fn take_next(&self, upstream: &Rc<Upstream>, line: &[u8]) {
        let step = self.assembler.borrow_mut().go_on(line);
        match step {
            Step::Held => {}
            Step::Whole(text) => upstream.hear_lines(text),
            Step::NotOne(lines) => {
                hear_each(upstream, &lines);
                self.take_line(upstream, line);
            }
        }
    }

    /// Takes lines one by one that were held in vain.
    fn release_held(&self, upstream: &Rc<Upstream>) {
        let held = self.assembler.borrow_mut().give_up();
        hear_each(upstream, &held);
    }

    /// Resolves when lines have been held for long enough; never, if there are none.
    async fn until_overdue(&self) {
        let overdue_at = self.assembler.borrow().overdue_at();
        match overdue_at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Whether the server has read all that was said to it, as far as anybody can tell.
    pub(crate) fn is_all_read(&self) -> bool {
        let is_read = |stdin: &Rc<pipe::Sender>| !has_unread(stdin);
        self.out.borrow().len() == 0 && self.stdin.borrow().as_ref().is_none_or(is_read)
    }

    /// Writes all there is if the pipe takes it at once.
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

    /// Writes what there is to write, for ever. Must not be dropped amid a message that is
    /// to arrive. `begun` hears the places of messages that no pipe holds whole, once they are
    /// written and the server has read some of them.
    pub(crate) async fn write_all(
        &self,
        stdin: &pipe::Sender,
        begun: impl Fn(u64),
    ) -> io::Result<()> {
        let capacity = capacity(stdin);
        loop {
            self.flush.notified().await;
            // Whatever else is ready now may want to say something too.
            tokio::task::yield_now().await;
            while let Some(block) = self.next_block(stdin, capacity) {
                self.is_writing.set(true);
                match block {
                    Block::AtOnce(bytes) => self.write_block(stdin, bytes, capacity).await?,
                    Block::InParts(bytes) => {
                        let place = self.out.borrow().written();
                        self.announce().await;
                        self.write_block(stdin, bytes, capacity).await?;
                        if bytes > capacity && self.is_written(place) && is_begun(stdin, bytes) {
                            begun(place);
                        }
                        self.say(Said::WriteEnds).await;
                    }
                }
                self.is_writing.set(false);
            }
        }
    }

    fn next_block(&self, stdin: &pipe::Sender, capacity: usize) -> Option<Block> {
        let out = self.out.borrow();
        if self.is_closed.get() && !out.is_amid() {
            return None; // What is begun is finished, and nothing more is begun.
        }
        // Asking the system is only worth it where it can make a difference.
        let room = if out.len() > ATOMIC && is_empty(stdin) { capacity } else { 0 };
        out.next(room)
    }

    /// Writes the next `left` bytes, which are at least one. One write gives about what an empty
    /// pipe holds: the system would go on with more for as long as the server reads.
    async fn write_block(
        &self,
        stdin: &pipe::Sender,
        mut left: usize,
        capacity: usize,
    ) -> io::Result<()> {
        loop {
            stdin.writable().await?;
            match self.write_some(stdin, left.min(capacity.max(WRITE_MAX))) {
                Ok(written) if written == left => return Ok(()),
                Ok(written) => left -= written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => return Err(error),
            }
            // A server that reads fast always leaves room: others have their turn meanwhile.
            tokio::task::yield_now().await;
        }
    }

    /// Writes at most `most` bytes; fails with `NotConnected` if nothing more is to be begun.
    fn write_some(&self, stdin: &pipe::Sender, most: usize) -> io::Result<usize> {
        let mut out = self.out.borrow_mut();
        if self.is_closed.get() && !out.is_amid() {
            // The caller of what waits has been told that it is not written.
            return Err(io::ErrorKind::NotConnected.into());
        }
        let bytes = out.bytes();
        let written = stdin.try_write(&bytes[..most.min(bytes.len())])?;
        out.wrote(written);
        Ok(written)
    }

    /// Lets the shim know that a message may be torn; resolves when it knows.
    async fn announce(&self) {
        let (known, is_known) = oneshot::channel();
        self.say(Said::WriteBegins(known)).await;
        let _ = is_known.await; // Whoever drove it is gone: then nobody can adopt it either.
    }

    async fn say(&self, said: Said) {
        let _ = self.said.send(said).await; // Whoever drove it may be gone.
    }

    /// Whether a message is being written, or said to be.
    pub(crate) fn is_amid_writing(&self) -> bool {
        self.is_writing.get()
    }

    /// What has been read and is no whole line yet, or not yet known to be a message.
    pub(crate) fn take_partial(&self) -> Vec<u8> {
        let mut partial = self.assembler.borrow_mut().give_up();
        if !partial.is_empty() {
            partial.push(b'\n');
        }
        for line in self.later.borrow_mut().drain(..) {
            partial.extend_from_slice(&line);
            partial.push(b'\n');
        }
        partial.append(&mut self.lines.borrow_mut().take_begun());
        partial
    }
}

fn hear_each(upstream: &Rc<Upstream>, lines: &[u8]) {
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        upstream.handle(line, None);
    }
}

/// How much an empty pipe takes at once.
#[cfg(target_os = "linux")]
fn capacity(pipe: &pipe::Sender) -> usize {
    rustix::pipe::fcntl_getpipe_size(pipe.as_fd()).unwrap_or(ATOMIC)
}

#[cfg(target_os = "linux")]
fn is_empty(pipe: &pipe::Sender) -> bool {
    rustix::io::ioctl_fionread(pipe.as_fd()).is_ok_and(|unread| unread == 0)
}

/// Whether nobody holds the end of a pipe from which it is read, and so nobody ever will.
#[cfg(target_os = "linux")]
fn has_no_reader(pipe: &pipe::Sender) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut polled = [PollFd::new(pipe, PollFlags::empty())];
    let at_once = Timespec::default();
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

/// The end of a pipe from which it is read, if the system still gives it out.
#[cfg(target_os = "linux")]
fn other_end(pipe: &pipe::Sender) -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};

    let path = format!("/proc/self/fd/{}", pipe.as_fd().as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Whether something is in the pipe that nobody has read.
#[cfg(target_os = "linux")]
fn has_unread(pipe: &pipe::Sender) -> bool {
    rustix::io::ioctl_fionread(pipe.as_fd()).is_ok_and(|unread| unread > 0)
}

/// Nothing tells, at this end of a pipe.
#[cfg(not(target_os = "linux"))]
fn has_unread(_pipe: &pipe::Sender) -> bool {
    false
}

/// Whether something of the last message in a pipe has been read, which has so many bytes and
/// is written whole.
#[cfg(target_os = "linux")]
fn is_begun(pipe: &pipe::Sender, bytes: usize) -> bool {
    rustix::io::ioctl_fionread(pipe.as_fd()).is_ok_and(|unread| unread < bytes as u64)
}

/// Nothing tells, at this end of a pipe: what is written may have been seen.
#[cfg(not(target_os = "linux"))]
fn is_begun(_pipe: &pipe::Sender, _bytes: usize) -> bool {
    true
}

#[cfg(not(target_os = "linux"))]
fn capacity(_pipe: &pipe::Sender) -> usize {
    ATOMIC
}

/// Nothing tells, at this end of a pipe.
#[cfg(not(target_os = "linux"))]
fn is_empty(_pipe: &pipe::Sender) -> bool {
    false
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
