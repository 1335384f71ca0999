//! What waits for one client on one stream.
//!
//! A [`ResponseStream`] is filled by the gateway and emptied by a connection, on one thread. It holds
//! an answer as plain JSON as long as nothing came before it, and else events on a [`ReplayBuffer`].
//! It may outlive its connection, and be given another one; only the newest one is served.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::Bytes;
use tokio::time::Instant;
use xy_mcp::envelope::{self, Message};

use super::counts::Stored;
use super::event::{self, StreamId};
use super::received;
use super::recorder::Recorder;
use super::replay_buffer::{Evicted, ReplayBuffer, Spare};
use super::room::Room;
use crate::error_log::FailedRequest;
use crate::frontend::StreamNo;
use crate::reply;

mod batch;
mod mail;

use batch::Batch;
use mail::Mail;

/// There will be no answer to a call, and nobody knows how far it came.
const NO_ANSWER_CODE: i64 = -32010;
const NO_ANSWER: &str = "outcome unknown: the session ended before there was an answer; check \
                         what was done before calling again";
const DOOR_CLOSED: &str = "outcome unknown: xy was ended before there was an answer; check what \
                           was done before calling again";

/// What a stream is for, and what may be said on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamMode {
    /// Whether events may come before the answer.
    pub(super) events: bool,
    /// Whether the client knows events without data, and comes back to a stream that was
    /// closed before its answer.
    pub(super) polls: bool,
}

/// What waits for the reader of one stream.
#[derive(Debug)]
pub(super) struct ResponseStream {
    stream: StreamNo,
    manner: StreamMode,
    mail: RefCell<Mail>,
    room: Rc<Room>,
    /// Writes to the session's record which requests are answered here as events.
    recorder: Option<Rc<Recorder>>,
}

/// Why nothing more will be said on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Answered,
    Cancelled,
    SessionOver,
}

/// What is the first that can be said to a client that waits for an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First {
    /// The answer, and that is all.
    Answer(Bytes),
    /// Something before the answer: the rest is events.
    Events,
    /// That there will be no answer, since it was cancelled.
    Nothing,
    /// That the session, or all of xy, has ended.
    SessionOver,
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// No events are wanted here.
    NoEvents,
    /// Nothing more is said here.
    Ended,
}

/// What became of a message that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is sent when the reader is ready for it.
    Fits,
    /// So much waits already that the reader is left.
    TooSlow,
}

/// What comes of taking up a stream again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Resumed {
    /// There is nothing more to hear.
    Over,
    /// It goes on, on this connection.
    On(u32),
}

impl ResponseStream {
    /// Of a stream that has a connection. Without a name its events cannot be sent twice.
    pub(super) fn new(
        stream: StreamNo,
        id: Option<StreamId>,
        manner: StreamMode,
        room: Rc<Room>,
    ) -> Self {
        let mail = Mail {
            begun: false,
            prelude: Vec::new(),
            primes: false,
            replay_buffer: ReplayBuffer::new(id),
            answer: None,
            batch: Batch::default(),
            end: None,
            connection: Some(0),
            last_connection: 0,
            apart_since: None,
            message: Bytes::new(),
            unanswered: Vec::new(),
            is_recorded: false,
            reader: None,
        };
        Self { stream, manner, mail: RefCell::new(mail), room, recorder: None }
    }

    /// Records the requests that are answered here as events.
    pub(super) fn with_recorder(mut self, recorder: Rc<Recorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    pub(super) fn stream(&self) -> StreamNo {
        self.stream
    }

    pub(super) fn has_events(&self) -> bool {
        self.manner.events
    }

    pub(super) fn polls(&self) -> bool {
        self.manner.polls
    }

    /// Makes it events, whether there are any yet or not. A client that can come back is told
    /// from where.
    pub(super) fn begin(&self) {
        let mut mail = self.mail.borrow_mut();
        if self.manner.events && mail.end.is_none() {
            self.begin_events(&mut mail);
            mail.wake();
        }
    }

    fn begin_events(&self, mail: &mut Mail) {
        if mail.begun {
            return;
        }
        mail.begin(self.manner);
        let message = std::mem::take(&mut mail.message);
        if !message.is_empty() {
            mail.unanswered = received::request_ids((&*message).into());
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| !mail.unanswered.is_empty()) {
            recorder.open_stream(self.stream, &mail.unanswered);
            mail.is_recorded = true;
        }
    }

    /// Sets the ids of the requests that are answered here, before any of them is. Should there
    /// be no answer, the client is told so.
    pub(super) fn set_requests(&self, ids: Vec<Box<str>>) {
        self.mail.borrow_mut().unanswered = ids;
    }

    /// Has an answer in plain JSON be an array, also if it is the only one.
    pub(super) fn set_batch(&self) {
        self.mail.borrow_mut().batch.set_array();
    }

    /// Sets the message whose requests are answered here, before any of them is. It is parsed
    /// only if its answer becomes events, and is not held longer.
    pub(super) fn set_message(&self, message: Bytes) {
        self.mail.borrow_mut().message = message;
    }

    /// Removes the stream from the session's record: it can no longer be resumed.
    pub(super) fn end_record(&self) {
        let is_recorded = std::mem::take(&mut self.mail.borrow_mut().is_recorded);
        if let Some(recorder) = self.recorder.as_ref().filter(|_| is_recorded) {
            recorder.end_stream(self.stream);
        }
    }

    /// Records that the last event answers the requests that `is_answered` selects.
    fn record_answers(&self, mail: &mut Mail, is_answered: impl Fn(&str) -> bool) {
        let place = mail.replay_buffer.last();
        let recorder = self.recorder.as_ref().filter(|_| mail.is_recorded);
        mail.unanswered.retain(|id| {
            let is_answered = is_answered(id);
            if let Some(recorder) = recorder.filter(|_| is_answered) {
                recorder.answer_call(self.stream, id, place);
            }
            !is_answered
        });
    }

    /// Sends this before anything else.
    pub(super) fn say_first(&self, bytes: &[u8]) {
        self.mail.borrow_mut().prelude.extend_from_slice(bytes);
    }

    /// Tells a client on a stream of events when to come back, should that end.
    pub(super) fn say_retry(&self, retry_ms: u64) {
        let mut mail = self.mail.borrow_mut();
        if mail.begun && mail.end.is_none() {
            mail.prelude.extend_from_slice(&event::retry(retry_ms));
            mail.wake();
        }
    }

    /// Says before anything else how much could not be kept for it.
    pub(super) fn say_missed(&self, missed: u64) {
        self.mail.borrow_mut().say_missed(missed);
    }

    /// Puts what comes before the answer.
    pub(super) fn put_event(&self, message: &[u8]) -> Result<Taken, NotTaken> {
        self.change(|mail| {
            if mail.end.is_some() {
                return Err(NotTaken::Ended);
            }
            if !self.manner.events {
                return mail.batch.keep(message, &self.room);
            }
            self.begin_events(mail);
            let taken = mail.push(message, false);
            let is_batch = mail.unanswered.len() > 1;
            if is_batch && let Ok(Message::Answer { id: Some(id), .. }) = envelope::parse(message) {
                self.record_answers(mail, |it| it == id);
            }
            Ok(taken)
        })
    }

    /// Puts the answer.
    pub(super) fn put_answer(&self, message: &[u8]) -> Result<Taken, NotTaken> {
        self.change(|mail| {
            if mail.end.is_some() {
                return Err(NotTaken::Ended);
            }
            let taken = if mail.begun {
                let taken = mail.push(message, true);
                self.record_answers(mail, |_| true);
                taken
            } else {
                mail.answer = Some(mail.batch.complete(message));
                Taken::Fits
            };
            mail.finish(End::Answered);
            Ok(taken)
        })
    }

    /// There will be no answer.
    pub(super) fn cancel(&self) {
        self.change(|mail| {
            self.record_answers(mail, |_| true);
            mail.answer = mail.answer.take().or_else(|| mail.batch.take());
            mail.finish(End::Cancelled);
        });
    }

    /// The session has ended. Who was told that an answer comes is told that none does.
    pub(super) fn session_over(&self) {
        let client = self.mail.borrow().replay_buffer.logged_client();
        self.give_up(NO_ANSWER, &client, "");
    }

    /// Ends the request of a client without a session, as all of xy ends.
    pub(super) fn door_closes(&self, client: &str, method: &str) {
        self.give_up(DOOR_CLOSED, client, method);
    }

    fn give_up(&self, words: &str, client: &str, method: &str) {
        self.change(|mail| {
            if mail.begun && mail.end.is_none() {
                for request in mail.unanswered.clone() {
                    let (outcome, code) = ("session-ended", NO_ANSWER_CODE);
                    FailedRequest { client, method, outcome, code, ..FailedRequest::default() }
                        .log();
                    mail.push(&reply::error(&request, code, words), true);
                    self.record_answers(mail, |it| *it == *request);
                }
            }
            mail.finish(End::SessionOver);
        });
    }

    /// The client goes on after `place`, on a new connection; an older one is left. `None` if
    /// it was never told that place.
    pub(super) fn resume(&self, place: u64) -> Option<Resumed> {
        self.change(|mail| {
            let missed = mail.replay_buffer.go_back(place)?;
            if mail.end.is_some() && mail.replay_buffer.is_last(place) {
                mail.leave();
                return Some(Resumed::Over);
            }
            mail.prelude.clear();
            // Not the place that it goes on from: it may not get to read what it has missed.
            mail.prime(self.manner, place);
            mail.say_missed(missed);
            mail.leave();
            mail.last_connection += 1;
            mail.connection = Some(mail.last_connection);
            Some(Resumed::On(mail.last_connection))
        })
    }

    /// A connection has ended; whether it was the one that is served.
    pub(super) fn detach(&self, connection: u32) -> bool {
        let mut mail = self.mail.borrow_mut();
        let is_served = mail.connection == Some(connection);
        if is_served {
            mail.leave();
        }
        is_served
    }

    /// Whether a client may come back to it.
    pub(super) fn is_resumable(&self) -> bool {
        let mail = self.mail.borrow();
        mail.replay_buffer.is_known() && mail.end.is_none_or(|(end, _)| end != End::SessionOver)
    }

    /// Whether an answer to it is still to come.
    pub(super) fn is_open(&self) -> bool {
        self.mail.borrow().end.is_none()
    }

    /// Takes what was never sent, to say it elsewhere.
    pub(super) fn take_unsent(&self) -> impl Iterator<Item = Bytes> + use<> {
        self.change(|mail| mail.replay_buffer.take_unsent())
    }

    /// Forgets an event to make room. What waits for a connection that is there stays.
    pub(super) fn evict(&self, spare: Spare) -> Option<Evicted> {
        self.change(|mail| match mail.connection {
            Some(_) if spare == Spare::All => None,
            _ => mail.replay_buffer.evict(spare),
        })
    }

    /// Forgets what was said before `then`.
    pub(super) fn forget_before(&self, then: Instant) {
        self.change(|mail| {
            let spare = if mail.connection.is_some() { Spare::Sent } else { Spare::All };
            mail.replay_buffer.forget_before(then, spare);
        });
    }

    /// Since when it has had neither a connection nor anything new; `None` while it has.
    pub(super) fn forsaken_since(&self) -> Option<Instant> {
        let mail = self.mail.borrow();
        mail.end.map(|(_, at)| at).max(mail.apart_since).filter(|_| mail.connection.is_none())
    }

    /// Whether everything that was said was sent.
    pub(super) fn is_all_sent(&self) -> bool {
        self.mail.borrow().replay_buffer.is_all_sent()
    }

    /// Waits for what comes first.
    pub(super) async fn first(&self) -> First {
        std::future::poll_fn(|context| self.poll_first(context)).await
    }

    fn poll_first(&self, context: &Context<'_>) -> Poll<First> {
        let mut mail = self.mail.borrow_mut();
        if let Some(answer) = mail.answer.take() {
            return Poll::Ready(First::Answer(answer));
        }
        match mail.end {
            Some((End::SessionOver, _)) if !mail.begun => Poll::Ready(First::SessionOver),
            Some((End::Cancelled, _)) if !mail.begun => Poll::Ready(First::Nothing),
            Some(_) => Poll::Ready(First::Events),
            None if mail.begun => Poll::Ready(First::Events),
            None => mail.wait(context),
        }
    }

    /// The events that have gathered; `None` once there will be no more here.
    pub(super) fn poll_events(
        &self,
        connection: u32,
        context: &Context<'_>,
    ) -> Poll<Option<Bytes>> {
        self.change(|mail| {
            if mail.connection != Some(connection) {
                return Poll::Ready(None);
            }
            if let Some(piece) = mail.send() {
                return Poll::Ready(Some(piece));
            }
            if mail.end.is_some() { Poll::Ready(None) } else { mail.wait(context) }
        })
    }

    /// Whether there is nothing more to send to a connection, now and later.
    pub(super) fn is_over(&self, connection: u32) -> bool {
        let mail = self.mail.borrow();
        mail.connection != Some(connection)
            || mail.end.is_some() && mail.prelude.is_empty() && mail.replay_buffer.is_all_sent()
    }

    /// Returns the id of an event, if events have ids here.
    #[cfg(test)]
    pub(super) fn event_id(&self, place: u64) -> Option<event::EventId> {
        self.mail.borrow().replay_buffer.name(place)
    }

    /// Everything that is sent to a connection until it would wait, or the end.
    #[cfg(test)]
    pub(super) fn take_all(&self, connection: u32) -> String {
        let mut all = String::new();
        let context = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(piece)) = self.poll_events(connection, &context) {
            all += std::str::from_utf8(&piece).unwrap();
        }
        all
    }

    /// Changes it, and says how much room it takes then.
    fn change<T>(&self, change: impl FnOnce(&mut Mail) -> T) -> T {
        let mut mail = self.mail.borrow_mut();
        let before = mail.stored();
        let outcome = change(&mut mail);
        self.room.changes(before, mail.stored());
        outcome
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        self.room.changes(self.mail.get_mut().stored(), Stored::default());
    }
}

#[cfg(test)]
mod tests;
