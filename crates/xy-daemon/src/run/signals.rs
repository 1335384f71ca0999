//! What the outside tells a daemon by signals.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use xy_protocol::control::Reload;

use crate::daemon::{Daemon, Ending};
use crate::handlers::reload;

/// What the outside tells by signals.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(super) async fn end(&mut self) {
        end_by(&mut self.terminate, &mut self.interrupt).await;
    }

    /// Waits for the end; a hang-up reloads, also when a terminal has died.
    pub(super) async fn until_end(&mut self, daemon: &Arc<Daemon>) -> Ending {
        let mut ending = daemon.ending.subscribe();
        let mut reload = JoinSet::new();
        loop {
            tokio::select! {
                () = end_by(&mut self.terminate, &mut self.interrupt) => return Ending::Shutdown,
                asked = ending.wait_for(|ending| *ending != Ending::No) => {
                    return asked.map_or(Ending::Shutdown, |ending| *ending);
                }
                () = daemon.fleet.closed() => {
                    tracing::error!("the fleet has failed");
                    return Ending::Shutdown;
                }
                Some(_) = reload.join_next() => {}
                // One at a time: a hang-up that comes meanwhile is heard afterwards.
                _ = self.hangup.recv(), if reload.is_empty() => {
                    let daemon = daemon.clone();
                    reload.spawn(async move { reload_and_tell(&daemon).await });
                }
            }
        }
    }
}

/// Waits for either of the signals that end a daemon. Cancel-safe.
async fn end_by(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => tracing::info!("got SIGTERM"),
        _ = interrupt.recv() => tracing::info!("got SIGINT"),
    }
}

async fn reload_and_tell(daemon: &Daemon) {
    match reload::handle(daemon, &Reload::default()).await {
        Ok(done) => tracing::info!(
            added = done.added.len(),
            removed = done.removed.len(),
            restarted = done.restarted.len(),
            updated = done.updated.len(),
            "got SIGHUP and reloaded"
        ),
        Err(error) => {
            tracing::error!("got SIGHUP, but {error}");
            for problem in error.problems {
                tracing::error!("{}", problem.rendered);
            }
        }
    }
}
