//! Tasks between modern clients and modern servers, at the endpoint of all servers.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, McpModern};

use crate::fixtures::{
    error_code, error_message, home, ready, received_of, serve_recorded, uninitialized_client,
};
use crate::support::{running, running_after, signal};

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
fn modern_with(home: &Home, capabilities: Value) -> McpModern {
    let client = McpModern::http(&home.gateway_address(), "/mcp", &home.gateway_token());
    client.with_capabilities(capabilities)
}

#[track_caller]
fn modern(home: &Home) -> McpModern {
    modern_with(home, can_tasks())
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

#[test]
fn task_needs_its_token_and_a_unique_id() {
    let home = home_of_tasks(["same", "same"]);
    let client = modern(&home);
    let one = begin(&client, "a__job", json!({ "message": "mine" }));
    wait_until(&home, &client, &one, "completed");
    let get_count = received_of(&home, "a", "tasks/get").len();

    // A client at the local socket.
    let local = uninitialized_client(&home);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": can_tasks(),
    });
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let answer = local.request(method, json!({ "taskId": one, "_meta": meta }));
        assert_eq!(error_code(&answer), -32602, "{answer}");
    }
    for task in ["same-7", "", "first-1"] {
        assert_eq!(error_code(&client.request("tasks/get", json!({ "taskId": task }))), -32602);
    }
    let unknowing = modern_with(&home, json!({}));
    assert_eq!(error_code(&unknowing.request("tasks/get", json!({ "taskId": one }))), -32021);
    // This client does not support tasks, so it gets the plain result.
    let plain = unknowing.call_tool("a__job", json!({ "message": "at once" }));
    assert_eq!(plain["result"]["content"][0]["text"], "at once");

    // The first task of the other server has the same id.
    assert_eq!(begin(&client, "b__job", json!({ "message": "theirs" })), one);
    let answer = client.request("tasks/get", json!({ "taskId": one }));
    assert!(
        error_code(&answer) == -32602 && error_message(&answer).contains("several servers"),
        "{answer}"
    );
    assert_eq!(received_of(&home, "a", "tasks/get").len(), get_count);
    assert_eq!(received_of(&home, "b", "tasks/get").len(), 0);
    home.finish();
}

#[test]
fn listening_client_gets_the_task_status() {
    let home = home_of_tasks(["first", "second"]);
    let client = modern(&home);
    let task = begin(&client, "a__job", json!({ "message": "who?", "ask": "elicitation" }));
    wait_until(&home, &client, &task, "input_required");
    let filter = json!({ "taskIds": [task, "second-1"] });
    let mut listening =
        client.start("subscriptions/listen", json!({ "notifications": filter }), &[]);
    let first = listening.next_message().unwrap();
    assert_eq!(first["params"]["notifications"], json!({ "taskIds": [task] }), "{first}");
    let update = json!({ "taskId": task, "inputResponses": { "name": { "action": "decline" } } });
    client.request("tasks/update", update);
    let mut notifications = Vec::new();
    while notifications.last().is_none_or(|it: &Value| it["params"]["status"] != "completed") {
        notifications.push(listening.next_message().unwrap());
    }
    for one in &notifications {
        assert_eq!(
            (&one["method"], &one["params"]["taskId"]),
            (&json!("notifications/tasks"), &json!(task))
        );
    }
    assert!(notifications.last().unwrap()["params"]["result"].is_object());
    drop(listening);
    home.finish();
}

#[test]
fn task_ends_with_its_server() {
    let home = home_of_tasks(["first", "second"]);
    let client = modern(&home);
    let task = begin(&client, "a__job", json!({ "message": "long", "ms": 600_000 }));
    signal(running(&home, "a"), Signal::KILL);
    running_after(&home, "a", 1);
    let answer = client.request("tasks/get", json!({ "taskId": task }));
    assert!(
        error_code(&answer) == -32602 && error_message(&answer).contains("ended with it"),
        "{answer}"
    );
    assert_eq!(received_of(&home, "a", "tasks/get").len(), 0);
    home.finish();
}
