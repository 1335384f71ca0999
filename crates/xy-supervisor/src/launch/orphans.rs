//! What a shim that died has left behind.
//!
//! The kernel kills a server's leader with its shim. Everything else below the shim falls
//! to the daemon, which is a child subreaper, and is known by the mark in its environment.
//! The daemon has no other children than shims, so whatever is dead and no shim is reaped.
//!
//! Where there is no subreaper (macOS) nothing falls to us, and nothing is done here.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// How long what is left may take to die.
const DEAD_WITHIN: Duration = Duration::from_secs(5);

/// How long between two looks at what is left.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The shims that are our children: theirs is the only exit status somebody waits for.
#[derive(Debug, Clone, Default)]
pub(super) struct Shims {
    pids: Arc<Mutex<HashSet<u32>>>,
}

impl Shims {
    fn pids(&self) -> MutexGuard<'_, HashSet<u32>> {
        // A set is whole after every call.
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a shim; nobody takes it for an orphan, not even in its first moment.
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut pids = self.pids();
        let shim = command.spawn()?;
        pids.extend(shim.id());
        Ok(shim)
    }

    /// A shim has been reaped.
    pub(super) fn forget(&self, pid: Option<u32>) {
        if let Some(pid) = pid {
            self.pids().remove(&pid);
        }
    }

    /// Kills and reaps everything of one life that has fallen to us; answers what is left.
    pub(super) async fn end_orphans(&self, mark: &str) -> Vec<u32> {
        let give_up_at = Instant::now() + DEAD_WITHIN;
        loop {
            let seen = self.end_once(mark);
            if seen.is_nothing() || Instant::now() >= give_up_at {
                return seen.alive;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn end_once(&self, _mark: &str) -> Seen {
        Seen::default()
    }

    #[cfg(target_os = "linux")]
    fn end_once(&self, mark: &str) -> Seen {
        let shims = self.pids();
        let mut seen = Seen::default();
        for pid in linux::children() {
            if shims.contains(&linux::number(pid)) {
                continue;
            }
            if linux::reap(pid) {
                seen.has_reaped = true;
                continue;
            }
            // One that is just dying has no environment any more: it is looked at again.
            match linux::has_mark(pid, mark) {
                Some(false) => continue,
                Some(true) => linux::kill(pid),
                None => {}
            }
            seen.alive.push(linux::number(pid));
        }
        seen
    }
}

/// What one look at our children brought.
#[derive(Debug, Default)]
struct Seen {
    alive: Vec<u32>,
    /// What was below the dead has come to us since.
    has_reaped: bool,
}

impl Seen {
    fn is_nothing(&self) -> bool {
        self.alive.is_empty() && !self.has_reaped
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;

    use rustix::process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal,
        waitid,
    };

    pub(super) fn number(pid: Pid) -> u32 {
        pid.as_raw_pid().unsigned_abs()
    }

    /// All children of this process, those of each thread. They are ours until we reap them.
    pub(super) fn children() -> Vec<Pid> {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", getpid().as_raw_pid())) else {
            return Vec::new();
        };
        threads
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok())
            .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            .collect()
    }

    /// Whether it was dead, and is reaped now.
    pub(super) fn reap(pid: Pid) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)))
    }

    /// Whether `NAME=value` is in its environment; `None` if it has none (any more).
    pub(super) fn has_mark(pid: Pid, mark: &str) -> Option<bool> {
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).ok()?;
        if environment.is_empty() {
            return None;
        }
        Some(environment.split(|&byte| byte == 0).any(|entry| entry == mark.as_bytes()))
    }

    /// It is our unreaped child, so its number means nobody else.
    pub(super) fn kill(pid: Pid) {
        if let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) {
            let _ = pidfd_send_signal(held, Signal::KILL); // It may have died this instant.
        }
    }
}
