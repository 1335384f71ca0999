//! `get_diagnostics`: returns everything needed for troubleshooting, without secrets.

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::Request;
use xy_protocol::error::CallError;

use super::Servers;
use super::object_schema;

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
        "system": thing("Operating system, architecture and memory"),
        "daemon": thing("The daemon"),
        "paths": thing("Paths of sockets, folders and files"),
        "files": things("Files of xy: kind, size and permissions"),
        "configuration": thing("Number of server files, and problems in the configuration"),
        "servers": things("Each server: settings, state, recent transitions and last lines of stderr"),
        "restart_history": things("Recent restarts"),
        "metrics": thing("Metrics of the gateway"),
        "left_out": { "type": "array", "items": { "type": "string" }, "description": "Parts that were omitted to keep the report short" },
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
        "description": "Returns a diagnostics report: versions, paths, settings and state of each server, last exit, last lines of stderr, restarts and metrics. Secrets are masked. Changes nothing; use `self_test` for repairs.",
        "inputSchema": object_schema(json!({}), &[]),
        "outputSchema": object_schema(output, &required),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

pub(super) async fn call(
    servers: &dyn Servers,
    Arguments {}: Arguments,
) -> Result<Value, CallError> {
    servers.control().call(Request::Diagnostics).await
}
