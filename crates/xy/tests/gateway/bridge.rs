//! Calls of modern clients that wait for answers while their legacy server waits too: what
//! becomes of them when somebody lies, leaves, dies, or comes back too late.
//!
//! That a state expires is shown where its clock can be set, in the gateway itself.

use std::fs;
use std::sync::Barrier;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Daemon, Home, McpModern};

use crate::stage::{
    code, heard_of, home, nothing_is_open, ready, serve_noting, serve_with, stranger, words,
};
use crate::support::{running, signal};

/// Many who are asked at once.
const CROWD: usize = 50;

/// Calls of one client, which it answers when it has heard the questions of all.
const FEW: usize = 6;

/// A home with a legacy server that writes down what it hears, and its daemon.
#[track_caller]
fn home_of_asker() -> (Home, Daemon) {
    let home = home();
    serve_noting(&home, "a", &["--era", "legacy"]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    (home, daemon)
}

/// A client over HTTP that can be asked.
#[track_caller]
fn modern(home: &Home) -> McpModern {
    modern_at(home, "/mcp", &home.gateway_token())
}

#[track_caller]
fn modern_at(home: &Home, path: &str, token: &str) -> McpModern {
    let client = McpModern::http(&home.gateway_address(), path, token);
    client.with_capabilities(json!({ "elicitation": {} }))
}

/// The params of a call in which the client is asked this.
fn asks(message: &str) -> Value {
    json!({ "name": "a__ask_elicitation", "arguments": { "message": message } })
}

/// The same call again, with an answer.
fn again(message: &str, (key, state): &(String, Value), name: &str) -> Value {
    let mut params = asks(message);
    params["requestState"] = state.clone();
    params["inputResponses"] = json!({ key: reply(name) });
    params
}

fn reply(name: &str) -> Value {
    json!({ "action": "accept", "content": { "name": name } })
}

/// What a client is asked: by which name it is to be answered, and the state to bring back.
#[track_caller]
fn wanted(answer: &Value, message: &str) -> (String, Value) {
    let result = &answer["result"];
    assert_eq!(result["resultType"], "input_required", "{answer}");
    let all = result["inputRequests"].as_object().unwrap();
    let (key, question) = all.iter().next().unwrap();
    assert_eq!((all.len(), &question["method"]), (1, &json!("elicitation/create")));
    assert_eq!(question["params"]["message"], message);
    (key.clone(), result["requestState"].clone())
}

/// The same of a server that another call with the same token may have come back to in just that
/// moment: then nobody is asked, since it is not clear for whom that is.
#[track_caller]
fn ask_until_clear(client: &McpModern, message: &str) -> (String, Value) {
    for _ in 0..CROWD {
        let answer = client.request("tools/call", asks(message));
        if !answer.to_string().contains("it is not clear which client this is for") {
            return wanted(&answer, message);
        }
    }
    panic!("it was never clear for whom `{message}` was");
}

#[track_caller]
fn ask(client: &McpModern, message: &str) -> (String, Value) {
    wanted(&client.request("tools/call", asks(message)), message)
}

/// What the server was answered, as it tells.
#[track_caller]
fn told(answer: &Value) -> Value {
    let text = answer["result"]["content"][0]["text"].as_str();
    let text = text.filter(|_| answer["result"]["isError"] != true);
    let text = text.unwrap_or_else(|| panic!("{answer}"));
    serde_json::from_str(text).unwrap_or_else(|cause| panic!("{cause}: {answer}"))
}

/// How many calls the server has got.
fn calls(home: &Home) -> usize {
    heard_of(home, "a", "tools/call").len()
}

/// A request of a modern client on a wire.
fn on_a_wire(params: Value) -> Value {
    let mut params = params;
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} },
    });
    params
}

#[track_caller]
fn refuses(answer: &Value, why: &str) {
    assert_eq!(code(answer), -32602, "{answer}");
    let said = words(answer);
    assert!(said.contains("requestState") && said.contains(why), "{said}");
}

#[test]
fn a_state_is_good_for_its_own_client_door_and_request_and_once() {
    let (home, _daemon) = home_of_asker();
    let client = modern(&home);
    let given = ask(&client, "who?");
    let with = |state: Value| again("who?", &(given.0.clone(), state), "Eve");
    let text = given.1.as_str().unwrap();
    let zeros = format!("xy1.{}", "0".repeat(text.len() - "xy1.".len()));
    let last = if text.ends_with('0') { "1" } else { "0" };
    let altered = format!("{}{last}", &text[..text.len() - 1]);
    for state in [json!(zeros), json!(altered), json!("theirs"), json!(""), json!(7)] {
        refuses(&client.request("tools/call", with(state)), "not given out here");
    }
    let manager = fs::read_to_string(home.root().join("state/xy/manage-token")).unwrap();
    let other_token = modern_at(&home, "/mcp", manager.trim());
    refuses(&other_token.request("tools/call", with(given.1.clone())), "another client");
    let mut alone = with(given.1.clone());
    alone["name"] = json!("ask_elicitation");
    let other_door = modern_at(&home, "/mcp/s/a", &home.gateway_token());
    refuses(&other_door.request("tools/call", alone), "another listener");
    let local = stranger(&home);
    refuses(&local.request("tools/call", on_a_wire(with(given.1.clone()))), "another client");
    let other = again("another question", &given, "Eve");
    refuses(&client.request("tools/call", other), "another request");
    assert_eq!(calls(&home), 1, "nothing of that has reached the server");

    let right = again("who?", &given, "Ada");
    assert_eq!(told(&client.request("tools/call", right.clone())), reply("Ada"));
    refuses(&client.request("tools/call", right), "one use");
    assert_eq!(calls(&home), 1);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn a_state_that_outlives_the_daemon_is_an_unknown_outcome_and_nothing_is_done_twice() {
    let (home, daemon) = home_of_asker();
    let given = ask(&modern(&home), "who?");
    let pid = running(&home, "a");
    daemon.kill9();
    home.daemon();
    assert_eq!(running(&home, "a"), pid, "it is the same, and still waits");
    let answer = modern(&home).request("tools/call", again("who?", &given, "Ada"));
    assert_eq!(code(&answer), -32010, "{answer}");
    assert!(words(&answer).contains("outcome unknown"), "{answer}");
    assert_eq!(calls(&home), 1);
    home.finish();
}

#[test]
fn a_parked_call_whose_server_is_killed_is_an_unknown_outcome() {
    let (home, _daemon) = home_of_asker();
    let client = modern(&home);
    let given = ask(&client, "who?");
    let before = running(&home, "a");
    signal(before, Signal::KILL);
    home.wait_until("it has come back", || {
        let now = crate::support::status(&home, "a");
        now["state"] == "running" && now["pid"] != before
    });
    let answer = client.request("tools/call", again("who?", &given, "Ada"));
    assert_eq!(code(&answer), -32010, "{answer}");
    assert_eq!(calls(&home), 1);
    let given = ask(&client, "and now?");
    let answer = client.request("tools/call", again("and now?", &given, "Ada"));
    assert_eq!(told(&answer), reply("Ada"));
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn whoever_leaves_has_given_up_what_it_was_asked_in() {
    let (home, _daemon) = home_of_asker();
    let local = stranger(&home);
    let answer = local.request("tools/call", on_a_wire(asks("who?")));
    let given = wanted(&answer, "who?");
    assert_eq!(heard_of(&home, "a", "notifications/cancelled").len(), 0);
    drop(local);
    home.wait_until("the server hears of it", || {
        heard_of(&home, "a", "notifications/cancelled").len() == 1
    });
    let call = &heard_of(&home, "a", "tools/call")[0];
    let cancelled = &heard_of(&home, "a", "notifications/cancelled")[0];
    assert_eq!(cancelled["params"]["requestId"], call["id"]);
    let answer = stranger(&home).request("tools/call", on_a_wire(again("who?", &given, "Eve")));
    assert_eq!(code(&answer), -32010, "{answer}");
    assert_eq!(calls(&home), 1);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn whoever_hangs_up_before_it_is_asked_has_cancelled() {
    let (home, _daemon) = home_of_asker();
    let client = modern(&home);
    let never = client.start("tools/call", json!({ "name": "a__never" }), &[]);
    home.wait_until("it is there", || calls(&home) == 1);
    drop(never);
    home.wait_until("the server hears of it", || {
        heard_of(&home, "a", "notifications/cancelled").len() == 1
    });
    let call = &heard_of(&home, "a", "tools/call")[0];
    let cancelled = &heard_of(&home, "a", "notifications/cancelled")[0];
    assert_eq!(cancelled["params"]["requestId"], call["id"]);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn who_listens_first_hears_of_a_server_that_has_to_come_up_for_it() {
    let home = home();
    serve_with(&home, "a", &["--slow-init", "300"], "isolation \"client\"\n");
    home.daemon();
    let uri = "xy://a/test://counter";
    let wanted = json!({ "resourceSubscriptions": [uri] });
    let client = modern(&home);
    let mut listening =
        client.start("subscriptions/listen", json!({ "notifications": wanted }), &[]);
    let first = listening.next_message().unwrap();
    assert_eq!(first["params"]["notifications"], wanted, "{first}");
    let bumped = client.call_tool("a__bump", json!({}));
    assert!(bumped["result"].is_object(), "{bumped}");
    let told = listening.next_message().unwrap();
    assert_eq!(told["params"]["uri"], uri, "{told}");
    home.finish();
}

#[test]
fn whoever_brings_no_answer_is_asked_again_and_of_two_who_bring_it_one_is_served() {
    let (home, _daemon) = home_of_asker();
    let client = modern(&home);
    let given = ask(&client, "who?");
    let mut silent = again("who?", &given, "Ada");
    silent["inputResponses"] = json!({});
    let next = wanted(&client.request("tools/call", silent.clone()), "who?");
    assert_ne!(next.1, given.1);
    refuses(&client.request("tools/call", silent), "one use");
    let right = || client.request("tools/call", again("who?", &next, "Ada"));
    let both = thread::scope(|both| {
        [both.spawn(right), both.spawn(right)].map(thread::ScopedJoinHandle::join)
    });
    let (served, refused): (Vec<Value>, Vec<Value>) =
        both.into_iter().map(Result::unwrap).partition(|it| it.get("result").is_some());
    assert_eq!((served.len(), refused.len()), (1, 1), "{served:?} {refused:?}");
    assert_eq!(told(&served[0]), reply("Ada"));
    refuses(&refused[0], "one use");
    assert_eq!(calls(&home), 1);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn what_the_head_says_and_the_body_does_not_is_refused_and_takes_nothing() {
    let (home, _daemon) = home_of_asker();
    let client = modern(&home);
    let given = ask(&client, "who?");
    let right = again("who?", &given, "Ada");
    for (name, value) in [
        ("Mcp-Name", "a__echo"),
        ("Mcp-Name", ""),
        ("Mcp-Method", "tools/list"),
        ("Mcp-Method", ""),
        ("MCP-Protocol-Version", "2027-01-01"),
    ] {
        let answer = client.post("tools/call", right.clone(), &[(name, value)]);
        assert_eq!((answer.status, code(&answer.json())), (400, -32020), "{name}: {answer:?}");
    }
    assert_eq!(told(&client.request("tools/call", right)), reply("Ada"));
    assert_eq!(calls(&home), 1);
    home.finish();
}

#[test]
fn a_crowd_of_clients_takes_turns_and_each_gets_its_own_question_and_answer() {
    let (home, _daemon) = home_of_asker();
    let first = modern(&home);
    let given = ask(&first, "first"); // From now on it is known that the server asks.
    assert_eq!(told(&first.request("tools/call", again("first", &given, "one"))), reply("one"));
    let all_at_once = Barrier::new(CROWD);
    thread::scope(|crowd| {
        for number in 0..CROWD {
            let (home, all_at_once) = (&home, &all_at_once);
            crowd.spawn(move || {
                let (message, name) = (format!("question {number}"), format!("name {number}"));
                let (local, web) = (stranger(home), modern(home));
                let call = |params: Value| match number % 3 {
                    0 => local.request("tools/call", on_a_wire(params)),
                    _ => web.request("tools/call", params),
                };
                all_at_once.wait();
                let given = wanted(&call(asks(&message)), &message);
                assert_eq!(told(&call(again(&message, &given, &name))), reply(&name));
            });
        }
    });
    assert_eq!(calls(&home), 1 + CROWD);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn with_isolation_those_whom_the_door_cannot_tell_apart_take_turns_too() {
    let home = home();
    serve_with(&home, "a", &["--era", "legacy"], "isolation \"client\"\n");
    let _daemon = home.daemon();
    let first = modern(&home);
    let given = ask(&first, "first"); // From now on it is known that the server asks.
    assert_eq!(told(&first.request("tools/call", again("first", &given, "one"))), reply("one"));
    let all_at_once = Barrier::new(CROWD);
    thread::scope(|crowd| {
        for number in 0..CROWD {
            let (home, all_at_once) = (&home, &all_at_once);
            crowd.spawn(move || {
                let (message, name) = (format!("question {number}"), format!("name {number}"));
                let client = modern(home);
                all_at_once.wait();
                let given = ask_until_clear(&client, &message);
                let answer = client.request("tools/call", again(&message, &given, &name));
                assert_eq!(told(&answer), reply(&name));
            });
        }
    });
    nothing_is_open(&home);
    home.finish();
}

/// Several calls of one client on one connection, all at once: each is asked what is its own, and
/// the server hears for each what was answered there, in whichever order.
#[track_caller]
fn several_calls_of_one(home: &Home) {
    let client = home.mcp_connect(&[]);
    let call = |params: Value| client.start_request("tools/call", on_a_wire(params));
    let given = wanted(&client.wait_answer(call(asks("first"))), "first");
    let answer = client.wait_answer(call(again("first", &given, "one")));
    assert_eq!(told(&answer), reply("one"));
    let message = |number: usize| format!("question {number}");
    let asked: Vec<u64> = (0..FEW).map(|number| call(asks(&message(number)))).collect();
    let given: Vec<(String, Value)> = asked
        .into_iter()
        .enumerate()
        .map(|(number, id)| wanted(&client.wait_answer(id), &message(number)))
        .collect();
    let answers = given.iter().enumerate().rev();
    let told_again: Vec<(usize, u64)> = answers
        .map(|(number, given)| {
            (number, call(again(&message(number), given, &format!("name {number}"))))
        })
        .collect();
    for (number, id) in told_again {
        assert_eq!(told(&client.wait_answer(id)), reply(&format!("name {number}")));
    }
    client.close();
}

#[test]
fn calls_of_one_client_take_turns_and_each_gets_its_own_question_and_answer() {
    let (home, _daemon) = home_of_asker();
    several_calls_of_one(&home);
    assert_eq!(calls(&home), 1 + FEW);
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn calls_of_one_client_take_turns_at_an_instance_of_its_own_too() {
    let home = home();
    serve_with(&home, "a", &["--era", "legacy"], "isolation \"client\"\n");
    let _daemon = home.daemon();
    several_calls_of_one(&home);
    nothing_is_open(&home);
    home.finish();
}
