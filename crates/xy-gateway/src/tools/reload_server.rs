//! `reload_server`: restarts a server with its current file and returns its tools.

use std::rc::Rc;

use serde_json::{Value, json};
use xy_protocol::control::{ByName, Reload, Request};
use xy_protocol::error::CallError;

use super::{name_schema, object_schema, report};
use crate::control::Requester;
use crate::router::Router;

pub(super) fn definition() -> Value {
    json!({
        "title": "Reload an MCP server",
        "description": "Ends a server and starts it again with the settings it has, or with what its file says now if it has one. Use it after the server's program has changed, or when it has crashed. Answers once it is ready, with the names of its tools.",
        "inputSchema": object_schema(json!({ "name": name_schema() }), &["name"]),
        "outputSchema": report::summary_schema(),
        "annotations": { "readOnlyHint": false, "destructiveHint": true, "openWorldHint": true },
    })
}

pub(super) async fn call(
    router: &Rc<Router>,
    by: Requester,
    arguments: ByName,
) -> Result<Value, CallError> {
    let reload = Reload { name: Some(arguments.name.clone()), dry_run: false };
    router.control.manage(by, Request::Reload(reload)).await?;
    report::report_with_tools(router, &arguments.name).await
}
