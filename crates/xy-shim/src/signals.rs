//! Signals as something to poll for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::{flag, low_level};

/// Becomes readable when a child may have died or the shim is told to end.
#[derive(Debug)]
pub(crate) struct Signals {
    wakeups: OwnedFd,
    told_to_end: Arc<AtomicBool>,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        let (wakeups, wake) = io::pipe()?;
        rustix::io::ioctl_fionbio(&wakeups, true)?;
        let told_to_end = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            flag::register(signal, Arc::clone(&told_to_end))?; // Before the wake-up for it.
            low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        low_level::pipe::register(SIGCHLD, wake)?;
        // A log over the file size limit is an error of the write, not our end.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(Self { wakeups: wakeups.into(), told_to_end })
    }

    /// Whether the shim has been told to end.
    pub(crate) fn told_to_end(&self) -> bool {
        self.told_to_end.load(Ordering::Relaxed)
    }

    /// Forgets the wake-ups so far.
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
