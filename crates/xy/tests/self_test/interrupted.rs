//! Self-tests that are interrupted by their client or by the end of the daemon.

use std::fs;
use std::process::{Child, Output, Stdio};

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::Home;

use crate::support::{ask, running, signal};
use crate::{home_without_gateway, run_self_test};

/// Starts a self-test without waiting for it.
#[track_caller]
fn begin(home: &Home) -> Child {
    let mut command = home.command(&["self-test"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
fn wait_for_end(home: &Home, mut child: Child) -> Output {
    home.wait_until("it has ended", || child.try_wait().unwrap());
    child.wait_with_output().unwrap()
}

#[test]
fn interrupted_self_test_breaks_nothing() {
    let home = home_without_gateway();
    let input_log = home.root().join("harness/deaf.input");
    // The server answers no probe, so that its test takes a while, and it records each request.
    let flags = [
        "--only-tools",
        "--ignore-ping",
        "--list-never",
        "--input-log",
        input_log.to_str().unwrap(),
    ];
    let kdl = format!("{}health {{ probe \"off\" }}\n", home.kdl_mcp(&flags));
    home.write_config("servers/deaf.kdl", &kdl); // Ready after its handshake.
    let daemon = home.daemon();
    let unresponsive = running(&home, "deaf");
    let (leaves, stays) = (begin(&home), begin(&home));
    home.wait_until("the test is under way", || {
        // The file may not exist yet.
        fs::read_to_string(&input_log).unwrap_or_default().contains("\"ping\"")
    });

    signal(leaves.id(), Signal::INT);
    let left = wait_for_end(&home, leaves);
    assert!(!left.status.success() && left.stdout.is_empty(), "{left:?}");
    assert!(ask(&home, "version", json!({}))["version"].is_string(), "the daemon does not mind");

    daemon.kill9();
    let output = wait_for_end(&home, stays);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("error: ") && words.contains("hint: "), "{words}");

    home.daemon();
    assert_eq!(running(&home, "deaf"), unresponsive, "no restart was left unfinished");
    home.server("well", &home.kdl_mcp(&["--only-tools"]));
    home.remove_server("deaf");
    ask(&home, "reload", json!({}));
    running(&home, "well");
    assert_eq!(run_self_test(&home)["success"], true, "and the next test is as good as any");
    home.finish();
}
