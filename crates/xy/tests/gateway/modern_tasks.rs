//! Tasks between modern clients and modern servers, at the endpoint of all servers.

use serde_json::{Value, json};
use xy_testkit::{Home, McpModern};

use crate::fixtures::{home, ready, received_of, serve_recorded};

const TASKS: &str = "io.modelcontextprotocol/tasks";

/// Returns a home with two servers that name their tasks with these prefixes, and its daemon.
#[track_caller]
fn home_of_tasks(names: [&str; 2]) -> Home {
    let home = home();
    for (server, name) in ["a", "b"].into_iter().zip(names) {
        serve_recorded(&home, server, &["--era", "modern", "--tasks", "--name", name]);
    }
    home.daemon();
    ready(&home, &["a", "b"]);
    home
}

fn can_tasks() -> Value {
    json!({ "extensions": { TASKS: {} } })
}

#[track_caller]
fn modern(home: &Home) -> McpModern {
    let client = McpModern::http(&home.gateway_address(), "/mcp", &home.gateway_token());
    client.with_capabilities(can_tasks())
}

/// Starts a task, and returns its id.
#[track_caller]
fn begin(client: &McpModern, tool: &str, arguments: Value) -> String {
    let answer = client.call_tool(tool, arguments);
    assert_eq!(answer["result"]["resultType"], "task", "{answer}");
    answer["result"]["taskId"].as_str().unwrap().to_owned()
}

#[track_caller]
fn get(client: &McpModern, task: &str) -> Value {
    let answer = client.request("tasks/get", json!({ "taskId": task }));
    assert_eq!(answer["result"]["taskId"], task, "{answer}");
    answer["result"].clone()
}

#[track_caller]
fn wait_until(home: &Home, client: &McpModern, task: &str, status: &str) -> Value {
    home.wait_until(&format!("{task} is {status}"), || get(client, task)["status"] == status);
    get(client, task)
}

#[test]
fn tasks_of_several_servers_are_started_queried_and_answered() {
    let home = home_of_tasks(["first", "second"]);
    let client = modern(&home);
    let discovered = client.request("server/discover", json!({}));
    assert_eq!(discovered["result"]["capabilities"]["extensions"], json!({ TASKS: {} }));

    let one = begin(&client, "a__job", json!({ "message": "hello" }));
    let other = begin(&client, "b__job", json!({ "message": "who?", "ask": "elicitation" }));
    let done = wait_until(&home, &client, &one, "completed");
    assert_eq!(done["result"]["content"][0]["text"], "hello");
    let status = wait_until(&home, &client, &other, "input_required");
    assert_eq!(status["inputRequests"]["name"]["params"]["message"], "who?");
    let answers = json!({ "name": { "action": "accept", "content": { "name": "Eve" } } });
    let update = json!({ "taskId": other, "inputResponses": answers });
    assert_eq!(client.request("tasks/update", update)["result"]["resultType"], "complete");
    let done = wait_until(&home, &client, &other, "completed");
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("Eve"), "{done}");

    let long = begin(&client, "a__job", json!({ "message": "long", "ms": 600_000 }));
    let cancelled = client.request("tasks/cancel", json!({ "taskId": long }));
    assert_eq!(cancelled["result"]["resultType"], "complete");
    assert_eq!(get(&client, &long)["status"], "cancelled");
    let whose = |server: &str| {
        let all = received_of(&home, server, "tasks/get");
        all.iter().map(|it| text(&it["params"]["taskId"])).collect::<Vec<_>>()
    };
    assert!(whose("a").iter().all(|it| it.starts_with("first")));
    assert!(whose("b").iter().all(|it| it.starts_with("second")));
    home.finish();
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
