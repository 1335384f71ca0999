//! The life of servers under a real daemon: starts, stops and restarts.
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

#[path = "life/crashes.rs"]
mod crashes;
#[path = "life/daemon_end.rs"]
mod daemon_end;
#[path = "life/start.rs"]
mod start;
#[path = "life/stops.rs"]
mod stops;
mod support;

use std::fs;

use xy_testkit::Home;

/// Tolerance in milliseconds: times and delays use different clocks, and times are truncated.
const CLOCK_TOLERANCE_MS: u64 = 50;

/// Returns the file of a server that exits with `code` in its first `lives` lives, and then stays.
fn mortal(home: &Home, name: &str, code: &str, lives: &str) -> String {
    home.expect_left("tmp/");
    let file = home.root().join("tmp").join(name);
    let args = ["--code", code, "--say", "I die", "--until", lives, "--lives"];
    home.kdl_command("xy-test-exit", &[&args[..], &[file.to_str().unwrap()]].concat())
}

fn lives_of(home: &Home, name: &str) -> usize {
    fs::read_to_string(home.root().join("tmp").join(name)).unwrap().lines().count()
}
