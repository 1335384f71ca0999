//! The event loop of a shim: waits for events and handles them.
//!
//! ```text
//! Running ── the leader is dead, or cannot die ─► Exited ── Finish, or no daemon waits ─► Ended
//! ```
//!
//! The daemon may be killed and replaced by another at any moment, see `controller.rs`. While no
//! daemon is attached, the shim keeps the exit report and, up to a bound, the stdout that only a
//! daemon reads.
//!
//! One round reads each ready source once, passes the bytes to the disk and the daemon, and waits
//! again. No round waits for another process, although the kernel may take a moment to remove a
//! control group.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::child_exit::{self, ExitStatus};
use crate::control::{Control, DaemonData, FLUSH_TIMEOUT};
use crate::controller::Controller;
use crate::exec::{PassedPipes, StartedServer};
use crate::handover::Handover;
use crate::leader::Leader;
use crate::listener::Listener;
use crate::log::{Log, Stream};
use crate::pace::Pace;
use crate::shim::Shim;
use crate::signals::Signals;
use crate::stop::{self, Effect, Event, Stdin};
use crate::wire::{Confinement, ExitReport, Order, OrphanPolicy, Report, StartOrder};
use crate::{clock, sys};

mod attach;

/// How long the daemon may take after the exit to send the rest of the unparsed output.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Idle time after which buffers are released.
const TRIM_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of reads that empty a full pipe. A dead process has written no more than that.
const MAX_PIPE_READS: usize = 16;

/// One life of a server, from start to exit.
#[derive(Debug)]
pub(crate) struct ServerLife {
    phase: Phase,
    pid: u32,
    started_at: Instant,
    confined: Confinement,
    controller: Controller,
    control: Control,
    /// Closed once no daemon is waited for.
    listener: Option<Listener>,
    /// No connection is accepted before this time, because the system lacked a resource.
    accept_after: Option<Instant>,
    orphan_policy: OrphanPolicy,
    handover: Handover,
    /// Set by a final stop: once the server has exited, no daemon will ask how.
    is_final: bool,
    signals: Signals,
    log: Log,
    /// Pipes of stdout (if it is logged) and stderr, until they end.
    logged: [Option<OwnedFd>; 2],
    /// When each of `logged` is read.
    paces: [Pace; 2],
    /// The shim's ends of stdin and stdout; each later daemon gets copies.
    to_stdin: Option<OwnedFd>,
    from_stdout: Option<OwnedFd>,
    stdin: Stdin,
    chunk: Vec<u8>,
    /// Set if anything has happened since buffers were last released.
    needs_trim: bool,
}

#[derive(Debug)]
enum Phase {
    Running {
        leader: Leader,
        stop: stop::State,
        /// Set once the leader is dead.
        leader_exit: Option<LeaderExit>,
    },
    Exited {
        finish_by: Instant,
        report: ExitReport,
        ended_at: Instant,
    },
    Ended,
}

/// How the leader exited, while other processes of the server may still run.
#[derive(Debug, Clone, Copy)]
struct LeaderExit {
    status: ExitStatus,
    asked: bool,
}

/// A source of events.
#[derive(Debug, Clone, Copy)]
enum Source {
    Signals,
    Control,
    Listener,
    Logged(usize),
    Stdout,
}

/// All sources, in the order in which they are handled.
const SOURCES: [Source; 6] = [
    Source::Control,
    Source::Listener,
    Source::Logged(0),
    Source::Logged(1),
    Source::Stdout,
    Source::Signals, // Last, so that the output of a dead process precedes its exit.
];

const STREAMS: [Stream; 2] = [Stream::Out, Stream::Err];

impl ServerLife {
    /// Reports the start to the daemon and gathers the processes into their control group.
    pub(crate) fn new(
        shim: Shim,
        order: &StartOrder,
        started: StartedServer,
        listener: Option<Listener>,
    ) -> Self {
        let Shim { mut control, signals, chunk } = shim;
        let StartedServer { mut leader, passed, logged } = started;
        let pid = leader.pid().as_raw_pid().unsigned_abs();
        let confined = leader.confinement(&order.limits);
        let lasting = listener.is_some();
        let report = Report::Started { pid, lasting, confined: confined.clone() };
        let stdin = if passed.is_some() { Stdin::Pipe } else { Stdin::Empty };
        let (to_stdin, from_stdout) = match passed {
            None => {
                control.outbox.put_report(&report);
                (None, None)
            }
            Some(PassedPipes { to_stdin, from_stdout, for_daemon }) => {
                control.outbox.put_report_with(&report, for_daemon);
                (Some(to_stdin), from_stdout)
            }
        };
        control.flush();
        let now = clock::now();
        leader.gather(); // Takes a moment, but the server already runs.
        let confined =
            report_if_changed(&confined, leader.confinement(&order.limits), &mut control);
        Self {
            phase: Phase::Running { leader, stop: stop::State::NotRequested, leader_exit: None },
            pid,
            started_at: now,
            confined,
            controller: Controller::Attached,
            control,
            listener,
            accept_after: None,
            orphan_policy: order.gone,
            handover: Handover::new(order.note.as_bytes(), now),
            is_final: false,
            signals,
            log: Log::open(&order.log, now),
            paces: logged.each_ref().map(|pipe| pace_of(pipe.as_ref())),
            logged,
            to_stdin,
            from_stdout,
            stdin,
            chunk,
            needs_trim: true,
        }
    }

    /// Runs the event loop until the life is over and its last line is written.
    pub(crate) fn run(mut self) {
        self.process_orders(); // Orders that arrived together with the first one.
        self.check_controller();
        while !matches!(self.phase, Phase::Ended) {
            self.finish_round();
            let ready = self.wait();
            for (source, _) in SOURCES.into_iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
                self.handle(source);
            }
            self.check_deadlines();
            self.check_controller();
        }
        self.drain_pipes();
        let unread = std::mem::take(&mut self.handover.unread);
        let out = &mut self.control.outbox;
        self.log.append(Stream::Out, &unread, clock::moment(), out);
        self.log.finish(clock::moment(), out);
        self.control.flush_within(FLUSH_TIMEOUT);
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Signals => {
                self.signals.clear();
                self.on_child_death();
            }
            Source::Control => {
                self.control.read(&mut self.chunk);
                self.process_orders();
            }
            Source::Listener => self.accept(),
            Source::Logged(index) => _ = self.read_pipe(index, STREAMS[index]),
            Source::Stdout => _ = self.read_stdout(),
        }
    }

    fn finish_round(&mut self) {
        self.log.finish_round(clock::now(), &mut self.control.outbox);
        self.control.flush();
    }

    fn process_orders(&mut self) {
        let (log, handover) = (&mut self.log, &mut self.handover);
        let is_attached = self.controller == Controller::Attached;
        let mut on_data = |data: DaemonData<'_>, out: &mut _| {
            if !is_attached {
                return;
            }
            match data {
                DaemonData::UnparsedOutput(bytes) => {
                    handover.on_returned(bytes.len());
                    log.append(Stream::Out, bytes, clock::moment(), out);
                }
                DaemonData::Note(note) => handover.set_note(note, clock::now()),
                DaemonData::Unread(bytes) => handover.take_back(bytes),
            }
        };
        let mut orders = Vec::new();
        while let Some(order) = self.control.next_order(&mut on_data) {
            orders.push(order);
        }
        for order in orders {
            self.process_order(&order);
        }
    }

    fn process_order(&mut self, order: &Order) {
        if let Controller::Pending { .. } = self.controller {
            match order {
                Order::Hello { protocol } if !self.control.is_gone() => self.attach(*protocol),
                _ => self.control.hang_up(), // A daemon must introduce itself first.
            }
            return;
        }
        match order {
            // The server runs and the daemon is attached already.
            Order::Start(_) | Order::Hello { .. } => {}
            Order::Rules(rules) => self.orphan_policy = *rules,
            Order::WriteBegins => self.handover.is_writing = true,
            Order::WriteEnds => self.handover.is_writing = false,
            Order::Stop { grace_ms, for_good } => {
                self.is_final |= for_good;
                self.stop_within(Duration::from_millis(*grace_ms));
            }
            Order::Finish => {
                if let Phase::Exited { .. } = self.phase {
                    self.phase = Phase::Ended;
                }
            }
        }
    }

    fn stop_within(&mut self, grace: Duration) {
        self.on_stop_event(Event::Requested { grace, stdin: self.stdin });
    }

    fn on_stop_event(&mut self, event: Event) {
        let Phase::Running { leader, stop, .. } = &mut self.phase else { return };
        let (next, effect) = stop::on_event(*stop, event, clock::now());
        *stop = next;
        match effect {
            None => {}
            Some(Effect::CloseStdin) => self.to_stdin = None,
            Some(Effect::Terminate) => leader.terminate(),
            Some(Effect::Kill) => {
                leader.kill();
                self.exit_if_empty();
            }
            Some(Effect::GiveUp) => self.report_exit(),
        }
    }

    /// Handles the death of a child: the leader, or an orphan that the shim has adopted.
    fn on_child_death(&mut self) {
        let Phase::Running { leader, stop, leader_exit } = &mut self.phase else {
            while sys::first_dead_child().is_some_and(child_exit::reap) {}
            return;
        };
        if leader_exit.is_none()
            && let Some(status) = leader.exit_status()
        {
            *leader_exit = Some(LeaderExit { status, asked: *stop != stop::State::NotRequested });
            self.on_stop_event(Event::LeaderDied);
        }
        self.exit_if_empty();
    }

    /// Ends the life once the leader is dead and no other process is left.
    fn exit_if_empty(&mut self) {
        let Phase::Running { leader, leader_exit, .. } = &self.phase else { return };
        let has_others = leader.has_others(); // Also reaps, while the leader lives.
        if leader_exit.is_some() && !has_others {
            self.report_exit();
        }
    }

    /// Reaps the leader, logs the last output and reports the exit to the daemon.
    fn report_exit(&mut self) {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        let Phase::Running { leader, leader_exit, .. } = phase else { return };
        let survivors = leader.survivors();
        let observed = leader.exit_status();
        let oom = leader.oom();
        let asked = leader_exit.is_none_or(|exit| exit.asked);
        let status = leader_exit.map(|exit| exit.status).or(observed);
        leader.reap();
        self.drain_pipes();
        let ExitStatus { code, signal } = status.unwrap_or(ExitStatus { code: None, signal: None });
        let report = ExitReport { code, signal, asked, survivors, oom };
        self.control.outbox.put_report(&Report::Exited(report.clone()));
        self.to_stdin = None;
        if self.controller != Controller::Attached {
            self.drain_stdout(); // No daemon reads it.
        }
        let ended_at = clock::now();
        self.phase = Phase::Exited { finish_by: ended_at + FINISH_TIMEOUT, report, ended_at };
    }

    /// Reads the bytes that are in the pipes now, without waiting for other writers to close them.
    fn drain_pipes(&mut self) {
        for (index, stream) in STREAMS.into_iter().enumerate() {
            for _ in 0..MAX_PIPE_READS {
                if !self.read_pipe(index, stream) {
                    break;
                }
            }
        }
    }

    /// Reads once. Returns true if there may be more.
    fn read_pipe(&mut self, index: usize, stream: Stream) -> bool {
        let Some(pipe) = &self.logged[index] else { return false };
        let out = &mut self.control.outbox;
        match rustix::io::read(pipe, &mut *self.chunk) {
            Ok(count) if count > 0 => {
                let read = clock::moment();
                self.paces[index].on_read(count, read.at);
                self.log.append(stream, &self.chunk[..count], read, out);
                true
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Ok(_) | Err(_) => {
                self.logged[index] = None;
                self.log.end_stream(stream, clock::moment(), out);
                false
            }
        }
    }

    fn check_deadlines(&mut self) {
        let now = clock::now();
        self.paces.iter_mut().for_each(|pace| pace.expire(now));
        while let Some(deadline) = self.phase_deadline()
            && now >= deadline
        {
            match &self.phase {
                Phase::Running { .. } => self.on_stop_event(Event::DeadlineReached),
                Phase::Exited { .. } => self.phase = Phase::Ended,
                Phase::Ended => return,
            }
        }
        self.accept_after = self.accept_after.filter(|opens_at| now < *opens_at);
        if self.controller.deadline().is_some_and(|deadline| now >= deadline) {
            match self.controller {
                Controller::Pending { until, .. } if now < until => self.control.hang_up(),
                _ => self.abandon(),
            }
        }
    }

    fn phase_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Running { stop, .. } => stop.deadline(),
            Phase::Exited { finish_by, .. } if self.controller == Controller::Attached => {
                Some(*finish_by)
            }
            Phase::Exited { .. } | Phase::Ended => None,
        }
    }

    /// Waits for an event or a deadline. Returns which of [`SOURCES`] are ready.
    fn wait(&mut self) -> [bool; SOURCES.len()] {
        let timeout = self.poll_timeout();
        // A missing source is replaced by a descriptor that never hangs up, polled for nothing.
        let nobody = (self.signals.as_fd(), PollFlags::empty());
        let mut polled = SOURCES.map(|source| {
            let (descriptor, interest) = self.interest_in(source).unwrap_or(nobody);
            PollFd::from_borrowed_fd(descriptor, interest)
        });
        let happened = poll(&mut polled, timeout.as_ref());
        let ready = polled.map(|it| !it.revents().is_empty());
        if happened == Ok(0) && self.paused_until().is_none() {
            self.trim_memory();
        } else {
            self.needs_trim = true;
        }
        ready
    }

    fn interest_in(&self, source: Source) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let input = match source {
            Source::Control => return self.control.interest(),
            Source::Signals => self.signals.as_fd(),
            Source::Listener => self.active_listener()?.as_fd(),
            Source::Logged(index) if self.paces[index].paused_until().is_some() => return None,
            Source::Logged(index) => self.logged[index].as_ref()?.as_fd(),
            Source::Stdout => self.unattended_stdout()?.as_fd(),
        };
        Some((input, PollFlags::IN))
    }

    fn poll_timeout(&self) -> Option<Timespec> {
        let now = clock::now();
        let quiet_at = self.needs_trim.then(|| now + TRIM_AFTER);
        let deadlines = [
            self.phase_deadline(),
            self.controller.deadline(),
            self.accept_after,
            self.log.deadline(),
            self.paused_until(),
            quiet_at,
        ];
        let next = deadlines.into_iter().flatten().min()?;
        // A timeout beyond the range of the type is no timeout.
        next.saturating_duration_since(now).try_into().ok()
    }

    /// Returns when the first paused pipe may be read again.
    fn paused_until(&self) -> Option<Instant> {
        self.paces.iter().filter_map(Pace::paused_until).min()
    }

    fn trim_memory(&mut self) {
        if self.needs_trim {
            self.control.trim();
            self.log.trim();
            sys::release_memory();
            self.needs_trim = false;
        }
    }
}

fn pace_of(pipe: Option<&OwnedFd>) -> Pace {
    Pace::new(pipe.map_or(0, |pipe| sys::pipe_bytes(pipe.as_fd())))
}

/// Reports the confinement to the daemon if it differs from the reported one, and returns it.
fn report_if_changed(
    reported: &Confinement,
    now: Confinement,
    control: &mut Control,
) -> Confinement {
    if *reported != now {
        control.outbox.put_report(&Report::Confined(now.clone()));
    }
    now
}
