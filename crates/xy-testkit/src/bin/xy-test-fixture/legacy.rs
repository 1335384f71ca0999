//! Message handling for the revisions with `initialize`.

use std::sync::Arc;

use crate::catalog;
use crate::era::Era;
use crate::request::{BAD_PARAMS, LEVELS, NO_METHOD, Request};
use crate::session::Session;
use crate::stream::MessageSink;
use crate::subscriptions::MAX_WATCHED;
use crate::{inputs, tasks, tools};
use xy_testkit::json::Members;

/// The revisions with `initialize`, the newest last.
pub(crate) const LEGACY_VERSIONS: [&str; 4] =
    ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// A request, which gets a response.
    Request,
    /// A notification or a response.
    Other,
    /// Not a JSON-RPC message.
    Invalid,
}

/// Handles one message. Sends responses and notifications to `out`.
pub(crate) fn handle_message(session: &Arc<Session>, text: &str, out: &MessageSink) -> MessageKind {
    let message = Members::of(text).unwrap_or_default();
    let params_text = message.raw("params").unwrap_or("{}").to_owned();
    let params = message.members("params");
    match (message.raw("id"), message.string("method")) {
        (Some(id), Some(method)) => {
            let (id, out) = (id.to_owned(), out.clone());
            let (session, key) = (Arc::clone(session), id.clone());
            let era = Era::Legacy;
            Request { session, key, id, method, params_text, params, out, era }.begin();
            MessageKind::Request
        }
        (Some(id), None) => {
            let id = id.to_owned();
            session.handle_response(&id, message);
            MessageKind::Other
        }
        (None, Some(method)) => {
            session.handle_notification(&method, &params, params_text);
            MessageKind::Other
        }
        (None, None) => {
            let error = r#"{"code":-32700,"message":"this is no message"}"#;
            out.send(&format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#));
            out.finish();
            MessageKind::Invalid
        }
    }
}

/// Answers a request.
pub(crate) fn answer(request: &Request) {
    match request.method.as_str() {
        "initialize" => initialize(request),
        "ping" => request.result("{}"),
        "logging/setLevel" => set_level(request),
        "resources/subscribe" | "resources/unsubscribe" => watch(request),
        "tools/call" => tools::call(request),
        _ if inputs::answer(request) => {}
        method if method.starts_with("tasks/") => tasks::answer(request),
        // A test-only method.
        "fixture/client" => request.result(&request.session.state().client),
        method => match catalog::answer(request) {
            Some(Ok(result)) => request.result(&result),
            Some(Err(error)) => request.fail(&error),
            None => request.refuse(NO_METHOD, &format!("no method `{method}`")),
        },
    }
}

fn initialize(request: &Request) {
    let wanted = request.params.string("protocolVersion").unwrap_or_default();
    let known = LEGACY_VERSIONS.into_iter().find(|known| *known == wanted);
    let version = known.unwrap_or(LEGACY_VERSIONS[LEGACY_VERSIONS.len() - 1]);
    let mut state = request.session.state();
    version.clone_into(&mut state.version);
    state.capabilities = request.params.members("capabilities");
    state.client.clone_from(&request.params_text);
    drop(state);
    request.result(&catalog::initialize_result(version));
}

fn set_level(request: &Request) {
    let level = request.params.string("level").unwrap_or_default();
    match LEVELS.iter().position(|known| *known == level) {
        Some(level) => {
            request.session.state().level = level;
            request.result("{}");
        }
        None => request.refuse(BAD_PARAMS, &format!("no level `{level}`")),
    }
}

fn watch(request: &Request) {
    let Some(uri) = request.params.string("uri") else {
        return request.refuse(BAD_PARAMS, "which resource?");
    };
    let mut state = request.session.state();
    if request.method == "resources/unsubscribe" {
        state.watched.remove(&uri);
    } else if state.watched.len() < MAX_WATCHED {
        state.watched.insert(uri);
    }
    drop(state);
    request.result("{}");
}
