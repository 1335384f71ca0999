//! Killing the processes that a dead shim has left behind.
//!
//! The kernel kills a server's leader with its shim. All other processes carry the mark of their
//! life in their environment, wherever they have moved. As a child subreaper, the daemon also
//! becomes their parent if it started the shim itself.
//!
//! A daemon that had no children when it started knows all its own: shims, and helpers such as the
//! programs that it asks for logins. Any other child is an orphan, even if it has cleared its
//! environment. An exception is a child with the mark of another life of this home: it is left to
//! the owner of that life.
//!
//! A daemon that started with children, or is the first process of a container, inherits the
//! orphans of others too. It recognises its own by the mark alone. The same holds where there is no
//! subreaper (macOS).

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};
use xy_shim::env_mark;

/// Time for the remaining processes to die.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two scans for remaining processes.
const SCAN_INTERVAL: Duration = Duration::from_millis(5);

/// Number of consecutive scans that must find nothing: a process that forks all the time can slip
/// through one.
const QUIET_SCANS: u32 = 4;

/// The child processes of this daemon: shims, and the few helper programs that it runs. No other
/// child's exit status is awaited.
#[derive(Debug, Clone)]
pub struct Shims {
    /// Id of this home; part of the mark of all its processes.
    home: Arc<str>,
    children: Arc<Mutex<Children>>,
}

/// Children that are not orphans. Their process ids stay valid until they are reaped.
#[derive(Debug)]
struct Children {
    shims: HashSet<u32>,
    /// Marks of the helpers, which no lock protects.
    helpers: HashSet<String>,
    /// True if no orphans of other programs can become children of this process.
    #[cfg(target_os = "linux")]
    are_all_ours: bool,
}

/// Returns a new id that distinguishes the processes of one life from all others.
pub fn new_life(home: &str) -> String {
    format!("{home}-{:016x}", RandomState::new().build_hasher().finish())
}

/// Decides which lives of this home are over.
pub(super) trait LifeFilter: Send + Sync + 'static {
    /// Returns true if that life belongs to this home.
    fn owns(&self, life: &str) -> bool;
    /// Returns true if no process of that life may remain.
    fn is_over(&self, life: &str) -> bool;
}

impl Shims {
    /// Creates an empty set. Children that this process has already belong to others.
    pub fn new(home: &str) -> Self {
        let children = Children {
            shims: HashSet::new(),
            helpers: HashSet::new(),
            #[cfg(target_os = "linux")]
            are_all_ours: linux::children().is_empty() && std::process::id() != 1,
        };
        Self { home: home.into(), children: Arc::new(Mutex::new(children)) }
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        // The sets are consistent after every call.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a shim. Holding the lock keeps a concurrent sweep from taking it for an orphan.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut children = self.children();
        let shim = command.spawn()?;
        children.shims.extend(shim.id());
        Ok(shim)
    }

    /// Starts a helper program in a process group and with a mark of its own. It counts as an
    /// orphan only once it is dropped, or once this daemon is killed.
    pub fn spawn_helper(&self, command: &mut Command) -> io::Result<Helper> {
        let life = new_life(&self.home);
        command.process_group(0).kill_on_drop(true).env(env_mark::MARK, &life);
        self.children().helpers.insert(life.clone());
        match self.spawn(command) {
            Ok(child) => Ok(Helper { pid: child.id(), child, life, shims: self.clone() }),
            Err(error) => {
                self.children().helpers.remove(&life);
                Err(error)
            }
        }
    }

    /// Returns the marks of the helpers that run now.
    pub(super) fn helpers(&self) -> Vec<String> {
        self.children().helpers.iter().cloned().collect()
    }

    /// Forgets a shim that has been reaped.
    pub fn forget(&self, pid: Option<u32>) {
        if let Some(pid) = pid {
            self.children().shims.remove(&pid);
        }
    }

    /// Kills all processes of lives that are over, and reaps those that have become children of
    /// this process. Returns those that would not die.
    pub(super) async fn end_orphans(&self, lives: Arc<dyn LifeFilter>) -> Vec<u32> {
        let give_up_at = Instant::now() + KILL_TIMEOUT;
        let mut quiet_scans = 0;
        loop {
            // Scanning all processes of a machine takes a while, and can even hang.
            let (shims, over) = (self.clone(), lives.clone());
            let look = spawn_blocking(move || shims.end_once(over.as_ref()));
            let Ok(Ok(found)) = timeout_at(give_up_at, look).await else { return Vec::new() };
            quiet_scans = if found.is_empty() { quiet_scans + 1 } else { 0 };
            if quiet_scans == QUIET_SCANS || Instant::now() >= give_up_at {
                return found.alive;
            }
            sleep(SCAN_INTERVAL).await;
        }
    }

    fn end_once(&self, lives: &dyn LifeFilter) -> SweepResult {
        let mut found = self.end_children(lives);
        for process in env_mark::processes(|life| lives.is_over(life)) {
            process.signal(Signal::KILL);
            found.alive.push(process.pid);
        }
        found.alive.sort_unstable();
        found.alive.dedup();
        found
    }

    #[cfg(not(target_os = "linux"))]
    fn end_children(&self, _lives: &dyn LifeFilter) -> SweepResult {
        SweepResult::default()
    }

    #[cfg(target_os = "linux")]
    fn end_children(&self, lives: &dyn LifeFilter) -> SweepResult {
        let children = self.children();
        let mut found = SweepResult::default();
        for pid in linux::children() {
            let number = linux::number(pid);
            if children.shims.contains(&number) {
                continue;
            }
            if linux::reap(pid) {
                found.has_reaped = true;
                continue;
            }
            let is_orphan = match env_mark::mark_of(number).filter(|life| lives.owns(life)) {
                Some(life) => lives.is_over(&life),
                None => children.are_all_ours,
            };
            if !is_orphan {
                continue;
            }
            linux::kill(pid);
            found.alive.push(number);
        }
        found
    }
}

/// A running helper program. Dropping it kills its whole process group.
#[derive(Debug)]
pub struct Helper {
    /// The program.
    pub child: Child,
    pid: Option<u32>,
    life: String,
    shims: Shims,
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Until it is reaped, its process id and that of its group cannot be reused.
        if let Some(group) = self.child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)) {
            let _ = kill_process_group(group, Signal::KILL); // It may have exited this instant.
        }
        self.shims.forget(self.pid);
        self.shims.children().helpers.remove(&self.life);
    }
}

/// The result of one scan.
#[derive(Debug, Default)]
struct SweepResult {
    alive: Vec<u32>,
    /// True if a child was reaped; its own children may have become ours since.
    has_reaped: bool,
}

impl SweepResult {
    fn is_empty(&self) -> bool {
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

    /// Returns all children of this process. Their ids stay valid until they are reaped.
    ///
    /// Another thread reaps shims. A list may be incomplete if a child vanishes while it is read,
    /// so it is read until two reads are equal.
    pub(super) fn children() -> Vec<Pid> {
        const MAX_READS: usize = 20;
        let mut last = listed();
        for _ in 1..MAX_READS {
            let again = listed();
            if again == last {
                break;
            }
            last = again;
        }
        last
    }

    /// Returns the kernel's lists of children, one per thread.
    fn listed() -> Vec<Pid> {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", getpid().as_raw_pid())) else {
            return Vec::new();
        };
        threads
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok())
            .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            .collect()
    }

    /// Reaps a child if it is dead; returns true if it was.
    pub(super) fn reap(pid: Pid) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)))
    }

    /// Kills an unreaped child, whose id cannot have been reused.
    pub(super) fn kill(pid: Pid) {
        if let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) {
            let _ = pidfd_send_signal(held, Signal::KILL); // It may have died this instant.
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[tokio::test]
    async fn helper_is_no_orphan_until_dropped() {
        let shims = Shims::new("home");
        let mut command = Command::new("sleep");
        let helper = shims.spawn_helper(command.arg("600").stdin(Stdio::null())).unwrap();
        let pid = helper.pid.unwrap();
        assert!(shims.children().shims.contains(&pid));
        assert!(shims.helpers().contains(&helper.life));
        // A later daemon, after this one was killed, recognises it by its mark.
        let is_marked = |it: &env_mark::MarkedProcess| it.pid == pid;
        while cfg!(target_os = "linux")
            && !env_mark::processes(|life| life == helper.life).iter().any(is_marked)
        {
            sleep(SCAN_INTERVAL).await; // It carries no mark before its `exec`.
        }
        drop(helper);
        assert!(shims.helpers().is_empty() && !shims.children().shims.contains(&pid));
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.split(") ").last().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
        };
        while is_running() {
            sleep(SCAN_INTERVAL).await;
        }
    }
}
