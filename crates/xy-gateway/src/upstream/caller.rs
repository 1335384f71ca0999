//! The callers of requests that are sent to a server.

use std::rc::Rc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use xy_http::frontend::StreamNo;
use xy_mcp::modern::RequestMeta;
use xy_upstream::connection::ResponseResult;
use xy_upstream::fault::ServerFault;

use crate::bridge::EraTranslation;
use crate::bridge::pending_input::{CallResult, PendingInput};
use crate::call::{Alias, CallClient, Principal, ResponseKind};
use crate::exclusive::Slot;
use crate::upstream::retry::CallerKind;

/// The party that waits for a response.
pub(crate) enum Caller {
    /// A cancelled call, since then. The server may still work on it and send messages meant for
    /// its client, which belonged to `group_id`.
    Cancelled { since: Instant, group_id: Option<u64>, response_kind: ResponseKind },
    /// A client.
    Client {
        client: Rc<dyn CallClient>,
        /// The server, under the name that the client used.
        alias: Rc<Alias>,
        /// The client's id of the request, as written.
        id: Box<str>,
        /// The stream on which the request came.
        stream: StreamNo,
        /// The client's progress token, as written.
        token: Option<Box<str>>,
        /// The way in which the response is inspected.
        response_kind: ResponseKind,
        /// The client metadata of a modern request.
        request_meta: Option<Rc<RequestMeta>>,
        /// The translation between client and server, if their eras differ.
        translation: Option<Box<EraTranslation>>,
    },
    /// A modern client that has to supply input first, and then comes back.
    PendingInput(Rc<PendingInput>),
    /// No one, while the call passes from one caller to another.
    Detached,
    /// A user of the control socket, who gets the whole response as written.
    Admin(oneshot::Sender<ResponseResult>),
}

/// The owner of a call.
pub(crate) enum CallOwner {
    /// A client, the stream on which it made the call, and the upstream id.
    Client(Rc<dyn CallClient>, StreamNo, u64),
    /// A client that is to come back with input.
    PendingInput(Rc<PendingInput>),
}

impl Caller {
    /// Returns the kind of the caller; `None` if nothing waits for the response.
    pub(crate) fn kind(&self) -> Option<CallerKind> {
        match self {
            Self::Client { .. } => Some(CallerKind::Client),
            Self::PendingInput(_) => Some(CallerKind::PendingInput),
            Self::Admin(_) => Some(CallerKind::Admin),
            Self::Cancelled { .. } | Self::Detached => None,
        }
    }

    /// Returns the client that waits for the response, if it is one.
    pub(super) fn client(&self) -> Option<&Rc<dyn CallClient>> {
        match self {
            Self::Client { client, .. } => Some(client),
            _ => None,
        }
    }

    /// Returns the owner of the call, if a client waits for the response.
    pub(super) fn owner(&self, upstream_id: u64) -> Option<CallOwner> {
        match self {
            Self::Client { client, stream, .. } => {
                Some(CallOwner::Client(client.clone(), *stream, upstream_id))
            }
            Self::PendingInput(pending) => Some(CallOwner::PendingInput(pending.clone())),
            _ => None,
        }
    }

    /// Returns the group of the client that waits, or will come back.
    pub(super) fn group_id(&self) -> Option<u64> {
        match self {
            Self::Client { client, .. } => Some(client.group_id()),
            Self::PendingInput(pending) => Some(pending.group_id),
            _ => None,
        }
    }

    /// Returns the principal of the client that waits, or will come back.
    pub(super) fn principal(&self) -> Option<Principal> {
        match self {
            Self::Client { client, .. } => Some(client.principal()),
            Self::PendingInput(pending) => Some(pending.principal),
            _ => None,
        }
    }

    /// Returns the number of the client that waits, or will come back.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Client { client, .. } => Some(client.number()),
            Self::PendingInput(pending) => Some(pending.client),
            _ => None,
        }
    }

    /// Returns the slot that the call occupies: all calls of a legacy client share one, and each
    /// call of a modern client has its own.
    pub(super) fn slot(&self, upstream_id: u64) -> Option<Slot> {
        match self {
            Self::Client { client, request_meta: None, .. } => Some(Slot::Client(client.number())),
            Self::Client { .. } | Self::PendingInput(_) => Some(Slot::Call(upstream_id)),
            _ => None,
        }
    }

    /// Returns true if the client can be sent a request during this call.
    pub(super) fn can_be_asked(&self) -> bool {
        match self {
            Self::Client { request_meta: None, .. } | Self::PendingInput(_) => true,
            Self::Client { translation, .. } => {
                matches!(
                    translation.as_deref(),
                    Some(EraTranslation::ToLegacy { binding: Some(_), .. })
                )
            }
            _ => false,
        }
    }

    /// Returns true if the client has received the input request and is to come back.
    pub(super) fn awaits_client(&self) -> bool {
        matches!(self, Self::PendingInput(pending) if pending.is_delivered())
    }

    /// Returns true if the client has been away for so long that it seems to ask its user.
    pub(super) fn is_left(&self) -> bool {
        matches!(self, Self::PendingInput(pending) if pending.is_slow())
    }

    /// Returns true if the server waits for the client's input, so that it sends nothing else in
    /// this call. A server that has cancelled its request goes on working.
    pub(super) fn is_waited_for(&self) -> bool {
        matches!(self, Self::PendingInput(pending) if pending.is_awaited())
    }

    /// Returns the translation between the client and the server.
    pub(super) fn translation(&self) -> Option<&EraTranslation> {
        match self {
            Self::Client { translation, .. } => translation.as_deref(),
            _ => None,
        }
    }

    /// Returns the server, under the name that the client used.
    pub(super) fn alias(&self) -> Option<&Rc<Alias>> {
        match self {
            Self::Client { alias, .. } => Some(alias),
            Self::PendingInput(pending) => Some(&pending.alias),
            _ => None,
        }
    }

    /// Completes the call with an error.
    pub(crate) fn fail(self, fault: &ServerFault) {
        match self {
            Self::Client { client, alias, id, stream, .. } => {
                client.record_limit(fault);
                client.respond_error(&id, stream, &fault.named(&alias.name));
            }
            Self::PendingInput(pending) => {
                pending.set_result(CallResult::Fault(fault.named(&pending.alias.name)));
            }
            // The receiver may be gone.
            Self::Admin(answer) => drop(answer.send(Err(fault.clone()))),
            Self::Cancelled { .. } | Self::Detached => {}
        }
    }

    /// Returns the id of the client's token.
    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Self::Client { client, .. } => Some(client.token().id),
            _ => None,
        }
    }

    /// Returns true if the caller waits for the response.
    pub(super) fn is_waiting(&self) -> bool {
        !matches!(self, Self::Cancelled { .. } | Self::Detached)
    }
}
