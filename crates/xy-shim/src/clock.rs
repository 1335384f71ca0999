//! The only clock of the shim; everything else is told the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When something was read: for deadlines, and for people.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) unix_millis: u64,
}

/// Now, for deadlines.
#[expect(
    clippy::disallowed_methods,
    reason = "there is no tokio in a shim, so no paused time either"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A moment to come; beyond the end of time it is in a century.
pub(crate) fn after(now: Instant, wait: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_hours(100 * 365 * 24);
    now + wait.min(CENTURY)
}

/// Now, for records.
#[expect(clippy::disallowed_methods, reason = "it is shown, and nothing waits by it")]
pub(crate) fn moment() -> Moment {
    // A clock before 1970 is wrong anyway.
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let unix_millis = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
    Moment { at: now(), unix_millis }
}
