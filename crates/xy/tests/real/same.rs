//! Lists and answers of a server are the same through xy as without it, field by field.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{McpClient, McpStdio};

use crate::stage::{SERVERS, Stage};

/// The lists: the method, the field of the entries, and the key that names an entry.
const LISTS: [(&str, &str, &str); 4] = [
    ("tools/list", "tools", "name"),
    ("prompts/list", "prompts", "name"),
    ("resources/list", "resources", "uri"),
    ("resources/templates/list", "resourceTemplates", "uriTemplate"),
];

/// Returns the capabilities that xy announces to a shared server, for a direct client.
fn capabilities() -> Value {
    json!({
        "elicitation": { "form": {}, "url": {} },
        "sampling": { "tools": {}, "context": {} },
    })
}

/// Starts a client of the server without xy.
#[track_caller]
fn direct(stage: &Stage, server: &str) -> (McpStdio, Value) {
    let client = McpStdio::start(stage.direct(server));
    let welcome = client.initialize_with(&capabilities());
    (client, welcome)
}

#[test]
fn single_server_lists_match_combined_lists() {
    let (stage, _daemon) = Stage::with_daemon();
    let all = stage.home.mcp_connect(&[]);
    all.initialize_with(&capabilities());
    for server in SERVERS {
        let (direct, welcome) = direct(&stage, server);
        let alone = stage.home.mcp_connect(&["--server", server]);
        assert_eq!(alone.initialize_with(&capabilities()), welcome, "{server}");
        for (method, list, key) in LISTS {
            if welcome["capabilities"].get(list.replace("resourceTemplates", "resources")).is_none()
            {
                continue;
            }
            wait_until_equal(&format!("{server}: {method}"), || {
                let through = entries_of(&all, server, method, list, key);
                (direct.list(method, list), [alone.list(method, list), through])
            });
        }
    }
    all.close();
    stage.home.finish();
}

/// Waits until both ways show the expected entries. A server may announce a changed list while it
/// starts.
#[track_caller]
fn wait_until_equal(what: &str, look: impl Fn() -> (Vec<Value>, [Vec<Value>; 2])) {
    for _ in 0..100 {
        let (expected, seen) = look();
        if seen.iter().all(|seen| *seen == expected) {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let (expected, [alone, through]) = look();
    assert_eq!(alone, expected, "{what}, one server");
    assert_eq!(through, expected, "{what}, all servers");
}

/// Returns the entries of one server from the combined list, with their original names.
fn entries_of(all: &McpClient, server: &str, method: &str, list: &str, key: &str) -> Vec<Value> {
    let before = match key {
        "name" => format!("{server}__"),
        _ => format!("xy://{server}/"),
    };
    let own = |mut entry: Value| {
        let name = entry[key].as_str().unwrap().strip_prefix(&before)?.to_owned();
        entry[key] = json!(name);
        Some(entry)
    };
    all.list(method, list).into_iter().filter_map(own).collect()
}

#[test]
fn single_server_answers_match_combined_answers() {
    let (stage, _daemon) = Stage::with_daemon();
    let all = stage.home.mcp_connect(&[]);
    all.initialize_with(&capabilities());
    for server in SERVERS {
        let (direct, _) = direct(&stage, server);
        let alone = stage.home.mcp_connect(&["--server", server]);
        alone.initialize_with(&capabilities());
        for (method, key, params) in constant_requests(&stage, server) {
            let expected = normalized(&direct.request(method, params.clone()));
            let one = normalized(&alone.request(method, params.clone()));
            assert_eq!(one, expected, "{server} alone: {method} {params}");
            let through = normalized(&all.request(method, renamed(server, key, params.clone())));
            assert_eq!(through, expected, "{server}: {method} {params}");
        }
    }
    all.close();
    stage.home.finish();
}

/// Returns an answer without its id and the order of its fields. Fields of the modern era stay in
/// the results of a modern server; clients ignore them.
fn normalized(answer: &Value) -> Value {
    let mut result = answer.get("result").cloned();
    if let Some(result) = result.as_mut().and_then(Value::as_object_mut) {
        result.retain(|key, _| !["resultType", "ttlMs", "cacheScope"].contains(&key.as_str()));
        if let Some(meta) = result.get_mut("_meta").and_then(Value::as_object_mut) {
            meta.remove("io.modelcontextprotocol/serverInfo");
        }
        if result.get("_meta") == Some(&json!({})) {
            result.remove("_meta");
        }
    }
    json!({ "result": result, "error": answer.get("error") })
}

/// Returns the params for the combined endpoint; `key` holds the name.
fn renamed(server: &str, key: &str, mut params: Value) -> Value {
    let place = params.pointer_mut(key).unwrap();
    let name = place.as_str().unwrap();
    let outside = match key {
        "/uri" => format!("xy://{server}/{name}"),
        _ => format!("{server}__{name}"),
    };
    *place = json!(outside);
    params
}

/// Returns requests with constant answers: the method, the key of the name, and the params.
fn constant_requests(stage: &Stage, server: &str) -> Vec<(&'static str, &'static str, Value)> {
    let call = |name: &str, arguments: Value| {
        ("tools/call", "/name", json!({ "name": name, "arguments": arguments }))
    };
    let repository = stage.repository();
    match server {
        "everything" => vec![
            call("echo", json!({ "message": "ünï \u{2028} \u{0} 🦀 \\ \"" })),
            call("get-sum", json!({ "a": 1e21, "b": 0.1 })),
            call("get-sum", json!({ "a": "no number" })),
            call("get-structured-content", json!({ "location": "Chicago" })),
            call("get-annotated-message", json!({ "messageType": "error", "includeImage": true })),
            call("get-tiny-image", json!({})),
            call("get-resource-links", json!({ "count": 4 })),
            ("prompts/get", "/name", json!({ "name": "simple-prompt" })),
            ("prompts/get", "/name", json!({ "name": "args-prompt", "arguments": {} })),
            (
                "resources/read",
                "/uri",
                json!({ "uri": "demo://resource/static/document/structure.md" }),
            ),
            (
                "completion/complete",
                "/ref/name",
                json!({
                    "ref": { "type": "ref/prompt", "name": "completable-prompt" },
                    "argument": { "name": "name", "value": "" },
                    "context": { "arguments": { "department": "Sales" } },
                }),
            ),
        ],
        "files" => vec![
            call("list_allowed_directories", json!({})),
            call("list_directory", json!({ "path": stage.folder() })),
            call("read_text_file", json!({ "path": "/etc/passwd" })),
        ],
        "git" => vec![
            call("git_status", json!({ "repo_path": repository })),
            call("git_log", json!({ "repo_path": repository })),
            call("git_status", json!({ "repo_path": "/nowhere" })),
        ],
        "memory" => {
            vec![call("read_graph", json!({})), call("search_nodes", json!({ "query": "nothing" }))]
        }
        "time" => vec![
            call("get_current_time", json!({ "timezone": "No/Where" })),
            call("get_current_time", json!({})),
        ],
        other => panic!("no server `{other}`"),
    }
}
