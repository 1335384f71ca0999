//! `get_diagnostics`: returns everything needed for troubleshooting, without secrets.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::Request;
use xy_protocol::error::CallError;

use super::object_schema;
use crate::router::Router;

/// The tool takes no arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {}

pub(super) fn definition() -> Value {
    let thing = |what: &str| json!({ "type": "object", "description": what });
    let things =
        |what: &str| json!({ "type": "array", "items": { "type": "object" }, "description": what });
    let output = json!({
        "version": { "type": "string" },
        "protocol": { "type": "integer" },
        "timestamp": { "type": "string" },
        "system": thing("The machine"),
        "daemon": thing("The daemon"),
        "paths": thing("Where everything is"),
        "files": things("What is there"),
        "configuration": thing("What is wrong with the files, if anything is"),
        "servers": things("Each server: its settings, its state, how it came there, and its last words"),
        "restart_history": things("The latest restarts"),
        "metrics": thing("Numbers of the gateway"),
        "left_out": { "type": "array", "items": { "type": "string" }, "description": "What would have made this too long" },
    });
    let required = [
        "version",
        "protocol",
        "timestamp",
        "system",
        "daemon",
        "paths",
        "files",
        "configuration",
        "servers",
        "restart_history",
        "metrics",
    ];
    json!({
        "title": "Get diagnostics of xy",
        "description": "Everything that helps to find out why something does not work: versions, paths, the settings and the state of each server, its last exit, its last lines of stderr, restarts and numbers. Secrets are masked. Changes nothing; `self_test` repairs.",
        "inputSchema": object_schema(json!({}), &[]),
        "outputSchema": object_schema(output, &required),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

pub(super) async fn call(router: &Rc<Router>, Arguments {}: Arguments) -> Result<Value, CallError> {
    router.control.call(Request::Diagnostics).await
}
