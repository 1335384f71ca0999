//! Servers added and removed at runtime, and isolated servers.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

use std::fs;
use std::path::PathBuf;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{ask, refused, running, sleeper, status, wait_for_line};
use xy_testkit::{Home, McpStdio, Ran, is_alive};

/// Returns a home whose servers are ready once they run: the test servers speak no MCP.
fn home() -> Home {
    let home = support::home();
    home.write_config("xy.kdl", "defaults { ready { probe \"process\"; }; }");
    home
}

/// Returns the path of a test server.
fn program(home: &Home, name: &str) -> String {
    home.program(name).to_str().unwrap().to_owned()
}

/// Runs `xy add` for a server that runs until it is stopped, with further flags.
fn add(home: &Home, name: &str, flags: &[&str]) -> Ran {
    let sleeps = program(home, "xy-test-sleep-server");
    home.xy(&[&["add", name], flags, &["--", &sleeps]].concat())
}

fn names(home: &Home) -> Vec<String> {
    let list = ask(home, "list", Value::Null);
    list.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the process of the only server runs, and returns its id.
fn starting(home: &Home) -> u32 {
    let only = home.wait_until("it starts", || {
        let listed = ask(home, "list", Value::Null);
        listed[0]["pid"].is_u64().then(|| listed[0].clone())
    });
    assert_eq!(only["state"], "starting", "{only:#}");
    support::pid_in(&only)
}

/// Connects a client that may manage servers.
fn connect(home: &Home) -> McpStdio {
    let client = home.mcp_connect(&[]);
    client.initialize();
    client
}

fn file_of(home: &Home, name: &str) -> PathBuf {
    home.root().join(format!("config/xy/servers/{name}.kdl"))
}

#[test]
fn added_server_survives_daemon_restarts_until_removed() {
    let home = home();
    home.server("filed", &sleeper(&home));
    let daemon = home.daemon();
    let added = add(&home, "extra", &[]);
    assert_eq!(added.code, 0, "{added:?}");
    let pid = running(&home, "extra");
    assert_eq!(added.stdout, format!("added extra: running, pid {pid}\n"));
    assert_eq!(names(&home), ["extra", "filed"]);
    assert!(status(&home, "extra")["config_file"].as_str().unwrap().ends_with("xy/added.json"));

    daemon.kill9();
    let daemon = home.daemon();
    assert_eq!(running(&home, "extra"), pid, "it was taken over");
    let reloaded = ask(&home, "reload", Value::Null);
    assert_eq!((&reloaded["removed"], &reloaded["unchanged"]), (&json!([]), &json!(["filed"])));

    daemon.terminate();
    home.daemon();
    let again = running(&home, "extra");
    assert_ne!(again, pid, "it was restarted");

    let removed = home.xy(&["remove", "extra"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    assert!(removed.stdout.starts_with("removed extra\n"), "{removed:?}");
    assert_eq!(names(&home), ["filed"]);
    home.wait_until("it ends", || !is_alive(again));
    let unknown = home.xy(&["remove", "fild"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("did you mean `filed`?"), "{unknown:?}");
    home.finish();
}

#[test]
fn removed_server_is_unlisted_and_killed_after_its_grace() {
    let home = home();
    home.daemon();
    let ignores = program(&home, "xy-test-ignore-term");
    // With a grace of one hour the server is alive when the test reads the list.
    for (name, grace) in [("slow", "1h"), ("quick", "200ms")] {
        let added = home.xy(&["add", name, "--grace", grace, "--", &ignores]);
        assert_eq!(added.code, 0, "{added:?}");
    }
    let pids = ["slow", "quick"].map(|name| running(&home, name));
    for name in ["slow", "quick"] {
        assert_eq!(home.xy(&["remove", name]).code, 0);
    }
    assert_eq!(names(&home), [""; 0]);
    assert!(is_alive(pids[0]), "the removal does not wait for it");
    home.wait_until("it is killed", || !is_alive(pids[1]));
    assert!(is_alive(pids[0]), "its grace is not over");
    support::signal(pids[0], Signal::KILL);
    home.wait_until("it is gone", || !is_alive(pids[0]));
    home.finish();
}

#[test]
fn failed_add_registers_nothing_and_gives_the_reason() {
    let home = home();
    home.server("filed", &sleeper(&home));
    home.daemon();
    running(&home, "filed");

    let missing = home.xy(&["add", "a", "--", "/nowhere/at/all"]);
    assert_eq!(missing.code, 1, "{missing:?}");
    assert!(missing.stderr.contains("server `a` was not added"), "{missing:?}");
    assert!(missing.stderr.contains("`/nowhere/at/all` does not exist"), "{missing:?}");
    let missing = refused(&home, "add", json!({ "name": "a", "command": "/nowhere/at/all" }));
    assert_eq!(missing["code"], -32006, "{missing:#}");

    let taken = add(&home, "filed", &[]);
    assert_eq!(taken.code, 1);
    assert!(taken.stderr.contains("there is a server of that name"), "{taken:?}");
    let taken = refused(&home, "add", json!({ "name": "filed", "command": "x" }));
    assert_eq!(taken["code"], -32004, "{taken:#}");

    let named = refused(&home, "add", json!({ "name": "a__b", "command": "x" }));
    assert_eq!(named["code"], -32602, "{named:#}");
    let wrong = add(&home, "a", &["--grace", "5", "--restart", "allways", "--env", "XY_A=1"]);
    assert_eq!(wrong.code, 3, "{wrong:?}");
    for words in ["did you mean `always`?", "XY_A", "is not a duration"] {
        assert!(wrong.stderr.contains(words), "{words}: {wrong:?}");
    }

    assert_eq!(names(&home), ["filed"]);
    assert!(!home.root().join("state/xy/added.json").exists());
    home.finish();
}

#[test]
fn removal_cancels_a_start_in_progress() {
    // The default readiness needs MCP, which this server does not speak.
    let home = support::home();
    home.daemon();
    thread::scope(|scope| {
        let adding = scope.spawn(|| add(&home, "slow", &["--ready-within", "10m"]));
        let pid = starting(&home);
        ask(&home, "remove", json!({ "name": "slow" }));
        assert_eq!(names(&home), [""; 0]);
        let added = adding.join().unwrap();
        assert!(added.code == 1 && added.stderr.contains("it was removed while it was starting"));
        assert!(!is_alive(pid), "{added:?}");
    });
    // The failed server is gone, so that its name is free.
    let again = home.xy(&["add", "slow", "--", "/bin/false"]);
    assert!(again.stderr.contains("exited with code 1"), "{again:?}");
    home.finish();
}

#[test]
fn remove_tool_cancels_the_start_of_an_added_server() {
    let home = support::home();
    home.daemon();
    let (adding, removing) = (connect(&home), connect(&home));
    let command = program(&home, "xy-test-sleep-server");
    let add = adding.start_call("add_server", json!({ "name": "slow", "command": command }));
    let pid = starting(&home);
    let removed = removing.call_value("remove_server", json!({ "name": "slow" }));
    assert_eq!(removed["removed"], true, "{removed:#}");
    assert_eq!(names(&home), [""; 0]);

    let added = adding.wait_answer(add);
    assert_eq!(added["result"]["isError"], true, "{added:#}");
    let told = added["result"]["content"][0]["text"].as_str().unwrap();
    assert!(told.contains("it was removed while it was starting"), "{told}");
    home.wait_until("it ends", || !is_alive(pid));
    adding.close();
    removing.close();
    home.finish();
}

#[test]
fn remove_tool_cancels_the_start_of_a_server_with_a_file() {
    let home = support::home();
    home.daemon();
    let client = connect(&home);
    let file = format!("{}ready {{ within \"10m\" }}\n", sleeper(&home));
    home.write_config("servers/slow.kdl", &file);
    thread::scope(|scope| {
        let reloading = scope.spawn(|| ask(&home, "reload", Value::Null));
        let pid = starting(&home);
        let kept = client.call("remove_server", json!({ "name": "slow" }));
        assert_eq!(kept["result"]["isError"], true, "{kept:#}");
        assert_eq!(names(&home), ["slow"]);
        client.call_value("remove_server", json!({ "name": "slow", "persist": true }));
        assert_eq!(names(&home), [""; 0]);
        assert!(!file_of(&home, "slow").exists());
        home.wait_until("it ends", || !is_alive(pid));
        let reloaded = reloading.join().unwrap();
        assert_eq!(reloaded["added"], json!(["slow"]), "{reloaded:#}");
    });
    assert_eq!(ask(&home, "reload", Value::Null)["added"], json!([]), "nothing configures it");
    client.close();
    home.finish();
}

#[test]
fn added_server_runs_as_requested() {
    let home = home();
    home.daemon();
    let folder = home.root().join("home").canonicalize().unwrap();
    let added = ask(
        &home,
        "add",
        json!({
            "name": "a", "command": "/bin/sh",
            "args": ["-c", "echo \"$TEXT\" >&2; pwd >&2; exec sleep 1000"],
            "env": { "TEXT": "quoted \"text\" with \\ and é" }, "cwd": folder,
        }),
    );
    assert_eq!((&added["name"], &added["state"]), (&json!("a"), &json!("running")));
    assert!(added["pid"].is_u64(), "{added:#}");
    wait_for_line(&home, "a", "quoted \"text\" with \\ and é");
    wait_for_line(&home, "a", folder.to_str().unwrap());
    let removed = home.xy_json(&["remove", "a"]);
    let log = home.log_file("a");
    assert_eq!(removed, json!({ "name": "a", "log_file": log.to_str().unwrap() }));
    home.finish();
}

#[test]
fn added_server_is_restarted_by_default() {
    let home = home();
    home.daemon();
    let dies = program(&home, "xy-test-exit");
    let args = ["--code", "3", "--after", "300"];
    let never =
        home.xy(&[&["add", "never", "--restart", "never", "--", &dies], &args[..]].concat());
    assert_eq!(never.code, 0, "{never:?}");
    home.wait_for_state("never", "failed");
    let usual = home.xy(&[&["add", "usual", "--", &dies], &args[..]].concat());
    assert_eq!(usual.code, 0, "{usual:?}");
    home.wait_until("it is restarted", || status(&home, "usual")["restarts_total"] != 0);
    assert_eq!(status(&home, "never")["restarts_total"], 0);
    let told = "not restarted when it exits (policy `never`): the client that added it";
    for verb in [&["list"][..], &["status", "never"]] {
        let shown = home.xy(verb).stdout;
        assert_eq!(shown.matches(told).count(), 1, "{shown}");
    }
    home.finish();
}

#[test]
fn persistent_server_is_written_to_a_file() {
    let home = home();
    home.daemon();
    let added = add(&home, "stays", &["--persist", "--env", "A=b \"c\""]);
    assert_eq!(added.code, 0, "{added:?}");
    let pid = running(&home, "stays");
    let text = fs::read_to_string(file_of(&home, "stays")).unwrap();
    assert!(!text.contains("restart"), "the usual policy is not written: {text}");
    let check = home.xy(&["check"]);
    assert_eq!(check.code, 0, "{check:?}");
    assert!(!home.root().join("state/xy/added.json").exists());
    let reloaded = ask(&home, "reload", Value::Null);
    assert_eq!(reloaded["unchanged"], json!(["stays"]), "{reloaded:#}");
    assert_eq!(running(&home, "stays"), pid);

    let refused = home.xy(&["remove", "stays"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("its file `servers/stays.kdl` would configure it again at the next reload")
    );
    assert_eq!(names(&home), ["stays"]);
    let removed = home.xy(&["remove", "stays", "--persist"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    assert!(!file_of(&home, "stays").exists() && names(&home).is_empty());
    home.finish();
}

#[test]
fn server_file_overrides_added_server() {
    let home = home();
    home.daemon();
    home.server("a", &format!("{}stop {{ grace \"3s\" }}\n", sleeper(&home)));
    let text = fs::read_to_string(file_of(&home, "a")).unwrap();
    let refused = add(&home, "a", &["--persist"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("the file `servers/a.kdl` exists"), "{refused:?}");
    assert_eq!(fs::read_to_string(file_of(&home, "a")).unwrap(), text);
    assert!(names(&home).is_empty());

    assert_eq!(add(&home, "a", &[]).code, 0);
    let pid = running(&home, "a");
    let reloaded = ask(&home, "reload", Value::Null);
    assert_eq!(reloaded["updated"], json!(["a"]), "{reloaded:#}");
    assert_eq!(running(&home, "a"), pid);
    assert!(status(&home, "a")["config_file"].as_str().unwrap().ends_with("servers/a.kdl"));
    let added = fs::read_to_string(home.root().join("state/xy/added.json")).unwrap();
    assert!(added.contains("\"servers\": []"), "{added}");
    home.finish();
}

#[test]
fn single_server_is_reloaded() {
    let home = home();
    home.server("one", &sleeper(&home));
    home.server("two", &sleeper(&home));
    home.daemon();
    assert_eq!(add(&home, "extra", &[]).code, 0);
    let before = ["one", "two", "extra"].map(|name| running(&home, name));
    home.server("one", &format!("{}args \"x\"\n", sleeper(&home)));
    home.server("two", "comand \"x\"\n");

    let reloaded = home.xy(&["reload", "one"]);
    assert_eq!((reloaded.code, reloaded.stdout.as_str()), (0, "reloaded one\n"), "{reloaded:?}");
    let same = home.xy_json(&["reload", "extra"]);
    assert_eq!(same["restarted"], json!(["extra"]));
    let broken = home.xy(&["reload", "two"]);
    assert_eq!(broken.code, 3, "{broken:?}");
    assert!(broken.stderr.contains("comand") && !broken.stderr.contains("one.kdl"), "{broken:?}");

    let after = ["one", "two", "extra"].map(|name| running(&home, name));
    assert_ne!(after[0], before[0]);
    assert_eq!(after[1], before[1]);
    assert_ne!(after[2], before[2]);
    assert_eq!(home.xy(&["reload", "nobody"]).code, 1);
    home.finish();
}

#[test]
fn isolated_server_waits_for_clients() {
    let home = home();
    home.server("each", &format!("{}isolation \"client\"\n", sleeper(&home)));
    let daemon = home.daemon();
    let told = status(&home, "each");
    assert_eq!((&told["state"], &told["wanted"]), (&json!("stopped"), &json!("up")));
    assert_eq!(
        (&told["instances"], &told["reason"]),
        (&json!([]), &json!("no client uses it now"))
    );
    let logs = refused(&home, "logs", json!({ "name": "each" }));
    assert_eq!(logs["code"], -32005, "{logs:#}");

    assert_eq!(home.xy(&["stop", "each"]).stdout, "stopped each\n");
    assert_eq!(home.xy(&["stop", "each"]).stdout, "each was not running\n");
    assert_eq!(status(&home, "each")["wanted"], "down");
    daemon.terminate();
    home.daemon();
    assert_eq!(status(&home, "each")["wanted"], "down");
    assert_eq!(home.xy(&["start", "each"]).stdout, "each starts with the next client\n");

    home.server("each", &sleeper(&home));
    assert_eq!(ask(&home, "reload", Value::Null)["restarted"], json!(["each"]));
    let pid = running(&home, "each");
    let shared = &status(&home, "each")["instances"];
    assert_eq!(shared.as_array().map(Vec::len), Some(1), "{shared:#}");
    let shared = &shared[0];
    assert_eq!((&shared["pid"], &shared["state"]), (&json!(pid), &json!("running")));
    assert_eq!(shared["holder"], Value::Null);
    home.finish();
}

#[test]
fn logs_are_purged_only_on_request() {
    let home = home();
    home.daemon();
    for name in ["kept", "gone"] {
        assert_eq!(add(&home, name, &[]).code, 0);
    }
    let pid = running(&home, "gone");
    for name in ["kept", "gone"] {
        let older = home.log_file(name).with_extension("log.1");
        std::fs::write(older, "older\n").unwrap();
    }
    let kept = home.xy(&["remove", "kept"]);
    let log = home.log_file("kept");
    assert_eq!(kept.stdout, format!("removed kept\nits log is kept: {}\n", log.display()));
    assert!(log.exists() && log.with_extension("log.1").exists());

    let gone = home.xy(&["remove", "gone", "--purge"]);
    assert_eq!((gone.code, gone.stdout.as_str()), (0, "removed gone and its logs\n"), "{gone:?}");
    assert!(!is_alive(pid), "its logs go when nothing writes them any more");
    let log = home.log_file("gone");
    assert!(!log.exists() && !log.with_extension("log.1").exists());
    home.finish();
}
