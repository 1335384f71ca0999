//! The two clocks: the one that waits go by, and the one that people read.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};

/// The time of day, which somebody may set: to be shown, and for nothing else.
#[expect(clippy::disallowed_methods, reason = "nothing waits by it")]
pub(crate) fn time_of_day() -> SystemTime {
    SystemTime::now()
}

/// Resolves at `moment`; never, if there is none.
pub(crate) async fn until(moment: Option<Instant>) {
    match moment {
        None => std::future::pending().await,
        Some(moment) => sleep_until(moment).await,
    }
}

/// How long something takes, the time in which the machine sleeps included: that is told
/// besides, as nothing is waited for by it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    began: Instant,
    /// By the clock that goes on while the machine sleeps.
    began_awake_or_not: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { began: Instant::now(), began_awake_or_not: since_boot() }
    }

    /// The longer of the two: one of them stands still in tests, the other in sleep.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed().max(since_boot().saturating_sub(self.began_awake_or_not))
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
