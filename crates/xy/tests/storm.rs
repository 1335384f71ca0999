//! Storms: many clients call while what they call is killed, stopped or replaced at random
//! instants. Each call has a number, each execution is a line on disk, and afterwards every
//! call is accounted for.
//!
//! Short by default; `XY_ROUNDS=full` makes them long, as it does with `rounds`, and the seed is
//! told and set in the same way.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

#[path = "storm/blows.rs"]
mod blows;
#[path = "rounds/chance.rs"]
mod chance;
#[path = "storm/clients.rs"]
mod clients;
#[path = "storm/daemons.rs"]
mod daemons;
#[path = "storm/far.rs"]
mod far;
#[path = "storm/kills.rs"]
mod kills;
#[path = "storm/ledger.rs"]
mod ledger;
#[path = "storm/scene.rs"]
mod scene;
mod support;
#[path = "storm/troubles.rs"]
mod troubles;
#[path = "storm/weather.rs"]
mod weather;

use std::time::{Duration, Instant};

/// How long a storm blows: so many seconds in full, so many in short.
fn seconds(full: u64, short: u64) -> Duration {
    let is_full = std::env::var_os("XY_ROUNDS").is_some_and(|value| value == "full");
    Duration::from_secs(if is_full { full } else { short })
}

/// The present moment: a recovery is measured, and nothing asserts how long it takes.
#[expect(clippy::disallowed_methods, reason = "real processes live in real time")]
fn now() -> Instant {
    Instant::now()
}

/// Does nothing for a while: the instant of what comes next is to be any.
#[expect(clippy::disallowed_methods, reason = "an instant at random is what is wanted")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Tells a figure; it is shown with `--no-capture`, or when the test fails.
#[expect(clippy::print_stderr, reason = "the figures of a storm are for a person")]
fn tell(figure: &str) {
    eprintln!("{figure}");
}
