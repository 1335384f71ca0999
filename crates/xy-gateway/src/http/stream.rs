//! The body of an answer that is events, and what is said in its silences.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};

use super::event;
use super::limits::{KEEP_ALIVE_EVERY, RETRY_CROWDED_MS};
use super::response_stream::ResponseStream;
use super::session_streams::Lease;
use super::stateless::StatelessRequest;

const KEEP_ALIVE: &[u8] = b": still here\n\n";

/// Whose stream it is.
#[derive(Debug)]
enum Source {
    Session(Lease),
    StatelessRequest(StatelessRequest),
}

impl Source {
    fn response_stream(&self) -> &ResponseStream {
        match self {
            Self::Session(lease) => lease.response_stream(),
            Self::StatelessRequest(stateless_request) => stateless_request.response_stream(),
        }
    }

    fn connection(&self) -> u32 {
        match self {
            Self::Session(lease) => lease.connection(),
            Self::StatelessRequest(_) => 0, // There is never another.
        }
    }

    fn is_crowded(&self) -> bool {
        match self {
            Self::Session(lease) => lease.is_crowded(),
            Self::StatelessRequest(_) => false, // Whoever cannot come back is not asked to.
        }
    }
}

/// The body of an answer that is events: whatever is put into its mailbox, to the end.
#[derive(Debug)]
pub(super) struct EventStream {
    source: Source,
    /// When a comment is due; made when there is a first silence.
    quiet: Option<Pin<Box<Sleep>>>,
    lets_go: bool,
}

impl EventStream {
    pub(super) fn new(lease: Lease) -> Self {
        Self { source: Source::Session(lease), quiet: None, lets_go: false }
    }

    /// Of a client that cannot come back.
    pub(super) fn of_visit(stateless_request: StatelessRequest) -> Self {
        Self { source: Source::StatelessRequest(stateless_request), quiet: None, lets_go: false }
    }

    /// What is to be sent next; `None` at the end.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.lets_go {
            return Poll::Ready(None);
        }
        let connection = self.source.connection();
        if let Poll::Ready(events) = self.source.response_stream().poll_events(connection, context)
        {
            if let Some(quiet) = &mut self.quiet {
                quiet.as_mut().reset(Instant::now() + KEEP_ALIVE_EVERY);
            }
            return Poll::Ready(events);
        }
        let patience = self.patience();
        let quiet =
            self.quiet.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + patience)));
        ready!(quiet.as_mut().poll(context));
        quiet.as_mut().reset(Instant::now() + KEEP_ALIVE_EVERY);
        if self.source.is_crowded() && self.source.response_stream().polls() {
            self.lets_go = true;
            return Poll::Ready(Some(event::retry(RETRY_CROWDED_MS)));
        }
        Poll::Ready(Some(Bytes::from_static(KEEP_ALIVE)))
    }

    /// How long the first silence may be. Who comes back when there are too many connections
    /// is told what is new, and to come again.
    fn patience(&self) -> Duration {
        if self.source.is_crowded() && self.source.connection() > 0 {
            Duration::ZERO
        } else {
            KEEP_ALIVE_EVERY
        }
    }

    /// Whether the client shall come back over another connection.
    pub(super) fn lets_go(&self) -> bool {
        self.lets_go
    }

    /// Whether there is nothing more to send, now and later.
    pub(super) fn is_over(&self) -> bool {
        self.lets_go || self.source.response_stream().is_over(self.source.connection())
    }
}
