//! `add_server`: starts a server and returns its tools.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::{Add, Request};
use xy_protocol::error::CallError;

use super::{object_schema, or_default, report};
use crate::control::Requester;
use crate::router::Router;

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
        "command": { "type": "string", "description": "The program, such as `node`; leave it out for a server with a `url`" },
        "args": texts("Its arguments, such as `./dist/index.js`"),
        "env": {
            "type": "object",
            "additionalProperties": { "type": "string" },
            "description": "Variables, over those that xy itself has",
        },
        "cwd": { "type": "string", "description": "The folder it runs in: an absolute path" },
        "url": {
            "type": "string",
            "description": "Where a server is that already runs somewhere, such as `https://example.com/mcp`, instead of a `command`",
        },
        "headers": {
            "type": "object",
            "additionalProperties": { "type": "string" },
            "description": "Sent with every request to the `url`, such as `Authorization`",
        },
        "transport": {
            "type": "string",
            "enum": ["http", "sse"],
            "description": "How to speak with the `url`: `http` unless it only knows the older `sse`",
        },
        "persist": {
            "type": "boolean",
            "description": "Whether to write a file for it, so that it is one of the configured servers",
        },
    });
    json!({
        "title": "Add an MCP server",
        "description": "Starts an MCP server that speaks over stdin and stdout (`command`), or uses one that runs somewhere else (`url`), and offers its tools here as `<name>__<tool>`. Answers once it is ready, with the names of its tools; if it does not start or cannot be reached, nothing is added. If one that was started dies later, it is not started again: use `reload_server`.",
        "inputSchema": object_schema(input, &["name"]),
        "outputSchema": report::summary_schema(),
        "annotations": { "readOnlyHint": false, "destructiveHint": true, "openWorldHint": true },
    })
}

pub(super) async fn call(
    router: &Rc<Router>,
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
    router.control.manage(by, Request::Add(add)).await?;
    report::report_with_tools(router, &name).await
}
