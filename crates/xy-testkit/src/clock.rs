//! The only place that reads the clock and sleeps.
//!
//! Tests here watch real processes, whose time cannot be paused. What waits for
//! something to become true goes through `wait.rs`, which has a limit.

use std::time::{Duration, Instant};

/// The present moment.
#[expect(clippy::disallowed_methods, reason = "real processes live in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Does nothing for `duration`.
#[expect(clippy::disallowed_methods, reason = "the step of a poll that has a limit")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
