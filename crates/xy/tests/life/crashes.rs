//! Crashes and restarts of servers.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, is_alive, marked_processes};

#[cfg(target_os = "linux")]
use crate::start::mirror_record;
use crate::support::{
    ask, changes_in, home, millis_in, pid_in, refused, running, running_after, signal, sleeper,
    status, wait_for_line,
};
use crate::{CLOCK_TOLERANCE_MS, lives_of, mortal};

#[test]
fn backoff_grows_with_each_crash() {
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
    let tries = ["attempt 1 of 3", "attempt 2 of 3", "final restart attempt (3 of 3)"];
    assert_eq!(reasons[1..], tries);

    let waits = millis_in("restarting", &failed);
    assert_eq!(waits.len(), 3);
    for (wait, least) in waits.iter().zip([150, 300, 400]) {
        assert!(*wait + CLOCK_TOLERANCE_MS >= least, "{waits:?}");
    }
}

#[test]
fn short_life_is_delayed_without_backoff() {
    let home = home();
    let rules = "restart { backoff-initial \"0s\"; max-attempts 2 }\n";
    home.server("one", &format!("{}{rules}", home.kdl_command("xy-test-exit", &[])));
    home.daemon();

    let waits = millis_in("restarting", &home.wait_for_state("one", "failed"));
    assert_eq!(waits.len(), 2);
    assert!(waits.iter().all(|wait| wait + CLOCK_TOLERANCE_MS >= 100), "{waits:?}");
}

/// Starts a daemon with three servers that each end once: cleanly, with an error, and by a signal
/// from outside.
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
fn policy_always_restarts_after_every_exit() {
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
fn policy_on_failure_restarts_unless_exit_is_clean() {
    let home = three_deaths("on-failure");
    let clean = home.wait_for_state("clean", "stopped");
    assert_eq!(clean["reason"], "exited with code 0");
    assert_eq!(clean["restarts_total"], 0);
    running_after(&home, "dirty", 1);
    running_after(&home, "killed", 1);
    assert_eq!(lives_of(&home, "clean"), 1);
}

#[test]
fn policy_never_does_not_restart() {
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
fn killed_server_gets_a_new_process() {
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
fn children_end_with_their_server() {
    let home = home();
    let shell = |script: &str| format!("command \"sh\"\nargs \"-c\" \"{script}\"\n");
    let never = "restart { policy \"never\" }\n";
    let stopped = shell("sleep 600 & echo two >&2; sleep 600 | sleep 600");
    home.server("stopped", &format!("{stopped}port 8421\n"));
    home.server("crashed", &format!("{}{never}", shell("sleep 600 & sleep 600 & exit 1")));
    let daemon = home.daemon();
    home.wait_for_state("crashed", "failed");
    wait_for_line(&home, "stopped", "two");

    ask(&home, "stop", json!({ "name": "stopped" }));

    let left = marked_processes(home.mark());
    assert!(left.iter().all(|it| it.pid == daemon.pid), "{left:#?}");
}

#[test]
#[cfg(target_os = "linux")]
fn server_with_a_killed_shim_is_restarted() {
    let home = home();
    let rules = "restart { backoff-initial \"10ms\" }\n";
    home.server("one", &format!("{}{rules}", home.kdl_command("xy-test-mirror", &[])));
    home.daemon();
    let before = mirror_record(&home, "one");

    signal(u32::try_from(before["ppid"].as_u64().unwrap()).unwrap(), Signal::KILL);

    let after = running_after(&home, "one", 1);
    assert_ne!(after["pid"], before["pid"]);
    home.wait_until("the old one is dead", || !is_alive(pid_in(&before)));
    assert_eq!(after["last_exit"]["expected"], false);
}

#[test]
fn repeated_restarts_fail_until_a_start() {
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
fn too_many_exits_per_minute_fail_until_a_restart() {
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
fn unstartable_program_fails_with_a_hint() {
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

/// Returns the file of a shell script that is not restarted.
fn script(text: &str) -> String {
    let never = "restart { policy \"never\" }\nstop { grace \"2s\" }\n";
    format!("command \"/bin/sh\"\nargs \"-c\" \"{text}\"\n{never}")
}

#[test]
fn failed_start_shows_last_stderr() {
    let home = home();
    home.write_config("servers/one.kdl", &script("echo boom: no key >&2; exit 3"));
    home.daemon();
    home.wait_for_state("one", "failed");
    for verb in ["start", "restart", "reload"] {
        let ran = home.xy(&[verb, "one"]);
        assert_eq!(ran.code, 1, "{ran:?}");
        for expected in ["server `one` did not start", "exited with code 3", "boom: no key"] {
            assert!(ran.stderr.contains(expected), "{verb}, {expected}: {ran:?}");
        }
    }
    home.finish();
}

#[test]
fn server_that_logs_to_stdout_is_reported() {
    let home = home();
    let kdl = script("echo Listening on nothing; exec sleep 1000");
    home.write_config("servers/one.kdl", &format!("{kdl}ready {{ within \"300ms\" }}\n"));
    home.daemon();
    let failed = home.wait_for_state("one", "failed");
    let expected = "not ready within 300ms, and it wrote text to stdout that is not MCP: `Listening on nothing`";
    assert_eq!(failed["reason"], expected);
    let started = home.xy(&["start", "one"]).stderr;
    assert!(
        started.contains(expected) && started.contains("print its logs to stderr"),
        "{started}"
    );
    // xy sent the signal that ended the server.
    let exit = &status(&home, "one")["last_exit"];
    assert_eq!((&exit["signal"], &exit["by_xy"]), (&json!(15), &json!(true)), "{exit}");
    let shown = home.xy(&["status", "one"]).stdout;
    assert!(shown.contains("signal 15 (ended by xy)"), "{shown}");
    home.finish();
}
