//! Attribution of what a shared server sends unasked: to one client, or to none.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::McpClient;

use crate::fixtures::{
    capabilities, capable_client, error_code, home_of_two, http_client, linger, local_client,
    received_of, wait_until_idle,
};

fn elicited(name: &'static str) -> impl Fn(&Value) -> Option<Result<Value, Value>> + Send {
    move |question| {
        let is_it = question["method"] == "elicitation/create";
        is_it.then(|| Ok(json!({ "action": "accept", "content": { "name": name } })))
    }
}

#[track_caller]
fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn request_goes_to_the_only_client_with_open_calls() {
    let home = home_of_two();
    let (socket, http) = (capable_client(&home), home.mcp_http("/mcp"));
    http.initialize_with(&capabilities());
    for (client, name) in [(&*socket, "Ada"), (&*http, "Grace")] {
        client.answer_with(elicited(name));
        let answer = client.call("a__ask_elicitation", json!({}));
        assert!(text(&answer).contains(name), "{answer}");
        client.answer_with(|question| {
            let content = json!({ "type": "text", "text": question["params"]["messages"][0]["content"]["text"] });
            Some(Ok(json!({ "role": "assistant", "content": content, "model": "m", "n": 1.0 })))
        });
        let answer = client.call("a__ask_sampling", json!({ "message": "well?" }));
        assert!(text(&answer).contains("well?"), "{answer}");
    }
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn ambiguous_request_is_refused_and_reaches_no_client() {
    let home = home_of_two();
    let (client, other) = (capable_client(&home), capable_client(&home));
    let never = other.start_call("a__never", json!({}));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").len() == 1);
    let answer = client.call("a__ask_sampling", json!({}));
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(text(&answer).contains("which client"), "{answer}");
    for client in [&client, &other] {
        assert!(!format!("{client:?}").contains("sampling/createMessage"));
    }
    other.cancel(&json!(never));
    wait_until_idle(&home);
    // The server may still work on the cancelled call, and its request may belong to that.
    client.answer_with(elicited("Ada"));
    assert_eq!(client.call("a__ask_elicitation", json!({}))["result"]["isError"], true);
    home.finish();
}

#[test]
fn client_without_the_capability_is_not_asked() {
    let home = home_of_two();
    let client = local_client(&home);
    for tool in ["a__ask_sampling", "a__ask_elicitation", "a__ask_roots"] {
        let answer = client.call(tool, json!({}));
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(text(&answer).contains("-32601"), "{answer}");
    }
    home.finish();
}

#[test]
fn refusal_of_the_client_is_passed_to_the_server() {
    let home = home_of_two();
    let client = capable_client(&home);
    client.answer_with(|_| {
        Some(Err(json!({ "code": -1, "message": "the user said no", "data": 1.0 })))
    });
    let answer = client.call("a__ask_sampling", json!({}));
    assert!(
        text(&answer).contains("the user said no") && text(&answer).contains("1.0"),
        "{answer}"
    );
    home.finish();
}

#[test]
fn client_that_leaves_during_a_request_leaves_nothing_open() {
    let home = home_of_two();
    let client = capable_client(&home);
    client.start_call("a__ask_sampling", json!({}));
    client.wait_question();
    drop(client);
    home.wait_until("the server gets the cancellation", || {
        received_of(&home, "a", "notifications/cancelled").len() == 1
    });
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn server_that_dies_during_its_requests_leaves_nothing_open() {
    let home = home_of_two();
    let client = capable_client(&home);
    for round in 0..3 {
        let asking: Vec<u64> =
            (0..60).map(|_| client.start_call("a__ask_sampling", json!({}))).collect();
        for _ in &asking {
            client.wait_question();
        }
        let crash = client.call("a__crash", json!({}));
        assert_eq!(error_code(&crash), -32010, "{round}: {crash}");
        for id in asking {
            assert_eq!(error_code(&client.wait_answer(id)), -32010);
        }
    }
    client.answer_with(elicited("Ada"));
    assert!(text(&client.call("a__ask_elicitation", json!({}))).contains("Ada"));
    home.finish();
}

#[test]
fn request_with_an_unknown_method_is_passed_to_the_client() {
    let home = home_of_two();
    let client = local_client(&home);
    let line = r#"{"jsonrpc":"2.0","id":"q-1","method":"vendor/ask","params":{"n":1.50}}"#;
    // Two calls, so that one is open when the request arrives.
    let never = client.start_call("a__never", json!({}));
    client.call_text("a__say", json!({ "line": line }));
    let question = client.wait_question();
    assert_eq!(question["method"], "vendor/ask");
    client.answer(&question, Ok(json!({ "well": 1 })));
    let answered = home.wait_until("the server has the answer", || {
        let lines = crate::fixtures::received(&home, "a");
        lines.into_iter().find(|it| it["id"] == "q-1")
    });
    assert_eq!(answered["result"], json!({ "well": 1 }));
    client.cancel(&json!(never));
    home.finish();
}

#[track_caller]
fn assert_no_notifications(client: &McpClient) {
    assert_eq!(client.notifications(), [Value::Null; 0]);
}

#[test]
fn unattributed_message_is_only_logged() {
    let home = home_of_two();
    let (one, other) = (local_client(&home), http_client(&home));
    let never = other.start_call("a__never", json!({}));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").len() == 1);
    one.call_text("a__log", json!({ "level": "error", "message": "whose is this" }));
    home.wait_until("its log has it", || {
        xy_testkit::read_log_lines(&home, "a").iter().any(|it| it.contains("whose is this"))
    });
    linger();
    assert_no_notifications(&one);
    assert_no_notifications(&other);
    other.cancel(&json!(never));
    assert_eq!(other.answer_within(never, Duration::ZERO), None);
    home.finish();
}

#[test]
fn cancelled_server_request_is_cancelled_at_the_client() {
    let home = home_of_two();
    let client = capable_client(&home);
    let asking = client.start_call("a__ask_sampling", json!({}));
    let question = client.wait_question();
    let line = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"ask-1","reason":"x"}}"#;
    client.call_text("a__say", json!({ "line": line }));
    let notification = client.wait_notification("notifications/cancelled");
    assert_eq!(notification["params"]["requestId"], question["id"]);
    client.cancel(&json!(asking));
    wait_until_idle(&home);
    home.finish();
}
