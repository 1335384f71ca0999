//! What a shim that died has left behind.
//!
//! The kernel kills a server's leader with its shim. Everything else is known by the mark
//! of that life in its environment, wherever it has gone. Below a shim that we started
//! ourselves it also falls to us, as the daemon is a child subreaper. A daemon that had no
//! children when it began has below it only shims and the programs that it asks for logins,
//! and knows each of them, so whatever else is its child is such an orphan, also if it has
//! cleared its environment; what carries the mark of another life of ours is left to whoever
//! minds that life. A daemon that began with children, or is the
//! first process of a container, gets the orphans of others too: it knows its own by the
//! mark alone.
//!
//! Where there is no subreaper (macOS) nothing falls to us, and the mark is all there is.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};
use xy_shim::marked;

/// How long what is left may take to die.
const DEAD_WITHIN: Duration = Duration::from_secs(5);

/// How long between two looks at what is left.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// So many looks in a row must find nothing: who forks all the time slips through one.
const LOOKS: u32 = 4;

/// The shims that are our children, and the few other programs that we ask something: theirs is
/// the only exit status somebody waits for.
#[derive(Debug, Clone)]
pub(super) struct Shims {
    /// In the mark of all processes that are ours.
    home: Arc<str>,
    children: Arc<Mutex<Children>>,
}

/// Our children that are no orphans. Until they are reaped, their numbers are theirs.
#[derive(Debug)]
struct Children {
    shims: HashSet<u32>,
    /// The marks of those that are no shims: no lock says that somebody minds them.
    helpers: HashSet<String>,
    /// Nobody else's orphans can fall to us.
    #[cfg(target_os = "linux")]
    are_all_ours: bool,
}

/// What tells the processes of one life from all others.
pub(super) fn new_life(home: &str) -> String {
    format!("{home}-{:016x}", RandomState::new().build_hasher().finish())
}

/// Lives of this home: which of them are over.
pub(super) trait Lives: Send + Sync + 'static {
    /// Whether that life is one of ours.
    fn is_ours(&self, life: &str) -> bool;
    /// Whether nothing of that life may be left.
    fn is_over(&self, life: &str) -> bool;
}

impl Shims {
    /// None yet; children that this process has already are somebody else's.
    pub(super) fn new(home: &str) -> Self {
        let children = Children {
            shims: HashSet::new(),
            helpers: HashSet::new(),
            #[cfg(target_os = "linux")]
            are_all_ours: linux::children().is_empty() && std::process::id() != 1,
        };
        Self { home: home.into(), children: Arc::new(Mutex::new(children)) }
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        // Sets are whole after every call.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a shim; nobody takes it for an orphan, not even in its first moment.
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut children = self.children();
        let shim = command.spawn()?;
        children.shims.extend(shim.id());
        Ok(shim)
    }

    /// Starts a program that is asked something, in a group and with a mark of its own: it is no
    /// orphan either, until it is dropped, and is one if this daemon is killed.
    pub(super) fn spawn_helper(&self, command: &mut Command) -> io::Result<Helper> {
        let life = new_life(&self.home);
        command.process_group(0).kill_on_drop(true).env(marked::MARK, &life);
        self.children().helpers.insert(life.clone());
        match self.spawn(command) {
            Ok(child) => Ok(Helper { pid: child.id(), child, life, shims: self.clone() }),
            Err(error) => {
                self.children().helpers.remove(&life);
                Err(error)
            }
        }
    }

    /// The marks of the programs that are asked something now.
    pub(super) fn helpers(&self) -> Vec<String> {
        self.children().helpers.iter().cloned().collect()
    }

    /// A shim has been reaped.
    pub(super) fn forget(&self, pid: Option<u32>) {
        if let Some(pid) = pid {
            self.children().shims.remove(&pid);
        }
    }

    /// Kills everything that is left of lives that are over, and reaps what of it has
    /// fallen to us; answers what would not die.
    pub(super) async fn end_orphans(&self, lives: Arc<dyn Lives>) -> Vec<u32> {
        let give_up_at = Instant::now() + DEAD_WITHIN;
        let mut looks = 0;
        loop {
            // To look at every process of a machine takes a while, and can even hang.
            let (shims, over) = (self.clone(), lives.clone());
            let look = spawn_blocking(move || shims.end_once(over.as_ref()));
            let Ok(Ok(seen)) = timeout_at(give_up_at, look).await else { return Vec::new() };
            looks = if seen.is_nothing() { looks + 1 } else { 0 };
            if looks == LOOKS || Instant::now() >= give_up_at {
                return seen.alive;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    fn end_once(&self, lives: &dyn Lives) -> Seen {
        let mut seen = self.end_children(lives);
        for process in marked::processes(|life| lives.is_over(life)) {
            process.signal(Signal::KILL);
            seen.alive.push(process.pid);
        }
        seen.alive.sort_unstable();
        seen.alive.dedup();
        seen
    }

    #[cfg(not(target_os = "linux"))]
    fn end_children(&self, _lives: &dyn Lives) -> Seen {
        Seen::default()
    }

    #[cfg(target_os = "linux")]
    fn end_children(&self, lives: &dyn Lives) -> Seen {
        let children = self.children();
        let mut seen = Seen::default();
        for pid in linux::children() {
            let number = linux::number(pid);
            if children.shims.contains(&number) {
                continue;
            }
            if linux::reap(pid) {
                seen.has_reaped = true;
                continue;
            }
            let is_orphan = match marked::life_of(number).filter(|life| lives.is_ours(life)) {
                Some(life) => lives.is_over(&life),
                None => children.are_all_ours,
            };
            if !is_orphan {
                continue;
            }
            linux::kill(pid);
            seen.alive.push(number);
        }
        seen
    }
}

/// A program that is asked something. Dropping it ends it, with all that is in its group.
#[derive(Debug)]
pub(super) struct Helper {
    pub(super) child: Child,
    pid: Option<u32>,
    life: String,
    shims: Shims,
}

impl Drop for Helper {
    fn drop(&mut self) {
        // While it has not been reaped its number is its own, and so is that of its group.
        if let Some(group) = self.child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)) {
            let _ = kill_process_group(group, Signal::KILL); // It may have ended this instant.
        }
        self.shims.forget(self.pid);
        self.shims.children().helpers.remove(&self.life);
    }
}

/// What one look brought.
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

    /// All children of this process. They are ours until we reap them.
    ///
    /// Shims are reaped by another thread, and a list from which one vanishes while it is
    /// read may lack others; but then it differs from the next.
    pub(super) fn children() -> Vec<Pid> {
        const MOST_READS: usize = 20;
        let mut last = listed();
        for _ in 1..MOST_READS {
            let again = listed();
            if again == last {
                break;
            }
            last = again;
        }
        last
    }

    /// The kernel's lists of children, that of each thread.
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

    /// Whether it was dead, and is reaped now.
    pub(super) fn reap(pid: Pid) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)))
    }

    /// It is our unreaped child, so its number means nobody else.
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
    async fn a_program_that_is_asked_something_is_no_orphan_until_it_is_dropped() {
        let shims = Shims::new("home");
        let mut command = Command::new("sleep");
        let helper = shims.spawn_helper(command.arg("600").stdin(Stdio::null())).unwrap();
        let pid = helper.pid.unwrap();
        assert!(shims.children().shims.contains(&pid));
        assert!(shims.helpers().contains(&helper.life));
        // Whoever comes after a killed daemon knows it by its mark.
        let is_marked = |it: &marked::Marked| it.pid == pid;
        while cfg!(target_os = "linux")
            && !marked::processes(|life| life == helper.life).iter().any(is_marked)
        {
            sleep(LOOK_AGAIN).await; // It is not itself before its first moment.
        }
        drop(helper);
        assert!(shims.helpers().is_empty() && !shims.children().shims.contains(&pid));
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.split(") ").last().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
        };
        while is_running() {
            sleep(LOOK_AGAIN).await;
        }
    }
}
