//! The part of a process runner that deals with the protocol driver.
//!
//! Every wait for a driver has a limit. Driver events are received only while the shim keeps up;
//! beyond that the driver waits, and so does its server.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use xy_shim::wire::Order;

use super::{ProcessRunner, Timer};
use crate::launch::LifeEvent;
use crate::launch::protocol_link::{
    self, CLOSED_STDOUT, DRIVER_EXIT_TIMEOUT, DriverAction, DriverUpdate, HANDOVER_TIMED_OUT,
    HANDOVER_TIMEOUT, NO_DESCRIPTORS, ProtocolLink, next_driver_event,
};
use crate::launch::shim_link::LinkEvent;
use crate::lifecycle::Exit;
use crate::protocol::{
    Checkup, DriverCommand, DriverEvent, Handover, IdleStop, ServerIo, truncate_reason,
};

const NO_STDOUT: &str = "an older version of xy started it, so its stdout cannot be read";

/// The ends of a server's pipes, as far as they were received.
#[derive(Debug, Default)]
pub(super) struct Pipes {
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
}

impl ProcessRunner {
    /// Connects the protocol driver, to the server's pipes or to its endpoint.
    pub(super) async fn open_protocol(
        &mut self,
        pid: u32,
        pipes: Pipes,
        mut handover: Option<Handover>,
    ) {
        if self.is_stdio() {
            match Self::pipe_io(pipes) {
                Ok(way) => self.start_driver(pid, way, handover),
                Err(why) => {
                    self.log_unread(handover.as_mut());
                    if !self.is_ending {
                        self.report_protocol_error(why.to_owned()).await;
                    }
                }
            }
        } else {
            // Such a server's stdout is only logged.
            self.log_unread(handover.as_mut());
            self.start_driver(pid, ServerIo::Endpoint, handover);
        }
    }

    fn pipe_io(pipes: Pipes) -> Result<ServerIo, &'static str> {
        let stdout = pipes.stdout.ok_or(NO_STDOUT)?;
        // A server that is being stopped has no stdin any more, so nothing can be written.
        let stdin = pipes.stdin.or_else(closed_pipe).ok_or(NO_DESCRIPTORS)?;
        for pipe in [&stdin, &stdout] {
            // The shim has done so already; this only fails for a closed descriptor.
            let _ = rustix::io::ioctl_fionbio(pipe, true);
        }
        Ok(ServerIo::Pipes { stdin, stdout })
    }

    fn log_unread(&mut self, handover: Option<&mut Handover>) {
        let unread = handover.map(|handover| std::mem::take(&mut handover.unread));
        self.link.queue_unparsed(&unread.unwrap_or_default());
    }

    fn start_driver(&mut self, pid: u32, way: ServerIo, handover: Option<Handover>) {
        let protocol = ProtocolLink::open(self.driver.as_ref(), &self.order, pid, way, handover);
        if self.is_ending {
            protocol.send(DriverCommand::Close { is_hung: false });
        }
        (self.protocol, self.driver_timer) = (Some(protocol), None);
    }

    /// Handles an event of the protocol driver.
    pub(super) async fn on_driver_event(&mut self, event: DriverEvent) {
        match protocol_link::action_for(event, self.is_probing) {
            DriverAction::Report(event) => self.report(event).await,
            DriverAction::ProtocolError(why) => self.report_protocol_error(why).await,
            DriverAction::Unusable(why) if !self.is_ending && self.end.is_none() => {
                self.report(LifeEvent::Unusable(truncate_reason(&why))).await;
            }
            DriverAction::RestartRequired(why) if !self.is_ending && self.end.is_none() => {
                self.report(LifeEvent::RestartRequired(truncate_reason(&why))).await;
            }
            DriverAction::Unusable(_) | DriverAction::RestartRequired(_) => {}
            DriverAction::SetProbing(is_probing) => self.is_probing = is_probing,
            DriverAction::SetUnanswered(count) => self.unanswered = count,
            DriverAction::AwaitExit(time) => self.start_timer(time, Timer::StdoutClosed),
            DriverAction::Update(update) => self.apply_update(update),
        }
    }

    /// Passes an update on to the shim.
    fn apply_update(&mut self, update: DriverUpdate) {
        match update {
            DriverUpdate::UnparsedOutput(lines) => self.link.queue_unparsed(&lines),
            DriverUpdate::Note(note) => {
                self.driver_note = note;
                self.leave_joined_note();
            }
            DriverUpdate::WriteBegins(known) => self.link.queue_then(&Order::WriteBegins, known),
            DriverUpdate::WriteEnds => self.link.queue(&Order::WriteEnds),
        }
    }

    /// Reports a server that has closed its stdout and still runs.
    pub(super) async fn on_stdout_closed(&mut self) {
        self.driver_timer = None;
        self.report_protocol_error(CLOSED_STDOUT.to_owned()).await;
    }

    async fn report_protocol_error(&mut self, why: String) {
        if !self.is_ending && self.end.is_none() {
            self.report(protocol_link::protocol_error(&why, self.is_probing)).await;
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

    /// Tells the protocol driver that the server is being stopped.
    pub(super) fn close_protocol(&self, is_hung: bool) {
        if let Some(protocol) = &self.protocol {
            protocol.send(DriverCommand::Close { is_hung });
        }
    }

    /// Tells the protocol driver that the server has exited. The driver still reads the rest of its
    /// stdout.
    pub(super) fn notify_exit(&mut self, exit: Exit) {
        self.channels.end.set();
        match &self.protocol {
            None => self.finish(),
            Some(protocol) => {
                protocol.send(DriverCommand::Exited(exit));
                self.start_timer(DRIVER_EXIT_TIMEOUT, Timer::DriverExit);
            }
        }
    }

    /// Tells the protocol driver that the server is gone with its shim: its exit status is unknown
    /// and nothing more can be recorded.
    pub(super) fn drop_protocol(&mut self) {
        self.channels.end.set();
        if let Some(protocol) = self.protocol.take() {
            protocol.send(DriverCommand::Exited(Exit::UNKNOWN));
        }
    }

    fn start_timer(&mut self, time: Duration, what: Timer) {
        if self.protocol.is_some() && (what == Timer::DriverExit || self.end.is_none()) {
            self.driver_timer = Some((Instant::now() + time, what));
        }
    }

    /// Handles the end of the protocol driver.
    pub(super) fn on_driver_gone(&mut self) {
        self.protocol = None;
        if self.end.is_some() {
            self.finish();
        }
    }

    /// Tells the shim that nothing more will come, so it may exit.
    pub(super) fn finish(&mut self) {
        self.protocol = None;
        self.link.queue(&Order::Finish);
    }

    /// Leaves the latest note of the task, joined with that of the protocol driver.
    pub(super) fn leave_joined_note(&mut self) {
        let noted = self.noted.as_ref();
        if let Some(joined) = protocol_link::joined_note(&self.order, noted, &self.driver_note) {
            self.link.leave_note(&joined);
        }
    }

    /// Takes the connection back from the protocol driver. Output that the driver could not use yet
    /// goes to the shim.
    pub(super) async fn reclaim_protocol(&mut self) {
        let Some(protocol) = &self.protocol else { return };
        let (answer, mut answered) = oneshot::channel();
        protocol.send(DriverCommand::HandOver(answer));
        let give_up_at = Instant::now() + HANDOVER_TIMEOUT;
        let unread = loop {
            tokio::select! {
                unread = &mut answered => break unread.ok(),
                event = next_driver_event(&mut self.protocol), if self.link.has_room() => match event {
                    Some(event) => _ = protocol_link::update_in(event).map(|it| self.apply_update(it)),
                    None => self.protocol = None,
                },
                heard = self.link.next(&self.order.logs) => {
                    if !matches!(heard, Ok(LinkEvent::Report(_) | LinkEvent::Writable)) {
                        return; // No shim is left to take it.
                    }
                }
                () = sleep_until(give_up_at) => break None,
            }
        };
        // Events sent before the answer count.
        while let Some(event) = self.protocol.as_mut().and_then(ProtocolLink::try_next_event) {
            if let Some(update) = protocol_link::update_in(event) {
                self.apply_update(update);
            }
        }
        if let Some(unread) = unread {
            self.link.return_unread(&unread);
        } else {
            tracing::warn!(server = %self.order.key, "{HANDOVER_TIMED_OUT}");
        }
    }
}

/// Returns the write end of a pipe whose read end is closed.
fn closed_pipe() -> Option<OwnedFd> {
    io::pipe().ok().map(|(_, writer)| writer.into())
}
