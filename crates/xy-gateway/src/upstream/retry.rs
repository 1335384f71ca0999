//! What becomes of a call whose server cannot answer it any more. Pure.
//!
//! What the server never saw is sent again to its successor. What it may have begun is sent
//! again once, and only if that does no harm: a list, a read, a tool that its own list calls
//! read-only or idempotent. Of everything else nobody knows whether it was done, and its
//! client is told just that. `docs/design/parked-calls.md` has the table.

use serde_json::Value;
use xy_mcp::envelope::{self, Message, text_of};

use super::Follow;
use crate::catalog::{self, Known};
use crate::frontend::View;
use crate::params::Params;

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not a byte of it was sent.
    Unwritten,
    /// It was sent, and nobody has read any of it, nor ever will.
    Unread,
    /// The server can have seen it.
    Written,
}

/// What a call is, as far as doing it twice is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idempotency {
    /// It only tells what there is: a list, a read, a prompt, a completion.
    Lookup,
    /// A tool that its server's own list calls read-only.
    ReadOnly,
    /// A tool that its server's own list says may be called twice like once.
    Idempotent,
    /// A call that begins a task.
    NewTask,
    /// It is about a task, which ends with its server.
    OfTask,
    /// Anything else.
    Other,
}

impl Idempotency {
    /// Whether it does no harm to do it twice.
    pub(crate) fn may_be_repeated(self) -> bool {
        match self {
            Self::Lookup | Self::ReadOnly | Self::Idempotent => true,
            Self::NewTask | Self::OfTask | Self::Other => false,
        }
    }
}

/// Whether it could be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    /// What the client wrote is there.
    Kept,
    /// There was no room to keep it.
    NotKept,
    /// The same would come of it.
    Useless,
}

/// What is known of a call that was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Facts {
    pub(crate) stage: Stage,
    pub(crate) sort: Idempotency,
    /// Its client still waits for it.
    pub(crate) is_wanted: bool,
    /// The server has asked its client something meanwhile.
    pub(crate) has_asked: bool,
    /// It was written to a server before, and is the second try already.
    pub(crate) was_written: bool,
    pub(crate) text: Text,
    /// The server is back, or will be by itself.
    pub(crate) has_successor: bool,
    /// The server was found hung.
    pub(crate) is_hung: bool,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Nobody waits for it.
    Drop,
    /// It waits, and is sent again.
    Resend,
    /// It was not done, for this reason.
    NotSent(Why),
    /// Nobody knows whether it was done, and it is not sent again, for this reason.
    Unknown(Why),
}

/// Why a call is not sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Nobody comes after the server.
    NoSuccessor,
    /// It was sent twice.
    Twice,
    /// Its task ends with the server, or may have begun.
    Task,
    /// The server has asked its client something meanwhile.
    Asked,
    /// It may have changed something.
    MayChange,
    /// There was no room to keep it.
    NotKept,
    /// The same would come of it.
    Useless,
    /// The server hung while it was open, and its successor may too.
    Hung,
}

/// Decides that.
pub(crate) fn fate(facts: Facts) -> Retry {
    let Facts { stage, sort, is_wanted, has_asked, was_written, text, has_successor, is_hung } =
        facts;
    let is_seen = stage == Stage::Written;
    let never = match (sort, text) {
        _ if is_seen && is_hung => Some(Why::Hung),
        _ if is_seen && was_written => Some(Why::Twice),
        (Idempotency::OfTask, _) => Some(Why::Task),
        (Idempotency::NewTask, _) if is_seen => Some(Why::Task),
        _ if is_seen && has_asked => Some(Why::Asked),
        (_, Text::NotKept) if is_seen => Some(Why::NotKept),
        (Idempotency::Other, Text::Kept) if is_seen => Some(Why::MayChange),
        _ if !has_successor => Some(Why::NoSuccessor),
        (_, Text::NotKept) => Some(Why::NotKept),
        (_, Text::Useless) => Some(Why::Useless),
        (_, Text::Kept) => None,
    };
    match never {
        _ if !is_wanted => Retry::Drop,
        None => Retry::Resend,
        Some(why) if is_seen || was_written => Retry::Unknown(why),
        Some(why) => Retry::NotSent(why),
    }
}

impl Why {
    /// The same for people: what follows `the call was sent to …, and not answered`.
    pub(crate) fn words(self) -> Option<&'static str> {
        match self {
            Self::NoSuccessor | Self::Useless => None,
            Self::Twice => Some("it had been sent again once already"),
            Self::Task => Some("tasks are not begun again"),
            Self::Hung => Some("the server hung while it was open, and it may be why"),
            Self::Asked => Some("its client had been asked something meanwhile"),
            Self::MayChange => Some("nothing says that it may be repeated"),
            Self::NotKept => Some(
                "no copy of it could be kept, as those of one server have no more room than \
                 `bytes` of `park` in `xy.kdl` says",
            ),
        }
    }
}

/// What the request of a client is, as it was written at a door with this `view`; `known` is
/// what a living server said of itself.
pub(crate) fn sort(
    text: &[u8],
    follow: &Follow,
    view: &View,
    known: Option<&Known>,
) -> Idempotency {
    if *follow == Follow::NewTask || follow.is_of_task() {
        return sort_of("", None, follow, view, known);
    }
    let Ok(Message::Request { method, params, .. }) = envelope::parse(text) else {
        return Idempotency::Other;
    };
    sort_of(&method, Params::read(params).name(), follow, view, known)
}

/// Sorts a call by its method, and by the name in its params as it is written.
pub(crate) fn sort_of(
    method: &str,
    name: Option<&str>,
    follow: &Follow,
    view: &View,
    known: Option<&Known>,
) -> Idempotency {
    if *follow == Follow::NewTask {
        return Idempotency::NewTask;
    }
    if follow.is_of_task() {
        return Idempotency::OfTask;
    }
    match method {
        "tools/list"
        | "prompts/list"
        | "resources/list"
        | "resources/templates/list"
        | "resources/read"
        | "prompts/get"
        | "completion/complete"
        | "ping" => Idempotency::Lookup,
        "tools/call" => {
            let name = name.and_then(text_of);
            name.zip(known)
                .map_or(Idempotency::Other, |(name, known)| sort_of_tool(&name, view, known))
        }
        _ => Idempotency::Other,
    }
}

/// What a tool is, by its name at a door with this `view`. Of several with one name all have
/// to agree.
fn sort_of_tool(name: &str, view: &View, known: &Known) -> Idempotency {
    let inside = match view {
        View::Server(_) => Some(name),
        View::Profile(_) | View::All => known.inside(catalog::Kind::Tools, name),
    };
    let tools = known.lists.of(catalog::Kind::Tools).iter();
    let mut sorts = tools.filter(|it| Some(&*it.name) == inside).map(|it| hinted(&it.raw));
    let first = sorts.next().unwrap_or(Idempotency::Other);
    if sorts.all(|other| other == first) { first } else { Idempotency::Other }
}

/// What a tool says of itself. Only a plain `true` counts.
fn hinted(tool: &str) -> Idempotency {
    #[derive(serde::Deserialize)]
    struct Tool {
        #[serde(default)]
        annotations: Value,
    }
    let Ok(Tool { annotations }) = serde_json::from_str(tool) else { return Idempotency::Other };
    if annotations["readOnlyHint"] == true {
        Idempotency::ReadOnly
    } else if annotations["idempotentHint"] == true {
        Idempotency::Idempotent
    } else {
        Idempotency::Other
    }
}

#[cfg(test)]
mod tests;
