//! `server_logs`: returns the last log lines of a server.

use serde::Deserialize;
use serde_json::{Value, json};
use xy_mcp::reply;
use xy_protocol::control::{DEFAULT_TAIL, MAX_TAIL_LINES, Request, Tail};
use xy_protocol::error::CallError;
use xy_protocol::server::Stream;

use super::Servers;
use super::{name_schema, object_schema};

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
            "description": "Maximum number of lines, counted from the end",
        },
        "stream": stream_schema("Only lines of this stream"),
    });
    let line = object_schema(
        json!({
            "stream": stream_schema("Stream of the line"),
            "line": { "type": "string" },
            "ts": { "type": ["string", "null"], "description": "Time of the line; null if unknown" },
        }),
        &["stream", "line", "ts"],
    );
    let output = json!({
        "name": name_schema(),
        "lines": { "type": "array", "items": line, "description": "Oldest first" },
        "left_out": { "type": "integer", "description": "Number of older lines that were omitted to keep the result short" },
    });
    json!({
        "title": "Read the log of an MCP server",
        "description": "Returns the last lines that a server wrote to stderr, and lines on stdout that are not MCP messages. Use it to find out why a server fails.",
        "inputSchema": object_schema(input, &["name"]),
        "outputSchema": object_schema(output, &["name", "lines", "left_out"]),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

fn stream_schema(what: &str) -> Value {
    json!({ "type": "string", "enum": ["stdout", "stderr"], "description": what })
}

pub(super) async fn call(servers: &dyn Servers, arguments: Arguments) -> Result<Value, CallError> {
    let Arguments { name, lines, stream } = arguments;
    let lines = lines.unwrap_or(DEFAULT_TAIL);
    if !(1..=MAX_TAIL_LINES).contains(&lines) {
        return Err(reply::invalid(format!(
            "`lines` is {lines}; it must be between 1 and {MAX_TAIL_LINES}"
        )));
    }
    servers.control().call(Request::Tail(Tail { name, lines, stream })).await
}
