//! The body of an event stream reply, with keep-alive comments.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::event;
use crate::limits::{CROWDED_RETRY_MS, KEEP_ALIVE_INTERVAL};
use crate::response_stream::ResponseStream;
use crate::session::Lease;
use crate::stateless::StatelessRequest;

const KEEP_ALIVE: &[u8] = b": still here\n\n";

/// The owner of a stream.
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
            Self::StatelessRequest(_) => 0, // There is only one connection.
        }
    }

    fn is_crowded(&self) -> bool {
        match self {
            Self::Session(lease) => lease.is_crowded(),
            Self::StatelessRequest(_) => false, // A client that cannot resume stays connected.
        }
    }
}

/// The body of an event stream reply.
#[derive(Debug)]
pub(super) struct EventStream {
    source: Source,
    /// When the next comment is due. Created when the stream is silent for the first time.
    keep_alive: Option<Pin<Box<Sleep>>>,
    is_released: bool,
}

impl EventStream {
    pub(super) fn new(lease: Lease) -> Self {
        Self { source: Source::Session(lease), keep_alive: None, is_released: false }
    }

    /// Creates the stream of a client without a session.
    pub(super) fn stateless(stateless_request: StatelessRequest) -> Self {
        Self {
            source: Source::StatelessRequest(stateless_request),
            keep_alive: None,
            is_released: false,
        }
    }

    /// Returns the next bytes to send; `None` at the end.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.is_released {
            return Poll::Ready(None);
        }
        let connection = self.source.connection();
        if let Poll::Ready(events) = self.source.response_stream().poll_events(connection, context)
        {
            if let Some(keep_alive) = &mut self.keep_alive {
                keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE_INTERVAL);
            }
            return Poll::Ready(events);
        }
        let first_delay = self.first_delay();
        let keep_alive = self
            .keep_alive
            .get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + first_delay)));
        ready!(keep_alive.as_mut().poll(context));
        keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE_INTERVAL);
        if self.source.is_crowded() && self.source.response_stream().polls() {
            self.is_released = true;
            return Poll::Ready(Some(event::retry_event(CROWDED_RETRY_MS)));
        }
        Poll::Ready(Some(Bytes::from_static(KEEP_ALIVE)))
    }

    /// Returns the delay of the first comment. A client that reconnects while there are too many
    /// connections receives the new events and is told to come back later.
    fn first_delay(&self) -> Duration {
        if self.source.is_crowded() && self.source.connection() > 0 {
            Duration::ZERO
        } else {
            KEEP_ALIVE_INTERVAL
        }
    }

    /// Returns true if the client was told to reconnect later.
    pub(super) fn is_released(&self) -> bool {
        self.is_released
    }

    /// Returns true if nothing more will be sent.
    pub(super) fn is_over(&self) -> bool {
        self.is_released || self.source.response_stream().is_finished(self.source.connection())
    }
}
