//! `add_server`: begin a server, and say which tools have come with it.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};
use xy_protocol::control::{Add, Request};
use xy_protocol::error::CallError;

use super::{object, report};
use crate::hub::Hub;

/// What can be asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    name: String,
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
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
        "command": { "type": "string", "description": "The program, such as `node`" },
        "args": texts("Its arguments, such as `./dist/index.js`"),
        "env": {
            "type": "object",
            "additionalProperties": { "type": "string" },
            "description": "Variables, over those that xy itself has",
        },
        "cwd": { "type": "string", "description": "The folder it runs in: an absolute path" },
        "persist": {
            "type": "boolean",
            "description": "Whether to write a file for it, so that it is one of the configured servers",
        },
    });
    json!({
        "title": "Add an MCP server",
        "description": "Starts an MCP server that speaks over stdin and stdout, and offers its tools here as `<name>__<tool>`. Answers once it is ready, with the names of its tools; if it does not start, nothing is added. If it dies later, it is not started again: use `reload_server`.",
        "inputSchema": object(input, &["name", "command"]),
        "outputSchema": report::brief_schema(),
        "annotations": { "readOnlyHint": false, "destructiveHint": false, "openWorldHint": true },
    })
}

pub(super) async fn call(hub: &Rc<Hub>, asked: Asked) -> Result<Value, CallError> {
    let Asked { name, command, args, env, cwd, persist } = asked;
    let add = Add { name: name.clone(), command, args, env, cwd, persist, ..Add::default() };
    hub.control.call(Request::Add(add)).await?;
    report::once_its_tools_are_known(hub, &name).await
}
