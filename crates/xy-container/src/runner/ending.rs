//! The end of a container: its request, its detection, and the cleanup.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;
use xy_supervisor::launch::LifeEvent;
use xy_supervisor::lifecycle::Exit;
use xy_supervisor::protocol::DriverCommand;

use super::{ContainerRunner, LOG_WRITE_TIMEOUT, MIN_STREAM_TIME, Timer, end};
use crate::engine::is_gone;
use crate::exit_watch::Termination;
use crate::{faults, log_gap};

/// Time for the rest of a container's output, after its exit.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for an engine to kill.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for an engine to remove a container that has exited.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of last lines among which the message of an init is searched for.
const LAST_LINES: usize = 4;

const AWAY: &str = "its engine was restarted or closed the stream, and it has exited meanwhile";
const REMOVED: &str = "another program has removed its container";

impl ContainerRunner {
    /// Handles its end, or the loss of its engine.
    pub(super) async fn on_terminated(&mut self, termination: Termination) {
        if self.termination.is_some() {
            return;
        }
        end(&mut self.exit_wait);
        end(&mut self.status_check);
        end(&mut self.reattaching);
        self.timers.clear();
        match &termination {
            Termination::Exited(end) => {
                tracing::info!(server = %self.order.key, "{}", end.exit);
                // The engine may have caused the exit, so a clean one may not be the server's own.
                let lasts =
                    self.relaying.is_some() && self.relayed_since.elapsed() >= MIN_STREAM_TIME;
                let is_cut =
                    !self.is_ending && self.end_watch.as_ref().is_some_and(|it| it.was_cut_off());
                if end.was_away || is_cut || (self.was_cut && !lasts) {
                    self.report_protocol_error(AWAY.to_owned()).await;
                }
            }
            // Other ends than an exit are reported as the reason of the stop.
            Termination::Removed => self.report_protocol_error(REMOVED.to_owned()).await,
            Termination::EngineLost(why) => self.report_protocol_error(why.clone()).await,
        }
        self.termination = Some(termination);
        if self.relaying.is_some() {
            // The rest of its output is on its way.
            self.start_timer(DRAIN_TIMEOUT, Timer::OutputDrained);
            return;
        }
        if !self.drain_output() && self.notify_exit() {
            self.start_timer(Duration::ZERO, Timer::DriverExit);
        }
    }

    /// Forwards the rest of its output from the engine's log; returns true if that has begun.
    /// Podman may close the stream before all output has arrived, but its log is complete.
    pub(super) fn drain_output(&mut self) -> bool {
        let Some(mut relay) = self.relay.take() else { return false };
        if !self.engine.closes_stdin || !matches!(self.termination, Some(Termination::Exited(_))) {
            return false;
        }
        let (engine, id) = (self.engine.clone(), self.id.clone());
        let server = self.order.key.clone();
        self.draining = Some(tokio::spawn(async move {
            match log_gap::read(&engine, &id, relay.counter.exact_position()).await {
                Ok(mut missed) => {
                    if missed.gaps != [false; 2] {
                        tracing::warn!(%server, "the end of its output may be missing");
                    }
                    // Mostly nothing is lost, so the log does not mention it.
                    missed.gaps = [false; 2];
                    // The protocol driver sees the end of its stdout once the relay is dropped.
                    relay.deliver(missed).await;
                }
                Err(why) => tracing::warn!(%server, %why, "the end of its output may be missing"),
            }
        }));
        self.start_timer(DRAIN_TIMEOUT, Timer::OutputDrained);
        true
    }

    pub(super) fn exit(&self) -> Exit {
        match &self.termination {
            Some(Termination::Exited(end)) => end.exit,
            _ => Exit::UNKNOWN,
        }
    }

    /// Cleans up after the container, and reports its last event.
    pub(super) async fn finish(mut self) {
        self.channels.end.set();
        if let Some(protocol) = self.protocol.take() {
            protocol.send(DriverCommand::Exited(self.exit()));
        }
        self.requests.abort_all();
        let _ = timeout(LOG_WRITE_TIMEOUT, self.log.finish()).await; // The disk may hang.
        // The engine may wait until the last output is read, or cannot be read any more.
        self.attached = None;
        if let Some(stream_holder) = self.stream_holder.take() {
            stream_holder.end(&self.shared).await;
        }
        let removed = timeout(REMOVE_TIMEOUT, self.engine.remove(&self.id)).await;
        match removed {
            Ok(Ok(())) => {}
            Ok(Err(why)) => {
                let why = faults::words(&why);
                tracing::warn!(server = %self.order.key, container = self.id, why, "not removed yet");
            }
            Err(_) => {
                tracing::warn!(server = %self.order.key, container = self.id, "not removed yet");
            }
        }
        // If it cannot be removed now, its labels identify it once its engine is back. The known
        // engines outlive this daemon (`engines.rs`).
        self.state_file.remove();
        self.lease = None; // Before the last event: the next life waits for the name.
        let exit = self.exit();
        let start_failure = (!self.was_ready && !self.is_ending)
            .then(|| {
                faults::start_failure(&self.order.settings, exit, self.init_error().as_deref())
            })
            .flatten();
        let last = match start_failure {
            Some(fault) => LifeEvent::LaunchFailed(fault),
            None if self.is_probing => LifeEvent::ExitedOnProbe(exit),
            None => LifeEvent::Exited(Exit { unanswered: self.unanswered, ..exit }),
        };
        let _ = self.channels.events.send(last).await; // The task may have dropped the instance.
    }

    /// Returns why its init could not run it, if the init has said so in this life.
    fn init_error(&self) -> Option<String> {
        let last = self.order.logs.last_stderr(LAST_LINES);
        let own = last.iter().filter(|line| line.seq.is_some_and(|it| it >= self.first_line));
        own.filter_map(|line| faults::init_message(&line.bytes)).next_back()
    }

    /// Asks its engine to stop it, gracefully at first.
    pub(super) fn stop(&mut self, grace: Duration, is_hung: bool) {
        if self.termination.is_some() {
            return; // It has ended by itself, and is reported so.
        }
        self.is_ending = true;
        self.exit_watch.is_ending.store(true, Ordering::Relaxed);
        // Docker would close the whole stream rather than its stdin, so the last output would be
        // lost.
        self.is_ending_shared.store(self.engine.closes_stdin, Ordering::Relaxed);
        if let Some(protocol) = &self.protocol {
            protocol.send(DriverCommand::Close { is_hung });
        }
        self.state_file.change(|state| state.stopping = true);
        let (engine, id) = (self.engine.clone(), self.id.clone());
        self.requests.spawn(async move {
            let _ = engine.unpause(&id).await; // No effect if it is not paused.
            // Its exit is detected elsewhere.
            engine.stop(&id, grace).await.is_err_and(|why| is_gone(&why))
        });
        self.start_timer(grace, Timer::Kill);
    }

    /// Has its engine kill it.
    pub(super) fn kill(&mut self) {
        self.exit_watch.is_ending.store(true, Ordering::Relaxed);
        if self.termination.is_some() {
            return;
        }
        let (engine, id) = (self.engine.clone(), self.id.clone());
        self.requests.spawn(async move {
            let Err(why) = engine.kill(&id).await else { return false };
            if is_gone(&why) {
                return true;
            }
            let _ = engine.unpause(&id).await; // Some engines cannot kill a paused container.
            engine.kill(&id).await.is_err_and(|why| is_gone(&why))
        });
        self.start_timer(KILL_TIMEOUT, Timer::GiveUp);
    }
}
