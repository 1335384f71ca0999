//! The phase of a connection, and its deadlines.
//!
//! Measures only: the connection reads, writes and closes.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body as _, Bytes, Incoming};
use tokio::time::Instant;

use crate::guard::TokenId;
use crate::limits::{
    BODY_TIMEOUT, DISCARD_BYTES_MAX, HEAD_TIMEOUT, IDLE_TIMEOUT, UNAUTHENTICATED_IDLE_TIMEOUT,
    WRITE_TIMEOUT,
};
use crate::response_stream::ResponseStream;

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waiting for the next request.
    Idle { since: Instant },
    /// Reading the head of a request.
    Head { since: Instant },
    /// Reading the body of a request.
    Body { since: Instant },
    /// Answering a request, without a time limit. The next request may already be arriving.
    Answering { next_has_begun: bool },
}

impl Phase {
    /// Returns when the phase has lasted too long, and the reason for the metrics.
    fn deadline(self, is_authenticated: bool) -> Option<(Instant, &'static str)> {
        match self {
            Self::Idle { since } if is_authenticated => {
                Some((since + IDLE_TIMEOUT, "idle-connection"))
            }
            Self::Idle { since } => Some((since + UNAUTHENTICATED_IDLE_TIMEOUT, "idle-connection")),
            Self::Head { since } => Some((since + HEAD_TIMEOUT, "slow-head")),
            Self::Body { since } => Some((since + BODY_TIMEOUT, "slow-body")),
            Self::Answering { .. } => None,
        }
    }
}

/// The input that a connection waits for, and the time at which the wait began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitingFor {
    /// The next request.
    Idle(Instant),
    /// The rest of a request's head.
    Head(Instant),
    /// The rest of a request's body.
    Body(Instant),
}

impl WaitingFor {
    /// Returns when the wait began.
    pub(super) fn since(self) -> Instant {
        match self {
            Self::Idle(since) | Self::Head(since) | Self::Body(since) => since,
        }
    }
}

/// The action at a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpiryAction {
    /// Close the connection; the text is the reason in the metrics.
    Close(&'static str),
    /// Turn the pending reply into an event stream.
    StartStream,
}

/// A reply that becomes an event stream unless a response precedes that.
#[derive(Debug)]
struct PendingStream {
    starts_at: Instant,
    response_stream: Rc<ResponseStream>,
}

/// The state of a connection that its timeouts depend on.
#[derive(Debug)]
pub(super) struct ConnTimers {
    /// The address of the client, if it is known.
    peer: Option<SocketAddr>,
    phase: Cell<Phase>,
    /// The token that a request on this connection has shown; `None` while it is unauthenticated.
    owner: Cell<Option<TokenId>>,
    /// The number of bytes read since this task yielded last.
    read_since_pause: Cell<usize>,
    /// Since when the client has accepted no bytes.
    blocked_since: Cell<Option<Instant>>,
    /// The reply that becomes an event stream, and when.
    pending_stream: RefCell<Option<PendingStream>>,
    /// Whether a hang-up of the client cancels the current request.
    watches_for_hangup: Cell<bool>,
    /// Whether the connection closes after the current response.
    closes_after_response: Cell<bool>,
    /// Whether the connection closes immediately, without a response.
    is_aborted: Cell<bool>,
    /// An unread body of an answered request, and how many more bytes of it to read.
    discarded_body: RefCell<Option<(Incoming, usize)>>,
}

impl ConnTimers {
    pub(super) fn new(peer: Option<SocketAddr>) -> Self {
        // A new connection must send a request soon.
        let phase = Cell::new(Phase::Head { since: Instant::now() });
        Self {
            peer,
            phase,
            owner: Cell::new(None),
            read_since_pause: Cell::new(0),
            blocked_since: Cell::new(None),
            pending_stream: RefCell::new(None),
            watches_for_hangup: Cell::new(false),
            closes_after_response: Cell::new(false),
            is_aborted: Cell::new(false),
            discarded_body: RefCell::new(None),
        }
    }

    /// Returns the address of the client, if it is known.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Returns the token that was shown on this connection, if any.
    pub(super) fn owner(&self) -> Option<TokenId> {
        self.owner.get()
    }

    pub(super) fn set_owner(&self, token_id: TokenId) {
        self.owner.set(Some(token_id));
    }

    /// Returns what the connection waits for; `None` while it answers a request.
    pub(super) fn waiting_for(&self) -> Option<WaitingFor> {
        match self.phase.get() {
            Phase::Idle { since } => Some(WaitingFor::Idle(since)),
            Phase::Head { since } => Some(WaitingFor::Head(since)),
            Phase::Body { since } => Some(WaitingFor::Body(since)),
            Phase::Answering { .. } => None,
        }
    }

    /// Records that the head of a request has arrived, and whether a body follows.
    pub(super) fn start_request(&self, has_body: bool) {
        self.watches_for_hangup.set(false);
        self.phase.set(match self.phase.get() {
            Phase::Head { since } if has_body => Phase::Body { since },
            _ if has_body => Phase::Body { since: Instant::now() },
            _ => Phase::Answering { next_has_begun: false },
        });
    }

    /// Records that the body is complete.
    pub(super) fn finish_body(&self) {
        self.phase.set(Phase::Answering { next_has_begun: false });
    }

    /// Turns the reply into an event stream after `delay`, unless a response precedes that.
    pub(super) fn start_stream_after(&self, response_stream: Rc<ResponseStream>, delay: Duration) {
        let starts_at = Instant::now() + delay;
        *self.pending_stream.borrow_mut() = Some(PendingStream { starts_at, response_stream });
    }

    /// Cancels [`Self::start_stream_after`].
    pub(super) fn cancel_stream_start(&self) {
        self.pending_stream.take();
    }

    /// Detects from now on that the client hangs up before the response.
    pub(super) fn watch_for_hangup(&self) {
        self.watches_for_hangup.set(true);
    }

    /// Closes the connection after the current response.
    pub(super) fn close_after_response(&self) {
        self.closes_after_response.set(true);
    }

    /// Closes the connection immediately, without a response.
    pub(super) fn abort(&self) {
        self.is_aborted.set(true);
    }

    /// Turns the reply into an event stream now.
    pub(super) fn start_stream(&self) {
        if let Some(pending_stream) = self.pending_stream.take() {
            pending_stream.response_stream.start_events();
        }
    }

    /// Records that the response is written, or was handed to hyper completely.
    pub(super) fn finish_response(&self) {
        self.watches_for_hangup.set(false);
        if self.discarded_body.borrow().is_some() {
            return; // Its body is still arriving.
        }
        let since = Instant::now();
        self.phase.set(match self.phase.get() {
            Phase::Answering { next_has_begun: true } => Phase::Head { since },
            _ => Phase::Idle { since },
        });
    }

    /// Reads and discards the rest of a body whose request is already answered. Closing the
    /// connection with unread bytes would reset it, and the client would lose the response.
    pub(super) fn discard(&self, body: Incoming) {
        *self.discarded_body.borrow_mut() = Some((body, DISCARD_BYTES_MAX));
    }

    /// Reads what has arrived of a body that is discarded.
    pub(super) fn poll_discard(&self, context: &mut Context<'_>) {
        let mut discarded_body = self.discarded_body.borrow_mut();
        while let Some((body, left)) = &mut *discarded_body {
            let read = match Pin::new(body).poll_frame(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(frame))) => frame.data_ref().map_or(0, Bytes::len),
                Poll::Ready(_) => usize::MAX,
            };
            *left = left.saturating_sub(read);
            if *left == 0 {
                *discarded_body = None;
                self.phase.set(Phase::Idle { since: Instant::now() });
            }
        }
    }

    /// Records that bytes of the client were read.
    pub(super) fn record_read(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.read_since_pause.set(self.read_since_pause.get() + bytes);
        match self.phase.get() {
            Phase::Idle { .. } => self.phase.set(Phase::Head { since: Instant::now() }),
            Phase::Answering { .. } => self.phase.set(Phase::Answering { next_has_begun: true }),
            Phase::Head { .. } | Phase::Body { .. } => {}
        }
    }

    /// Records whether the client accepts bytes.
    pub(super) fn record_write<T>(&self, outcome: &Poll<T>) {
        match (outcome, self.blocked_since.get()) {
            (Poll::Ready(_), Some(_)) => self.blocked_since.set(None),
            (Poll::Pending, None) => self.blocked_since.set(Some(Instant::now())),
            _ => {}
        }
    }

    /// Returns the number of bytes read since the last [`Self::end_pause`].
    pub(super) fn read_since_pause(&self) -> usize {
        self.read_since_pause.get()
    }

    /// Records that the task of the connection has yielded.
    pub(super) fn end_pause(&self) {
        self.read_since_pause.set(0);
    }

    /// Returns true if a hang-up of the client cancels the current request.
    pub(super) fn watches_for_hangup(&self) -> bool {
        self.watches_for_hangup.get()
    }

    /// Returns true if the connection closes after the current response.
    pub(super) fn closes_after_response(&self) -> bool {
        self.closes_after_response.get()
    }

    /// Returns true if the connection closes immediately.
    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted.get()
    }

    /// Returns the next deadline, and what to do then.
    pub(super) fn deadline(&self) -> Option<(Instant, ExpiryAction)> {
        let write = self.blocked_since.get();
        let write = write.map(|since| (since + WRITE_TIMEOUT, ExpiryAction::Close("slow-reader")));
        let phase = self.phase.get().deadline(self.owner.get().is_some());
        let phase = phase.map(|(at, reason)| (at, ExpiryAction::Close(reason)));
        let pending = self.pending_stream.borrow();
        let stream = pending.as_ref().map(|it| (it.starts_at, ExpiryAction::StartStream));
        [phase, write, stream].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}
