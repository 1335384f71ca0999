//! The part of a container runner that deals with the protocol driver, and with notes for a later
//! daemon.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};
use xy_supervisor::launch::LifeEvent;
use xy_supervisor::launch::protocol_link::{
    self, DRIVER_EXIT_TIMEOUT, DriverAction, DriverUpdate, HANDOVER_TIMED_OUT, HANDOVER_TIMEOUT,
    ProtocolLink, next_driver_event,
};
use xy_supervisor::protocol::{Checkup, DriverCommand, DriverEvent, IdleStop, truncate_reason};
use xy_supervisor::wait::millis;
use xy_supervisor::wait::time_of_day;

use super::{ContainerRunner, LOG_WRITE_TIMEOUT, Timer};

/// Time for the relay to end at a handover.
const RELAY_EXIT_TIMEOUT: Duration = Duration::from_millis(200);

impl ContainerRunner {
    /// Tells the protocol driver that the server has exited; returns true if there is no driver.
    pub(super) fn notify_exit(&mut self) -> bool {
        self.channels.end.set();
        let exit = self.exit();
        match &self.protocol {
            None => true,
            Some(protocol) => {
                protocol.send(DriverCommand::Exited(exit));
                self.start_timer(DRIVER_EXIT_TIMEOUT, Timer::DriverExit);
                false
            }
        }
    }

    /// Handles an event of the protocol driver.
    pub(super) async fn on_driver_event(&mut self, event: DriverEvent) {
        match protocol_link::action_for(event, self.is_probing) {
            DriverAction::Report(event) => {
                self.was_ready |= event == LifeEvent::Ready;
                self.report(event).await;
            }
            DriverAction::ProtocolError(why) => self.report_protocol_error(why).await,
            DriverAction::Unusable(why) if !self.is_ending && self.termination.is_none() => {
                self.report(LifeEvent::Unusable(truncate_reason(&why))).await;
            }
            DriverAction::RestartRequired(why) if !self.is_ending && self.termination.is_none() => {
                self.report(LifeEvent::RestartRequired(truncate_reason(&why))).await;
            }
            DriverAction::Unusable(_) | DriverAction::RestartRequired(_) => {}
            DriverAction::SetProbing(is_probing) => self.is_probing = is_probing,
            DriverAction::SetUnanswered(count) => self.unanswered = count,
            DriverAction::AwaitExit(_) if self.termination.is_some() => {}
            DriverAction::AwaitExit(time) => self.start_timer(time, Timer::StdoutClosed),
            DriverAction::Update(update) => self.apply_update(update),
        }
    }

    /// Records data for the log, or for a later daemon.
    fn apply_update(&mut self, update: DriverUpdate) {
        match update {
            // The relay notes how far stdout has been consumed.
            DriverUpdate::UnparsedOutput(lines) => self.log.put(false, Bytes::from(lines), None),
            DriverUpdate::Note(note) => {
                self.driver_note = note;
                self.keep_note();
            }
            // The relay marks a partly written message.
            DriverUpdate::WriteBegins(known) => _ = known.send(()),
            DriverUpdate::WriteEnds => {}
        }
    }

    /// Passes a checkup to the protocol driver, if there is one.
    pub(super) fn pass_checkup(&self, checkup: Checkup) {
        if let Some(protocol) = &self.protocol {
            protocol.pass_checkup(checkup);
        }
    }

    /// Asks the protocol driver to release the server if it is idle, unless it is being stopped.
    pub(super) fn pass_idle_stop(&self, request: IdleStop) {
        if let Some(protocol) = self.protocol.as_ref().filter(|_| !self.is_ending) {
            protocol.pass_idle_stop(request);
        }
    }

    pub(super) async fn report_protocol_error(&mut self, why: String) {
        if !self.is_ending && self.termination.is_none() {
            self.report(protocol_link::protocol_error(&why, self.is_probing)).await;
        }
    }

    pub(super) fn leave_note(&mut self) {
        let note = self.channels.notes.borrow_and_update().clone();
        if !note.is_empty() {
            self.noted = Some((note, Instant::now()));
            self.keep_note();
        }
    }

    /// Saves the latest note of the task, joined with that of the protocol driver.
    pub(super) fn keep_note(&mut self) {
        if self.termination.is_some() {
            return; // No later daemon needs it.
        }
        let noted = self.noted.as_ref();
        let joined = protocol_link::joined_note(&self.order, noted, &self.driver_note);
        let Some(joined) = joined else { return };
        let joined = String::from_utf8_lossy(&joined).into_owned();
        let now = millis(time_of_day().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        self.state_file.change(|state| (state.note, state.noted_ms) = (joined, now));
    }

    /// Leaves the container to its engine, for another daemon.
    pub(super) async fn hand_over(mut self) {
        if let Some(protocol) = &self.protocol {
            let (answer, mut answered) = oneshot::channel();
            protocol.send(DriverCommand::HandOver(answer));
            let give_up_at = Instant::now() + HANDOVER_TIMEOUT;
            loop {
                tokio::select! {
                    // Output that the driver could not use was not noted, so it is read again.
                    _ = &mut answered => break,
                    event = next_driver_event(&mut self.protocol) => match event {
                        Some(event) => _ = protocol_link::update_in(event).map(|it| self.apply_update(it)),
                        None => self.protocol = None,
                    },
                    () = sleep_until(give_up_at) => {
                        tracing::warn!(server = %self.order.key, "{HANDOVER_TIMED_OUT}");
                        break;
                    }
                }
            }
            while let Some(event) = self.protocol.as_mut().and_then(ProtocolLink::try_next_event) {
                if let Some(update) = protocol_link::update_in(event) {
                    self.apply_update(update);
                }
            }
            let _ =
                timeout(HANDOVER_TIMEOUT, self.stdin_drained.wait_for(|is_done| *is_done)).await;
        }
        let mut ended_relay = None;
        if let Some(mut relaying) = self.relaying.take() {
            self.handover.notify_one();
            if let Ok(carried) = timeout(RELAY_EXIT_TIMEOUT, &mut relaying).await {
                ended_relay = carried.ok().map(|(relay, _)| relay);
            } else {
                // The relay waits for a reader of its output, which was not noted.
                relaying.abort();
                let _ = relaying.await;
            }
        }
        let _ = timeout(LOG_WRITE_TIMEOUT, self.log.leave()).await; // The disk may hang.
        if let Some(mut relay) = ended_relay {
            relay.note();
        }
        self.keep_lease();
    }
}
