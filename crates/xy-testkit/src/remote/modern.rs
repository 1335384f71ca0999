//! The revision without sessions of the remote server. It rejects requests whose headers do not
//! match their body, as the revision demands.

use std::io::{self, Read};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{Head, Shared, answer, begin_events, call, event, json_type, result};

const MODERN: &str = "2026-07-28";

/// Handles a request correctly. Returns true if the connection can be reused.
pub(super) fn respond_normally(
    shared: &Shared,
    out: &mut TcpStream,
    head: &Head,
    message: &Value,
) -> io::Result<bool> {
    if head.method != "POST" {
        return answer(out, 405, &[], "").map(|()| true);
    }
    if let Some(why) = mismatch(shared, head, message) {
        return error(out, 400, message, -32020, &why).map(|()| true);
    }
    match head.message.as_str() {
        "server/discover" => result(out, message, &introduction()).map(|()| true),
        "tools/list" => result(out, message, &json!({ "tools": tools(shared) })).map(|()| true),
        "tools/call" if message["params"]["name"] == "refused" => {
            error(out, 400, message, -32602, "no such thing").map(|()| true)
        }
        "tools/call" => call(shared, out, message),
        "subscriptions/listen" => listen(shared, out, message).map(|()| false),
        method => error(out, 404, message, -32601, &format!("no `{method}`")).map(|()| true),
    }
}

fn introduction() -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": { "tools": { "listChanged": true }, "resources": { "subscribe": true } },
        "ttlMs": 0,
        "cacheScope": "private",
    })
}

/// Returns the tools. `marked` mirrors its argument into a header. `ill_marked` declares a header
/// for an argument whose type does not allow one.
fn tools(shared: &Shared) -> Vec<Value> {
    let schema = json!({ "type": "object" });
    let names = ["echo", "wait", "stream", "cut", "lost", "large", "refused"];
    let mut tools: Vec<Value> =
        names.iter().map(|name| json!({ "name": name, "inputSchema": schema })).collect();
    for (name, kind, mark) in
        [("marked", "string", shared.lock().mark.clone()), ("ill_marked", "number", "Ill".into())]
    {
        let properties = json!({ "message": { "type": kind, "x-mcp-header": mark } });
        let schema = json!({ "type": "object", "properties": properties });
        tools.push(json!({ "name": name, "inputSchema": schema }));
    }
    tools
}

/// Returns the problem with the headers of a request, if any.
fn mismatch(shared: &Shared, head: &Head, message: &Value) -> Option<String> {
    let said = |name: &str| head.headers.get(name).map(String::as_str);
    let params = &message["params"];
    let version = params["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str();
    if version != Some(MODERN) || said("mcp-protocol-version") != Some(MODERN) {
        return Some("which revision?".to_owned());
    }
    if said("mcp-method") != message["method"].as_str() {
        return Some("another method".to_owned());
    }
    if said("mcp-session-id").is_some() || said("last-event-id").is_some() {
        return Some("there are no sessions".to_owned());
    }
    if head.message != "tools/call" {
        return None;
    }
    if said("mcp-name") != params["name"].as_str() {
        return Some("another name".to_owned());
    }
    if params["name"] == "marked" {
        let mark = format!("mcp-param-{}", shared.lock().mark.to_lowercase());
        // A value that is not plain ASCII is encoded as base64.
        let message = params["arguments"]["message"].as_str().unwrap_or_default();
        let expected = if message == "é" { "=?base64?w6k=?=" } else { message };
        if said(&mark) != Some(expected) {
            return Some(format!("no such `{mark}`"));
        }
    }
    None
}

fn error(
    out: &mut TcpStream,
    status: u16,
    message: &Value,
    code: i64,
    why: &str,
) -> io::Result<()> {
    let error = json!({ "code": code, "message": why });
    let whole = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
    answer(out, status, &json_type(), &whole.to_string())
}

/// Serves a subscription: acknowledges it, then keeps its stream open for notifications until the
/// client closes the connection.
fn listen(shared: &Shared, out: &mut TcpStream, message: &Value) -> io::Result<()> {
    begin_events(out)?;
    let meta = json!({ "io.modelcontextprotocol/subscriptionId": message["id"] });
    let params = json!({ "_meta": meta, "notifications": message["params"]["notifications"] });
    let method = "notifications/subscriptions/acknowledged";
    let acknowledged = json!({ "jsonrpc": "2.0", "method": method, "params": params });
    event(out, None, &acknowledged.to_string())?;
    let mut state = shared.lock();
    state.listeners.push(out.try_clone()?);
    state.listened += 1;
    drop(state);
    let mut rest = [0; 64];
    while out.read(&mut rest)? > 0 {}
    Ok(())
}
