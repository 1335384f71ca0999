//! Daemons that detach from a running life and daemons that attach to it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{FINISH_TIMEOUT, MAX_PIPE_READS, Phase, ServerLife};
use crate::clock;
use crate::control::Control;
use crate::controller::Controller;
use crate::listener::Listener;
use crate::stop;
use crate::wire::{PROTOCOL, PastExit, Report, StatusReport};

/// How long no connection is accepted after the system refused one.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

impl ServerLife {
    /// Handles a daemon that has left, and ends the life once no daemon needs it.
    pub(super) fn check_controller(&mut self) {
        if self.signals.is_termination_requested() {
            self.shut_down();
        }
        if self.control.is_gone() {
            self.on_disconnect();
        }
        let is_unobserved = match self.controller {
            Controller::Abandoned => true,
            Controller::Detached { .. } | Controller::Pending { .. } => self.is_final,
            Controller::Attached => false,
        };
        if is_unobserved && matches!(self.phase, Phase::Exited { .. }) {
            self.phase = Phase::Ended;
        }
    }

    fn on_disconnect(&mut self) {
        if self.controller == Controller::Attached {
            self.handover.on_disconnect();
        }
        if self.listener.is_none() && self.controller != Controller::Abandoned {
            self.controller = Controller::Abandoned; // No daemon could find this shim.
            self.shut_down();
        }
        let was_attached = self.controller == Controller::Attached;
        let wait = Duration::from_millis(self.orphan_policy.orphan_ms);
        self.controller = self.controller.disconnected(clock::now(), wait);
        if was_attached && matches!(self.phase, Phase::Exited { .. }) {
            self.drain_stdout(); // The daemon may have left before it had read everything.
        }
    }

    /// Stops the server for good: a daemon that attaches later will not ask for the exit.
    pub(super) fn shut_down(&mut self) {
        self.is_final = true;
        self.stop_within(Duration::from_millis(self.orphan_policy.grace_ms));
    }

    /// Accepts a connection; its sender must introduce itself as a daemon.
    pub(super) fn accept(&mut self) {
        let now = clock::now();
        match self.listener.as_ref().map_or(Ok(None), Listener::accept) {
            Ok(None) => {}
            Ok(Some(socket)) => {
                self.control = Control::without_output(socket);
                self.controller = self.controller.connected(now);
            }
            // The waiting client would wake the loop at once, again and again.
            Err(_) => self.accept_after = Some(now + ACCEPT_RETRY_DELAY),
        }
    }

    /// Attaches the daemon that has sent `Hello`, and sends it everything it missed.
    pub(super) fn attach(&mut self, protocol: u32) {
        self.control.open_outbox();
        if protocol != PROTOCOL {
            self.control.outbox.put_report(&Report::Refused { protocol: PROTOCOL });
            self.control.flush();
            self.control.hang_up();
            return;
        }
        let ends = [&self.to_stdin, &self.from_stdout];
        let copies = ends.map(|end| end.as_ref().and_then(|end| end.try_clone().ok()));
        if copies.each_ref().map(Option::is_some) != ends.map(Option::is_some) {
            self.control.hang_up(); // No file descriptor is free; the daemon will retry.
            return;
        }
        self.controller = Controller::Attached;
        let now = clock::now();
        let (note, unread) = self.handover.lend();
        self.control.outbox.put_handover(note, unread);
        let logged = self.log.position(now);
        let passed = copies.each_ref().map(Option::is_some);
        let status = Report::Status(StatusReport { logged, ..self.status(passed, now) });
        let descriptors = copies.into_iter().flatten().collect();
        self.control.outbox.put_report_with(&status, descriptors);
        self.log.replay(&mut self.control.outbox);
        if let Phase::Exited { finish_by, .. } = &mut self.phase {
            *finish_by = now + FINISH_TIMEOUT;
        }
    }

    fn status(&self, passed: [bool; 2], now: Instant) -> StatusReport {
        let ago = |moment| millis(now.saturating_duration_since(moment));
        let (stopping, exited) = match &self.phase {
            Phase::Running { stop, leader_exit, .. } => (
                *stop != stop::State::NotRequested && leader_exit.is_none_or(|exit| exit.asked),
                None,
            ),
            Phase::Exited { report, ended_at, .. } => {
                (report.asked, Some(PastExit { report: report.clone(), ms_ago: ago(*ended_at) }))
            }
            Phase::Ended => (false, None),
        };
        StatusReport {
            protocol: PROTOCOL,
            pid: self.pid,
            age_ms: ago(self.started_at),
            note_age_ms: ago(self.handover.noted_at),
            passed,
            torn: self.handover.is_torn,
            stopping,
            exited,
            confined: self.confined.clone(),
            logged: None,
        }
    }

    /// Gives up waiting for a daemon: stops the server, after which the shim ends.
    pub(super) fn abandon(&mut self) {
        self.controller = Controller::Abandoned;
        self.listener = None;
        self.shut_down();
    }

    /// Returns the listener while a daemon may connect, that is while none is attached.
    pub(super) fn active_listener(&self) -> Option<&Listener> {
        let is_open =
            matches!(self.controller, Controller::Detached { .. }) && self.accept_after.is_none();
        self.listener.as_ref().filter(|_| is_open)
    }

    /// Returns stdout while no daemon reads it and there is room to keep it.
    pub(super) fn unattended_stdout(&self) -> Option<&OwnedFd> {
        let is_detached =
            matches!(self.controller, Controller::Detached { .. } | Controller::Abandoned);
        self.from_stdout.as_ref().filter(|_| is_detached && self.handover.has_room())
    }

    /// Keeps the remaining stdout of a dead server.
    pub(super) fn drain_stdout(&mut self) {
        for _ in 0..MAX_PIPE_READS {
            if !self.read_stdout() {
                break;
            }
        }
        self.from_stdout = None;
    }

    /// Reads stdout once in place of the daemon. Returns true if there may be more.
    pub(super) fn read_stdout(&mut self) -> bool {
        let Some(pipe) = &self.from_stdout else { return false };
        match rustix::io::read(pipe, &mut *self.chunk) {
            Ok(count) if count > 0 => {
                self.handover.unread.extend_from_slice(&self.chunk[..count]);
                true
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Ok(_) | Err(_) => {
                self.handover.has_ended = true;
                false
            }
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
