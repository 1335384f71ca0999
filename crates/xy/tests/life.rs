//! The life of servers under a real daemon: how they come up, go down and come back.
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

/// A moment is told by another clock than a delay is kept by, and cut to milliseconds.
const TWO_CLOCKS: u64 = 50;

/// Dies with `code` in its first `lives` lives; a later one stays.
fn mortal(home: &Home, name: &str, code: &str, lives: &str) -> String {
    home.expect_left("tmp/");
    let file = home.root().join("tmp").join(name);
    let args = ["--code", code, "--say", "I die", "--until", lives, "--lives"];
    home.kdl_command("xy-test-exit", &[&args[..], &[file.to_str().unwrap()]].concat())
}

fn lives_of(home: &Home, name: &str) -> usize {
    fs::read_to_string(home.root().join("tmp").join(name)).unwrap().lines().count()
}
