//! The text of a client's message. Small texts are copied if they are kept; large ones are shared,
//! since copying 30 MB would delay all other clients.

use std::ops::Deref;
use std::sync::Arc;

use serde_json::value::RawValue;
use xy_mcp::edit::{Edits, Piece, append_on_one_line};
use xy_mcp::envelope::{self, Malformed, Message};
use xy_mcp::params::Params;

use crate::chunks::Chunks;
use crate::large::LargeMessage;

/// Maximum message size.
pub const MAX_MESSAGE: usize = 32 * 1024 * 1024;

/// The text of a message, borrowed from the read buffer.
#[derive(Debug, Clone, Copy)]
pub struct MessageText<'t> {
    bytes: &'t [u8],
    large: Option<&'t Arc<LargeMessage>>,
}

impl<'t> MessageText<'t> {
    /// Returns the text as a slice with the lifetime of the read buffer.
    pub fn bytes(self) -> &'t [u8] {
        self.bytes
    }

    /// Returns the envelope. Parses it unless it is parsed already.
    pub fn message(self) -> Result<Message<'t>, Malformed> {
        self.large.map_or_else(|| envelope::parse(self.bytes), |large| large.message())
    }

    /// Returns the params of a request. Parses them unless they are parsed already.
    pub fn checked_params(self, params: Option<&'t str>) -> Result<Params<'t>, String> {
        self.large.map_or_else(|| Params::checked(params), |large| large.params())
    }

    /// Returns the params of a notification. Parses them unless they are parsed already.
    pub fn params(self, params: Option<&'t str>) -> Params<'t> {
        let large = |large: &'t Arc<LargeMessage>| large.params().unwrap_or_default();
        self.large.map_or_else(|| Params::read(params), large)
    }

    /// Returns the messages of a batch, parsed if the batch is; `None` if the text is no array.
    pub fn batch(self) -> Option<Vec<Self>> {
        if let Some(large) = self.large {
            return large.parts().map(|parts| parts.iter().map(Self::from).collect());
        }
        let parts: Vec<&RawValue> = serde_json::from_slice(self.bytes).ok()?;
        Some(parts.into_iter().map(|part| part.get().as_bytes().into()).collect())
    }

    /// Copies a small text and shares a large one.
    pub fn store(self) -> StoredText {
        match self.large {
            Some(large) => StoredText::Large(large.clone()),
            None => StoredText::Small(self.bytes.into()),
        }
    }

    /// Appends the edited text to `out`, on one line.
    pub fn append_edited(self, edits: &mut Edits<'_>, out: &mut Chunks) {
        let Some(large) = self.large else { return edits.append_to(out.tail()) };
        edits.for_each_piece(|piece| match piece {
            // A large message has no line breaks.
            Piece::Unchanged(range) => out.share(large.bytes().slice(range)),
            Piece::New(new) => append_on_one_line(out.tail(), new.as_bytes()),
        });
    }
}

impl<'t> From<&'t [u8]> for MessageText<'t> {
    fn from(bytes: &'t [u8]) -> Self {
        Self { bytes, large: None }
    }
}

impl<'t> From<&'t Arc<LargeMessage>> for MessageText<'t> {
    fn from(large: &'t Arc<LargeMessage>) -> Self {
        Self { bytes: large.text(), large: Some(large) }
    }
}

impl Deref for MessageText<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// The text of a message that outlives the read buffer, for a call that waits or may be retried.
#[derive(Debug, Clone)]
pub enum StoredText {
    /// A copy.
    Small(Box<[u8]>),
    /// A shared text, already parsed.
    Large(Arc<LargeMessage>),
}

impl StoredText {
    /// Returns the text as a borrowed message.
    pub fn borrow(&self) -> MessageText<'_> {
        match self {
            Self::Small(bytes) => MessageText::from(&**bytes),
            Self::Large(large) => MessageText::from(large),
        }
    }
}

impl Default for StoredText {
    fn default() -> Self {
        Self::Small(Box::default())
    }
}

impl Deref for StoredText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.borrow().bytes
    }
}
