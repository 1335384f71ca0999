//! Tests that are interrupted, by whoever asked or by the end of the daemon.

use std::fs;
use std::process::{Child, Output, Stdio};

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::Home;

use crate::support::{ask, running, signal};
use crate::{closed_home, tested};

/// Begins a test, and does not wait for it.
#[track_caller]
fn begin(home: &Home) -> Child {
    let mut command = home.command(&["self-test"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
fn ends(home: &Home, mut child: Child) -> Output {
    home.wait_until("it has ended", || child.try_wait().unwrap());
    child.wait_with_output().unwrap()
}

#[test]
fn who_leaves_or_is_killed_in_the_middle_of_a_test_breaks_nothing() {
    let home = closed_home();
    let diary = home.root().join("harness/deaf.diary");
    // It answers nothing, so that a test of it takes a while, and says when it was asked.
    let flags =
        ["--only-tools", "--ignore-ping", "--list-never", "--diary", diary.to_str().unwrap()];
    let kdl = format!("{}health {{ probe \"off\" }}\n", home.kdl_mcp(&flags));
    home.write_config("servers/deaf.kdl", &kdl); // Ready once it has spoken.
    let daemon = home.daemon();
    let deaf = running(&home, "deaf");
    let (leaves, stays) = (begin(&home), begin(&home));
    home.wait_until("the test is under way", || {
        // The diary may not be there yet.
        fs::read_to_string(&diary).unwrap_or_default().contains("\"ping\"")
    });

    signal(leaves.id(), Signal::INT);
    let left = ends(&home, leaves);
    assert!(!left.status.success() && left.stdout.is_empty(), "{left:?}");
    assert!(ask(&home, "version", json!({}))["version"].is_string(), "the daemon does not mind");

    daemon.kill9();
    let told = ends(&home, stays);
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    let words = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(words.contains("error: ") && words.contains("hint: "), "{words}");

    home.daemon();
    assert_eq!(running(&home, "deaf"), deaf, "nothing was begun that was not finished");
    home.server("well", &home.kdl_mcp(&["--only-tools"]));
    home.remove_server("deaf");
    ask(&home, "reload", json!({}));
    running(&home, "well");
    assert_eq!(tested(&home)["success"], true, "and the next test is as good as any");
    home.finish();
}
