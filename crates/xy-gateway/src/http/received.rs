//! The body of a POST, once it is there: a small one as it is, a large one as it was parsed on
//! another thread.

use std::sync::Arc;

use hyper::body::{Body as _, Bytes, Incoming};
use xy_mcp::envelope::{Malformed, Message};
use xy_mcp::members::Members;

use super::connection::ConnTimers;
use super::refused::Refused;
use crate::body::{self, BodyChunks};
use crate::frontend::{Accepted, ClientSession, StreamNo};
use crate::held::Held;
use crate::large::LargeMessage;
use crate::message_text::MessageText;

/// The body of a POST.
#[derive(Debug)]
pub(super) enum Received {
    Small(Bytes),
    Large(Arc<LargeMessage>),
}

impl Received {
    /// Returns the envelope of the message.
    pub(super) fn message(&self) -> Result<Message<'_>, Malformed> {
        self.as_text().message()
    }

    /// Returns its text, and what is parsed of it.
    pub(super) fn as_text(&self) -> MessageText<'_> {
        match self {
            Self::Small(text) => MessageText::from(&**text),
            Self::Large(large) => large.into(),
        }
    }

    /// Returns the members of its `params`; of a large message only those that xy reads.
    pub(super) fn members<'t>(&'t self, params: Option<&'t str>) -> Members<'t> {
        match self {
            Self::Small(_) => params.and_then(Members::read).unwrap_or_default(),
            Self::Large(large) => large.params().map(|it| it.members()).unwrap_or_default(),
        }
    }

    /// Returns the ids of its requests, as the client wrote them.
    pub(super) fn request_ids(&self) -> Vec<Box<str>> {
        request_ids(self.as_text())
    }

    /// Returns true if it holds several messages, or one in an array.
    pub(super) fn is_batch(&self) -> bool {
        self.text().trim_ascii_start().starts_with(b"[")
    }

    /// Returns all of it; nothing of a large one that is no text.
    pub(super) fn text(&self) -> &[u8] {
        self.as_text().bytes()
    }

    /// Gives it to a conversation.
    pub(super) fn tell(&self, client_session: &dyn ClientSession, stream: StreamNo) -> Accepted {
        match self {
            Self::Small(text) => client_session.handle(text, stream),
            Self::Large(large) => client_session.handle_large(large, stream),
        }
    }
}

/// Returns the ids of the requests in a message or batch, as the client wrote them.
pub(super) fn request_ids(text: MessageText<'_>) -> Vec<Box<str>> {
    let id = |message: Result<Message<'_>, Malformed>| match message {
        Ok(Message::Request { id, .. }) => Some(id.into()),
        _ => None,
    };
    match text.message() {
        Err(Malformed::Batch) => {
            let parts = text.batch().unwrap_or_default().into_iter();
            parts.filter_map(|part| id(part.message())).collect()
        }
        one => id(one).into_iter().collect(),
    }
}

/// Reads all of a body, unless it is too large. A body that came in one piece, as most do,
/// is not copied.
pub(super) async fn collect(
    body: &mut Option<Incoming>,
    max: usize,
    pulse: &ConnTimers,
    held: &mut Held,
) -> Result<Body, Refused> {
    let Some(incoming) = body.as_mut() else { return Err(Refused::BodyBroken) };
    let first = next_piece(incoming).await?.unwrap_or_default();
    if first.len() > max {
        return Err(Refused::BodyTooLarge { max });
    }
    let whole = if incoming.is_end_stream() {
        Body::Whole(first)
    } else {
        Body::Chunks(collect_rest(incoming, &first, max, held).await?)
    };
    *body = None;
    pulse.read_whole();
    Ok(whole)
}

/// All of a body.
pub(super) enum Body {
    /// It came in one piece, as most do.
    Whole(Bytes),
    Chunks(BodyChunks),
}

impl Body {
    /// Returns how many bytes there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Chunks(collected) => collected.len(),
        }
    }

    /// Returns a body that is not large.
    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Chunks(collected) => collected.join().into(),
        }
    }

    /// Returns a large body, to be joined elsewhere.
    pub(super) fn into_chunks(self) -> BodyChunks {
        match self {
            Self::Whole(bytes) => bytes.into(),
            Self::Chunks(collected) => collected,
        }
    }
}

async fn collect_rest(
    body: &mut Incoming,
    first: &[u8],
    max: usize,
    held: &mut Held,
) -> Result<BodyChunks, Refused> {
    let mut whole = BodyChunks::default();
    whole.append(first).await;
    while let Some(piece) = next_piece(body).await? {
        if whole.len() + piece.len() > max {
            return Err(Refused::BodyTooLarge { max });
        }
        whole.append(&piece).await;
        if !held.holds(whole.len()) {
            return Err(Refused::TooManyBodies);
        }
    }
    Ok(whole)
}

/// The next piece of a body.
async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, Refused> {
    body::next_piece(body).await.map_err(|_| Refused::BodyBroken)
}
