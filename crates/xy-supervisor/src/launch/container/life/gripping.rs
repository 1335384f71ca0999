//! Who holds the stream of a container while no daemon does, and what if it is lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use xy_shim::grip::Word;

use super::super::grip::Grip;
use super::Driver;
use crate::launch::News;

/// A grip that is lost sooner than this is not followed by another.
const LEAST_GRIP: Duration = Duration::from_secs(1);

impl Driver {
    /// Has its stream held by another, if it still is one.
    pub(super) async fn grip_again(&mut self) {
        let Some(grip) = self.grip.take() else { return };
        if self.fate.is_some() || grip.is_over() {
            return grip.end(&self.shared).await; // It has ended, or was cut off: others see that.
        }
        let again = if self.gripped_at.elapsed() < LEAST_GRIP {
            grip.end(&self.shared).await;
            Err(io::Error::other("it was lost again and again"))
        } else {
            grip.again(&self.shared, &self.id).await
        };
        match again {
            Ok(grip) => {
                tracing::warn!(server = %self.order.key, "who held its stream was lost: another does");
                grip.tell(Word::Leader(self.pid));
                (self.grip, self.gripped_at) = (Some(grip), Instant::now());
            }
            Err(error) => {
                tracing::warn!(server = %self.order.key, %error, "nobody holds its stream for the next daemon any more");
                self.keeper.change(|kept| kept.held = false);
                let container = self.contained();
                self.tell(News::Contained(Arc::new(container))).await;
            }
        }
    }
}

/// Resolves when a grip is gone; never, while there is none. Cancel-safe.
pub(super) async fn gone(grip: Option<&Grip>) {
    match grip {
        None => std::future::pending().await,
        Some(grip) => grip.until_gone().await,
    }
}
