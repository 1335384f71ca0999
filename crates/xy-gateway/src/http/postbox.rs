//! Where a session's messages go: to the call they belong to, or to whoever listens.
//!
//! Knows nothing of the conversation behind it, so that the two do not hold each other.

use std::cell::RefCell;
use std::rc::Rc;

use super::counts::Counts;
use super::limits::{KEPT_BYTES_MAX, KEPT_MESSAGES_MAX};
use super::session::Session;
use super::stream::{Events, Mailbox, NotTaken};
use crate::front::{Outlet, StreamNo, To};

/// All streams of one session that are open.
#[derive(Debug)]
pub(super) struct Postbox {
    /// Calls under way. So few that looking at each is the quickest way to find one.
    calls: RefCell<Vec<(StreamNo, Rc<Mailbox>)>>,
    listeners: RefCell<Listeners>,
    counts: Rc<Counts>,
}

#[derive(Debug, Default)]
struct Listeners {
    /// The newest last: if one is dead without our knowing, it is an older one.
    open: Vec<(StreamNo, Rc<Mailbox>)>,
    /// What came while nobody listened.
    kept: Events,
}

impl Postbox {
    pub(super) fn new(counts: Rc<Counts>) -> Self {
        Self { calls: RefCell::default(), listeners: RefCell::default(), counts }
    }

    /// How many streams are open.
    pub(super) fn open(&self) -> usize {
        self.calls.borrow().len() + self.listeners.borrow().open.len()
    }

    /// Opens the stream of a call.
    pub(super) fn open_call(&self, stream: StreamNo, streams: bool) -> Rc<Mailbox> {
        let mailbox = Rc::new(Mailbox::new(streams));
        self.calls.borrow_mut().push((stream, Rc::clone(&mailbox)));
        mailbox
    }

    /// Opens a stream for what belongs to no call, beginning with what was kept.
    pub(super) fn open_listener(&self, stream: StreamNo) -> Rc<Mailbox> {
        let mut listeners = self.listeners.borrow_mut();
        let mailbox = Rc::new(Mailbox::listening(std::mem::take(&mut listeners.kept)));
        listeners.open.push((stream, Rc::clone(&mailbox)));
        mailbox
    }

    /// Ends the streams that listen; calls may still be answered.
    pub(super) fn end_listeners(&self) {
        for (_, mailbox) in self.listeners.borrow_mut().open.drain(..) {
            mailbox.session_over();
        }
    }

    /// Nobody wants to know any more what was called for.
    pub(super) fn cancel_calls(&self) {
        for (_, mailbox) in self.calls.borrow().iter() {
            mailbox.cancel();
        }
    }

    /// The session has ended: so do all its streams.
    pub(super) fn end(&self) {
        for (_, mailbox) in self.calls.borrow_mut().drain(..) {
            mailbox.session_over();
        }
        self.end_listeners();
        self.listeners.borrow_mut().kept = Events::default();
    }

    /// A stream has no reader any more.
    fn close(&self, stream: StreamNo) {
        let mut calls = self.calls.borrow_mut();
        if let Some(at) = place_of(&calls, stream) {
            calls.swap_remove(at);
            return;
        }
        let mut listeners = self.listeners.borrow_mut();
        if let Some(at) = place_of(&listeners.open, stream) {
            let (_, mailbox) = listeners.open.remove(at);
            let unread = mailbox.take_events();
            self.keep(&mut listeners, unread);
        }
    }

    fn call(&self, stream: StreamNo) -> Option<Rc<Mailbox>> {
        let calls = self.calls.borrow();
        place_of(&calls, stream).map(|at| Rc::clone(&calls[at].1))
    }

    fn put_during(&self, message: &[u8], stream: StreamNo) {
        let outcome = self.call(stream).map_or(Err(NotTaken::Ended), |it| it.put_event(message));
        match outcome {
            // It may be a question: a client that reads JSON only, or has hung up on its call,
            // can be told elsewhere, or the server would wait for ever.
            Err(NotTaken::NoEvents | NotTaken::Ended) => self.put_anyone(message),
            outcome => self.note(outcome),
        }
    }

    fn put_anyone(&self, message: &[u8]) {
        let mut listeners = self.listeners.borrow_mut();
        while let Some((_, newest)) = listeners.open.last() {
            let outcome = newest.put_event(message);
            if outcome.is_ok() {
                return;
            }
            listeners.open.pop(); // Its reader sees the end of it.
            if outcome == Err(NotTaken::TooSlow) {
                self.counts.cut("slow-reader");
            }
        }
        let mut event = Events::default();
        event.push(message);
        self.keep(&mut listeners, event);
    }

    fn keep(&self, listeners: &mut Listeners, events: Events) {
        let count = listeners.kept.len() + events.len();
        let bytes = listeners.kept.bytes() + events.bytes();
        if count <= KEPT_MESSAGES_MAX && bytes <= KEPT_BYTES_MAX {
            listeners.kept.append(events);
        } else {
            self.counts.lost("nobody-listens");
        }
    }

    fn note(&self, outcome: Result<(), NotTaken>) {
        match outcome {
            Ok(()) => {}
            Err(NotTaken::TooSlow) => self.counts.cut("slow-reader"),
            Err(NotTaken::Ended | NotTaken::NoEvents) => self.counts.lost("no-reader"),
        }
    }
}

fn place_of(open: &[(StreamNo, Rc<Mailbox>)], stream: StreamNo) -> Option<usize> {
    open.iter().position(|(number, _)| *number == stream)
}

impl Outlet for Postbox {
    fn put(&self, message: &[u8], to: To) {
        match to {
            To::Answer(stream) => match self.call(stream) {
                Some(call) => self.note(call.put_answer(message)),
                None => self.counts.lost("no-reader"),
            },
            To::During(stream) => self.put_during(message, stream),
            To::Anyone => self.put_anyone(message),
            To::Nobody(stream) => {
                if let Some(call) = self.call(stream) {
                    call.cancel();
                }
            }
        }
    }
}

/// A stream that is open as long as this is held.
#[derive(Debug)]
pub(super) struct Lease {
    session: Rc<Session>,
    stream: StreamNo,
    mailbox: Rc<Mailbox>,
}

impl Lease {
    pub(super) fn new(session: Rc<Session>, stream: StreamNo, mailbox: Rc<Mailbox>) -> Self {
        Self { session, stream, mailbox }
    }

    pub(super) fn stream(&self) -> StreamNo {
        self.stream
    }

    pub(super) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.session.postbox().close(self.stream);
        self.session.touch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn postbox() -> Postbox {
        Postbox::new(Rc::default())
    }

    fn lost(postbox: &Postbox) -> bool {
        let mut out = String::new();
        postbox.counts.write(&mut out, super::super::counts::Gauges { sessions: 0, streams: 0 });
        out.contains("xy_http_lost_messages_total{")
    }

    #[test]
    fn what_belongs_to_no_call_goes_to_exactly_one_listener() {
        let postbox = postbox();
        let (older, newer) = (postbox.open_listener(1), postbox.open_listener(2));
        postbox.put(b"1", To::Anyone);
        assert_eq!((older.take_events().len(), newer.take_events().len()), (0, 1));
    }

    #[test]
    fn what_nobody_hears_is_kept_for_the_next_who_listens_up_to_a_bound() {
        let postbox = postbox();
        for _ in 0..KEPT_MESSAGES_MAX {
            postbox.put(b"1", To::Anyone);
        }
        assert!(!lost(&postbox));
        postbox.put(b"2", To::Anyone);
        assert!(lost(&postbox));
        assert_eq!(postbox.open_listener(1).take_events().len(), KEPT_MESSAGES_MAX);
        assert_eq!(postbox.open_listener(2).take_events().len(), 0);
    }

    #[test]
    fn a_large_message_is_not_kept() {
        let postbox = postbox();
        postbox.put(&vec![b'1'; KEPT_BYTES_MAX], To::Anyone);
        assert!(lost(&postbox));
        assert_eq!(postbox.open_listener(1).take_events().len(), 0);
    }

    #[test]
    fn what_a_listener_left_unread_goes_to_the_next() {
        let postbox = postbox();
        postbox.open_listener(1);
        postbox.put(b"1", To::Anyone);
        postbox.close(1);
        postbox.put(b"2", To::Anyone);
        assert_eq!(postbox.open_listener(2).take_events().len(), 2);
    }

    #[test]
    fn the_answer_to_a_call_that_is_gone_is_dropped() {
        let postbox = postbox();
        postbox.open_call(1, true);
        postbox.close(1);
        postbox.put(b"1", To::Answer(1));
        postbox.put(b"", To::Nobody(1));
        assert!(lost(&postbox));
        assert_eq!(postbox.open(), 0);
        assert_eq!(postbox.open_listener(2).take_events().len(), 0);
    }

    #[test]
    fn what_comes_before_the_answer_of_a_call_that_is_gone_goes_to_whoever_listens() {
        let postbox = postbox();
        postbox.open_call(1, true);
        postbox.close(1);
        postbox.put(b"1", To::During(1));
        let listener = postbox.open_listener(2);
        postbox.put(b"2", To::During(1));
        assert_eq!(listener.take_events().len(), 2);
        assert!(!lost(&postbox));
    }

    #[test]
    fn what_comes_before_the_answer_goes_to_a_listener_if_the_call_wants_json_only() {
        let postbox = postbox();
        let listener = postbox.open_listener(1);
        postbox.open_call(2, false);
        postbox.put(b"1", To::During(2));
        assert_eq!(listener.take_events().len(), 1);
    }
}
