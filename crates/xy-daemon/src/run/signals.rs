//! The signals that end a daemon or make it reload.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use xy_protocol::control::Reload;

use crate::daemon::{Daemon, Phase};
use crate::handlers::reload;

/// The signal streams of a daemon.
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

    /// Waits for SIGTERM or SIGINT.
    pub(super) async fn end(&mut self) {
        end_by(&mut self.terminate, &mut self.interrupt).await;
    }

    /// Waits until the daemon has to end. SIGHUP reloads the files, also one caused by a closed
    /// terminal.
    pub(super) async fn until_end(&mut self, daemon: &Arc<Daemon>) -> Phase {
        let mut phase = daemon.phase.subscribe();
        let mut reload = JoinSet::new();
        loop {
            tokio::select! {
                () = end_by(&mut self.terminate, &mut self.interrupt) => return Phase::ShuttingDown,
                changed = phase.wait_for(|phase| *phase != Phase::Serving) => {
                    return changed.map_or(Phase::ShuttingDown, |phase| *phase);
                }
                () = daemon.fleet.closed() => {
                    tracing::error!("the fleet has failed");
                    return Phase::ShuttingDown;
                }
                Some(_) = reload.join_next() => {}
                // Reloads run one at a time. A SIGHUP that arrives meanwhile is handled afterwards.
                _ = self.hangup.recv(), if reload.is_empty() => {
                    let daemon = daemon.clone();
                    reload.spawn(async move { reload_and_log(&daemon).await });
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

async fn reload_and_log(daemon: &Daemon) {
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
