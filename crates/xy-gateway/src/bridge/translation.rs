//! Rewrites requests and responses between the eras.

use xy_http::frontend::{Entry, View};
use xy_mcp::edit::Edits;
use xy_mcp::envelope::Outcome;
use xy_mcp::era::Era;
use xy_mcp::members::Members;
use xy_mcp::modern::{self, RequestError, RequestMeta};
use xy_mcp::reply;
use xy_protocol::error::{CallError, ErrorKind};
use xy_transport::budget::TokenReservation;
use xy_transport::message_text::StoredText;

use super::{StateBinding, StateError};
use crate::call::{CallClient, CallRequest, Rounds};
use crate::limit_hits;

/// The translation of one call between a client and a server of different eras.
pub(crate) enum EraTranslation {
    /// A modern client calls a legacy server.
    ToLegacy {
        /// The method.
        method: Box<str>,
        /// The binding of a state for the call, if the client can be asked for input.
        binding: Option<StateBinding>,
        /// The capabilities that the server needed and the client lacks, as JSON text.
        missing: Option<&'static str>,
    },
    /// A legacy client calls a modern server.
    ToModern {
        /// The client metadata for the server.
        request_meta: RequestMeta,
        /// The original request, if the server may require input.
        original: Option<OriginalRequest>,
    },
}

/// A stored request, to be repeated with the input that its server requires.
pub(crate) struct OriginalRequest {
    /// The text that the client sent.
    pub(crate) text: StoredText,
    /// The number of earlier rounds, and the timer of the call.
    pub(crate) rounds: Rounds,
    /// True if an earlier life may have received it.
    pub(crate) was_written: bool,
    /// The bytes, within the client's share of a limit.
    pub(crate) _held: TokenReservation,
}

/// Returns true if results of a method may require input.
fn can_request_input(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// Returns the binding of a state for this request.
pub(crate) fn binding(entry: &Entry, method: &str, params: Option<&str>) -> StateBinding {
    let view = match &entry.view {
        View::All => "all".to_owned(),
        View::Profile(name) => format!("p/{name}"),
        View::Server(name) => format!("s/{name}"),
    };
    StateBinding::new(entry.principal, &view, method, params)
}

/// Returns the translation between a client and a server of this era; `None` within one era.
pub(crate) fn translation_for(
    client: &dyn CallClient,
    request: &CallRequest<'_>,
    era: Era,
) -> Result<Option<Box<EraTranslation>>, CallError> {
    let method = request.method_and_target.0;
    let translation = match (&request.request_meta, era) {
        (Some(_), Era::Modern) | (None, Era::Legacy) => return Ok(None),
        (Some(_), Era::Legacy) => {
            if request.has_state {
                return Err(StateError::Unknown.call_error());
            }
            let binding =
                can_request_input(method).then(|| binding(client.entry(), method, request.params));
            EraTranslation::ToLegacy { method: method.into(), binding, missing: None }
        }
        (None, Era::Modern) => {
            if request.params.is_some_and(|params| !params.starts_with('{')) {
                return Err(reply::invalid("`params` is not an object"));
            }
            let original =
                can_request_input(method).then(|| store_request(client, request)).transpose()?;
            EraTranslation::ToModern { request_meta: client.modern_meta(), original }
        }
    };
    Ok(Some(Box::new(translation)))
}

fn store_request(
    client: &dyn CallClient,
    request: &CallRequest<'_>,
) -> Result<OriginalRequest, CallError> {
    let mut held = client.byte_budget();
    if !held.resize(request.text.len()) {
        client.limit_hit(limit_hits::PENDING_INPUT_BYTES);
        let message = "too many requests are open at servers that may require input";
        return Err(CallError::new(ErrorKind::QueueFull, message)
            .cause("their copies would exceed `park { held-bytes }`, or the share of this token")
            .hint(
                "try again later, or raise `park { held-bytes }` in `xy.kdl` and restart the \
                 daemon",
            ));
    }
    let rounds = Rounds { count: request.retry_state.rounds.count, timer: request.timer.clone() };
    let was_written = request.retry_state.was_written;
    Ok(OriginalRequest { text: request.text.store(), rounds, was_written, _held: held })
}

impl EraTranslation {
    /// Rewrites the metadata of a request. `token` is xy's own progress token.
    pub(crate) fn edit<'t>(&self, request: &CallRequest<'t>, token: &str, edits: &mut Edits<'t>) {
        let token = request.token.map(|_| token);
        match (self, request.meta) {
            (Self::ToLegacy { .. }, Some(meta)) => {
                if let Some(new) = modern::meta_for_legacy(meta, token) {
                    edits.replace(meta, new);
                }
            }
            (Self::ToLegacy { .. }, None) => {}
            (Self::ToModern { request_meta, .. }, Some(meta)) => {
                edits.replace(meta, modern::meta_for_modern(Some(meta), token, request_meta));
            }
            (Self::ToModern { request_meta, .. }, None) => {
                let meta = modern::meta_for_modern(None, None, request_meta);
                add_meta(request, &meta, edits);
            }
        }
    }

    /// Records that a legacy server needed a capability that the client lacks.
    pub(crate) fn record_missing(&mut self, needed: &'static str) {
        if let Self::ToLegacy { missing, .. } = self {
            *missing = Some(needed);
        }
    }

    /// Returns the error for a missing capability, if the server failed for the lack of it.
    pub(crate) fn missing_capability_error(&self, outcome: Outcome<'_>) -> Option<RequestError> {
        let Self::ToLegacy { missing: Some(needed), .. } = self else { return None };
        modern::missing_capability_error(needed, outcome)
    }

    /// Rewrites a response for the client; `info` is the server's `serverInfo`.
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

/// Adds `_meta` to a request without one, and `params` if necessary.
fn add_meta<'t>(request: &CallRequest<'t>, meta: &str, edits: &mut Edits<'t>) {
    if let Some(params) = request.params {
        // A malformed `_meta` carries nothing.
        if let Some(odd) = Members::read(params).and_then(|it| it.get("_meta")) {
            return edits.replace(odd, meta.to_owned());
        }
        let comma = if is_empty(params) { "" } else { "," };
        return edits.replace(&params[..1], format!(r#"{{"_meta":{meta}{comma}"#));
    }
    // A request without params is short.
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

/// Returns true if the JSON object has no members.
pub(super) fn is_empty(object: &str) -> bool {
    object[1..].trim_start().starts_with('}')
}
