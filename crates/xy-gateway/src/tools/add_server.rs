//! `add_server`: starts a server and returns its tools.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::{Add, Request};
use xy_protocol::error::CallError;

use super::Servers;
use super::{object_schema, or_default, report};
use crate::control::Requester;

/// The arguments of the tool.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    name: String,
    #[serde(default)]
    command: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    args: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    env: BTreeMap<String, String>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    url: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    transport: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    persist: bool,
}

pub(super) fn definition() -> Value {
    let texts =
        |what: &str| json!({ "type": "array", "items": { "type": "string" }, "description": what });
    let input = json!({
        "name": {
            "type": "string",
            "description": "A name that no other server has, such as `my-dev-server`: letters, digits, `-` and single `_`",
        },
        "command": { "type": "string", "description": "Program to run, such as `node`; omit it for a server with a `url`" },
        "args": texts("Arguments of the program, such as `./dist/index.js`"),
        "env": {
            "type": "object",
            "additionalProperties": { "type": "string" },
            "description": "Environment variables, in addition to those of xy; they override them",
        },
        "cwd": { "type": "string", "description": "Working directory: an absolute path" },
        "url": {
            "type": "string",
            "description": "URL of a server that is already running, such as `https://example.com/mcp`, instead of a `command`",
        },
        "headers": {
            "type": "object",
            "additionalProperties": { "type": "string" },
            "description": "HTTP headers to send with each request to the `url`, such as `Authorization`",
        },
        "transport": {
            "type": "string",
            "enum": ["http", "sse"],
            "description": "Transport of the `url`: `http` (default), or `sse` for servers with the legacy transport",
        },
        "persist": {
            "type": "boolean",
            "description": "Write a file for the server, so that it becomes a configured server",
        },
    });
    json!({
        "title": "Add an MCP server",
        "description": "Starts an MCP server over stdio (`command`), or connects to a remote one (`url`). Its tools appear as `<name>__<tool>`. Returns the tool names when the server is ready; if it cannot be started or reached, nothing is added. If a started server exits later, it is not restarted: use `reload_server`.",
        "inputSchema": object_schema(input, &["name"]),
        "outputSchema": report::summary_schema(),
        "annotations": { "readOnlyHint": false, "destructiveHint": true, "openWorldHint": true },
    })
}

pub(super) async fn call(
    servers: &dyn Servers,
    by: Requester,
    arguments: Arguments,
) -> Result<Value, CallError> {
    let name = arguments.name.clone();
    // The agent that adds a server decides whether to start it again.
    let restart_policy = arguments.command.is_some().then(|| "never".to_owned());
    let add = Add {
        restart_policy,
        name: arguments.name,
        command: arguments.command,
        args: arguments.args,
        env: arguments.env,
        cwd: arguments.cwd,
        url: arguments.url,
        headers: arguments.headers,
        transport: arguments.transport,
        persist: arguments.persist,
        ..Add::default()
    };
    servers.control().manage(by, Request::Add(add)).await?;
    report::report_with_tools(servers, &name).await
}
