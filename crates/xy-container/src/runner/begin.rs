//! The start of a container, which can be cancelled.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::interval;
use xy_supervisor::launch::{LaunchOrder, LifeChannels, LifeCommand, LifeEvent, Progress};
use xy_supervisor::lifecycle::{Exit, LaunchFault};

use super::ContainerRunner;
use crate::shared::SharedState;
use crate::start::{self, StartError};

/// Time between two progress reports; shorter than any time-out of a start.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Starts a container and runs it to its end.
pub(crate) async fn run(shared: Arc<SharedState>, order: LaunchOrder, mut channels: LifeChannels) {
    let (progress, mut updates) = watch::channel(None);
    let (cancel, cancelled) = watch::channel(false);
    let mut beginning =
        tokio::spawn(start::begin(shared.clone(), order.clone(), progress, cancelled));
    let mut is_held = true;
    let mut is_let_go = false;
    let mut ticks = interval(PROGRESS_INTERVAL);
    let started = loop {
        tokio::select! {
            started = &mut beginning => break started,
            command = channels.commands.recv(), if is_held => match command {
                None => {
                    is_held = false;
                    cancel.send_replace(true);
                }
                Some(LifeCommand::SetOrphanRules { .. }) => {}
                Some(command) => {
                    is_let_go |= command == LifeCommand::HandOver;
                    cancel.send_replace(true);
                }
            },
            // The time that a busy engine takes does not count against the server.
            _ = ticks.tick() => prepare(&channels, updates.borrow().clone()),
            Ok(()) = updates.changed() => prepare(&channels, updates.borrow_and_update().clone()),
        }
    };
    let last = match started {
        Ok(Ok(started)) if !*cancel.borrow() => {
            return ContainerRunner::new(shared, order, channels, started).run().await;
        }
        // It was too late to cancel; the container is stopped like any other.
        Ok(Ok(started)) => {
            let mut runner = ContainerRunner::new(shared, order, channels, started);
            runner.is_held = is_held;
            runner.stop(runner.order.settings.rules.stop.grace, false);
            return runner.run().await;
        }
        Ok(Err(StartError::Cancelled)) => LifeEvent::Exited(Exit::UNKNOWN),
        Ok(Err(StartError::Fault(fault))) => LifeEvent::LaunchFailed(fault),
        Ok(Err(StartError::Away(fault))) => LifeEvent::EngineUnavailable(fault),
        Err(_) => LifeEvent::LaunchFailed(LaunchFault {
            permanent: false,
            message: "the daemon is ending, or has a fault".to_owned(),
            hint: None,
        }),
    };
    if !is_let_go {
        let _ = channels.events.send(last).await; // The task may have dropped the instance.
    }
}

/// Reports the progress of the start.
fn prepare(channels: &LifeChannels, progress: Option<Progress>) {
    let what = "creating its container".to_owned();
    let progress = progress.unwrap_or(Progress { what, percent: None });
    // The next report supersedes this one.
    let _ = channels.events.try_send(LifeEvent::Preparing(progress));
}
