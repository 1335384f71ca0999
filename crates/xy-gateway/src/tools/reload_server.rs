//! `reload_server`: restarts a server with its current file and returns its tools.

use serde_json::{Value, json};
use xy_protocol::control::{ByName, Reload, Request};
use xy_protocol::error::CallError;

use super::Servers;
use super::{name_schema, object_schema, report};
use crate::control::Requester;

pub(super) fn definition() -> Value {
    json!({
        "title": "Reload an MCP server",
        "description": "Restarts a server with the current settings from its file, if it has one. Use it after the program has changed or crashed. Returns the tool names when the server is ready.",
        "inputSchema": object_schema(json!({ "name": name_schema() }), &["name"]),
        "outputSchema": report::summary_schema(),
        "annotations": { "readOnlyHint": false, "destructiveHint": true, "openWorldHint": true },
    })
}

pub(super) async fn call(
    servers: &dyn Servers,
    by: Requester,
    arguments: ByName,
) -> Result<Value, CallError> {
    let reload = Reload { name: Some(arguments.name.clone()), dry_run: false };
    servers.control().manage(by, Request::Reload(reload)).await?;
    report::report_with_tools(servers, &arguments.name).await
}
