//! Servers that die: what their callers receive, and how they restart.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::fixtures::{
    assert_echo, error_code, error_message, home, linger, local_client, notification_count, ready,
    received_of, serve, serve_recorded, serve_with, tools_of_servers, wait_until_idle, who,
};
use crate::support::{pid_in, running, running_after, signal, status};

const CHANGED: &str = "notifications/tools/list_changed";

#[test]
fn crash_makes_outcome_unknown_and_next_call_works() {
    let home = home();
    serve(&home, "good", &[]);
    serve(&home, "bad", &[]);
    home.daemon();
    ready(&home, &["good", "bad"]);
    let (client, other) = (local_client(&home), local_client(&home));
    let before = client.tool_names();
    other.tool_names();
    let crash = client.call("bad__crash", json!({ "code": 3 }));
    assert_eq!(error_code(&crash), -32010, "{crash}");
    let text = error_message(&crash);
    assert!(
        text.contains("outcome unknown") && text.contains("`bad`") && text.contains('3'),
        "{text}"
    );
    assert_eq!(client.tool_names(), before, "the tools stay listed");
    assert_echo(&client, "bad");
    assert_echo(&other, "good");
    linger();
    assert_eq!(
        (notification_count(&client, CHANGED), notification_count(&other, CHANGED)),
        (0, 0),
        "nothing has changed"
    );
    wait_until_idle(&home);
    home.finish();
}

/// A server whose transport breaks often exits with code 0.
#[test]
fn clean_exit_during_a_call_is_a_failure() {
    let home = home();
    serve(&home, "one", &[]);
    home.daemon();
    ready(&home, &["one"]);
    let client = local_client(&home);
    client.tool_names();
    let crash = client.call("one__crash", json!({ "code": 0 }));
    assert_eq!(error_code(&crash), -32010, "{crash}");
    assert_echo(&client, "one");
    let now = status(&home, "one");
    assert_eq!(now["restart_count"], 1, "{now}");
    let shown = home.xy(&["events", "--history", "10", "--no-follow"]).stdout;
    assert!(shown.contains("exited with code 0 without answering a call"), "{shown}");
    home.finish();
}

#[test]
fn last_response_before_a_crash_is_delivered() {
    let home = home();
    serve(&home, "bad", &[]);
    home.daemon();
    ready(&home, &["bad"]);
    let client = local_client(&home);
    client.tool_names();
    for round in 1..=10 {
        // Both arrive at once: the first response must survive the crash.
        let first = client.start_call("bad__echo", json!({ "message": "last words" }));
        let second = client.start_call("bad__crash", json!({}));
        let answer = client.wait_answer(first);
        assert_eq!(answer["result"]["content"][0]["text"], "last words", "{round}: {answer}");
        assert_eq!(error_code(&client.wait_answer(second)), -32010);
        running_after(&home, "bad", round);
    }
    home.finish();
}

#[test]
fn list_shows_no_dead_process_after_a_client_was_told() {
    let home = home();
    serve(&home, "bad", &[]);
    home.daemon();
    let client = local_client(&home);
    for round in 1..=10 {
        let pid = running(&home, "bad");
        assert_eq!(error_code(&client.call("bad__crash", json!({}))), -32010);
        let seen = home.call("list", json!({})).unwrap()[0].clone();
        assert_ne!(seen["pid"], pid, "{round}: {seen:#}");
        let is_another = seen["pid"].is_u64();
        assert!(seen["state"] != "running" || is_another, "{round}: {seen:#}");
        running_after(&home, "bad", round);
    }
    home.finish();
}

#[test]
fn call_during_a_restart_waits() {
    let home = home();
    serve_with(&home, "bad", &["--slow-init", "300"], "");
    home.daemon();
    let pid = running(&home, "bad");
    let client = local_client(&home);
    let upstream_id = who(&client, "bad__who")["pid"].clone();
    assert_eq!(upstream_id, pid);
    signal(pid, Signal::KILL);
    home.wait_until("its death is known", || status(&home, "bad")["state"] != "running");
    let next = who(&client, "bad__who");
    assert_ne!(next["pid"], upstream_id);
    home.finish();
}

#[test]
fn crash_fails_open_calls_of_all_clients() {
    let home = home();
    serve(&home, "bad", &[]);
    home.daemon();
    ready(&home, &["bad"]);
    let clients = [local_client(&home), local_client(&home), local_client(&home)];
    let ids: Vec<u64> = clients.iter().map(|it| it.start_call("bad__never", json!({}))).collect();
    let crash = clients[0].start_call("bad__crash_after_ms", json!({ "ms": 100 }));
    for (client, id) in clients.iter().zip(ids) {
        assert_eq!(error_code(&client.wait_answer(id)), -32010);
    }
    assert_eq!(error_code(&clients[0].wait_answer(crash)), -32010);
    home.finish();
}

#[test]
fn changed_tools_after_a_crash_are_announced_once() {
    let home = home();
    serve(&home, "bad", &[]);
    home.daemon();
    ready(&home, &["bad"]);
    let client = local_client(&home);
    client.tool_names();
    assert_eq!(client.call_text("bad__add_tool", json!({ "name": "extra" })), "changed");
    client.wait_notification(CHANGED);
    assert!(client.tool_names().contains(&"bad__extra".to_owned()));
    // The next process does not have this tool.
    client.call("bad__crash", json!({}));
    client.wait_notification(CHANGED);
    assert!(!client.tool_names().contains(&"bad__extra".to_owned()));
    linger();
    assert_eq!(notification_count(&client, CHANGED), 0);
    home.finish();
}

#[test]
fn each_process_is_greeted_once() {
    let home = home();
    serve_recorded(&home, "bad", &[]);
    home.daemon();
    let first = running(&home, "bad");
    let client = local_client(&home);
    assert_echo(&client, "bad");
    signal(first, Signal::KILL);
    let second = pid_in(&running_after(&home, "bad", 1));
    assert_ne!(first, second);
    assert_echo(&client, "bad");
    assert_eq!(received_of(&home, "bad", "initialize").len(), 2);
    assert_eq!(received_of(&home, "bad", "notifications/initialized").len(), 2);
    home.finish();
}

#[test]
fn permanently_failed_server_is_reported() {
    let home = home();
    let once = "restart { policy \"never\" }\n";
    home.write_config("servers/bad.kdl", &format!("{}{once}", home.kdl_mcp(&[])));
    home.daemon();
    ready(&home, &["bad"]);
    let client = local_client(&home);
    client.tool_names();
    let crash = client.call("bad__crash", json!({ "code": 9 }));
    assert_eq!(error_code(&crash), -32010, "{crash}");
    home.wait_for_state("bad", "failed");
    client.wait_notification(CHANGED);
    assert_eq!(tools_of_servers(&client), [""; 0]);
    let refused = client.start_call("bad__echo", json!({ "message": "x" }));
    let refused = client.answer_within(refused, Duration::from_secs(5)).unwrap();
    assert_eq!(error_code(&refused), -32005, "{refused}");
    home.finish();
}
