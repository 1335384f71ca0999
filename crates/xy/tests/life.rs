//! The life of servers under a real daemon: how they come up, go down and come back.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{
    SOON, ask, changes_in, home, pid_in, refused, running, running_after, says, signal, status,
    stays_in, tail, texts,
};
use xy_testkit::{Heard, Home, is_alive, marked_processes};

/// A moment is told by another clock than a delay is kept by, and cut to milliseconds.
const TWO_CLOCKS: u64 = 50;

fn sleeper(home: &Home) -> String {
    home.kdl_command("xy-test-sleep-server", &[])
}

/// Ignores TERM, and has so long until the KILL.
fn deaf(home: &Home, grace: &str) -> String {
    format!("{}stop {{ grace \"{grace}\" }}\n", home.kdl_command("xy-test-ignore-term", &[]))
}

/// Dies with `code` in its first `lives` lives; a later one stays.
fn mortal(home: &Home, name: &str, code: &str, lives: &str) -> String {
    home.expect_left("tmp/");
    let file = home.root().join("tmp").join(name);
    let args = ["--code", code, "--say", "I die", "--until", lives, "--lives"];
    home.kdl_command("xy-test-exit", &[&args[..], &[file.to_str().unwrap()]].concat())
}

fn lives_of(home: &Home, name: &str) -> usize {
    fs::read_to_string(home.root().join("tmp").join(name)).unwrap().lines().count()
}

// The beginning.

#[test]
fn every_configured_server_is_up_with_the_daemon() {
    let home = home();
    home.server("b-http", &format!("{}port 8421\n", sleeper(&home)));
    home.server("a-stdio", &sleeper(&home));
    home.server("c-sse", &format!("{}transport \"sse\"\nport 8422\n", sleeper(&home)));
    home.daemon();

    let pids = ["a-stdio", "b-http", "c-sse"].map(|name| running(&home, name));
    assert!(pids.iter().all(|&pid| is_alive(pid)), "{pids:?}");
    let list = ask(&home, "list", Value::Null);
    let told: Vec<_> =
        list.as_array().unwrap().iter().map(|it| (&it["name"], &it["pid"])).collect();
    assert_eq!(told.len(), 3);
    for (at, (name, pid)) in told.into_iter().enumerate() {
        assert_eq!((name, pid), (&json!(["a-stdio", "b-http", "c-sse"][at]), &json!(pids[at])));
    }
    let told = |key: &str| list.as_array().unwrap().iter().map(|it| it[key].clone()).collect();
    assert_eq!(Value::Array(told("port")), json!([null, 8421, 8422]));
    assert_eq!(Value::Array(told("transport")), json!(["stdio", "http", "sse"]));
    assert_eq!(Value::Array(told("wanted")), json!(["up", "up", "up"]));
    assert_eq!(Value::Array(told("restart_count")), json!([0, 0, 0]));
}

/// What `xy-test-mirror` saw at its start.
fn mirrored(home: &Home, name: &str) -> Value {
    running(home, name);
    home.wait_until("the mirror has spoken", || {
        let lines = tail(home, name, 1);
        lines.first().map(|line| serde_json::from_str(line["line"].as_str().unwrap()).unwrap())
    })
}

#[track_caller]
fn assert_clean(seen: &Value) {
    if cfg!(target_os = "linux") {
        let open: Vec<_> = seen["fds"].as_object().unwrap().keys().collect();
        assert_eq!(open, ["0", "1", "2"], "{seen:#}");
        let none = json!({ "ignored": [], "blocked": [], "caught": [] });
        assert_eq!(seen["signals"], none);
    }
    assert_eq!(seen["sid"], seen["pid"], "it leads a session of its own");
}

#[test]
fn a_server_gets_a_clean_process() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-mirror", &["a b", "", "*"]));
    home.server("two", &format!("{}port 8421\n", home.kdl_command("xy-test-mirror", &[])));
    home.daemon();

    let one = mirrored(&home, "one");
    assert_clean(&one);
    assert_eq!(one["pid"], status(&home, "one")["pid"]);
    assert_eq!(one["argv"].as_array().unwrap()[1..], [json!("a b"), json!(""), json!("*")]);
    assert_eq!([&one["stdin"], &one["stdout"], &one["stderr"]], ["pipe"; 3]);

    let two = mirrored(&home, "two");
    assert_clean(&two);
    assert_eq!([&two["stdin"], &two["stdout"], &two["stderr"]], ["null", "pipe", "pipe"]);
    assert_ne!(one["sid"], two["sid"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_server_gets_a_clean_process_from_a_daemon_that_had_none() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-mirror", &[]));
    let xy = home.command(&["daemon"]);
    let script = r#"trap "" INT HUP PIPE CHLD; exec 7</dev/null 9</dev/null; exec "$0" daemon"#;
    let mut daemon = std::process::Command::new("env");
    daemon.args(["--block-signal=USR1", "sh", "-c", script]).arg(xy.get_program());
    daemon.env_clear().envs(xy.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let null = std::process::Stdio::null;
    daemon.stdin(null()).stdout(null()).stderr(null());
    let mut daemon = daemon.spawn().unwrap();

    assert_clean(&mirrored(&home, "one"));

    signal(daemon.id(), Signal::TERM);
    let ended = home.wait_until("the daemon has ended", || daemon.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
}

#[test]
fn a_server_has_the_environment_of_the_daemon_and_its_file_wins() {
    let home = home()
        .with_env("FROM_DAEMON", "kept")
        .with_env("IN_BOTH", "of the daemon")
        .with_env("XY_SECRET", "for xy alone");
    let env = "env { IN_BOTH \"of the file\"; DEBUG #true; RETRIES 3; EMPTY \"\" }\n";
    home.server("one", &format!("{}{env}", home.kdl_command("xy-test-mirror", &[])));
    home.daemon();

    let env = mirrored(&home, "one")["env"].take();
    let told = ["FROM_DAEMON", "IN_BOTH", "DEBUG", "RETRIES", "EMPTY"].map(|name| &env[name]);
    assert_eq!(told, ["kept", "of the file", "true", "3", ""]);
    let ours: Vec<_> =
        env.as_object().unwrap().keys().filter(|name| name.starts_with("XY_")).collect();
    assert_eq!(ours, ["XY_INSTANCE", "XY_SERVER"]);
    assert_eq!(env["XY_SERVER"], "one");
}

#[test]
fn a_server_runs_in_its_working_dir() {
    let home = home();
    let folder = home.root().join("tmp");
    let working_dir = format!("working-dir \"{}\"\n", folder.display());
    home.server("own", &format!("{}{working_dir}", home.kdl_command("xy-test-mirror", &[])));
    home.server("none", &home.kdl_command("xy-test-mirror", &[]));
    home.daemon();

    assert_eq!(mirrored(&home, "own")["cwd"], folder.to_str().unwrap());
    // The harness starts a daemon there.
    let of_the_daemon = home.root().join("home");
    assert_eq!(mirrored(&home, "none")["cwd"], of_the_daemon.to_str().unwrap());
}

// Crashes.

#[test]
fn a_server_that_keeps_crashing_waits_longer_each_time() {
    let home = home();
    let rules = "restart { backoff-initial \"150ms\"; backoff-max \"400ms\"; jitter #false; \
                 max-attempts 3; max-retries-per-minute 0 }\n";
    home.server("one", &format!("{}{rules}", home.kdl_command("xy-test-exit", &["--code", "7"])));
    home.daemon();

    let failed = home.wait_for_state("one", "failed");
    let changes = changes_in(&failed);
    let states: Vec<&str> = changes.iter().map(|it| it.to.as_str()).collect();
    let life = ["starting", "running", "restarting"];
    let last = ["starting", "running", "failed"];
    assert_eq!(states, [life, life, life, last].concat());
    let reasons: Vec<&str> =
        changes.iter().filter(|it| it.to == "starting").map(|it| it.reason.as_str()).collect();
    let tries = ["attempt 1 of 3", "attempt 2 of 3", "last attempt (3 of 3)"];
    assert_eq!(reasons[1..], tries);

    let waits = stays_in("restarting", &failed);
    assert_eq!(waits.len(), 3);
    for (wait, least) in waits.iter().zip([150, 300, 400]) {
        assert!(*wait + TWO_CLOCKS >= least, "{waits:?}");
    }
}

#[test]
fn a_server_without_backoff_still_waits_after_a_short_life() {
    let home = home();
    let rules = "restart { backoff-initial \"0s\"; max-attempts 2 }\n";
    home.server("one", &format!("{}{rules}", home.kdl_command("xy-test-exit", &[])));
    home.daemon();

    let waits = stays_in("restarting", &home.wait_for_state("one", "failed"));
    assert_eq!(waits.len(), 2);
    assert!(waits.iter().all(|wait| wait + TWO_CLOCKS >= 100), "{waits:?}");
}

/// A daemon with a server that exits cleanly, one that exits dirtily and one that an
/// outsider kills, each once.
fn three_deaths(policy: &str) -> Home {
    let home = home();
    let rules = format!("restart {{ policy \"{policy}\"; backoff-initial \"20ms\" }}\n");
    home.server("clean", &format!("{}{rules}", mortal(&home, "clean", "0", "1")));
    home.server("dirty", &format!("{}{rules}", mortal(&home, "dirty", "3", "1")));
    home.server("killed", &format!("{}{rules}", sleeper(&home)));
    home.daemon();
    signal(running(&home, "killed"), Signal::KILL);
    home
}

#[test]
fn under_always_every_death_is_followed_by_a_new_life() {
    let home = three_deaths("always");
    let clean = running_after(&home, "clean", 1);
    assert_eq!(
        (&clean["last_exit"]["code"], &clean["last_exit"]["expected"]),
        (&json!(0), &json!(false))
    );
    let dirty = running_after(&home, "dirty", 1);
    assert_eq!(dirty["last_exit"]["code"], 3);
    let killed = running_after(&home, "killed", 1);
    assert_eq!(
        (&killed["last_exit"]["code"], &killed["last_exit"]["signal"]),
        (&Value::Null, &json!(9))
    );
}

#[test]
fn under_on_failure_only_a_clean_exit_is_the_end() {
    let home = three_deaths("on-failure");
    let clean = home.wait_for_state("clean", "stopped");
    assert_eq!(clean["reason"], "exited with code 0");
    assert_eq!(clean["restarts_total"], 0);
    running_after(&home, "dirty", 1);
    running_after(&home, "killed", 1);
    assert_eq!(lives_of(&home, "clean"), 1);
}

#[test]
fn under_never_every_death_is_the_end_and_a_dirty_one_a_failure() {
    let home = three_deaths("never");
    let clean = home.wait_for_state("clean", "stopped");
    assert_eq!(clean["reason"], "exited with code 0");
    let dirty = home.wait_for_state("dirty", "failed");
    assert_eq!(dirty["reason"], "exited with code 3");
    assert_eq!(dirty["last_stderr"], json!(["I die"]));
    let killed = home.wait_for_state("killed", "failed");
    assert_eq!(killed["reason"], "killed by signal 9 (SIGKILL)");
    for name in ["clean", "dirty", "killed"] {
        assert_eq!(status(&home, name)["restarts_total"], 0);
    }
    assert_eq!([lives_of(&home, "clean"), lives_of(&home, "dirty")], [1, 1]);
}

#[test]
fn a_killed_server_is_back_with_a_new_process() {
    let home = home();
    let rules = "restart { backoff-initial \"10ms\" }\n";
    home.server("one", &format!("{}{rules}", sleeper(&home)));
    home.server("other", &sleeper(&home));
    home.daemon();
    let before = running(&home, "one");
    let other = running(&home, "other");

    signal(before, Signal::KILL);

    let after = running_after(&home, "one", 1);
    assert_ne!(pid_in(&after), before);
    assert_eq!(after["last_exit"]["signal"], 9);
    assert_eq!(after["last_exit"]["expected"], false);
    assert!(!is_alive(before));
    assert_eq!(running(&home, "other"), other);
}

#[test]
fn the_children_of_a_server_end_with_it_however_it_ends() {
    let home = home();
    let shell = |script: &str| format!("command \"sh\"\nargs \"-c\" \"{script}\"\n");
    let never = "restart { policy \"never\" }\n";
    let stopped = shell("sleep 600 & echo two >&2; sleep 600 | sleep 600");
    home.server("stopped", &format!("{stopped}port 8421\n"));
    home.server("crashed", &format!("{}{never}", shell("sleep 600 & sleep 600 & exit 1")));
    let daemon = home.daemon();
    home.wait_for_state("crashed", "failed");
    says(&home, "stopped", "two");

    ask(&home, "stop", json!({ "name": "stopped" }));

    let left = marked_processes(home.mark());
    assert!(left.iter().all(|it| it.pid == daemon.pid), "{left:#?}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_server_whose_shim_is_killed_dies_with_it_and_comes_back() {
    let home = home();
    let rules = "restart { backoff-initial \"10ms\" }\n";
    home.server("one", &format!("{}{rules}", home.kdl_command("xy-test-mirror", &[])));
    home.daemon();
    let before = mirrored(&home, "one");

    signal(u32::try_from(before["ppid"].as_u64().unwrap()).unwrap(), Signal::KILL);

    let after = running_after(&home, "one", 1);
    assert_ne!(after["pid"], before["pid"]);
    home.wait_until("the old one is dead", || !is_alive(pid_in(&before)));
    assert_eq!(after["last_exit"]["expected"], false);
}

#[test]
fn too_many_restarts_in_a_row_are_a_failure_with_the_last_words_until_somebody_starts_it() {
    let home = home();
    let rules = "restart { backoff-initial \"10ms\"; max-attempts 2 }\n";
    home.server("one", &format!("{}{rules}", mortal(&home, "one", "4", "3")));
    home.daemon();

    let failed = home.wait_for_state("one", "failed");
    let reason = "exited with code 4; gave up after 2 restarts in a row (max-attempts)";
    assert_eq!(failed["reason"], reason);
    assert_eq!(failed["last_stderr"], json!(["I die", "I die", "I die"]));
    assert_eq!((&failed["restart_count"], &failed["restarts_total"]), (&json!(2), &json!(2)));
    assert_eq!((&failed["pid"], &failed["wanted"]), (&Value::Null, &json!("up")));

    let started = ask(&home, "start", json!({ "name": "one" }));
    assert_eq!(started, json!({ "started": ["one"], "already_running": [] }));
    let up = status(&home, "one");
    assert_eq!(up["state"], "running");
    assert_eq!((&up["restart_count"], &up["restarts_total"]), (&json!(0), &json!(2)));
    assert_eq!(up.get("last_stderr"), None);
    home.wait_until("the fourth life has begun", || lives_of(&home, "one") == 4);
}

#[test]
fn too_many_exits_in_a_minute_are_a_failure_until_somebody_restarts_it() {
    let home = home();
    let rules = "restart { backoff-initial \"10ms\"; max-retries-per-minute 2; max-attempts 0 }\n";
    home.server("one", &format!("{}{rules}", mortal(&home, "one", "5", "3")));
    home.daemon();

    let failed = home.wait_for_state("one", "failed");
    let reason = "exited with code 5; 3 unexpected exits within 60 s (max-retries-per-minute is 2)";
    assert_eq!(failed["reason"], reason);
    assert_eq!(failed["last_stderr"], json!(["I die", "I die", "I die"]));
    assert_eq!(failed["restart_count"], 2);

    let restarted = ask(&home, "restart", json!({ "name": "one" }));
    assert_eq!(restarted, json!({ "restarted": ["one"] }));
    let up = running_after(&home, "one", 0);
    assert_eq!(up["restarts_total"], 2);
}

#[test]
fn a_program_that_cannot_be_started_fails_at_once_and_says_what_to_do() {
    let home = home();
    let script = home.root().join("home/script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    home.expect_left("home/script");
    home.server("missing", "// A comment.\ncommand \"/no/such/program\"\n");
    home.server("unknown", "command \"no-such-program-anywhere\"\n");
    home.server("plain", &format!("command \"{}\"\n", script.display()));
    home.server("homeless", &format!("{}working-dir \"/no/such/folder\"\n", sleeper(&home)));
    home.daemon();

    let plain = format!("`{}` cannot be executed", script.display());
    let cases = [
        ("missing", "`/no/such/program` does not exist", "missing.kdl:2"),
        ("unknown", "program `no-such-program-anywhere` is not on PATH", "unknown.kdl:1"),
        ("plain", plain.as_str(), "make it executable"),
        ("homeless", "its working-dir `/no/such/folder` is not a folder", "homeless.kdl"),
    ];
    for (name, cause, hint) in cases {
        let failed = home.wait_for_state(name, "failed");
        assert_eq!(failed["reason"], cause);
        assert_eq!(failed["restarts_total"], 0);
        let error = refused(&home, "start", json!({ "name": name }));
        assert_eq!(error["code"], -32006, "{error:#}");
        assert_eq!(error["message"], format!("server `{name}` did not start"));
        assert_eq!(error["data"]["kind"], "SpawnFailed");
        assert_eq!(error["data"]["cause"], cause);
        assert!(error["data"]["hint"].as_str().unwrap().contains(hint), "{error:#}");
        assert_eq!(status(&home, name)["state"], "failed");
    }
}

// Stops.

#[test]
fn a_stdio_server_is_stopped_by_closing_its_stdin_and_an_http_one_by_term() {
    let home = home();
    home.server("stdio", &sleeper(&home));
    home.server("http", &format!("{}port 8421\n", sleeper(&home)));
    home.daemon();
    let pids = ["stdio", "http"].map(|name| running(&home, name));
    for (name, pid) in ["stdio", "http"].into_iter().zip(pids) {
        says(&home, name, &format!("started {pid}"));
        let stopped = ask(&home, "stop", json!({ "name": name }));
        assert_eq!(stopped, json!({ "stopped": [name], "not_running": [] }));
    }

    assert_eq!(texts(&tail(&home, "stdio", 1)), ["stopping: stdin closed"]);
    assert_eq!(texts(&tail(&home, "http", 1)), ["stopping: TERM"]);
    for name in ["stdio", "http"] {
        let stopped = status(&home, name);
        assert_eq!(stopped["state"], "stopped");
        assert_eq!((&stopped["pid"], &stopped["wanted"]), (&Value::Null, &json!("down")));
        assert_eq!(stopped["last_exit"]["code"], 0);
        assert_eq!(stopped["last_exit"]["expected"], true);
    }
    assert!(!pids.into_iter().any(is_alive));
}

#[test]
fn a_server_that_ignores_term_is_killed_after_its_grace_and_not_before() {
    let home = home();
    home.server("stdio", &deaf(&home, "600ms"));
    home.server("http", &format!("{}port 8421\n", deaf(&home, "600ms")));
    home.daemon();
    for name in ["stdio", "http"] {
        says(&home, name, "ready");
    }

    let stopped = ask(&home, "stop", json!({ "all": true }));
    assert_eq!(stopped, json!({ "stopped": ["http", "stdio"], "not_running": [] }));

    for name in ["stdio", "http"] {
        let stopped = status(&home, name);
        let took = stays_in("stopping", &stopped);
        assert!(took.len() == 1 && took[0] + TWO_CLOCKS >= 600, "{took:?}");
        assert_eq!(texts(&tail(&home, name, 1)), ["got TERM"]);
        assert_eq!(stopped["last_exit"]["signal"], 9);
        assert_eq!(stopped["last_exit"]["expected"], true);
    }
}

#[test]
fn a_stop_during_the_backoff_is_final() {
    let home = home();
    let rules = "restart { backoff-initial \"1h\"; backoff-max \"1h\" }\n";
    home.server("one", &format!("{}{rules}", mortal(&home, "one", "1", "1")));
    home.daemon();

    let waiting = home.wait_for_state("one", "restarting");
    assert_eq!(waiting["next"]["what"], "restart");
    let stopped = ask(&home, "stop", json!({ "name": "one" }));
    assert_eq!(stopped, json!({ "stopped": ["one"], "not_running": [] }));
    let down = status(&home, "one");
    assert_eq!((&down["state"], &down["next"]), (&json!("stopped"), &Value::Null));
    assert_eq!(lives_of(&home, "one"), 1);
}

#[test]
fn a_start_during_the_backoff_does_not_wait_for_its_end() {
    let home = home();
    let rules = "restart { backoff-initial \"1h\"; backoff-max \"1h\" }\n";
    home.server("one", &format!("{}{rules}", mortal(&home, "one", "1", "1")));
    home.daemon();

    home.wait_for_state("one", "restarting");
    let started = ask(&home, "start", json!({ "name": "one" }));
    assert_eq!(started, json!({ "started": ["one"], "already_running": [] }));
    assert_eq!(status(&home, "one")["state"], "running");
}

#[test]
fn a_stop_during_the_start_is_final_and_leaves_nothing() {
    let home = home();
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    let mut wire = home.connect();
    wire.call("stop", json!({ "name": "one" })).unwrap();

    for _ in 0..10 {
        let started = wire.call("start", json!({ "name": "one", "wait": false })).unwrap();
        assert_eq!(started, json!({ "started": ["one"], "already_running": [] }));
        let stopped = wire.call("stop", json!({ "name": "one" })).unwrap();
        assert_eq!(stopped, json!({ "stopped": ["one"], "not_running": [] }));
        assert_eq!(status(&home, "one")["state"], "stopped");
        assert_eq!(texts(&tail(&home, "one", 1)), ["stopping: stdin closed"]);
        let left: Vec<_> = marked_processes(home.mark());
        assert!(left.iter().all(|it| it.pid == daemon.pid), "{left:#?}");
    }
}

#[test]
fn a_restart_gives_a_new_process_and_is_no_failure() {
    let home = home();
    home.server("one", &sleeper(&home));
    home.daemon();
    let before = running(&home, "one");

    let restarted = ask(&home, "restart", json!({ "name": "one" }));

    assert_eq!(restarted, json!({ "restarted": ["one"] }));
    let after = status(&home, "one");
    assert_eq!(after["state"], "running");
    assert_ne!(pid_in(&after), before);
    assert!(!is_alive(before));
    assert_eq!((&after["restart_count"], &after["restarts_total"]), (&json!(0), &json!(0)));
    assert_eq!(after["last_exit"]["expected"], true);
}

#[test]
fn a_restart_of_a_stopped_server_starts_it() {
    let home = home();
    home.server("one", &sleeper(&home));
    home.daemon();
    ask(&home, "stop", json!({ "name": "one" }));

    assert_eq!(ask(&home, "restart", json!({ "name": "one" })), json!({ "restarted": ["one"] }));
    let up = status(&home, "one");
    assert_eq!((&up["state"], &up["wanted"]), (&json!("running"), &json!("up")));
}

#[test]
fn what_is_already_so_is_told_apart_from_what_was_done() {
    let home = home();
    home.server("a", &sleeper(&home));
    home.server("b", &sleeper(&home));
    home.daemon();
    let a = running(&home, "a");
    running(&home, "b");

    let answer = ask(&home, "start", json!({ "name": "a" }));
    assert_eq!(answer, json!({ "started": [], "already_running": ["a"] }));
    ask(&home, "stop", json!({ "name": "b" }));
    let answer = ask(&home, "stop", json!({ "name": "b" }));
    assert_eq!(answer, json!({ "stopped": [], "not_running": ["b"] }));
    let answer = ask(&home, "start", json!({ "all": true }));
    assert_eq!(answer, json!({ "started": ["b"], "already_running": ["a"] }));
    assert_eq!(running(&home, "a"), a);
    ask(&home, "stop", json!({ "name": "b" }));
    let answer = ask(&home, "stop", json!({ "all": true }));
    assert_eq!(answer, json!({ "stopped": ["a"], "not_running": ["b"] }));
    let answer = ask(&home, "restart", json!({ "all": true }));
    assert_eq!(answer, json!({ "restarted": ["a", "b"] }));
}

#[test]
fn one_server_that_cannot_start_does_not_spoil_the_answer_for_all() {
    let home = home();
    home.server("bad", "command \"/no/such/program\"\n");
    home.server("good", &sleeper(&home));
    home.daemon();
    home.wait_for_state("bad", "failed");
    running(&home, "good");

    let mut answer = ask(&home, "start", json!({ "all": true }));
    let failed = answer["failed"].take();
    assert_eq!(failed[0]["name"], "bad");
    assert_eq!(failed[0]["error"]["code"], -32006);
    assert_eq!(failed.as_array().unwrap().len(), 1);
    assert_eq!(answer["already_running"], json!(["good"]));
    let answer = ask(&home, "restart", json!({ "all": true }));
    assert_eq!(answer["restarted"], json!(["good"]));
    assert_eq!(answer["failed"][0]["name"], "bad");
    let answer = ask(&home, "stop", json!({ "all": true }));
    assert_eq!(answer, json!({ "stopped": ["good"], "not_running": ["bad"] }));
}

#[test]
fn who_does_not_want_to_wait_is_answered_at_once() {
    let home = home();
    home.server("one", &deaf(&home, "10m"));
    home.daemon();
    let pid = running(&home, "one");
    says(&home, "one", "ready");

    let answer = ask(&home, "stop", json!({ "name": "one", "wait": false }));
    assert_eq!(answer, json!({ "stopped": ["one"], "not_running": [] }));
    assert_eq!(status(&home, "one")["state"], "stopping");
    let answer = ask(&home, "restart", json!({ "name": "one", "wait": false }));
    assert_eq!(answer, json!({ "restarted": ["one"] }));
    assert_eq!(pid_in(&status(&home, "one")), pid);

    signal(pid, Signal::KILL);
    let up = home.wait_for_state("one", "running");
    assert_ne!(pid_in(&up), pid);
    ask(&home, "stop", json!({ "name": "one", "wait": false }));
    signal(pid_in(&up), Signal::KILL);
    home.wait_for_state("one", "stopped");
}

#[test]
fn an_unknown_server_is_an_error_that_names_the_nearest() {
    let home = home();
    home.server("github", &sleeper(&home));
    home.daemon();
    for method in ["status", "start", "stop", "restart", "logs"] {
        let error = refused(&home, method, json!({ "name": "gihtub" }));
        assert_eq!(error["code"], -32001, "{method}");
        assert_eq!(error["message"], "no server named `gihtub`");
        assert_eq!(error["data"]["hint"], "did you mean `github`?");
    }
    let error = refused(&home, "start", json!({ "name": "zzz" }));
    assert_eq!(error["data"]["hint"], "`xy list` shows all servers");
}

// The daemon's own end.

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
