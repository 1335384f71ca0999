//! One process, and never another that has got its number.

use rustix::process::Signal;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use numbered as system;

/// A process that is held: whoever gets its number later is not it.
#[derive(Debug)]
pub struct Held(system::Held);

impl Held {
    /// The process that has this number now. Whoever looks at it afterwards and then finds
    /// it alive has looked at this one.
    pub fn new(pid: u32) -> Option<Self> {
        system::Held::new(pid).map(Self)
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// It may have died this instant; that is as good.
    pub fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::OwnedFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    use super::numbered;

    /// By a descriptor, so that its number does not matter; kernels before 5.3 have none.
    #[derive(Debug)]
    pub(super) enum Held {
        Open(OwnedFd),
        Numbered(numbered::Held),
    }

    impl Held {
        pub(super) fn new(number: u32) -> Option<Self> {
            let pid = Pid::from_raw(number.try_into().ok()?)?;
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(open) => Some(Self::Open(open)),
                Err(Errno::NOSYS) => numbered::Held::new(number).map(Self::Numbered),
                Err(_) => None,
            }
        }

        pub(super) fn is_alive(&self) -> bool {
            match self {
                Self::Numbered(held) => held.is_alive(),
                Self::Open(held) => {
                    let mut asked = [PollFd::new(held, PollFlags::IN)];
                    poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
                }
            }
        }

        pub(super) fn signal(&self, signal: Signal) {
            match self {
                Self::Numbered(held) => held.signal(signal),
                Self::Open(held) => _ = pidfd_send_signal(held, signal),
            }
        }
    }
}

mod numbered {
    use rustix::process::{Pid, Signal, kill_process};

    use crate::identity::began;

    /// By its number and the moment it began.
    #[derive(Debug)]
    pub(super) struct Held {
        pid: u32,
        began: u64,
    }

    impl Held {
        pub(super) fn new(pid: u32) -> Option<Self> {
            began(pid).map(|began| Self { pid, began })
        }

        pub(super) fn is_alive(&self) -> bool {
            began(self.pid) == Some(self.began)
        }

        pub(super) fn signal(&self, signal: Signal) {
            let pid = self.pid.try_into().ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| self.is_alive()) {
                let _ = kill_process(pid, signal);
            }
        }
    }
}
