//! A detached daemon starts without bad files, and reports them.

use insta::assert_snapshot;
use serde_json::{Value, json};
use xy_testkit::{Home, is_alive};

use crate::pty::Pty;
use crate::{home, home_with_one, shown};

const BAD: &str = "comand \"x\"\n";

fn detach(home: &Home) {
    let ran = home.xy(&["daemon", "--detach"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

fn state(home: &Home, name: &str) -> Value {
    home.call("status", json!({ "name": name })).unwrap()["state"].clone()
}

fn pid(home: &Home, name: &str) -> Value {
    home.wait_for_state(name, "running")["pid"].clone()
}

fn sleeper(home: &Home) -> String {
    home.kdl_command("xy-test-sleep-server", &["--every", "600000"])
}

#[test]
fn detached_daemon_starts_without_a_bad_file_and_reports_it() {
    let home = home_with_one();
    home.server("bad", BAD);
    let ran = home.xy(&["daemon", "--detach"]);
    assert_snapshot!(shown(&home, &ran));
    pid(&home, "one");

    let listed = home.call("list", Value::Null).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["state"]), (&json!("bad"), &json!("failed")));
    assert_eq!(listed[0]["reason_kind"], "bad_file");
    assert_eq!(home.call("info", Value::Null).unwrap()["servers"], 2);
    assert_snapshot!("status", shown(&home, &home.xy(&["status", "bad"])));
    assert_snapshot!("start", shown(&home, &home.xy(&["start", "bad"])));
    assert_snapshot!("remove", shown(&home, &home.xy(&["remove", "bad"])));
    for verb in ["restart", "logs", "reload", "tools"] {
        let ran = home.xy(&[verb, "bad"]);
        let has_suggestion = ran.stderr.contains("did you mean `command`?");
        assert!(ran.code == 3 && has_suggestion, "{verb}: {ran:?}");
    }
    let started = home.call("start", json!({ "all": true })).unwrap();
    assert_eq!(started["failed"][0]["name"], "bad", "{started:#}");
    assert_eq!(home.xy(&["check"]).code, 3);
    let tested = home.xy(&["self-test"]);
    assert!(tested.stdout.contains("its file cannot be used"), "{tested:?}");
    let client = home.mcp_connect(&[]);
    client.initialize();
    let servers = client.call_value("list_servers", json!({}));
    let warning = servers["servers"][0]["warnings"][0].as_str().unwrap();
    assert!(warning.contains("its file cannot be used"), "{servers:#}");
    client.close();

    assert_eq!(home.xy(&["remove", "bad", "--persist"]).code, 0);
    assert_eq!(home.call("list", Value::Null).unwrap().as_array().unwrap().len(), 1);
    home.finish();
}

#[test]
fn known_bad_file_does_not_block_a_reload() {
    let home = home_with_one();
    home.server("bad", BAD);
    detach(&home);
    let one = pid(&home, "one");

    home.server("two", &sleeper(&home));
    let done = home.call("reload", Value::Null).unwrap();
    assert_eq!((&done["added"], &done["unchanged"]), (&json!(["two"]), &json!(["one"])));
    assert_eq!(state(&home, "bad"), "failed");

    home.server("three", &sleeper(&home));
    home.server("two", BAD);
    let refused = home.call("reload", Value::Null).unwrap_err();
    assert_eq!(refused["code"], -32003, "{refused:#}");
    assert_eq!(state(&home, "two"), "running");
    assert!(home.call("status", json!({ "name": "three" })).is_err());

    home.remove_server("three");
    home.server("two", &sleeper(&home));
    home.server("bad", &sleeper(&home));
    let done = home.call("reload", Value::Null).unwrap();
    assert_eq!(done["added"], json!(["bad"]));
    assert_eq!(state(&home, "bad"), "running");
    assert_eq!(pid(&home, "one"), one);
    home.finish();
}

#[test]
fn corrected_or_removed_bad_file_is_noticed() {
    let home = home_with_one();
    home.server("bad", BAD);
    home.server("gone", BAD);
    detach(&home);
    home.server("bad", &sleeper(&home));
    assert_eq!(home.xy(&["reload", "bad"]).code, 0);
    assert_eq!((state(&home, "bad"), state(&home, "gone")), (json!("running"), json!("failed")));
    home.remove_server("gone");
    assert_eq!(home.call("reload", Value::Null).unwrap()["removed"], json!(["gone"]));
    assert_eq!(home.call("status", json!({ "name": "gone" })).unwrap_err()["code"], -32001);
    home.finish();
}

#[test]
fn flags_and_daemons_file_decide_strictness() {
    let home = home_with_one();
    home.server("bad", BAD);
    assert_eq!(home.xy(&["daemon"]).code, 3);
    assert_eq!(home.xy(&["daemon", "--detach", "--strict"]).code, 3);
    home.write_config("xy.kdl", "strict #true\n");
    assert_eq!(home.xy(&["daemon", "--detach"]).code, 3);
    home.write_config("xy.kdl", "strict #false\n");
    assert_eq!(home.xy(&["daemon", "--strict"]).code, 3);
    let daemon = home.daemon();
    assert_eq!(state(&home, "bad"), "failed");
    daemon.terminate();
    home.write_config("xy.kdl", "strict #true\n");
    home.daemon_with(&["--lenient"]);
    pid(&home, "one");
    home.finish();
}

#[test]
fn daemon_of_a_login_service_starts_without_a_bad_file() {
    let services = [("INVOCATION_ID", "0123456789abcdef"), ("XPC_SERVICE_NAME", "com.example.xy")];
    for (name, value) in services {
        let home = home().with_env(name, value);
        home.server("one", &sleeper(&home));
        home.server("bad", BAD);
        // A shell in a terminal of the desktop inherits the variable.
        let (code, seen) = Pty::new(80).run(&mut home.command(&["daemon"]));
        assert_eq!(code, 3, "{name}: {seen}");
        assert_eq!(home.xy(&["daemon", "--strict"]).code, 3, "{name}");
        home.write_config("xy.kdl", "strict #true\n");
        assert_eq!(home.xy(&["daemon"]).code, 3, "{name}");
        home.write_config("xy.kdl", "");
        home.daemon();
        assert_eq!(state(&home, "bad"), "failed", "{name}");
        pid(&home, "one");
        home.finish();
    }
}

#[test]
fn bad_file_stays_bad_for_the_next_daemon() {
    let home = home_with_one();
    home.server("bad", BAD);
    let daemon = home.daemon_with(&["--lenient"]);
    let one = pid(&home, "one");
    daemon.kill9();
    // Servers of the killed daemon wait for adoption, so this daemon starts too.
    let daemon = home.daemon();
    assert_eq!((state(&home, "bad"), pid(&home, "one")), (json!("failed"), one.clone()));
    let refused = home.xy(&["daemon", "--replace"]);
    assert_eq!(refused.code, 3, "{refused:?}");
    home.daemon_with(&["--replace", "--lenient"]);
    assert!(!is_alive(daemon.pid));
    assert_eq!((state(&home, "bad"), pid(&home, "one")), (json!("failed"), one));
    home.finish();
}

#[test]
fn running_server_keeps_its_port_from_a_new_file() {
    let home = home();
    home.server("b", &format!("{}\nport 8421\nready {{ probe \"process\" }}", sleeper(&home)));
    let daemon = home.daemon();
    let living = pid(&home, "b");
    daemon.kill9();
    home.server("a", &format!("{}\nport 8421\nready {{ probe \"process\" }}", sleeper(&home)));
    home.daemon_with(&["--lenient"]);
    assert_eq!((state(&home, "a"), pid(&home, "b")), (json!("failed"), living));
    let reason = home.call("status", json!({ "name": "a" })).unwrap()["reason"].clone();
    assert!(reason.as_str().unwrap().contains("already used by `servers/b.kdl`"), "{reason}");
    home.finish();
}

#[test]
fn running_server_with_a_bad_file_keeps_its_port() {
    let home = home();
    let on_port = format!("{}\nport 8421\nready {{ probe \"process\" }}", sleeper(&home));
    home.server("a", &on_port);
    home.server("b", &sleeper(&home));
    home.server("c", BAD);
    home.daemon_with(&["--lenient"]);
    let before = ["a", "b"].map(|name| pid(&home, name));
    home.server("a", BAD);
    for name in ["b", "c"] {
        home.server(name, &on_port);
        let refused = home.call("reload", json!({ "name": name })).unwrap_err();
        assert_eq!(refused["data"]["kind"], "PortConflict", "{name}: {refused:#}");
    }
    assert_eq!(["a", "b"].map(|name| pid(&home, name)), before);
    assert_eq!(state(&home, "c"), "failed");
    home.finish();
}

#[test]
fn last_good_version_of_daemons_file_is_used() {
    let home = home_with_one();
    let good = "gateway { listen \"127.0.0.1:0\" }\ndefaults { stop { grace \"3s\" } }\n";
    home.write_config("xy.kdl", good);
    let daemon = home.daemon();
    daemon.terminate();
    home.write_config("xy.kdl", "defaults {");
    assert_eq!(home.xy(&["daemon"]).code, 3);
    detach(&home);
    pid(&home, "one");
    let warning = "`xy.kdl` cannot be used, so its last good version is in use: see `xy check`";
    assert_eq!(home.call("info", Value::Null).unwrap()["warnings"][0], warning);
    let one = home.call("status", json!({ "name": "one" })).unwrap();
    assert!(one["warnings"][0].as_str().unwrap().contains("`xy.kdl`"), "{one:#}");
    let checked = home.xy(&["check"]);
    assert!(checked.stdout.contains("uses the last good version"), "{checked:?}");
    // The file was bad before, so it does not block the others.
    home.server("two", &sleeper(&home));
    assert_eq!(home.call("reload", Value::Null).unwrap()["added"], json!(["two"]));
    home.write_config("xy.kdl", good);
    home.call("reload", Value::Null).unwrap();
    assert_eq!(home.call("info", Value::Null).unwrap().get("warnings"), None);
    home.finish();
}

#[test]
fn bad_profile_without_a_last_good_version_is_fatal() {
    let home = home_with_one();
    home.write_config("profiles/work.kdl", "nonsense 1\n");
    assert_eq!(home.xy(&["daemon", "--detach"]).code, 3);
    home.write_config("profiles/work.kdl", "servers \"one\"\n");
    home.daemon().terminate();
    home.write_config("profiles/work.kdl", "nonsense 1\n");
    detach(&home);
    let explained = home.xy(&["explain", "work", "two__x"]);
    assert!(!explained.stdout.contains("shown by"), "{explained:?}");
    home.finish();
}
