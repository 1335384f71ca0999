//! The loop of a shim: waits for something to happen, and does what it means.
//!
//! ```text
//! Running ── the leader is dead, or cannot die ─► Over ── Finish, or nobody to tell ─► Ended
//! ```
//!
//! The daemon may be killed and followed by another at any moment: `company.rs`. While
//! nobody is there, a stdout that only a daemon reads is kept up to a bound, and how the
//! server ended.
//!
//! One round reads each thing that is ready once, writes what that brought to disk and
//! to the daemon, and waits again. Nothing in a round waits for another process; the
//! kernel may take a moment to remove a control group.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::clock;
use crate::company::Company;
use crate::control::{Control, Said};
use crate::door::Door;
use crate::exec::{Passed, Started};
use crate::heritage::Heritage;
use crate::leader::{self, Ending, Leader};
use crate::log::{Log, Stream};
use crate::pace::Pace;
use crate::run::{LAST_WORDS_WITHIN, Shim};
use crate::signals::Signals;
use crate::stop::{self, Effect, Event, Stdin};
use crate::sys;
use crate::wire::{Confined, ExitReport, GoneRules, Order, Report, StartOrder};

mod visits;

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
    pid: u32,
    began_at: Instant,
    confined: Confined,
    company: Company,
    control: Control,
    /// Closed once nobody is waited for.
    door: Option<Door>,
    /// Nobody is let in before: the system was short of something.
    door_opens_at: Option<Instant>,
    gone: GoneRules,
    heritage: Heritage,
    /// Once it has ended there is nobody who would ask how.
    for_good: bool,
    signals: Signals,
    log: Log,
    /// Its stdout, if that is logged, and its stderr; until they end.
    logged: [Option<OwnedFd>; 2],
    /// When each of them is read.
    paces: [Pace; 2],
    /// Our copies of its stdin and stdout: a later daemon will ask for them.
    to_stdin: Option<OwnedFd>,
    from_stdout: Option<OwnedFd>,
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
        report: ExitReport,
        ended_at: Instant,
    },
    Ended,
}

/// How the leader ended, while the rest of the server may still be there.
#[derive(Debug, Clone, Copy)]
struct Ended {
    ending: Ending,
    asked: bool,
}

/// Something to wait for.
#[derive(Debug, Clone, Copy)]
enum Source {
    Signals,
    Control,
    Door,
    Logged(usize),
    Stdout,
}

/// All there is to wait for, in the order in which it is acted on.
const SOURCES: [Source; 6] = [
    Source::Control,
    Source::Door,
    Source::Logged(0),
    Source::Logged(1),
    Source::Stdout,
    Source::Signals, // Last: what the dead have said comes before their death.
];

const STREAMS: [Stream; 2] = [Stream::Out, Stream::Err];

impl Life {
    /// Tells the daemon that the server runs.
    pub(crate) fn begin(
        shim: Shim,
        order: &StartOrder,
        started: Started,
        door: Option<Door>,
    ) -> Self {
        let Shim { mut control, signals, chunk } = shim;
        let Started { mut leader, passed, logged } = started;
        let pid = leader.pid().as_raw_pid().unsigned_abs();
        let confined = leader.confined(&order.limits);
        let lasting = door.is_some();
        let report = Report::Started { pid, lasting, confined: confined.clone() };
        let stdin = if passed.is_some() { Stdin::Pipe } else { Stdin::Empty };
        let (to_stdin, from_stdout) = match passed {
            None => {
                control.outbox.put_report(&report);
                (None, None)
            }
            Some(Passed { to_stdin, from_stdout, given }) => {
                control.outbox.put_report_with(&report, given);
                (Some(to_stdin), from_stdout)
            }
        };
        control.flush();
        let now = clock::now();
        leader.gather(); // Takes a moment, and the server runs.
        let confined = told_if_other(&confined, leader.confined(&order.limits), &mut control);
        Self {
            phase: Phase::Running { leader, stop: stop::State::NotAsked, ended: None },
            pid,
            began_at: now,
            confined,
            company: Company::Daemon,
            control,
            door,
            door_opens_at: None,
            gone: order.gone,
            heritage: Heritage::new(order.note.as_bytes(), now),
            for_good: false,
            signals,
            log: Log::open(&order.log, now),
            paces: logged.each_ref().map(|pipe| pace_of(pipe.as_ref())),
            logged,
            to_stdin,
            from_stdout,
            stdin,
            chunk,
            is_untidy: true,
        }
    }

    /// Lives, to the last line.
    pub(crate) fn run(mut self) {
        self.obey_orders(); // Those that came in one piece with the first.
        self.mind_company();
        while !matches!(self.phase, Phase::Ended) {
            self.end_round();
            let ready = self.wait();
            for (source, _) in SOURCES.into_iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
                self.act_on(source);
            }
            self.keep_deadlines();
            self.mind_company();
        }
        self.drain_pipes();
        let unread = std::mem::take(&mut self.heritage.unread);
        let out = &mut self.control.outbox;
        self.log.take(Stream::Out, &unread, clock::moment(), out);
        self.log.finish(clock::moment(), out);
        self.control.flush_within(LAST_WORDS_WITHIN);
    }

    fn act_on(&mut self, source: Source) {
        match source {
            Source::Signals => {
                self.signals.clear();
                self.on_death();
            }
            Source::Control => {
                self.control.read(&mut self.chunk);
                self.obey_orders();
            }
            Source::Door => self.let_in(),
            Source::Logged(index) => _ = self.read_pipe(index, STREAMS[index]),
            Source::Stdout => _ = self.read_stdout(),
        }
    }

    fn end_round(&mut self) {
        self.log.end_round(clock::now(), &mut self.control.outbox);
        self.control.flush();
    }

    fn obey_orders(&mut self) {
        let (log, heritage) = (&mut self.log, &mut self.heritage);
        let is_known = self.company == Company::Daemon;
        let mut hear = |said: Said<'_>, out: &mut _| {
            if !is_known {
                return;
            }
            match said {
                Said::Stray(bytes) => {
                    heritage.on_returned(bytes.len());
                    log.take(Stream::Out, bytes, clock::moment(), out);
                }
                Said::Note(note) => heritage.keep(note, clock::now()),
                Said::Unread(bytes) => heritage.take_back(bytes),
            }
        };
        let mut orders = Vec::new();
        while let Some(order) = self.control.next_order(&mut hear) {
            orders.push(order);
        }
        for order in orders {
            self.obey(&order);
        }
    }

    fn obey(&mut self, order: &Order) {
        if let Company::Newcomer { .. } = self.company {
            match order {
                Order::Hello { protocol } if !self.control.is_gone() => self.welcome(*protocol),
                _ => self.control.hang_up(), // First of all a daemon says who it is.
            }
            return;
        }
        match order {
            Order::Start(_) | Order::Hello { .. } => {} // It has been, and it is known.
            Order::Rules(rules) => self.gone = *rules,
            Order::WriteBegins => self.heritage.is_writing = true,
            Order::WriteEnds => self.heritage.is_writing = false,
            Order::Stop { grace_ms, for_good } => {
                self.for_good |= for_good;
                self.stop_within(Duration::from_millis(*grace_ms));
            }
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
        let oom = leader.oom();
        let asked = ended.is_none_or(|ended| ended.asked);
        let ending = ended.map(|ended| ended.ending).or(seen);
        leader.reap();
        self.drain_pipes();
        let Ending { code, signal } = ending.unwrap_or(Ending { code: None, signal: None });
        let report = ExitReport { code, signal, asked, survivors, oom };
        self.control.outbox.put_report(&Report::Exited(report.clone()));
        self.to_stdin = None;
        if self.company != Company::Daemon {
            self.drain_stdout(); // Nobody else does.
        }
        let ended_at = clock::now();
        self.phase = Phase::Over { finish_by: ended_at + FINISH_WITHIN, report, ended_at };
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
                let read = clock::moment();
                self.paces[index].on_read(count, read.at);
                self.log.take(stream, &self.chunk[..count], read, out);
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
        self.paces.iter_mut().for_each(|pace| pace.on_time(now));
        while let Some(deadline) = self.phase_deadline()
            && now >= deadline
        {
            match &self.phase {
                Phase::Running { .. } => self.on_stop_event(Event::DeadlineReached),
                Phase::Over { .. } => self.phase = Phase::Ended,
                Phase::Ended => return,
            }
        }
        self.door_opens_at = self.door_opens_at.filter(|opens_at| now < *opens_at);
        if self.company.deadline().is_some_and(|deadline| now >= deadline) {
            match self.company {
                Company::Newcomer { until, .. } if now < until => self.control.hang_up(),
                _ => self.wait_no_longer(),
            }
        }
    }

    fn phase_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Running { stop, .. } => stop.deadline(),
            Phase::Over { finish_by, .. } if self.company == Company::Daemon => Some(*finish_by),
            Phase::Over { .. } | Phase::Ended => None,
        }
    }

    /// Waits until something happens or a deadline has come; answers what of [`SOURCES`].
    fn wait(&mut self) -> [bool; SOURCES.len()] {
        let timeout = self.time_to_wait();
        // Who is not there is asked for nothing, in the place of one that never hangs up.
        let nobody = (self.signals.as_fd(), PollFlags::empty());
        let mut asked = SOURCES.map(|source| {
            let (descriptor, interest) = self.interest_in(source).unwrap_or(nobody);
            PollFd::from_borrowed_fd(descriptor, interest)
        });
        let happened = poll(&mut asked, timeout.as_ref());
        let ready = asked.map(|it| !it.revents().is_empty());
        if happened == Ok(0) && self.rest_until().is_none() {
            self.tidy();
        } else {
            self.is_untidy = true;
        }
        ready
    }

    fn interest_in(&self, source: Source) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let input = match source {
            Source::Control => return self.control.interest(),
            Source::Signals => self.signals.as_fd(),
            Source::Door => self.open_door()?.as_fd(),
            Source::Logged(index) if self.paces[index].rests_until().is_some() => return None,
            Source::Logged(index) => self.logged[index].as_ref()?.as_fd(),
            Source::Stdout => self.unattended_stdout()?.as_fd(),
        };
        Some((input, PollFlags::IN))
    }

    fn time_to_wait(&self) -> Option<Timespec> {
        let now = clock::now();
        let quiet_at = self.is_untidy.then(|| now + QUIET_AFTER);
        let deadlines = [
            self.phase_deadline(),
            self.company.deadline(),
            self.door_opens_at,
            self.log.deadline(),
            self.rest_until(),
            quiet_at,
        ];
        let next = deadlines.into_iter().flatten().min()?;
        // More seconds than the type can hold are as good as no deadline.
        next.saturating_duration_since(now).try_into().ok()
    }

    /// Until when one of the pipes is left alone.
    fn rest_until(&self) -> Option<Instant> {
        self.paces.iter().filter_map(Pace::rests_until).min()
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

fn pace_of(pipe: Option<&OwnedFd>) -> Pace {
    Pace::new(pipe.map_or(0, |pipe| sys::pipe_bytes(pipe.as_fd())))
}

/// What holds the server together now; tells the daemon if that is not what it was told.
fn told_if_other(told: &Confined, now: Confined, control: &mut Control) -> Confined {
    if *told != now {
        control.outbox.put_report(&Report::Confined(now.clone()));
    }
    now
}
