//! Containers in the output of the front ends.

use serde_json::json;

use crate::stage::Engine;
use crate::support::{ask, home, running, status};

crate::with_each_engine!(
    status_shows_container_and_confinement,
    diagnostics_show_engine_without_secrets,
    verb_without_daemon_says_one_is_needed,
    request_verb_has_timeout,
);

fn status_shows_container_and_confinement(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-mcp"], "network \"none\"; memory \"64MiB\"; pids 100");
    home.write_config("servers/one.kdl", &kdl);
    home.daemon();
    running(&home, "one");
    let now = status(&home, "one");
    let container = &now["container"];
    assert_eq!(container["id"], engine.container(&home), "{now:#}");
    assert_eq!(container["engine"], engine.kind);
    assert_eq!(container["socket"], engine.socket.to_str().unwrap());
    assert!(container["version"].as_str().unwrap().contains('.'), "{now:#}");
    assert_eq!(container["ends_with_daemon"], false);
    assert_eq!((&now["alive"], &now["ready"]), (&json!(true), &json!(true)));
    assert_eq!(now["containment"], "container");
    let limits = json!([
        { "name": "memory", "value": 64 << 20, "kept_by": "engine" },
        { "name": "pids", "value": 100, "kept_by": "engine" },
    ]);
    assert_eq!(now["limits"], limits);
    let used = &now["instances"][0];
    assert!(used["memory_bytes"].as_u64() > Some(100_000), "{used:#}");
    assert!(used["cpu_ms"].is_u64(), "{used:#}");
    assert_eq!(now["log_path"], home.log_file("one").to_str().unwrap());
    let shown = home.xy(&["status", "one"]).stdout;
    assert!(shown.contains(container["name"].as_str().unwrap()), "{shown}");

    ask(&home, "stop", json!({ "name": "one" }));
    let now = status(&home, "one");
    assert_eq!((&now["container"], &now["alive"]), (&json!(null), &json!(false)), "{now:#}");
    engine.finish(home);
}

fn diagnostics_show_engine_without_secrets(engine: &Engine) {
    let home = home();
    let more = "network \"none\"; env { API_KEY \"s3cr3t-in-a-container\"; }";
    home.write_config("servers/one.kdl", &engine.kdl(&home, &["xy-test-mcp"], more));
    home.daemon();
    running(&home, "one");
    let report = ask(&home, "diagnostics", json!({}));
    let server = &report["servers"][0];
    assert_eq!(server["status"]["container"]["engine"], engine.kind, "{server:#}");
    assert_eq!(server["configuration"]["container"]["image"], "localhost/xy-test");
    assert!(server["configuration"]["container"]["env"]["API_KEY"].is_string(), "{server:#}");
    assert!(!report.to_string().contains("s3cr3t"), "{server:#}");
    engine.finish(home);
}

fn verb_without_daemon_says_one_is_needed(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let ran = home.xy(&["connect", "--direct", "one"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("it is a container"), "{ran:?}");
    assert!(ran.stderr.contains("xy connect --server one"), "{ran:?}");
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

fn request_verb_has_timeout(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    home.daemon();
    running(&home, "one");
    let request = |params: &str, timeout: &str| {
        home.xy(&["request", "one", "tools/call", "--params", params, "--timeout", timeout])
    };
    let echo = r#"{"name":"echo","arguments":{"message":"hello"}}"#;
    let asked = request(echo, "60s");
    assert!(asked.code == 0 && asked.stdout.contains("hello"), "{asked:?}");
    let slow = r#"{"name":"slow_echo","arguments":{"message":"late","ms":600000}}"#;
    let late = request(slow, "1s");
    assert!(late.code == 1 && !late.stdout.contains("late"), "{late:?}");
    assert!(late.stderr.contains("1s"), "it is told how long was waited: {late:?}");
    let asked = request(echo, "60s");
    assert!(asked.code == 0 && asked.stdout.contains("hello"), "{asked:?}");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    engine.finish(home);
}
