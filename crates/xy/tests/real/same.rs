//! What a server says is the same through xy as without it, field by field.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{McpClient, McpStdio};

use crate::stage::{SERVERS, Stage};

/// What can be listed: how it is asked for, where it stands, what names an entry.
const LISTS: [(&str, &str, &str); 4] = [
    ("tools/list", "tools", "name"),
    ("prompts/list", "prompts", "name"),
    ("resources/list", "resources", "uri"),
    ("resources/templates/list", "resourceTemplates", "uriTemplate"),
];

/// What a shared server is told its clients can do, so that it shows the same without xy.
fn capabilities() -> Value {
    json!({
        "elicitation": { "form": {}, "url": {} },
        "sampling": { "tools": {}, "context": {} },
    })
}

/// A client of the server itself.
#[track_caller]
fn direct(stage: &Stage, server: &str) -> (McpStdio, Value) {
    let client = McpStdio::start(stage.direct(server));
    let welcome = client.initialize_with(&capabilities());
    (client, welcome)
}

#[test]
fn every_list_is_the_same_with_one_server_and_with_all() {
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
            become_the_same(&format!("{server}: {method}"), || {
                let through = of_one(&all, server, method, list, key);
                (direct.list(method, list), [alone.list(method, list), through])
            });
        }
    }
    all.close();
    stage.home.finish();
}

/// Waits until what is expected is what came both ways: a server may say that its list has
/// changed while it starts.
#[track_caller]
fn become_the_same(what: &str, look: impl Fn() -> (Vec<Value>, [Vec<Value>; 2])) {
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

/// The entries of one server, where all stand behind one door, with their own names.
fn of_one(all: &McpClient, server: &str, method: &str, list: &str, key: &str) -> Vec<Value> {
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
fn every_answer_is_the_same_with_one_server_and_with_all() {
    let (stage, _daemon) = Stage::with_daemon();
    let all = stage.home.mcp_connect(&[]);
    all.initialize_with(&capabilities());
    for server in SERVERS {
        let (direct, _) = direct(&stage, server);
        let alone = stage.home.mcp_connect(&["--server", server]);
        alone.initialize_with(&capabilities());
        for (method, key, params) in questions(&stage, server) {
            let expected = outcome(&direct.request(method, params.clone()));
            let one = outcome(&alone.request(method, params.clone()));
            assert_eq!(one, expected, "{server} alone: {method} {params}");
            let through = outcome(&all.request(method, renamed(server, key, params.clone())));
            assert_eq!(through, expected, "{server}: {method} {params}");
        }
    }
    all.close();
    stage.home.finish();
}

/// What was answered, without the id and the order of its fields. What only the modern era has
/// stays in the results of a server that xy speaks with in it, and no client minds.
fn outcome(answer: &Value) -> Value {
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

/// The same question where all servers stand behind one door; `key` is where its name is.
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

/// Questions whose answers are the same each time: the method, where the name is, the params.
fn questions(stage: &Stage, server: &str) -> Vec<(&'static str, &'static str, Value)> {
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
