//! From the client to the daemon: stdin to socket.
//!
//! While there is no daemon, what the client says waits here, up to a bound; then stdin is
//! not read any more.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use rustix::event::{PollFd, PollFlags, poll};
use xy_mcp::envelope::{Message, parse};
use xy_protocol::error::{CallError, ErrorKind};

use xy_mcp::head::Head;

use super::News;
use super::carry::{MAX_LINE, Parcel, read_some};
use super::hub::{Hub, Turn};
use super::ledger::{LineNo, Verdict, error_answer};
use super::lines::{Lines, each};
use super::recording::Origin;
use crate::failure::Failure;

/// How much of the client's words waits for a daemon.
const MAX_WAITING: usize = 16 * 1024 * 1024;

/// Where the id of a message that is too long is looked for.
const HEAD: usize = 4096;

#[derive(Debug)]
pub(super) struct Upward {
    hub: Arc<Hub>,
    news: SyncSender<News>,
    lines: Lines,
    parcel: Parcel,
    /// So many bytes were said before, and could not be written.
    carried: usize,
    /// A message is too long, and its end has not come.
    is_skipping: bool,
    has_ended: bool,
}

impl Upward {
    pub(super) fn new(hub: Arc<Hub>, news: SyncSender<News>) -> Self {
        Self {
            hub,
            news,
            lines: Lines::new(),
            parcel: Parcel::default(),
            carried: 0,
            is_skipping: false,
            has_ended: false,
        }
    }

    /// Carries until the client has said its last word.
    pub(super) fn run(mut self) {
        match self.carry() {
            Ok(()) => {
                self.hub.client_left();
                self.tell(News::ClientLeft);
            }
            Err(failure) => {
                self.tell(News::Ended { result: Err(failure), client_knows: true });
            }
        }
    }

    fn carry(&mut self) -> Result<(), Failure> {
        let stdin = rustix::stdio::stdin();
        loop {
            let all_gone = self.forward()?;
            if all_gone && self.has_ended {
                self.lines.put(&self.hub.last_words());
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

    /// Waits for a turn, or for more to keep until then; says whether there is more.
    fn wait(&self, stdin: BorrowedFd<'_>) -> bool {
        let mut polled = vec![PollFd::from_borrowed_fd(self.hub.wakes(), PollFlags::IN)];
        if !self.has_ended && self.lines.held() < MAX_WAITING {
            polled.push(PollFd::from_borrowed_fd(stdin, PollFlags::IN));
        }
        if poll(&mut polled, None).is_err() {
            return false; // Interrupted: whoever waits looks again.
        }
        let has_come = |source: &PollFd<'_>| !source.revents().is_empty();
        if has_come(&polled[0]) {
            self.hub.has_woken();
        }
        polled.get(1).is_some_and(has_come)
    }

    fn read(&mut self, stdin: BorrowedFd<'_>) -> Result<(), Failure> {
        // A terminal that went away is the end as well.
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
        } else if self.lines.whole().is_empty() && self.lines.unfinished() > MAX_LINE {
            self.is_skipping = true;
            let head = self.lines.drop_unfinished(HEAD);
            self.hub.note("client message too long", None);
            self.hub.tell_client(&too_long(&head))?;
        } else {
            self.record_from(known);
        }
        Ok(())
    }

    /// Records the whole lines after so many bytes of them.
    fn record_from(&self, known: usize) {
        if let Some(recorder) = self.hub.recorder() {
            recorder.record(Origin::Client, self.lines.whole().get(known..).unwrap_or_default());
        }
    }

    fn end(&mut self) {
        self.has_ended = true;
        let known = self.lines.whole().len();
        self.lines.end();
        self.record_from(known);
        self.hub.note("client closed stdin", None);
        // Before the first connection there is a limit of its own.
        if self.hub.was_up() {
            self.tell(News::ClientEnds);
        }
    }

    /// Passes on what is whole; `false` if it has to wait.
    fn forward(&mut self) -> Result<bool, Failure> {
        while !self.lines.whole().is_empty() {
            match self.hub.turn() {
                Turn::Wait => return Ok(false),
                Turn::Refuse(why) => self.refuse(&why)?,
                Turn::Write(stream) => {
                    let refusals = self.pack();
                    let result = self.parcel.write_to(&*stream, self.lines.whole());
                    let unwritten = result.err();
                    self.hub.has_written(unwritten.map(|it| it.no));
                    let length = self.lines.whole().len();
                    let done = unwritten.map_or(length, |it| it.begins);
                    self.carried = length - done;
                    self.lines.consume(done);
                    let told = refusals
                        .iter()
                        .filter(|(no, _)| unwritten.is_none_or(|unwritten| *no < unwritten.no));
                    for (_, refusal) in told {
                        self.hub.tell_client(refusal)?;
                    }
                }
            }
        }
        Ok(true)
    }

    /// Decides about every whole line. What the client is refused is answered.
    fn pack(&mut self) -> Vec<(LineNo, Vec<u8>)> {
        let mut refusals = Vec::new();
        self.parcel.clear();
        let whole = self.lines.whole();
        for range in each(whole) {
            let line = &whole[range.clone()];
            let begins = range.start;
            let is_too_long = line.len() > MAX_LINE;
            let message = if is_too_long { None } else { parse(line).ok() };
            let is_carried = begins < self.carried;
            let (no, verdict) = self.hub.client_says(message.as_ref(), line, is_carried);
            match verdict {
                _ if is_too_long => refusals.push((no, too_long(&line[..HEAD]))),
                Verdict::Pass => self.parcel.pass(range),
                Verdict::Replace(other) => self.parcel.put(other),
                Verdict::Refuse(answer) => refusals.push((no, answer)),
                Verdict::Swallow | Verdict::Greeted(_) => {}
            }
            self.parcel.mark(no, begins);
        }
        refusals
    }

    /// Answers every request with why there is nobody to answer it.
    fn refuse(&mut self, why: &CallError) -> Result<(), Failure> {
        let mut told = Vec::new();
        let whole = self.lines.whole();
        for range in each(whole) {
            if let Ok(Message::Request { id, .. }) = parse(&whole[range]) {
                error_answer(id, why, &mut told);
            }
        }
        self.lines.consume(whole.len());
        self.hub.tell_client(&told)?;
        if !told.is_empty() {
            self.tell(News::ClientKnows);
        }
        Ok(())
    }

    fn tell(&self, news: News) {
        // Dropped when there is no room: whoever waits has heard it before, or is gone.
        let _ = self.news.try_send(news);
    }
}

fn too_long(head: &[u8]) -> Vec<u8> {
    let most = MAX_LINE / (1024 * 1024);
    let words = format!("the message has more than {most} MiB, which is the most it may have");
    let mut line = Vec::new();
    let id = Head::of(head).id.unwrap_or("null");
    error_answer(id, &CallError::new(ErrorKind::InvalidRequest, words), &mut line);
    line
}
