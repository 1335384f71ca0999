//! Calls of modern clients that wait for input while their legacy server waits too: restarted
//! daemons, lost connections, contradicting headers, and many clients at once.
//!
//! Each rule for states and turns is tested in the gateway crate, where the clock can be set.

use std::sync::Barrier;
use std::thread;

use serde_json::{Value, json};
use xy_testkit::{Daemon, Home, McpModern};

use crate::fixtures::{
    error_code, error_message, home, ready, received_of, serve_recorded, uninitialized_client,
    wait_until_idle,
};
use crate::support::running;

/// Number of concurrent clients.
const CONCURRENT_CLIENTS: usize = 50;

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
    let client = McpModern::http(&home.gateway_address(), "/mcp", &home.gateway_token());
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
