//! The process of a shim: a child of ours, or one that an earlier daemon started.

use std::path::PathBuf;

use rustix::process::Signal;
use tokio::process::Child;
use xy_shim::identity::Identity;

use crate::locks::until_free;

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
            Self::Adopted { lock, .. } => until_free(lock).await,
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
