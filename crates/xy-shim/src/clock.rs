//! The only clock of the shim. All other modules receive the time as an argument.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point in time, for deadlines and as wall-clock time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) unix_millis: u64,
}

/// Returns the current time for deadlines.
#[expect(
    clippy::disallowed_methods,
    reason = "there is no tokio in a shim, so no paused time either"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns `now + wait`, or a time in a century if that is out of range.
pub(crate) fn after(now: Instant, wait: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_hours(100 * 365 * 24);
    now + wait.min(CENTURY)
}

/// Returns the current time for records.
#[expect(clippy::disallowed_methods, reason = "it is shown, and nothing waits by it")]
pub(crate) fn moment() -> Moment {
    // A clock set before 1970 counts as 1970.
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let unix_millis = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
    Moment { at: now(), unix_millis }
}
