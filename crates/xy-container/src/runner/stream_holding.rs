//! The stream holder of a running container, and its replacement.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use xy_shim::stream_holder::HolderCommand;
use xy_supervisor::launch::LifeEvent;

use super::ContainerRunner;
use crate::stream_holder::StreamHolder;

/// Minimum lifetime of a stream holder that is replaced when it is lost.
const MIN_HOLDER_LIFETIME: Duration = Duration::from_secs(1);

impl ContainerRunner {
    /// Starts another holder for its stream, unless the stream has ended.
    pub(super) async fn replace_stream_holder(&mut self) {
        let Some(stream_holder) = self.stream_holder.take() else { return };
        if self.termination.is_some() || stream_holder.is_over() {
            // The stream has ended, which is handled elsewhere.
            return stream_holder.end(&self.shared).await;
        }
        let attached_again = if self.held_since.elapsed() < MIN_HOLDER_LIFETIME {
            stream_holder.end(&self.shared).await;
            Err(io::Error::other("it was lost repeatedly"))
        } else {
            stream_holder.respawn(&self.shared, &self.id).await
        };
        match attached_again {
            Ok(stream_holder) => {
                tracing::warn!(server = %self.order.key, "its stream holder was lost and has been replaced");
                stream_holder.send(HolderCommand::Leader(self.pid));
                (self.stream_holder, self.held_since) = (Some(stream_holder), Instant::now());
            }
            Err(error) => {
                tracing::warn!(server = %self.order.key, %error, "its stream holder was lost: the next daemon cannot take over the stream");
                self.state_file.change(|state| state.held = false);
                let container = self.contained();
                self.report(LifeEvent::Container(Arc::new(container))).await;
            }
        }
    }
}

/// Resolves when a stream holder is gone. Never resolves if there is none. Cancel-safe.
pub(super) async fn wait_until_gone(stream_holder: Option<&StreamHolder>) {
    match stream_holder {
        None => std::future::pending().await,
        Some(stream_holder) => stream_holder.until_gone().await,
    }
}
