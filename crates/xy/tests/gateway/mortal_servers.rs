//! Servers that die: what their callers hear, and how they come back.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::stage::{
    code, echoes, heard_of, home, linger, local, nothing_is_open, ready, serve, serve_noting,
    serve_with, told, tools_of_servers, who, words,
};
use crate::support::{pid_in, running, running_after, signal, status};

const CHANGED: &str = "notifications/tools/list_changed";

#[test]
fn a_call_in_the_middle_of_a_death_is_of_unknown_outcome_and_the_next_one_works() {
    let home = home();
    serve(&home, "good", &[]);
    serve(&home, "bad", &[]);
    home.daemon();
    ready(&home, &["good", "bad"]);
    let (client, other) = (local(&home), local(&home));
    let before = client.tool_names();
    other.tool_names();
    let crash = client.call("bad__crash", json!({ "code": 3 }));
    assert_eq!(code(&crash), -32010, "{crash}");
    let said = words(&crash);
    assert!(
        said.contains("outcome unknown") && said.contains("`bad`") && said.contains('3'),
        "{said}"
    );
    assert_eq!(client.tool_names(), before, "they stay listed");
    echoes(&client, "bad");
    echoes(&other, "good");
    linger();
    assert_eq!((told(&client, CHANGED), told(&other, CHANGED)), (0, 0), "nothing has changed");
    nothing_is_open(&home);
    home.finish();
}

#[test]
fn what_a_server_says_before_it_ends_is_heard() {
    let home = home();
    serve(&home, "bad", &[]);
    home.daemon();
    ready(&home, &["bad"]);
    let client = local(&home);
    client.tool_names();
    for round in 1..=10 {
        // Both come at once: the answer to the first must not be lost over the second.
        let first = client.start_call("bad__echo", json!({ "message": "last words" }));
        let second = client.start_call("bad__crash", json!({}));
        let answer = client.wait_answer(first);
        assert_eq!(answer["result"]["content"][0]["text"], "last words", "{round}: {answer}");
        assert_eq!(code(&client.wait_answer(second)), -32010);
        running_after(&home, "bad", round);
    }
    home.finish();
}

#[test]
fn list_shows_no_dead_process_once_a_client_was_told() {
    let home = home();
    serve(&home, "bad", &[]);
    home.daemon();
    let client = local(&home);
    for round in 1..=10 {
        let pid = running(&home, "bad");
        assert_eq!(code(&client.call("bad__crash", json!({}))), -32010);
        let seen = home.call("list", json!({})).unwrap()[0].clone();
        assert_ne!(seen["pid"], pid, "{round}: {seen:#}");
        let is_another = seen["pid"].is_u64();
        assert!(seen["state"] != "running" || is_another, "{round}: {seen:#}");
        running_after(&home, "bad", round);
    }
    home.finish();
}

#[test]
fn a_call_that_comes_while_its_server_restarts_waits_for_it() {
    let home = home();
    serve_with(&home, "bad", &["--slow-init", "300"], "");
    home.daemon();
    let pid = running(&home, "bad");
    let client = local(&home);
    let ours = who(&client, "bad__who")["pid"].clone();
    assert_eq!(ours, pid);
    signal(pid, Signal::KILL);
    home.wait_until("its death is known", || status(&home, "bad")["state"] != "running");
    let next = who(&client, "bad__who");
    assert_ne!(next["pid"], ours);
    home.finish();
}

#[test]
fn calls_of_others_in_flight_hear_of_the_death_too() {
    let home = home();
    serve(&home, "bad", &[]);
    home.daemon();
    ready(&home, &["bad"]);
    let clients = [local(&home), local(&home), local(&home)];
    let ids: Vec<u64> = clients.iter().map(|it| it.start_call("bad__never", json!({}))).collect();
    let crash = clients[0].start_call("bad__crash_after_ms", json!({ "ms": 100 }));
    for (client, id) in clients.iter().zip(ids) {
        assert_eq!(code(&client.wait_answer(id)), -32010);
    }
    assert_eq!(code(&clients[0].wait_answer(crash)), -32010);
    home.finish();
}

#[test]
fn a_server_that_comes_back_with_other_tools_is_told_of_once() {
    let home = home();
    serve(&home, "bad", &[]);
    home.daemon();
    ready(&home, &["bad"]);
    let client = local(&home);
    client.tool_names();
    assert_eq!(client.call_text("bad__add_tool", json!({ "name": "extra" })), "changed");
    client.wait_notification(CHANGED);
    assert!(client.tool_names().contains(&"bad__extra".to_owned()));
    // The next life does not have it.
    client.call("bad__crash", json!({}));
    client.wait_notification(CHANGED);
    assert!(!client.tool_names().contains(&"bad__extra".to_owned()));
    linger();
    assert_eq!(told(&client, CHANGED), 0);
    home.finish();
}

#[test]
fn ids_and_greetings_are_one_per_life() {
    let home = home();
    serve_noting(&home, "bad", &[]);
    home.daemon();
    let first = running(&home, "bad");
    let client = local(&home);
    echoes(&client, "bad");
    signal(first, Signal::KILL);
    let second = pid_in(&running_after(&home, "bad", 1));
    assert_ne!(first, second);
    echoes(&client, "bad");
    assert_eq!(heard_of(&home, "bad", "initialize").len(), 2);
    assert_eq!(heard_of(&home, "bad", "notifications/initialized").len(), 2);
    home.finish();
}

#[test]
fn a_server_that_is_gone_for_good_is_said_to_be() {
    let home = home();
    let once = "restart { policy \"never\" }\n";
    home.write_config("servers/bad.kdl", &format!("{}{once}", home.kdl_mcp(&[])));
    home.daemon();
    ready(&home, &["bad"]);
    let client = local(&home);
    client.tool_names();
    let crash = client.call("bad__crash", json!({ "code": 9 }));
    assert_eq!(code(&crash), -32010, "{crash}");
    home.wait_for_state("bad", "failed");
    client.wait_notification(CHANGED);
    assert_eq!(tools_of_servers(&client), [""; 0]);
    let refused = client.start_call("bad__echo", json!({ "message": "x" }));
    let refused = client.answer_within(refused, Duration::from_secs(5)).unwrap();
    assert_eq!(code(&refused), -32005, "{refused}");
    home.finish();
}
