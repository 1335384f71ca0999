//! The body of a POST, once it is there: a small one as it is, a large one as it was read on
//! another thread.

use hyper::body::Bytes;
use xy_mcp::envelope::{self, Malformed, Message};
use xy_mcp::members::Members;

use crate::front::{Conversation, Heard, StreamNo};
use crate::large::LargeMessage;

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

    /// Gives it to a conversation.
    pub(super) fn tell(&self, conversation: &dyn Conversation, stream: StreamNo) -> Heard {
        match self {
            Self::Small(text) => conversation.hear(text, stream),
            Self::Large(large) => conversation.hear_large(large, stream),
        }
    }
}
