//! The messages of one stream, and what is known of its reader. Wakes the reader, and no more.

use std::task::{Context, Poll, Waker};

use hyper::body::Bytes;
use tokio::time::Instant;

use super::super::counts::Stored;
use super::super::event;
use super::super::limits::{RETRY_MS, STREAM_BYTES_MAX};
use super::super::replay_buffer::ReplayBuffer;
use super::{Batch, End, StreamMode, Taken};

/// The messages of one stream.
#[derive(Debug)]
pub(super) struct Mail {
    /// The response is an event stream.
    pub(super) begun: bool,
    /// Bytes to send first on the current connection.
    pub(super) prelude: Vec<u8>,
    /// The prelude holds an event id.
    pub(super) primes: bool,
    pub(super) replay_buffer: ReplayBuffer,
    /// The answer, if nothing came before it.
    pub(super) answer: Option<Bytes>,
    /// Answers to other requests of the same batch, for a client that wants no events.
    pub(super) batch: Batch,
    pub(super) end: Option<(End, Instant)>,
    /// Which of the connections that it had one after the other is served, if any.
    pub(super) connection: Option<u32>,
    pub(super) last_connection: u32,
    /// Since when there is none.
    pub(super) apart_since: Option<Instant>,
    /// The message whose requests are answered here, until their ids are needed.
    pub(super) message: Bytes,
    /// The ids of the requests that are still to be answered here, as the client wrote them.
    pub(super) unanswered: Vec<Box<str>>,
    pub(super) is_recorded: bool,
    pub(super) reader: Option<Waker>,
}

/// Returns the notification for a client that missed messages.
fn gap(missed: u64) -> Bytes {
    let notice = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"warning","logger":"xy","data":"{missed} messages of this stream could not be kept for so long, and are lost"}}}}"#
    );
    event::framed(None, notice.as_bytes()).0
}

impl Mail {
    pub(super) fn stored(&self) -> Stored {
        Stored {
            events: self.replay_buffer.len(),
            bytes: self.replay_buffer.bytes() + self.batch.len(),
        }
    }

    pub(super) fn begin(&mut self, manner: StreamMode) {
        self.begun = true;
        self.prime(manner, 0);
    }

    pub(super) fn say_missed(&mut self, missed: u64) {
        if missed > 0 {
            self.prelude.extend_from_slice(&gap(missed));
        }
    }

    /// Tells a client that understands it from where it can go on.
    pub(super) fn prime(&mut self, manner: StreamMode, place: u64) {
        if manner.polls
            && let Some(id) = self.replay_buffer.name(place)
        {
            self.prelude.extend_from_slice(&event::priming(id, RETRY_MS));
            self.primes = true;
        }
    }

    pub(super) fn push(&mut self, message: &[u8], is_answer: bool) -> Taken {
        let waiting = self.replay_buffer.unsent_bytes();
        self.replay_buffer.push(message, is_answer, Instant::now());
        if self.connection.is_some() && waiting > 0 && waiting + message.len() > STREAM_BYTES_MAX {
            self.leave();
            return Taken::TooSlow;
        }
        self.wake();
        Taken::Fits
    }

    /// Everything that waits, in one piece.
    pub(super) fn send(&mut self) -> Option<Bytes> {
        let events = self.replay_buffer.send();
        if self.prelude.is_empty() {
            return events;
        }
        if std::mem::take(&mut self.primes) {
            self.replay_buffer.is_told();
        }
        let mut piece = std::mem::take(&mut self.prelude);
        piece.extend_from_slice(&events.unwrap_or_default());
        Some(piece.into())
    }

    pub(super) fn leave(&mut self) {
        self.connection = None;
        self.apart_since = Some(Instant::now());
        self.wake();
    }

    pub(super) fn finish(&mut self, end: End) {
        self.message = Bytes::new();
        self.end.get_or_insert_with(|| (end, Instant::now()));
        self.wake();
    }

    pub(super) fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    pub(super) fn wait<T>(&mut self, context: &Context<'_>) -> Poll<T> {
        match &mut self.reader {
            Some(reader) => reader.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}
