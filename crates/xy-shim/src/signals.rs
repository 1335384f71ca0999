//! Signals as a descriptor to poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::{flag, low_level};

/// Becomes readable when a child may have died or the shim is asked to terminate.
#[derive(Debug)]
pub(crate) struct Signals {
    wakeups: OwnedFd,
    termination_requested: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the handlers.
    pub(crate) fn listen() -> io::Result<Self> {
        let (wakeups, wake) = io::pipe()?;
        rustix::io::ioctl_fionbio(&wakeups, true)?;
        let termination_requested = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // Registered before the wake-up, so that the flag is set first.
            flag::register(signal, Arc::clone(&termination_requested))?;
            low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        low_level::pipe::register(SIGCHLD, wake)?;
        // A log over the file size limit is a write error and must not end the shim.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(Self { wakeups: wakeups.into(), termination_requested })
    }

    /// Returns true once a signal has asked the shim to terminate.
    pub(crate) fn is_termination_requested(&self) -> bool {
        self.termination_requested.load(Ordering::Relaxed)
    }

    /// Discards pending wake-ups.
    pub(crate) fn clear(&self) {
        let mut bytes = [0; 64];
        while rustix::io::retry_on_intr(|| rustix::io::read(&self.wakeups, &mut bytes))
            .is_ok_and(|count| count == bytes.len())
        {}
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeups.as_fd()
    }
}
