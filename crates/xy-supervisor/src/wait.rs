//! The two clocks: the one that waits go by, and the one that people read.

use std::time::SystemTime;

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
