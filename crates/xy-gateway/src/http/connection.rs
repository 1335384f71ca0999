//! One connection: hyper does the talking, this makes sure that it does not take for ever.
//!
//! A [`ConnTimers`] holds what the connection is doing and since when. One timer stands behind
//! it, and is moved only when something is due earlier than it would ring; so a call that is
//! answered at once costs no timer.

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

use super::connections::{Endpoint, Waits};
use super::guard::TokenId;
use super::limits::{
    BODY_WITHIN, DISCARD_MAX, HEAD_BYTES_MAX, HEAD_WITHIN, IDLE_CONNECTION, IDLE_UNAUTHENTICATED,
    WRITE_WITHIN,
};
use super::response_stream::ResponseStream;
use super::service::HttpService;
use crate::body::CHUNK;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Nothing, between two requests.
    Idle { since: Instant },
    /// A request's head is being read.
    Head { since: Instant },
    /// A request's body is being read.
    Body { since: Instant },
    /// A request is being answered, which takes as long as it takes. Perhaps the next one
    /// has begun to come in.
    Answering { next_has_begun: bool },
}

impl Doing {
    /// When it has taken too long, and the word among the metrics for that.
    fn deadline(self, is_authenticated: bool) -> Option<(Instant, &'static str)> {
        match self {
            Self::Idle { since } if is_authenticated => {
                Some((since + IDLE_CONNECTION, "idle-connection"))
            }
            Self::Idle { since } => Some((since + IDLE_UNAUTHENTICATED, "idle-connection")),
            Self::Head { since } => Some((since + HEAD_WITHIN, "slow-head")),
            Self::Body { since } => Some((since + BODY_WITHIN, "slow-body")),
            Self::Answering { .. } => None,
        }
    }
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The end of the connection, and the word among the metrics for why.
    End(&'static str),
    /// A first word to a client that waits.
    Word,
}

/// A call about which nothing was said yet.
#[derive(Debug)]
struct Silent {
    speaks_at: Instant,
    response_stream: Rc<ResponseStream>,
}

/// What is known of a connection, to whoever works for it.
#[derive(Debug)]
pub(super) struct ConnTimers {
    /// The address of the client, if it is known.
    peer: Option<SocketAddr>,
    doing: Cell<Doing>,
    /// Whose token was shown on it; `None` while it is unauthenticated.
    owner: Cell<Option<TokenId>>,
    /// Bytes that were read since other tasks had their turn.
    read_since_pause: Cell<usize>,
    /// Since when nothing of what we write is taken.
    stuck: Cell<Option<Instant>>,
    /// A call whose client waits for the first word, and when it shall hear one.
    silent: RefCell<Option<Silent>>,
    /// Whether the client says by hanging up that it wants no answer any more.
    heeds_hanging_up: Cell<bool>,
    /// Whether the connection shall end with what it is answered now.
    leaves: Cell<bool>,
    /// Whether it shall end at once, without an answer.
    breaks: Cell<bool>,
    /// A body that nobody wants, and how much of it may still come.
    unwanted: RefCell<Option<(Incoming, usize)>>,
}

impl ConnTimers {
    pub(super) fn new(peer: Option<SocketAddr>) -> Self {
        // Who connects is expected to say something soon.
        let doing = Cell::new(Doing::Head { since: Instant::now() });
        Self {
            peer,
            doing,
            owner: Cell::new(None),
            read_since_pause: Cell::new(0),
            stuck: Cell::new(None),
            silent: RefCell::new(None),
            heeds_hanging_up: Cell::new(false),
            leaves: Cell::new(false),
            breaks: Cell::new(false),
            unwanted: RefCell::new(None),
        }
    }

    /// The address of the client, if it is known.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Whose token was shown on it, if one was.
    pub(super) fn owner(&self) -> Option<TokenId> {
        self.owner.get()
    }

    pub(super) fn set_owner(&self, who: TokenId) {
        self.owner.set(Some(who));
    }

    /// What it waits for; `None` while it is answered.
    pub(super) fn waits_for(&self) -> Option<Waits> {
        match self.doing.get() {
            Doing::Idle { since } => Some(Waits::Idle(since)),
            Doing::Head { since } => Some(Waits::Head(since)),
            Doing::Body { since } => Some(Waits::Body(since)),
            Doing::Answering { .. } => None,
        }
    }

    /// A request has come; if it has a body, that is still to be read.
    pub(super) fn asked(&self, has_body: bool) {
        self.heeds_hanging_up.set(false);
        self.doing.set(match self.doing.get() {
            Doing::Head { since } if has_body => Doing::Body { since },
            _ if has_body => Doing::Body { since: Instant::now() },
            _ => Doing::Answering { next_has_begun: false },
        });
    }

    /// The request has been read whole.
    pub(super) fn read_whole(&self) {
        self.doing.set(Doing::Answering { next_has_begun: false });
    }

    /// The client waits for the first word about a call: unless there is one within this time,
    /// it becomes events.
    pub(super) fn waits(&self, response_stream: Rc<ResponseStream>, within: Duration) {
        let speaks_at = Instant::now() + within;
        *self.silent.borrow_mut() = Some(Silent { speaks_at, response_stream });
    }

    /// Ends the wait for a first word.
    pub(super) fn waits_no_more(&self) {
        self.silent.take();
    }

    /// Should the client hang up before it is answered, that is to be known at once.
    pub(super) fn heeds_hanging_up(&self) {
        self.heeds_hanging_up.set(true);
    }

    /// The client shall use another connection after this answer.
    pub(super) fn leave(&self) {
        self.leaves.set(true);
    }

    /// Ends the connection at once: its request has no answer, and will not have one.
    pub(super) fn break_off(&self) {
        self.breaks.set(true);
    }

    fn break_silence(&self) {
        if let Some(silent) = self.silent.take() {
            silent.response_stream.begin();
        }
    }

    /// The answer is written, or on its way.
    pub(super) fn answered(&self) {
        self.heeds_hanging_up.set(false);
        if self.unwanted.borrow().is_some() {
            return; // Its body still comes in.
        }
        let since = Instant::now();
        self.doing.set(match self.doing.get() {
            Doing::Answering { next_has_begun: true } => Doing::Head { since },
            _ => Doing::Idle { since },
        });
    }

    /// The request is answered without its body. What still comes of that is thrown away:
    /// closing over it would reset the connection, and the answer with it.
    pub(super) fn discard(&self, body: Incoming) {
        *self.unwanted.borrow_mut() = Some((body, DISCARD_MAX));
    }

    fn poll_discard(&self, context: &mut Context<'_>) {
        let mut unwanted = self.unwanted.borrow_mut();
        while let Some((body, left)) = &mut *unwanted {
            let read = match Pin::new(body).poll_frame(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(frame))) => frame.data_ref().map_or(0, Bytes::len),
                Poll::Ready(_) => usize::MAX,
            };
            *left = left.saturating_sub(read);
            if *left == 0 {
                *unwanted = None;
                self.doing.set(Doing::Idle { since: Instant::now() });
            }
        }
    }

    fn has_read(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.read_since_pause.set(self.read_since_pause.get() + bytes);
        match self.doing.get() {
            Doing::Idle { .. } => self.doing.set(Doing::Head { since: Instant::now() }),
            Doing::Answering { .. } => self.doing.set(Doing::Answering { next_has_begun: true }),
            Doing::Head { .. } | Doing::Body { .. } => {}
        }
    }

    fn has_written<T>(&self, outcome: &Poll<T>) {
        match (outcome, self.stuck.get()) {
            (Poll::Ready(_), Some(_)) => self.stuck.set(None),
            (Poll::Pending, None) => self.stuck.set(Some(Instant::now())),
            _ => {}
        }
    }

    /// When whatever is due first has taken too long, and what that is.
    fn deadline(&self) -> Option<(Instant, Due)> {
        let stuck = self.stuck.get().map(|since| (since + WRITE_WITHIN, Due::End("slow-reader")));
        let doing = self.doing.get().deadline(self.owner.get().is_some());
        let doing = doing.map(|(at, fault)| (at, Due::End(fault)));
        let silent = self.silent.borrow().as_ref().map(|silent| (silent.speaks_at, Due::Word));
        [doing, stuck, silent].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

/// Serves one connection until it ends, is ended for taking too long, or `closes` is true and
/// what it was asked is answered.
pub(super) async fn run(
    stream: TcpStream,
    door: Rc<HttpService>,
    (pulse, _place): (Rc<ConnTimers>, Endpoint),
    mut closes: watch::Receiver<bool>,
) {
    // Answers are written whole: there is nothing to wait for before they are sent.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(Watched { stream, pulse: Rc::clone(&pulse) });
    let service = {
        let (door, pulse) = (Rc::clone(&door), Rc::clone(&pulse));
        service_fn(move |request| Rc::clone(&door).answer(request, Rc::clone(&pulse)))
    };
    let mut talk = pin!(settings().serve_connection(io, service));
    let mut closing = pin!(closes.wait_for(|closes| *closes));
    let mut leaving = false;
    let mut timer = Timer::default();
    let mut pause = None;
    let outcome = std::future::poll_fn(|context| {
        // A client that sends fast lets others have their turn; hyper would read on.
        if pulse.read_since_pause.get() >= CHUNK {
            let yields = pause.get_or_insert_with(|| Box::pin(tokio::task::yield_now()));
            ready!(yields.as_mut().poll(context));
            pause = None;
            pulse.read_since_pause.set(0);
        }
        loop {
            if !leaving && (pulse.leaves.get() || closing.as_mut().poll(context).is_ready()) {
                leaving = true;
                talk.as_mut().graceful_shutdown();
            }
            if let Poll::Ready(outcome) = talk.as_mut().poll(context) {
                return Poll::Ready(outcome.map_err(|cause| fault_of(&cause)));
            }
            if pulse.breaks.get() {
                return Poll::Ready(Ok(()));
            }
            if leaving || !pulse.leaves.get() {
                break; // What was said meanwhile does not end it.
            }
        }
        pulse.poll_discard(context);
        timer.poll(context, &pulse).map(Err)
    });
    if let Err(fault) = outcome.await {
        door.counts().cut(fault);
    }
}

/// The word among the metrics for how a connection broke.
fn fault_of(cause: &hyper::Error) -> &'static str {
    if cause.is_parse() { "not-http" } else { "broken-connection" }
}

fn settings() -> http1::Builder {
    let mut settings = http1::Builder::new();
    // The time for a head is our own, since hyper's runs between two requests too.
    settings.header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).max_header_size(HEAD_BYTES_MAX);
    settings
}

/// One timer for whatever is due first.
#[derive(Default)]
struct Timer {
    rings: Option<Pin<Box<Sleep>>>,
    is_set: bool,
}

impl Timer {
    /// Ready with what took too long. What else is due is done.
    fn poll(&mut self, context: &mut Context<'_>, pulse: &ConnTimers) -> Poll<&'static str> {
        loop {
            let deadline = pulse.deadline();
            if let Some((at, _)) = deadline {
                self.set_no_later_than(at);
            }
            match &mut self.rings {
                Some(rings) if self.is_set => ready!(rings.as_mut().poll(context)),
                _ => return Poll::Pending,
            }
            self.is_set = false;
            match deadline {
                Some((at, due)) if at <= Instant::now() => match due {
                    Due::End(fault) => return Poll::Ready(fault),
                    Due::Word => pulse.break_silence(),
                },
                _ => {} // It was set for something that has come to pass in time.
            }
        }
    }

    fn set_no_later_than(&mut self, at: Instant) {
        match &mut self.rings {
            Some(rings) if self.is_set && rings.deadline() <= at => return,
            Some(rings) => rings.as_mut().reset(at),
            none => *none = Some(Box::pin(sleep_until(at))),
        }
        self.is_set = true;
    }
}

/// A stream that tells a pulse what goes over it.
struct Watched {
    stream: TcpStream,
    pulse: Rc<ConnTimers>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.pulse.has_read(buffer.filled().len() - before);
        outcome
    }
}

impl Watched {
    /// Whether the other end has closed. Once the next request has begun to come in, nothing is
    /// read of it until this one is answered, and so nobody else would see the end.
    fn has_hung_up(&self, context: &mut Context<'_>) -> bool {
        let mut byte = [0];
        let mut peeked = ReadBuf::new(&mut byte);
        let outcome = self.stream.poll_peek(context, &mut peeked);
        matches!(outcome, Poll::Ready(Ok(0) | Err(_)))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.pulse.has_written(&outcome);
        outcome
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.pulse.has_written(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pulse.heeds_hanging_up.get() && self.has_hung_up(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
