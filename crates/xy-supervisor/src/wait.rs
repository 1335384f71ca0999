//! Waiting for a moment that may never come.

use tokio::time::{Instant, sleep_until};

/// Resolves at `moment`; never, if there is none.
pub(crate) async fn until(moment: Option<Instant>) {
    match moment {
        None => std::future::pending().await,
        Some(moment) => sleep_until(moment).await,
    }
}
