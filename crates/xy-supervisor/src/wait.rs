//! The two clocks: the monotonic clock for waits, and the wall clock for people.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};

/// Returns the wall-clock time. For display only, as users can set this clock.
#[expect(clippy::disallowed_methods, reason = "no wait depends on it")]
pub fn time_of_day() -> SystemTime {
    SystemTime::now()
}

/// Returns a duration in milliseconds, the unit of the wire.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Resolves at `moment`. Never resolves for `None`.
pub async fn until(moment: Option<Instant>) {
    match moment {
        None => std::future::pending().await,
        Some(moment) => sleep_until(moment).await,
    }
}

/// A stopwatch that includes the time in which the machine is suspended. Not for waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    started: Instant,
    /// The start by the clock that continues during suspension.
    started_since_boot: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), started_since_boot: since_boot() }
    }

    /// Returns the longer time of the two clocks. One stands still in tests with paused time, the
    /// other during suspension.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed().max(since_boot().saturating_sub(self.started_since_boot))
    }
}

fn since_boot() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}
