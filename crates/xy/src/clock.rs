//! The clocks of a blocking program: a limit on waiting, and the time of day for people.

use std::time::{Duration, Instant, SystemTime};

use xy_protocol::time::Timestamp;

/// A moment after which waiting is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    /// `None` is never.
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
        self.left() == Some(Duration::ZERO)
    }

    /// What is left until then; `None` is for ever.
    pub(crate) fn left(self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(monotonic_now()))
    }

    /// What is left, but at most `most`.
    pub(crate) fn left_at_most(self, most: Duration) -> Duration {
        self.left().map_or(most, |left| left.min(most))
    }
}

/// The time since a moment.
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

/// The time of day.
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
