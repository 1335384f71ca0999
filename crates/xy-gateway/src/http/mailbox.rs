//! What waits for one client on one stream.
//!
//! A [`Mailbox`] is filled by the gateway and emptied by a connection, on one thread. It holds
//! an answer as plain JSON as long as nothing came before it, and else events on a [`Tape`].
//! It may outlive its connection, and be given another one; only the newest one is served.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use hyper::body::Bytes;
use tokio::time::Instant;
use xy_mcp::envelope::{self, Message};

use super::counts::Stored;
use super::event::{self, StreamId};
use super::limits::{RETRY_MS, STREAM_BYTES_MAX};
use super::received;
use super::recorder::Recorder;
use super::room::Room;
use super::tape::{Evicted, Spare, Tape};
use crate::error_log::FailedRequest;
use crate::front::StreamNo;
use crate::say;

/// There will be no answer to a call, and nobody knows how far it came.
const NO_ANSWER_CODE: i64 = -32010;
const NO_ANSWER: &str = "outcome unknown: the session ended before there was an answer; check \
                         what was done before calling again";
const DOOR_CLOSED: &str = "outcome unknown: xy was ended before there was an answer; check what \
                           was done before calling again";

/// What a stream is for, and what may be said on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    /// Whether events may come before the answer.
    pub(super) events: bool,
    /// Whether the client knows events without data, and comes back to a stream that was
    /// closed before its answer.
    pub(super) polls: bool,
}

/// Said instead of an answer in a batch whose answers are too large to be sent together.
const BATCH_TOO_LARGE: &str = "the answers to this batch are too large together; accept \
    `text/event-stream`, or send the requests one by one";

/// What waits for the reader of one stream.
#[derive(Debug)]
pub(super) struct Mailbox {
    stream: StreamNo,
    manner: Manner,
    mail: RefCell<Mail>,
    room: Rc<Room>,
    /// Writes to the session's record which requests are answered here as events.
    recorder: Option<Rc<Recorder>>,
}

#[derive(Debug)]
struct Mail {
    /// Whether it has become events.
    begun: bool,
    /// What is sent before anything else to the connection that is there now.
    prelude: Vec<u8>,
    /// Whether that has a name in it.
    primes: bool,
    tape: Tape,
    /// The answer, if nothing came before it.
    answer: Option<Bytes>,
    /// Answers to other requests of the same batch, for a client that wants no events.
    batch: Vec<u8>,
    end: Option<(End, Instant)>,
    /// Which of the connections that it had one after the other is served, if any.
    connection: Option<u32>,
    last_connection: u32,
    /// Since when there is none.
    apart_since: Option<Instant>,
    /// The message whose requests are answered here, until their ids are needed.
    message: Bytes,
    /// The ids of the requests that are still to be answered here, as the client wrote them.
    unanswered: Vec<Box<str>>,
    is_recorded: bool,
    reader: Option<Waker>,
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

impl Mailbox {
    /// Of a stream that has a connection. Without a name its events cannot be sent twice.
    pub(super) fn new(
        stream: StreamNo,
        id: Option<StreamId>,
        manner: Manner,
        room: Rc<Room>,
    ) -> Self {
        let mail = Mail {
            begun: false,
            prelude: Vec::new(),
            primes: false,
            tape: Tape::new(id),
            answer: None,
            batch: Vec::new(),
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
        let place = mail.tape.last();
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
                return mail.keep_answer(message);
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
                mail.answer = Some(mail.whole_answer(message));
                Taken::Fits
            };
            mail.finish(End::Answered);
            Ok(taken)
        })
    }

    /// There will be no answer.
    pub(super) fn cancel(&self) {
        let mut mail = self.mail.borrow_mut();
        self.record_answers(&mut mail, |_| true);
        mail.answer = mail.answer.take().or_else(|| mail.kept_answers());
        mail.finish(End::Cancelled);
    }

    /// The session has ended. Who was told that an answer comes is told that none does.
    pub(super) fn session_over(&self) {
        self.give_up(NO_ANSWER);
    }

    /// The same where there is no session, and all of xy ends.
    pub(super) fn door_closes(&self) {
        self.give_up(DOOR_CLOSED);
    }

    fn give_up(&self, words: &str) {
        self.change(|mail| {
            if mail.begun && mail.end.is_none() {
                for request in mail.unanswered.clone() {
                    let (outcome, code) = ("session-ended", NO_ANSWER_CODE);
                    FailedRequest { outcome, code, ..FailedRequest::default() }.log();
                    mail.push(&say::error(&request, code, words), true);
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
            let missed = mail.tape.go_back(place)?;
            if mail.end.is_some() && mail.tape.is_last(place) {
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
        mail.tape.is_known() && mail.end.is_none_or(|(end, _)| end != End::SessionOver)
    }

    /// Whether an answer to it is still to come.
    pub(super) fn is_open(&self) -> bool {
        self.mail.borrow().end.is_none()
    }

    /// Takes what was never sent, to say it elsewhere.
    pub(super) fn take_unsent(&self) -> impl Iterator<Item = Bytes> + use<> {
        self.change(|mail| mail.tape.take_unsent())
    }

    /// Forgets an event to make room. What waits for a connection that is there stays.
    pub(super) fn evict(&self, spare: Spare) -> Option<Evicted> {
        self.change(|mail| match mail.connection {
            Some(_) if spare == Spare::All => None,
            _ => mail.tape.evict(spare),
        })
    }

    /// Forgets what was said before `then`.
    pub(super) fn forget_before(&self, then: Instant) {
        self.change(|mail| {
            let spare = if mail.connection.is_some() { Spare::Sent } else { Spare::All };
            mail.tape.forget_before(then, spare);
        });
    }

    /// Since when it has had neither a connection nor anything new; `None` while it has.
    pub(super) fn forsaken_since(&self) -> Option<Instant> {
        let mail = self.mail.borrow();
        mail.end.map(|(_, at)| at).max(mail.apart_since).filter(|_| mail.connection.is_none())
    }

    /// Whether everything that was said was sent.
    pub(super) fn is_all_sent(&self) -> bool {
        self.mail.borrow().tape.is_all_sent()
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
            || mail.end.is_some() && mail.prelude.is_empty() && mail.tape.is_all_sent()
    }

    /// Returns the id of an event, if events have ids here.
    #[cfg(test)]
    pub(super) fn event_id(&self, place: u64) -> Option<event::EventId> {
        self.mail.borrow().tape.name(place)
    }

    /// Everything that is sent to a connection until it would wait, or the end.
    #[cfg(test)]
    pub(super) fn take_all(&self, connection: u32) -> String {
        let mut all = String::new();
        let context = Context::from_waker(Waker::noop());
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

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.room.changes(self.mail.get_mut().stored(), Stored::default());
    }
}

/// What a client is told that missed something.
fn gap(missed: u64) -> Bytes {
    let notice = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"warning","logger":"xy","data":"{missed} messages of this stream could not be kept for so long, and are lost"}}}}"#
    );
    event::framed(None, notice.as_bytes()).0
}

impl Mail {
    /// Keeps an answer until those to the rest of its batch are there. What does not fit becomes
    /// an error.
    fn keep_answer(&mut self, message: &[u8]) -> Result<Taken, NotTaken> {
        let Ok(Message::Answer { id, .. }) = envelope::parse(message) else {
            return Err(NotTaken::NoEvents);
        };
        let separator = if self.batch.is_empty() { b'[' } else { b',' };
        self.batch.push(separator);
        if self.batch.len() + message.len() <= STREAM_BYTES_MAX {
            self.batch.extend_from_slice(message);
        } else {
            let id = id.unwrap_or("null");
            self.batch.extend_from_slice(&say::error(id, NO_ANSWER_CODE, BATCH_TOO_LARGE));
        }
        Ok(Taken::Fits)
    }

    /// Returns the last answer, with those that were kept before it.
    fn whole_answer(&mut self, last: &[u8]) -> Bytes {
        if self.batch.is_empty() {
            return Bytes::copy_from_slice(last);
        }
        self.batch.push(b',');
        self.batch.extend_from_slice(last);
        self.kept_answers().unwrap_or_default()
    }

    /// Returns the answers that were kept, as an array.
    fn kept_answers(&mut self) -> Option<Bytes> {
        let mut all = std::mem::take(&mut self.batch);
        all.push(b']');
        (all.len() > 1).then(|| all.into())
    }

    fn stored(&self) -> Stored {
        Stored { events: self.tape.len(), bytes: self.tape.bytes() }
    }

    fn begin(&mut self, manner: Manner) {
        self.begun = true;
        self.prime(manner, 0);
    }

    fn say_missed(&mut self, missed: u64) {
        if missed > 0 {
            self.prelude.extend_from_slice(&gap(missed));
        }
    }

    /// Tells a client that understands it from where it can go on.
    fn prime(&mut self, manner: Manner, place: u64) {
        if manner.polls
            && let Some(id) = self.tape.name(place)
        {
            self.prelude.extend_from_slice(&event::priming(id, RETRY_MS));
            self.primes = true;
        }
    }

    fn push(&mut self, message: &[u8], is_answer: bool) -> Taken {
        let waiting = self.tape.unsent_bytes();
        self.tape.push(message, is_answer, Instant::now());
        if self.connection.is_some() && waiting > 0 && waiting + message.len() > STREAM_BYTES_MAX {
            self.leave();
            return Taken::TooSlow;
        }
        self.wake();
        Taken::Fits
    }

    /// Everything that waits, in one piece.
    fn send(&mut self) -> Option<Bytes> {
        let events = self.tape.send();
        if self.prelude.is_empty() {
            return events;
        }
        if std::mem::take(&mut self.primes) {
            self.tape.is_told();
        }
        let mut piece = std::mem::take(&mut self.prelude);
        piece.extend_from_slice(&events.unwrap_or_default());
        Some(piece.into())
    }

    fn leave(&mut self) {
        self.connection = None;
        self.apart_since = Some(Instant::now());
        self.wake();
    }

    fn finish(&mut self, end: End) {
        self.message = Bytes::new();
        self.end.get_or_insert_with(|| (end, Instant::now()));
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn wait<T>(&mut self, context: &Context<'_>) -> Poll<T> {
        match &mut self.reader {
            Some(reader) => reader.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::StreamKind;
    use super::*;

    const PLAIN: Manner = Manner { events: true, polls: false };
    const POLLS: Manner = Manner { events: true, polls: true };
    const JSON: Manner = Manner { events: false, polls: false };

    fn mailbox(manner: Manner) -> Mailbox {
        let id = StreamId { tag: 0, kind: Some(StreamKind::Call), stream: 1 };
        Mailbox::new(1, Some(id), manner, Room::for_session(&Room::for_all()))
    }

    fn first(mailbox: &Mailbox) -> Option<First> {
        match mailbox.poll_first(&Context::from_waker(Waker::noop())) {
            Poll::Ready(first) => Some(first),
            Poll::Pending => None,
        }
    }

    fn events_of(mailbox: &Mailbox, connection: u32) -> Poll<Option<String>> {
        let events = mailbox.poll_events(connection, &Context::from_waker(Waker::noop()));
        events.map(|it| it.map(|it| String::from_utf8(it.to_vec()).unwrap()))
    }

    fn events(mailbox: &Mailbox) -> Poll<Option<String>> {
        events_of(mailbox, 0)
    }

    fn text(text: &str) -> Poll<Option<String>> {
        Poll::Ready(Some(text.to_owned()))
    }

    #[test]
    fn an_answer_that_comes_first_is_plain() {
        let mailbox = mailbox(POLLS);
        assert_eq!(first(&mailbox), None);
        mailbox.put_answer(b"{}").unwrap();
        assert_eq!(first(&mailbox), Some(First::Answer(Bytes::from_static(b"{}"))));
        assert!(!mailbox.is_resumable());
    }

    #[test]
    fn what_comes_before_the_answer_makes_both_events_in_one_piece() {
        let mailbox = mailbox(PLAIN);
        mailbox.put_event(b"1").unwrap();
        mailbox.put_answer(b"2").unwrap();
        assert_eq!(first(&mailbox), Some(First::Events));
        let both = "id: 0000000000000000-c1-1\nevent: message\ndata: 1\n\n\
                    id: 0000000000000000-c1-2\nevent: message\ndata: 2\n\n";
        assert_eq!(events(&mailbox), text(both));
        assert!(mailbox.is_over(0));
        assert_eq!(events(&mailbox), Poll::Ready(None));
    }

    #[test]
    fn who_can_come_back_is_told_from_where_before_anything_else() {
        let mailbox = mailbox(POLLS);
        mailbox.begin();
        assert_eq!(first(&mailbox), Some(First::Events));
        assert_eq!(events(&mailbox), text("id: 0000000000000000-c1-0\nretry: 1000\ndata: \n\n"));
        mailbox.put_answer(b"1").unwrap();
        assert_eq!(
            events(&mailbox),
            text("id: 0000000000000000-c1-1\nevent: message\ndata: 1\n\n")
        );
        assert_eq!(events(&mailbox), Poll::Ready(None));

        // The last piece was lost on its way.
        assert_eq!(mailbox.resume(0), Some(Resumed::On(1)));
        let again = "id: 0000000000000000-c1-0\nretry: 1000\ndata: \n\n\
                     id: 0000000000000000-c1-1\nevent: message\ndata: 1\n\n";
        assert_eq!(events(&mailbox), Poll::Ready(None), "the older connection is left");
        assert_eq!(events_of(&mailbox, 1), text(again));
        assert_eq!(mailbox.resume(1), Some(Resumed::Over));
        assert_eq!(mailbox.resume(2), None);
    }

    #[test]
    fn who_was_sent_nothing_knows_no_place_to_come_back_to() {
        let mailbox = mailbox(POLLS);
        mailbox.put_event(b"1").unwrap();
        assert!(!mailbox.is_resumable());
        assert!(events(&mailbox).is_ready());
        assert!(mailbox.is_resumable());
    }

    #[test]
    fn who_does_not_know_empty_events_gets_none() {
        let mailbox = mailbox(PLAIN);
        mailbox.begin();
        assert_eq!(first(&mailbox), Some(First::Events));
        assert_eq!(events(&mailbox), Poll::Pending);
        assert!(!mailbox.is_resumable());
    }

    #[test]
    fn who_missed_something_is_told_so() {
        let mailbox = mailbox(POLLS);
        mailbox.put_event(b"1").unwrap();
        assert!(events(&mailbox).is_ready());
        mailbox.put_event(b"2").unwrap();
        mailbox.put_event(b"3").unwrap();
        mailbox.detach(0);
        for _ in 0..2 {
            assert!(mailbox.evict(Spare::All).is_some());
        }
        assert_eq!(mailbox.resume(1), Some(Resumed::On(1)));
        let Poll::Ready(Some(heard)) = events_of(&mailbox, 1) else { panic!("it hears more") };
        assert!(heard.contains("1 messages of this stream could not be kept"), "{heard}");
        assert!(heard.ends_with("data: 3\n\n"), "{heard}");
        // The first that it reads does not make it believe that it has heard the rest.
        assert!(heard.starts_with("id: 0000000000000000-c1-1\nretry: "), "{heard}");
    }

    #[test]
    fn nothing_is_taken_after_the_end() {
        let cancelled = mailbox(POLLS);
        cancelled.cancel();
        assert_eq!(cancelled.put_event(b"1"), Err(NotTaken::Ended));
        assert_eq!(cancelled.put_answer(b"2"), Err(NotTaken::Ended));
        assert_eq!(first(&cancelled), Some(First::Nothing));

        let answered = mailbox(POLLS);
        answered.put_answer(b"1").unwrap();
        answered.session_over();
        assert_eq!(first(&answered), Some(First::Answer(Bytes::from_static(b"1"))));
    }

    #[test]
    fn who_was_told_that_an_answer_comes_is_told_that_none_does() {
        let begun = mailbox(PLAIN);
        begun.set_requests(vec!["\"x\"".into()]);
        begun.begin();
        begun.session_over();
        let Poll::Ready(Some(heard)) = events(&begun) else { panic!("it hears more") };
        assert!(heard.contains(r#""id":"x","error":{"code":-32010"#), "{heard}");
        assert_eq!(events(&begun), Poll::Ready(None));

        let silent = mailbox(PLAIN);
        silent.set_requests(vec!["1".into()]);
        silent.session_over();
        assert_eq!(first(&silent), Some(First::SessionOver));
    }

    #[test]
    fn a_stream_that_wants_no_events_still_gets_its_answer() {
        let mailbox = mailbox(JSON);
        assert_eq!(mailbox.put_event(b"1"), Err(NotTaken::NoEvents));
        mailbox.begin();
        assert_eq!(first(&mailbox), None);
        mailbox.put_answer(b"2").unwrap();
        assert_eq!(first(&mailbox), Some(First::Answer(Bytes::from_static(b"2"))));
    }

    #[test]
    fn batch_of_a_client_that_wants_no_events_is_answered_as_an_array() {
        let answer = |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        let mailbox = mailbox(JSON);
        assert_eq!(mailbox.put_event(answer(1).as_bytes()), Ok(Taken::Fits));
        assert_eq!(
            mailbox.put_event(br#"{"jsonrpc":"2.0","method":"m"}"#),
            Err(NotTaken::NoEvents)
        );
        assert_eq!(first(&mailbox), None);
        let large =
            format!(r#"{{"jsonrpc":"2.0","id":2,"result":"{}"}}"#, "x".repeat(STREAM_BYTES_MAX));
        assert_eq!(mailbox.put_event(large.as_bytes()), Ok(Taken::Fits));
        mailbox.put_answer(answer(3).as_bytes()).unwrap();
        let Some(First::Answer(all)) = first(&mailbox) else { panic!("it is answered") };
        let all: serde_json::Value = serde_json::from_slice(&all).unwrap();
        assert_eq!(
            (&all[0]["id"], &all[1]["id"], &all[2]["id"]),
            (&1.into(), &2.into(), &3.into())
        );
        assert_eq!(all[1]["error"]["code"], NO_ANSWER_CODE);

        let cancelled = self::mailbox(JSON);
        cancelled.put_event(answer(1).as_bytes()).unwrap();
        cancelled.cancel();
        let whole = First::Answer(format!("[{}]", answer(1)).into());
        assert_eq!(first(&cancelled), Some(whole), "the rest is cancelled");
    }

    #[test]
    fn a_reader_that_is_too_slow_is_left_but_one_message_may_be_of_any_size() {
        let large = vec![b'1'; STREAM_BYTES_MAX + 1];
        let mailbox = mailbox(PLAIN);
        assert_eq!(mailbox.put_event(&large), Ok(Taken::Fits));
        assert_eq!(mailbox.put_event(b"2"), Ok(Taken::TooSlow));
        assert_eq!(events(&mailbox), Poll::Ready(None));
        assert!(!mailbox.detach(0), "it was left already");
    }

    #[test]
    fn what_waits_for_a_connection_that_is_there_is_not_given_up() {
        let mailbox = mailbox(POLLS);
        mailbox.put_event(b"1").unwrap();
        assert_eq!((mailbox.evict(Spare::Sent), mailbox.evict(Spare::All)), (None, None));
        assert!(events(&mailbox).is_ready());
        assert_eq!(mailbox.evict(Spare::Sent), Some(Evicted::Sent));
    }

    #[test]
    fn room_is_given_back() {
        let room = Room::for_session(&Room::for_all());
        let mailbox = Mailbox::new(1, None, POLLS, Rc::clone(&room));
        mailbox.put_event(b"1").unwrap();
        assert_eq!(room.taken().events, 1);
        drop(mailbox);
        assert_eq!(room.taken(), Stored::default());
    }
}
