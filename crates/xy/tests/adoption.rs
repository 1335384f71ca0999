//! A daemon that is killed, and the one that comes after it.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

#[path = "adoption/alone.rs"]
mod alone;
#[path = "adoption/files.rs"]
mod files;
#[path = "adoption/found.rs"]
mod found;
#[path = "adoption/goes_on.rs"]
mod goes_on;
#[path = "adoption/replace.rs"]
mod replace;
mod support;

use support::{deaf, parent_of, sleeper};
use xy_testkit::Home;

/// A server that does what a script says, with its own stdin.
fn shell(script: &str) -> String {
    format!("command \"bash\"\nargs \"-c\" #\"{script}\"#\n")
}

/// Waits until a server runs that is not the one from before, which must be gone.
#[track_caller]
fn renewed(home: &Home, name: &str, before: u32) {
    home.wait_until(&format!("there is another `{name}`"), || {
        let now = support::status(home, name);
        now["state"] == "running" && now["pid"] != before
    });
    assert!(!xy_testkit::is_alive(before), "`{name}` is there twice");
}
