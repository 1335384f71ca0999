//! Records the state of one session for the next daemon.
//!
//! A subscription or a log level is recorded before its request is answered. If the response is an
//! error, the recorder restores the previously accepted state ([`ChangeRequests`]).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use xy_mcp::envelope::{self, Message, Outcome};

use crate::change_requests::ChangeRequests;
use crate::frontend::{Route, StreamNo};
use crate::record::{Change, EventTag, Record, RequestedChange, StreamedCall};
use crate::request_body::StreamedRequest;
use crate::store::Store;

/// Writes one session's record.
pub(super) struct Recorder {
    store: Rc<Store>,
    /// The session's number in the journal; `None` while it has no record.
    session: Cell<Option<u128>>,
    tag: EventTag,
    requests: RefCell<ChangeRequests>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Creates the recorder of a session without a record.
    pub(super) fn new(store: Rc<Store>, tag: EventTag) -> Self {
        Self { store, session: Cell::new(None), tag, requests: RefCell::default() }
    }

    /// Returns the tag of the session's events in this daemon.
    pub(super) fn tag(&self) -> EventTag {
        self.tag
    }

    /// Returns the session's number in the journal, if it has a record.
    pub(super) fn session(&self) -> Option<u128> {
        self.session.get()
    }

    /// Sets the record that is written from now on, if any.
    pub(super) fn set_session(&self, session: Option<u128>) {
        self.session.set(session);
    }

    /// Takes the session's number. Nothing is recorded afterwards.
    pub(super) fn take_session(&self) -> Option<u128> {
        self.session.take()
    }

    /// Adopts the accepted state of a restored session.
    pub(super) fn restore(&self, record: &Record) {
        self.requests.replace(ChangeRequests::from_record(record));
    }

    /// Records the requests that are answered on an event stream.
    pub(super) fn open_stream(&self, stream: StreamNo, requests: &[StreamedRequest]) {
        for request in requests {
            self.record_call(stream, &request.id, None);
        }
    }

    /// Records that the event at `position` of a stream answers a request.
    pub(super) fn record_response(&self, stream: StreamNo, request: &str, position: u64) {
        self.record_call(stream, request, Some(position));
    }

    fn record_call(&self, stream: StreamNo, request: &str, answered_at: Option<u64>) {
        if let Some(session) = self.session() {
            let (tag, request) = (self.tag, request.to_owned());
            let call = StreamedCall { tag, stream, request, answered_at };
            self.store.save_soon(Change::Call(session, call));
        }
    }

    /// Removes a stream that can no longer be resumed from the record.
    pub(super) fn end_stream(&self, stream: StreamNo) {
        if let Some(session) = self.session() {
            self.store.save_soon(Change::StreamEnd(session, self.tag, stream));
        }
    }

    /// Looks for responses to requested changes among the messages to the client.
    pub(super) fn observe(&self, message: &[u8], to: Route) {
        let (stream, is_last) = match to {
            Route::Response(stream) | Route::Cancelled(stream) => (stream, true),
            Route::Related(stream) => (stream, false),
            Route::Broadcast => return,
        };
        let mut requests = self.requests.borrow_mut();
        if !requests.has_pending(stream) {
            return; // Nearly all messages take this path without being parsed.
        }
        if let Ok(Message::Response { id: Some(id), outcome }) = envelope::parse(message) {
            let is_accepted = matches!(outcome, Outcome::Result(_));
            if let Some(correction) = requests.handle_response(stream, id, is_accepted) {
                self.store.save_soon(correction);
            }
        }
        if is_last {
            self.save_all(requests.end(stream));
        }
    }

    /// Treats all pending changes of a stream as refused.
    fn refuse_stream(&self, stream: StreamNo) {
        self.save_all(self.requests.borrow_mut().end(stream));
    }

    fn save_all(&self, changes: Vec<Change>) {
        for change in changes {
            self.store.save_soon(change);
        }
    }
}

/// Recorded changes whose message no server has received yet. Unless they are [sent](Self::send),
/// they are reverted: the client may disconnect first.
#[derive(Debug)]
pub(super) struct UnsentChanges {
    recorder: Rc<Recorder>,
    changes: Vec<RequestedChange>,
}

impl UnsentChanges {
    pub(super) fn new(recorder: Rc<Recorder>) -> Self {
        Self { recorder, changes: Vec::new() }
    }

    /// Adds a change.
    pub(super) fn push(&mut self, change: RequestedChange) {
        self.changes.push(change);
    }

    /// Waits for the responses on `stream` from now on.
    pub(super) fn send(mut self, stream: StreamNo) -> SentChanges {
        let recorder = Rc::clone(&self.recorder);
        let changes = std::mem::take(&mut self.changes);
        let too_many = recorder.requests.borrow_mut().add(stream, changes);
        recorder.save_all(too_many);
        SentChanges { recorder, stream }
    }
}

impl Drop for UnsentChanges {
    fn drop(&mut self) {
        let mut requests = self.recorder.requests.borrow_mut();
        let corrections = self.changes.iter().filter_map(|it| requests.correction(&it.change));
        let corrections = corrections.collect();
        drop(requests);
        self.recorder.save_all(corrections);
    }
}

/// Changes whose message was passed to the client session.
#[derive(Debug)]
pub(super) struct SentChanges {
    recorder: Rc<Recorder>,
    stream: StreamNo,
}

impl SentChanges {
    /// Reverts the changes, as the client session refused their message.
    pub(super) fn refuse(self) {
        self.recorder.refuse_stream(self.stream);
    }
}
