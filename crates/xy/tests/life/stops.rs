//! Stops, starts and restarts of servers on request.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{is_alive, marked_processes};

use crate::support::{
    ask, home, millis_in, pid_in, refused, running, signal, sleeper, status, tail, term_ignorer,
    texts, wait_for_line,
};
use crate::{CLOCK_TOLERANCE_MS, lives_of, mortal};

#[test]
fn stop_closes_stdin_or_sends_sigterm() {
    let home = home();
    home.server("stdio", &sleeper(&home));
    home.server("http", &format!("{}port 8421\n", sleeper(&home)));
    home.daemon();
    let pids = ["stdio", "http"].map(|name| running(&home, name));
    for (name, pid) in ["stdio", "http"].into_iter().zip(pids) {
        wait_for_line(&home, name, &format!("started {pid}"));
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
fn server_that_ignores_term_is_killed_after_its_grace() {
    let home = home();
    home.server("stdio", &term_ignorer(&home, "600ms"));
    home.server("http", &format!("{}port 8421\n", term_ignorer(&home, "600ms")));
    home.daemon();
    for name in ["stdio", "http"] {
        wait_for_line(&home, name, "ready");
    }

    let stopped = ask(&home, "stop", json!({ "all": true }));
    assert_eq!(stopped, json!({ "stopped": ["http", "stdio"], "not_running": [] }));

    for name in ["stdio", "http"] {
        let stopped = status(&home, name);
        let took = millis_in("stopping", &stopped);
        assert!(took.len() == 1 && took[0] + CLOCK_TOLERANCE_MS >= 600, "{took:?}");
        assert_eq!(texts(&tail(&home, name, 1)), ["got TERM"]);
        assert_eq!(stopped["last_exit"]["signal"], 9);
        assert_eq!(stopped["last_exit"]["expected"], true);
    }
}

#[test]
fn stop_during_backoff_is_final() {
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
fn start_during_backoff_is_immediate() {
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
fn stop_during_start_is_final() {
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
fn restart_gives_a_new_process_without_failure() {
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
fn restart_starts_a_stopped_server() {
    let home = home();
    home.server("one", &sleeper(&home));
    home.daemon();
    ask(&home, "stop", json!({ "name": "one" }));

    assert_eq!(ask(&home, "restart", json!({ "name": "one" })), json!({ "restarted": ["one"] }));
    let up = status(&home, "one");
    assert_eq!((&up["state"], &up["wanted"]), (&json!("running"), &json!("up")));
}

#[test]
fn unchanged_servers_are_reported_as_unchanged() {
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
fn starting_and_isolated_servers_are_reported() {
    let home = home();
    // The server never completes its handshake, for which it has a minute.
    let silent = home.kdl_command("xy-test-sleep-server", &[]);
    home.server("late", &format!("{silent}ready {{ probe \"mcp\"; within \"60s\"; }}\n"));
    home.server("own", &format!("{}isolation \"client\"\n", home.kdl_mcp(&[])));
    home.daemon();
    home.wait_for_state("late", "starting");

    let answer = ask(&home, "start", json!({ "name": "late", "wait": false }));
    assert_eq!(answer, json!({ "started": ["late"], "already_running": [] }));
    let nowhere = json!({ "started": [], "already_running": [], "when_needed": ["own"] });
    assert_eq!(ask(&home, "start", json!({ "name": "own" })), nowhere);
    ask(&home, "stop", json!({ "name": "own" }));
    assert_eq!(ask(&home, "start", json!({ "name": "own" })), nowhere);
    assert_eq!(home.xy(&["start", "own"]).stdout, "own starts with the next client\n");
}

#[test]
fn reload_reports_servers_that_did_not_start() {
    let home = home();
    home.server("good", &sleeper(&home));
    home.server("later", &sleeper(&home));
    home.daemon();
    running(&home, "good");
    running(&home, "later");
    home.server("bad", "command \"/no/such/program\"\n");
    home.server("later", "command \"/no/such/program\"\n");
    home.server("own", &format!("{}isolation \"client\"\n", home.kdl_mcp(&[])));

    let ran = home.xy(&["reload"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.contains("+ bad"), "the changes are printed too: {ran:?}");
    for server in ["bad", "later"] {
        let error = format!("error: server `{server}` did not start\n");
        assert_eq!(ran.stderr.matches(&error).count(), 1, "{ran:?}");
    }
    assert!(!ran.stderr.contains("`good`") && !ran.stderr.contains("`own`"), "{ran:?}");
    let nothing_new = home.xy(&["reload"]);
    assert_eq!(nothing_new.code, 0, "{nothing_new:?}");
    assert!(!nothing_new.stderr.contains("did not start"), "{nothing_new:?}");
}

#[test]
fn failed_start_does_not_fail_the_others() {
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
fn request_without_wait_is_answered_immediately() {
    let home = home();
    home.server("one", &term_ignorer(&home, "10m"));
    home.daemon();
    let pid = running(&home, "one");
    wait_for_line(&home, "one", "ready");

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
fn unknown_server_error_suggests_a_name() {
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
