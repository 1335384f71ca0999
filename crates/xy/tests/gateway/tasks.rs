//! Tasks of legacy clients: each belongs to one client, as long as its server lives.

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, free_port};

use crate::fixtures::{
    capable_client, error_code, error_message, home, http_client, local_client, notification_count,
    ready, serve, serve_recorded, serve_with, single_server_client,
};

const STATUS: &str = "notifications/tasks/status";

#[track_caller]
fn home_of_tasks() -> Home {
    let home = home();
    serve(&home, "a", &["--tasks", "--name", "first"]);
    serve(&home, "b", &["--tasks", "--name", "second"]);
    serve(&home, "c", &[]);
    home.daemon();
    ready(&home, &["a", "b", "c"]);
    home
}

/// Starts a task, and returns its id.
#[track_caller]
fn begin(client: &McpClient, tool: &str, arguments: &Value) -> String {
    let params = json!({ "name": tool, "arguments": arguments, "task": { "ttl": 60_000 } });
    let answer = client.request("tools/call", params);
    answer["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[track_caller]
fn result(client: &McpClient, task: &str) -> Value {
    client.request("tasks/result", json!({ "taskId": task }))
}

#[track_caller]
fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn ids(answer: &Value) -> Vec<String> {
    let all = answer["result"]["tasks"].as_array().unwrap_or_else(|| panic!("{answer}"));
    all.iter().map(|it| it["taskId"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn task_capabilities_of_servers_are_offered_and_work() {
    let home = home_of_tasks();
    let client = crate::fixtures::uninitialized_client(&home);
    let hello = client.initialize();
    let all = json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } });
    assert_eq!(hello["capabilities"]["tasks"], all);
    let tools = client.list("tools/list", "tools");
    let job = tools.iter().find(|it| it["name"] == "a__job").unwrap();
    assert_eq!(job["execution"], json!({ "taskSupport": "optional" }));
    let (one, other) = (
        begin(&client, "a__job", &json!({ "message": "one" })),
        begin(&client, "b__job", &json!({ "message": "other" })),
    );
    assert_eq!(text(&result(&client, &one)), "one");
    assert_eq!(text(&result(&client, &other)), "other");
    let got = client.request("tasks/get", json!({ "taskId": one }));
    assert_eq!(got["result"]["status"], "completed");
    assert_eq!(ids(&client.request("tasks/list", json!({}))), [one, other]);
    let working = begin(&client, "a__job", &json!({ "ms": 60_000 }));
    let cancelled = client.request("tasks/cancel", json!({ "taskId": working }));
    assert_eq!(cancelled["result"]["status"], "cancelled");
    home.finish();
}

#[test]
fn task_is_hidden_from_other_clients() {
    let home = home_of_tasks();
    let (one, other) = (local_client(&home), local_client(&home));
    let (plain, stranger) = (single_server_client(&home, "a"), single_server_client(&home, "a"));
    let mine = begin(&one, "a__job", &json!({ "message": "mine" }));
    let theirs = begin(&plain, "job", &json!({ "message": "theirs" }));
    for client in [&other, &stranger] {
        for task in [&mine, &theirs, &"never".to_owned()] {
            for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
                let answer = client.request(method, json!({ "taskId": task }));
                assert_eq!(error_code(&answer), -32602, "{answer}");
                assert!(error_message(&answer).contains("not found"), "{answer}");
            }
        }
        assert_eq!(ids(&client.request("tasks/list", json!({}))), [""; 0]);
    }
    assert_eq!(text(&result(&plain, &theirs)), "theirs");
    assert_eq!(text(&result(&one, &mine)), "mine");
    let listed = plain.request("tasks/list", json!({}));
    assert_eq!((ids(&listed), &listed["result"]["kept"]), (vec![theirs], &json!(1.5)));
    assert_eq!(ids(&one.request("tasks/list", json!({}))), [mine]);
    // The task is not found at another server either.
    let elsewhere = single_server_client(&home, "b");
    assert_eq!(error_code(&elsewhere.request("tasks/get", json!({ "taskId": "first-1" }))), -32602);
    home.finish();
}

#[test]
fn tasks_of_a_killed_daemon_are_unknown_in_a_session_that_goes_on() {
    let home = home();
    let listen = format!("gateway {{ listen \"127.0.0.1:{}\" }}\n", free_port());
    home.write_config("xy.kdl", &listen);
    serve(&home, "a", &["--tasks", "--name", "first"]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let client = http_client(&home);
    let session = client.session();
    let done = begin(&client, "a__job", &json!({ "message": "done" }));
    assert_eq!(text(&result(&client, &done)), "done");
    let working = begin(&client, "a__job", &json!({ "ms": 60_000 }));
    daemon.kill9();
    let _next = home.daemon();
    ready(&home, &["a"]);
    client.break_connections();
    for task in [&done, &working] {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let answer = client.request(method, json!({ "taskId": task }));
            assert_eq!(error_code(&answer), -32602, "{answer}");
            assert!(error_message(&answer).contains("not found"), "{answer}");
        }
    }
    assert_eq!(ids(&client.request("tasks/list", json!({}))), [""; 0]);
    assert_eq!(client.session(), session, "the session goes on");
    let fresh = begin(&client, "a__job", &json!({ "message": "fresh" }));
    assert_eq!(text(&result(&client, &fresh)), "fresh");
    client.close();
    home.finish();
}

#[test]
fn client_without_tasks_is_not_asked_about_any() {
    let home = home();
    serve_with(&home, "own", &["--talks"], "isolation \"client\"\n");
    serve_recorded(&home, "shared", &["--talks"]);
    home.daemon();
    ready(&home, &["shared"]);
    let client = capable_client(&home);
    for (server, method, expected) in [
        ("own", "tasks/list", "-32601"),
        ("own", "tasks/get", "-32602"),
        ("shared", "tasks/list", "-32601"),
        ("shared", "tasks/cancel", "-32602"),
    ] {
        let arguments = json!({ "method": method, "params": r#"{"taskId":"x"}"# });
        let answer = client.call(&format!("{server}__ask"), arguments);
        assert!(text(&answer).contains(expected), "{server} {method} {answer}");
    }
    assert_eq!(notification_count(&client, STATUS), 0);
    home.finish();
}
