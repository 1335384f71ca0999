//! The process of a shim, started by this daemon or by an earlier one.

use std::path::PathBuf;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tokio::process::Child;
use tokio::time::sleep;
use xy_shim::identity::Identity;

use crate::locks::{LOCK_POLL_INTERVAL, until_free};

/// The process of a shim.
#[derive(Debug)]
pub(super) enum ShimProcess {
    /// A child of this daemon.
    Child(Child),
    /// A shim that an earlier daemon started. Its lock is free once it is gone.
    Adopted { identity: Identity, lock: PathBuf },
}

impl ShimProcess {
    /// Returns its process id, while it is an unreaped child of this daemon.
    pub(super) fn child_pid(&self) -> Option<u32> {
        match self {
            Self::Child(child) => child.id(),
            Self::Adopted { .. } => None,
        }
    }

    /// Waits until it has exited. Cancel-safe.
    pub(super) async fn wait(&mut self) {
        match self {
            // An error means that there is no such child.
            Self::Child(child) => _ = child.wait().await,
            Self::Adopted { identity, lock } => {
                until_free(lock).await;
                until_reaped(identity.pid).await;
            }
        }
    }

    /// Kills it; it may have exited this instant.
    pub(super) fn kill(&mut self) {
        match self {
            Self::Child(child) => _ = child.start_kill(),
            Self::Adopted { identity, .. } => identity.signal(Signal::KILL),
        }
    }
}

/// Reaps an adopted shim or stream holder that has exited, if it is a child of this process. That
/// happens when a daemon resumes its own after a failed handover. Returns at once for all others.
pub async fn until_reaped(pid: u32) {
    let Some(pid) = pid.try_into().ok().and_then(Pid::from_raw) else { return };
    let if_dead = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while matches!(waitid(WaitId::Pid(pid), if_dead), Ok(None)) {
        sleep(LOCK_POLL_INTERVAL).await; // Its lock is free a moment before it is dead.
    }
}
