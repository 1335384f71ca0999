//! Files that change while there is no daemon.

use serde_json::{Value, json};
use xy_testkit::is_alive;

use crate::support::{ask, home, pid_in, refused, running, status};
use crate::{renewed, sleeper};

#[test]
fn changed_files_are_applied_like_reload() {
    let home = home();
    for name in ["same", "rules", "process", "gone"] {
        home.server(name, &sleeper(&home));
    }
    let daemon = home.daemon();
    let before = ["same", "rules", "process", "gone"].map(|name| running(&home, name));
    daemon.kill9();
    home.server("rules", &format!("{}stop {{ grace \"7s\" }}\n", sleeper(&home)));
    home.server("process", &format!("{}env {{ A \"b\" }}\n", sleeper(&home)));
    home.remove_server("gone");
    home.server("new", &sleeper(&home));
    home.daemon();
    let [same, rules, process, gone] = before;
    assert_eq!((running(&home, "same"), running(&home, "rules")), (same, rules));
    renewed(&home, "process", process);
    running(&home, "new");
    home.wait_until("the removed one is gone", || !is_alive(gone));
    assert_eq!(refused(&home, "status", json!({ "name": "gone" }))["code"], -32001);
}

#[test]
fn broken_file_keeps_last_good_settings() {
    let home = home();
    for name in ["one", "two", "idle"] {
        home.server(name, &sleeper(&home));
    }
    let daemon = home.daemon();
    let before = ["one", "two"].map(|name| running(&home, name));
    ask(&home, "stop", json!({ "name": "idle" }));
    daemon.kill9();
    home.server("one", "command \"x\"\nrestart { policy \"allways\" }");
    home.server("idle", "nonsense");
    let daemon = home.daemon();

    let one = status(&home, "one");
    assert_eq!((&one["state"], pid_in(&one)), (&json!("running"), before[0]));
    let warning = "its file cannot be used now, so it keeps its last good settings: see `xy check`";
    assert_eq!(one["warnings"], json!([warning]));
    let two = status(&home, "two");
    assert_eq!((pid_in(&two), &two["warnings"]), (before[1], &Value::Null));
    assert!(daemon.stderr().contains("unknown restart policy `allways`"), "{}", daemon.stderr());
    // A restart works too, with the settings of the first start.
    ask(&home, "restart", json!({ "name": "one" }));
    assert_ne!(running(&home, "one"), before[0]);

    // This server is not running, so it has failed until its file is corrected.
    let idle = status(&home, "idle");
    assert_eq!((&idle["state"], &idle["reason_kind"]), (&json!("failed"), &json!("bad_file")));
    let reloaded = ask(&home, "reload", json!({}));
    assert_eq!(reloaded["unchanged"], json!(["one", "two"]), "both were bad before");
    home.server("one", &sleeper(&home));
    home.server("idle", &sleeper(&home));
    let reloaded = ask(&home, "reload", json!({}));
    assert_eq!((&reloaded["updated"], &reloaded["added"]), (&json!(["one"]), &json!(["idle"])));
    assert_eq!(status(&home, "one")["warnings"], Value::Null);
    let idle = status(&home, "idle");
    assert_eq!((&idle["state"], &idle["wanted"]), (&json!("stopped"), &json!("down")));
}

#[test]
fn broken_common_file_keeps_running_servers() {
    let home = home();
    for name in ["one", "two"] {
        home.server(name, &sleeper(&home));
    }
    let daemon = home.daemon();
    let before = ["one", "two"].map(|name| running(&home, name));
    daemon.kill9();
    home.write_config("xy.kdl", "defaults { nonsense }");
    home.server("new", &sleeper(&home));
    let daemon = home.daemon();
    assert_eq!(["one", "two"].map(|name| running(&home, name)), before);
    running(&home, "new"); // With the last good settings.
    daemon.kill9();
    std::fs::remove_file(home.root().join("state/xy/last-good.json")).unwrap();
    home.server("newer", &sleeper(&home));
    home.daemon();
    assert_eq!(["one", "two"].map(|name| running(&home, name)), before);
    let newer = status(&home, "newer");
    let reason = newer["reason"].as_str().unwrap();
    assert!(newer["state"] == "failed" && reason.contains("xy.kdl"), "{newer:#}");
    assert_eq!(refused(&home, "reload", json!({}))["code"], -32003);
}

#[test]
fn missing_folder_is_not_an_empty_folder() {
    let home = home();
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    let before = running(&home, "one");
    daemon.kill9();
    let servers = home.root().join("config/xy/servers");
    let elsewhere = home.root().join("tmp/servers");
    std::fs::rename(&servers, &elsewhere).unwrap(); // As if its disk was not mounted yet.
    home.daemon();
    assert_eq!(running(&home, "one"), before);
    std::fs::rename(&elsewhere, &servers).unwrap();
    ask(&home, "reload", json!({}));
    assert_eq!(status(&home, "one")["warnings"], Value::Null);
    assert_eq!(running(&home, "one"), before);
}

#[test]
fn broken_file_is_fatal_without_running_servers() {
    let home = home();
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    running(&home, "one");
    assert!(daemon.terminate().success());
    home.server("one", "nonsense");
    assert_eq!(home.daemon_fails().status.code(), Some(3));
}
