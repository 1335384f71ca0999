//! Long rounds: daemons and shims that are killed or replaced at random instants.
//!
//! Short by default; `XY_ROUNDS=full` makes them long. What is random comes from a seed
//! that a failed test tells, and `XY_ROUNDS_SEED` sets; the instants of other processes
//! are their own, so a seed makes a failure likely again, not certain.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

#[path = "rounds/census.rs"]
mod census;
#[path = "rounds/chance.rs"]
mod chance;
#[path = "rounds/client.rs"]
mod client;
#[path = "rounds/crew.rs"]
mod crew;
#[path = "rounds/diary.rs"]
mod diary;
#[path = "rounds/ear.rs"]
mod ear;
#[path = "rounds/killed_daemon.rs"]
mod killed_daemon;
#[path = "rounds/killed_shim.rs"]
mod killed_shim;
#[path = "rounds/other_protocol.rs"]
mod other_protocol;
#[path = "rounds/replaced.rs"]
mod replaced;
#[path = "rounds/restarts.rs"]
mod restarts;
mod support;

use std::time::Duration;

/// Whether the rounds are long.
fn is_full() -> bool {
    std::env::var_os("XY_ROUNDS").is_some_and(|value| value == "full")
}

/// How many rounds: so many in full, so many in short.
fn rounds(full: u64, short: u64) -> u64 {
    if is_full() { full } else { short }
}

/// Does nothing for a while: the instant of what comes next is to be any.
#[expect(clippy::disallowed_methods, reason = "an instant at random is what is wanted")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Tells a figure; it is shown with `--no-capture`, or when the test fails.
#[expect(clippy::print_stderr, reason = "the figures of a long run are for a person")]
fn tell(figure: &str) {
    eprintln!("{figure}");
}
