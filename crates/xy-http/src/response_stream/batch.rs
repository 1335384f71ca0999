//! The responses to a batch as one JSON array, for a client that accepts no events.

use hyper::body::Bytes;
use xy_mcp::envelope::{self, Message};
use xy_mcp::reply;

use super::{OUTCOME_UNKNOWN_CODE, PutError, PutOutcome};
use crate::limits::STREAM_BYTES_MAX;
use crate::storage_budget::StorageBudget;

/// The error message for a response that would make the array too large.
const TOO_LARGE: &str = "the answers to this batch are too large together; accept \
    `text/event-stream`, or send the requests one by one";

/// The responses that wait for the last one of their batch.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Whether the requests came in an array. Then so do the responses, even a single one.
    is_array: bool,
    /// The beginning of the array.
    text: Vec<u8>,
}

impl Batch {
    /// Makes the response an array, even if it has one element.
    pub(super) fn set_array(&mut self) {
        self.is_array = true;
    }

    /// Returns the number of stored bytes.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Stores a response until the batch is complete. A response that exceeds the limit of the
    /// stream or of the session becomes an error.
    pub(super) fn store(
        &mut self,
        message: &[u8],
        storage: &StorageBudget,
    ) -> Result<PutOutcome, PutError> {
        let Ok(Message::Response { id, .. }) = envelope::parse(message) else {
            return Err(PutError::NoEvents);
        };
        self.separate();
        let fits = self.text.len() + message.len() <= STREAM_BYTES_MAX;
        if fits && !storage.would_exceed(message.len() + 1) {
            self.text.extend_from_slice(message);
        } else {
            let id = id.unwrap_or("null");
            self.text.extend_from_slice(&reply::error(id, OUTCOME_UNKNOWN_CODE, TOO_LARGE));
        }
        Ok(PutOutcome::Queued)
    }

    /// Returns the last response, together with the stored ones.
    pub(super) fn complete(&mut self, last: &[u8]) -> Bytes {
        if self.text.is_empty() && !self.is_array {
            return Bytes::copy_from_slice(last);
        }
        self.separate();
        self.text.extend_from_slice(last);
        self.take().unwrap_or_default()
    }

    /// Takes the stored responses as an array; `None` if there are none.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let mut all = std::mem::take(&mut self.text);
        all.push(b']');
        (all.len() > 1).then(|| all.into())
    }

    fn separate(&mut self) {
        self.text.push(if self.text.is_empty() { b'[' } else { b',' });
    }
}
