//! `self_test`: checks everything, repairs what is broken and returns a report.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::{Request, SelfTest};
use xy_protocol::error::CallError;

use super::{name_schema, object_schema};
use crate::control::Requester;
use crate::router::Router;

/// The arguments of the tool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    #[serde(default)]
    repair: Option<bool>,
}

pub(super) fn definition() -> Value {
    let repair = json!({
        "type": "boolean",
        "default": true,
        "description": "Whether what is broken is also repaired; `false` only looks",
    });
    let output = json!({
        "success": { "type": "boolean", "description": "Whether all is well now" },
        "timestamp": { "type": "string" },
        "health": health_schema(),
        "autoRepair": {
            "type": "array",
            "items": { "type": "object", "properties": { "action": { "type": "string" }, "reason": { "type": "string" } }, "required": ["action", "reason"] },
            "description": "What was repaired and then found well: `worker_restarted`, `folder_created`, `lock_taken`, `socket_created`, `processes_reaped` or `containers_removed`; with `proven` false: a server that was started again and does not answer, or not yet",
        },
        "diagnostics": {
            "type": "object",
            "properties": { "system": { "type": "object" }, "restartHistory": { "type": "array" } },
            "required": ["system", "restartHistory"],
        },
        "summary": { "type": "string", "description": "All of it in one sentence" },
    });
    json!({
        "title": "Test and repair xy itself",
        "description": "Looks whether everything works: the daemon, each server (its process, and a real question to it), the HTTP gateway, folders, sockets, and processes that nobody owns. Unless `repair` is false, a server that is dead or hangs is started again, and what has vanished is made again; each repair is proved by a second look. Use it when tools fail, time out or are missing. It can take half a minute.",
        "inputSchema": object_schema(json!({ "repair": repair }), &[]),
        "outputSchema": object_schema(output, &["success", "timestamp", "health", "diagnostics", "summary"]),
        "annotations": { "readOnlyHint": false, "destructiveHint": true, "idempotentHint": true, "openWorldHint": false },
    })
}

fn health_schema() -> Value {
    let worker = json!({
        "type": "object",
        "properties": {
            "name": name_schema(),
            "status": { "type": "string", "enum": ["ok", "restarted", "failed"] },
            "pid": { "type": ["integer", "null"] },
            "uptime": { "type": ["integer", "null"], "description": "Seconds since it became ready" },
            "restartCount": { "type": "integer" },
            "note": { "type": "string" },
        },
        "required": ["name", "status", "pid", "uptime", "restartCount"],
    });
    json!({
        "type": "object",
        "properties": {
            "supervisor": { "type": "object", "description": "The daemon" },
            "worker": { "type": "array", "items": worker, "description": "Every server" },
            "webServer": { "type": "object", "description": "The HTTP gateway" },
            "database": { "type": "object", "description": "The state folder" },
        },
        "required": ["supervisor", "worker", "webServer", "database"],
    })
}

pub(super) async fn call(
    router: &Rc<Router>,
    by: Requester,
    Arguments { repair }: Arguments,
) -> Result<Value, CallError> {
    router.control.manage(by, Request::SelfTest(SelfTest { repair: repair.unwrap_or(true) })).await
}
