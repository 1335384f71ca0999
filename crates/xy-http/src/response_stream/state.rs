//! The queued messages and the reader of one stream. Has no effect but waking the reader.

use std::task::{Context, Poll, Waker};

use hyper::body::Bytes;
use tokio::time::Instant;

use super::{Batch, EndReason, PutOutcome, StreamMode};
use crate::counters::StorageUse;
use crate::event;
use crate::limits::{RETRY_MS, STREAM_BYTES_MAX};
use crate::replay_buffer::ReplayBuffer;
use crate::request_body::StreamedRequest;

/// The state of one stream.
#[derive(Debug)]
pub(super) struct StreamState {
    /// Whether the reply is an event stream.
    pub(super) is_event_stream: bool,
    /// Bytes to send first on the current connection.
    pub(super) prelude: Vec<u8>,
    /// Whether the prelude contains an event id.
    pub(super) prelude_has_id: bool,
    pub(super) replay_buffer: ReplayBuffer,
    /// The response, if no message precedes it.
    pub(super) response: Option<Bytes>,
    /// Responses to other requests of the same batch, for a client that accepts no events.
    pub(super) batch: Batch,
    pub(super) end: Option<(EndReason, Instant)>,
    /// The number of the current connection, if any.
    pub(super) connection: Option<u32>,
    pub(super) last_connection: u32,
    /// Since when there is no connection.
    pub(super) disconnected_since: Option<Instant>,
    /// The message whose requests are answered here, until they are needed.
    pub(super) message: Bytes,
    /// The requests that are not answered yet.
    pub(super) unanswered: Vec<StreamedRequest>,
    pub(super) is_recorded: bool,
    pub(super) reader: Option<Waker>,
}

/// Returns the notification for a client that missed messages.
fn gap(missed: u64) -> Bytes {
    let notice = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"warning","logger":"xy","data":"{missed} messages of this stream have expired"}}}}"#
    );
    event::encode(None, notice.as_bytes()).0
}

impl StreamState {
    pub(super) fn stored(&self) -> StorageUse {
        StorageUse {
            events: self.replay_buffer.len(),
            bytes: self.replay_buffer.bytes() + self.batch.len(),
        }
    }

    pub(super) fn start_events(&mut self, mode: StreamMode) {
        self.is_event_stream = true;
        self.add_priming_event(mode, 0);
    }

    pub(super) fn report_missed(&mut self, missed: u64) {
        if missed > 0 {
            self.prelude.extend_from_slice(&gap(missed));
        }
    }

    /// Tells a client that supports it from which event it can resume.
    pub(super) fn add_priming_event(&mut self, mode: StreamMode, position: u64) {
        if mode.polls
            && let Some(id) = self.replay_buffer.event_id(position)
        {
            self.prelude.extend_from_slice(&event::priming_event(id, RETRY_MS));
            self.prelude_has_id = true;
        }
    }

    pub(super) fn push(&mut self, message: &[u8], is_response: bool) -> PutOutcome {
        let waiting = self.replay_buffer.unsent_bytes();
        self.replay_buffer.push(message, is_response, Instant::now());
        if self.connection.is_some() && waiting > 0 && waiting + message.len() > STREAM_BYTES_MAX {
            self.disconnect();
            return PutOutcome::TooSlow;
        }
        self.wake();
        PutOutcome::Queued
    }

    /// Returns all queued bytes in one piece.
    pub(super) fn send(&mut self) -> Option<Bytes> {
        let events = self.replay_buffer.send();
        if self.prelude.is_empty() {
            return events;
        }
        if std::mem::take(&mut self.prelude_has_id) {
            self.replay_buffer.record_sent_id();
        }
        let mut piece = std::mem::take(&mut self.prelude);
        piece.extend_from_slice(&events.unwrap_or_default());
        Some(piece.into())
    }

    pub(super) fn disconnect(&mut self) {
        self.connection = None;
        self.disconnected_since = Some(Instant::now());
        self.wake();
    }

    pub(super) fn finish(&mut self, end: EndReason) {
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
