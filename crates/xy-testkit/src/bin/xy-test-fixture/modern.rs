//! Message handling for revision 2026-07-28.
//!
//! Requests are stateless: each carries its own metadata. The server requests client input only
//! through `input_required` results.

use std::sync::Arc;

use crate::era::{self, Era};
use crate::meta::{self, Meta};
use crate::request::{NO_METHOD, Request};
use crate::session::Session;
use crate::stream::MessageSink;
use crate::{catalog, inputs, job_tools, jobs, rounds, subscriptions, tools};
use xy_testkit::json::Members;

/// Handles one message. Returns true if it was a valid request.
pub(crate) fn handle_message(session: &Arc<Session>, text: &str, out: &MessageSink) -> bool {
    let message = Members::of(text).unwrap_or_default();
    let params = message.members("params");
    match (message.raw("id"), message.string("method")) {
        (Some(id), Some(method)) => {
            let era = match admit(&message) {
                Ok(meta) => Era::Modern(meta),
                Err(error) => {
                    out.send(&refusal(Some(id), &error));
                    return false;
                }
            };
            let params_text = message.raw("params").unwrap_or("{}").to_owned();
            let (session, out, id) = (Arc::clone(session), out.clone(), id.to_owned());
            let key = id.clone();
            Request { session, key, id, method, params_text, params, out, era }.begin();
            true
        }
        (None, Some(method)) => {
            let params_text = message.raw("params").unwrap_or("{}").to_owned();
            session.handle_notification(&method, &params, params_text);
            false
        }
        (Some(_), None) => false, // The server sends no requests, so it expects no responses.
        (None, None) => {
            out.send(&refusal(None, r#"{"code":-32700,"message":"this is no message"}"#));
            false
        }
    }
}

/// Returns the metadata of a request, or the JSON-RPC error with which to reject it.
fn admit(message: &Members) -> Result<Meta, String> {
    let params = message.members("params");
    if era::begins_legacy(message) {
        return Err(meta::unsupported(&params.string("protocolVersion").unwrap_or_default()));
    }
    let meta = Meta::parse(&params)?;
    meta.check_version()?;
    Ok(meta)
}

/// Returns an error response. It has no id if the request's id could not be parsed.
pub(crate) fn refusal(id: Option<&str>, error: &str) -> String {
    match id {
        Some(id) => format!(r#"{{"jsonrpc":"2.0","error":{error},"id":{id}}}"#),
        None => format!(r#"{{"jsonrpc":"2.0","error":{error}}}"#),
    }
}

/// Answers a request.
pub(crate) fn answer(request: &Request, meta: &Meta) {
    if !rounds::validate_input(request) {
        return;
    }
    let name = request.params.string("name").unwrap_or_default();
    match request.method.as_str() {
        "server/discover" => request.result(&catalog::discover_result(&meta.version)),
        "subscriptions/listen" => subscriptions::listen(request),
        "tools/call" => call(request, &name),
        _ if inputs::answer(request) => {}
        method if method.starts_with("tasks/") => jobs::answer(request),
        // A test-only method.
        "fixture/client" => {
            let meta = request.params.raw("_meta").unwrap_or("null");
            request.result(&format!(r#"{{"client":{meta}}}"#));
        }
        method => match catalog::answer(request) {
            Some(Ok(result)) => request.result(&result),
            Some(Err(error)) => request.fail(&error),
            None => request.refuse(NO_METHOD, &format!("no method `{method}`")),
        },
    }
}

/// Calls a tool. Tools of the modern era take precedence over those of both eras.
fn call(request: &Request, name: &str) {
    let arguments = request.params.members("arguments");
    match name {
        "hang_up" => request.text(&format!("{} ended", subscriptions::end_all(request))),
        _ if job_tools::call_as_task(request, name, &arguments) => {}
        _ => tools::call(request),
    }
}
