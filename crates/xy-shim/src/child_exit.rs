//! Exits of children: their status, and their reaping.
//!
//! Nothing here waits, and only [`reap`] changes anything.

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

/// How a child exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitStatus {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

/// Returns the exit status of a child once it is dead. The child stays unreaped.
pub(crate) fn exit_status(pid: Pid) -> Option<ExitStatus> {
    let status = try_wait(pid, WaitIdOptions::NOWAIT)?;
    Some(ExitStatus { code: status.exit_status(), signal: status.terminating_signal() })
}

/// Reaps one dead child. Returns true if it was dead.
pub(crate) fn reap(pid: Pid) -> bool {
    try_wait(pid, WaitIdOptions::empty()).is_some()
}

/// Waits without blocking; returns `None` for a child that is alive.
fn try_wait(pid: Pid, how: WaitIdOptions) -> Option<WaitIdStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | how;
    rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options)).ok().flatten()
}
