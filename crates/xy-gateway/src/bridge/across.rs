//! What is changed of a request and of its answer on the way between the eras.

use xy_mcp::edit::Edits;
use xy_mcp::envelope::Outcome;
use xy_mcp::members::Members;
use xy_protocol::error::{CallError, ErrorKind};

use super::rounds::Rounds;
use super::{Bond, Unfit, pending_input};
use crate::client::Client;
use crate::era::Era;
use crate::frontend::{Entry, View};
use crate::held::Held;
use crate::message_text::StoredText;
use crate::modern::{self, RequestMeta, Wrong};
use crate::reply;
use crate::upstream::Request;

/// What stands between a client and a server of different eras, for one call.
pub(crate) enum Across {
    /// The client is modern, and the server is not.
    ToLegacy {
        /// What is asked.
        method: Box<str>,
        /// What a state for it is bound to, if the client can be asked for input.
        bond: Option<Bond>,
        /// What the server wanted of the client that it cannot do, as the text of
        /// capabilities.
        lacks: Option<&'static str>,
    },
    /// The server is modern, and the client is not.
    ToModern {
        /// What the server is told of the client.
        manner: RequestMeta,
        /// What the client asked, if the server may ask for input, to ask it again.
        asked: Option<Asked>,
    },
}

/// What a client asked that a server may want to know more about.
pub(crate) struct Asked {
    /// As the client wrote it.
    pub(crate) text: StoredText,
    /// What it has behind it, and how long it may take.
    pub(crate) rounds: Rounds,
    /// An earlier life of its server can have seen it.
    pub(crate) was_written: bool,
    /// There is a bound for all of them.
    pub(crate) _held: Held,
}

/// Whether results of a method may ask for input.
fn can_want_input(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// What a state for a request is bound to.
pub(crate) fn bond(entry: &Entry, method: &str, params: Option<&str>) -> Bond {
    let view = match &entry.view {
        View::All => "all".to_owned(),
        View::Profile(name) => format!("p/{name}"),
        View::Server(name) => format!("s/{name}"),
    };
    Bond::new(entry.who, &view, method, params)
}

/// What stands between a client's request and a server of this era; `None` if they are equals.
pub(crate) fn between(
    client: &Client,
    request: &Request<'_>,
    era: Era,
) -> Result<Option<Box<Across>>, CallError> {
    let method = request.what.0;
    let across = match (&request.manner, era) {
        (Some(_), Era::Modern) | (None, Era::Legacy) => return Ok(None),
        (Some(_), Era::Legacy) => {
            if request.has_state {
                return Err(pending_input::refused(Unfit::NotOurs));
            }
            let bond = can_want_input(method).then(|| bond(client.entry(), method, request.params));
            Across::ToLegacy { method: method.into(), bond, lacks: None }
        }
        (None, Era::Modern) => {
            if request.params.is_some_and(|params| !params.starts_with('{')) {
                return Err(reply::invalid("`params` is no object, which this server wants"));
            }
            let asked = can_want_input(method).then(|| keep(client, request)).transpose()?;
            Across::ToModern { manner: client.as_modern(), asked }
        }
    };
    Ok(Some(Box::new(across)))
}

fn keep(client: &Client, request: &Request<'_>) -> Result<Asked, CallError> {
    let mut held = client.hold_bytes();
    if !held.holds(request.text.len()) {
        let message = "too much is asked at once of servers that may ask again";
        return Err(CallError::new(ErrorKind::QueueFull, message)
            .cause("no more is kept than `held-bytes` of `park` says")
            .hint(
                "try again later, or write a larger `park { held-bytes … }` in `xy.kdl` and \
                 start the daemon anew",
            ));
    }
    let rounds = Rounds { count: request.past.rounds.count, watch: request.watch.clone() };
    let was_written = request.past.was_written;
    Ok(Asked { text: request.text.store(), rounds, was_written, _held: held })
}

impl Across {
    /// Changes what a request says besides what it asks. `token` is our own for its progress.
    pub(crate) fn edit<'t>(&self, request: &Request<'t>, token: &str, edits: &mut Edits<'t>) {
        let token = request.token.map(|_| token);
        match (self, request.meta) {
            (Self::ToLegacy { .. }, Some(meta)) => {
                if let Some(new) = modern::meta_for_legacy(meta, token) {
                    edits.replace(meta, new);
                }
            }
            (Self::ToLegacy { .. }, None) => {}
            (Self::ToModern { manner, .. }, Some(meta)) => {
                edits.replace(meta, modern::meta_for_modern(Some(meta), token, manner));
            }
            (Self::ToModern { manner, .. }, None) => {
                let meta = modern::meta_for_modern(None, None, manner);
                add_meta(request, &meta, edits);
            }
        }
    }

    /// A legacy server has wanted of the client what it cannot do.
    pub(crate) fn lacks(&mut self, needed: &'static str) {
        if let Self::ToLegacy { lacks, .. } = self {
            *lacks = Some(needed);
        }
    }

    /// What is answered instead, if this is how a server fails that wanted of the client what
    /// it cannot do.
    pub(crate) fn instead(&self, outcome: Outcome<'_>) -> Option<Wrong> {
        let Self::ToLegacy { lacks: Some(needed), .. } = self else { return None };
        modern::failed_without(needed, outcome)
    }

    /// Changes an answer so that the client can read it; `info` is who the server is.
    pub(crate) fn edit_answer<'t>(
        &self,
        outcome: Outcome<'t>,
        info: Option<&str>,
        edits: &mut Edits<'t>,
    ) {
        let Self::ToLegacy { method, .. } = self else { return };
        match outcome {
            Outcome::Result(result) => {
                for (part, new) in modern::completed(result, method, info) {
                    edits.replace(part, new);
                }
            }
            Outcome::Error(error) => {
                if let Some((part, new)) = modern::code_from_legacy(error) {
                    edits.replace(part, new);
                }
            }
        }
    }
}

/// Puts `_meta` into a request that has none, and `params` if it has none of these either.
fn add_meta<'t>(request: &Request<'t>, meta: &str, edits: &mut Edits<'t>) {
    if let Some(params) = request.params {
        // One that is no object says nothing.
        if let Some(odd) = Members::read(params).and_then(|it| it.get("_meta")) {
            return edits.replace(odd, meta.to_owned());
        }
        let comma = if is_empty(params) { "" } else { "," };
        return edits.replace(&params[..1], format!(r#"{{"_meta":{meta}{comma}"#));
    }
    // What has an id, a method and no params is short.
    let text = std::str::from_utf8(request.text.bytes()).unwrap_or_default();
    let params = format!(r#"{{"_meta":{meta}}}"#);
    match Members::read(text).and_then(|it| it.get("params")) {
        Some(null) => edits.replace(null, params),
        None => {
            if let Some(at) = text.find('{') {
                edits.replace(&text[at..=at], format!(r#"{{"params":{params},"#));
            }
        }
    }
}

/// Whether an object, as it is written, has no members.
pub(super) fn is_empty(object: &str) -> bool {
    object[1..].trim_start().starts_with('}')
}
