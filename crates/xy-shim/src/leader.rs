//! The server's first process: signalled and reaped only while its number is ours.
//!
//! A dead process keeps its number, and the number of its group, until it is reaped.
//! So everything that signals happens before that: see it dead, kill what is left of
//! its group, and only then reap it. [`Leader::end`] takes the leader away for good.

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid,
};

/// A child of ours that leads a session and a group of its own, and is not reaped.
#[derive(Debug)]
pub(crate) struct Leader {
    pid: Pid,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

impl Leader {
    pub(crate) fn new(pid: Pid) -> Self {
        Self { pid }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Asks the whole group to end; a stopped process has to go on to hear it.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Kills the whole group.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// How it ended, if it has. It stays unreaped.
    pub(crate) fn ending(&self) -> Option<Ending> {
        let status = wait_for(self.pid, WaitIdOptions::NOWAIT)?;
        Some(Ending { code: status.exit_status(), signal: status.terminating_signal() })
    }

    /// Ends what is left of a server whose leader is dead, then reaps the leader.
    pub(crate) fn end(self) {
        // Everything below us that has left the group must be found and killed here, too.
        self.kill();
        reap(self.pid);
    }

    /// Signals the group. One that is only the dead leader any more cannot be; no harm.
    fn signal(&self, signal: Signal) {
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
