//! The tools of profiles in search mode: `search_tools`, `describe_tool` and `call_tool`.

use std::sync::LazyLock;

use serde_json::{Value, json};
use xy_catalog::catalog::ExposedItem;

use super::object_schema;

/// Finds tools by what they do.
pub(crate) const SEARCH: &str = "search_tools";
/// Describes one tool.
pub(crate) const DESCRIBE: &str = "describe_tool";
/// Calls a tool that is not listed.
pub(crate) const CALL: &str = "call_tool";

/// Returns the three tools as list items.
pub(crate) fn exposed() -> Vec<ExposedItem> {
    static ALL: LazyLock<Vec<ExposedItem>> = LazyLock::new(|| {
        let all = [
            (SEARCH, search_definition()),
            (DESCRIBE, describe_definition()),
            (CALL, call_definition()),
        ];
        let shown = |(name, mut definition): (&str, Value)| {
            definition["name"] = name.into();
            let text = definition.to_string().into();
            ExposedItem { name: name.into(), text, index: 0, is_listed: true }
        };
        all.map(shown).into()
    });
    ALL.clone()
}

/// Returns true if `name` is one of the three tools.
pub(crate) fn is_search_tool(name: &str) -> bool {
    [SEARCH, DESCRIBE, CALL].contains(&name)
}

fn search_definition() -> Value {
    let hit = object_schema(
        json!({ "name": { "type": "string" }, "description": { "type": "string" } }),
        &["name", "description"],
    );
    json!({
        "title": "Search tools",
        "description": "Finds tools by what they do, best first. Most tools are not listed: search before you say that there is none.",
        "inputSchema": object_schema(json!({
            "query": { "type": "string", "description": "What is to be done, in a few words" },
            "limit": { "type": "integer", "minimum": 1, "maximum": 100, "description": "The most that are answered; 8 if absent" },
            "server": { "type": "string", "description": "Only tools of this server" },
        }), &["query"]),
        "outputSchema": object_schema(json!({ "tools": { "type": "array", "items": hit } }), &["tools"]),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

fn describe_definition() -> Value {
    json!({
        "title": "Describe a tool",
        "description": "Says how a tool is used: all of its description, and the schema of its arguments.",
        "inputSchema": object_schema(json!({
            "name": { "type": "string", "description": "As `search_tools` names it" },
        }), &["name"]),
        "outputSchema": object_schema(json!({ "tool": { "type": "object" } }), &["tool"]),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

fn call_definition() -> Value {
    json!({
        "title": "Call a tool",
        "description": "Calls a tool that is not listed. The result is the tool's own.",
        "inputSchema": object_schema(json!({
            "name": { "type": "string", "description": "As `search_tools` names it" },
            "arguments": { "type": "object", "description": "As `describe_tool` says; none if absent" },
        }), &["name"]),
    })
}
