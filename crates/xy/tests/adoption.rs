//! Killed daemons, and the daemons that adopt their servers.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

#[path = "adoption/continuity.rs"]
mod continuity;
#[path = "adoption/discovery.rs"]
mod discovery;
#[path = "adoption/files.rs"]
mod files;
#[path = "adoption/replace.rs"]
mod replace;
mod support;
#[path = "adoption/without_daemon.rs"]
mod without_daemon;

use support::{parent_of, sleeper, term_ignorer};
use xy_testkit::Home;

/// Returns the settings of a server that runs this script, with its own stdin.
fn shell(script: &str) -> String {
    format!("command \"bash\"\nargs \"-c\" #\"{script}\"#\n")
}

/// Waits until another instance of a server runs, and asserts that the previous one is gone.
#[track_caller]
fn renewed(home: &Home, name: &str, before: u32) {
    home.wait_until(&format!("there is another `{name}`"), || {
        let now = support::status(home, name);
        now["state"] == "running" && now["pid"] != before
    });
    assert!(!xy_testkit::is_alive(before), "`{name}` is there twice");
}
