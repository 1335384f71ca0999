//! A handle to one process that never means another process with the same ID.

use rustix::process::Signal;

#[cfg(not(target_os = "linux"))]
use by_start_time as system;
#[cfg(target_os = "linux")]
use linux as system;

#[cfg(target_os = "linux")]
use crate::proc_stat::ProcStat;

/// A handle to a process. A later process with the same ID is not matched.
#[derive(Debug)]
pub struct ProcessHandle(system::ProcessHandle);

impl ProcessHandle {
    /// Opens a handle to the process that has this ID now.
    ///
    /// Facts read about the ID afterwards belong to this process if [`is_alive`](Self::is_alive)
    /// then returns true.
    pub fn new(pid: u32) -> Option<Self> {
        system::ProcessHandle::new(pid).map(Self)
    }

    /// Returns true if the process has not ended.
    pub fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// Sends a signal. Does nothing if the process has just died.
    pub fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }
}

/// Returns when a process started, in the system's own unit, or `None` if there is no such process.
#[cfg(target_os = "linux")]
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    ProcStat::of(pid).ok().map(|stat| stat.start_time)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    crate::sys::start_time(pid)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::OwnedFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    use super::by_start_time;

    /// A pidfd, or ID and start time on kernels before 5.3, which have no pidfd.
    #[derive(Debug)]
    pub(super) enum ProcessHandle {
        Open(OwnedFd),
        ByStartTime(by_start_time::ProcessHandle),
    }

    impl ProcessHandle {
        pub(super) fn new(number: u32) -> Option<Self> {
            let pid = Pid::from_raw(number.try_into().ok()?)?;
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(open) => Some(Self::Open(open)),
                Err(Errno::NOSYS) => {
                    by_start_time::ProcessHandle::new(number).map(Self::ByStartTime)
                }
                Err(_) => None,
            }
        }

        pub(super) fn is_alive(&self) -> bool {
            match self {
                Self::ByStartTime(handle) => handle.is_alive(),
                Self::Open(handle) => {
                    let mut polled = [PollFd::new(handle, PollFlags::IN)];
                    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
                }
            }
        }

        pub(super) fn signal(&self, signal: Signal) {
            match self {
                Self::ByStartTime(handle) => handle.signal(signal),
                Self::Open(handle) => _ = pidfd_send_signal(handle, signal),
            }
        }
    }
}

mod by_start_time {
    use rustix::process::{Pid, Signal, kill_process};

    use super::start_time;

    /// A process identified by its ID and its start time.
    #[derive(Debug)]
    pub(super) struct ProcessHandle {
        pid: u32,
        start_time: u64,
    }

    impl ProcessHandle {
        pub(super) fn new(pid: u32) -> Option<Self> {
            start_time(pid).map(|start_time| Self { pid, start_time })
        }

        pub(super) fn is_alive(&self) -> bool {
            start_time(self.pid) == Some(self.start_time)
        }

        pub(super) fn signal(&self, signal: Signal) {
            let pid = self.pid.try_into().ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| self.is_alive()) {
                let _ = kill_process(pid, signal);
            }
        }
    }
}
