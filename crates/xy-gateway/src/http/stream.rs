//! What waits for one client on one stream, and how it gets there.
//!
//! A [`Mailbox`] is filled by the gateway and emptied by the connection, on one thread. It
//! holds an answer as plain JSON as long as nothing came before it, and else events, already
//! as they go over the wire, so that all that has gathered goes out at once.
//!
//! Events have no ids. Whoever adds them, so that a client may take up a broken stream again,
//! gives each its id in [`Events::push`] and keeps them in the session.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use hyper::body::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};
use xy_mcp::edit::append_on_one_line;

use super::limits::{KEEP_ALIVE_EVERY, STREAM_BYTES_MAX};
use super::postbox::Lease;

const BEFORE_DATA: &[u8] = b"event: message\ndata: ";
const AFTER_DATA: &[u8] = b"\n\n";
const KEEP_ALIVE: &[u8] = b": still here\n\n";

/// Messages as events, one after the other.
#[derive(Debug, Default)]
pub(super) struct Events {
    bytes: Vec<u8>,
    count: usize,
}

impl Events {
    /// Adds one message. A line break between the parts of its JSON, which a server may have
    /// written, would end the event's data.
    pub(super) fn push(&mut self, message: &[u8]) {
        self.bytes.reserve(BEFORE_DATA.len() + message.len() + AFTER_DATA.len());
        self.bytes.extend_from_slice(BEFORE_DATA);
        append_on_one_line(&mut self.bytes, message);
        self.bytes.extend_from_slice(AFTER_DATA);
        self.count += 1;
    }

    /// One message as an event of its own.
    pub(super) fn single(message: &[u8]) -> Bytes {
        let mut events = Self::default();
        events.push(message);
        events.bytes.into()
    }

    /// Adds all that is in `later`.
    pub(super) fn append(&mut self, later: Self) {
        if self.count == 0 {
            *self = later;
        } else {
            self.bytes.extend_from_slice(&later.bytes);
            self.count += later.count;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// What waits for the reader of one stream.
#[derive(Debug)]
pub(super) struct Mailbox {
    mail: RefCell<Mail>,
}

#[derive(Debug)]
struct Mail {
    /// Whether events may come before the answer.
    streams: bool,
    /// Whether one has.
    begun: bool,
    events: Events,
    /// The answer, if nothing came before it.
    answer: Option<Bytes>,
    end: Option<End>,
    reader: Option<Waker>,
}

/// Why nothing more will be said on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Answered,
    Cancelled,
    TooSlow,
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
    /// That the session has ended.
    SessionOver,
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// No events are wanted here.
    NoEvents,
    /// Nothing more is said here.
    Ended,
    /// Too much waits already: from now on nothing more is said here.
    TooSlow,
}

impl Mailbox {
    /// Of a stream on which events may come before the answer, or may not.
    pub(super) fn new(streams: bool) -> Self {
        Self {
            mail: RefCell::new(Mail {
                streams,
                begun: false,
                events: Events::default(),
                answer: None,
                end: None,
                reader: None,
            }),
        }
    }

    /// Of a stream that is events only, with what was kept for it.
    pub(super) fn listening(kept: Events) -> Self {
        let mailbox = Self::new(true);
        mailbox.mail.borrow_mut().begun = true;
        mailbox.mail.borrow_mut().events = kept;
        mailbox
    }

    /// Puts what comes before the answer.
    pub(super) fn put_event(&self, message: &[u8]) -> Result<(), NotTaken> {
        let mut mail = self.mail.borrow_mut();
        if !mail.streams && mail.end.is_none() {
            return Err(NotTaken::NoEvents);
        }
        mail.push(message)?;
        mail.begun = true;
        Ok(())
    }

    /// Puts the answer.
    pub(super) fn put_answer(&self, message: &[u8]) -> Result<(), NotTaken> {
        let mut mail = self.mail.borrow_mut();
        if mail.begun {
            mail.push(message)?;
        } else if mail.end.is_some() {
            return Err(NotTaken::Ended);
        } else {
            mail.answer = Some(Bytes::copy_from_slice(message));
        }
        mail.finish(End::Answered);
        Ok(())
    }

    /// There will be no answer.
    pub(super) fn cancel(&self) {
        self.mail.borrow_mut().finish(End::Cancelled);
    }

    /// The session has ended.
    pub(super) fn session_over(&self) {
        self.mail.borrow_mut().finish(End::SessionOver);
    }

    /// Waits for what comes first.
    pub(super) async fn first(&self) -> First {
        std::future::poll_fn(|context| self.poll_first(context)).await
    }

    /// Takes what nobody will read here any more.
    pub(super) fn take_events(&self) -> Events {
        std::mem::take(&mut self.mail.borrow_mut().events)
    }

    fn poll_first(&self, context: &Context<'_>) -> Poll<First> {
        let mut mail = self.mail.borrow_mut();
        if let Some(answer) = mail.answer.take() {
            return Poll::Ready(First::Answer(answer));
        }
        match mail.end {
            Some(End::SessionOver) if !mail.begun => Poll::Ready(First::SessionOver),
            Some(End::Cancelled) if !mail.begun => Poll::Ready(First::Nothing),
            Some(_) => Poll::Ready(First::Events),
            None if mail.begun => Poll::Ready(First::Events),
            None => mail.wait(context),
        }
    }

    /// The events that have gathered; `None` once there will be no more.
    fn poll_events(&self, context: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut mail = self.mail.borrow_mut();
        if !mail.events.is_empty() {
            return Poll::Ready(Some(std::mem::take(&mut mail.events).bytes.into()));
        }
        if mail.end.is_some() { Poll::Ready(None) } else { mail.wait(context) }
    }

    fn is_over(&self) -> bool {
        let mail = self.mail.borrow();
        mail.events.is_empty() && mail.end.is_some()
    }
}

impl Mail {
    fn push(&mut self, message: &[u8]) -> Result<(), NotTaken> {
        if self.end.is_some() {
            return Err(NotTaken::Ended);
        }
        if !self.events.is_empty() && self.events.bytes() + message.len() > STREAM_BYTES_MAX {
            self.events = Events::default();
            self.finish(End::TooSlow);
            return Err(NotTaken::TooSlow);
        }
        self.events.push(message);
        self.wake();
        Ok(())
    }

    fn finish(&mut self, end: End) {
        self.end.get_or_insert(end);
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

/// The body of an answer that is events: whatever is put into its mailbox, to the end.
#[derive(Debug)]
pub(super) struct EventStream {
    lease: Lease,
    /// When a comment is due; made when there is a first silence.
    quiet: Option<Pin<Box<Sleep>>>,
}

impl EventStream {
    pub(super) fn new(lease: Lease) -> Self {
        Self { lease, quiet: None }
    }

    /// What is to be sent next; `None` at the end.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let due = || Instant::now() + KEEP_ALIVE_EVERY;
        if let Poll::Ready(events) = self.lease.mailbox().poll_events(context) {
            if let Some(quiet) = &mut self.quiet {
                quiet.as_mut().reset(due());
            }
            return Poll::Ready(events);
        }
        let quiet = self.quiet.get_or_insert_with(|| Box::pin(sleep_until(due())));
        ready!(quiet.as_mut().poll(context));
        quiet.as_mut().reset(due());
        Poll::Ready(Some(Bytes::from_static(KEEP_ALIVE)))
    }

    /// Whether there is nothing more to send, now and later.
    pub(super) fn is_over(&self) -> bool {
        self.lease.mailbox().is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(mailbox: &Mailbox) -> Option<First> {
        match mailbox.poll_first(&Context::from_waker(Waker::noop())) {
            Poll::Ready(first) => Some(first),
            Poll::Pending => None,
        }
    }

    fn events(mailbox: &Mailbox) -> Poll<Option<Bytes>> {
        mailbox.poll_events(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_that_comes_first_is_plain() {
        let mailbox = Mailbox::new(true);
        assert_eq!(first(&mailbox), None);
        mailbox.put_answer(b"{}").unwrap();
        assert_eq!(first(&mailbox), Some(First::Answer(Bytes::from_static(b"{}"))));
    }

    #[test]
    fn what_comes_before_the_answer_makes_both_events_in_one_piece() {
        let mailbox = Mailbox::new(true);
        mailbox.put_event(b"1").unwrap();
        mailbox.put_answer(b"2").unwrap();
        assert_eq!(first(&mailbox), Some(First::Events));
        let both = b"event: message\ndata: 1\n\nevent: message\ndata: 2\n\n";
        assert_eq!(events(&mailbox), Poll::Ready(Some(Bytes::from_static(both))));
        assert!(mailbox.is_over());
        assert_eq!(events(&mailbox), Poll::Ready(None));
    }

    #[test]
    fn line_breaks_in_a_message_do_not_break_its_event() {
        let event = Events::single(b"{\r\n\"a\":\r1,\n\"b\":\"\\n\"}");
        assert_eq!(event, "event: message\ndata: {  \"a\": 1, \"b\":\"\\n\"}\n\n");
    }

    #[test]
    fn nothing_is_taken_after_the_end() {
        let mailbox = Mailbox::new(true);
        mailbox.cancel();
        assert_eq!(mailbox.put_event(b"1"), Err(NotTaken::Ended));
        assert_eq!(mailbox.put_answer(b"2"), Err(NotTaken::Ended));
        assert_eq!(first(&mailbox), Some(First::Nothing));

        let answered = Mailbox::new(true);
        answered.put_answer(b"1").unwrap();
        answered.session_over();
        assert_eq!(first(&answered), Some(First::Answer(Bytes::from_static(b"1"))));
    }

    #[test]
    fn a_stream_that_wants_no_events_still_gets_its_answer() {
        let mailbox = Mailbox::new(false);
        assert_eq!(mailbox.put_event(b"1"), Err(NotTaken::NoEvents));
        mailbox.put_answer(b"2").unwrap();
        assert_eq!(first(&mailbox), Some(First::Answer(Bytes::from_static(b"2"))));
    }

    #[test]
    fn a_reader_that_is_too_slow_is_left_but_one_message_may_be_of_any_size() {
        let large = vec![b'1'; STREAM_BYTES_MAX + 1];
        let mailbox = Mailbox::new(true);
        mailbox.put_event(&large).unwrap();
        assert_eq!(mailbox.put_event(b"2"), Err(NotTaken::TooSlow));
        assert_eq!(mailbox.put_answer(b"3"), Err(NotTaken::Ended));
        assert_eq!(mailbox.mail.borrow().events.bytes(), 0);
        assert_eq!(first(&mailbox), Some(First::Events));
        assert_eq!(events(&mailbox), Poll::Ready(None));
    }
}
