//! The answers to a batch of a client that wants no events: one array in plain JSON.

use hyper::body::Bytes;
use xy_mcp::envelope::{self, Message};

use super::super::limits::STREAM_BYTES_MAX;
use super::super::room::Room;
use super::{NO_ANSWER_CODE, NotTaken, Taken};
use crate::reply;

/// Said instead of an answer in a batch whose answers are too large to be sent together.
const TOO_LARGE: &str = "the answers to this batch are too large together; accept \
    `text/event-stream`, or send the requests one by one";

/// The answers that wait for the last one of their batch.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The requests came in an array, so their answers are one, also if there is only one.
    is_array: bool,
    /// The beginning of the array.
    text: Vec<u8>,
}

impl Batch {
    /// Has the answers be an array, also if there is only one.
    pub(super) fn set_array(&mut self) {
        self.is_array = true;
    }

    /// Returns how many bytes are kept.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Keeps an answer until those to the rest of its batch are there. An answer that does not
    /// fit, here or in the room of the session, becomes an error.
    pub(super) fn keep(&mut self, message: &[u8], room: &Room) -> Result<Taken, NotTaken> {
        let Ok(Message::Answer { id, .. }) = envelope::parse(message) else {
            return Err(NotTaken::NoEvents);
        };
        self.separate();
        let fits = self.text.len() + message.len() <= STREAM_BYTES_MAX;
        if fits && !room.is_over_with(message.len() + 1) {
            self.text.extend_from_slice(message);
        } else {
            let id = id.unwrap_or("null");
            self.text.extend_from_slice(&reply::error(id, NO_ANSWER_CODE, TOO_LARGE));
        }
        Ok(Taken::Fits)
    }

    /// Returns the last answer, with those that were kept before it.
    pub(super) fn complete(&mut self, last: &[u8]) -> Bytes {
        if self.text.is_empty() && !self.is_array {
            return Bytes::copy_from_slice(last);
        }
        self.separate();
        self.text.extend_from_slice(last);
        self.take().unwrap_or_default()
    }

    /// Takes the answers that were kept, as an array; `None` if there are none.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let mut all = std::mem::take(&mut self.text);
        all.push(b']');
        (all.len() > 1).then(|| all.into())
    }

    fn separate(&mut self) {
        self.text.push(if self.text.is_empty() { b'[' } else { b',' });
    }
}
