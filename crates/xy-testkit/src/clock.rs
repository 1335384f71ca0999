//! The only module that reads the clock and sleeps.
//!
//! Tests watch real processes, whose time cannot be paused. Code that waits for a condition uses
//! `wait.rs`, which has a time limit.

use std::time::{Duration, Instant};

/// Returns the current time.
#[expect(clippy::disallowed_methods, reason = "real processes live in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Sleeps for `duration`.
#[expect(clippy::disallowed_methods, reason = "the step of a poll that has a limit")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
