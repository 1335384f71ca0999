//! Decides whether a call is sent again when its server cannot answer it any more. Pure.
//!
//! A call that the server never saw is sent to its successor. A call that may have begun is sent
//! again once, and only if repeating it is safe: a list, a read, or a tool that the server's list
//! calls read-only or idempotent. The outcome of any other call is unknown, and its client is told
//! so. `docs/design/queued-calls.md` has the table.

use serde_json::Value;
use xy_catalog::catalog::ServerCatalog;
use xy_http::frontend::View;
use xy_mcp::envelope::{self, Message, text_of};
use xy_mcp::kind;
use xy_mcp::params::Params;
use xy_mcp::repeat::{self, Repeatable};
use xy_upstream::connection::Delivery;

use super::ResponseKind;

/// The idempotency of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idempotency {
    /// It only reads: a list, a resource, a prompt, a completion.
    Lookup,
    /// A tool that the server's list calls read-only.
    ReadOnly,
    /// A tool that the server's list calls idempotent.
    Idempotent,
    /// A call that creates a task.
    NewTask,
    /// It is about a task, which ends with its server.
    OfTask,
    /// Anything else.
    Other,
}

impl Idempotency {
    /// Returns true if repeating the call is safe.
    pub(crate) fn may_be_repeated(self) -> bool {
        match self {
            Self::Lookup | Self::ReadOnly | Self::Idempotent => true,
            Self::NewTask | Self::OfTask | Self::Other => false,
        }
    }
}

/// The availability of a call's text for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyState {
    /// The text is kept.
    Available,
    /// There was no room to keep the text.
    NotKept,
    /// A retry would have the same result.
    Useless,
}

/// The kind of a call's caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallerKind {
    /// A client that waits for the response.
    Client,
    /// A client that has to supply input first. It sends its request again itself.
    PendingInput,
    /// A user of the control socket.
    Admin,
}

/// The facts about a call that was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct RetryFacts {
    /// `None` if nothing waits for the response.
    pub(crate) caller: Option<CallerKind>,
    pub(crate) delivery: Delivery,
    pub(crate) idempotency: Idempotency,
    /// Its caller still waits for it.
    pub(crate) is_wanted: bool,
    /// The server has sent its client a request during the call.
    pub(crate) has_server_request: bool,
    /// It was written to a server before: this was the second attempt.
    pub(crate) was_written: bool,
    pub(crate) copy: CopyState,
    /// The server has been restarted, or will be without user action.
    pub(crate) has_successor: bool,
    /// After a change of settings, its client uses another instance.
    pub(crate) has_moved: bool,
    /// The server was found hung.
    pub(crate) is_hung: bool,
}

impl RetryFacts {
    /// Returns the facts of a call whose text is never kept.
    pub(crate) fn without_text(caller: Option<CallerKind>, delivery: Delivery) -> Self {
        Self {
            caller,
            delivery,
            idempotency: Idempotency::Other,
            is_wanted: caller.is_some(),
            has_server_request: false,
            was_written: false,
            copy: CopyState::NotKept,
            has_successor: false,
            has_moved: false,
            is_hung: false,
        }
    }
}

/// The decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The call is dropped, as its caller does not wait for it.
    Drop,
    /// The call is queued and sent again.
    Resend,
    /// The call is sent to the instance that its client uses now.
    Redispatch,
    /// The call was not executed, and fails for this reason.
    NotSent(Reason),
    /// The call may have been executed. It is not sent again, for this reason.
    Unknown(Reason),
}

/// The reason why a call is not sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The server is not restarted.
    NoSuccessor,
    /// It was sent twice.
    Twice,
    /// Its task ends with the server, or may have been created.
    Task,
    /// The server has sent its client a request during the call.
    ServerRequest,
    /// It may have changed something.
    MayChange,
    /// There was no room to keep its text.
    NotKept,
    /// A retry would have the same result.
    Useless,
    /// The server hung while the call was pending, and its successor might too.
    Hung,
    /// Its caller is one for which xy sends nothing twice.
    SentOnce,
}

/// Decides what happens to a call.
pub(crate) fn decide(facts: RetryFacts) -> Retry {
    let RetryFacts {
        caller,
        delivery,
        idempotency,
        is_wanted,
        has_server_request,
        was_written,
        copy,
        has_successor,
        has_moved,
        is_hung,
    } = facts;
    let is_seen = delivery == Delivery::Written;
    let never = match (idempotency, copy) {
        _ if caller != Some(CallerKind::Client) => Some(Reason::SentOnce),
        _ if is_seen && is_hung => Some(Reason::Hung),
        _ if is_seen && was_written => Some(Reason::Twice),
        (Idempotency::OfTask, _) => Some(Reason::Task),
        (Idempotency::NewTask, _) if is_seen => Some(Reason::Task),
        _ if is_seen && has_server_request => Some(Reason::ServerRequest),
        (_, CopyState::NotKept) if is_seen => Some(Reason::NotKept),
        (Idempotency::Other, CopyState::Available) if is_seen => Some(Reason::MayChange),
        _ if !has_successor => Some(Reason::NoSuccessor),
        (_, CopyState::NotKept) => Some(Reason::NotKept),
        (_, CopyState::Useless) => Some(Reason::Useless),
        (_, CopyState::Available) => None,
    };
    match never {
        _ if !is_wanted => Retry::Drop,
        None if has_moved => Retry::Redispatch,
        None => Retry::Resend,
        Some(why) if is_seen || was_written => Retry::Unknown(why),
        Some(why) => Retry::NotSent(why),
    }
}

impl Reason {
    /// Returns the reason for people, as a continuation of `the call was sent to …, and not
    /// answered`.
    pub(crate) fn words(self) -> Option<&'static str> {
        match self {
            Self::NoSuccessor | Self::Useless | Self::SentOnce => None,
            Self::Twice => Some("it had been sent again once already"),
            Self::Task => Some("tasks are not begun again"),
            Self::Hung => Some("the server hung while it was open, and it may be why"),
            Self::ServerRequest => Some("the server had sent its client a request during the call"),
            Self::MayChange => Some("it is not known to be safe to repeat"),
            Self::NotKept => Some(
                "no copy of it could be kept, as the copies of one server would exceed \
                 `park { bytes }` of `xy.kdl`",
            ),
        }
    }
}

/// Classifies a client's request, as written at an endpoint with this `view`. `known` is what a
/// running server said of itself.
pub(crate) fn classify(
    text: &[u8],
    response_kind: &ResponseKind,
    view: &View,
    known: Option<&ServerCatalog>,
) -> Idempotency {
    if *response_kind == ResponseKind::NewTask || response_kind.is_of_task() {
        return classify_method("", None, response_kind, view, known);
    }
    let Ok(Message::Request { method, params, .. }) = envelope::parse(text) else {
        return Idempotency::Other;
    };
    classify_method(&method, Params::read(params).name(), response_kind, view, known)
}

/// Classifies a call by its method, and by the name in its params as written.
pub(crate) fn classify_method(
    method: &str,
    name: Option<&str>,
    response_kind: &ResponseKind,
    view: &View,
    known: Option<&ServerCatalog>,
) -> Idempotency {
    if *response_kind == ResponseKind::NewTask {
        return Idempotency::NewTask;
    }
    if response_kind.is_of_task() {
        return Idempotency::OfTask;
    }
    match method {
        _ if repeat::is_lookup(method) => Idempotency::Lookup,
        "tools/call" => {
            let name = name.and_then(text_of);
            name.zip(known)
                .map_or(Idempotency::Other, |(name, known)| classify_tool(&name, view, known))
        }
        _ => Idempotency::Other,
    }
}

/// Classifies a tool by its name at an endpoint with this `view`. If several tools have that name,
/// all have to agree.
fn classify_tool(name: &str, view: &View, known: &ServerCatalog) -> Idempotency {
    let inside = match view {
        View::Server(_) => Some(name),
        View::Profile(_) | View::All => known.original_name(kind::Kind::Tools, name),
    };
    let tools = known.lists.of(kind::Kind::Tools).iter();
    let mut sorts = tools.filter(|it| Some(&*it.name) == inside).map(|it| hinted(&it.raw));
    let first = sorts.next().unwrap_or(Idempotency::Other);
    if sorts.all(|other| other == first) { first } else { Idempotency::Other }
}

/// Classifies a tool by its annotations.
fn hinted(tool: &str) -> Idempotency {
    #[derive(serde::Deserialize)]
    struct Tool {
        #[serde(default)]
        annotations: Value,
    }
    let Ok(Tool { annotations }) = serde_json::from_str(tool) else { return Idempotency::Other };
    match Repeatable::hinted(&annotations) {
        Some(Repeatable::ReadOnly) => Idempotency::ReadOnly,
        Some(Repeatable::Idempotent) => Idempotency::Idempotent,
        None => Idempotency::Other,
    }
}

#[cfg(test)]
mod tests;
