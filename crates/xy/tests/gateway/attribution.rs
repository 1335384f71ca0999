//! What a shared server says of its own accord: whose it is, or nobody's.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::McpClient;

use crate::stage::{
    capabilities, capable, code, heard_of, home_of_two, linger, local, nothing_is_open, web,
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
fn a_question_goes_to_the_only_client_that_has_calls_in_flight() {
    let home = home_of_two();
    let (socket, http) = (capable(&home), home.mcp_http("/mcp"));
    http.initialize_with(&capabilities());
    for (client, name) in [(&*socket, "Ada"), (&*http, "Grace")] {
        client.answer_with(elicited(name));
        let answer = client.call("a__ask_elicitation", json!({}));
        assert!(text(&answer).contains(name), "{answer}");
        client.answer_with(|question| {
            let said = json!({ "type": "text", "text": question["params"]["messages"][0]["content"]["text"] });
            Some(Ok(json!({ "role": "assistant", "content": said, "model": "m", "n": 1.0 })))
        });
        let answer = client.call("a__ask_sampling", json!({ "message": "well?" }));
        assert!(text(&answer).contains("well?"), "{answer}");
    }
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_question_that_could_be_anybodys_is_refused_and_nobody_sees_it() {
    let home = home_of_two();
    let (asked, other) = (capable(&home), capable(&home));
    let never = other.start_call("a__never", json!({}));
    home.wait_until("it is there", || heard_of(&home, "a", "tools/call").len() == 1);
    let answer = asked.call("a__ask_sampling", json!({}));
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(text(&answer).contains("which client"), "{answer}");
    for client in [&asked, &other] {
        assert!(!format!("{client:?}").contains("sampling/createMessage"));
    }
    other.cancel(&json!(never));
    nothing_is_open(&home);
    // It may still work on what was cancelled, and ask about that.
    asked.answer_with(elicited("Ada"));
    assert_eq!(asked.call("a__ask_elicitation", json!({}))["result"]["isError"], true);
    home.finish();
}

#[test]
fn a_client_that_cannot_is_not_asked() {
    let home = home_of_two();
    let client = local(&home);
    for tool in ["a__ask_sampling", "a__ask_elicitation", "a__ask_roots"] {
        let answer = client.call(tool, json!({}));
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(text(&answer).contains("-32601"), "{answer}");
    }
    home.finish();
}

#[test]
fn a_refusal_of_the_client_is_the_servers_to_handle() {
    let home = home_of_two();
    let client = capable(&home);
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
fn a_client_that_goes_in_the_middle_of_a_question_leaves_nothing() {
    let home = home_of_two();
    let client = capable(&home);
    client.start_call("a__ask_sampling", json!({}));
    client.wait_question();
    drop(client);
    home.wait_until("the server hears of it", || {
        heard_of(&home, "a", "notifications/cancelled").len() == 1
    });
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_server_that_dies_in_the_middle_of_its_question_leaves_room_for_others() {
    let home = home_of_two();
    let client = capable(&home);
    for round in 0..3 {
        let asking: Vec<u64> =
            (0..60).map(|_| client.start_call("a__ask_sampling", json!({}))).collect();
        for _ in &asking {
            client.wait_question();
        }
        let crash = client.call("a__crash", json!({}));
        assert_eq!(code(&crash), -32010, "{round}: {crash}");
        for id in asking {
            assert_eq!(code(&client.wait_answer(id)), -32010);
        }
    }
    client.answer_with(elicited("Ada"));
    assert!(text(&client.call("a__ask_elicitation", json!({}))).contains("Ada"));
    home.finish();
}

#[test]
fn a_request_that_nobody_here_knows_is_the_clients_to_answer() {
    let home = home_of_two();
    let client = local(&home);
    let line = r#"{"jsonrpc":"2.0","id":"q-1","method":"vendor/ask","params":{"n":1.50}}"#;
    // Two calls, so that one is in flight when it is asked.
    let never = client.start_call("a__never", json!({}));
    client.call_text("a__say", json!({ "line": line }));
    let question = client.wait_question();
    assert_eq!(question["method"], "vendor/ask");
    client.answer(&question, Ok(json!({ "well": 1 })));
    let answered = home.wait_until("the answer is there", || {
        let lines = crate::stage::heard(&home, "a");
        lines.into_iter().find(|it| it["id"] == "q-1")
    });
    assert_eq!(answered["result"], json!({ "well": 1 }));
    client.cancel(&json!(never));
    home.finish();
}

#[track_caller]
fn is_silent(client: &McpClient) {
    assert_eq!(client.notifications(), [Value::Null; 0]);
}

#[test]
fn what_cannot_be_attributed_is_for_the_log_alone() {
    let home = home_of_two();
    let (one, other) = (local(&home), web(&home));
    let never = other.start_call("a__never", json!({}));
    home.wait_until("it is there", || heard_of(&home, "a", "tools/call").len() == 1);
    one.call_text("a__log", json!({ "level": "error", "message": "whose is this" }));
    home.wait_until("its log has it", || {
        xy_testkit::read_log_lines(&home, "a").iter().any(|it| it.contains("whose is this"))
    });
    linger();
    is_silent(&one);
    is_silent(&other);
    other.cancel(&json!(never));
    assert_eq!(other.answer_within(never, Duration::ZERO), None);
    home.finish();
}

#[test]
fn a_question_that_is_taken_back_is_taken_back_at_the_client() {
    let home = home_of_two();
    let client = capable(&home);
    let asking = client.start_call("a__ask_sampling", json!({}));
    let question = client.wait_question();
    let line = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"ask-1","reason":"x"}}"#;
    client.call_text("a__say", json!({ "line": line }));
    let told = client.wait_notification("notifications/cancelled");
    assert_eq!(told["params"]["requestId"], question["id"]);
    client.cancel(&json!(asking));
    nothing_is_open(&home);
    home.finish();
}
