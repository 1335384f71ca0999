//! A single connection: runs hyper and enforces timeouts.
//!
//! [`ConnTimers`] holds the phase of the connection and when it began. One [`Timer`] serves all
//! timeouts. It is reset only if a deadline precedes the set one, so a call that is answered
//! immediately needs no timer.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};
use xy_transport::body::CHUNK;

use crate::conn_timers::{ConnTimers, ExpiryAction};
use crate::connections::ConnectionSlot;
use crate::limits::HEAD_BYTES_MAX;
use crate::service::HttpService;

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
        if timers.read_since_pause() >= CHUNK {
            let yields = pause.get_or_insert_with(|| Box::pin(tokio::task::yield_now()));
            ready!(yields.as_mut().poll(context));
            pause = None;
            timers.end_pause();
        }
        loop {
            if !is_shutting_down
                && (timers.closes_after_response() || closing.as_mut().poll(context).is_ready())
            {
                is_shutting_down = true;
                connection.as_mut().graceful_shutdown();
            }
            if let Poll::Ready(outcome) = connection.as_mut().poll(context) {
                return Poll::Ready(outcome.map_err(|cause| error_reason(&cause)));
            }
            if timers.is_aborted() {
                return Poll::Ready(Ok(()));
            }
            if is_shutting_down || !timers.closes_after_response() {
                break; // A change during this poll does not close the connection.
            }
        }
        timers.poll_discard(context);
        timer.poll(context, &timers).map(Err)
    });
    if let Err(reason) = outcome.await {
        service.counters().count_closed(reason);
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
                Some((at, action)) if at <= Instant::now() => match action {
                    ExpiryAction::Close(reason) => return Poll::Ready(reason),
                    ExpiryAction::StartStream => timers.start_stream(),
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
        if self.timers.watches_for_hangup() && self.is_closed_by_peer(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
