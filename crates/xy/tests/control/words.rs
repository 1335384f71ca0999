//! Every request and every kind of answer, as JSON on the wire.
//!
//! A change in one of these snapshots is a change of the protocol for every client.

use insta::assert_snapshot;
use serde_json::{Value, json};
use xy_testkit::Home;

use crate::talk::{Talk, request};
use crate::{TIMEOUT, home, home_with_one, kill};

/// Flags of a server that prints one line and sleeps.
const QUIET: [&str; 2] = ["--every", "600000"];

/// Returns a home whose daemon has a server in each stable state.
fn home_with_every_state() -> Home {
    let home = home();
    let sleeper = home.kdl_command("xy-test-sleep-server", &QUIET);
    home.server("behind-a-port", &format!("{sleeper}port 8421\n"));
    home.server("missing", "command \"/nowhere/at/all\"\n");
    let dies = home.kdl_command("xy-test-exit", &["--code", "3", "--say", "cannot go on"]);
    home.server(
        "crashes",
        &format!("{dies}restart {{ backoff-initial \"20s\"; jitter #false }}\n"),
    );
    home.server("gives-up", &format!("{dies}restart {{ policy \"never\" }}\n"));
    home.server("one", &sleeper);
    home.server("resting", &sleeper);
    home.daemon();
    for (name, state) in [
        ("behind-a-port", "running"),
        ("missing", "failed"),
        ("crashes", "restarting"),
        ("gives-up", "failed"),
        ("one", "running"),
        ("resting", "running"),
    ] {
        home.wait_for_state(name, state);
    }
    home.call("stop", json!({ "name": "resting" })).unwrap();
    home
}

#[test]
fn list_shows_every_server_in_every_state() {
    let home = home_with_every_state();
    let mut talk = Talk::with(&home);
    talk.ask(&request(1, "list", ""));
    assert_snapshot!(talk.text());
    home.finish();
}

/// The table of the design: each of its fields exists, and further fields are allowed.
#[test]
fn entry_has_the_documented_fields() {
    let home = home_with_every_state();
    let list = home.call("list", Value::Null).unwrap();
    for entry in list.as_array().unwrap() {
        let is_up = entry["state"] == "running";
        assert!(entry["name"].is_string(), "{entry}");
        assert!(entry["port"].is_null() || entry["port"].is_u64(), "{entry}");
        assert!(entry.as_object().unwrap().contains_key("port"), "{entry}");
        assert!(entry["restart_count"].is_u64(), "{entry}");
        assert_eq!(entry["pid"].is_u64(), is_up, "{entry}");
        assert_eq!(entry["uptime_secs"].is_u64(), is_up, "{entry}");
        let has_ended =
            ["crashes", "gives-up", "resting"].contains(&entry["name"].as_str().unwrap());
        assert_eq!(entry["last_exit"].is_object(), has_ended, "{entry}");
        let status = home.call("status", json!({ "name": entry["name"] })).unwrap();
        for (field, value) in entry.as_object().unwrap() {
            if !["uptime_secs", "next"].contains(&field.as_str()) {
                assert_eq!(&status[field], value, "`status` has the fields of `list`");
            }
        }
        assert!(status["transitions"].is_array(), "{status}");
    }
    home.finish();
}

#[test]
fn status_shows_a_server_with_its_transitions() {
    let home = home_with_every_state();
    let mut talk = Talk::with(&home);
    for (id, name) in (1..).zip(["one", "gives-up", "missing", "crashes", "resting"]) {
        talk.ask(&request(id, "status", &format!(r#"{{"name":"{name}"}}"#)));
    }
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn start_stop_and_restart_answer_with_their_lists() {
    let home = home_with_one();
    home.server("two", &home.kdl_command("xy-test-sleep-server", &QUIET));
    home.call("reload", Value::Null).unwrap();
    let mut talk = Talk::with(&home);
    talk.remark("one server");
    talk.ask(&request(1, "start", r#"{"name":"one"}"#));
    talk.ask(&request(2, "restart", r#"{"name":"one"}"#));
    talk.ask(&request(3, "stop", r#"{"name":"one"}"#));
    talk.ask(&request(4, "stop", r#"{"name":"one"}"#));
    talk.remark("all of them: one is down, two is up");
    talk.ask(&request(5, "start", r#"{"all":true}"#));
    talk.ask(&request(6, "restart", r#"{"all":true}"#));
    talk.ask(&request(7, "stop", r#"{"all":true}"#));
    talk.ask(&request(8, "stop", r#"{"all":true}"#));
    talk.remark("a server that is down is started by restart");
    talk.ask(&request(9, "restart", r#"{"name":"one"}"#));
    talk.remark("without waiting");
    talk.ask(&request(10, "stop", r#"{"name":"one","wait":false}"#));
    home.wait_for_state("one", "stopped");
    talk.ask(&request(11, "start", r#"{"name":"one","wait":false}"#));
    home.wait_for_state("one", "running");
    talk.ask(&request(12, "restart", r#"{"name":"one","wait":false}"#));
    home.wait_for_state("one", "running");
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn failed_start_is_an_error_or_part_of_the_answer() {
    let home = home_with_one();
    home.server("missing", "command \"/nowhere/at/all\"\n");
    let dies = home.kdl_command("xy-test-exit", &["--code", "3"]);
    home.server("dies", &format!("{dies}restart {{ policy \"never\" }}\n"));
    home.call("reload", Value::Null).unwrap();
    home.wait_for_state("dies", "failed");
    let mut talk = Talk::with(&home);
    talk.ask(&request(1, "start", r#"{"name":"missing"}"#));
    talk.ask(&request(2, "restart", r#"{"name":"missing"}"#));
    talk.ask(&request(3, "stop", r#"{"name":"missing"}"#));
    home.remove_server("dies"); // It may be shown as running for a moment.
    home.call("reload", Value::Null).unwrap();
    talk.ask(&request(4, "start", r#"{"all":true}"#));
    talk.ask(&request(5, "restart", r#"{"all":true}"#));
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn reload_and_dry_run_report_their_plan() {
    let home = home();
    let sleeper = home.kdl_command("xy-test-sleep-server", &QUIET);
    for name in ["gone", "other-process", "other-rules", "same"] {
        home.server(name, &sleeper);
    }
    home.daemon();
    let change = || {
        home.remove_server("gone");
        home.server("new", &sleeper);
        home.server("other-process", &format!("{sleeper}env {{ A \"b\" }}\n"));
        home.server("other-rules", &format!("{sleeper}stop {{ grace \"3s\" }}\n"));
    };
    let mut talk = Talk::with(&home);
    talk.remark("nothing has changed");
    talk.ask(&request(1, "reload", ""));
    change();
    talk.remark("one file of each kind");
    talk.ask(&request(2, "reload", r#"{"dry_run":true}"#));
    talk.ask(&request(3, "reload", r#"{"dry_run":false}"#));
    talk.remark("a program that is not there is odd, not wrong");
    home.server("new", "command \"/nowhere/at/all\"\n");
    talk.ask(&request(4, "reload", "{}"));
    talk.remark("wrong files change nothing");
    home.server("new", "comand \"x\"\n");
    home.server("same", &format!("{sleeper}restart {{ policy \"allways\" }}\n"));
    talk.ask(&request(5, "reload", ""));
    talk.ask(&request(6, "reload", r#"{"dry_run":true}"#));
    talk.remark("two files with one port");
    home.server("new", &format!("{sleeper}port 8421\n"));
    home.server("same", &format!("{sleeper}port 8421\n"));
    talk.ask(&request(7, "reload", ""));
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn check_reports_validity() {
    let home = home_with_one();
    let mut talk = Talk::with(&home);
    talk.ask(&request(1, "check", ""));
    home.server("one", "command \"/nowhere/at/all\"\n");
    talk.ask(&request(2, "check", ""));
    home.server("one", "command \"x\"\nprot 8421\n");
    home.server("__two", "command \"x\"\n");
    talk.ask(&request(3, "check", ""));
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn version_and_info_identify_the_daemon() {
    let home = home_with_one();
    let mut talk = Talk::with(&home);
    talk.ask(&request(1, "version", ""));
    talk.ask(&request(2, "info", ""));
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn invalid_requests_are_refused_with_their_code() {
    let home = home_with_one();
    let mut talk = Talk::with(&home);
    for line in [
        "{",
        "hello",
        r#"{"jsonrpc":"2.0","id":1,"method":"list""#,
        "42",
        "[]",
        r#"[{"jsonrpc":"2.0","id":1,"method":"list"}]"#,
        r#"{"id":2,"method":"list"}"#,
        r#"{"jsonrpc":"1.0","id":3,"method":"list"}"#,
        r#"{"jsonrpc":"2.0","id":4}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":7}"#,
        r#"{"jsonrpc":"2.0","id":6,"method":"lst"}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"rpc.discover"}"#,
        r#"{"jsonrpc":"2.0","id":8,"method":"list","params":{"name":"one"}}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":"status"}"#,
        r#"{"jsonrpc":"2.0","id":10,"method":"status","params":["one"]}"#,
        r#"{"jsonrpc":"2.0","id":11,"method":"status","params":{"name":"one","more":1}}"#,
        r#"{"jsonrpc":"2.0","id":12,"method":"status","params":{"name":1}}"#,
        r#"{"jsonrpc":"2.0","id":13,"method":"start","params":{}}"#,
        r#"{"jsonrpc":"2.0","id":14,"method":"stop","params":{"name":"one","all":true}}"#,
        r#"{"jsonrpc":"2.0","id":15,"method":"restart","params":{"all":false}}"#,
        r#"{"jsonrpc":"2.0","id":16,"method":"logs","params":{"name":"one","tail":-1}}"#,
        r#"{"jsonrpc":"2.0","id":17,"method":"logs","params":{"name":"one","tail":4294967296}}"#,
        r#"{"jsonrpc":"2.0","id":18,"method":"logs_cancel","params":{"subscription_id":7}}"#,
        r#"{"jsonrpc":"2.0","id":19,"method":"events_cancel","params":{"subscription_id":7}}"#,
        r#"{"jsonrpc":"2.0","id":20,"method":"status","params":{"name":"on"}}"#,
        r#"{"jsonrpc":"2.0","id":21,"method":"logs","params":{"name":"zebra"}}"#,
        r#"{"jsonrpc":"2.0","id":22,"method":"start","params":{"name":"oen"}}"#,
        r#"{"jsonrpc":"2.0","id":23,"method":"stop","params":{"name":""}}"#,
        r#"{"jsonrpc":"2.0","id":24,"method":"restart","params":{"name":"../\u001b[31mone"}}"#,
    ] {
        talk.ask(line);
    }
    assert_snapshot!(talk.text());
    assert_eq!(home.call("status", json!({ "name": "one" })).unwrap()["restarts_total"], 0);
    home.finish();
}

#[test]
fn shutdown_lists_stopped_servers_and_starts_nothing() {
    let home = home();
    let stubborn = home.kdl_command("xy-test-ignore-term", &[]);
    home.server("stubborn", &format!("{stubborn}stop {{ grace \"60s\" }}\n"));
    let daemon = home.daemon();
    let pid = home.wait_for_state("stubborn", "running")["pid"].clone();
    let mut witness = home.connect();
    witness.call("events", Value::Null).unwrap();

    let mut talk = Talk::with(&home);
    talk.ask(&request(1, "shutdown", ""));
    assert_eq!(witness.next(TIMEOUT)["params"]["state"], "stopping");
    talk.remark("while the servers end");
    talk.ask(&request(2, "start", r#"{"name":"stubborn"}"#));
    talk.ask(&request(3, "reload", ""));
    talk.ask(&request(4, "list", ""));
    talk.remark("once they have ended");
    kill(&pid);
    talk.expect_close();
    assert!(daemon.wait().success());
    assert_snapshot!(talk.text());
    home.finish();
}
