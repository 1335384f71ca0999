//! Calls of modern clients that wait for input while their legacy server waits too: forged states,
//! leaving clients, dying servers, and late answers.
//!
//! Expiry of a state is tested in the gateway crate, where the clock can be set.

use std::fs;
use std::sync::Barrier;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Daemon, Home, McpModern};

use crate::fixtures::{
    error_code, error_message, home, ready, received_of, serve_recorded, serve_with,
    uninitialized_client, wait_until_idle,
};
use crate::support::{running, signal};

/// Number of concurrent clients.
const CONCURRENT_CLIENTS: usize = 50;

/// Number of concurrent calls of one client.
const CONCURRENT_CALLS: usize = 6;

/// Returns a home with a legacy server that records its messages, and its daemon.
#[track_caller]
fn home_with_requesting_server() -> (Home, Daemon) {
    let home = home();
    serve_recorded(&home, "a", &["--era", "legacy"]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    (home, daemon)
}

/// Returns an HTTP client with the elicitation capability.
#[track_caller]
fn modern(home: &Home) -> McpModern {
    modern_at(home, "/mcp", &home.gateway_token())
}

#[track_caller]
fn modern_at(home: &Home, path: &str, token: &str) -> McpModern {
    let client = McpModern::http(&home.gateway_address(), path, token);
    client.with_capabilities(json!({ "elicitation": {} }))
}

/// Returns the params of a call that asks the client this.
fn call_params(message: &str) -> Value {
    json!({ "name": "a__ask_elicitation", "arguments": { "message": message } })
}

/// Returns the params of the retried call, with an answer.
fn retry_params(message: &str, (key, state): &(String, Value), name: &str) -> Value {
    let mut params = call_params(message);
    params["requestState"] = state.clone();
    params["inputResponses"] = json!({ key: reply(name) });
    params
}

fn reply(name: &str) -> Value {
    json!({ "action": "accept", "content": { "name": name } })
}

/// Returns the name of the requested input, and the request state.
#[track_caller]
fn input_request(answer: &Value, message: &str) -> (String, Value) {
    let result = &answer["result"];
    assert_eq!(result["resultType"], "input_required", "{answer}");
    let all = result["inputRequests"].as_object().unwrap();
    let (key, question) = all.iter().next().unwrap();
    assert_eq!((all.len(), &question["method"]), (1, &json!("elicitation/create")));
    assert_eq!(question["params"]["message"], message);
    (key.clone(), result["requestState"].clone())
}

/// Calls until the input request is attributed to this call. A concurrent call of the same token
/// may make it ambiguous.
#[track_caller]
fn ask_until_clear(client: &McpModern, message: &str) -> (String, Value) {
    for _ in 0..CONCURRENT_CLIENTS {
        let answer = client.request("tools/call", call_params(message));
        if !answer.to_string().contains("it is not clear which client this is for") {
            return input_request(&answer, message);
        }
    }
    panic!("it was never clear for whom `{message}` was");
}

#[track_caller]
fn ask(client: &McpModern, message: &str) -> (String, Value) {
    input_request(&client.request("tools/call", call_params(message)), message)
}

/// Returns the answer that the server has received, as it reports.
#[track_caller]
fn answer_at_server(answer: &Value) -> Value {
    let text = answer["result"]["content"][0]["text"].as_str();
    let text = text.filter(|_| answer["result"]["isError"] != true);
    let text = text.unwrap_or_else(|| panic!("{answer}"));
    serde_json::from_str(text).unwrap_or_else(|cause| panic!("{cause}: {answer}"))
}

/// Returns how many calls the server has received.
fn calls(home: &Home) -> usize {
    received_of(home, "a", "tools/call").len()
}

/// Adds the modern `_meta` to params, for clients over stdio or sockets.
fn with_modern_meta(params: Value) -> Value {
    let mut params = params;
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} },
    });
    params
}

#[track_caller]
fn assert_state_refused(answer: &Value, why: &str) {
    assert_eq!(error_code(answer), -32602, "{answer}");
    let text = error_message(answer);
    assert!(text.contains("requestState") && text.contains(why), "{text}");
}

#[test]
fn request_state_is_valid_once_for_its_client_endpoint_and_request() {
    let (home, _daemon) = home_with_requesting_server();
    let client = modern(&home);
    let given = ask(&client, "who?");
    let with = |state: Value| retry_params("who?", &(given.0.clone(), state), "Eve");
    let text = given.1.as_str().unwrap();
    let zeros = format!("xy1.{}", "0".repeat(text.len() - "xy1.".len()));
    let last = if text.ends_with('0') { "1" } else { "0" };
    let altered = format!("{}{last}", &text[..text.len() - 1]);
    for state in [json!(zeros), json!(altered), json!("theirs"), json!(""), json!(7)] {
        assert_state_refused(&client.request("tools/call", with(state)), "not issued here");
    }
    let manager = fs::read_to_string(home.root().join("state/xy/manage-token")).unwrap();
    let other_token = modern_at(&home, "/mcp", manager.trim());
    assert_state_refused(
        &other_token.request("tools/call", with(given.1.clone())),
        "another client",
    );
    let mut alone = with(given.1.clone());
    alone["name"] = json!("ask_elicitation");
    let other_door = modern_at(&home, "/mcp/s/a", &home.gateway_token());
    assert_state_refused(&other_door.request("tools/call", alone), "another client or endpoint");
    let local = uninitialized_client(&home);
    assert_state_refused(
        &local.request("tools/call", with_modern_meta(with(given.1.clone()))),
        "another client",
    );
    let other = retry_params("another question", &given, "Eve");
    assert_state_refused(&client.request("tools/call", other), "another request");
    assert_eq!(calls(&home), 1, "nothing of that has reached the server");

    let right = retry_params("who?", &given, "Ada");
    assert_eq!(answer_at_server(&client.request("tools/call", right.clone())), reply("Ada"));
    assert_state_refused(&client.request("tools/call", right), "valid only once");
    assert_eq!(calls(&home), 1);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn request_state_of_an_earlier_daemon_has_an_unknown_outcome() {
    let (home, daemon) = home_with_requesting_server();
    let given = ask(&modern(&home), "who?");
    let pid = running(&home, "a");
    daemon.kill9();
    home.daemon();
    assert_eq!(running(&home, "a"), pid, "the same process, which still waits");
    let answer = modern(&home).request("tools/call", retry_params("who?", &given, "Ada"));
    assert_eq!(error_code(&answer), -32010, "{answer}");
    assert!(error_message(&answer).contains("outcome unknown"), "{answer}");
    assert_eq!(calls(&home), 1);
    home.finish();
}

#[test]
fn waiting_call_of_a_killed_server_has_an_unknown_outcome() {
    let (home, _daemon) = home_with_requesting_server();
    let client = modern(&home);
    let given = ask(&client, "who?");
    let before = running(&home, "a");
    signal(before, Signal::KILL);
    home.wait_until("the server has restarted", || {
        let now = crate::support::status(&home, "a");
        now["state"] == "running" && now["pid"] != before
    });
    let answer = client.request("tools/call", retry_params("who?", &given, "Ada"));
    assert_eq!(error_code(&answer), -32010, "{answer}");
    assert_eq!(calls(&home), 1);
    let given = ask(&client, "and now?");
    let answer = client.request("tools/call", retry_params("and now?", &given, "Ada"));
    assert_eq!(answer_at_server(&answer), reply("Ada"));
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn leaving_client_cancels_its_waiting_call() {
    let (home, _daemon) = home_with_requesting_server();
    let local = uninitialized_client(&home);
    let answer = local.request("tools/call", with_modern_meta(call_params("who?")));
    let given = input_request(&answer, "who?");
    assert_eq!(received_of(&home, "a", "notifications/cancelled").len(), 0);
    drop(local);
    home.wait_until("the server gets the cancellation", || {
        received_of(&home, "a", "notifications/cancelled").len() == 1
    });
    let call = &received_of(&home, "a", "tools/call")[0];
    let cancelled = &received_of(&home, "a", "notifications/cancelled")[0];
    assert_eq!(cancelled["params"]["requestId"], call["id"]);
    let answer = uninitialized_client(&home)
        .request("tools/call", with_modern_meta(retry_params("who?", &given, "Eve")));
    assert_eq!(error_code(&answer), -32010, "{answer}");
    assert_eq!(calls(&home), 1);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn disconnect_before_the_input_request_cancels_the_call() {
    let (home, _daemon) = home_with_requesting_server();
    let client = modern(&home);
    let never = client.start("tools/call", json!({ "name": "a__never" }), &[]);
    home.wait_until("the server has the call", || calls(&home) == 1);
    drop(never);
    home.wait_until("the server gets the cancellation", || {
        received_of(&home, "a", "notifications/cancelled").len() == 1
    });
    let call = &received_of(&home, "a", "tools/call")[0];
    let cancelled = &received_of(&home, "a", "notifications/cancelled")[0];
    assert_eq!(cancelled["params"]["requestId"], call["id"]);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn subscription_waits_for_an_instance_to_start() {
    let home = home();
    serve_with(&home, "a", &["--slow-init", "300"], "isolation \"client\"\n");
    home.daemon();
    let uri = "xy://a/test://counter";
    let input_request = json!({ "resourceSubscriptions": [uri] });
    let client = modern(&home);
    let mut listening =
        client.start("subscriptions/listen", json!({ "notifications": input_request }), &[]);
    let first = listening.next_message().unwrap();
    assert_eq!(first["params"]["notifications"], input_request, "{first}");
    let bumped = client.call_tool("a__bump", json!({}));
    assert!(bumped["result"].is_object(), "{bumped}");
    let answer_at_server = listening.next_message().unwrap();
    assert_eq!(answer_at_server["params"]["uri"], uri, "{answer_at_server}");
    home.finish();
}

#[test]
fn retry_without_input_is_asked_again_with_a_new_state() {
    let (home, _daemon) = home_with_requesting_server();
    let client = modern(&home);
    let given = ask(&client, "who?");
    let mut silent = retry_params("who?", &given, "Ada");
    silent["inputResponses"] = json!({});
    let next = input_request(&client.request("tools/call", silent.clone()), "who?");
    assert_ne!(next.1, given.1);
    assert_state_refused(&client.request("tools/call", silent), "valid only once");
    let right = || client.request("tools/call", retry_params("who?", &next, "Ada"));
    let both = thread::scope(|both| {
        [both.spawn(right), both.spawn(right)].map(thread::ScopedJoinHandle::join)
    });
    let (served, refused): (Vec<Value>, Vec<Value>) =
        both.into_iter().map(Result::unwrap).partition(|it| it.get("result").is_some());
    assert_eq!((served.len(), refused.len()), (1, 1), "{served:?} {refused:?}");
    assert_eq!(answer_at_server(&served[0]), reply("Ada"));
    assert_state_refused(&refused[0], "valid only once");
    assert_eq!(calls(&home), 1);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn contradicting_headers_are_refused_without_using_the_state() {
    let (home, _daemon) = home_with_requesting_server();
    let client = modern(&home);
    let given = ask(&client, "who?");
    let right = retry_params("who?", &given, "Ada");
    for (name, value) in [
        ("Mcp-Name", "a__echo"),
        ("Mcp-Name", ""),
        ("Mcp-Method", "tools/list"),
        ("Mcp-Method", ""),
        ("MCP-Protocol-Version", "2027-01-01"),
    ] {
        let answer = client.post("tools/call", right.clone(), &[(name, value)]);
        assert_eq!(
            (answer.status, error_code(&answer.json())),
            (400, -32020),
            "{name}: {answer:?}"
        );
    }
    assert_eq!(answer_at_server(&client.request("tools/call", right)), reply("Ada"));
    assert_eq!(calls(&home), 1);
    home.finish();
}

#[test]
fn concurrent_clients_get_their_own_input_requests() {
    let (home, _daemon) = home_with_requesting_server();
    let first = modern(&home);
    let given = ask(&first, "first"); // From now on the server is known to send requests.
    assert_eq!(
        answer_at_server(&first.request("tools/call", retry_params("first", &given, "one"))),
        reply("one")
    );
    let all_at_once = Barrier::new(CONCURRENT_CLIENTS);
    thread::scope(|scope| {
        for number in 0..CONCURRENT_CLIENTS {
            let (home, all_at_once) = (&home, &all_at_once);
            scope.spawn(move || {
                let (message, name) = (format!("question {number}"), format!("name {number}"));
                let (local, web) = (uninitialized_client(home), modern(home));
                let call = |params: Value| match number % 3 {
                    0 => local.request("tools/call", with_modern_meta(params)),
                    _ => web.request("tools/call", params),
                };
                all_at_once.wait();
                let given = input_request(&call(call_params(&message)), &message);
                assert_eq!(
                    answer_at_server(&call(retry_params(&message, &given, &name))),
                    reply(&name)
                );
            });
        }
    });
    assert_eq!(calls(&home), 1 + CONCURRENT_CLIENTS);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn isolated_clients_of_one_token_take_turns() {
    let home = home();
    serve_with(&home, "a", &["--era", "legacy"], "isolation \"client\"\n");
    let _daemon = home.daemon();
    let first = modern(&home);
    let given = ask(&first, "first"); // From now on the server is known to send requests.
    assert_eq!(
        answer_at_server(&first.request("tools/call", retry_params("first", &given, "one"))),
        reply("one")
    );
    let all_at_once = Barrier::new(CONCURRENT_CLIENTS);
    thread::scope(|scope| {
        for number in 0..CONCURRENT_CLIENTS {
            let (home, all_at_once) = (&home, &all_at_once);
            scope.spawn(move || {
                let (message, name) = (format!("question {number}"), format!("name {number}"));
                let client = modern(home);
                all_at_once.wait();
                let given = ask_until_clear(&client, &message);
                let answer = client.request("tools/call", retry_params(&message, &given, &name));
                assert_eq!(answer_at_server(&answer), reply(&name));
            });
        }
    });
    wait_until_idle(&home);
    home.finish();
}

/// Runs several calls of one client on one connection. Each call requests its own input, and the
/// server receives each answer in the right call, in any order.
#[track_caller]
fn several_calls_of_one(home: &Home) {
    let client = home.mcp_connect(&[]);
    let call = |params: Value| client.start_request("tools/call", with_modern_meta(params));
    let given = input_request(&client.wait_answer(call(call_params("first"))), "first");
    let answer = client.wait_answer(call(retry_params("first", &given, "one")));
    assert_eq!(answer_at_server(&answer), reply("one"));
    let message = |number: usize| format!("question {number}");
    let asked: Vec<u64> =
        (0..CONCURRENT_CALLS).map(|number| call(call_params(&message(number)))).collect();
    let given: Vec<(String, Value)> = asked
        .into_iter()
        .enumerate()
        .map(|(number, id)| input_request(&client.wait_answer(id), &message(number)))
        .collect();
    let answers = given.iter().enumerate().rev();
    let told_again: Vec<(usize, u64)> = answers
        .map(|(number, given)| {
            (number, call(retry_params(&message(number), given, &format!("name {number}"))))
        })
        .collect();
    for (number, id) in told_again {
        assert_eq!(answer_at_server(&client.wait_answer(id)), reply(&format!("name {number}")));
    }
    client.close();
}

#[test]
fn concurrent_calls_of_one_client_get_their_own_input_requests() {
    let (home, _daemon) = home_with_requesting_server();
    several_calls_of_one(&home);
    assert_eq!(calls(&home), 1 + CONCURRENT_CALLS);
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn concurrent_calls_take_turns_at_an_own_instance() {
    let home = home();
    serve_with(&home, "a", &["--era", "legacy"], "isolation \"client\"\n");
    let _daemon = home.daemon();
    several_calls_of_one(&home);
    wait_until_idle(&home);
    home.finish();
}
