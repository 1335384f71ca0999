//! The server's first process: signalled and reaped only while its number is ours.
//!
//! A dead process keeps its number, and the number of its group, until it is reaped.
//! So everything that signals happens before that: see it dead, kill what is left of
//! its group, and only then reap it. [`Leader::reap`] takes the leader away for good.

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid,
};

use crate::cgroup::Groups;
use crate::tree::Tree;
use crate::wire::{Confined, Containment, LimitsOrder, Oom};

/// A walk is quick, so a few of them outrun most who fork.
const KILLS_IN_A_ROW: usize = 20;

/// A child of ours that leads a session and a group of its own, and is not reaped.
#[derive(Debug)]
pub(crate) struct Leader {
    pid: Pid,
    tree: Tree,
    /// What it and all that it starts are in; removed with it.
    groups: Groups,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

impl Leader {
    /// `life` is the mark of all that it starts, `groups` are for it to be in.
    pub(crate) fn new(pid: Pid, life: &str, groups: Groups) -> Self {
        Self { pid, tree: Tree { leader: pid, life: life.to_owned() }, groups }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Brings all of it into the group that holds it together.
    pub(crate) fn gather(&mut self) {
        self.groups.gather(&self.tree);
    }

    /// How it is held together, and limited as ordered.
    pub(crate) fn confined(&self, limits: &LimitsOrder) -> Confined {
        let containment = if self.groups.hold() {
            Containment::Cgroup
        } else if cfg!(target_os = "linux") {
            Containment::Subreaper
        } else {
            Containment::Group
        };
        Confined { containment, limits: limits.kept() }
    }

    /// Whether the kernel has killed any of it for want of memory.
    pub(crate) fn oom(&self) -> Option<Oom> {
        self.groups.oom()
    }

    /// Asks all below us to end; a stopped process has to go on to hear it.
    pub(crate) fn terminate(&self) {
        // Nobody hears it twice: to some programs that means to drop everything.
        if !self.tree.signal_each(&[Signal::TERM, Signal::CONT]) {
            self.signal_group(Signal::TERM);
            self.signal_group(Signal::CONT);
        }
    }

    /// Kills all below us, and again what was born meanwhile.
    pub(crate) fn kill(&self) {
        for _ in 0..KILLS_IN_A_ROW {
            self.groups.kill(); // All at once, where that can be done; the walk proves it.
            self.signal_group(Signal::KILL);
            self.tree.signal_each(&[Signal::KILL]);
            if !self.has_others() {
                return;
            }
        }
    }

    /// Whether anything is left below us, or in its groups, beside the leader. Reaps what
    /// is dead of it.
    pub(crate) fn has_others(&self) -> bool {
        self.tree.has_others() || self.groups.alive().iter().any(|pid| *pid != self.pid)
    }

    /// What would not die, the leader among it.
    pub(crate) fn survivors(&self) -> Vec<u32> {
        let mut alive = self.tree.alive();
        let in_groups = self.groups.alive().into_iter().filter(|pid| !alive.contains(pid));
        alive.extend(in_groups.collect::<Vec<_>>());
        if self.ending().is_none() && !alive.contains(&self.pid) {
            alive.insert(0, self.pid);
        }
        alive.iter().map(|pid| pid.as_raw_pid().unsigned_abs()).collect()
    }

    /// How it ended, if it has. It stays unreaped.
    pub(crate) fn ending(&self) -> Option<Ending> {
        let status = wait_for(self.pid, WaitIdOptions::NOWAIT)?;
        Some(Ending { code: status.exit_status(), signal: status.terminating_signal() })
    }

    /// Reaps the leader of a server of which nothing else is left, as far as can be seen.
    pub(crate) fn reap(self) {
        self.signal_group(Signal::KILL); // Where there is no walk, this is what can be done.
        reap(self.pid);
    }

    /// A group that is only the dead leader any more cannot be signalled; no harm.
    fn signal_group(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
    }
}

/// Reaps one dead child; answers whether it was one.
pub(crate) fn reap(pid: Pid) -> bool {
    wait_for(pid, WaitIdOptions::empty()).is_some()
}

/// Never waits: a child that lives is no answer.
fn wait_for(pid: Pid, how: WaitIdOptions) -> Option<WaitIdStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | how;
    rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options)).ok().flatten()
}
