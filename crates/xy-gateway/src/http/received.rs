//! The body of a POST, once it is there: a small one as it is, a large one as it was read on
//! another thread.

use hyper::body::{Body as _, Bytes, Incoming};
use serde_json::value::RawValue;
use xy_mcp::envelope::{self, Malformed, Message};
use xy_mcp::members::Members;

use super::connection::Pulse;
use super::refused::Refused;
use crate::front::{Conversation, Heard, StreamNo};
use crate::held::Held;
use crate::large::LargeMessage;
use crate::params::Params;
use crate::piece;

/// What is set aside for a body before any of it has come, at most.
const BODY_RESERVE_MAX: usize = 256 * 1024;

/// The body of a POST.
#[derive(Debug)]
pub(super) enum Received {
    Small(Bytes),
    Large(Box<LargeMessage>),
}

impl Received {
    /// Returns the outside of the message.
    pub(super) fn message(&self) -> Result<Message<'_>, Malformed> {
        match self {
            Self::Small(text) => envelope::parse(text),
            Self::Large(large) => large.message(),
        }
    }

    /// Returns the members of its `params`; of a large message only those that xy reads.
    pub(super) fn members<'t>(&'t self, params: Option<&'t str>) -> Members<'t> {
        match self {
            Self::Small(_) => params.and_then(Members::read).unwrap_or_default(),
            Self::Large(large) => large.params().map(|it| it.members()).unwrap_or_default(),
        }
    }

    /// Returns the params of a request, if they can be read.
    pub(super) fn params<'t>(&'t self, params: Option<&'t str>) -> Params<'t> {
        match self {
            Self::Small(_) => Params::read(params),
            Self::Large(large) => large.params().unwrap_or_default(),
        }
    }

    /// Returns the ids of its requests, as the client wrote them.
    pub(super) fn request_ids(&self) -> Vec<Box<str>> {
        match self {
            Self::Small(text) => request_ids(text),
            // Only a batch is parsed again.
            Self::Large(large) => match large.message() {
                Ok(Message::Request { id, .. }) => vec![id.into()],
                Err(Malformed::Batch) => request_ids(large.text()),
                _ => Vec::new(),
            },
        }
    }

    /// Returns all of it; nothing of a large one that is no text.
    pub(super) fn text(&self) -> &[u8] {
        match self {
            Self::Small(text) => text,
            Self::Large(large) => large.text(),
        }
    }

    /// Gives it to a conversation.
    pub(super) fn tell(&self, conversation: &dyn Conversation, stream: StreamNo) -> Heard {
        match self {
            Self::Small(text) => conversation.hear(text, stream),
            Self::Large(large) => conversation.hear_large(large, stream),
        }
    }
}

/// Returns the ids of the requests in a message or batch, as the client wrote them.
pub(super) fn request_ids(text: &[u8]) -> Vec<Box<str>> {
    match envelope::parse(text) {
        Ok(Message::Request { id, .. }) => vec![id.into()],
        Err(Malformed::Batch) => {
            let parts: Vec<&RawValue> = serde_json::from_slice(text).unwrap_or_default();
            let id = |part: &&RawValue| match envelope::parse(part.get().as_bytes()) {
                Ok(Message::Request { id, .. }) => Some(id.into()),
                _ => None,
            };
            parts.iter().filter_map(id).collect()
        }
        _ => Vec::new(),
    }
}

/// Reads all of a body, unless it is too large. A body that came in one piece, as most do,
/// is not copied.
pub(super) async fn collect(
    body: &mut Option<Incoming>,
    max: usize,
    pulse: &Pulse,
    held: &mut Held,
) -> Result<Bytes, Refused> {
    let Some(incoming) = body.as_mut() else { return Err(Refused::BodyBroken) };
    let first = next_piece(incoming).await?.unwrap_or_default();
    if first.len() > max {
        return Err(Refused::BodyTooLarge { max });
    }
    let mut whole = first;
    if !incoming.is_end_stream() {
        whole = collect_rest(incoming, whole, max, held).await?;
    }
    *body = None;
    pulse.read_whole();
    Ok(whole)
}

async fn collect_rest(
    body: &mut Incoming,
    first: Bytes,
    max: usize,
    held: &mut Held,
) -> Result<Bytes, Refused> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(max);
    let mut whole = Vec::with_capacity(first.len() + expected.min(BODY_RESERVE_MAX));
    whole.extend_from_slice(&first);
    while let Some(piece) = next_piece(body).await? {
        if whole.len() + piece.len() > max {
            return Err(Refused::BodyTooLarge { max });
        }
        whole.extend_from_slice(&piece);
        if !held.holds(whole.len()) {
            return Err(Refused::TooManyBodies);
        }
    }
    Ok(whole.into())
}

/// The next piece of a body.
async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, Refused> {
    piece::next_piece(body).await.map_err(|_| Refused::BodyBroken)
}
