//! `server_logs`: returns the last log lines of a server.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};
use xy_mcp::reply;
use xy_protocol::control::{DEFAULT_TAIL, MAX_TAIL_LINES, Request, Tail};
use xy_protocol::error::CallError;
use xy_protocol::server::Stream;

use super::{name_schema, object_schema};
use crate::router::Router;

/// The arguments of the tool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    name: String,
    #[serde(default)]
    lines: Option<u32>,
    #[serde(default)]
    stream: Option<Stream>,
}

pub(super) fn definition() -> Value {
    let input = json!({
        "name": name_schema(),
        "lines": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_TAIL_LINES,
            "default": DEFAULT_TAIL,
            "description": "How many of the latest lines",
        },
        "stream": stream_schema("Only what it wrote there"),
    });
    let line = object_schema(
        json!({
            "stream": stream_schema("Where it wrote it"),
            "line": { "type": "string" },
            "ts": { "type": ["string", "null"], "description": "When; null if that was not kept" },
        }),
        &["stream", "line", "ts"],
    );
    let output = json!({
        "name": name_schema(),
        "lines": { "type": "array", "items": line, "description": "Oldest first" },
        "left_out": { "type": "integer", "description": "How many older ones would have made this too long" },
    });
    json!({
        "title": "Read the log of an MCP server",
        "description": "The last lines that a server wrote to stderr, or to stdout if they were no messages. Use it to find out why a server fails.",
        "inputSchema": object_schema(input, &["name"]),
        "outputSchema": object_schema(output, &["name", "lines", "left_out"]),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

fn stream_schema(what: &str) -> Value {
    json!({ "type": "string", "enum": ["stdout", "stderr"], "description": what })
}

pub(super) async fn call(router: &Rc<Router>, arguments: Arguments) -> Result<Value, CallError> {
    let Arguments { name, lines, stream } = arguments;
    let lines = lines.unwrap_or(DEFAULT_TAIL);
    if !(1..=MAX_TAIL_LINES).contains(&lines) {
        return Err(reply::invalid(format!(
            "`lines` is {lines}, and may be from 1 to {MAX_TAIL_LINES}"
        )));
    }
    router.control.call(Request::Tail(Tail { name, lines, stream })).await
}
