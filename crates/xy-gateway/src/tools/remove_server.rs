//! `remove_server`: stops a server and removes it.

use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use xy_protocol::control::{Remove, RemoveResult, Request};
use xy_protocol::error::CallError;

use super::{name_schema, object_schema, or_default, report};
use crate::control::Requester;
use crate::router::Router;

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
            "description": "Whether to delete the file that configures it; one that has a file is not removed otherwise",
        },
    });
    let output = json!({
        "name": name_schema(),
        "removed": { "type": "boolean" },
        "warnings": { "type": "array", "items": { "type": "string" } },
    });
    json!({
        "title": "Remove an MCP server",
        "description": "Ends a server and forgets it. Its tools are gone at once; its process has a few seconds to end by itself.",
        "inputSchema": object_schema(input, &["name"]),
        "outputSchema": object_schema(output, &["name", "removed"]),
        "annotations": { "readOnlyHint": false, "destructiveHint": true, "idempotentHint": true, "openWorldHint": false },
    })
}

pub(super) async fn call(
    router: &Rc<Router>,
    by: Requester,
    arguments: Arguments,
) -> Result<Value, CallError> {
    let Arguments { name, persist } = arguments;
    let before = router.server(&name);
    let remove = Remove { name: name.clone(), persist, purge: false };
    let removed = router.control.manage(by, Request::Remove(remove)).await?;
    let RemoveResult { warnings, .. } = report::read(removed)?;
    let mut changes = router.changes();
    let is_there = || match (&before, router.server(&name)) {
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
