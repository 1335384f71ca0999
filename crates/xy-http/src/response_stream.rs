//! The messages of one stream that wait for their client.
//!
//! The gateway fills a [`ResponseStream`], and a connection empties it, on one thread. A response
//! without preceding messages is held as plain JSON; otherwise all messages become events in a
//! [`ReplayBuffer`]. A stream may outlive its connection and get another one; only the newest is
//! served.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::Bytes;
use tokio::time::Instant;
use xy_mcp::envelope::{self, Message};
use xy_mcp::reply;
use xy_transport::error_log::FailedRequest;

use crate::counters::StorageUse;
use crate::event::{self, StreamId};
use crate::frontend::StreamNo;
use crate::recorder::Recorder;
use crate::replay_buffer::{Evictable, Eviction, ReplayBuffer};
use crate::request_body::{self, StreamedRequest};
use crate::storage_budget::StorageBudget;

mod batch;
mod state;

use batch::Batch;
use state::StreamState;

/// The JSON-RPC error code for a call with an unknown outcome.
const OUTCOME_UNKNOWN_CODE: i64 = -32010;
const SESSION_ENDED: &str = "outcome unknown: the session ended before the response; check \
                         whether the call was executed before repeating it";
const XY_STOPPED: &str = "outcome unknown: xy was stopped before the response; check \
                           whether the call was executed before repeating it";

/// The features of a stream that its client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamMode {
    /// Whether events may precede the response.
    pub(super) events: bool,
    /// Whether the client knows events without data, and reconnects to a stream that closed before
    /// its response.
    pub(super) polls: bool,
}

/// The messages of one stream that wait for their client.
#[derive(Debug)]
pub(super) struct ResponseStream {
    stream: StreamNo,
    mode: StreamMode,
    state: RefCell<StreamState>,
    storage: Rc<StorageBudget>,
    /// Records in the session's record which requests are answered here as events.
    recorder: Option<Rc<Recorder>>,
}

/// Why a stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndReason {
    Answered,
    Cancelled,
    SessionEnded,
}

/// The first output of a stream for a client that waits for a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FirstOutput {
    /// The response, without preceding events.
    Response(Bytes),
    /// An event stream.
    Events,
    /// Nothing: the request was cancelled.
    Nothing,
    /// Nothing: the session, or the daemon, has ended.
    SessionEnded,
}

/// Why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PutError {
    /// The client accepts no events here.
    NoEvents,
    /// The stream has ended.
    Ended,
}

/// The outcome of an accepted message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PutOutcome {
    /// It is sent as soon as the client reads.
    Queued,
    /// The client was disconnected, because it left too many bytes unread.
    TooSlow,
}

/// The result of resuming a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResumeOutcome {
    /// The client has received everything.
    Complete,
    /// The stream continues, on this connection.
    Connection(u32),
}

impl ResponseStream {
    /// Creates a connected stream. Without an id its events cannot be sent again.
    pub(super) fn new(
        stream: StreamNo,
        id: Option<StreamId>,
        mode: StreamMode,
        storage: Rc<StorageBudget>,
    ) -> Self {
        let state = StreamState {
            is_event_stream: false,
            prelude: Vec::new(),
            prelude_has_id: false,
            replay_buffer: ReplayBuffer::new(id),
            response: None,
            batch: Batch::default(),
            end: None,
            connection: Some(0),
            last_connection: 0,
            disconnected_since: None,
            message: Bytes::new(),
            unanswered: Vec::new(),
            is_recorded: false,
            reader: None,
        };
        Self { stream, mode, state: RefCell::new(state), storage, recorder: None }
    }

    /// Records the requests that are answered here as events.
    pub(super) fn with_recorder(mut self, recorder: Rc<Recorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    pub(super) fn stream(&self) -> StreamNo {
        self.stream
    }

    pub(super) fn allows_events(&self) -> bool {
        self.mode.events
    }

    pub(super) fn polls(&self) -> bool {
        self.mode.polls
    }

    /// Turns the reply into an event stream, even without an event. Tells a client that can resume
    /// from where.
    pub(super) fn start_events(&self) {
        let mut state = self.state.borrow_mut();
        if self.mode.events && state.end.is_none() {
            self.ensure_events(&mut state);
            state.wake();
        }
    }

    fn ensure_events(&self, state: &mut StreamState) {
        if state.is_event_stream {
            return;
        }
        state.start_events(self.mode);
        let message = std::mem::take(&mut state.message);
        if !message.is_empty() {
            state.unanswered = request_body::requests((&*message).into());
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| !state.unanswered.is_empty()) {
            recorder.open_stream(self.stream, &state.unanswered);
            state.is_recorded = true;
        }
    }

    /// Sets the requests that are answered here, before any response. If the stream ends without a
    /// response, the client gets an error for each of them.
    pub(super) fn set_requests(&self, requests: Vec<StreamedRequest>) {
        self.state.borrow_mut().unanswered = requests;
    }

    /// Makes a plain JSON response an array, even if it has one element.
    pub(super) fn set_batch(&self) {
        self.state.borrow_mut().batch.set_array();
    }

    /// Sets the message whose requests are answered here, before any response. It is parsed only if
    /// the reply becomes an event stream, and is dropped then.
    pub(super) fn set_message(&self, message: Bytes) {
        self.state.borrow_mut().message = message;
    }

    /// Removes the stream from the session's record: it can no longer be resumed.
    pub(super) fn end_record(&self) {
        let is_recorded = std::mem::take(&mut self.state.borrow_mut().is_recorded);
        if let Some(recorder) = self.recorder.as_ref().filter(|_| is_recorded) {
            recorder.end_stream(self.stream);
        }
    }

    /// Records that the last event answers the requests that `is_answered` selects.
    fn record_responses(&self, state: &mut StreamState, is_answered: impl Fn(&str) -> bool) {
        let position = state.replay_buffer.last();
        let recorder = self.recorder.as_ref().filter(|_| state.is_recorded);
        state.unanswered.retain(|request| {
            let is_answered = is_answered(&request.id);
            if let Some(recorder) = recorder.filter(|_| is_answered) {
                recorder.record_response(self.stream, &request.id, position);
            }
            !is_answered
        });
    }

    /// Sends `bytes` before anything else.
    pub(super) fn send_first(&self, bytes: &[u8]) {
        self.state.borrow_mut().prelude.extend_from_slice(bytes);
    }

    /// Tells the client of an event stream when to reconnect after the stream ends.
    pub(super) fn send_retry(&self, retry_ms: u64) {
        let mut state = self.state.borrow_mut();
        if state.is_event_stream && state.end.is_none() {
            state.prelude.extend_from_slice(&event::retry_event(retry_ms));
            state.wake();
        }
    }

    /// Tells the client, before anything else, how many messages were dropped.
    pub(super) fn report_missed(&self, missed: u64) {
        self.state.borrow_mut().report_missed(missed);
    }

    /// Queues a message that precedes the response.
    pub(super) fn put_event(&self, message: &[u8]) -> Result<PutOutcome, PutError> {
        self.change(|state| {
            if state.end.is_some() {
                return Err(PutError::Ended);
            }
            if !self.mode.events {
                return state.batch.store(message, &self.storage);
            }
            self.ensure_events(state);
            let outcome = state.push(message, false);
            let is_batch = state.unanswered.len() > 1;
            if is_batch && let Ok(Message::Response { id: Some(id), .. }) = envelope::parse(message)
            {
                self.record_responses(state, |it| it == id);
            }
            Ok(outcome)
        })
    }

    /// Queues the response.
    pub(super) fn put_response(&self, message: &[u8]) -> Result<PutOutcome, PutError> {
        self.change(|state| {
            if state.end.is_some() {
                return Err(PutError::Ended);
            }
            let outcome = if state.is_event_stream {
                if let [request] = &mut *state.unanswered {
                    let method = std::mem::take(&mut request.method);
                    state.replay_buffer.set_answered_method(method);
                }
                let outcome = state.push(message, true);
                self.record_responses(state, |_| true);
                outcome
            } else {
                state.response = Some(state.batch.complete(message));
                PutOutcome::Queued
            };
            state.finish(EndReason::Answered);
            Ok(outcome)
        })
    }

    /// Ends the stream without a response.
    pub(super) fn cancel(&self) {
        self.change(|state| {
            self.record_responses(state, |_| true);
            state.response = state.response.take().or_else(|| state.batch.take());
            state.finish(EndReason::Cancelled);
        });
    }

    /// Ends the stream with the session. A client that waits on an event stream gets an error.
    pub(super) fn end_session(&self) {
        let client = self.state.borrow().replay_buffer.logged_client();
        self.fail(SESSION_ENDED, &client);
    }

    /// Ends the request of a client without a session, as the daemon stops.
    pub(super) fn end_for_shutdown(&self, client: &str) {
        self.fail(XY_STOPPED, client);
    }

    fn fail(&self, words: &str, client: &str) {
        self.change(|state| {
            if state.is_event_stream && state.end.is_none() {
                for request in state.unanswered.clone() {
                    let (outcome, code) = ("session-ended", OUTCOME_UNKNOWN_CODE);
                    let (id, method) = (&*request.id, &*request.method);
                    FailedRequest { client, id, method, outcome, code, ..FailedRequest::default() }
                        .log();
                    state.push(&reply::error(id, code, words), true);
                    self.record_responses(state, |it| it == id);
                }
            }
            state.finish(EndReason::SessionEnded);
        });
    }

    /// Resumes the stream after `position` on a new connection, in place of an older one. Returns
    /// `None` if the client cannot know that position.
    pub(super) fn resume(&self, position: u64) -> Option<ResumeOutcome> {
        self.change(|state| {
            let missed = state.replay_buffer.rewind(position)?;
            if state.end.is_some() && state.replay_buffer.is_last(position) {
                state.disconnect();
                return Some(ResumeOutcome::Complete);
            }
            state.prelude.clear();
            // The client's own position, not the one behind the dropped events: the connection may
            // break before the client learns that it missed them.
            state.add_priming_event(self.mode, position);
            state.report_missed(missed);
            state.disconnect();
            state.last_connection += 1;
            state.connection = Some(state.last_connection);
            Some(ResumeOutcome::Connection(state.last_connection))
        })
    }

    /// Records that a connection has ended. Returns true if it was the current one.
    pub(super) fn detach(&self, connection: u32) -> bool {
        let mut state = self.state.borrow_mut();
        let is_served = state.connection == Some(connection);
        if is_served {
            state.disconnect();
        }
        is_served
    }

    /// Returns true if the client may resume the stream.
    pub(super) fn is_resumable(&self) -> bool {
        let state = self.state.borrow();
        state.replay_buffer.has_sent_id()
            && state.end.is_none_or(|(end, _)| end != EndReason::SessionEnded)
    }

    /// Returns true if the response is still to come.
    pub(super) fn is_open(&self) -> bool {
        self.state.borrow().end.is_none()
    }

    /// Removes and returns the unsent messages, to send them on another stream.
    pub(super) fn take_unsent(&self) -> impl Iterator<Item = Bytes> + use<> {
        self.change(|state| state.replay_buffer.take_unsent())
    }

    /// Drops one event to make room. Unsent events of a connected client stay.
    pub(super) fn evict(&self, evictable: Evictable) -> Option<Eviction> {
        self.change(|state| match state.connection {
            Some(_) if evictable == Evictable::All => None,
            _ => state.replay_buffer.evict(evictable),
        })
    }

    /// Drops events that were queued before `then`.
    pub(super) fn forget_before(&self, then: Instant) {
        self.change(|state| {
            let evictable =
                if state.connection.is_some() { Evictable::Sent } else { Evictable::All };
            state.replay_buffer.forget_before(then, evictable);
        });
    }

    /// Returns since when the stream has had no connection and no new message; `None` while it is
    /// connected.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.borrow();
        state
            .end
            .map(|(_, at)| at)
            .max(state.disconnected_since)
            .filter(|_| state.connection.is_none())
    }

    /// Returns true if all messages were sent.
    pub(super) fn is_all_sent(&self) -> bool {
        self.state.borrow().replay_buffer.is_all_sent()
    }

    /// Waits for the first output.
    pub(super) async fn first(&self) -> FirstOutput {
        std::future::poll_fn(|context| self.poll_first(context)).await
    }

    fn poll_first(&self, context: &Context<'_>) -> Poll<FirstOutput> {
        let mut state = self.state.borrow_mut();
        if let Some(response) = state.response.take() {
            return Poll::Ready(FirstOutput::Response(response));
        }
        match state.end {
            Some((EndReason::SessionEnded, _)) if !state.is_event_stream => {
                Poll::Ready(FirstOutput::SessionEnded)
            }
            Some((EndReason::Cancelled, _)) if !state.is_event_stream => {
                Poll::Ready(FirstOutput::Nothing)
            }
            Some(_) => Poll::Ready(FirstOutput::Events),
            None if state.is_event_stream => Poll::Ready(FirstOutput::Events),
            None => state.wait(context),
        }
    }

    /// Returns the queued events; `None` once nothing more follows on this connection.
    pub(super) fn poll_events(
        &self,
        connection: u32,
        context: &Context<'_>,
    ) -> Poll<Option<Bytes>> {
        self.change(|state| {
            if state.connection != Some(connection) {
                return Poll::Ready(None);
            }
            if let Some(piece) = state.send() {
                return Poll::Ready(Some(piece));
            }
            if state.end.is_some() { Poll::Ready(None) } else { state.wait(context) }
        })
    }

    /// Returns true if nothing more will be sent on a connection.
    pub(super) fn is_finished(&self, connection: u32) -> bool {
        let state = self.state.borrow();
        state.connection != Some(connection)
            || state.end.is_some() && state.prelude.is_empty() && state.replay_buffer.is_all_sent()
    }

    /// Returns the id of an event, if the stream has an id.
    #[cfg(test)]
    pub(super) fn event_id(&self, position: u64) -> Option<event::EventId> {
        self.state.borrow().replay_buffer.event_id(position)
    }

    /// Returns everything that a connection can read without waiting.
    #[cfg(test)]
    pub(super) fn take_all(&self, connection: u32) -> String {
        let mut all = String::new();
        let context = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(piece)) = self.poll_events(connection, &context) {
            all += std::str::from_utf8(&piece).unwrap();
        }
        all
    }

    /// Changes the state, and updates the storage budget.
    fn change<T>(&self, change: impl FnOnce(&mut StreamState) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let before = state.stored();
        let outcome = change(&mut state);
        self.storage.update(before, state.stored());
        outcome
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        self.storage.update(self.state.get_mut().stored(), StorageUse::default());
    }
}

#[cfg(test)]
mod tests;
