//! Runs one server without a daemon, on the stdin, stdout and stderr of this process.
//!
//! The process does for its client what a shim does for a daemon: it finds, ends and reaps every
//! process below it before it exits. Nothing is handed over, logged or restarted. The server is
//! asked to end by a signal to this process, or because its client is gone. Processes that it
//! leaves behind when it exits by itself are killed.
//!
//! On Linux there are two of these processes, so that either may be killed. The one that the client
//! starts only watches the other, which in turn notices if its watcher dies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::stdio;

use crate::cgroup::Groups;
use crate::child_exit::ExitStatus;
use crate::leader::Leader;
use crate::signals::Signals;
use crate::stop::State::NotRequested;
use crate::stop::{self, Effect, Event, Stdin};
use crate::wire::{
    EnforcedBy, LimitsOrder, LogOrder, MemoryLimit, OrphanPolicy, PROTOCOL, StartFault, StartOrder,
    Stdout,
};
use crate::{clock, exec, sys};

/// How long a server may still answer after its client has closed stdin.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How to run a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectOrder {
    /// The program: a path, or a name to look up on the server's PATH.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Set over this process's environment, from which every `XY_*` variable is removed first.
    pub env: Vec<(String, String)>,
    /// The working directory; this process's own if absent.
    pub working_dir: Option<String>,
    /// Maximum number of open files in each process.
    pub nofile: Option<u64>,
    /// Maximum number of bytes of memory in each process.
    pub memory: Option<u64>,
    /// How long the server may take to exit when asked.
    pub grace: Duration,
    /// ID of the life, which marks the server's processes.
    pub life: String,
    /// The process that watches this one: the server ends with it.
    pub watcher: Option<u32>,
}

/// How a server exited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectExit {
    /// Exit code, unless a signal ended the server.
    pub code: Option<i32>,
    /// The signal that ended the server.
    pub signal: Option<i32>,
    /// Processes that would not die.
    pub survivors: Vec<u32>,
}

/// Runs a server until none of its processes is left.
///
/// Must be called while the process has no other thread, and has no open descriptor that is still
/// needed.
pub fn run(order: &DirectOrder) -> Result<DirectExit, StartFault> {
    let failed = |cause: io::Error| exec::failed("watch the parent process", &cause);
    sys::close_inherited();
    let signals = listen_and_adopt()?;
    let watcher = order.watcher.map(Watcher::of).transpose().map_err(failed)?;
    let leader = exec::start_with_own_stdio(&start_order(order))?;
    let role = Role::Owner { client: Client::Connected, watcher, grace: order.grace };
    Ok(Direct { leader, signals, role, stop: NotRequested, exit: None, is_stopping: false }.run())
}

/// Starts another process like this one, which runs the server, and waits for it. If it is killed,
/// this process ends what it leaves behind.
///
/// Must be called while the process has no other thread.
pub fn supervise(command: &mut Command) -> Result<DirectExit, StartFault> {
    let signals = listen_and_adopt()?;
    let child = command
        .spawn()
        .map_err(|cause| exec::failed("start the process that runs the server", &cause))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let leader = Leader::new(pid.expect("a child has a pid"), "", Groups::default());
    let role = Role::Watcher;
    Ok(Direct { leader, signals, role, stop: NotRequested, exit: None, is_stopping: false }.run())
}

/// Makes this process the subreaper of everything below it, and listens to signals.
fn listen_and_adopt() -> Result<Signals, StartFault> {
    sys::clear_signal_mask();
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    Signals::listen().map_err(|cause| exec::failed("listen to signals", &cause))
}

fn start_order(order: &DirectOrder) -> StartOrder {
    let memory = order.memory.map(|bytes| MemoryLimit { bytes, kept_by: EnforcedBy::Rlimit });
    StartOrder {
        protocol: PROTOCOL,
        program: order.program.clone(),
        args: order.args.clone(),
        env: order.env.clone(),
        working_dir: order.working_dir.clone(),
        stdout: Stdout::Passed,
        has_stdin: true,
        log: LogOrder { file: String::new(), max_bytes: 0, generations: 0, next_seq: 0 },
        gone: OrphanPolicy { orphan_ms: 0, grace_ms: 0 },
        open_files: None,
        life: order.life.clone(),
        socket: None,
        note: String::new(),
        limits: LimitsOrder { nofile: order.nofile, memory, pids: None },
    }
}

/// State of the client that writes to this process's stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Connected,
    /// The client has closed stdin; until then the server may answer and exit by itself.
    Draining {
        until: Instant,
    },
    /// The server has been asked to end.
    Ignored,
}

/// The role of this process.
enum Role {
    /// This process has started the server.
    Owner { client: Client, watcher: Option<Watcher>, grace: Duration },
    /// This process watches the owner.
    Watcher,
}

/// The watcher of this process, held open so that its death is noticed; `None` where that is not
/// possible.
struct Watcher {
    pidfd: Option<OwnedFd>,
}

impl Watcher {
    #[cfg(target_os = "linux")]
    fn of(pid: u32) -> io::Result<Self> {
        use rustix::process::{PidfdFlags, getppid, pidfd_open};
        let _ = rustix::process::setsid(); // Signals from the terminal go to the watcher.
        let gone = || io::Error::from(rustix::io::Errno::SRCH);
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Some(pidfd),
            Err(rustix::io::Errno::NOSYS) => None, // The kernel is too old for pidfds.
            Err(cause) => return Err(cause.into()),
        };
        // Opened first and checked afterwards: the process is this one's parent, and was so all the
        // time.
        if getppid() == Some(pid) { Ok(Self { pidfd }) } else { Err(gone()) }
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unnecessary_wraps, reason = "the same signature on every system")]
    fn of(_: u32) -> io::Result<Self> {
        Ok(Self { pidfd: None })
    }
}

struct Direct {
    leader: Leader,
    signals: Signals,
    role: Role,
    stop: stop::State,
    /// How the leader exited, while other processes may still run.
    exit: Option<ExitStatus>,
    /// Set once the stop has been requested.
    is_stopping: bool,
}

/// Events that ended a wait.
#[derive(Debug, Clone, Copy)]
struct Readiness {
    client_left: bool,
    watcher_died: bool,
}

impl Direct {
    fn run(mut self) -> DirectExit {
        self.leader.gather();
        while !self.is_over() {
            let ready = self.wait();
            self.signals.clear();
            if ready.client_left {
                self.on_client_left();
            }
            if ready.watcher_died || self.signals.is_termination_requested() {
                self.request_stop();
            }
            self.check_leader();
            self.check_deadlines();
        }
        let survivors = self.leader.survivors();
        let exit_status = self.exit.or_else(|| self.leader.exit_status());
        self.leader.reap();
        let ExitStatus { code, signal } =
            exit_status.unwrap_or(ExitStatus { code: None, signal: None });
        DirectExit { code, signal, survivors }
    }

    /// Returns true if no process is left, or none that could be ended.
    fn is_over(&self) -> bool {
        let has_others = self.leader.has_others(); // Also reaps, while the leader lives.
        self.stop == stop::State::GivenUp || (self.exit.is_some() && !has_others)
    }

    fn check_leader(&mut self) {
        if self.exit.is_none() {
            self.exit = self.leader.exit_status();
            if self.exit.is_some() {
                self.on_stop_event(Event::LeaderDied);
            }
        }
    }

    fn on_client_left(&mut self) {
        if let Role::Owner { client: client @ Client::Connected, .. } = &mut self.role {
            *client = Client::Draining { until: clock::after(clock::now(), DRAIN_TIMEOUT) };
        }
    }

    /// Asks the server to end, once and by a signal: its stdin belongs to the client.
    fn request_stop(&mut self) {
        if std::mem::replace(&mut self.is_stopping, true) {
            return;
        }
        match &mut self.role {
            Role::Owner { client, grace, .. } => {
                *client = Client::Ignored;
                let grace = *grace;
                self.on_stop_event(Event::Requested { grace, stdin: Stdin::Empty });
            }
            // The owner knows how, and how long it may take.
            Role::Watcher => _ = kill_process(self.leader.pid(), Signal::TERM),
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

    fn check_deadlines(&mut self) {
        let now = clock::now();
        if self.client_deadline().is_some_and(|until| now >= until) {
            self.request_stop();
        }
        if self.stop.deadline().is_some_and(|deadline| now >= deadline) {
            self.on_stop_event(Event::DeadlineReached);
        }
    }

    fn client_deadline(&self) -> Option<Instant> {
        match self.role {
            Role::Owner { client: Client::Draining { until }, .. } => Some(until),
            Role::Owner { .. } | Role::Watcher => None,
        }
    }

    /// Waits until something happens or a deadline has come.
    fn wait(&self) -> Readiness {
        let next = self.client_deadline().into_iter().chain(self.stop.deadline()).min();
        let left = next.map(|next| next.saturating_duration_since(clock::now()));
        // A timeout beyond the range of the type is no timeout.
        let timeout: Option<Timespec> = left.and_then(|left| left.try_into().ok());
        // A missing source is replaced by a descriptor that never hangs up, polled for nothing.
        let unused = (self.signals.as_fd(), PollFlags::empty());
        let stdin = self.stdin().map_or(unused, |stdin| (stdin, HANGUP_FLAGS));
        let death = self.watcher_pidfd().map_or(unused, |death| (death, PollFlags::IN));
        let mut polled = [(self.signals.as_fd(), PollFlags::IN), stdin, death]
            .map(|(descriptor, interest)| PollFd::from_borrowed_fd(descriptor, interest));
        // An interrupt by a signal is a wake-up like any other.
        let _ = poll(&mut polled, timeout.as_ref());
        Readiness {
            client_left: polled[1].revents().intersects(PollFlags::HUP | HANGUP_FLAGS),
            watcher_died: polled[2].revents().intersects(PollFlags::IN | PollFlags::HUP),
        }
    }

    /// Returns stdin while the client is connected. The server reads it; this process only polls
    /// for a hang-up.
    fn stdin(&self) -> Option<BorrowedFd<'_>> {
        match self.role {
            Role::Owner { client: Client::Connected, .. } => Some(stdio::stdin()),
            Role::Owner { .. } | Role::Watcher => None,
        }
    }

    fn watcher_pidfd(&self) -> Option<BorrowedFd<'_>> {
        match &self.role {
            Role::Owner { watcher: Some(watcher), .. } if !self.is_stopping => {
                watcher.pidfd.as_ref().map(AsFd::as_fd)
            }
            Role::Owner { .. } | Role::Watcher => None,
        }
    }
}

/// Flags polled on stdin. A socket of which only one half is closed is not hung up yet.
#[cfg(target_os = "linux")]
const HANGUP_FLAGS: PollFlags = PollFlags::RDHUP;
#[cfg(not(target_os = "linux"))]
const HANGUP_FLAGS: PollFlags = PollFlags::empty();
