//! Copies messages from the client to the daemon, from stdin to socket.
//!
//! Without a daemon, messages are queued here up to a limit; then stdin is not read any more.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use rustix::event::{PollFd, PollFlags, poll};
use xy_mcp::envelope::{Message, parse};
use xy_protocol::error::{CallError, ErrorKind};

use xy_mcp::head::Head;

use super::SessionEvent;
use super::batch::{MAX_MESSAGE, WriteBatch, read_some};
use super::bridge::{Bridge, Turn};
use super::ledger::{LineAction, LineNo, error_response};
use super::lines::{Lines, line_ranges};
use super::recording::Origin;
use crate::failure::Failure;

/// Maximum number of bytes that wait for a daemon.
const MAX_QUEUED_INPUT: usize = 16 * 1024 * 1024;

/// Number of bytes at the start of an oversized message that are searched for its id.
const HEAD_LENGTH: usize = 4096;

#[derive(Debug)]
pub(super) struct Upward {
    bridge: Arc<Bridge>,
    event_sender: SyncSender<SessionEvent>,
    lines: Lines,
    batch: WriteBatch,
    /// Number of buffered bytes that were handled before but could not be written.
    resent_bytes: usize,
    /// True while the rest of an oversized message is skipped.
    is_skipping: bool,
    has_ended: bool,
}

impl Upward {
    pub(super) fn new(bridge: Arc<Bridge>, event_sender: SyncSender<SessionEvent>) -> Self {
        Self {
            bridge,
            event_sender,
            lines: Lines::new(),
            batch: WriteBatch::default(),
            resent_bytes: 0,
            is_skipping: false,
            has_ended: false,
        }
    }

    /// Copies messages until the client has closed stdin.
    pub(super) fn run(mut self) {
        match self.run_loop() {
            Ok(()) => {
                self.bridge.set_client_done();
                self.tell(SessionEvent::ClientDone);
            }
            Err(failure) => {
                self.tell(SessionEvent::Ended { result: Err(failure), is_informed: true });
            }
        }
    }

    fn run_loop(&mut self) -> Result<(), Failure> {
        let stdin = rustix::stdio::stdin();
        loop {
            let all_gone = self.forward()?;
            if all_gone && self.has_ended {
                self.lines.put(&self.bridge.leave_messages());
                if self.lines.whole().is_empty() {
                    return Ok(());
                }
                continue;
            }
            if (all_gone || self.wait(stdin)) && !self.has_ended {
                self.read(stdin)?;
            }
        }
    }

    /// Waits until the connection state changes or stdin has input; returns true for input.
    fn wait(&self, stdin: BorrowedFd<'_>) -> bool {
        let mut polled = vec![PollFd::from_borrowed_fd(self.bridge.wake_receiver(), PollFlags::IN)];
        if !self.has_ended && self.lines.held() < MAX_QUEUED_INPUT {
            polled.push(PollFd::from_borrowed_fd(stdin, PollFlags::IN));
        }
        if poll(&mut polled, None).is_err() {
            return false; // Interrupted: the caller waits again.
        }
        let has_come = |source: &PollFd<'_>| !source.revents().is_empty();
        if has_come(&polled[0]) {
            self.bridge.clear_wake();
        }
        polled.get(1).is_some_and(has_come)
    }

    fn read(&mut self, stdin: BorrowedFd<'_>) -> Result<(), Failure> {
        // A read error, such as of a closed terminal, counts as the end.
        let count = read_some(stdin.as_fd(), self.lines.room()).unwrap_or(0);
        if count == 0 {
            self.end();
            return Ok(());
        }
        let known = self.lines.whole().len();
        self.lines.read(count);
        if self.is_skipping {
            self.is_skipping = !self.lines.drop_rest_of_line();
            self.record_from(0);
        } else if self.lines.whole().is_empty() && self.lines.unfinished() > MAX_MESSAGE {
            self.is_skipping = true;
            let head = self.lines.drop_unfinished(HEAD_LENGTH);
            self.bridge.note("client message too long", None);
            self.bridge.send_to_client(&too_long(&head))?;
        } else {
            self.record_from(known);
        }
        Ok(())
    }

    /// Records the complete lines after the first `known` bytes of them.
    fn record_from(&self, known: usize) {
        if let Some(recorder) = self.bridge.recorder() {
            recorder.record(Origin::Client, self.lines.whole().get(known..).unwrap_or_default());
        }
    }

    fn end(&mut self) {
        self.has_ended = true;
        let known = self.lines.whole().len();
        self.lines.end();
        self.record_from(known);
        self.bridge.note("client closed stdin", None);
        // Before the first connection, the connection timeout applies instead.
        if self.bridge.has_connected() {
            self.tell(SessionEvent::StdinClosed);
        }
    }

    /// Sends complete lines to the daemon. Returns false if they must wait.
    fn forward(&mut self) -> Result<bool, Failure> {
        while !self.lines.whole().is_empty() {
            match self.bridge.turn() {
                Turn::Wait => return Ok(false),
                Turn::Refuse(why) => self.refuse(&why)?,
                Turn::Write(stream) => {
                    let refusals = self.pack();
                    let result = self.batch.write_to(&*stream, self.lines.whole());
                    let unwritten = result.err();
                    self.bridge.end_turn(unwritten.map(|it| it.no));
                    let length = self.lines.whole().len();
                    let done = unwritten.map_or(length, |it| it.begins);
                    self.resent_bytes = length - done;
                    self.lines.consume(done);
                    let to_client = refusals
                        .iter()
                        .filter(|(no, _)| unwritten.is_none_or(|unwritten| *no < unwritten.no));
                    for (_, refusal) in to_client {
                        self.bridge.send_to_client(refusal)?;
                    }
                }
            }
        }
        Ok(true)
    }

    /// Adds the complete lines to the batch. Returns the error responses for rejected requests.
    fn pack(&mut self) -> Vec<(LineNo, Vec<u8>)> {
        let mut refusals = Vec::new();
        self.batch.clear();
        let whole = self.lines.whole();
        for range in line_ranges(whole) {
            let line = &whole[range.clone()];
            let begins = range.start;
            let is_too_long = line.len() > MAX_MESSAGE;
            let message = if is_too_long { None } else { parse(line).ok() };
            let is_resent = begins < self.resent_bytes;
            let (no, action) = self.bridge.on_client_line(message.as_ref(), line, is_resent);
            match action {
                _ if is_too_long => refusals.push((no, too_long(&line[..HEAD_LENGTH]))),
                LineAction::Forward => self.batch.pass(range),
                LineAction::Replace(other) => self.batch.put(other),
                LineAction::Reject(answer) => refusals.push((no, answer)),
                LineAction::Drop | LineAction::Resumed(_) => {}
            }
            self.batch.mark(no, begins);
        }
        refusals
    }

    /// Answers all queued requests with an error, as there is no daemon.
    fn refuse(&mut self, why: &CallError) -> Result<(), Failure> {
        let mut to_client = Vec::new();
        let whole = self.lines.whole();
        for range in line_ranges(whole) {
            if let Ok(Message::Request { id, .. }) = parse(&whole[range]) {
                error_response(id, why, &mut to_client);
            }
        }
        self.lines.consume(whole.len());
        self.bridge.send_to_client(&to_client)?;
        if !to_client.is_empty() {
            self.tell(SessionEvent::ClientInformed);
        }
        Ok(())
    }

    fn tell(&self, event_sender: SessionEvent) {
        // Dropped if the channel is full: the receiver has had the event before, or is gone.
        let _ = self.event_sender.try_send(event_sender);
    }
}

fn too_long(head: &[u8]) -> Vec<u8> {
    let most = MAX_MESSAGE / (1024 * 1024);
    let words = format!("the message exceeds the maximum size of {most} MiB");
    let mut line = Vec::new();
    let id = Head::of(head).id.unwrap_or("null");
    error_response(id, &CallError::new(ErrorKind::InvalidRequest, words), &mut line);
    line
}
