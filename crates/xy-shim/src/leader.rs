//! The server's first process, signalled and reaped only while its process ID is certain.
//!
//! A dead process keeps its ID, and the ID of its group, until it is reaped. So every signal is
//! sent before that: the shim sees the leader dead, kills the rest of its group, and only then
//! reaps it. [`Leader::reap`] consumes the leader.

use rustix::process::{Pid, Signal, kill_process_group};

use crate::cgroup::Groups;
use crate::child_exit::{self, ExitStatus};
use crate::tree::Tree;
use crate::wire::{Confinement, Containment, LimitsOrder, Oom};

/// Maximum number of kills in a row. A walk is quick, so a few of them outrun most programs that
/// fork.
const MAX_KILL_ROUNDS: usize = 20;

/// A child that leads a session and a process group of its own, and is not reaped yet.
#[derive(Debug)]
pub(crate) struct Leader {
    pid: Pid,
    tree: Tree,
    /// Control groups of the server; removed with the leader.
    groups: Groups,
}

impl Leader {
    /// Creates the leader of process `pid`. `life` is the ID of the life, which marks the server's
    /// processes; `groups` are its control groups.
    pub(crate) fn new(pid: Pid, life: &str, groups: Groups) -> Self {
        Self { pid, tree: Tree { leader: pid, life: life.to_owned() }, groups }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Moves all processes of the server into the group that contains it.
    pub(crate) fn gather(&mut self) {
        self.groups.gather(&self.tree);
    }

    /// Returns how the server is contained, and the ordered limits.
    pub(crate) fn confinement(&self, limits: &LimitsOrder) -> Confinement {
        let containment = if self.groups.has_unified_group() {
            Containment::Cgroup
        } else if cfg!(target_os = "linux") {
            Containment::Subreaper
        } else {
            Containment::Group
        };
        Confinement { containment, limits: limits.enforced() }
    }

    /// Returns why the kernel killed a process of the server for lack of memory, if it did.
    pub(crate) fn oom(&self) -> Option<Oom> {
        self.groups.oom()
    }

    /// Sends SIGTERM to every process below the shim, and SIGCONT so that a stopped one receives
    /// it.
    pub(crate) fn terminate(&self) {
        // No process gets it twice: some programs take a second SIGTERM as an order to drop
        // everything.
        if !self.tree.signal_each(&[Signal::TERM, Signal::CONT]) {
            self.signal_group(Signal::TERM);
            self.signal_group(Signal::CONT);
        }
    }

    /// Kills every process below the shim, and those forked meanwhile.
    pub(crate) fn kill(&self) {
        for _ in 0..MAX_KILL_ROUNDS {
            self.groups.kill(); // All at once where possible; the walk confirms it.
            self.signal_group(Signal::KILL);
            self.tree.signal_each(&[Signal::KILL]);
            if !self.has_others() {
                return;
            }
        }
    }

    /// Reaps dead children but the leader. Returns true if any process is left below the shim or in
    /// the groups, beside the leader.
    pub(crate) fn has_others(&self) -> bool {
        self.tree.has_others() || self.groups.alive().iter().any(|pid| *pid != self.pid)
    }

    /// Returns the processes that would not die, including the leader.
    pub(crate) fn survivors(&self) -> Vec<u32> {
        let mut alive = self.tree.alive();
        let in_groups = self.groups.alive().into_iter().filter(|pid| !alive.contains(pid));
        alive.extend(in_groups.collect::<Vec<_>>());
        if self.exit_status().is_none() && !alive.contains(&self.pid) {
            alive.insert(0, self.pid);
        }
        alive.iter().map(|pid| pid.as_raw_pid().unsigned_abs()).collect()
    }

    /// Returns the leader's exit status once it is dead. The leader stays unreaped.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        child_exit::exit_status(self.pid)
    }

    /// Reaps the leader of a server of which no other process is left, as far as can be seen.
    pub(crate) fn reap(self) {
        self.signal_group(Signal::KILL); // Without a walk, this is all that can be done.
        child_exit::reap(self.pid);
    }

    /// Signals the leader's process group. A group of only the dead leader cannot be signalled,
    /// which is harmless.
    fn signal_group(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
    }
}
