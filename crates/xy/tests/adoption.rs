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

use xy_testkit::Home;

fn sleeper(home: &Home) -> String {
    home.kdl_command("xy-test-sleep-server", &[])
}

/// Ignores TERM, and has so long until the KILL.
fn deaf(home: &Home, grace: &str) -> String {
    format!("{}stop {{ grace \"{grace}\" }}\n", home.kdl_command("xy-test-ignore-term", &[]))
}

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

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}
