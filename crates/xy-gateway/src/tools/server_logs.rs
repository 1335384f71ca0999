//! `server_logs`: what a server has last said.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::{DEFAULT_TAIL, MOST_TAIL, Request, Tail};
use xy_protocol::error::CallError;
use xy_protocol::server::Stream;

use super::{name_schema, object};
use crate::reply;
use crate::router::Router;

/// What can be asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
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
            "maximum": MOST_TAIL,
            "default": DEFAULT_TAIL,
            "description": "How many of the latest lines",
        },
        "stream": stream_schema("Only what it wrote there"),
    });
    let line = object(
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
        "inputSchema": object(input, &["name"]),
        "outputSchema": object(output, &["name", "lines", "left_out"]),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

fn stream_schema(what: &str) -> Value {
    json!({ "type": "string", "enum": ["stdout", "stderr"], "description": what })
}

pub(super) async fn call(router: &Rc<Router>, asked: Asked) -> Result<Value, CallError> {
    let Asked { name, lines, stream } = asked;
    let lines = lines.unwrap_or(DEFAULT_TAIL);
    if !(1..=MOST_TAIL).contains(&lines) {
        return Err(reply::invalid(format!(
            "`lines` is {lines}, and may be from 1 to {MOST_TAIL}"
        )));
    }
    router.control.call(Request::Tail(Tail { name, lines, stream })).await
}
