//! The shutdown of the daemon, and its effect on servers.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{WireEvent, is_alive};

use crate::support::{
    SOON, ask, home, running, signal, sleeper, status, term_ignorer, wait_for_line,
};

#[test]
fn stopped_server_stays_stopped_under_the_next_daemon() {
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
fn shutdown_does_not_change_the_desired_state() {
    let home = home();
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    let before = running(&home, "one");
    assert!(daemon.terminate().success());
    assert!(!is_alive(before));

    home.daemon();
    assert_ne!(running(&home, "one"), before);
}

/// Ends a daemon with the signal, and follows the ends of its servers.
fn assert_parallel_stop(expected: Signal) {
    let home = home();
    let names = ["one", "two", "three"];
    for name in names {
        home.server(name, &term_ignorer(&home, "400ms"));
    }
    let daemon = home.daemon();
    let pids = names.map(|name| running(&home, name));
    for name in names {
        wait_for_line(&home, name, "ready");
    }
    let mut events = home.connect();
    events.call("events", Value::Null).unwrap();

    signal(daemon.pid, expected);

    let mut states = Vec::new();
    loop {
        match events.receive(SOON) {
            WireEvent::Message(event) if event["method"] == "event" => {
                states.push(event["params"]["state"].as_str().unwrap().to_owned());
            }
            WireEvent::Message(end) => assert_eq!(end["method"], "event_end"),
            WireEvent::Closed => break,
            WireEvent::TimedOut => panic!("the daemon does not end"),
        }
    }
    // All servers were asked to stop before the first had ended.
    assert_eq!(states, [["stopping"; 3], ["stopped"; 3]].concat());
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!home.socket().exists());
    assert!(!pids.into_iter().any(is_alive));
}

#[test]
fn sigterm_stops_servers_in_parallel_then_the_daemon() {
    assert_parallel_stop(Signal::TERM);
}

#[test]
fn sigint_stops_servers_in_parallel_then_the_daemon() {
    assert_parallel_stop(Signal::INT);
}

#[test]
fn second_sigterm_ends_remaining_servers() {
    let home = home();
    home.server("one", &term_ignorer(&home, "1s"));
    let daemon = home.daemon();
    let pid = running(&home, "one");
    wait_for_line(&home, "one", "ready");
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
fn sighup_reloads() {
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
fn sighup_with_a_broken_file_changes_nothing() {
    let home = home();
    home.server("old", &sleeper(&home));
    let daemon = home.daemon();
    let old = running(&home, "old");

    home.server("new", "comand \"/bin/true\"\n");
    signal(daemon.pid, Signal::HUP);

    home.wait_until("it is logged", || daemon.stderr().contains("new.kdl:1:1"));
    assert_eq!(running(&home, "old"), old);
    assert_eq!(ask(&home, "list", Value::Null).as_array().unwrap().len(), 1);
}

#[test]
fn second_daemon_is_refused_with_the_lock_owner() {
    let home = home();
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    let pid = running(&home, "one");

    let second = home.daemon_fails();

    assert_eq!(second.status.code(), Some(1));
    let expected = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        expected.contains(&format!("another daemon is already running, pid {}", daemon.pid)),
        "{expected}"
    );
    assert!(expected.contains("xy.pid"), "{expected}");
    assert_eq!(running(&home, "one"), pid);
}
