//! The control socket from outside: every message on the wire, and every kind of client.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::path::Path;
use std::time::Duration;

use xy_testkit::Home;

#[path = "control/hostile.rs"]
mod hostile;
#[path = "control/journal.rs"]
mod journal;
#[path = "control/many_clients.rs"]
mod many_clients;
#[path = "control/redact.rs"]
mod redact;
#[path = "control/streams.rs"]
mod streams;
#[path = "control/talk.rs"]
mod talk;
#[path = "control/words.rs"]
mod words;

/// Timeout of a wait; nothing that works takes this long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a home for the xy under test.
fn home() -> Home {
    Home::new(Path::new(env!("CARGO_BIN_EXE_xy")))
}

/// Returns a home whose daemon runs the server `one`.
fn home_with_one() -> Home {
    let home = home();
    // A gateway port would differ each time.
    home.write_config("xy.kdl", "gateway { listen \"off\"; }\n");
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "600000"]));
    home.daemon();
    home.wait_for_state("one", "running");
    home
}

/// Kills a server's process, for servers that would end slowly.
fn kill(pid: &serde_json::Value) {
    let pid = i32::try_from(pid.as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
