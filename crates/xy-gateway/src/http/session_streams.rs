//! Where a session's messages go: to the call they belong to, or to whoever listens.
//!
//! A stream that has a connection is among the calls or the listeners. One that has lost it,
//! or has ended, is *apart*: it can be taken up again as long as there is room for it.
//!
//! ```text
//!  call ──────┬─ connection lost, or all is said ──► apart ── too old, too many ──► forgotten
//!  listener ──┘ ◄──────── taken up again ──────────────┘
//! ```
//!
//! Knows nothing of the conversation behind it, so that the two do not hold each other.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use hyper::body::Bytes;
use tokio::time::Instant;
use xy_mcp::envelope::{self, Message};

use super::counts::{Counts, Stored};
use super::event::{EventId, StreamId, StreamKind};
use super::limits::{APART_MAX, FETCH_WITHIN, KEPT_BYTES_MAX, KEPT_MESSAGES_MAX, SENT_KNOWN_FOR};
use super::recorder::Recorder;
use super::refused::Refused;
use super::replay_buffer::{Evicted, Spare};
use super::response_stream::{NotTaken, ResponseStream, Resumed, StreamMode, Taken};
use super::room::Room;
use super::session::Session;
use crate::frontend::{Responder, Route, StreamNo};

/// Where messages come in that an earlier daemon has answered: no call of this one has it.
pub(super) const REPLAYED: StreamNo = 0;

/// All streams of one session.
#[derive(Debug)]
pub(super) struct SessionStreams {
    streams: RefCell<Streams>,
    last_stream: Cell<StreamNo>,
    recorder: Rc<Recorder>,
    room: Rc<Room>,
    counts: Rc<Counts>,
}

#[derive(Debug, Default)]
struct Streams {
    /// Calls under way. So few that looking at each is the quickest way to find one.
    calls: Vec<Rc<ResponseStream>>,
    /// The newest last: if one is dead without our knowing, it is an older one.
    listeners: Vec<Rc<ResponseStream>>,
    /// What came while nobody listened.
    kept: VecDeque<Bytes>,
    kept_bytes: usize,
    /// How many more came for which there was no room.
    unkept: u64,
    /// The oldest first.
    apart: VecDeque<Apart>,
    /// Where everything is said, in the older transport.
    only: Option<Rc<ResponseStream>>,
}

/// A stream without a connection.
#[derive(Debug)]
struct Apart {
    response_stream: Rc<ResponseStream>,
    kind: StreamKind,
}

impl Apart {
    /// Whether it is still to be answered.
    fn waits(&self) -> bool {
        self.kind == StreamKind::Call && self.response_stream.is_open()
    }

    /// Whether nobody will come back to it any more.
    fn is_too_old(&self, now: Instant) -> bool {
        let is_done = !self.response_stream.is_open() && self.response_stream.is_all_sent();
        let limit = if is_done { SENT_KNOWN_FOR } else { FETCH_WITHIN };
        let since = self.response_stream.forsaken_since();
        !self.waits() && since.is_some_and(|since| now.saturating_duration_since(since) > limit)
    }
}

/// What comes of taking up a stream again.
#[derive(Debug)]
pub(super) enum TakenUp {
    /// The client has heard everything.
    Over,
    /// It goes on.
    On(Rc<ResponseStream>, u32),
}

impl SessionStreams {
    pub(super) fn new(recorder: Rc<Recorder>, room: Rc<Room>, counts: Rc<Counts>) -> Self {
        let streams = RefCell::default();
        Self { streams, last_stream: Cell::new(0), recorder, room, counts }
    }

    /// How many streams have a connection.
    pub(super) fn open(&self) -> usize {
        let streams = self.streams.borrow();
        streams.calls.len() + streams.listeners.len() + usize::from(streams.only.is_some())
    }

    /// How many have none.
    pub(super) fn apart(&self) -> usize {
        self.streams.borrow().apart.len()
    }

    /// How many messages wait until somebody listens.
    pub(super) fn kept(&self) -> usize {
        self.streams.borrow().kept.len()
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Opens the stream of a call.
    pub(super) fn open_call(&self, manner: StreamMode) -> Rc<ResponseStream> {
        let response_stream = self.response_stream(StreamKind::Call, manner);
        self.streams.borrow_mut().calls.push(Rc::clone(&response_stream));
        response_stream
    }

    /// Opens a stream for what belongs to no call, beginning with what was kept.
    pub(super) fn open_listener(&self, polls: bool) -> Rc<ResponseStream> {
        let response_stream =
            self.response_stream(StreamKind::Listener, StreamMode { events: true, polls });
        response_stream.begin();
        self.listen(&response_stream);
        response_stream
    }

    /// Opens the stream on which everything is said.
    pub(super) fn open_only(&self) -> Rc<ResponseStream> {
        let manner = StreamMode { events: true, polls: false };
        let response_stream = Rc::new(ResponseStream::new(0, None, manner, Rc::clone(&self.room)));
        response_stream.begin();
        self.streams.borrow_mut().only = Some(Rc::clone(&response_stream));
        response_stream
    }

    /// Takes up a stream again, after an event of it. A connection that it may still have is
    /// left: if one of the two is dead without our knowing, it is the older. No more than `max`
    /// are open then.
    pub(super) fn take_up(&self, id: EventId, max: usize) -> Result<TakenUp, Refused> {
        let is_ours = id.of.tag == self.recorder.tag();
        if !is_ours || !(1..=self.last_stream.get()).contains(&id.of.stream) {
            return Err(Refused::UnknownEvent);
        }
        let Some((response_stream, kind)) = self.streams.borrow().find(id.of.stream) else {
            return Err(Refused::EventGone);
        };
        if id.of.kind != Some(kind) {
            return Err(Refused::UnknownEvent);
        }
        let is_apart = self.streams.borrow().is_apart(id.of.stream);
        if is_apart && self.open() >= max {
            return Err(Refused::TooManyStreams(max));
        }
        let resumed = response_stream.resume(id.place).ok_or(Refused::UnknownEvent)?;
        let mut streams = self.streams.borrow_mut();
        streams.remove(id.of.stream);
        match resumed {
            Resumed::Over => {
                self.set_apart(&mut streams, response_stream, kind);
                Ok(TakenUp::Over)
            }
            Resumed::On(connection) => {
                match kind {
                    StreamKind::Call => streams.calls.push(Rc::clone(&response_stream)),
                    StreamKind::Listener => {
                        drop(streams);
                        self.listen(&response_stream);
                    }
                }
                Ok(TakenUp::On(response_stream, connection))
            }
        }
    }

    /// Ends the streams that listen; calls may still be answered. Clients on any stream learn
    /// when to come back.
    pub(super) fn end_listeners(&self, retry_ms: u64) {
        let mut streams = self.streams.borrow_mut();
        for response_stream in streams.calls.iter().chain(&streams.listeners) {
            response_stream.say_retry(retry_ms);
        }
        for response_stream in streams.listeners.drain(..) {
            response_stream.session_over();
        }
    }

    /// Ends the stream on which everything is said.
    pub(super) fn end_only(&self) {
        if let Some(only) = &self.streams.borrow().only {
            only.session_over();
        }
    }

    /// Nobody wants to know any more what was called for.
    pub(super) fn cancel_calls(&self) {
        for response_stream in &self.streams.borrow().calls {
            response_stream.cancel();
        }
    }

    /// The session has ended: so do all its streams, and nothing is held for them.
    pub(super) fn end(&self) {
        let streams = std::mem::take(&mut *self.streams.borrow_mut());
        let kept = Stored { events: streams.kept.len(), bytes: streams.kept_bytes };
        self.room.changes(kept, Stored::default());
        for response_stream in streams.calls.iter().chain(&streams.listeners).chain(&streams.only) {
            response_stream.session_over();
        }
    }

    /// Forgets what is too old to be asked for.
    pub(super) fn sweep(&self, now: Instant) {
        let mut streams = self.streams.borrow_mut();
        if let Some(then) = now.checked_sub(FETCH_WITHIN) {
            for response_stream in streams.all() {
                response_stream.forget_before(then);
            }
        }
        streams.apart.retain(|apart| {
            let forgotten = apart.is_too_old(now);
            if forgotten {
                apart.response_stream.end_record();
            }
            if forgotten && !apart.response_stream.is_all_sent() {
                self.counts.lost("not-fetched");
            }
            !forgotten
        });
    }

    /// A stream has no connection any more.
    pub(super) fn close(&self, response_stream: &Rc<ResponseStream>) {
        let removed = self.streams.borrow_mut().remove(response_stream.stream());
        let Some((response_stream, kind)) = removed else { return };
        // A listener's words are for whoever listens next, and so are those that nobody can
        // ask for, since the client was told no name of theirs: a question may be among them.
        if kind == StreamKind::Listener || !response_stream.is_resumable() {
            for message in response_stream.take_unsent() {
                self.put_elsewhere(&message);
            }
        }
        if response_stream.is_resumable() {
            let mut streams = self.streams.borrow_mut();
            self.set_apart(&mut streams, response_stream, kind);
            self.make_room(&streams, 0);
        } else {
            response_stream.end_record();
        }
    }

    fn response_stream(&self, kind: StreamKind, manner: StreamMode) -> Rc<ResponseStream> {
        let stream = self.last_stream.get() + 1; // 0 is where everything comes in.
        self.last_stream.set(stream);
        let id = StreamId { tag: self.recorder.tag(), kind: Some(kind), stream };
        let response_stream = ResponseStream::new(stream, Some(id), manner, Rc::clone(&self.room));
        Rc::new(response_stream.with_recorder(Rc::clone(&self.recorder)))
    }

    /// From now on this stream hears what belongs to no call.
    fn listen(&self, response_stream: &Rc<ResponseStream>) {
        let mut streams = self.streams.borrow_mut();
        let kept = std::mem::take(&mut streams.kept);
        let bytes = std::mem::take(&mut streams.kept_bytes);
        self.room.changes(Stored { events: kept.len(), bytes }, Stored::default());
        response_stream.say_missed(std::mem::take(&mut streams.unkept));
        streams.listeners.push(Rc::clone(response_stream));
        drop(streams);
        for message in kept {
            self.put_anyone(&message);
        }
    }

    /// Holds a stream without a connection, if need be instead of another.
    fn set_apart(
        &self,
        streams: &mut Streams,
        response_stream: Rc<ResponseStream>,
        kind: StreamKind,
    ) {
        if streams.apart.len() >= APART_MAX {
            let at = streams.apart.iter().position(|it| !it.waits()).unwrap_or(0);
            let forgotten = streams.apart.remove(at);
            if let Some(it) = &forgotten {
                it.response_stream.end_record();
            }
            if forgotten.is_some_and(|it| it.waits() || !it.response_stream.is_all_sent()) {
                self.counts.lost("not-fetched");
            }
        }
        streams.apart.push_back(Apart { response_stream, kind });
    }

    /// Forgets events until the rest and so many bytes more have room: first what was sent once.
    fn make_room(&self, streams: &Streams, more: usize) {
        while self.room.is_over_with(more) {
            let evict =
                |spare| streams.all().find_map(|response_stream| response_stream.evict(spare));
            match evict(Spare::Sent).or_else(|| evict(Spare::All)) {
                Some(Evicted::Sent) => {}
                Some(Evicted::Unsent) => self.counts.lost("not-kept"),
                None => return, // What is left waits for a connection, which has its own bound.
            }
        }
    }

    fn put_answer(&self, message: &[u8], stream: StreamNo) {
        let found = self.streams.borrow().find(stream);
        match found {
            Some((call, _)) => {
                let outcome = call.put_answer(message);
                self.note(outcome, &call);
            }
            None if stream == REPLAYED => {}
            None => self.counts.lost("no-reader"),
        }
    }

    fn put_during(&self, message: &[u8], stream: StreamNo) {
        let found = self.streams.borrow().find(stream);
        if found.as_ref().is_some_and(|(call, _)| !call.has_events()) {
            self.make_room(&self.streams.borrow(), message.len() + 1); // It may be kept there.
        }
        let outcome = found.map(|(call, _)| (call.put_event(message), call));
        match outcome {
            // It may be a question: a client that reads JSON only, or has hung up on its call,
            // can be told elsewhere, or the server would wait for ever.
            None | Some((Err(_), _)) => self.put_elsewhere(message),
            Some((outcome, call)) => self.note(outcome, &call),
        }
    }

    /// Puts what cannot be said on its own stream. An answer is for that one, and no other.
    fn put_elsewhere(&self, message: &[u8]) {
        match envelope::parse(message) {
            Ok(Message::Answer { .. }) => self.counts.lost("no-reader"),
            _ => self.put_anyone(message),
        }
    }

    fn put_anyone(&self, message: &[u8]) {
        loop {
            let newest = self.streams.borrow().listeners.last().cloned();
            let Some(newest) = newest else { return self.keep(message) };
            let outcome = newest.put_event(message);
            if outcome.is_ok() {
                return self.note(outcome, &newest);
            }
            self.streams.borrow_mut().listeners.pop(); // Its reader sees the end of it.
        }
    }

    fn put_only(&self, message: &[u8], only: &ResponseStream) {
        match only.put_event(message) {
            Ok(Taken::Fits) => {}
            Ok(Taken::TooSlow) => {
                self.counts.cut("slow-reader");
                only.session_over();
                drop(only.take_unsent()); // Its connection may take a while to end.
            }
            Err(NotTaken::Ended | NotTaken::NoEvents) => self.counts.lost("no-reader"),
        }
    }

    /// Keeps a message for whoever listens next.
    fn keep(&self, message: &[u8]) {
        let mut streams = self.streams.borrow_mut();
        let bytes = streams.kept_bytes + message.len();
        let has_room = streams.kept.len() < KEPT_MESSAGES_MAX && bytes <= KEPT_BYTES_MAX;
        if !has_room || self.room.is_over() {
            streams.unkept += 1;
            return self.counts.lost("nobody-listens");
        }
        streams.kept.push_back(Bytes::copy_from_slice(message));
        streams.kept_bytes = bytes;
        self.room.changes(Stored::default(), Stored { events: 1, bytes: message.len() });
    }

    fn note(&self, outcome: Result<Taken, NotTaken>, response_stream: &Rc<ResponseStream>) {
        match outcome {
            Ok(Taken::Fits) => self.make_room(&self.streams.borrow(), 0),
            Ok(Taken::TooSlow) => {
                self.counts.cut("slow-reader");
                self.close(response_stream);
            }
            Err(NotTaken::Ended | NotTaken::NoEvents) => self.counts.lost("no-reader"),
        }
    }
}

impl Streams {
    /// All of them, those that are forgotten first at the beginning.
    fn all(&self) -> impl Iterator<Item = &Rc<ResponseStream>> {
        let apart = self.apart.iter().map(|it| &it.response_stream);
        apart.chain(&self.calls).chain(&self.listeners)
    }

    fn find(&self, stream: StreamNo) -> Option<(Rc<ResponseStream>, StreamKind)> {
        let calls = self.calls.iter().map(|it| (it, StreamKind::Call));
        let apart = self.apart.iter().map(|it| (&it.response_stream, it.kind));
        let listeners = self.listeners.iter().map(|it| (it, StreamKind::Listener));
        let mut all = calls.chain(apart).chain(listeners);
        all.find(|(it, _)| it.stream() == stream).map(|(it, kind)| (Rc::clone(it), kind))
    }

    fn is_apart(&self, stream: StreamNo) -> bool {
        self.apart.iter().any(|it| it.response_stream.stream() == stream)
    }

    fn remove(&mut self, stream: StreamNo) -> Option<(Rc<ResponseStream>, StreamKind)> {
        let is_it = |it: &Rc<ResponseStream>| it.stream() == stream;
        if let Some(at) = self.calls.iter().position(is_it) {
            return Some((self.calls.swap_remove(at), StreamKind::Call));
        }
        if let Some(at) = self.listeners.iter().position(is_it) {
            return Some((self.listeners.remove(at), StreamKind::Listener));
        }
        let at = self.apart.iter().position(|it| is_it(&it.response_stream))?;
        self.apart.remove(at).map(|it| (it.response_stream, it.kind))
    }
}

impl Responder for SessionStreams {
    fn put(&self, message: &[u8], to: Route) {
        self.recorder.observe(message, to);
        let only = self.streams.borrow().only.clone();
        match (to, only) {
            (Route::Cancelled(_), Some(_)) => {}
            (_, Some(only)) => self.put_only(message, &only),
            (Route::Answer(stream), None) => self.put_answer(message, stream),
            (Route::Related(stream), None) => self.put_during(message, stream),
            (Route::Broadcast, None) => self.put_anyone(message),
            (Route::Cancelled(stream), None) => {
                let found = self.streams.borrow().find(stream);
                if let Some((call, _)) = found {
                    call.cancel();
                }
            }
        }
    }
}

/// A stream that has a connection as long as this is held.
#[derive(Debug)]
pub(super) struct Lease {
    session: Rc<Session>,
    response_stream: Rc<ResponseStream>,
    connection: u32,
}

impl Lease {
    pub(super) fn new(
        session: Rc<Session>,
        response_stream: Rc<ResponseStream>,
        connection: u32,
    ) -> Self {
        Self { session, response_stream, connection }
    }

    pub(super) fn stream(&self) -> StreamNo {
        self.response_stream.stream()
    }

    pub(super) fn response_stream(&self) -> &Rc<ResponseStream> {
        &self.response_stream
    }

    /// Which of the stream's connections it is; 0 is the first.
    pub(super) fn connection(&self) -> u32 {
        self.connection
    }

    /// Whether those who only wait should come back later.
    pub(super) fn is_crowded(&self) -> bool {
        self.session.session_streams().counts().is_crowded()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.response_stream.detach(self.connection) {
            self.session.session_streams().close(&self.response_stream);
        }
        self.session.lost_stream();
    }
}

#[cfg(test)]
mod tests;
