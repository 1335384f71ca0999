//! `restart_server`: restarts a server with unchanged settings and returns its tools.

use serde_json::{Value, json};
use xy_protocol::control::{ByName, Request, Select};
use xy_protocol::error::CallError;

use super::Servers;
use super::{name_schema, object_schema, report};
use crate::control::Requester;

pub(super) fn definition() -> Value {
    json!({
        "title": "Restart an MCP server",
        "description": "Restarts a server with unchanged settings; use `reload_server` to read its file again. Also starts a failed or stopped server. Returns the tool names when the server is ready.",
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
    servers.control().manage(by, Request::Restart(Select::one(arguments.name.clone()))).await?;
    report::report_with_tools(servers, &arguments.name).await
}
