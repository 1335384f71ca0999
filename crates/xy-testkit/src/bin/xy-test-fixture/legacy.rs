//! The revisions with `initialize`: what is done with each message of a conversation.

use std::sync::Arc;

use crate::catalog;
use crate::era::Era;
use crate::request::{BAD_PARAMS, LEVELS, NO_METHOD, Request};
use crate::session::Session;
use crate::stream::Out;
use crate::subscriptions::MOST_WATCHED;
use crate::{inputs, tasks, tools};
use xy_testkit::json::Members;

/// The revisions with `initialize`, the youngest last.
pub(crate) const KNOWN: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// What a message was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A request, which will be answered.
    Request,
    /// A notification or an answer.
    Other,
    /// No message.
    Nothing,
}

/// One message; what it leads to goes to `out`.
pub(crate) fn hear(session: &Arc<Session>, text: &str, out: &Out) -> Heard {
    let message = Members::of(text).unwrap_or_default();
    let params_text = message.raw("params").unwrap_or("{}").to_owned();
    let params = message.members("params");
    match (message.raw("id"), message.string("method")) {
        (Some(id), Some(method)) => {
            let (id, out) = (id.to_owned(), out.clone());
            let (session, key) = (Arc::clone(session), id.clone());
            let era = Era::Legacy;
            Request { session, key, id, method, params_text, params, out, era }.begin();
            Heard::Request
        }
        (Some(id), None) => {
            let id = id.to_owned();
            session.answered(&id, message);
            Heard::Other
        }
        (None, Some(method)) => {
            session.notified(&method, &params, params_text);
            Heard::Other
        }
        (None, None) => {
            let error = r#"{"code":-32700,"message":"this is no message"}"#;
            out.say(&format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#));
            out.finish();
            Heard::Nothing
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
        // A method that is in no revision.
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
    let known = KNOWN.into_iter().find(|known| *known == wanted);
    let version = known.unwrap_or(KNOWN[KNOWN.len() - 1]);
    let mut state = request.session.state();
    version.clone_into(&mut state.version);
    state.capabilities = request.params.members("capabilities");
    state.client.clone_from(&request.params_text);
    drop(state);
    request.result(&catalog::introduction(version));
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
    } else if state.watched.len() < MOST_WATCHED {
        state.watched.insert(uri);
    }
    drop(state);
    request.result("{}");
}
