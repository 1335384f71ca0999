//! A shared server that asks questions: its clients take turns, and nobody waits for ever.

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::stage::{
    capable, diary_file, heard_of, home, linger, local, metrics, nothing_is_open, ready, serve,
    serve_noting, web,
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

/// A home with a server that has asked somebody something.
#[track_caller]
fn home_of_asker() -> Home {
    let home = home();
    serve_noting(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let first = capable(&home);
    yes(&first, "Ada");
    first.call_text("a__ask_elicitation", json!({}));
    home
}

fn waiting(home: &Home) -> String {
    let all = metrics(home);
    let line = all.lines().find(|it| it.starts_with("xy_server_calls_waiting{server=\"a\"}"));
    line.and_then(|it| it.rsplit(' ').next()).unwrap_or_default().to_owned()
}

#[track_caller]
fn until_so_many_wait(home: &Home, count: &str) {
    home.wait_until("they wait", || waiting(home) == count);
}

/// What the server was called with, in order.
fn messages(home: &Home) -> Vec<String> {
    let calls = heard_of(home, "a", "tools/call");
    let said = |it: &Value| it["params"]["arguments"]["message"].as_str().map(str::to_owned);
    calls.iter().filter_map(said).collect()
}

#[test]
fn clients_of_a_server_that_asks_take_turns_and_every_question_finds_its_client() {
    let home = home_of_asker();
    let (one, other) = (capable(&home), home.mcp_http("/mcp"));
    other.initialize_with(&crate::stage::capabilities());
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
    for (mine, theirs) in calls {
        assert!(text(&one.wait_answer(mine)).contains("Ada"));
        assert!(text(&other.wait_answer(theirs)).contains("Grace"));
    }
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn whoever_is_there_goes_on_at_once_until_somebody_waits() {
    let home = home_of_asker();
    let (one, other) = (local(&home), web(&home));
    let say =
        |client: &McpClient, text: &str| client.start_call("a__echo", json!({ "message": text }));
    let never = one.start_call("a__never", json!({}));
    let first = say(&one, "one, first");
    one.wait_answer(first);
    let theirs = say(&other, "other");
    until_so_many_wait(&home, "1");
    let last = say(&one, "one, last");
    until_so_many_wait(&home, "2");
    one.cancel(&json!(never));
    other.wait_answer(theirs);
    one.wait_answer(last);
    assert_eq!(messages(&home), ["one, first", "other", "one, last"]);
    home.finish();
}

#[test]
fn what_waits_for_its_turn_can_be_cancelled_and_leaves_with_its_client() {
    let home = home_of_asker();
    let (busy, other, third) = (local(&home), local(&home), local(&home));
    busy.start_call("a__never", json!({}));
    home.wait_until("it is there", || heard_of(&home, "a", "tools/call").len() == 2);
    let cancelled = other.start_call("a__echo", json!({ "message": "cancelled" }));
    let gone = third.start_call("a__echo", json!({ "message": "gone" }));
    until_so_many_wait(&home, "2");
    other.cancel(&json!(cancelled));
    until_so_many_wait(&home, "1");
    // Whoever waits goes on with the others' turn over; what is gone is never sent.
    let kept = other.start_call("a__echo", json!({ "message": "kept" }));
    until_so_many_wait(&home, "2");
    drop(third);
    let _ = gone;
    until_so_many_wait(&home, "1");
    drop(busy);
    assert_eq!(text(&other.wait_answer(kept)), "kept");
    assert_eq!(messages(&home), ["kept"]);
    assert_eq!(other.unclaimed_answers(), [""; 0]);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_client_that_was_waited_for_goes_on_when_the_others_have_left() {
    let home = home_of_asker();
    let (busy, other) = (local(&home), local(&home));
    let never = busy.start_call("a__never", json!({}));
    home.wait_until("it is there", || heard_of(&home, "a", "tools/call").len() == 2);
    other.start_call("a__echo", json!({ "message": "other" }));
    until_so_many_wait(&home, "1");
    let mine = busy.start_call("a__echo", json!({ "message": "mine" }));
    until_so_many_wait(&home, "2");
    drop(other);
    assert_eq!(text(&busy.wait_answer(mine)), "mine");
    busy.cancel(&json!(never));
    home.finish();
}

#[test]
fn those_who_wait_go_on_with_the_next_life_of_the_server() {
    let home = home_of_asker();
    let (busy, other) = (local(&home), local(&home));
    let dying = busy.start_call("a__crash_after_ms", json!({ "ms": 200 }));
    home.wait_until("it is there", || heard_of(&home, "a", "tools/call").len() == 2);
    let theirs = other.start_call("a__echo", json!({ "message": "theirs" }));
    assert_eq!(crate::stage::code(&busy.wait_answer(dying)), -32010);
    assert_eq!(text(&other.wait_answer(theirs)), "theirs");
    home.finish();
}

#[test]
fn that_it_asks_is_told_and_remembered() {
    let home = home_of_asker();
    let advice = "isolation \"client\"";
    let told = |home: &Home| ask(home, "status", json!({ "name": "a" }))["warnings"].to_string();
    assert!(told(&home).contains("isolation"), "{}", told(&home));
    let client = local(&home);
    let listed = client.call("list_servers", json!({}));
    let servers = &listed["result"]["structuredContent"]["servers"];
    assert!(servers[0]["warnings"][0].as_str().unwrap().contains(advice), "{servers}");
    home.wait_until("it is written down", || {
        let file = home.root().join("state/xy/manifests/a.json");
        std::fs::read_to_string(file).is_ok_and(|text| text.contains("\"asks\":true"))
    });
    ask(&home, "shutdown", Value::Null);
    home.wait_until("the daemon has ended", || !home.socket().exists());
    home.daemon();
    home.wait_until("it is remembered", || told(&home).contains("isolation"));
    assert!(told(&home).contains("isolation"), "{}", told(&home));
    home.finish();
}

#[test]
fn a_server_that_never_asked_is_shared_at_the_same_time() {
    let home = home();
    serve(&home, "a", &["--diary", diary_file(&home, "a").to_str().unwrap()]);
    home.daemon();
    ready(&home, &["a"]);
    let (one, other) = (local(&home), local(&home));
    one.start_call("a__never", json!({}));
    // A ping is no question.
    let ping = r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#;
    one.call_text("a__say", json!({ "line": ping }));
    assert_eq!(other.call_text("a__echo", json!({ "message": "x" })), "x");
    linger();
    assert_eq!(ask(&home, "status", json!({ "name": "a" }))["warnings"], Value::Null);
    home.finish();
}

#[test]
fn a_cancelled_call_of_a_clients_own_makes_nothing_unclear() {
    let home = home();
    serve_noting(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = capable(&home);
    yes(&client, "Ada");
    let never = client.start_call("a__never", json!({}));
    client.cancel(&json!(never));
    assert!(client.call_text("a__ask_elicitation", json!({})).contains("Ada"));
    assert_eq!(client.unclaimed_answers(), [""; 0]);
    home.finish();
}

#[test]
fn what_a_person_asks_at_the_control_socket_is_no_clients() {
    let home = home();
    serve_noting(&home, "a", &["--talks"]);
    home.daemon();
    ready(&home, &["a"]);
    let client = capable(&home);
    yes(&client, "Ada");
    let never = client.start_call("a__never", json!({}));
    home.wait_until("it is there", || heard_of(&home, "a", "tools/call").len() == 1);
    let params = json!({ "name": "ask_elicitation", "arguments": {} });
    let answer =
        ask(&home, "request", json!({ "server": "a", "method": "tools/call", "params": params }));
    assert!(answer.to_string().contains("which client"), "{answer}");
    client.cancel(&json!(never));
    home.finish();
}

#[test]
fn parts_of_what_a_client_can_do_are_told_apart() {
    let home = home();
    serve(&home, "a", &["--talks"]);
    home.daemon();
    ready(&home, &["a"]);
    let plain = capable(&home); // `elicitation` and `sampling` with nothing in them.
    let rich = crate::stage::stranger(&home);
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
