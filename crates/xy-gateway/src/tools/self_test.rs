//! `self_test`: checks everything, repairs what is broken and returns a report.

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::{Request, SelfTest};
use xy_protocol::error::CallError;

use super::Servers;
use super::{name_schema, object_schema};
use crate::control::Requester;

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
        "description": "Repair broken parts; `false` only checks",
    });
    let output = json!({
        "success": { "type": "boolean", "description": "True if every part works, after any repairs" },
        "timestamp": { "type": "string" },
        "health": health_schema(),
        "autoRepair": {
            "type": "array",
            "items": { "type": "object", "properties": { "action": { "type": "string" }, "reason": { "type": "string" } }, "required": ["action", "reason"] },
            "description": "Repairs: `worker_restarted`, `folder_created`, `lock_taken`, `socket_created`, `processes_reaped` or `containers_removed`. Each is verified; if `proven` is false, a restarted server has not answered yet.",
        },
        "diagnostics": {
            "type": "object",
            "properties": { "system": { "type": "object" }, "restartHistory": { "type": "array" } },
            "required": ["system", "restartHistory"],
        },
        "summary": { "type": "string", "description": "Summary in one sentence" },
    });
    json!({
        "title": "Test and repair xy itself",
        "description": "Checks the daemon, each server (its process and a real request), the HTTP gateway, folders, sockets and orphaned processes. Unless `repair` is false, restarts dead or hung servers, creates missing files and folders, and verifies each repair. Use it when tools fail, time out or are missing. Takes up to 30 s.",
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
            "uptime": { "type": ["integer", "null"], "description": "Seconds since the server became ready" },
            "restartCount": { "type": "integer" },
            "note": { "type": "string" },
        },
        "required": ["name", "status", "pid", "uptime", "restartCount"],
    });
    json!({
        "type": "object",
        "properties": {
            "supervisor": { "type": "object", "description": "The daemon" },
            "worker": { "type": "array", "items": worker, "description": "The servers" },
            "webServer": { "type": "object", "description": "The HTTP gateway" },
            "database": { "type": "object", "description": "The state folder" },
        },
        "required": ["supervisor", "worker", "webServer", "database"],
    })
}

pub(super) async fn call(
    servers: &dyn Servers,
    by: Requester,
    Arguments { repair }: Arguments,
) -> Result<Value, CallError> {
    servers
        .control()
        .manage(by, Request::SelfTest(SelfTest { repair: repair.unwrap_or(true) }))
        .await
}
