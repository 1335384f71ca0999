//! `list_servers`: all servers, what they are doing, and their tools.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::{ByName, Listed, Request};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerStatus;

use super::{object, report};
use crate::router::Router;

/// What can be asked for: nothing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {}

pub(super) fn definition() -> Value {
    let servers = json!({ "type": "array", "items": report::full_schema() });
    json!({
        "title": "List MCP servers",
        "description": "All servers: what each runs, whether it is running, and the names of its tools. `crashed` means that it has ended by itself, `stopped` that an operator wants it so.",
        "inputSchema": object(json!({}), &[]),
        "outputSchema": object(json!({ "servers": servers }), &["servers"]),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

pub(super) async fn call(router: &Rc<Router>, Asked {}: Asked) -> Result<Value, CallError> {
    let listed: Listed = report::read(router.control.call(Request::List).await?)?;
    let mut servers = Vec::with_capacity(listed.len());
    for entry in listed {
        let name = entry.name.to_string();
        match router.control.call(Request::Status(ByName { name })).await {
            Ok(status) => {
                let status: ServerStatus = report::read(status)?;
                servers.push(report::full(&status, &report::tools_of(router, entry.name.as_str())));
            }
            Err(fault) if fault.kind == ErrorKind::ServerNotFound => {} // It has just gone.
            Err(fault) => return Err(fault),
        }
    }
    Ok(json!({ "servers": servers }))
}
