//! The body of a POST. A small one is kept as text; a large one is parsed on another thread.

pub(crate) use std::sync::Arc;

use hyper::body::{Body as _, Bytes, Incoming};
use xy_mcp::envelope::{Malformed, Message};
use xy_mcp::members::Members;
use xy_transport::body::{self, BodyChunks};
use xy_transport::large::LargeMessage;
use xy_transport::message_text::MessageText;
use xy_transport::pace::Pace;

use crate::body_budget::BodyReservation;
use crate::error::HttpError;
use crate::frontend::{ClientSession, Disposition, StreamNo};

/// The body of a POST.
#[derive(Debug)]
pub(super) enum RequestBody {
    Small(Bytes),
    Large(Arc<LargeMessage>),
}

impl RequestBody {
    /// Returns the envelope of the message.
    pub(super) fn message(&self) -> Result<Message<'_>, Malformed> {
        self.as_text().message()
    }

    /// Returns the text, with the parsed parts of a large message.
    pub(super) fn as_text(&self) -> MessageText<'_> {
        match self {
            Self::Small(text) => MessageText::from(&**text),
            Self::Large(large) => large.into(),
        }
    }

    /// Returns the members of `params`. For a large message, only those that xy reads.
    pub(super) fn members<'t>(&'t self, params: Option<&'t str>) -> Members<'t> {
        match self {
            Self::Small(_) => params.and_then(Members::read).unwrap_or_default(),
            Self::Large(large) => large.params().map(|it| it.members()).unwrap_or_default(),
        }
    }

    /// Returns the requests.
    pub(super) fn requests(&self) -> Vec<StreamedRequest> {
        requests(self.as_text())
    }

    /// Returns true if the body is a JSON array.
    pub(super) fn is_batch(&self) -> bool {
        self.text().trim_ascii_start().starts_with(b"[")
    }

    /// Returns the text, which is empty for a large message that is not UTF-8.
    pub(super) fn text(&self) -> &[u8] {
        self.as_text().bytes()
    }

    /// Passes the message to a client session.
    pub(super) fn deliver(
        &self,
        client_session: &dyn ClientSession,
        stream: StreamNo,
    ) -> Disposition {
        match self {
            Self::Small(text) => client_session.handle(text, stream),
            Self::Large(large) => client_session.handle_large(large, stream),
        }
    }
}

/// A request whose response is sent on a stream.
#[derive(Debug, Clone)]
pub(super) struct StreamedRequest {
    /// The id, as the client wrote it.
    pub(super) id: Box<str>,
    pub(super) method: Box<str>,
}

/// Returns the requests in a message or batch.
pub(super) fn requests(text: MessageText<'_>) -> Vec<StreamedRequest> {
    let request = |message: Result<Message<'_>, Malformed>| match message {
        Ok(Message::Request { id, method, .. }) => {
            Some(StreamedRequest { id: id.into(), method: method.into() })
        }
        _ => None,
    };
    match text.message() {
        Err(Malformed::Batch) => {
            let parts = text.batch().unwrap_or_default().into_iter();
            parts.filter_map(|part| request(part.message())).collect()
        }
        one => request(one).into_iter().collect(),
    }
}

/// Receives a body of at most `max` bytes. A body that arrives in one piece, as most do, is not
/// copied.
pub(super) async fn collect(
    body: &mut Option<Incoming>,
    max: usize,
    pace: &Pace,
    held: &mut BodyReservation,
) -> Result<CollectedBody, HttpError> {
    let Some(incoming) = body.as_mut() else { return Err(HttpError::BodyBroken) };
    let first = next_piece(incoming).await?.unwrap_or_default();
    if first.len() > max {
        return Err(HttpError::BodyTooLarge { max });
    }
    let whole = if incoming.is_end_stream() {
        CollectedBody::Whole(first)
    } else {
        CollectedBody::Chunks(collect_rest(incoming, &first, (max, pace), held).await?)
    };
    *body = None;
    Ok(whole)
}

/// A complete body.
pub(super) enum CollectedBody {
    /// It arrived in one piece, as most do.
    Whole(Bytes),
    Chunks(BodyChunks),
}

impl CollectedBody {
    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Chunks(collected) => collected.byte_count(),
        }
    }

    /// Returns the bytes of a body that is not large.
    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Chunks(collected) => collected.join().into(),
        }
    }

    /// Returns the chunks of a large body, to be joined on another thread.
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
    (max, pace): (usize, &Pace),
    held: &mut BodyReservation,
) -> Result<BodyChunks, HttpError> {
    let mut whole = BodyChunks::default();
    whole.append(first, pace).await;
    while let Some(piece) = next_piece(body).await? {
        if whole.byte_count() + piece.len() > max {
            return Err(HttpError::BodyTooLarge { max });
        }
        whole.append(&piece, pace).await;
        held.grow_to(whole.byte_count())?;
    }
    Ok(whole)
}

/// Returns the next piece of a body.
async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, HttpError> {
    body::next_piece(body).await.map_err(|_| HttpError::BodyBroken)
}
