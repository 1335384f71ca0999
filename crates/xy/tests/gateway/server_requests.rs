//! A shared server that sends requests to its clients: the clients take turns, and no call waits
//! forever.

use serde_json::{Value, json};
use xy_testkit::{Daemon, Home, McpClient};

use crate::fixtures::{
    capable_client, home, local_client, metrics, ready, received_of, serve_recorded,
    wait_until_idle,
};
use crate::support::ask;

fn yes(client: &McpClient, name: &'static str) {
    client.answer_with(move |question| {
        let is_it = question["method"] == "elicitation/create";
        is_it.then(|| Ok(json!({ "action": "accept", "content": { "name": name } })))
    });
}

#[track_caller]
fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

/// Returns a home whose server has sent a request to a client.
#[track_caller]
fn home_with_requesting_server() -> Home {
    home_and_daemon().0
}

#[track_caller]
fn home_and_daemon() -> (Home, Daemon) {
    let home = home();
    serve_recorded(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let first = capable_client(&home);
    yes(&first, "Ada");
    first.call_text("a__ask_elicitation", json!({}));
    (home, daemon)
}

fn waiting(home: &Home) -> String {
    let all = metrics(home);
    let line = all.lines().find(|it| it.starts_with("xy_server_calls_waiting{server=\"a\"}"));
    line.and_then(|it| it.rsplit(' ').next()).unwrap_or_default().to_owned()
}

#[track_caller]
fn wait_until_queued(home: &Home, count: &str) {
    home.wait_until("the calls wait", || waiting(home) == count);
}

#[test]
fn clients_of_a_requesting_server_take_turns() {
    let home = home_with_requesting_server();
    let (one, other) = (capable_client(&home), home.mcp_http("/mcp"));
    other.initialize_with(&crate::fixtures::capabilities());
    yes(&one, "Ada");
    yes(&other, "Grace");
    let calls: Vec<(u64, u64)> = (0..20)
        .map(|_| {
            (
                one.start_call("a__ask_elicitation", json!({})),
                other.start_call("a__ask_elicitation", json!({})),
            )
        })
        .collect();
    for (mine, other_id) in calls {
        assert!(text(&one.wait_answer(mine)).contains("Ada"));
        assert!(text(&other.wait_answer(other_id)).contains("Grace"));
    }
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn server_requests_cause_a_warning_that_is_remembered() {
    let (home, daemon) = home_and_daemon();
    let advice = "isolation \"client\"";
    let message_of =
        |home: &Home| ask(home, "status", json!({ "name": "a" }))["warnings"].to_string();
    assert!(message_of(&home).contains("isolation"), "{}", message_of(&home));
    let client = local_client(&home);
    let listed = client.call("list_servers", json!({}));
    let servers = &listed["result"]["structuredContent"]["servers"];
    assert!(servers[0]["warnings"][0].as_str().unwrap().contains(advice), "{servers}");
    home.wait_until("the manifest has it", || {
        let file = home.root().join("state/xy/manifests/a.json");
        std::fs::read_to_string(file).is_ok_and(|text| text.contains("\"asks\":true"))
    });
    ask(&home, "shutdown", Value::Null);
    daemon.wait();
    home.daemon();
    home.wait_until("the manifest is saved", || message_of(&home).contains("isolation"));
    assert!(message_of(&home).contains("isolation"), "{}", message_of(&home));
    home.finish();
}

#[test]
fn adopted_server_is_known_to_send_requests() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let client = crate::fixtures::bridge_client(&home);
    client.call_text("a__echo", json!({ "message": "x" }));
    client.call("a__ask_elicitation", json!({}));
    home.wait_until("the manifest has it", || {
        let file = home.root().join("state/xy/manifests/a.json");
        std::fs::read_to_string(file).is_ok_and(|text| text.contains("\"asks\":true"))
    });
    daemon.kill9();
    home.daemon();
    let (busy, other) = (local_client(&home), local_client(&home));
    busy.start_call("a__never", json!({}));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").len() == 3);
    let other_call = other.start_call("a__echo", json!({ "message": "theirs" }));
    wait_until_queued(&home, "1");
    drop(busy);
    assert_eq!(text(&other.wait_answer(other_call)), "theirs");
    drop(client);
    home.finish();
}
