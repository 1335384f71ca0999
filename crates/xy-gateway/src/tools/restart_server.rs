//! `restart_server`: restarts a server with unchanged settings and returns its tools.

use std::rc::Rc;

use serde_json::{Value, json};
use xy_protocol::control::{ByName, Request, Select};
use xy_protocol::error::CallError;

use super::{name_schema, object_schema, report};
use crate::control::Requester;
use crate::router::Router;

pub(super) fn definition() -> Value {
    json!({
        "title": "Restart an MCP server",
        "description": "Ends a server and starts it again with the settings it has. Also works for a server that xy has given up or a user has stopped. Its file is not read again: that is `reload_server`. Answers once it is ready, with the names of its tools.",
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
    router.control.manage(by, Request::Restart(Select::one(arguments.name.clone()))).await?;
    report::report_with_tools(router, &arguments.name).await
}
