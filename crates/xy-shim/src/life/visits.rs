//! Daemons that leave and daemons that come, in the life of a server.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{FINISH_WITHIN, FULL_PIPE, Life, Phase};
use crate::clock;
use crate::company::Company;
use crate::control::Control;
use crate::door::Door;
use crate::stop;
use crate::wire::{PROTOCOL, PastExit, Report, StatusReport};

/// How long nobody is let in after the system could not.
const REST: Duration = Duration::from_millis(200);

impl Life {
    /// Sees who has left, and ends what nobody needs any more.
    pub(super) fn mind_company(&mut self) {
        if self.signals.told_to_end() {
            self.end_for_good();
        }
        if self.control.is_gone() {
            self.on_left();
        }
        let nobody_asks = match self.company {
            Company::NobodyAnyMore => true,
            Company::Nobody { .. } | Company::Newcomer { .. } => self.for_good,
            Company::Daemon => false,
        };
        if nobody_asks && matches!(self.phase, Phase::Over { .. }) {
            self.phase = Phase::Ended;
        }
    }

    fn on_left(&mut self) {
        if self.company == Company::Daemon {
            self.heritage.on_left();
        }
        if self.door.is_none() && self.company != Company::NobodyAnyMore {
            self.company = Company::NobodyAnyMore; // Nobody could find us.
            self.end_for_good();
        }
        let was_with_daemon = self.company == Company::Daemon;
        let wait = Duration::from_millis(self.gone.orphan_ms);
        self.company = self.company.left(clock::now(), wait);
        if was_with_daemon && matches!(self.phase, Phase::Over { .. }) {
            self.drain_stdout(); // It may have left before it had read all.
        }
    }

    /// Ends the server; how it ends is of interest to whoever is here, and to nobody else.
    pub(super) fn end_for_good(&mut self) {
        self.for_good = true;
        self.stop_within(Duration::from_millis(self.gone.grace_ms));
    }

    pub(super) fn let_in(&mut self) {
        let now = clock::now();
        match self.door.as_ref().map_or(Ok(None), Door::accept) {
            Ok(None) => {}
            Ok(Some(socket)) => {
                self.control = Control::silent(socket);
                self.company = self.company.came(now);
            }
            // Whoever waits would wake us again and again.
            Err(_) => self.door_opens_at = Some(now + REST),
        }
    }

    /// Somebody says that it is a daemon.
    pub(super) fn welcome(&mut self, protocol: u32) {
        self.control.speak_up();
        if protocol != PROTOCOL {
            self.control.outbox.put_report(&Report::Refused { protocol: PROTOCOL });
            self.control.flush();
            self.control.hang_up();
            return;
        }
        let ends = [&self.to_stdin, &self.from_stdout];
        let copies = ends.map(|end| end.as_ref().and_then(|end| end.try_clone().ok()));
        if copies.each_ref().map(Option::is_some) != ends.map(Option::is_some) {
            self.control.hang_up(); // No descriptor is left just now; it will ask again.
            return;
        }
        self.company = Company::Daemon;
        let now = clock::now();
        let (note, unread) = self.heritage.lend();
        self.control.outbox.put_heritage(note, unread);
        let logged = self.log.place(now);
        let passed = copies.each_ref().map(Option::is_some);
        let status = Report::Status(StatusReport { logged, ..self.status(passed, now) });
        let descriptors = copies.into_iter().flatten().collect();
        self.control.outbox.put_report_with(&status, descriptors);
        self.log.begin_again(&mut self.control.outbox);
        if let Phase::Over { finish_by, .. } = &mut self.phase {
            *finish_by = now + FINISH_WITHIN;
        }
    }

    fn status(&self, passed: [bool; 2], now: Instant) -> StatusReport {
        let ago = |moment| millis(now.saturating_duration_since(moment));
        let (stopping, exited) = match &self.phase {
            Phase::Running { stop, ended, .. } => {
                (*stop != stop::State::NotAsked && ended.is_none_or(|ended| ended.asked), None)
            }
            Phase::Over { report, ended_at, .. } => {
                (report.asked, Some(PastExit { report: report.clone(), ms_ago: ago(*ended_at) }))
            }
            Phase::Ended => (false, None),
        };
        StatusReport {
            protocol: PROTOCOL,
            pid: self.pid,
            age_ms: ago(self.began_at),
            note_age_ms: ago(self.heritage.noted_at),
            passed,
            torn: self.heritage.is_torn,
            stopping,
            exited,
            confined: self.confined.clone(),
            logged: None,
        }
    }

    /// No daemon has come: the server is ended, and then we are.
    pub(super) fn wait_no_longer(&mut self) {
        self.company = Company::NobodyAnyMore;
        self.door = None;
        self.end_for_good();
    }

    /// Where somebody may come in: only while nobody is there.
    pub(super) fn open_door(&self) -> Option<&Door> {
        let is_open =
            matches!(self.company, Company::Nobody { .. }) && self.door_opens_at.is_none();
        self.door.as_ref().filter(|_| is_open)
    }

    /// What is read only while nobody is there to read it.
    pub(super) fn unattended_stdout(&self) -> Option<&OwnedFd> {
        let is_alone = matches!(self.company, Company::Nobody { .. } | Company::NobodyAnyMore);
        self.from_stdout.as_ref().filter(|_| is_alone && self.heritage.has_room())
    }

    /// Keeps what a dead server has left in its stdout.
    pub(super) fn drain_stdout(&mut self) {
        for _ in 0..FULL_PIPE {
            if !self.read_stdout() {
                break;
            }
        }
        self.from_stdout = None;
    }

    /// Reads once what the daemon would have; answers whether there may be more.
    pub(super) fn read_stdout(&mut self) -> bool {
        let Some(pipe) = &self.from_stdout else { return false };
        match rustix::io::read(pipe, &mut *self.chunk) {
            Ok(count) if count > 0 => {
                self.heritage.unread.extend_from_slice(&self.chunk[..count]);
                true
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Ok(_) | Err(_) => {
                self.heritage.has_ended = true;
                false
            }
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
