//! Servers, clients and logs continue across daemons.

use std::fs::File;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{free_port, is_alive, marked_processes};

use crate::support::{
    ask, home, pid_in, running, running_after, signal, status, tail, texts, wait_for_line,
};
use crate::{parent_of, renewed, shell, sleeper, term_ignorer};

#[test]
fn servers_survive_killed_daemon_and_are_adopted() {
    let home = home();
    home.server("stdio", &sleeper(&home));
    home.server("http", &format!("{}port 8421\n", sleeper(&home)));
    home.server("deaf", &term_ignorer(&home, "500ms"));
    home.server("down", &sleeper(&home));
    let daemon = home.daemon();
    let names = ["stdio", "http", "deaf"];
    let before = names.map(|name| running(&home, name));
    ask(&home, "stop", json!({ "name": "down" }));
    home.wait_until("the journal has all of it", || {
        let kept = std::fs::read_to_string(home.root().join("state/xy/events.jsonl"));
        let kept = kept.unwrap_or_default();
        kept.matches(r#""to":"running""#).count() == 4 && kept.contains(r#""to":"stopped""#)
    });

    daemon.kill9();
    assert!(before.into_iter().all(is_alive));
    home.daemon();

    for (name, before) in names.into_iter().zip(before) {
        let now = status(&home, name);
        assert_eq!((&now["state"], pid_in(&now)), (&json!("running"), before), "{now:#}");
        let changes = now["transitions"].as_array().unwrap();
        let told: Vec<_> = changes.iter().map(|it| (&it["from"], &it["to"])).collect();
        let started = (&json!("stopped"), &json!("starting"));
        let ready = (&json!("starting"), &json!("running"));
        let taken_over = (&json!("running"), &json!("running"));
        assert_eq!(told, [started, ready, taken_over], "it never stopped: {now:#}");
        assert_eq!(changes[2]["reason"], "taken over from an earlier daemon");
    }
    assert_eq!(status(&home, "down")["state"], "stopped");
    for (name, before) in names.into_iter().zip(before) {
        ask(&home, "stop", json!({ "name": name }));
        assert!(!is_alive(before), "`{name}` can be stopped");
    }
}

#[test]
fn adopted_server_keeps_restart_count_and_policy() {
    let home = home();
    home.server("one", &format!("{}restart {{ backoff-initial \"10ms\" }}\n", sleeper(&home)));
    let daemon = home.daemon();
    signal(running(&home, "one"), Signal::KILL);
    let before = running_after(&home, "one", 1);

    daemon.kill9();
    home.daemon();
    let after = status(&home, "one");
    assert_eq!(after["pid"], before["pid"]);
    assert_eq!((&after["restart_count"], &after["restarts_total"]), (&json!(1), &json!(1)));
    assert!(after["uptime_secs"].as_u64() >= before["uptime_secs"].as_u64());

    signal(pid_in(&after), Signal::KILL);
    let last = running_after(&home, "one", 2);
    assert_eq!(last["last_exit"]["signal"], 9);
    assert_eq!(last["restarts_total"], 2);
}

#[test]
fn adoption_neither_loses_nor_doubles_lines() {
    let home = home();
    // The server writes to both streams on request.
    let script = "echo one >&2; echo two; while read line; do :; done; \
                  until [ -e $HOME/go ]; do sleep 0.01; done; \
                  echo three >&2; echo four; until [ -e $HOME/end ]; do sleep 0.01; done";
    home.server("talks", &shell(script));
    home.expect_left("home/");
    let daemon = home.daemon();
    wait_for_line(&home, "talks", "two");
    let first = tail(&home, "talks", 100);

    daemon.kill9();
    home.daemon();
    // Read by the shim or by the next daemon, but never by both.
    let replayed = tail(&home, "talks", 100);
    assert_eq!(texts(&replayed), texts(&first));
    let numbers = |lines: &[Value]| -> Vec<u64> {
        lines.iter().map(|line| line["seq"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers(&replayed), numbers(&first));
    home.finish();
}

#[test]
fn output_without_daemon_is_logged_and_shown() {
    let home = home();
    home.expect_left("home/");
    let script = "echo before; until [ -e $HOME/go ]; do sleep 0.01; done; \
                  for n in $(seq 2000); do echo out $n; echo err $n >&2; done; touch $HOME/said; \
                  while :; do sleep 1; done";
    home.server("talks", &shell(script));
    let daemon = home.daemon();
    wait_for_line(&home, "talks", "before");
    daemon.kill9();
    std::fs::write(home.root().join("home/go"), "").unwrap();
    home.wait_until("it has said all", || home.root().join("home/said").exists());
    home.daemon();
    wait_for_line(&home, "talks", "out 2000");
    let log = std::fs::read_to_string(home.log_file("talks")).unwrap();
    for stream in ["out", "err"] {
        let said: Vec<&str> =
            log.lines().filter(|line| line.contains(&format!("] {stream} "))).collect();
        let expected: Vec<String> =
            (1..=2000).map(|n| format!("[{stream}] {stream} {n}")).collect();
        assert_eq!(said, expected);
    }
    home.finish();
}

#[test]
fn stdout_flood_without_daemon_is_logged() {
    const LINES: usize = 60_000;
    let home = home();
    home.expect_left("home/");
    let script = format!(
        "echo before; until [ -e $HOME/go ]; do sleep 0.01; done; \
         seq -f 'line %06.0f of a flood that is long enough to fill it' {LINES}; echo end; \
         while :; do sleep 1; done"
    );
    home.server("talks", &shell(&script));
    let daemon = home.daemon();
    wait_for_line(&home, "talks", "before");
    daemon.kill9();
    std::fs::write(home.root().join("home/go"), "").unwrap();
    home.daemon();
    wait_for_line(&home, "talks", "end");
    let log = std::fs::read_to_string(home.log_file("talks")).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(" of a flood ")).collect();
    assert_eq!(lines.len(), LINES);
    assert!(lines.is_sorted(), "in their order, and none twice");
    home.finish();
}

#[test]
fn server_that_died_without_daemon_follows_policy() {
    let home = home();
    home.expect_left("home/");
    let dies = "until [ -e $HOME/go ]; do sleep 0.01; done; rm -f $HOME/$XY_SERVER; exit 7";
    home.server("never", &format!("{}restart {{ policy \"never\" }}\n", shell(dies)));
    let rest = "restart { backoff-initial \"10ms\"; max-attempts 1; reset-after \"1h\" }\n";
    home.server("again", &format!("{}{rest}", shell(dies)));
    for name in ["never", "again"] {
        std::fs::write(home.root().join("home").join(name), "").unwrap();
    }
    let daemon = home.daemon();
    for name in ["never", "again"] {
        running(&home, name);
    }
    daemon.kill9();
    std::fs::write(home.root().join("home/go"), "").unwrap();
    home.wait_until("both have died", || {
        ["never", "again"].iter().all(|name| !home.root().join("home").join(name).exists())
    });
    home.daemon();
    let never = home.wait_for_state("never", "failed");
    assert_eq!(never["last_exit"]["code"], 7);
    assert_eq!(never["reason"], "exited with code 7");
    // The policy allows one more restart.
    let again = home.wait_for_state("again", "failed");
    assert_eq!((&again["last_exit"]["code"], &again["restarts_total"]), (&json!(7), &json!(1)));
    home.finish();
}

#[test]
fn exit_status_survives_daemon_killed_at_start() {
    let home = home();
    home.expect_left("home/");
    let dies = "until [ -e $HOME/go ]; do sleep 0.01; done; exit 7";
    home.server("one", &format!("{}restart {{ policy \"never\" }}\n", shell(dies)));
    let daemon = home.daemon();
    let before = running(&home, "one");
    let shim = parent_of(before);
    daemon.kill9();
    std::fs::write(home.root().join("home/go"), "").unwrap();
    home.wait_until("it has died", || !is_alive(before));
    // A shim that does not identify itself delays the new daemon.
    let silent = File::create(home.root().join("state/xy/shims/silent.lock")).unwrap();
    silent.try_lock().unwrap();
    let starts = home.spawn_daemon(Path::new(env!("CARGO_BIN_EXE_xy")), &[]);
    home.wait_until("it has found the dead one", || starts.stderr().contains("taken over"));
    let mut looks = 0;
    home.wait_until("a while has passed", || {
        looks += 1;
        looks > 50 || !is_alive(shim)
    });
    assert!(is_alive(shim), "how it ended has been forgotten");
    starts.kill9();
    drop(silent);
    home.daemon();
    assert_eq!(home.wait_for_state("one", "failed")["last_exit"]["code"], 7);
}

/// Reports SIGTERM and ignores it.
const STUBBORN: &str = "trap 'echo no >&2' TERM; echo ready >&2; while :; do sleep 0.02; done";

fn stubborn() -> String {
    format!("{}stop {{ grace \"4s\" }}\n", shell(STUBBORN))
}

#[test]
fn stop_in_progress_is_finished_by_next_daemon() {
    let home = home();
    home.server("one", &stubborn());
    let daemon = home.daemon();
    let before = running(&home, "one");
    wait_for_line(&home, "one", "ready");
    ask(&home, "stop", json!({ "name": "one", "wait": false }));
    wait_for_line(&home, "one", "no");
    daemon.kill9();
    home.daemon();
    let stopped = home.wait_for_state("one", "stopped");
    assert_eq!(stopped["wanted"], "down");
    assert!(!is_alive(before));
    assert_eq!(stopped["last_exit"]["signal"], 9, "{stopped:#}");
}

#[test]
fn restart_in_progress_is_finished_by_next_daemon() {
    let home = home();
    home.server("one", &stubborn());
    let daemon = home.daemon();
    let before = running(&home, "one");
    wait_for_line(&home, "one", "ready");
    ask(&home, "restart", json!({ "name": "one", "wait": false }));
    wait_for_line(&home, "one", "no");
    daemon.kill9();
    home.daemon();
    renewed(&home, "one", before);
}

#[test]
fn successively_killed_daemons_change_nothing() {
    let home = home();
    home.server("one", &sleeper(&home));
    let mut daemon = home.daemon();
    let pid = running(&home, "one");
    for _ in 0..5 {
        daemon.kill9();
        daemon = home.daemon();
        assert_eq!(running(&home, "one"), pid);
    }
    assert!(daemon.terminate().success());
    assert_eq!(marked_processes(home.mark()), []);
}

/// Returns how often a server received this method, according to its record.
fn count_received(input_log: &Path, method: &str) -> usize {
    let text = std::fs::read_to_string(input_log).unwrap_or_default();
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter(|it| it["method"] == method).count()
}

#[test]
fn http_server_keeps_session_without_new_handshake() {
    for (flags, greeting) in [
        (&["--sessions"][..], "initialize"),
        (&["--era", "modern", "--no-listen"], "server/discover"),
    ] {
        let home = home();
        let port = free_port().to_string();
        let input_log = home.root().join("harness/web.input");
        let noting = ["--only-tools", "--http", &port, "--input-log", input_log.to_str().unwrap()];
        let kdl = home.kdl_mcp(&[&noting, flags].concat());
        // In the newer era a probe uses the method of the handshake.
        home.server("web", &format!("{kdl}port {port}\nhealth {{ probe \"off\" }}\n"));
        let mut daemon = home.daemon();
        let pid = running(&home, "web");
        let wait_for_line = |word: &str| {
            let client = home.mcp_connect(&["--no-start"]);
            client.initialize();
            assert_eq!(client.call_text("web__echo", json!({ "message": word })), word);
            client.close();
        };
        wait_for_line("first");
        assert_eq!(count_received(&input_log, greeting), 1);
        for round in ["second", "third"] {
            daemon.kill9();
            daemon = home.daemon();
            assert_eq!(running(&home, "web"), pid);
            wait_for_line(round);
            assert_eq!(count_received(&input_log, greeting), 1, "{greeting}: it never noticed");
        }
        assert_eq!(count_received(&input_log, "tools/call"), 3);
        assert_eq!(status(&home, "web")["restarts_total"], 0);
        home.finish();
    }
}
