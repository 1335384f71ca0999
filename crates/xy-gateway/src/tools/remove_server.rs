//! `remove_server`: end a server and forget it.

use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use xy_protocol::control::{Remove, Removed, Request};
use xy_protocol::error::CallError;

use super::{name_schema, object, or_default, report};
use crate::control::Asker;
use crate::router::Router;

/// How long it may take until the gateway has heard that a server is gone.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// What can be asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
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
        "inputSchema": object(input, &["name"]),
        "outputSchema": object(output, &["name", "removed"]),
        "annotations": { "readOnlyHint": false, "destructiveHint": true, "idempotentHint": true, "openWorldHint": false },
    })
}

pub(super) async fn call(router: &Rc<Router>, by: Asker, asked: Asked) -> Result<Value, CallError> {
    let Asked { name, persist } = asked;
    let before = router.server(&name);
    let remove = Remove { name: name.clone(), persist, purge: false };
    let removed = router.control.manage(by, Request::Remove(remove)).await?;
    let Removed { warnings, .. } = report::read(removed)?;
    let mut news = router.news();
    let is_there = || match (&before, router.server(&name)) {
        (Some(before), Some(now)) => Rc::ptr_eq(before, &now) && now.is_shown(),
        _ => false,
    };
    let _ =
        timeout(HEARD_WITHIN, async { while is_there() && news.changed().await.is_ok() {} }).await; // It is as good as gone: whoever calls it is told so.
    let mut answer = json!({ "name": name, "removed": true });
    if !warnings.is_empty() {
        answer["warnings"] = warnings.into();
    }
    Ok(answer)
}
