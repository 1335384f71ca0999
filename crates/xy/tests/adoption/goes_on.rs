//! What goes on as if nothing had happened.

use std::fs::File;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{free_port, is_alive, marked_processes};

use crate::support::{
    ask, home, pid_in, running, running_after, says, signal, status, tail, texts,
};
use crate::{deaf, parent_of, renewed, shell, sleeper};

#[test]
fn servers_outlive_a_killed_daemon_and_the_next_one_goes_on_with_them() {
    let home = home();
    home.server("stdio", &sleeper(&home));
    home.server("http", &format!("{}port 8421\n", sleeper(&home)));
    home.server("deaf", &deaf(&home, "500ms"));
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
fn counts_go_on_and_an_adopted_server_is_restarted_by_its_policy() {
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
fn no_line_is_lost_or_doubled_and_numbers_go_on() {
    let home = home();
    // It speaks on when it is told to, on both of its streams.
    let script = "echo one >&2; echo two; while read line; do :; done; \
                  until [ -e $HOME/go ]; do sleep 0.01; done; \
                  echo three >&2; echo four; until [ -e $HOME/end ]; do sleep 0.01; done";
    home.server("talks", &shell(script));
    home.expect_left("home/");
    let daemon = home.daemon();
    says(&home, "talks", "two");
    let first = tail(&home, "talks", 100);

    daemon.kill9();
    home.daemon();
    // It is read by the shim meanwhile, or by the next daemon; nobody reads it twice.
    let replayed = tail(&home, "talks", 100);
    assert_eq!(texts(&replayed), texts(&first));
    let numbers = |lines: &[Value]| -> Vec<u64> {
        lines.iter().map(|line| line["seq"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers(&replayed), numbers(&first));
    home.finish();
}

#[test]
fn what_a_server_says_while_nobody_is_there_is_in_its_log_and_shown() {
    let home = home();
    home.expect_left("home/");
    let script = "echo before; until [ -e $HOME/go ]; do sleep 0.01; done; \
                  for n in $(seq 2000); do echo out $n; echo err $n >&2; done; touch $HOME/said; \
                  while :; do sleep 1; done";
    home.server("talks", &shell(script));
    let daemon = home.daemon();
    says(&home, "talks", "before");
    daemon.kill9();
    std::fs::write(home.root().join("home/go"), "").unwrap();
    home.wait_until("it has said all", || home.root().join("home/said").exists());
    home.daemon();
    says(&home, "talks", "out 2000");
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
fn a_flood_on_stdout_while_nobody_is_there_is_all_in_the_log() {
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
    says(&home, "talks", "before");
    daemon.kill9();
    std::fs::write(home.root().join("home/go"), "").unwrap();
    home.daemon();
    says(&home, "talks", "end");
    let log = std::fs::read_to_string(home.log_file("talks")).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(" of a flood ")).collect();
    assert_eq!(lines.len(), LINES);
    assert!(lines.is_sorted(), "in their order, and none twice");
    home.finish();
}

#[test]
fn a_server_that_died_meanwhile_is_handled_by_its_policy() {
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
    // Once more by policy, and then it is enough.
    let again = home.wait_for_state("again", "failed");
    assert_eq!((&again["last_exit"]["code"], &again["restarts_total"]), (&json!(7), &json!(1)));
    home.finish();
}

#[test]
fn how_a_server_ended_is_not_forgotten_with_a_daemon_that_is_killed_while_it_starts() {
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
    // Somebody who does not say who it is holds up the daemon that comes.
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

/// Says when it is asked to end, and does not.
const STUBBORN: &str = "trap 'echo no >&2' TERM; echo ready >&2; while :; do sleep 0.02; done";

fn stubborn() -> String {
    format!("{}stop {{ grace \"4s\" }}\n", shell(STUBBORN))
}

#[test]
fn a_stop_that_was_begun_goes_on_and_is_told_by_the_next_daemon() {
    let home = home();
    home.server("one", &stubborn());
    let daemon = home.daemon();
    let before = running(&home, "one");
    says(&home, "one", "ready");
    ask(&home, "stop", json!({ "name": "one", "wait": false }));
    says(&home, "one", "no");
    daemon.kill9();
    home.daemon();
    let stopped = home.wait_for_state("one", "stopped");
    assert_eq!(stopped["wanted"], "down");
    assert!(!is_alive(before));
    assert_eq!(stopped["last_exit"]["signal"], 9, "{stopped:#}");
}

#[test]
fn a_restart_that_was_begun_is_finished_by_the_next_daemon() {
    let home = home();
    home.server("one", &stubborn());
    let daemon = home.daemon();
    let before = running(&home, "one");
    says(&home, "one", "ready");
    ask(&home, "restart", json!({ "name": "one", "wait": false }));
    says(&home, "one", "no");
    daemon.kill9();
    home.daemon();
    renewed(&home, "one", before);
}

#[test]
fn daemons_that_are_killed_one_after_another_change_nothing() {
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

/// How often a server was asked this, as it has written down.
fn heard_of(diary: &Path, method: &str) -> usize {
    let text = std::fs::read_to_string(diary).unwrap_or_default();
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter(|it| it["method"] == method).count()
}

#[test]
fn a_server_at_a_port_goes_on_in_its_session_and_is_not_greeted_again() {
    for (flags, greeting) in [
        (&["--sessions"][..], "initialize"),
        (&["--era", "modern", "--no-listen"], "server/discover"),
    ] {
        let home = home();
        let port = free_port().to_string();
        let diary = home.root().join("harness/web.diary");
        let noting = ["--only-tools", "--http", &port, "--diary", diary.to_str().unwrap()];
        let kdl = home.kdl_mcp(&[&noting, flags].concat());
        // In the newer era a probe asks what a greeting does.
        home.server("web", &format!("{kdl}port {port}\nhealth {{ probe \"off\" }}\n"));
        let mut daemon = home.daemon();
        let pid = running(&home, "web");
        let says = |word: &str| {
            let client = home.mcp_connect(&["--no-start"]);
            client.initialize();
            assert_eq!(client.call_text("web__echo", json!({ "message": word })), word);
            client.close();
        };
        says("first");
        assert_eq!(heard_of(&diary, greeting), 1);
        for round in ["second", "third"] {
            daemon.kill9();
            daemon = home.daemon();
            assert_eq!(running(&home, "web"), pid);
            says(round);
            assert_eq!(heard_of(&diary, greeting), 1, "{greeting}: it never noticed");
        }
        assert_eq!(heard_of(&diary, "tools/call"), 3);
        assert_eq!(status(&home, "web")["restarts_total"], 0);
        home.finish();
    }
}
