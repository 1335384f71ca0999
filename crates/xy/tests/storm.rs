//! Storms: many clients call servers while servers or daemons are killed, stopped or replaced at
//! random moments. Each call has a number and each execution leaves a line on disk, so that
//! afterwards every call is accounted for.
//!
//! Storms are short by default. `XY_ROUNDS=full` makes them long, as for `rounds`, and the seed is
//! printed and set in the same way.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

#[path = "storm/clients.rs"]
mod clients;
#[path = "storm/daemons.rs"]
mod daemons;
#[path = "storm/fault_plan.rs"]
mod fault_plan;
#[path = "storm/faults.rs"]
mod faults;
#[path = "storm/fixture.rs"]
mod fixture;
#[path = "storm/kills.rs"]
mod kills;
#[path = "storm/ledger.rs"]
mod ledger;
#[path = "storm/remote.rs"]
mod remote;
#[path = "rounds/rng.rs"]
mod rng;
mod support;
#[path = "storm/troubles.rs"]
mod troubles;

use std::time::{Duration, Instant};

/// Returns the duration of a storm: `full` or `short` seconds.
fn seconds(full: u64, short: u64) -> Duration {
    let is_full = std::env::var_os("XY_ROUNDS").is_some_and(|value| value == "full");
    Duration::from_secs(if is_full { full } else { short })
}

/// Returns the current time. Recoveries are measured, but no test asserts their duration.
#[expect(clippy::disallowed_methods, reason = "real processes live in real time")]
fn now() -> Instant {
    Instant::now()
}

/// Waits, so that the next event happens at a random moment.
#[expect(clippy::disallowed_methods, reason = "an instant at random is what is wanted")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Prints a figure. It is shown with `--no-capture`, or if the test fails.
#[expect(clippy::print_stderr, reason = "the figures of a storm are for a person")]
fn print_figure(figure: &str) {
    eprintln!("{figure}");
}
