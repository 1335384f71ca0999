//! The log of a daemon with `XY_LOG=debug`.

use serde_json::json;

use crate::fixtures::{home, local_client, ready, serve};

#[test]
fn debug_log_has_lists_calls_and_errors_without_arguments() {
    let home = home().with_env("XY_LOG", "debug");
    serve(&home, "a", &["--only-tools"]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let client = local_client(&home);
    client.tool_names();
    let echoed = client.call_text("a__echo", json!({ "message": "s3cr3t-argument" }));
    assert_eq!(echoed, "s3cr3t-argument");
    client.call("a__missing", json!({ "message": "s3cr3t-argument" }));
    client.call("list_servers", json!({}));
    client.call("add_server", json!({ "name": "b", "command": 7, "args": ["s3cr3t-argument"] }));
    client.request("resources/read", json!({ "uri": "file:///s3cr3t-argument" }));
    home.wait_until("all entries are logged", || {
        let log = daemon.stderr();
        ["lists learned", "tool=\"echo\"", "tool=\"add_server\"", "a request failed"]
            .iter()
            .all(|it| log.contains(it))
    });
    let log = daemon.stderr();
    let call = log.lines().find(|line| line.contains("tool=\"echo\"")).unwrap();
    for part in ["server=\"a\"", "client=\"xy-testkit#", "elapsed=", "outcome=\"ok\""] {
        assert!(call.contains(part), "{part}: {call}");
    }
    assert!(call.contains("session{client=") && call.contains(":call{id="), "{call}");
    let ready = log.lines().find(|line| line.contains("to=running")).unwrap();
    assert!(ready.contains("life{server=a restarts=0}"), "{ready}");
    let lists = log.lines().find(|line| line.contains("lists learned")).unwrap();
    assert!(lists.contains("tools=") && lists.contains("server=a"), "{lists}");
    assert!(log.contains("outcome=\"InvalidParams\""), "{log}");
    assert!(!log.contains("s3cr3t"), "{log}");
    home.finish();
}
