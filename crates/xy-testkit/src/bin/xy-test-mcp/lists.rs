//! Answers list requests and reads their entries: tools, prompts, resources, completion.

use serde_json::{Value, json};

use crate::catalog;
use crate::server::Server;
use xy_testkit::json::Members;

/// The resource that `bump` changes.
pub(crate) const COUNTER: &str = "test://counter";

/// The completions of the arguments of the prompt and of the template.
const NAMES: [&str; 4] = ["Ada", "Alan", "Barbara", "Grace"];

/// Returns the result of a method as JSON text, or the reason for refusing it. Returns `None` for
/// a method that this module does not handle.
pub(crate) fn answer(
    server: &Server,
    method: &str,
    params: &Members,
) -> Option<Result<String, String>> {
    let options = &server.options;
    let result = match method {
        "tools/list" if options.has("--bad-list") => Ok(json!({ "tools": "many" })),
        "tools/list" if options.has("--bad-tools") => Ok(json!({ "tools": damaged(server) })),
        "tools/list" if options.has("--endless-list") => Ok(endless(params)),
        "tools/list" => {
            page(options.page, "tools", odd(server, "tools", catalog::tools(server)), params)
        }
        "prompts/list" => {
            page(options.page, "prompts", odd(server, "prompts", prompts(server)), params)
        }
        "prompts/get" => prompt(params),
        "resources/list" => {
            page(options.page, "resources", odd(server, "resources", resources(server)), params)
        }
        "resources/templates/list" => {
            page(options.page, "resourceTemplates", odd(server, "templates", templates()), params)
        }
        "resources/read" => resource(server, params),
        "completion/complete" if options.declares("completions") => complete(params),
        _ => return None,
    };
    Some(result.map(|result| result.to_string()))
}

/// Returns true if the server currently has this tool.
pub(crate) fn has_tool(server: &Server, name: &str) -> bool {
    catalog::tools(server).iter().any(|tool| tool["name"] == name)
}

/// Returns one page of a list; the cursor is the index of its first entry.
fn page(size: usize, name: &str, all: Vec<Value>, params: &Members) -> Result<Value, String> {
    let first: usize = match params.string("cursor") {
        Some(cursor) => cursor.parse().map_err(|_| format!("no cursor `{cursor}`"))?,
        None => 0,
    };
    let next = first.saturating_add(size);
    let is_last = next >= all.len();
    let entries: Vec<Value> = all.into_iter().skip(first).take(size).collect();
    let mut list = json!({ name: entries });
    if !is_last {
        list["nextCursor"] = json!(next.to_string());
    }
    Ok(list)
}

/// Returns a page of one tool, which always has a successor.
fn endless(params: &Members) -> Value {
    let number: u64 = params.string("cursor").and_then(|it| it.parse().ok()).unwrap_or(0);
    let tool = json!({ "name": format!("endless_{number}"), "inputSchema": { "type": "object" } });
    json!({ "tools": [tool], "nextCursor": (number + 1).to_string() })
}

/// Returns valid tools interleaved with invalid entries.
fn damaged(server: &Server) -> Vec<Value> {
    let broken = [
        json!(7),
        Value::Null,
        json!({ "description": "nameless" }),
        json!({ "name": 7, "inputSchema": {} }),
        json!({ "name": "", "inputSchema": { "type": "object" } }),
        json!({ "name": "no_schema" }),
        json!([]),
    ];
    let good = catalog::tools(server);
    good.into_iter().zip(broken).flat_map(|(good, broken)| [good, broken]).collect()
}

/// Adds, with `--odd-lists`, entries that have a name but otherwise violate the schema.
fn odd(server: &Server, list: &str, mut all: Vec<Value>) -> Vec<Value> {
    if !server.options.has("--odd-lists") {
        return all;
    }
    let object = json!({ "type": "object" });
    let deep = (0..300).fold(json!({}), |inside, _| json!({ "properties": { "a": inside } }));
    let (name, entries) = match list {
        "tools" => (
            "name",
            vec![
                json!({ "inputSchema": {} }),
                json!({ "inputSchema": { "type": "array" } }),
                json!({ "inputSchema": { "type": "object", "properties": 7, "required": "a" } }),
                json!({ "inputSchema": { "type": "object", "properties": { "a": true } } }),
                json!({ "inputSchema": { "type": "object", "x": deep } }),
                json!({ "inputSchema": object, "outputSchema": { "type": "string" } }),
                json!({ "inputSchema": object, "outputSchema": null, "title": null }),
                json!({ "inputSchema": object, "description": null, "annotations": null }),
                json!({ "inputSchema": object, "annotations": { "readOnlyHint": "yes" } }),
                json!({ "inputSchema": object, "annotations": 7, "icons": "x" }),
                json!({ "inputSchema": object, "_meta": 7, "execution": 7 }),
            ],
        ),
        "prompts" => (
            "name",
            vec![
                json!({ "arguments": 7 }),
                json!({ "arguments": [{ "x": 1 }, { "name": "a", "required": "yes" }] }),
                json!({ "description": 7, "_meta": 7 }),
            ],
        ),
        "resources" => (
            "uri",
            vec![
                json!({}),
                json!({ "name": "a", "mimeType": 7, "size": "big" }),
                json!({ "name": "b", "annotations": { "priority": 7, "audience": ["all"] } }),
            ],
        ),
        _ => ("uriTemplate", vec![json!({}), json!({ "name": null, "annotations": 7 })]),
    };
    for (number, mut entry) in entries.into_iter().enumerate() {
        let begin = if name == "name" { "odd_" } else { "test://odd/" };
        entry[name] = json!(format!("{begin}{number}"));
        all.push(entry);
    }
    all
}

fn prompts(server: &Server) -> Vec<Value> {
    let argument = json!({ "name": "name", "description": "Whom", "required": true });
    let mut prompts = vec![
        json!({ "name": "greet", "description": "Greets somebody", "arguments": [argument] }),
        json!({ "name": "plain", "description": "Says the same every time" }),
    ];
    prompts.extend(added(server, "prompts").iter().map(|name| json!({ "name": name })));
    prompts
}

/// Returns the names that were added to the list of this kind.
fn added(server: &Server, kind: &str) -> Vec<String> {
    let state = server.state();
    let of_kind = state.added_entries.iter().filter(|(it, _)| it == kind);
    of_kind.map(|(_, name)| name.clone()).collect()
}

fn prompt(params: &Members) -> Result<Value, String> {
    let text = match params.string("name").as_deref() {
        Some("greet") => {
            let name = params.members("arguments").string("name");
            format!("Greet {}, please.", name.ok_or("`greet` needs a `name`")?)
        }
        Some("plain") => "Say something plain.".to_owned(),
        _ => return Err("no such prompt".to_owned()),
    };
    let message = json!({ "role": "user", "content": { "type": "text", "text": text } });
    Ok(json!({ "messages": [message] }))
}

fn resources(server: &Server) -> Vec<Value> {
    let mut resources = vec![
        json!({ "uri": "test://static", "name": "static", "mimeType": "text/plain" }),
        json!({ "uri": COUNTER, "name": "counter", "mimeType": "text/plain" }),
    ];
    let added = added(server, "resources");
    resources.extend(
        added.iter().map(|name| json!({ "uri": format!("test://item/{name}"), "name": name })),
    );
    resources
}

fn templates() -> Vec<Value> {
    vec![json!({ "uriTemplate": "test://item/{id}", "name": "item", "mimeType": "text/plain" })]
}

fn resource(server: &Server, params: &Members) -> Result<Value, String> {
    let uri = params.string("uri").ok_or("which resource?")?;
    let text = match uri.as_str() {
        "test://static" => "always the same".to_owned(),
        COUNTER => server.state().counter.to_string(),
        _ => match uri.strip_prefix("test://item/") {
            Some(id) => format!("item {id}"),
            None => return Err(format!("no resource `{uri}`")),
        },
    };
    Ok(json!({ "contents": [{ "uri": uri, "mimeType": "text/plain", "text": text }] }))
}

fn complete(params: &Members) -> Result<Value, String> {
    let of = params.members("ref");
    let known = [of.string("name"), of.string("uri")].into_iter().flatten();
    if !known.into_iter().any(|it| matches!(it.as_str(), "greet" | "test://item/{id}")) {
        return Err("nothing to complete there".to_owned());
    }
    let begun = params.members("argument").string("value").unwrap_or_default();
    let values: Vec<&str> = NAMES.into_iter().filter(|name| name.starts_with(&begun)).collect();
    Ok(json!({ "completion": { "total": values.len(), "hasMore": false, "values": values } }))
}
