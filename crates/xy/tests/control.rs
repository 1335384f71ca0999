//! The control socket from outside: every word on the wire, and every kind of client.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::path::Path;
use std::time::Duration;

use xy_testkit::Home;

#[path = "control/crowds.rs"]
mod crowds;
#[path = "control/hostile.rs"]
mod hostile;
#[path = "control/journal.rs"]
mod journal;
#[path = "control/redact.rs"]
mod redact;
#[path = "control/streams.rs"]
mod streams;
#[path = "control/talk.rs"]
mod talk;
#[path = "control/words.rs"]
mod words;

/// Nothing here takes this long unless it never comes.
const SOON: Duration = Duration::from_secs(20);

/// A home for the xy under test.
fn home() -> Home {
    Home::new(Path::new(env!("CARGO_BIN_EXE_xy")))
}

/// A home whose daemon runs the server `one`.
fn home_with_one() -> Home {
    let home = home();
    home.write_config("xy.kdl", "gateway { listen \"off\"; }\n"); // A port is another one each time.
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "600000"]));
    home.daemon();
    home.wait_for_state("one", "running");
    home
}

/// Kills the process `pid` of a server: for those that would take their time.
fn kill(pid: &serde_json::Value) {
    let pid = i32::try_from(pid.as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
