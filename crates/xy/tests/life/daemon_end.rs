//! The daemon's own end, and what it does to servers.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Heard, is_alive};

use crate::support::{SOON, ask, deaf, home, running, says, signal, sleeper, status};

#[test]
fn what_an_operator_stopped_stays_stopped_under_the_next_daemon() {
    let home = home();
    home.server("down", &sleeper(&home));
    home.server("up", &sleeper(&home));
    let daemon = home.daemon();
    running(&home, "up");
    ask(&home, "stop", json!({ "name": "down" }));
    assert!(daemon.terminate().success());

    let daemon = home.daemon();
    running(&home, "up");
    let down = status(&home, "down");
    assert_eq!((&down["state"], &down["wanted"]), (&json!("stopped"), &json!("down")));

    ask(&home, "start", json!({ "name": "down" }));
    assert!(daemon.terminate().success());
    home.daemon();
    running(&home, "down");
}

#[test]
fn what_the_daemon_itself_stopped_at_its_end_is_up_again_under_the_next() {
    let home = home();
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    let before = running(&home, "one");
    assert!(daemon.terminate().success());
    assert!(!is_alive(before));

    home.daemon();
    assert_ne!(running(&home, "one"), before);
}

/// Ends a daemon by `told`, and follows the ends of its servers.
fn ends_all_at_the_same_time(told: Signal) {
    let home = home();
    let names = ["one", "two", "three"];
    for name in names {
        home.server(name, &deaf(&home, "400ms"));
    }
    let daemon = home.daemon();
    let pids = names.map(|name| running(&home, name));
    for name in names {
        says(&home, name, "ready");
    }
    let mut events = home.connect();
    events.call("events", Value::Null).unwrap();

    signal(daemon.pid, told);

    let mut states = Vec::new();
    loop {
        match events.hear(SOON) {
            Heard::Message(event) if event["method"] == "event" => {
                states.push(event["params"]["state"].as_str().unwrap().to_owned());
            }
            Heard::Message(end) => assert_eq!(end["method"], "event_end"),
            Heard::Closed => break,
            Heard::Silence => panic!("the daemon does not end"),
        }
    }
    // None of them had ended before all had been asked to.
    assert_eq!(states, [["stopping"; 3], ["stopped"; 3]].concat());
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!home.socket().exists());
    assert!(!pids.into_iter().any(is_alive));
}

#[test]
fn term_ends_all_servers_at_the_same_time_and_then_the_daemon() {
    ends_all_at_the_same_time(Signal::TERM);
}

#[test]
fn int_ends_all_servers_at_the_same_time_and_then_the_daemon() {
    ends_all_at_the_same_time(Signal::INT);
}

#[test]
fn a_second_term_does_not_wait_for_servers_and_leaves_none() {
    let home = home();
    home.server("one", &deaf(&home, "1s"));
    let daemon = home.daemon();
    let pid = running(&home, "one");
    says(&home, "one", "ready");
    let mut events = home.connect();
    events.call("events", Value::Null).unwrap();

    daemon.send_term();
    assert_eq!(events.next(SOON)["params"]["state"], "stopping");
    daemon.send_term();

    assert_eq!(daemon.wait().code(), Some(1));
    assert!(!home.socket().exists());
    home.wait_until("its shim has ended the server", || !is_alive(pid));
}

#[test]
fn a_hang_up_reloads() {
    let home = home();
    home.server("old", &sleeper(&home));
    let daemon = home.daemon();
    let old = running(&home, "old");

    home.server("new", &sleeper(&home));
    signal(daemon.pid, Signal::HUP);

    running(&home, "new");
    assert_eq!(running(&home, "old"), old);
    assert!(daemon.is_running());
}

#[test]
fn a_hang_up_with_a_broken_file_changes_nothing_and_is_told_in_the_log() {
    let home = home();
    home.server("old", &sleeper(&home));
    let daemon = home.daemon();
    let old = running(&home, "old");

    home.server("new", "comand \"/bin/true\"\n");
    signal(daemon.pid, Signal::HUP);

    home.wait_until("it is told", || daemon.stderr().contains("new.kdl:1:1"));
    assert_eq!(running(&home, "old"), old);
    assert_eq!(ask(&home, "list", Value::Null).as_array().unwrap().len(), 1);
}

#[test]
fn a_second_daemon_is_refused_and_told_who_has_the_lock() {
    let home = home();
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    let pid = running(&home, "one");

    let second = home.daemon_fails();

    assert_eq!(second.status.code(), Some(1));
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(told.contains(&format!("another daemon runs already, pid {}", daemon.pid)), "{told}");
    assert!(told.contains("xy.pid"), "{told}");
    assert_eq!(running(&home, "one"), pid);
}
