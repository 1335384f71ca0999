//! The process of a shim: a child of ours, or one that an earlier daemon started.

use std::path::PathBuf;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tokio::process::Child;
use tokio::time::sleep;
use xy_shim::identity::Identity;

use crate::locks::{LOOK_AGAIN, until_free};

/// A shim, as a process.
#[derive(Debug)]
pub(super) enum ShimProcess {
    /// We started it.
    Ours(Child),
    /// An earlier daemon did. Its lock is free when it is gone.
    Adopted { identity: Identity, lock: PathBuf },
}

impl ShimProcess {
    /// Its number, while it is a child of ours that has not been reaped.
    pub(super) fn child_pid(&self) -> Option<u32> {
        match self {
            Self::Ours(child) => child.id(),
            Self::Adopted { .. } => None,
        }
    }

    /// Waits until it is gone. Cancel-safe.
    pub(super) async fn wait(&mut self) {
        match self {
            Self::Ours(child) => _ = child.wait().await, // An error means there is none.
            Self::Adopted { identity, lock } => {
                until_free(lock).await;
                until_reaped(identity.pid).await;
            }
        }
    }

    /// Kills it; it may have ended this instant.
    pub(super) fn kill(&mut self) {
        match self {
            Self::Ours(child) => _ = child.start_kill(),
            Self::Adopted { identity, .. } => identity.signal(Signal::KILL),
        }
    }
}

/// Reaps an adopted shim or grip that has ended, if it is a child of ours: a daemon that handed over
/// to nobody goes on with its own. Of others there is nothing to be reaped.
pub(super) async fn until_reaped(pid: u32) {
    let Some(pid) = pid.try_into().ok().and_then(Pid::from_raw) else { return };
    let if_dead = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while matches!(waitid(WaitId::Pid(pid), if_dead), Ok(None)) {
        sleep(LOOK_AGAIN).await; // Its lock is free a moment before it is dead.
    }
}
