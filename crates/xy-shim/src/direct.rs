//! One server without a daemon: its stdin, stdout and stderr are those of this process.
//!
//! What a shim does for a daemon is done here for whoever started this process: everything
//! below it is found, ended and reaped before it ends. Nothing is carried, logged or
//! restarted. The server is asked to end by a signal to this process, or because its client
//! is gone; whatever it leaves behind when it ends by itself is killed.
//!
//! On Linux there are two of it, so that either may be killed: the one that the client has
//! started only looks after the other, and the other sees it die.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::stdio;

use crate::cgroup::Groups;
use crate::clock;
use crate::exec;
use crate::leader::{Ending, Leader};
use crate::signals::Signals;
use crate::stop::State::NotAsked;
use crate::stop::{self, Effect, Event, Stdin};
use crate::sys;
use crate::wire::{
    GoneRules, KeptBy, LimitsOrder, LogOrder, MemoryLimit, PROTOCOL, StartFault, StartOrder, Stdout,
};

/// How long a server may still answer after its client has said its last word.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// How to run a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectOrder {
    /// The program: a path, or a name to look up on the server's PATH.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Set over our own environment, from which every `XY_*` is taken out first.
    pub env: Vec<(String, String)>,
    /// Where it runs; our own folder if absent.
    pub working_dir: Option<String>,
    /// How many files each of its processes may have open.
    pub nofile: Option<u64>,
    /// How many bytes of memory each of its processes may have.
    pub memory: Option<u64>,
    /// How long it may take to end.
    pub grace: Duration,
    /// What tells its processes from all others.
    pub life: String,
    /// The process that looks after this one: everything ends with it.
    pub above: Option<u32>,
}

/// How a server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What would not die of it.
    pub survivors: Vec<u32>,
}

/// Runs a server until nothing is left of it.
///
/// To be called where there is no other thread, and nothing open that is still needed.
pub fn run(order: &DirectOrder) -> Result<Ended, StartFault> {
    let failed = |cause: io::Error| exec::failed("be looked after", &cause);
    sys::close_inherited();
    let signals = prepare()?;
    let above = order.above.map(Above::of).transpose().map_err(failed)?;
    let leader = exec::start_with_our_stdio(&start_order(order))?;
    let role = Role::Owner { client: Client::Speaks, above, grace: order.grace };
    Ok(Direct { leader, signals, role, stop: NotAsked, ended: None, is_told: false }.run())
}

/// Runs another of us, which runs the server; if that is killed, what it leaves is ended here.
/// The same must hold here: no other thread.
pub fn look_after(command: &mut Command) -> Result<Ended, StartFault> {
    let signals = prepare()?;
    let child = command.spawn().map_err(|cause| exec::failed("start another of us", &cause))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let leader = Leader::new(pid.expect("a child has a pid"), "", Groups::default());
    let role = Role::Above;
    Ok(Direct { leader, signals, role, stop: NotAsked, ended: None, is_told: false }.run())
}

/// Whatever loses its parent below us comes to us, and signals are heard.
fn prepare() -> Result<Signals, StartFault> {
    sys::clear_signal_mask();
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    Signals::listen().map_err(|cause| exec::failed("listen to signals", &cause))
}

fn start_order(order: &DirectOrder) -> StartOrder {
    let memory = order.memory.map(|bytes| MemoryLimit { bytes, kept_by: KeptBy::Rlimit });
    StartOrder {
        protocol: PROTOCOL,
        program: order.program.clone(),
        args: order.args.clone(),
        env: order.env.clone(),
        working_dir: order.working_dir.clone(),
        stdout: Stdout::Passed,
        has_stdin: true,
        log: LogOrder { file: String::new(), max_bytes: 0, generations: 0, next_seq: 0 },
        gone: GoneRules { orphan_ms: 0, grace_ms: 0 },
        open_files: None,
        life: order.life.clone(),
        socket: None,
        note: String::new(),
        limits: LimitsOrder { nofile: order.nofile, memory, pids: None },
    }
}

/// What is known of whoever writes to our stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Speaks,
    /// It has said its last word; until then the server may answer and end by itself.
    Left {
        until: Instant,
    },
    /// The server has been told to end.
    Forgotten,
}

/// What this process is to the server.
enum Role {
    /// It has started the server.
    Owner { client: Client, above: Option<Above>, grace: Duration },
    /// It looks after one that has.
    Above,
}

/// The process that looks after us, held so that its death is seen; not where that cannot be.
struct Above {
    held: Option<OwnedFd>,
}

impl Above {
    #[cfg(target_os = "linux")]
    fn of(pid: u32) -> io::Result<Self> {
        use rustix::process::{PidfdFlags, getppid, pidfd_open};
        let _ = rustix::process::setsid(); // What a terminal says is for the one above.
        let gone = || io::Error::from(rustix::io::Errno::SRCH);
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let held = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(held) => Some(held),
            Err(rustix::io::Errno::NOSYS) => None, // The kernel is too old for it.
            Err(cause) => return Err(cause.into()),
        };
        // Held first, looked at then: it is our parent, and so it was all the time.
        if getppid() == Some(pid) { Ok(Self { held }) } else { Err(gone()) }
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unnecessary_wraps, reason = "the same signature on every system")]
    fn of(_: u32) -> io::Result<Self> {
        Ok(Self { held: None })
    }
}

struct Direct {
    leader: Leader,
    signals: Signals,
    role: Role,
    stop: stop::State,
    /// How the leader ended, while others may still be there.
    ended: Option<Ending>,
    /// Whether the end of it has been asked for.
    is_told: bool,
}

/// What has happened while we waited.
#[derive(Debug, Clone, Copy)]
struct Seen {
    client_left: bool,
    above_died: bool,
}

impl Direct {
    fn run(mut self) -> Ended {
        self.leader.gather();
        while !self.is_over() {
            let seen = self.wait();
            self.signals.clear();
            if seen.client_left {
                self.client_leaves();
            }
            if seen.above_died || self.signals.told_to_end() {
                self.end_it();
            }
            self.look_at_leader();
            self.keep_deadlines();
        }
        let survivors = self.leader.survivors();
        let ending = self.ended.or_else(|| self.leader.ending());
        self.leader.reap();
        let Ending { code, signal } = ending.unwrap_or(Ending { code: None, signal: None });
        Ended { code, signal, survivors }
    }

    /// Nothing is left of it, or nothing that could be ended.
    fn is_over(&self) -> bool {
        let has_others = self.leader.has_others(); // Also reaps, while the leader lives.
        self.stop == stop::State::GivenUp || (self.ended.is_some() && !has_others)
    }

    fn look_at_leader(&mut self) {
        if self.ended.is_none() {
            self.ended = self.leader.ending();
            if self.ended.is_some() {
                self.on_stop_event(Event::LeaderDied);
            }
        }
    }

    fn client_leaves(&mut self) {
        if let Role::Owner { client: client @ Client::Speaks, .. } = &mut self.role {
            *client = Client::Left { until: clock::after(clock::now(), LAST_ANSWERS_WITHIN) };
        }
    }

    /// Its stdin is not ours to close: it is asked by a signal, once.
    fn end_it(&mut self) {
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        match &mut self.role {
            Role::Owner { client, grace, .. } => {
                *client = Client::Forgotten;
                let grace = *grace;
                self.on_stop_event(Event::Asked { grace, stdin: Stdin::Empty });
            }
            // The other knows how, and how long it may take.
            Role::Above => _ = kill_process(self.leader.pid(), Signal::TERM),
        }
    }

    fn on_stop_event(&mut self, event: Event) {
        let (next, effect) = stop::on_event(self.stop, event, clock::now());
        self.stop = next;
        match effect {
            Some(Effect::Terminate) => self.leader.terminate(),
            Some(Effect::Kill) => self.leader.kill(),
            None | Some(Effect::CloseStdin | Effect::GiveUp) => {}
        }
    }

    fn keep_deadlines(&mut self) {
        let now = clock::now();
        if self.client_has_until().is_some_and(|until| now >= until) {
            self.end_it();
        }
        if self.stop.deadline().is_some_and(|deadline| now >= deadline) {
            self.on_stop_event(Event::DeadlineReached);
        }
    }

    fn client_has_until(&self) -> Option<Instant> {
        match self.role {
            Role::Owner { client: Client::Left { until }, .. } => Some(until),
            Role::Owner { .. } | Role::Above => None,
        }
    }

    /// Waits until something happens or a deadline has come.
    fn wait(&self) -> Seen {
        let next = self.client_has_until().into_iter().chain(self.stop.deadline()).min();
        let left = next.map(|next| next.saturating_duration_since(clock::now()));
        // More seconds than the type can hold are as good as no deadline.
        let timeout: Option<Timespec> = left.and_then(|left| left.try_into().ok());
        // Who is not there is asked for nothing, in the place of one that never hangs up.
        let nobody = (self.signals.as_fd(), PollFlags::empty());
        let stdin = self.stdin().map_or(nobody, |stdin| (stdin, HANGS_UP));
        let death = self.death_above().map_or(nobody, |death| (death, PollFlags::IN));
        let mut asked = [(self.signals.as_fd(), PollFlags::IN), stdin, death]
            .map(|(descriptor, interest)| PollFd::from_borrowed_fd(descriptor, interest));
        let _ = poll(&mut asked, timeout.as_ref()); // A signal wakes us; that is what for.
        Seen {
            client_left: asked[1].revents().intersects(PollFlags::HUP | HANGS_UP),
            above_died: asked[2].revents().intersects(PollFlags::IN | PollFlags::HUP),
        }
    }

    /// Our stdin is the server's to read; we only look whether anybody is at its other end.
    fn stdin(&self) -> Option<BorrowedFd<'_>> {
        match self.role {
            Role::Owner { client: Client::Speaks, .. } => Some(stdio::stdin()),
            Role::Owner { .. } | Role::Above => None,
        }
    }

    fn death_above(&self) -> Option<BorrowedFd<'_>> {
        match &self.role {
            Role::Owner { above: Some(above), .. } if !self.is_told => {
                above.held.as_ref().map(AsFd::as_fd)
            }
            Role::Owner { .. } | Role::Above => None,
        }
    }
}

/// A socket of which only one half was closed is not hung up yet.
#[cfg(target_os = "linux")]
const HANGS_UP: PollFlags = PollFlags::RDHUP;
#[cfg(not(target_os = "linux"))]
const HANGS_UP: PollFlags = PollFlags::empty();
