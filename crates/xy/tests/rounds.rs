//! Long rounds: daemons and shims are killed or replaced at random moments.
//!
//! The rounds are short by default; `XY_ROUNDS=full` makes them long. Random numbers come from a
//! seed, which a failed test prints and `XY_ROUNDS_SEED` sets. Other processes have their own
//! timing, so a seed makes a failure likely again, not certain.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

#[path = "rounds/client.rs"]
mod client;
#[path = "rounds/exit_recorder.rs"]
mod exit_recorder;
#[path = "rounds/fleet.rs"]
mod fleet;
#[path = "rounds/killed_daemon.rs"]
mod killed_daemon;
#[path = "rounds/killed_shim.rs"]
mod killed_shim;
#[path = "rounds/other_protocol.rs"]
mod other_protocol;
#[path = "rounds/processes.rs"]
mod processes;
#[path = "rounds/replaced.rs"]
mod replaced;
#[path = "rounds/restarts.rs"]
mod restarts;
#[path = "rounds/rng.rs"]
mod rng;
#[path = "rounds/run_log.rs"]
mod run_log;
mod support;

use std::time::Duration;

/// Returns true if the rounds are long.
fn is_full() -> bool {
    std::env::var_os("XY_ROUNDS").is_some_and(|value| value == "full")
}

/// Returns the number of rounds.
fn rounds(full: u64, short: u64) -> u64 {
    if is_full() { full } else { short }
}

/// Sleeps, so that the next action happens at a random moment.
#[expect(clippy::disallowed_methods, reason = "the rounds need random delays")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Prints a figure, which is shown with `--no-capture` or when the test fails.
#[expect(clippy::print_stderr, reason = "the figures of a long run are for a person")]
fn print_figure(figure: &str) {
    eprintln!("{figure}");
}
