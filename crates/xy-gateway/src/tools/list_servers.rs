//! `list_servers`: returns all servers with their states and tools.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::{ByName, ListResult, Request};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerStatus;

use super::{object_schema, report};
use crate::router::Router;

/// The tool takes no arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {}

pub(super) fn definition() -> Value {
    let servers = json!({ "type": "array", "items": report::details_schema() });
    json!({
        "title": "List MCP servers",
        "description": "All servers: what each runs, whether it is running, and the names of its tools. `crashed` means that it has ended by itself, `stopped` that an operator wants it so.",
        "inputSchema": object_schema(json!({}), &[]),
        "outputSchema": object_schema(json!({ "servers": servers }), &["servers"]),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

pub(super) async fn call(router: &Rc<Router>, Arguments {}: Arguments) -> Result<Value, CallError> {
    let listed: ListResult = report::read(router.control.call(Request::List).await?)?;
    let mut servers = Vec::with_capacity(listed.len());
    for entry in listed {
        let name = entry.name.to_string();
        match router.control.call(Request::Status(ByName { name })).await {
            Ok(status) => {
                let status: ServerStatus = report::read(status)?;
                servers
                    .push(report::details(&status, &report::tools_of(router, entry.name.as_str())));
            }
            Err(fault) if fault.kind == ErrorKind::ServerNotFound => {} // The server was just removed.
            Err(fault) => return Err(fault),
        }
    }
    Ok(json!({ "servers": servers }))
}
