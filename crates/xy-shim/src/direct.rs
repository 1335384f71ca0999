//! One server without a daemon: its stdin, stdout and stderr are those of this process.
//!
//! What a shim does for a daemon is done here for whoever started this process: everything
//! below it is found, ended and reaped before it ends. Nothing is carried, logged or
//! restarted. The server is asked to end by a signal to this process, or because its client
//! is gone; whatever it leaves behind when it ends by itself is killed.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio;

use crate::clock;
use crate::exec;
use crate::leader::{Ending, Leader};
use crate::signals::Signals;
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
    sys::close_inherited();
    sys::clear_signal_mask();
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let signals = Signals::listen().map_err(|cause| exec::failed("listen to signals", &cause))?;
    let leader = exec::start_with_our_stdio(&start_order(order))?;
    let direct = Direct {
        leader,
        signals,
        stop: stop::State::NotAsked,
        ended: None,
        client: Client::Speaks,
        grace: order.grace,
        is_told: false,
    };
    Ok(direct.run())
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

struct Direct {
    leader: Leader,
    signals: Signals,
    stop: stop::State,
    /// How the leader ended, while others may still be there.
    ended: Option<Ending>,
    client: Client,
    grace: Duration,
    /// Whether we have been told to end.
    is_told: bool,
}

impl Direct {
    fn run(mut self) -> Ended {
        self.leader.gather();
        while !self.is_over() {
            let client_left = self.wait();
            self.signals.clear();
            if client_left && self.client == Client::Speaks {
                let until = clock::after(clock::now(), LAST_ANSWERS_WITHIN);
                self.client = Client::Left { until };
            }
            if self.signals.told_to_end() && !self.is_told {
                self.is_told = true;
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

    /// Its stdin is not ours to close: it is asked by a signal.
    fn end_it(&mut self) {
        self.client = Client::Forgotten;
        self.on_stop_event(Event::Asked { grace: self.grace, stdin: Stdin::Empty });
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
        if matches!(self.client, Client::Left { until } if now >= until) {
            self.end_it();
        }
        if self.stop.deadline().is_some_and(|deadline| now >= deadline) {
            self.on_stop_event(Event::DeadlineReached);
        }
    }

    /// Waits until something happens or a deadline has come; answers whether the client has
    /// said its last word.
    fn wait(&self) -> bool {
        let leaves_at = match self.client {
            Client::Left { until } => Some(until),
            Client::Speaks | Client::Forgotten => None,
        };
        let next = leaves_at.into_iter().chain(self.stop.deadline()).min();
        let left = next.map(|next| next.saturating_duration_since(clock::now()));
        // More seconds than the type can hold are as good as no deadline.
        let timeout: Option<Timespec> = left.and_then(|left| left.try_into().ok());
        let stdin = self.stdin();
        // Who is not there is asked for nothing, in the place of one that never hangs up.
        let (stdin, interest) =
            stdin.map_or((self.signals.as_fd(), PollFlags::empty()), |it| (it, HANGS_UP));
        let mut asked = [
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stdin, interest),
        ];
        let _ = poll(&mut asked, timeout.as_ref()); // A signal wakes us; that is what for.
        asked[1].revents().intersects(PollFlags::HUP | HANGS_UP)
    }

    /// Our stdin is the server's to read; we only look whether anybody is at its other end.
    fn stdin(&self) -> Option<BorrowedFd<'static>> {
        (self.client == Client::Speaks).then(stdio::stdin)
    }
}

/// A socket of which only one half was closed is not hung up yet.
#[cfg(target_os = "linux")]
const HANGS_UP: PollFlags = PollFlags::RDHUP;
#[cfg(not(target_os = "linux"))]
const HANGS_UP: PollFlags = PollFlags::empty();
