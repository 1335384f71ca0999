//! The supervisor's end of a connection to a protocol driver, shared by process and container
//! runners.
//!
//! Every wait for a driver has a limit.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{LaunchOrder, LifeEvent};
use crate::lifecycle::note::with_driver_note;
use crate::protocol::{
    COMMAND_QUEUE_CAPACITY, Checkup, Connection, DriverCommand, DriverEvent, EVENT_QUEUE_CAPACITY,
    Handover, IdleStop, ProtocolDriver, ServerIo, request_checkup, request_idle_stop,
    truncate_reason,
};

/// Time for a server that has closed its stdout to exit by itself.
const STDOUT_CLOSED_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for a server that has closed its stdout during a probe. It is short, as the server is
/// restarted anyway.
const STDOUT_CLOSED_ON_PROBE_TIMEOUT: Duration = Duration::from_millis(200);

/// Time for a driver to hand the connection over.
pub const HANDOVER_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for a driver to read what a server wrote before it exited.
pub const DRIVER_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Problem: no pipe or socket could be created for the driver.
pub const NO_DESCRIPTORS: &str = "the daemon has too many files open";

/// Problem: the server closed its stdout and did not exit.
pub const CLOSED_STDOUT: &str = "it closed its stdout";

/// Problem: the driver kept the connection.
pub const HANDOVER_TIMED_OUT: &str = "its protocol driver did not hand over in time";

/// The supervisor's end of a connection to a protocol driver.
#[derive(Debug)]
pub struct ProtocolLink {
    events: mpsc::Receiver<DriverEvent>,
    commands: mpsc::Sender<DriverCommand>,
}

impl ProtocolLink {
    /// Has the driver connect to a server whose leader is `pid`.
    pub fn open(
        driver: &dyn ProtocolDriver,
        order: &LaunchOrder,
        pid: u32,
        io: ServerIo,
        handover: Option<Handover>,
    ) -> Self {
        let (event_sender, events) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let (commands, command_receiver) = mpsc::channel(COMMAND_QUEUE_CAPACITY);
        driver.drive(Connection {
            key: order.key.clone(),
            settings: order.settings.clone(),
            pid: Some(pid),
            io,
            handover,
            events: event_sender,
            commands: command_receiver,
        });
        Self { events, commands }
    }

    /// Sends a command, unless the driver is gone.
    pub fn send(&self, command: DriverCommand) {
        let _ = self.commands.try_send(command); // The queue has room for all commands.
    }

    /// Asks the driver for a checkup of the server.
    pub fn pass_checkup(&self, checkup: Checkup) {
        request_checkup(&self.commands, checkup);
    }

    /// Asks the driver to release the server if it is idle.
    pub fn pass_idle_stop(&self, request: IdleStop) {
        request_idle_stop(&self.commands, request);
    }

    /// Returns an event that has arrived already.
    pub fn try_next_event(&mut self) -> Option<DriverEvent> {
        self.events.try_recv().ok()
    }
}

/// Returns the next event, or `None` once the driver is gone. Never resolves without a link.
/// Cancel-safe.
pub async fn next_driver_event(link: &mut Option<ProtocolLink>) -> Option<DriverEvent> {
    match link {
        None => std::future::pending().await,
        Some(link) => link.events.recv().await,
    }
}

/// The action of a runner in response to a driver event.
#[derive(Debug)]
pub enum DriverAction {
    /// Report this event.
    Report(LifeEvent),
    /// Stop the server, for this reason.
    ProtocolError(String),
    /// Stop the server and do not start it again, for this reason.
    Unusable(String),
    /// Stop the server and start it again at once, for this reason.
    RestartRequired(String),
    /// A probe that the server need not support has begun or ended.
    SetProbing(bool),
    /// The server has left this many calls unanswered at its exit.
    SetUnanswered(usize),
    /// Wait this long for the server to exit by itself.
    AwaitExit(Duration),
    /// Record this.
    Update(DriverUpdate),
}

/// Data for the log, or for a later daemon.
#[derive(Debug)]
pub enum DriverUpdate {
    /// Whole lines for the log.
    UnparsedOutput(Vec<u8>),
    /// The note of the driver for its successor.
    Note(String),
    /// The driver is about to write, once it is told that this is recorded.
    WriteBegins(oneshot::Sender<()>),
    /// The driver has written whole messages only.
    WriteEnds,
}

/// Decides what a driver event means. `is_probed` says that a probe is in flight which the server
/// need not support. Pure.
pub fn action_for(event: DriverEvent, is_probed: bool) -> DriverAction {
    match event {
        DriverEvent::Ready => DriverAction::Report(LifeEvent::Ready),
        DriverEvent::Idle(why) => DriverAction::Report(LifeEvent::Idle(truncate_reason(&why))),
        // A local server that has such a problem is stopped.
        DriverEvent::ProtocolError(why)
        | DriverEvent::Unreachable(why)
        | DriverEvent::Unrecoverable(why) => DriverAction::ProtocolError(why),
        DriverEvent::Unusable(why) => DriverAction::Unusable(why),
        DriverEvent::RestartRequired(why) => DriverAction::RestartRequired(why),
        DriverEvent::Probing(is_probed) => DriverAction::SetProbing(is_probed),
        DriverEvent::UnansweredCalls(count) => DriverAction::SetUnanswered(count),
        DriverEvent::StdoutClosed if is_probed => {
            DriverAction::AwaitExit(STDOUT_CLOSED_ON_PROBE_TIMEOUT)
        }
        DriverEvent::StdoutClosed => DriverAction::AwaitExit(STDOUT_CLOSED_TIMEOUT),
        DriverEvent::UnparsedOutput(mut lines) => {
            lines.push(b'\n');
            DriverAction::Update(DriverUpdate::UnparsedOutput(lines))
        }
        DriverEvent::Note(note) => DriverAction::Update(DriverUpdate::Note(note)),
        DriverEvent::WriteBegins(known) => DriverAction::Update(DriverUpdate::WriteBegins(known)),
        DriverEvent::WriteEnds => DriverAction::Update(DriverUpdate::WriteEnds),
    }
}

/// Returns the update that an event contains. During a handover, all other events are dropped.
pub fn update_in(event: DriverEvent) -> Option<DriverUpdate> {
    match action_for(event, false) {
        DriverAction::Update(update_in) => Some(update_in),
        DriverAction::Report(_)
        | DriverAction::ProtocolError(_)
        | DriverAction::Unusable(_)
        | DriverAction::RestartRequired(_)
        | DriverAction::SetProbing(_)
        | DriverAction::SetUnanswered(_)
        | DriverAction::AwaitExit(_) => None,
    }
}

/// Returns the event that reports a protocol error.
pub fn protocol_error(why: &str, is_probed: bool) -> LifeEvent {
    let why = truncate_reason(why);
    if is_probed { LifeEvent::ProtocolErrorOnProbe(why) } else { LifeEvent::ProtocolError(why) }
}

/// Returns the latest note of a task, joined with that of its protocol driver, for a later daemon.
pub fn joined_note(
    order: &LaunchOrder,
    noted: Option<&(Vec<u8>, Instant)>,
    driver_note: &str,
) -> Option<Vec<u8>> {
    let (note, noted_at) = noted?;
    let joined = with_driver_note(note, driver_note, noted_at.elapsed());
    if joined.len() == note.len() && !driver_note.is_empty() {
        tracing::warn!(server = %order.key, "the note for a later daemon is too long");
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_events_map_to_actions() {
        let shown = |event, is_probed| format!("{:?}", action_for(event, is_probed));
        assert_eq!(shown(DriverEvent::Ready, false), "Report(Ready)");
        assert_eq!(shown(DriverEvent::Idle("a\nb".into()), false), "Report(Idle(\"a\"))");
        for event in [DriverEvent::ProtocolError("x".into()), DriverEvent::Unreachable("x".into())]
        {
            assert_eq!(shown(event, false), "ProtocolError(\"x\")");
        }
        assert_eq!(shown(DriverEvent::StdoutClosed, false), "AwaitExit(2s)");
        assert_eq!(shown(DriverEvent::StdoutClosed, true), "AwaitExit(200ms)");
        assert_eq!(shown(DriverEvent::Probing(true), false), "SetProbing(true)");
        assert_eq!(shown(DriverEvent::RestartRequired("a".into()), true), "RestartRequired(\"a\")");
        assert_eq!(
            shown(DriverEvent::UnparsedOutput(b"a".to_vec()), false),
            "Update(UnparsedOutput([97, 10]))"
        );
        assert!(
            update_in(DriverEvent::Ready).is_none() && update_in(DriverEvent::WriteEnds).is_some()
        );
        assert_eq!(protocol_error("a\nb", true), LifeEvent::ProtocolErrorOnProbe("a".into()));
        assert_eq!(protocol_error("a", false), LifeEvent::ProtocolError("a".into()));
    }
}
