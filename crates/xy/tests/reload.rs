//! Reading the files again: only what changed is touched, and all of it or nothing.

mod support;

use std::fs;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{
    ask, deaf, home, pid_in, refused, running, running_after, says, signal, status, tail, texts,
};
use xy_testkit::{Home, is_alive};

fn sleeper(home: &Home, rest: &str) -> String {
    format!("{}{rest}\n", support::sleeper(home))
}

fn reload(home: &Home) -> Value {
    ask(home, "reload", Value::Null)
}

/// What a reload answers; what is not named is empty.
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
fn a_new_file_is_a_new_server() {
    let home = home();
    home.server("old", &sleeper(&home, ""));
    home.daemon();
    let old = running(&home, "old");

    home.server("new", &sleeper(&home, ""));
    assert_eq!(reload(&home), answer(&[("added", &["new"]), ("unchanged", &["old"])]));

    // The answer comes when it has settled.
    assert_eq!(status(&home, "new")["state"], "running");
    assert_eq!(running(&home, "old"), old);
}

#[test]
fn a_server_whose_file_is_gone_is_ended_and_forgotten() {
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
fn a_server_that_is_another_process_now_is_replaced() {
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
fn other_rules_hold_for_the_living_process() {
    let home = home();
    home.server("grace", &deaf(&home, "10m"));
    home.server("policy", &sleeper(&home, "restart { policy \"never\" }"));
    home.daemon();
    let grace = running(&home, "grace");
    let policy = running(&home, "policy");
    says(&home, "grace", "ready");

    home.server("grace", &deaf(&home, "100ms"));
    home.server(
        "policy",
        &sleeper(&home, "restart { policy \"always\"; backoff-initial \"10ms\" }"),
    );
    let names = ["grace", "policy"];
    assert_eq!(reload(&home), answer(&[("changed", &names), ("updated", &names)]));
    assert_eq!([running(&home, "grace"), running(&home, "policy")], [grace, policy]);

    // With the old grace nobody would live to see the end of this.
    ask(&home, "stop", json!({ "name": "grace" }));
    assert_eq!(status(&home, "grace")["last_exit"]["signal"], 9);
    signal(policy, Signal::KILL);
    running_after(&home, "policy", 1);
}

#[test]
fn a_broken_file_changes_nothing_and_is_named_with_line_and_column() {
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

    // Put right, it is done as if nothing had been.
    home.server("one", &sleeper(&home, ""));
    let lists: [(&str, &[&str]); 3] =
        [("added", &["three"]), ("removed", &["two"]), ("unchanged", &["one"])];
    assert_eq!(reload(&home), answer(&lists));
}

#[test]
fn a_file_that_cannot_be_read_as_kdl_changes_nothing() {
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
fn every_problem_of_every_file_is_told_at_once() {
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
fn two_files_with_one_port_are_a_conflict_that_names_both() {
    let home = home();
    home.server("one", &sleeper(&home, "port 8421"));
    home.daemon();
    let before = running(&home, "one");

    home.server("two", &sleeper(&home, "port 8421"));
    let error = refused(&home, "reload", Value::Null);

    assert_eq!(error["code"], -32002, "{error:#}");
    assert_eq!(error["data"]["kind"], "PortConflict");
    let told = error["data"]["problems"].to_string();
    for part in ["servers/one.kdl", "servers/two.kdl", "8421"] {
        assert!(told.contains(part), "{part}: {error:#}");
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
fn a_dry_run_tells_the_plan_and_does_nothing() {
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
fn a_dry_run_with_a_broken_file_is_refused_too() {
    let home = home();
    home.server("one", &sleeper(&home, ""));
    home.daemon();
    home.server("one", &sleeper(&home, "prot 8421"));
    assert_eq!(refused(&home, "reload", json!({ "dry_run": true }))["code"], -32003);
}

#[test]
fn what_an_operator_stopped_stays_stopped_whatever_its_file_says() {
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

    // And what it will be, when somebody starts it, is what the file says now.
    home.server("process", &home.kdl_command("xy-test-mirror", &[]));
    reload(&home);
    ask(&home, "start", json!({ "name": "process" }));
    home.wait_until("the new program has spoken", || {
        texts(&tail(&home, "process", 1)).first().is_some_and(|line| line.starts_with('{'))
    });
}

#[test]
fn a_changed_file_clears_a_failure() {
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
fn an_unchanged_file_does_not_clear_a_failure() {
    let home = home();
    home.server("one", "command \"/no/such/program\"\n");
    home.daemon();
    home.wait_for_state("one", "failed");
    assert_eq!(reload(&home)["unchanged"], json!(["one"]));
    assert_eq!(status(&home, "one")["state"], "failed");
}

#[test]
fn a_file_that_is_renamed_is_one_gone_and_one_new() {
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
fn a_server_that_takes_its_time_to_go_delays_no_other() {
    let home = home();
    home.server("slow", &deaf(&home, "10m"));
    home.server("quick", &sleeper(&home, ""));
    home.daemon();
    let slow = running(&home, "slow");
    running(&home, "quick");
    says(&home, "slow", "ready");
    let mut reloading = home.connect();

    home.remove_server("slow");
    reloading.send(&json!({ "jsonrpc": "2.0", "id": "r", "method": "reload" }));

    // All of this is answered while that reload still waits for `slow`.
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
fn a_server_that_comes_back_waits_for_the_end_of_its_predecessor() {
    let home = home();
    home.server("one", &deaf(&home, "10m"));
    home.daemon();
    let before = running(&home, "one");
    says(&home, "one", "ready");
    let mut reloads = [home.connect(), home.connect()];

    home.remove_server("one");
    reloads[0].send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "reload" }));
    home.wait_until("it is gone", || ask(&home, "list", Value::Null) == json!([]));
    home.server("one", &sleeper(&home, ""));
    reloads[1].send(&json!({ "jsonrpc": "2.0", "id": 2, "method": "reload" }));

    let waiting = home.wait_for_state("one", "stopping");
    assert_eq!(waiting["reason"], "waiting for the end of its predecessor");
    assert!(is_alive(before));
    signal(before, Signal::KILL);
    assert_eq!(reloads[0].next(support::SOON)["result"]["removed"], json!(["one"]));
    assert_eq!(reloads[1].next(support::SOON)["result"]["added"], json!(["one"]));
    assert_ne!(pid_in(&status(&home, "one")), before);
}

#[test]
fn of_two_reloads_at_once_one_does_it_and_both_are_answered() {
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
fn server_that_exits_0_before_it_is_ready_is_told() {
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
fn reload_answers_while_a_start_is_under_way() {
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
