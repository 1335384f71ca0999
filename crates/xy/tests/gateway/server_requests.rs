//! A shared server that sends requests to its clients: the clients take turns, and no call waits
//! forever.

use serde_json::{Value, json};
use xy_testkit::{Daemon, Home, McpClient};

use crate::fixtures::{
    capable_client, home, http_client, input_log_file, linger, local_client, metrics, ready,
    received_of, serve, serve_recorded, wait_until_idle,
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

/// Returns the messages that the server was called with, in order.
fn messages(home: &Home) -> Vec<String> {
    let calls = received_of(home, "a", "tools/call");
    let text_of = |it: &Value| it["params"]["arguments"]["message"].as_str().map(str::to_owned);
    calls.iter().filter_map(text_of).collect()
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
fn client_goes_on_until_another_waits() {
    let home = home_with_requesting_server();
    let (one, other) = (local_client(&home), http_client(&home));
    let say =
        |client: &McpClient, text: &str| client.start_call("a__echo", json!({ "message": text }));
    let never = one.start_call("a__never", json!({}));
    let first = say(&one, "one, first");
    one.wait_answer(first);
    let other_call = say(&other, "other");
    wait_until_queued(&home, "1");
    let last = say(&one, "one, last");
    wait_until_queued(&home, "2");
    one.cancel(&json!(never));
    other.wait_answer(other_call);
    one.wait_answer(last);
    assert_eq!(messages(&home), ["one, first", "other", "one, last"]);
    home.finish();
}

#[test]
fn waiting_calls_end_with_cancellation_or_their_client() {
    let home = home_with_requesting_server();
    let (busy, other, third) = (local_client(&home), local_client(&home), local_client(&home));
    busy.start_call("a__never", json!({}));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").len() == 2);
    let cancelled = other.start_call("a__echo", json!({ "message": "cancelled" }));
    let gone = third.start_call("a__echo", json!({ "message": "gone" }));
    wait_until_queued(&home, "2");
    other.cancel(&json!(cancelled));
    wait_until_queued(&home, "1");
    // The call goes on once the others' turns are over, and the call of a gone client is never
    // sent.
    let kept = other.start_call("a__echo", json!({ "message": "kept" }));
    wait_until_queued(&home, "2");
    drop(third);
    let _ = gone;
    wait_until_queued(&home, "1");
    drop(busy);
    assert_eq!(text(&other.wait_answer(kept)), "kept");
    assert_eq!(messages(&home), ["kept"]);
    assert_eq!(other.unclaimed_answers(), [""; 0]);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn client_goes_on_when_the_waiting_clients_have_left() {
    let home = home_with_requesting_server();
    let (busy, other) = (local_client(&home), local_client(&home));
    let never = busy.start_call("a__never", json!({}));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").len() == 2);
    other.start_call("a__echo", json!({ "message": "other" }));
    wait_until_queued(&home, "1");
    let mine = busy.start_call("a__echo", json!({ "message": "mine" }));
    wait_until_queued(&home, "2");
    drop(other);
    assert_eq!(text(&busy.wait_answer(mine)), "mine");
    busy.cancel(&json!(never));
    home.finish();
}

#[test]
fn waiting_calls_go_to_the_next_process() {
    let home = home_with_requesting_server();
    let (busy, other) = (local_client(&home), local_client(&home));
    let dying = busy.start_call("a__crash_after_ms", json!({ "ms": 200 }));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").len() == 2);
    let other_call = other.start_call("a__echo", json!({ "message": "theirs" }));
    assert_eq!(crate::fixtures::error_code(&busy.wait_answer(dying)), -32010);
    assert_eq!(text(&other.wait_answer(other_call)), "theirs");
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

#[test]
fn server_without_requests_is_called_concurrently() {
    let home = home();
    serve(&home, "a", &["--input-log", input_log_file(&home, "a").to_str().unwrap()]);
    home.daemon();
    ready(&home, &["a"]);
    let (one, other) = (local_client(&home), local_client(&home));
    one.start_call("a__never", json!({}));
    // A ping does not count as a server request.
    let ping = r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#;
    one.call_text("a__say", json!({ "line": ping }));
    assert_eq!(other.call_text("a__echo", json!({ "message": "x" })), "x");
    linger();
    assert_eq!(ask(&home, "status", json!({ "name": "a" }))["warnings"], Value::Null);
    home.finish();
}

#[test]
fn client_may_call_the_server_while_it_answers_it() {
    let home = home_with_requesting_server();
    let (one, other) = (capable_client(&home), local_client(&home));
    let asking = one.start_call("a__ask_elicitation", json!({}));
    let question = one.wait_question();
    let other_call = other.start_call("a__echo", json!({ "message": "theirs" }));
    wait_until_queued(&home, "1");
    assert_eq!(one.call_text("a__echo", json!({ "message": "for the answer" })), "for the answer");
    one.answer(&question, Ok(json!({ "action": "decline" })));
    assert!(text(&one.wait_answer(asking)).contains("decline"));
    assert_eq!(text(&other.wait_answer(other_call)), "theirs");
    home.finish();
}

#[test]
fn cancelled_call_of_the_same_client_causes_no_ambiguity() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = capable_client(&home);
    yes(&client, "Ada");
    let never = client.start_call("a__never", json!({}));
    client.cancel(&json!(never));
    assert!(client.call_text("a__ask_elicitation", json!({})).contains("Ada"));
    assert_eq!(client.unclaimed_answers(), [""; 0]);
    home.finish();
}

#[test]
fn server_request_during_a_control_socket_request_is_refused() {
    let home = home();
    serve_recorded(&home, "a", &["--talks"]);
    home.daemon();
    ready(&home, &["a"]);
    let client = capable_client(&home);
    yes(&client, "Ada");
    let never = client.start_call("a__never", json!({}));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").len() == 1);
    let params = json!({ "name": "ask_elicitation", "arguments": {} });
    let answer =
        ask(&home, "request", json!({ "server": "a", "method": "tools/call", "params": params }));
    assert!(answer.to_string().contains("which client"), "{answer}");
    client.cancel(&json!(never));
    home.finish();
}

#[test]
fn sub_capabilities_are_distinguished() {
    let home = home();
    serve(&home, "a", &["--talks"]);
    home.daemon();
    ready(&home, &["a"]);
    let plain = capable_client(&home); // Declares `elicitation` and `sampling` without sub-capabilities.
    let rich = crate::fixtures::uninitialized_client(&home);
    rich.initialize_with(&json!({
        "sampling": { "tools": {}, "context": {} }, "elicitation": { "url": {} },
    }));
    for client in [&plain, &rich] {
        client.answer_with(|_| Some(Ok(json!({ "action": "accept" }))));
    }
    let url = json!({ "mode": "url", "message": "m", "url": "https://x/", "elicitationId": "e" });
    for (method, params, is_for_plain) in [
        ("elicitation/create", json!({ "message": "m" }), true),
        ("elicitation/create", json!({ "message": "m", "mode": "form" }), true),
        ("elicitation/create", url, false),
        ("sampling/createMessage", json!({ "tools": [] }), false),
        ("sampling/createMessage", json!({ "includeContext": "thisServer" }), false),
    ] {
        let arguments = json!({ "method": method, "params": params.to_string() });
        for (client, is_for_it) in [(&plain, is_for_plain), (&rich, !is_for_plain)] {
            let answer = client.call("a__ask", arguments.clone());
            assert_eq!(answer["result"]["isError"] != true, is_for_it, "{arguments} {answer}");
            assert!(is_for_it || text(&answer).contains("-32602"), "{answer}");
        }
    }
    home.finish();
}
