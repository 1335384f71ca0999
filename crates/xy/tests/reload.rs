//! Reload: only changed servers are affected, and a reload applies completely or not at all.

mod support;

use std::fs;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{
    ask, home, pid_in, refused, running, running_after, signal, status, tail, term_ignorer, texts,
    wait_for_line,
};
use xy_testkit::{Home, is_alive};

fn sleeper(home: &Home, rest: &str) -> String {
    format!("{}{rest}\n", support::sleeper(home))
}

fn reload(home: &Home) -> Value {
    ask(home, "reload", Value::Null)
}

/// Returns the answer of a reload with these lists; all others are empty.
fn answer(lists: &[(&str, &[&str])]) -> Value {
    let mut answer = json!({
        "added": [], "removed": [], "changed": [], "unchanged": [], "restarted": [], "updated": [],
    });
    for (list, names) in lists {
        answer[list] = json!(names);
    }
    answer
}

#[test]
fn new_file_adds_a_server() {
    let home = home();
    home.server("old", &sleeper(&home, ""));
    home.daemon();
    let old = running(&home, "old");

    home.server("new", &sleeper(&home, ""));
    assert_eq!(reload(&home), answer(&[("added", &["new"]), ("unchanged", &["old"])]));

    // The answer is sent once the server has settled.
    assert_eq!(status(&home, "new")["state"], "running");
    assert_eq!(running(&home, "old"), old);
}

#[test]
fn removed_file_removes_its_server() {
    let home = home();
    home.server("gone", &sleeper(&home, ""));
    home.server("kept", &sleeper(&home, ""));
    home.daemon();
    let gone = running(&home, "gone");
    let kept = running(&home, "kept");
    ask(&home, "stop", json!({ "name": "gone" }));
    ask(&home, "start", json!({ "name": "gone" }));
    let again = running(&home, "gone");

    home.remove_server("gone");
    assert_eq!(reload(&home), answer(&[("removed", &["gone"]), ("unchanged", &["kept"])]));

    assert!(!is_alive(gone) && !is_alive(again));
    assert_eq!(refused(&home, "status", json!({ "name": "gone" }))["code"], -32001);
    assert_eq!(running(&home, "kept"), kept);
}

#[test]
fn changed_command_replaces_the_server() {
    let home = home();
    home.server("args", &sleeper(&home, ""));
    home.server("env", &sleeper(&home, "env { A 1 }"));
    home.server("port", &sleeper(&home, "port 8421"));
    home.server("same", &sleeper(&home, ""));
    home.daemon();
    let before = ["args", "env", "port", "same"].map(|name| running(&home, name));

    home.server("args", &home.kdl_command("xy-test-sleep-server", &["--every", "5000"]));
    home.server("env", &sleeper(&home, "env { A 2 }"));
    home.server("port", &sleeper(&home, "port 8422"));
    home.server("same", &sleeper(&home, "// Only a comment has been added."));
    let changed = ["args", "env", "port"];
    let lists = [("changed", &changed[..]), ("restarted", &changed), ("unchanged", &["same"])];
    assert_eq!(reload(&home), answer(&lists));

    let after = ["args", "env", "port", "same"].map(|name| pid_in(&status(&home, name)));
    for at in 0..3 {
        assert!(after[at] != before[at] && !is_alive(before[at]), "{before:?} {after:?}");
    }
    assert_eq!(after[3], before[3]);
    assert_eq!(status(&home, "port")["port"], 8422);
    assert_eq!(status(&home, "args")["restarts_total"], 0);
}

#[test]
fn changed_rules_apply_without_a_restart() {
    let home = home();
    home.server("grace", &term_ignorer(&home, "10m"));
    home.server("policy", &sleeper(&home, "restart { policy \"never\" }"));
    home.daemon();
    let grace = running(&home, "grace");
    let policy = running(&home, "policy");
    wait_for_line(&home, "grace", "ready");

    home.server("grace", &term_ignorer(&home, "100ms"));
    home.server(
        "policy",
        &sleeper(&home, "restart { policy \"always\"; backoff-initial \"10ms\" }"),
    );
    let names = ["grace", "policy"];
    assert_eq!(reload(&home), answer(&[("changed", &names), ("updated", &names)]));
    assert_eq!([running(&home, "grace"), running(&home, "policy")], [grace, policy]);

    // With the old grace the stop would time out.
    ask(&home, "stop", json!({ "name": "grace" }));
    assert_eq!(status(&home, "grace")["last_exit"]["signal"], 9);
    signal(policy, Signal::KILL);
    running_after(&home, "policy", 1);
}

#[test]
fn broken_file_is_reported_with_its_location() {
    let home = home();
    home.server("one", &sleeper(&home, ""));
    home.server("two", &sleeper(&home, ""));
    home.daemon();
    let before = [running(&home, "one"), running(&home, "two")];

    home.server("one", &sleeper(&home, "restart {\n    policy \"allways\"\n}"));
    home.remove_server("two");
    home.server("three", &sleeper(&home, ""));
    let error = refused(&home, "reload", Value::Null);

    assert_eq!(error["code"], -32003, "{error:#}");
    assert_eq!(error["data"]["kind"], "ConfigInvalid");
    let problems = error["data"]["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 1, "{error:#}");
    assert_eq!((&problems[0]["line"], &problems[0]["column"]), (&json!(3), &json!(12)));
    assert!(problems[0]["file"].as_str().unwrap().ends_with("servers/one.kdl"));
    let rendered = problems[0]["rendered"].as_str().unwrap();
    assert!(rendered.contains("servers/one.kdl:3:12"), "{rendered}");
    assert!(rendered.contains("did you mean `always`?"), "{rendered}");
    assert_eq!([running(&home, "one"), running(&home, "two")], before);
    assert_eq!(ask(&home, "list", Value::Null).as_array().unwrap().len(), 2);

    // Once corrected, the file is applied.
    home.server("one", &sleeper(&home, ""));
    let lists: [(&str, &[&str]); 3] =
        [("added", &["three"]), ("removed", &["two"]), ("unchanged", &["one"])];
    assert_eq!(reload(&home), answer(&lists));
}

#[test]
fn invalid_kdl_changes_nothing() {
    let home = home();
    home.server("one", &sleeper(&home, ""));
    home.daemon();
    let before = running(&home, "one");

    home.write_config("servers/one.kdl", "command \"/bin/true\nargs {");
    let error = refused(&home, "reload", Value::Null);

    assert_eq!(error["code"], -32003, "{error:#}");
    let rendered = error["data"]["problems"][0]["rendered"].as_str().unwrap();
    assert!(rendered.contains("servers/one.kdl:"), "{rendered}");
    assert_eq!(running(&home, "one"), before);
}

#[test]
fn all_problems_are_reported_at_once() {
    let home = home();
    home.server("one", &sleeper(&home, ""));
    home.daemon();

    home.server("one", "comand \"x\"\nport \"many\"\n");
    home.server("two", &sleeper(&home, "stop { grace \"soon\" }"));
    home.server("bad__name", &sleeper(&home, ""));
    let error = refused(&home, "reload", Value::Null);

    let problems = error["data"]["problems"].as_array().unwrap();
    for file in ["one.kdl", "two.kdl", "bad__name.kdl"] {
        let named = problems.iter().filter(|it| it["file"].as_str().unwrap().ends_with(file));
        assert!(named.count() >= 1, "{error:#}");
    }
    assert!(problems.len() >= 4, "{error:#}");
}

#[test]
fn port_conflict_names_both_files() {
    let home = home();
    home.server("one", &sleeper(&home, "port 8421"));
    home.daemon();
    let before = running(&home, "one");

    home.server("two", &sleeper(&home, "port 8421"));
    let error = refused(&home, "reload", Value::Null);

    assert_eq!(error["code"], -32002, "{error:#}");
    assert_eq!(error["data"]["kind"], "PortConflict");
    let problems = error["data"]["problems"].to_string();
    for part in ["servers/one.kdl", "servers/two.kdl", "8421"] {
        assert!(problems.contains(part), "{part}: {error:#}");
    }
    assert_eq!(running(&home, "one"), before);
    assert_eq!(refused(&home, "status", json!({ "name": "two" }))["code"], -32001);
}

#[test]
fn ports_can_be_swapped() {
    let home = home();
    home.server("one", &sleeper(&home, "port 8421"));
    home.server("two", &sleeper(&home, "port 8422"));
    home.daemon();

    home.server("one", &sleeper(&home, "port 8422"));
    home.server("two", &sleeper(&home, "port 8421"));
    let names = ["one", "two"];
    assert_eq!(reload(&home), answer(&[("changed", &names), ("restarted", &names)]));
    assert_eq!([&status(&home, "one")["port"], &status(&home, "two")["port"]], [8422, 8421]);
}

#[test]
fn dry_run_shows_the_plan_and_changes_nothing() {
    let home = home();
    for name in ["gone", "process", "rules", "same"] {
        home.server(name, &sleeper(&home, ""));
    }
    home.daemon();
    let before = ["gone", "process", "rules", "same"].map(|name| running(&home, name));

    home.remove_server("gone");
    home.server("new", &sleeper(&home, ""));
    home.server("process", &sleeper(&home, "env { A 1 }"));
    home.server("rules", &sleeper(&home, "stop { grace \"3s\" }"));
    let mut plan = answer(&[
        ("added", &["new"]),
        ("removed", &["gone"]),
        ("changed", &["process", "rules"]),
        ("unchanged", &["same"]),
        ("restarted", &["process"]),
        ("updated", &["rules"]),
    ]);
    plan["dry_run"] = json!(true);
    for _ in 0..2 {
        assert_eq!(ask(&home, "reload", json!({ "dry_run": true })), plan);
    }
    let after = ["gone", "process", "rules", "same"].map(|name| pid_in(&status(&home, name)));
    assert_eq!(after, before);
    assert_eq!(ask(&home, "list", Value::Null).as_array().unwrap().len(), 4);

    plan.as_object_mut().unwrap().remove("dry_run");
    assert_eq!(reload(&home), plan);
}

#[test]
fn dry_run_with_a_broken_file_is_refused() {
    let home = home();
    home.server("one", &sleeper(&home, ""));
    home.daemon();
    home.server("one", &sleeper(&home, "prot 8421"));
    assert_eq!(refused(&home, "reload", json!({ "dry_run": true }))["code"], -32003);
}

#[test]
fn stopped_server_stays_stopped_after_a_file_change() {
    let home = home();
    home.server("process", &sleeper(&home, ""));
    home.server("rules", &sleeper(&home, ""));
    home.daemon();
    ask(&home, "stop", json!({ "all": true }));

    home.server("process", &sleeper(&home, "env { A 1 }"));
    home.server("rules", &sleeper(&home, "stop { grace \"3s\" }"));
    let answered = reload(&home);
    assert_eq!(answered["changed"], json!(["process", "rules"]));
    for name in ["process", "rules"] {
        let down = status(&home, name);
        assert_eq!((&down["state"], &down["pid"]), (&json!("stopped"), &Value::Null));
    }

    // The next start uses the changed file.
    home.server("process", &home.kdl_command("xy-test-mirror", &[]));
    reload(&home);
    ask(&home, "start", json!({ "name": "process" }));
    home.wait_until("the new program has written its record", || {
        texts(&tail(&home, "process", 1)).first().is_some_and(|line| line.starts_with('{'))
    });
}

#[test]
fn changed_file_clears_a_failure() {
    let home = home();
    home.server("process", "command \"/no/such/program\"\n");
    let lives = home.root().join("tmp/lives");
    home.expect_left("tmp/lives");
    let args = ["--until", "1", "--lives", lives.to_str().unwrap()];
    let mortal = home.kdl_command("xy-test-exit", &args);
    home.server("rules", &format!("{mortal}restart {{ policy \"never\" }}\n"));
    home.daemon();
    home.wait_for_state("process", "failed");
    home.wait_for_state("rules", "failed");

    home.server("process", &sleeper(&home, ""));
    home.server("rules", &format!("{mortal}restart {{ policy \"always\" }}\n"));
    let answered = reload(&home);

    assert_eq!(answered["restarted"], json!(["process"]));
    assert_eq!(answered["updated"], json!(["rules"]));
    for name in ["process", "rules"] {
        let up = status(&home, name);
        assert_eq!((&up["state"], &up["reason"]), (&json!("running"), &json!("ready")));
    }
}

#[test]
fn unchanged_file_keeps_a_failure() {
    let home = home();
    home.server("one", "command \"/no/such/program\"\n");
    home.daemon();
    home.wait_for_state("one", "failed");
    assert_eq!(reload(&home)["unchanged"], json!(["one"]));
    assert_eq!(status(&home, "one")["state"], "failed");
}

#[test]
fn renamed_file_removes_and_adds_a_server() {
    let home = home();
    home.server("old", &sleeper(&home, "port 8421"));
    home.daemon();
    let before = running(&home, "old");

    let servers = home.root().join("config/xy/servers");
    fs::rename(servers.join("old.kdl"), servers.join("new.kdl")).unwrap();
    assert_eq!(reload(&home), answer(&[("added", &["new"]), ("removed", &["old"])]));

    assert_ne!(pid_in(&status(&home, "new")), before);
    assert!(!is_alive(before));
}

#[test]
fn slow_stop_delays_no_other_server() {
    let home = home();
    home.server("slow", &term_ignorer(&home, "10m"));
    home.server("quick", &sleeper(&home, ""));
    home.daemon();
    let slow = running(&home, "slow");
    running(&home, "quick");
    wait_for_line(&home, "slow", "ready");
    let mut reloading = home.connect();

    home.remove_server("slow");
    reloading.send(&json!({ "jsonrpc": "2.0", "id": "r", "method": "reload" }));

    // The daemon answers these requests while the reload still waits for `slow`.
    home.wait_until("the reload has begun", || {
        ask(&home, "list", Value::Null).as_array().unwrap().len() == 1
    });
    ask(&home, "restart", json!({ "name": "quick" }));
    ask(&home, "stop", json!({ "name": "quick" }));
    ask(&home, "start", json!({ "name": "quick" }));
    home.server("new", &sleeper(&home, ""));
    assert_eq!(reload(&home), answer(&[("added", &["new"]), ("unchanged", &["quick"])]));
    assert!(is_alive(slow));

    signal(slow, Signal::KILL);
    let answered = reloading.next(support::SOON);
    let lists: [(&str, &[&str]); 2] = [("removed", &["slow"]), ("unchanged", &["quick"])];
    assert_eq!((&answered["id"], &answered["result"]), (&json!("r"), &answer(&lists)));
}

#[test]
fn returning_server_waits_for_its_predecessor() {
    let home = home();
    home.server("one", &term_ignorer(&home, "10m"));
    home.daemon();
    let before = running(&home, "one");
    wait_for_line(&home, "one", "ready");
    let mut reloads = [home.connect(), home.connect()];

    home.remove_server("one");
    reloads[0].send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "reload" }));
    home.wait_until("it is gone", || ask(&home, "list", Value::Null) == json!([]));
    home.server("one", &sleeper(&home, ""));
    reloads[1].send(&json!({ "jsonrpc": "2.0", "id": 2, "method": "reload" }));

    let waiting = home.wait_for_state("one", "stopping");
    assert_eq!(waiting["reason"], "waiting for the previous instance to exit");
    assert!(is_alive(before));
    signal(before, Signal::KILL);
    assert_eq!(reloads[0].next(support::SOON)["result"]["removed"], json!(["one"]));
    assert_eq!(reloads[1].next(support::SOON)["result"]["added"], json!(["one"]));
    assert_ne!(pid_in(&status(&home, "one")), before);
}

#[test]
fn concurrent_reloads_are_both_answered() {
    let home = home();
    home.server("old", &sleeper(&home, ""));
    home.server("changed", &sleeper(&home, ""));
    home.daemon();
    let before = [running(&home, "old"), running(&home, "changed")];
    home.remove_server("old");
    home.server("new", &sleeper(&home, ""));
    home.server("changed", &sleeper(&home, "env { A 1 }"));

    let answers = thread::scope(|scope| {
        let reloads = [0; 4].map(|_| scope.spawn(|| reload(&home)));
        reloads.map(|reload| reload.join().unwrap())
    });

    let count = |list: &str| answers.iter().filter(|it| it[list] != json!([])).count();
    assert_eq!([count("added"), count("removed"), count("restarted")], [1, 1, 1], "{answers:#?}");
    assert!(!before.into_iter().any(is_alive));
    running(&home, "new");
    let changed = home.wait_for_state("changed", "running");
    let starts = changed["transitions"].as_array().unwrap().iter();
    assert_eq!(starts.filter(|it| it["to"] == "starting").count(), 2, "{changed:#}");
}

#[test]
fn clean_exit_before_ready_is_reported() {
    let home = home();
    home.daemon();
    let brief = home.kdl_command("xy-test-exit", &["--code", "0"]);
    home.server("brief", &format!("{brief}ready {{ probe \"mcp\" }}\n"));
    let done = reload(&home);
    assert_eq!((&done["added"], &done["failed"][0]["name"]), (&json!(["brief"]), &json!("brief")));
    let cause = done["failed"][0]["error"]["data"]["cause"].as_str().unwrap_or_default();
    assert!(cause.contains("exited with code 0"), "{done:#}");
    home.finish();
}

#[test]
fn reload_does_not_wait_for_a_start() {
    let home = home();
    let slow = |rest: &str| {
        let never_ready = home.kdl_command("xy-test-sleep-server", &[]);
        format!("{never_ready}\nready {{ within \"10m\" }}\n{rest}\n")
    };
    home.server("slow", &slow(""));
    home.daemon();
    home.wait_for_state("slow", "starting");
    assert_eq!(reload(&home), answer(&[("unchanged", &["slow"])]));
    home.server("slow", &slow("stop { grace \"1s\" }"));
    home.server("new", &sleeper(&home, ""));
    let lists: [(&str, &[&str]); 3] =
        [("added", &["new"]), ("changed", &["slow"]), ("updated", &["slow"])];
    assert_eq!(reload(&home), answer(&lists));
    assert_eq!(status(&home, "slow")["state"], "starting");
    home.finish();
}
