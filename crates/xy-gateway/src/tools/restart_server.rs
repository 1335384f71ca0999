//! `restart_server`: end a server and start it again as it is, and say which tools it has.

use std::rc::Rc;

use serde_json::{Value, json};
use xy_protocol::control::{ByName, Request, Select};
use xy_protocol::error::CallError;

use super::{name_schema, object, report};
use crate::control::Asker;
use crate::router::Router;

pub(super) fn definition() -> Value {
    json!({
        "title": "Restart an MCP server",
        "description": "Ends a server and starts it again with the settings it has; also one that has given up or was stopped. Its file is not read again: that is `reload_server`. Answers once it is ready, with the names of its tools.",
        "inputSchema": object(json!({ "name": name_schema() }), &["name"]),
        "outputSchema": report::brief_schema(),
        "annotations": { "readOnlyHint": false, "destructiveHint": true, "openWorldHint": true },
    })
}

pub(super) async fn call(
    router: &Rc<Router>,
    by: Asker,
    asked: ByName,
) -> Result<Value, CallError> {
    router.control.manage(by, Request::Restart(Select::one(asked.name.clone()))).await?;
    report::once_its_tools_are_known(router, &asked.name).await
}
