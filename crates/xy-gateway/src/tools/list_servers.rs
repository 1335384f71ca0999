//! `list_servers`: returns all servers with their states and tools.

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::{ByName, ListResult, Request};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerStatus;

use super::Servers;
use super::{object_schema, report};

/// The tool takes no arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {}

pub(super) fn definition() -> Value {
    let servers = json!({ "type": "array", "items": report::details_schema() });
    json!({
        "title": "List MCP servers",
        "description": "Lists all servers with command, state and tool names. `crashed`: the server ended by itself. `stopped`: a user stopped it.",
        "inputSchema": object_schema(json!({}), &[]),
        "outputSchema": object_schema(json!({ "servers": servers }), &["servers"]),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

pub(super) async fn call(
    servers: &dyn Servers,
    Arguments {}: Arguments,
) -> Result<Value, CallError> {
    let listed: ListResult = report::read(servers.control().call(Request::List).await?)?;
    let mut all = Vec::with_capacity(listed.len());
    for entry in listed {
        let name = entry.name.to_string();
        match servers.control().call(Request::Status(ByName { name })).await {
            Ok(status) => {
                let status: ServerStatus = report::read(status)?;
                all.push(report::details(&status, &report::tools_of(servers, entry.name.as_str())));
            }
            Err(fault) if fault.kind == ErrorKind::ServerNotFound => {} // The server was just removed.
            Err(fault) => return Err(fault),
        }
    }
    Ok(json!({ "servers": all }))
}
