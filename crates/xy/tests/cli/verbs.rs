//! Each verb once, as a user types it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Stdio};

use insta::assert_snapshot;
use serde_json::{Value, json};
use xy_testkit::{Home, Ran};

use crate::redact::redact;
use crate::{TIMEOUT, home, home_with_one, shown, speaker, wait_until_printed};

/// Returns a home with servers in several states.
fn home_with_several() -> Home {
    let home = home_with_one();
    let dies = home.kdl_command("xy-test-exit", &["--code", "3", "--say", "cannot go on"]);
    home.server("crashes", &format!("{dies}restart {{ policy \"never\" }}\n"));
    home.server("missing", "command \"/nowhere/at/all\"\n");
    home.server("web", &format!("{}port 65432\n", speaker(&home)));
    home.call("reload", Value::Null).unwrap();
    home.wait_for_state("crashes", "failed");
    home.wait_for_state("missing", "failed");
    wait_until_printed(&home, "web");
    home
}

#[test]
fn list_and_status_show_running_and_failed_servers() {
    let home = home_with_several();
    assert_snapshot!("list", shown(&home, &home.xy(&["list"])));
    assert_snapshot!("status-running", shown(&home, &home.xy(&["status", "web"])));
    assert_snapshot!("status-failed", shown(&home, &home.xy(&["status", "crashes"])));
    home.finish();
}

/// Returns the output of these command lines, one after the other.
fn session(home: &Home, lines: &[&str]) -> String {
    let typed = lines.iter().map(|line| {
        let args: Vec<&str> = line.split(' ').collect();
        format!("$ xy {line}\n{}\n", shown(home, &home.xy(&args)))
    });
    typed.collect()
}

#[test]
fn start_stop_and_restart() {
    let home = home_with_several();
    let one = session(
        &home,
        &[
            "start one",
            "stop one",
            "stop one",
            "start one",
            "restart one",
            "stop one --no-wait",
            "start missing",
            "restart missing",
        ],
    );
    home.wait_for_state("one", "stopped");
    home.remove_server("crashes"); // It may be shown as running for a moment.
    home.call("reload", Value::Null).unwrap();
    let all = session(&home, &["start --all", "restart --all", "stop --all", "stop --all"]);
    assert_snapshot!(one + &all);
    home.finish();
}

#[test]
fn reload_and_dry_run() {
    let home = home_with_several();
    home.remove_server("crashes");
    home.remove_server("missing");
    home.server("new", &speaker(&home));
    home.server("web", &format!("{}port 65431\n", speaker(&home)));
    home.server("one", &format!("{}stop {{ grace \"3s\" }}\n", speaker(&home)));
    assert_snapshot!("reload-dry-run", shown(&home, &home.xy(&["reload", "--dry-run"])));
    assert_snapshot!("reload", shown(&home, &home.xy(&["reload"])));
    assert_snapshot!("reload-again", shown(&home, &home.xy(&["reload"])));
    home.finish();
}

#[test]
fn added_server_can_be_removed() {
    let home = home_with_one();
    let lines = [
        "add two -- /bin/sleep 1000",
        "add two -- /bin/sleep 1000",
        "add three --restart sometimes --grace 5 -- /bin/cat",
        "add no__way -- /bin/cat",
        "add three -- /nowhere/at/all",
        "remove two",
        "remove tow",
        "remove one",
        "remove one --persist",
        "list",
    ];
    assert_snapshot!(session(&home, &lines));
    home.finish();
}

#[test]
fn logs_of_a_server() {
    let home = home_with_one();
    assert_snapshot!("logs", shown(&home, &home.xy(&["logs", "one"])));
    let last = home.xy(&["logs", "one", "--tail", "1"]);
    assert_eq!((last.code, last.stdout.as_str()), (0, "[err] line 0000003\n"));
    let raw = home.xy(&["logs", "one", "--tail", "1", "--raw"]);
    assert_eq!((raw.code, raw.stdout.as_str()), (0, "line 0000003\n"));
    let none = home.xy(&["logs", "one", "--tail", "0"]);
    assert_eq!((none.code, none.stdout.as_str()), (0, ""));
    home.finish();
}

/// Starts a verb that keeps running, and returns its lines.
fn spawn_verb(home: &Home, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut command = home.command(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// Waits for the end of a verb, and returns its exit code and stderr.
#[track_caller]
fn wait_for_end(home: &Home, mut child: Child) -> Ran {
    home.wait_until("the verb ends", || child.try_wait().unwrap());
    Ran::from(child.wait_with_output().unwrap())
}

#[test]
fn follower_prints_new_lines_until_ctrl_c() {
    let home = home_with_one();
    let (child, mut lines) = spawn_verb(&home, &["logs", "one", "--tail", "1", "-f"]);
    let mut output = String::new();
    lines.read_line(&mut output).unwrap();
    home.call("restart", json!({ "name": "one" })).unwrap();
    for _ in 0..4 {
        lines.read_line(&mut output).unwrap();
    }
    let expected = "[err] line 0000003\n[err] stopping: stdin closed\n\
                [err] line 0000001\n[err] line 0000002\n[err] line 0000003\n";
    assert_eq!(output, expected);
    interrupt(&child);
    let ran = wait_for_end(&home, child);
    assert_eq!((ran.code, ran.stderr.as_str()), (130, ""), "as shells expect of Ctrl-C");
    home.finish();
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

#[test]
fn follower_ends_with_its_server_or_daemon() {
    let home = home_with_several();
    let (of_server, mut lines) = spawn_verb(&home, &["logs", "web", "--tail", "1", "-f"]);
    lines.read_line(&mut String::new()).unwrap();
    home.remove_server("web");
    home.call("reload", Value::Null).unwrap();
    assert_eq!(wait_for_end(&home, of_server).code, 0);

    let (of_daemon, mut lines) = spawn_verb(&home, &["logs", "one", "--tail", "1", "-f"]);
    lines.read_line(&mut String::new()).unwrap();
    home.call("shutdown", Value::Null).unwrap();
    let ran = wait_for_end(&home, of_daemon);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    home.finish();
}

#[test]
fn follower_ends_quietly_on_closed_stdout() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "10"]));
    home.daemon();
    home.wait_for_state("one", "running");
    for args in [&["logs", "one", "-f"][..], &["logs", "one", "-f", "--json"]] {
        let (child, mut lines) = spawn_verb(&home, args);
        lines.read_line(&mut String::new()).unwrap();
        drop(lines);
        let ran = wait_for_end(&home, child);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
    }
    home.finish();
}

#[test]
fn events_prints_changes_live() {
    let home = home_with_one();
    let (child, mut lines) = spawn_verb(&home, &["events"]);
    // The verb does not report its subscription, so the test causes changes until it prints one.
    let (lines_seen, first_seen) = std::sync::mpsc::channel();
    let watching = std::thread::spawn(move || {
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        lines_seen.send(first).unwrap();
        lines.read_to_string(&mut String::new()).unwrap();
    });
    let first = home.wait_until("it sees a restart", || {
        home.call("restart", json!({ "name": "one" })).unwrap();
        first_seen.try_recv().ok()
    });
    interrupt(&child);
    let ran = wait_for_end(&home, child);
    watching.join().unwrap();
    assert_eq!((ran.code, ran.stderr.as_str()), (130, ""));
    let (hour, change) = first.split_once("  ").unwrap();
    assert_eq!((hour.len(), hour.ends_with('Z')), (9, true), "{first}");
    assert!(change.starts_with("one  "), "{first}");
    home.finish();
}

#[test]
fn check_info_version_and_shutdown() {
    let home = home_with_several();
    assert_snapshot!("check", shown(&home, &home.xy(&["check"])));
    assert_snapshot!("info", shown(&home, &home.xy(&["info"])).replace(VERSION, "[version]"));
    assert_snapshot!("version", shown(&home, &home.xy(&["version"])).replace(VERSION, "[version]"));
    assert_snapshot!("shutdown", shown(&home, &home.xy(&["shutdown"])));
    home.finish();
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn demo_leaves_nothing() {
    let home = home();
    let ran = home.xy(&["demo", "--for", "3s"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    for word in ["clock", "flaky", "running", "all its files and processes are removed"] {
        assert!(ran.stdout.contains(word), "{word}: {}", ran.stdout);
    }
    home.finish(); // Checks that no process and no file is left.
}

/// Returns the daemon's result, as the bytes on the wire.
fn wire_result(home: &Home, method: &str, params: &Value) -> String {
    let mut stream = UnixStream::connect(home.socket()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let answer = line.trim_end().strip_prefix("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":");
    answer.unwrap_or_else(|| panic!("no result: {line}")).strip_suffix('}').unwrap().to_owned()
}

#[test]
fn json_output_is_the_unchanged_response() {
    let home = home_with_several();
    let one = json!({ "name": "one" });
    let all = json!({ "all": true });
    for (line, method, params) in [
        ("list", "list", &Value::Null),
        ("status one", "status", &one),
        ("status crashes", "status", &json!({ "name": "crashes" })),
        ("start one", "start", &one),
        ("start --all", "start", &all),
        ("stop missing", "stop", &json!({ "name": "missing" })),
        ("reload", "reload", &Value::Null),
        ("reload --dry-run", "reload", &json!({ "dry_run": true })),
        ("check", "check", &Value::Null),
        ("info", "info", &Value::Null),
        ("version", "version", &Value::Null),
    ] {
        if line == "start --all" {
            home.remove_server("crashes"); // It may be shown as running for a moment.
            home.call("reload", Value::Null).unwrap();
        }
        let args: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let ran = home.xy(&args);
        assert_eq!(ran.stderr, "", "{line}");
        let expected = wire_result(&home, method, params) + "\n";
        assert_eq!(redact(&home, &ran.stdout), redact(&home, &expected), "{line}");
    }
    home.finish();
}

#[test]
fn json_lines_are_the_unchanged_notifications() {
    let home = home_with_one();
    let ran = home.xy(&["logs", "one", "--json"]);
    let mut wire = home.connect();
    wire.call("logs", json!({ "name": "one" })).unwrap();
    for line in ran.stdout.lines() {
        let mut printed: Value = serde_json::from_str(line).unwrap();
        let mut received = wire.next(TIMEOUT)["params"].take();
        assert!(printed["subscription_id"].take().is_u64(), "{line}");
        received["subscription_id"].take();
        assert_eq!(printed, received);
    }
    assert_eq!(wire.next(TIMEOUT)["method"], "log_end");
    home.finish();
}

#[test]
fn json_error_is_the_unchanged_error() {
    let home = home_with_one();
    for (args, method, params) in [
        (["status", "oen"], "status", json!({ "name": "oen" })),
        (["stop", "oen"], "stop", json!({ "name": "oen" })),
        (["logs", "oen"], "logs", json!({ "name": "oen" })),
    ] {
        let ran = home.xy(&[&args[..], &["--json"]].concat());
        let received: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(received["error"], home.call(method, params).unwrap_err());
        assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    }
    home.finish();
}
