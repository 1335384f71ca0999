//! A single connection: runs hyper and enforces timeouts.
//!
//! [`ConnTimers`] holds the phase of the connection and when it began. One [`Timer`] serves all
//! timeouts. It is reset only if a deadline precedes the set one, so a call that is answered
//! immediately needs no timer.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body as _, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};
use xy_transport::body::CHUNK;

use crate::connections::{ConnectionSlot, WaitingFor};
use crate::guard::TokenId;
use crate::limits::{
    BODY_TIMEOUT, DISCARD_BYTES_MAX, HEAD_BYTES_MAX, HEAD_TIMEOUT, IDLE_TIMEOUT,
    UNAUTHENTICATED_IDLE_TIMEOUT, WRITE_TIMEOUT,
};
use crate::response_stream::ResponseStream;
use crate::service::HttpService;

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

/// The action at a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expired {
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

    fn start_stream(&self) {
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

    fn poll_discard(&self, context: &mut Context<'_>) {
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

    fn record_read(&self, bytes: usize) {
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

    fn record_write<T>(&self, outcome: &Poll<T>) {
        match (outcome, self.blocked_since.get()) {
            (Poll::Ready(_), Some(_)) => self.blocked_since.set(None),
            (Poll::Pending, None) => self.blocked_since.set(Some(Instant::now())),
            _ => {}
        }
    }

    /// Returns the next deadline, and what to do then.
    fn deadline(&self) -> Option<(Instant, Expired)> {
        let write = self.blocked_since.get();
        let write = write.map(|since| (since + WRITE_TIMEOUT, Expired::Close("slow-reader")));
        let phase = self.phase.get().deadline(self.owner.get().is_some());
        let phase = phase.map(|(at, reason)| (at, Expired::Close(reason)));
        let pending = self.pending_stream.borrow();
        let stream = pending.as_ref().map(|it| (it.starts_at, Expired::StartStream));
        [phase, write, stream].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

/// Serves one connection until it ends or times out. Once `closing` is true, it ends after the
/// current response.
pub(super) async fn run(
    stream: TcpStream,
    service: Rc<HttpService>,
    (timers, _slot): (Rc<ConnTimers>, ConnectionSlot),
    mut closing: watch::Receiver<bool>,
) {
    // Responses are written in one piece: there is nothing to gain from delaying them.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(TimedStream { stream, timers: Rc::clone(&timers) });
    let handler = {
        let (service, timers) = (Rc::clone(&service), Rc::clone(&timers));
        service_fn(move |request| Rc::clone(&service).respond(request, Rc::clone(&timers)))
    };
    let mut connection = pin!(settings().serve_connection(io, handler));
    let mut closing = pin!(closing.wait_for(|is_closing| *is_closing));
    let mut is_shutting_down = false;
    let mut timer = Timer::default();
    let mut pause = None;
    let outcome = std::future::poll_fn(|context| {
        // hyper would keep reading from a fast client, so other tasks get a turn here.
        if timers.read_since_pause.get() >= CHUNK {
            let yields = pause.get_or_insert_with(|| Box::pin(tokio::task::yield_now()));
            ready!(yields.as_mut().poll(context));
            pause = None;
            timers.read_since_pause.set(0);
        }
        loop {
            if !is_shutting_down
                && (timers.closes_after_response.get() || closing.as_mut().poll(context).is_ready())
            {
                is_shutting_down = true;
                connection.as_mut().graceful_shutdown();
            }
            if let Poll::Ready(outcome) = connection.as_mut().poll(context) {
                return Poll::Ready(outcome.map_err(|cause| error_reason(&cause)));
            }
            if timers.is_aborted.get() {
                return Poll::Ready(Ok(()));
            }
            if is_shutting_down || !timers.closes_after_response.get() {
                break; // A change during this poll does not close the connection.
            }
        }
        timers.poll_discard(context);
        timer.poll(context, &timers).map(Err)
    });
    if let Err(reason) = outcome.await {
        service.counters().count_cut(reason);
    }
}

/// Returns the reason in the metrics for an error of hyper.
fn error_reason(cause: &hyper::Error) -> &'static str {
    if cause.is_parse() { "not-http" } else { "broken-connection" }
}

fn settings() -> http1::Builder {
    let mut settings = http1::Builder::new();
    // hyper's own head timeout also runs between two requests, so it is off.
    settings.header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).max_header_size(HEAD_BYTES_MAX);
    settings
}

/// A timer for the next deadline.
#[derive(Default)]
struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    is_set: bool,
}

impl Timer {
    /// Resolves with the reason when the connection has to close. Starts event streams that are
    /// due.
    fn poll(&mut self, context: &mut Context<'_>, timers: &ConnTimers) -> Poll<&'static str> {
        loop {
            let deadline = timers.deadline();
            if let Some((at, _)) = deadline {
                self.set_no_later_than(at);
            }
            match &mut self.sleep {
                Some(sleep) if self.is_set => ready!(sleep.as_mut().poll(context)),
                _ => return Poll::Pending,
            }
            self.is_set = false;
            match deadline {
                Some((at, expired)) if at <= Instant::now() => match expired {
                    Expired::Close(reason) => return Poll::Ready(reason),
                    Expired::StartStream => timers.start_stream(),
                },
                _ => {} // The timer was set for an earlier phase that ended in time.
            }
        }
    }

    fn set_no_later_than(&mut self, at: Instant) {
        match &mut self.sleep {
            Some(sleep) if self.is_set && sleep.deadline() <= at => return,
            Some(sleep) => sleep.as_mut().reset(at),
            none => *none = Some(Box::pin(sleep_until(at))),
        }
        self.is_set = true;
    }
}

/// A TCP stream that records reads and writes in [`ConnTimers`].
struct TimedStream {
    stream: TcpStream,
    timers: Rc<ConnTimers>,
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.timers.record_read(buffer.filled().len() - before);
        outcome
    }
}

impl TimedStream {
    /// Returns true if the client has closed the connection. hyper cannot see that: it stops
    /// reading once the next request begins to arrive.
    fn is_closed_by_peer(&self, context: &mut Context<'_>) -> bool {
        let mut byte = [0];
        let mut peeked = ReadBuf::new(&mut byte);
        let outcome = self.stream.poll_peek(context, &mut peeked);
        matches!(outcome, Poll::Ready(Ok(0) | Err(_)))
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timers.record_write(&outcome);
        outcome
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.timers.record_write(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.timers.watches_for_hangup.get() && self.is_closed_by_peer(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
