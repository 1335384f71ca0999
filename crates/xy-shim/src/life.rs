//! The loop of a shim: waits for something to happen, and does what it means.
//!
//! ```text
//! Running ── the leader is dead, or cannot die ─► Over ── Finish, hang-up, time ─► Ended
//! ```
//!
//! One round reads each thing that is ready once, writes what that brought to disk and
//! to the daemon, and waits again. Nothing in a round waits, for anybody.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::clock;
use crate::control::Control;
use crate::exec::{Passed, Started};
use crate::leader::{self, Ending, Leader};
use crate::log::{Log, Stream};
use crate::run::{LAST_WORDS_WITHIN, Shim};
use crate::signals::Signals;
use crate::stop::{self, Effect, Event, Stdin};
use crate::sys;
use crate::wire::{ExitReport, Order, Report, StartOrder};

/// How long the daemon may take to say that it has no more stray output.
const FINISH_WITHIN: Duration = Duration::from_secs(10);

/// After this long without anything to do, memory is given back.
const QUIET_AFTER: Duration = Duration::from_secs(1);

/// The most a pipe holds, in reads: what the dead have written is within it.
const FULL_PIPE: usize = 16;

/// One life of a server.
#[derive(Debug)]
pub(crate) struct Life {
    phase: Phase,
    control: Control,
    signals: Signals,
    log: Log,
    /// Its stdout, if that is logged, and its stderr; until they end.
    logged: [Option<OwnedFd>; 2],
    /// Our copies of its stdin and stdout: a later daemon will ask for them.
    to_stdin: Option<OwnedFd>,
    from_stdout: Option<OwnedFd>,
    /// How long a stop may take when nobody says more.
    grace: Duration,
    stdin: Stdin,
    chunk: Vec<u8>,
    /// Something has happened since memory was last given back.
    is_untidy: bool,
}

#[derive(Debug)]
enum Phase {
    Running {
        leader: Leader,
        stop: stop::State,
        /// Whether its end was asked for, once its leader is dead.
        ended: Option<Ended>,
    },
    Over {
        finish_by: Instant,
    },
    Ended,
}

/// How the leader ended, while the rest of the server may still be there.
#[derive(Debug, Clone, Copy)]
struct Ended {
    ending: Ending,
    asked: bool,
}

/// What can be acted on.
struct Ready {
    signals: bool,
    control: bool,
    logged: [bool; 2],
}

const STREAMS: [Stream; 2] = [Stream::Out, Stream::Err];

impl Life {
    /// Tells the daemon that the server runs.
    pub(crate) fn begin(shim: Shim, order: &StartOrder, started: Started) -> Self {
        let Shim { mut control, signals, chunk } = shim;
        let Started { leader, passed, logged } = started;
        let report = Report::Started { pid: leader.pid().as_raw_pid().unsigned_abs() };
        let stdin = if passed.is_some() { Stdin::Pipe } else { Stdin::Empty };
        let [to_stdin, from_stdout] = match passed {
            None => {
                control.outbox.put_report(&report);
                [None, None]
            }
            Some(Passed { kept, given }) => {
                control.outbox.put_report_with(&report, given);
                kept.map(Some)
            }
        };
        control.flush();
        Self {
            phase: Phase::Running { leader, stop: stop::State::NotAsked, ended: None },
            control,
            signals,
            log: Log::open(&order.log, clock::now()),
            logged,
            to_stdin,
            from_stdout,
            grace: Duration::from_millis(order.grace_ms),
            stdin,
            chunk,
            is_untidy: true,
        }
    }

    /// Lives, to the last line.
    pub(crate) fn run(mut self) {
        self.obey_orders(); // Those that came in one piece with the first.
        self.mind_the_daemon();
        while !matches!(self.phase, Phase::Ended) {
            self.end_round();
            let ready = self.wait();
            self.act_on(&ready);
        }
        self.drain_pipes();
        self.log.finish(clock::moment(), &mut self.control.outbox);
        self.control.flush_within(LAST_WORDS_WITHIN);
    }

    fn act_on(&mut self, ready: &Ready) {
        if ready.signals {
            self.signals.clear();
        }
        if ready.control {
            self.control.read(&mut self.chunk);
            self.obey_orders();
        }
        for (index, stream) in STREAMS.into_iter().enumerate() {
            if ready.logged[index] {
                self.read_pipe(index, stream);
            }
        }
        if ready.signals {
            self.on_death();
        }
        self.keep_deadlines();
        self.mind_the_daemon();
    }

    /// Without a daemon there is no server, and nobody left to say Finish.
    fn mind_the_daemon(&mut self) {
        if self.control.is_gone() || self.signals.told_to_end() {
            self.stop_within(self.grace);
        }
        if self.control.is_gone()
            && let Phase::Over { .. } = self.phase
        {
            self.phase = Phase::Ended;
        }
    }

    fn end_round(&mut self) {
        self.log.end_round(clock::now(), &mut self.control.outbox);
        self.control.flush();
    }

    fn obey_orders(&mut self) {
        let log = &mut self.log;
        let mut give_stray = |bytes: &[u8], out: &mut _| {
            log.take(Stream::Out, bytes, clock::moment(), out);
        };
        let mut orders = Vec::new();
        while let Some(order) = self.control.next_order(&mut give_stray) {
            orders.push(order);
        }
        for order in orders {
            self.obey(&order);
        }
    }

    fn obey(&mut self, order: &Order) {
        match order {
            Order::Start(_) => {} // The server of this shim has been started.
            Order::Stop { grace_ms } => self.stop_within(Duration::from_millis(*grace_ms)),
            Order::Finish => {
                if let Phase::Over { .. } = self.phase {
                    self.phase = Phase::Ended;
                }
            }
        }
    }

    fn stop_within(&mut self, grace: Duration) {
        self.on_stop_event(Event::Asked { grace, stdin: self.stdin });
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
                self.end_if_empty();
            }
            Some(Effect::GiveUp) => self.end_life(),
        }
    }

    /// A child has died: the leader, or one that has fallen to us.
    fn on_death(&mut self) {
        let Phase::Running { leader, stop, ended } = &mut self.phase else {
            while sys::first_dead_child().is_some_and(leader::reap) {}
            return;
        };
        if ended.is_none()
            && let Some(ending) = leader.ending()
        {
            *ended = Some(Ended { ending, asked: *stop != stop::State::NotAsked });
            self.on_stop_event(Event::LeaderDied);
        }
        self.end_if_empty();
    }

    /// The life is over once the leader is dead and nothing else is left.
    fn end_if_empty(&mut self) {
        let Phase::Running { leader, ended, .. } = &self.phase else { return };
        let has_others = leader.has_others(); // Also reaps, while the leader lives.
        if ended.is_some() && !has_others {
            self.end_life();
        }
    }

    /// Reaps the leader, keeps the last words, tells the daemon.
    fn end_life(&mut self) {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        let Phase::Running { leader, ended, .. } = phase else { return };
        let survivors = leader.survivors();
        let seen = leader.ending();
        let asked = ended.is_none_or(|ended| ended.asked);
        let ending = ended.map(|ended| ended.ending).or(seen);
        leader.reap();
        self.drain_pipes();
        let Ending { code, signal } = ending.unwrap_or(Ending { code: None, signal: None });
        let report = Report::Exited(ExitReport { code, signal, asked, survivors });
        self.control.outbox.put_report(&report);
        self.to_stdin = None;
        self.from_stdout = None;
        self.phase = Phase::Over { finish_by: clock::now() + FINISH_WITHIN };
    }

    /// Reads what is in the pipes now; others who hold them open are not waited for.
    fn drain_pipes(&mut self) {
        for (index, stream) in STREAMS.into_iter().enumerate() {
            for _ in 0..FULL_PIPE {
                if !self.read_pipe(index, stream) {
                    break;
                }
            }
        }
    }

    /// Reads once; answers whether there may be more.
    fn read_pipe(&mut self, index: usize, stream: Stream) -> bool {
        let Some(pipe) = &self.logged[index] else { return false };
        let out = &mut self.control.outbox;
        match rustix::io::read(pipe, &mut *self.chunk) {
            Ok(count) if count > 0 => {
                self.log.take(stream, &self.chunk[..count], clock::moment(), out);
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

    fn keep_deadlines(&mut self) {
        let now = clock::now();
        while let Some(deadline) = self.phase.deadline()
            && now >= deadline
        {
            match &self.phase {
                Phase::Running { .. } => self.on_stop_event(Event::DeadlineReached),
                Phase::Over { .. } => self.phase = Phase::Ended,
                Phase::Ended => return,
            }
        }
    }

    /// Waits until something happens or a deadline has come.
    fn wait(&mut self) -> Ready {
        let timeout = self.time_to_wait();
        let signals = self.signals.as_fd();
        // Who is not there is asked for nothing, in the place of one that never hangs up.
        let nobody = (signals, PollFlags::empty());
        let control = self.control.interest().unwrap_or(nobody);
        let [out, err] = self
            .logged
            .each_ref()
            .map(|pipe| pipe.as_ref().map_or(nobody, |pipe| (pipe.as_fd(), PollFlags::IN)));
        let mut asked = [(signals, PollFlags::IN), control, out, err]
            .map(|(descriptor, interest)| PollFd::from_borrowed_fd(descriptor, interest));
        let happened = poll(&mut asked, timeout.as_ref());
        let [signals, control, out, err] = asked.map(|it| !it.revents().is_empty());
        if happened == Ok(0) {
            self.tidy();
        } else {
            self.is_untidy = true;
        }
        Ready { signals, control, logged: [out, err] }
    }

    fn time_to_wait(&self) -> Option<Timespec> {
        let now = clock::now();
        let quiet_at = self.is_untidy.then(|| now + QUIET_AFTER);
        let deadlines = [self.phase.deadline(), self.log.deadline(), quiet_at];
        let next = deadlines.into_iter().flatten().min()?;
        // More seconds than the type can hold are as good as no deadline.
        next.saturating_duration_since(now).try_into().ok()
    }

    fn tidy(&mut self) {
        if self.is_untidy {
            self.control.trim();
            self.log.trim();
            sys::release_memory();
            self.is_untidy = false;
        }
    }
}

impl Phase {
    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Running { stop, .. } => stop.deadline(),
            Self::Over { finish_by } => Some(*finish_by),
            Self::Ended => None,
        }
    }
}
