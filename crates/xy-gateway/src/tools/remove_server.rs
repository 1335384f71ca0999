//! `remove_server`: stops a server and removes it.

use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use xy_protocol::control::{Remove, RemoveResult, Request};
use xy_protocol::error::CallError;

use super::Servers;
use super::{name_schema, object_schema, or_default, report};
use crate::control::Requester;

/// How long to wait for the gateway to notice the removal.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The arguments of the tool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    persist: bool,
}

pub(super) fn definition() -> Value {
    let input = json!({
        "name": name_schema(),
        "persist": {
            "type": "boolean",
            "description": "Also delete the file of the server; required for a server that has a file",
        },
    });
    let output = json!({
        "name": name_schema(),
        "removed": { "type": "boolean" },
        "warnings": { "type": "array", "items": { "type": "string" } },
    });
    json!({
        "title": "Remove an MCP server",
        "description": "Removes a server. Its tools disappear immediately; its process has a few seconds to exit.",
        "inputSchema": object_schema(input, &["name"]),
        "outputSchema": object_schema(output, &["name", "removed"]),
        "annotations": { "readOnlyHint": false, "destructiveHint": true, "idempotentHint": true, "openWorldHint": false },
    })
}

pub(super) async fn call(
    servers: &dyn Servers,
    by: Requester,
    arguments: Arguments,
) -> Result<Value, CallError> {
    let Arguments { name, persist } = arguments;
    let before = servers.server(&name);
    let remove = Remove { name: name.clone(), persist, purge: false };
    let removed = servers.control().manage(by, Request::Remove(remove)).await?;
    let RemoveResult { warnings, .. } = report::read(removed)?;
    let mut changes = servers.changes();
    let is_there = || match (&before, servers.server(&name)) {
        (Some(before), Some(now)) => Rc::ptr_eq(before, &now) && now.is_shown(),
        _ => false,
    };
    let _ =
        timeout(REMOVAL_TIMEOUT, async { while is_there() && changes.changed().await.is_ok() {} })
            .await; // After the timeout it is as good as removed.
    let mut answer = json!({ "name": name, "removed": true });
    if !warnings.is_empty() {
        answer["warnings"] = warnings.into();
    }
    Ok(answer)
}
