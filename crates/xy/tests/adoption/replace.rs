//! `xy daemon --replace`: one daemon hands over to another.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_shim::wire::PROTOCOL;
use xy_testkit::{is_alive, marked_processes};

use crate::support::{SOON, ask, home, pid_in, refused, running, signal, status, wait_for_line};
use crate::{parent_of, sleeper, term_ignorer};

#[test]
fn replacement_does_not_disturb_servers() {
    let home = home();
    home.server("stdio", &sleeper(&home));
    home.server("http", &format!("{}port 8421\n", sleeper(&home)));
    let first = home.daemon();
    let before = ["stdio", "http"].map(|name| running(&home, name));
    let second = home.daemon_with(&["--replace"]);
    assert!(first.wait().success(), "{}", first.stderr());
    assert_ne!(first.pid, second.pid);
    assert_eq!(["stdio", "http"].map(|name| running(&home, name)), before);
    let changes = status(&home, "stdio")["transitions"].clone();
    let states: Vec<_> = changes.as_array().unwrap().iter().map(|it| it["to"].clone()).collect();
    assert_eq!(states, ["starting", "running", "running"], "it never stopped: {changes:#}");
    let events = home.xy(&["events", "--history", "100", "--no-follow", "stdio"]).stdout;
    assert!(!events.contains("→ stopped") && !events.contains("stopped → running"), "{events}");
    assert!(second.terminate().success());
    assert!(!before.into_iter().any(is_alive));
}

#[test]
fn replace_without_daemon_starts_one() {
    let home = home();
    home.server("one", &sleeper(&home));
    home.daemon_with(&["--replace"]);
    running(&home, "one");
}

#[test]
fn replace_works_detached() {
    let home = home();
    home.server("one", &sleeper(&home));
    let first = home.daemon();
    let before = running(&home, "one");
    let ran = home.xy(&["daemon", "--detach", "--replace"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(first.wait().success());
    assert_eq!(running(&home, "one"), before);
}

#[test]
fn invalid_file_prevents_replacement() {
    let home = home();
    home.server("one", &sleeper(&home));
    let first = home.daemon();
    let before = running(&home, "one");
    home.server("one", "nonsense");
    let ran = home.xy(&["daemon", "--replace"]);
    assert_eq!(ran.code, 3, "{ran:#?}");
    assert!(ran.stderr.contains("the running daemon was not replaced"), "{ran:#?}");
    assert!(first.is_running());
    assert_eq!(running(&home, "one"), before);
}

#[test]
fn other_shim_version_prevents_replacement() {
    let home = home();
    home.server("one", &sleeper(&home));
    let first = home.daemon();
    let before = running(&home, "one");
    let error = refused(&home, "handover", json!({ "shim_protocol": PROTOCOL + 1, "go": true }));
    assert_eq!(error["code"], -32009);
    let message = error["message"].as_str().unwrap();
    assert_eq!(message, "the running daemon cannot be replaced by this one");
    assert!(first.is_running());
    assert_eq!(running(&home, "one"), before);
}

#[test]
fn handover_query_changes_nothing() {
    let home = home();
    home.server("one", &sleeper(&home));
    let first = home.daemon();
    let before = running(&home, "one");
    let could = ask(&home, "handover", json!({ "shim_protocol": PROTOCOL }));
    assert_eq!(could, json!({ "pid": first.pid, "gone": false, "listener": true }));
    assert_eq!(running(&home, "one"), before);
    assert!(first.is_running());
}

#[test]
fn daemon_resumes_after_failed_handover() {
    let home = home();
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    let before = running(&home, "one");
    // The new daemon is killed before it has taken over.
    let gone = ask(&home, "handover", json!({ "shim_protocol": PROTOCOL, "go": true }));
    assert_eq!(gone, json!({ "pid": daemon.pid, "gone": true }));
    // Until it has resumed, it may still answer from its earlier state.
    home.wait_until("it begins anew", || daemon.stderr().matches("INFO ready ").count() == 2);
    home.wait_for_state("one", "running");
    assert_eq!(ask(&home, "info", Value::Null)["pid"], daemon.pid);
    assert_eq!(running(&home, "one"), before);
    // The shims that it adopts now are its own children, and are still reaped.
    ask(&home, "stop", json!({ "name": "one" }));
    let dead: Vec<_> =
        marked_processes(home.mark()).into_iter().filter(|it| it.state == 'Z').collect();
    assert_eq!(dead, []);
    assert!(daemon.terminate().success());
}

#[test]
fn shim_death_during_replacement_affects_no_other_server() {
    let home = home();
    let names = ["one", "two", "three", "four"];
    for name in names {
        home.server(name, &sleeper(&home));
    }
    let first = home.daemon();
    let before = names.map(|name| running(&home, name));
    // Its shim and leader die while the others are handed over.
    signal(parent_of(before[0]), Signal::KILL);
    home.daemon_with(&["--replace"]);
    assert!(first.wait().success());
    for (name, before) in names.into_iter().zip(before).skip(1) {
        assert_eq!(running(&home, name), before, "{name}");
    }
    assert_ne!(running(&home, "one"), before[0]);
}

#[test]
fn waiting_request_is_answered_at_replacement() {
    let home = home();
    home.server("deaf", &term_ignorer(&home, "20s"));
    let first = home.daemon();
    let before = running(&home, "deaf");
    wait_for_line(&home, "deaf", "ready");
    let mut waits = home.connect();
    let stop = json!({ "jsonrpc": "2.0", "id": 1, "method": "stop", "params": { "name": "deaf" } });
    waits.send(&stop);
    home.wait_for_state("deaf", "stopping");
    home.daemon_with(&["--replace"]);
    assert!(first.wait().success());
    let answer = waits.next(SOON);
    let message = "another daemon took over before the request completed";
    assert_eq!(answer["error"]["message"], message, "{answer:#}");
    let now = status(&home, "deaf");
    assert_eq!((&now["state"], pid_in(&now)), (&json!("stopping"), before));
    // The stop continues as requested; only the test cuts its grace short.
    signal(before, Signal::KILL);
    home.wait_for_state("deaf", "stopped");
}
