//! Routes a session's messages to the stream of their call, or to a listening stream.
//!
//! A connected stream is a call or a listener. A stream whose connection broke, or that is
//! complete, is *disconnected*: the client can resume it as long as its events are stored.
//!
//! ```text
//!  call ──────┬─ connection lost, or complete ──► disconnected ── expired, too many ──► dropped
//!  listener ──┘ ◄──────── resumed ────────────────────┘
//! ```
//!
//! Has no reference to the client session, as that would be a reference cycle.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use hyper::body::Bytes;
use tokio::time::Instant;
use xy_mcp::envelope::{self, Message};

use crate::counters::{Counters, StorageUse};
use crate::error::HttpError;
use crate::event::{EventId, StreamId, StreamKind};
use crate::frontend::{Responder, Route, StreamNo};
use crate::limits::{
    DISCONNECTED_STREAMS_MAX, FETCH_TIMEOUT, SENT_FETCH_TIMEOUT, UNDELIVERED_BYTES_MAX,
    UNDELIVERED_MESSAGES_MAX,
};
use crate::recorder::Recorder;
use crate::replay_buffer::{Evictable, Eviction};
use crate::response_stream::{PutError, PutOutcome, ResponseStream, ResumeOutcome, StreamMode};
use crate::storage_budget::StorageBudget;

/// The stream number of replayed messages, which the client sent to an earlier daemon. No stream of
/// this daemon has it.
pub(super) const REPLAYED: StreamNo = 0;

/// All streams of one session.
#[derive(Debug)]
pub(super) struct SessionStreams {
    streams: RefCell<Streams>,
    last_stream: Cell<StreamNo>,
    recorder: Rc<Recorder>,
    storage: Rc<StorageBudget>,
    counters: Rc<Counters>,
}

#[derive(Debug, Default)]
struct Streams {
    /// The streams of open calls. There are few, so a linear search is fastest.
    calls: Vec<Rc<ResponseStream>>,
    /// The listening streams, the newest last. A connection that broke unnoticed is an older one.
    listeners: Vec<Rc<ResponseStream>>,
    /// Messages that arrived while no stream was listening.
    undelivered: VecDeque<Bytes>,
    undelivered_bytes: usize,
    /// The number of further such messages that were dropped for lack of room.
    dropped: u64,
    /// The oldest first.
    disconnected: VecDeque<DisconnectedStream>,
    /// The only stream of a legacy session.
    legacy_stream: Option<Rc<ResponseStream>>,
}

/// A stream without a connection.
#[derive(Debug)]
struct DisconnectedStream {
    response_stream: Rc<ResponseStream>,
    kind: StreamKind,
}

impl DisconnectedStream {
    /// Returns true if the response is still to come.
    fn awaits_response(&self) -> bool {
        self.kind == StreamKind::Call && self.response_stream.is_open()
    }

    /// Returns true if the client can be assumed not to resume it.
    fn is_too_old(&self, now: Instant) -> bool {
        let is_done = !self.response_stream.is_open() && self.response_stream.is_all_sent();
        let limit = if is_done { SENT_FETCH_TIMEOUT } else { FETCH_TIMEOUT };
        let since = self.response_stream.idle_since();
        !self.awaits_response()
            && since.is_some_and(|since| now.saturating_duration_since(since) > limit)
    }
}

/// The result of resuming a stream.
#[derive(Debug)]
pub(super) enum ResumedStream {
    /// The client has received everything.
    Complete,
    /// The stream continues, on this connection.
    Open(Rc<ResponseStream>, u32),
}

impl SessionStreams {
    pub(super) fn new(
        recorder: Rc<Recorder>,
        storage: Rc<StorageBudget>,
        counters: Rc<Counters>,
    ) -> Self {
        let streams = RefCell::default();
        Self { streams, last_stream: Cell::new(0), recorder, storage, counters }
    }

    /// Returns the number of connected streams.
    pub(super) fn open(&self) -> usize {
        let streams = self.streams.borrow();
        streams.calls.len() + streams.listeners.len() + usize::from(streams.legacy_stream.is_some())
    }

    /// Returns the number of disconnected streams.
    pub(super) fn disconnected(&self) -> usize {
        self.streams.borrow().disconnected.len()
    }

    /// Returns the number of messages that wait for a listening stream.
    pub(super) fn undelivered(&self) -> usize {
        self.streams.borrow().undelivered.len()
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Opens the stream of a call.
    pub(super) fn open_call(&self, mode: StreamMode) -> Rc<ResponseStream> {
        let response_stream = self.response_stream(StreamKind::Call, mode);
        self.streams.borrow_mut().calls.push(Rc::clone(&response_stream));
        response_stream
    }

    /// Opens a listening stream. It begins with the undelivered messages.
    pub(super) fn open_listener(&self, polls: bool) -> Rc<ResponseStream> {
        let response_stream =
            self.response_stream(StreamKind::Listener, StreamMode { events: true, polls });
        response_stream.start_events();
        self.listen(&response_stream);
        response_stream
    }

    /// Opens the only stream of a legacy session.
    pub(super) fn open_legacy_stream(&self) -> Rc<ResponseStream> {
        let mode = StreamMode { events: true, polls: false };
        let response_stream = Rc::new(ResponseStream::new(0, None, mode, Rc::clone(&self.storage)));
        response_stream.start_events();
        self.streams.borrow_mut().legacy_stream = Some(Rc::clone(&response_stream));
        response_stream
    }

    /// Resumes a stream after one of its events, with at most `max` streams open.
    ///
    /// An older connection of the stream is dropped: if one of the two is broken, it is the older
    /// one.
    pub(super) fn resume_stream(
        &self,
        id: EventId,
        max: usize,
    ) -> Result<ResumedStream, HttpError> {
        let is_own_tag = id.stream_id.tag == self.recorder.tag();
        if !is_own_tag || !(1..=self.last_stream.get()).contains(&id.stream_id.stream) {
            return Err(HttpError::UnknownEvent);
        }
        let Some((response_stream, kind)) = self.streams.borrow().find(id.stream_id.stream) else {
            return Err(HttpError::EventExpired);
        };
        if id.stream_id.kind != Some(kind) {
            return Err(HttpError::UnknownEvent);
        }
        let is_disconnected = self.streams.borrow().is_disconnected(id.stream_id.stream);
        if is_disconnected && self.open() >= max {
            return Err(HttpError::TooManyStreams(max));
        }
        let resumed = response_stream.resume(id.position).ok_or(HttpError::UnknownEvent)?;
        let mut streams = self.streams.borrow_mut();
        streams.remove(id.stream_id.stream);
        match resumed {
            ResumeOutcome::Complete => {
                self.add_disconnected(&mut streams, response_stream, kind);
                Ok(ResumedStream::Complete)
            }
            ResumeOutcome::Connection(connection) => {
                match kind {
                    StreamKind::Call => streams.calls.push(Rc::clone(&response_stream)),
                    StreamKind::Listener => {
                        drop(streams);
                        self.listen(&response_stream);
                    }
                }
                Ok(ResumedStream::Open(response_stream, connection))
            }
        }
    }

    /// Ends the listening streams; calls may still be answered. Tells the clients of all streams
    /// when to reconnect.
    pub(super) fn end_listeners(&self, retry_ms: u64) {
        let mut streams = self.streams.borrow_mut();
        for response_stream in streams.calls.iter().chain(&streams.listeners) {
            response_stream.send_retry(retry_ms);
        }
        for response_stream in streams.listeners.drain(..) {
            response_stream.end_session();
        }
    }

    /// Ends the stream of a legacy session.
    pub(super) fn end_legacy_stream(&self) {
        if let Some(legacy_stream) = &self.streams.borrow().legacy_stream {
            legacy_stream.end_session();
        }
    }

    /// Cancels the streams of all open calls: the client wants no responses.
    pub(super) fn cancel_calls(&self) {
        for response_stream in &self.streams.borrow().calls {
            response_stream.cancel();
        }
    }

    /// Ends all streams, and frees their storage, as the session ends.
    pub(super) fn end(&self) {
        let streams = std::mem::take(&mut *self.streams.borrow_mut());
        let undelivered =
            StorageUse { events: streams.undelivered.len(), bytes: streams.undelivered_bytes };
        self.storage.update(undelivered, StorageUse::default());
        for response_stream in
            streams.calls.iter().chain(&streams.listeners).chain(&streams.legacy_stream)
        {
            response_stream.end_session();
        }
    }

    /// Drops expired events and streams.
    pub(super) fn sweep(&self, now: Instant) {
        let mut streams = self.streams.borrow_mut();
        if let Some(then) = now.checked_sub(FETCH_TIMEOUT) {
            for response_stream in streams.all() {
                response_stream.forget_before(then);
            }
        }
        streams.disconnected.retain(|disconnected| {
            let forgotten = disconnected.is_too_old(now);
            if forgotten {
                disconnected.response_stream.end_record();
            }
            if forgotten && !disconnected.response_stream.is_all_sent() {
                self.counters.count_lost("expired");
            }
            !forgotten
        });
    }

    /// Handles a stream that has lost its connection.
    pub(super) fn close(&self, response_stream: &Rc<ResponseStream>) {
        let removed = self.streams.borrow_mut().remove(response_stream.stream());
        let Some((response_stream, kind)) = removed else { return };
        // Unsent messages of a listening stream go to the next one. So do those of a stream that
        // the client cannot resume, as it knows no event id: they may contain a request.
        if kind == StreamKind::Listener || !response_stream.is_resumable() {
            for message in response_stream.take_unsent() {
                self.put_elsewhere(&message);
            }
        }
        if response_stream.is_resumable() {
            let mut streams = self.streams.borrow_mut();
            self.add_disconnected(&mut streams, response_stream, kind);
            self.free_storage(&streams, 0);
        } else {
            response_stream.end_record();
        }
    }

    fn response_stream(&self, kind: StreamKind, mode: StreamMode) -> Rc<ResponseStream> {
        let stream = self.last_stream.get() + 1; // 0 is reserved.
        self.last_stream.set(stream);
        let id = StreamId { tag: self.recorder.tag(), kind: Some(kind), stream };
        let response_stream = ResponseStream::new(stream, Some(id), mode, Rc::clone(&self.storage));
        Rc::new(response_stream.with_recorder(Rc::clone(&self.recorder)))
    }

    /// Adds a listening stream, and sends the undelivered messages on it.
    fn listen(&self, response_stream: &Rc<ResponseStream>) {
        let mut streams = self.streams.borrow_mut();
        let undelivered = std::mem::take(&mut streams.undelivered);
        let bytes = std::mem::take(&mut streams.undelivered_bytes);
        self.storage.update(StorageUse { events: undelivered.len(), bytes }, StorageUse::default());
        response_stream.report_missed(std::mem::take(&mut streams.dropped));
        streams.listeners.push(Rc::clone(response_stream));
        drop(streams);
        for message in undelivered {
            self.put_broadcast(&message);
        }
    }

    /// Keeps a disconnected stream, if necessary in place of another.
    fn add_disconnected(
        &self,
        streams: &mut Streams,
        response_stream: Rc<ResponseStream>,
        kind: StreamKind,
    ) {
        if streams.disconnected.len() >= DISCONNECTED_STREAMS_MAX {
            let at = streams.disconnected.iter().position(|it| !it.awaits_response()).unwrap_or(0);
            let forgotten = streams.disconnected.remove(at);
            if let Some(it) = &forgotten {
                it.response_stream.end_record();
            }
            if forgotten.is_some_and(|it| it.awaits_response() || !it.response_stream.is_all_sent())
            {
                self.counters.count_lost("evicted");
            }
        }
        streams.disconnected.push_back(DisconnectedStream { response_stream, kind });
    }

    /// Drops events until `more` bytes fit: sent ones first.
    fn free_storage(&self, streams: &Streams, more: usize) {
        while self.storage.would_exceed(more) {
            let evict = |evictable| {
                streams.all().find_map(|response_stream| response_stream.evict(evictable))
            };
            match evict(Evictable::Sent).or_else(|| evict(Evictable::All)) {
                Some(Eviction::Sent) => {}
                Some(Eviction::Unsent) => self.counters.count_lost("evicted"),
                None => return, // The rest waits for connected clients and has a limit of its own.
            }
        }
    }

    fn put_response(&self, message: &[u8], stream: StreamNo) {
        let found = self.streams.borrow().find(stream);
        match found {
            Some((call, _)) => {
                let outcome = call.put_response(message);
                self.handle_outcome(outcome, &call);
            }
            None if stream == REPLAYED => {}
            None => self.counters.count_lost("no-reader"),
        }
    }

    fn put_related(&self, message: &[u8], stream: StreamNo) {
        let found = self.streams.borrow().find(stream);
        if found.as_ref().is_some_and(|(call, _)| !call.allows_events()) {
            // The message may be stored there.
            self.free_storage(&self.streams.borrow(), message.len() + 1);
        }
        let outcome = found.map(|(call, _)| (call.put_event(message), call));
        match outcome {
            // It may be a request of a server. A client that accepts only JSON, or has closed its
            // call, must receive it on another stream: otherwise the server would wait for ever.
            None | Some((Err(_), _)) => self.put_elsewhere(message),
            Some((outcome, call)) => self.handle_outcome(outcome, &call),
        }
    }

    /// Sends a message that its own stream cannot take on a listening stream. Drops a response,
    /// which is valid on its own stream only.
    fn put_elsewhere(&self, message: &[u8]) {
        match envelope::parse(message) {
            Ok(Message::Response { .. }) => self.counters.count_lost("no-reader"),
            _ => self.put_broadcast(message),
        }
    }

    fn put_broadcast(&self, message: &[u8]) {
        loop {
            let newest = self.streams.borrow().listeners.last().cloned();
            let Some(newest) = newest else { return self.store_undelivered(message) };
            let outcome = newest.put_event(message);
            if outcome.is_ok() {
                return self.handle_outcome(outcome, &newest);
            }
            self.streams.borrow_mut().listeners.pop(); // Its connection ends by itself.
        }
    }

    fn put_legacy(&self, message: &[u8], legacy_stream: &ResponseStream) {
        match legacy_stream.put_event(message) {
            Ok(PutOutcome::Queued) => {}
            Ok(PutOutcome::TooSlow) => {
                self.counters.count_closed("slow-reader");
                legacy_stream.end_session();
                drop(legacy_stream.take_unsent()); // Its connection may take a while to end.
            }
            Err(PutError::Ended | PutError::NoEvents) => self.counters.count_lost("no-reader"),
        }
    }

    /// Stores a message for the next listening stream.
    fn store_undelivered(&self, message: &[u8]) {
        let mut streams = self.streams.borrow_mut();
        let bytes = streams.undelivered_bytes + message.len();
        let has_room =
            streams.undelivered.len() < UNDELIVERED_MESSAGES_MAX && bytes <= UNDELIVERED_BYTES_MAX;
        if !has_room || self.storage.is_exceeded() {
            streams.dropped += 1;
            return self.counters.count_lost("no-listener");
        }
        streams.undelivered.push_back(Bytes::copy_from_slice(message));
        streams.undelivered_bytes = bytes;
        self.storage.update(StorageUse::default(), StorageUse { events: 1, bytes: message.len() });
    }

    fn handle_outcome(
        &self,
        outcome: Result<PutOutcome, PutError>,
        response_stream: &Rc<ResponseStream>,
    ) {
        match outcome {
            Ok(PutOutcome::Queued) => self.free_storage(&self.streams.borrow(), 0),
            Ok(PutOutcome::TooSlow) => {
                self.counters.count_closed("slow-reader");
                self.close(response_stream);
            }
            Err(PutError::Ended | PutError::NoEvents) => self.counters.count_lost("no-reader"),
        }
    }
}

impl Streams {
    /// Returns all streams, in the order in which their events are dropped.
    fn all(&self) -> impl Iterator<Item = &Rc<ResponseStream>> {
        let disconnected = self.disconnected.iter().map(|it| &it.response_stream);
        disconnected.chain(&self.calls).chain(&self.listeners)
    }

    fn find(&self, stream: StreamNo) -> Option<(Rc<ResponseStream>, StreamKind)> {
        let calls = self.calls.iter().map(|it| (it, StreamKind::Call));
        let disconnected = self.disconnected.iter().map(|it| (&it.response_stream, it.kind));
        let listeners = self.listeners.iter().map(|it| (it, StreamKind::Listener));
        let mut all = calls.chain(disconnected).chain(listeners);
        all.find(|(it, _)| it.stream() == stream).map(|(it, kind)| (Rc::clone(it), kind))
    }

    fn is_disconnected(&self, stream: StreamNo) -> bool {
        self.disconnected.iter().any(|it| it.response_stream.stream() == stream)
    }

    fn remove(&mut self, stream: StreamNo) -> Option<(Rc<ResponseStream>, StreamKind)> {
        let is_it = |it: &Rc<ResponseStream>| it.stream() == stream;
        if let Some(at) = self.calls.iter().position(is_it) {
            return Some((self.calls.swap_remove(at), StreamKind::Call));
        }
        if let Some(at) = self.listeners.iter().position(is_it) {
            return Some((self.listeners.remove(at), StreamKind::Listener));
        }
        let at = self.disconnected.iter().position(|it| is_it(&it.response_stream))?;
        self.disconnected.remove(at).map(|it| (it.response_stream, it.kind))
    }
}

impl Responder for SessionStreams {
    fn put(&self, message: &[u8], to: Route) {
        self.recorder.observe(message, to);
        let legacy_stream = self.streams.borrow().legacy_stream.clone();
        match (to, legacy_stream) {
            (Route::Cancelled(_), Some(_)) => {}
            (_, Some(legacy_stream)) => self.put_legacy(message, &legacy_stream),
            (Route::Response(stream), None) => self.put_response(message, stream),
            (Route::Related(stream), None) => self.put_related(message, stream),
            (Route::Broadcast, None) => self.put_broadcast(message),
            (Route::Cancelled(stream), None) => {
                let found = self.streams.borrow().find(stream);
                if let Some((call, _)) = found {
                    call.cancel();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
