//! Deadlines, stopwatches and the time of day, for blocking code.

use std::time::{Duration, Instant, SystemTime};

use xy_protocol::time::Timestamp;

/// A moment at which waiting ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    /// `None` means never.
    at: Option<Instant>,
}

impl Deadline {
    pub(crate) fn after(within: Duration) -> Self {
        Self { at: monotonic_now().checked_add(within) }
    }

    pub(crate) fn never() -> Self {
        Self { at: None }
    }

    pub(crate) fn has_passed(self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }

    /// Returns the remaining time; `None` if there is no deadline.
    pub(crate) fn remaining(self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(monotonic_now()))
    }

    /// Returns the remaining time, but at most `most`.
    pub(crate) fn remaining_at_most(self, most: Duration) -> Duration {
        self.remaining().map_or(most, |left| left.min(most))
    }
}

/// A measurement of elapsed time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { started: monotonic_now() }
    }

    /// Returns the time since the start; it never decreases.
    pub(crate) fn elapsed(self) -> Duration {
        monotonic_now().saturating_duration_since(self.started)
    }
}

/// Returns the current time of day.
#[expect(clippy::disallowed_methods, reason = "it is shown, and nothing waits by it")]
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a verb has no runtime whose clock tests could pause"
)]
fn monotonic_now() -> Instant {
    Instant::now()
}
