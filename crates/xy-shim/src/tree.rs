//! The processes below the shim: how they are found, verified and signalled.
//!
//! The shim is a child subreaper: a process below it that loses its parent becomes a child of the
//! shim. So no process is left exactly when the shim has no children, and a process that escapes
//! one walk is nearer at the next.
//!
//! A process ID read from `/proc` may have been reused before it is used. So each process is opened
//! as a pidfd first, then its parent is read, then it is found alive. Only then was it the process
//! whose parent was read, and only then is it signalled, through the pidfd.
//!
//! Without a subreaper (macOS) there is no walk. There the server consists of the leader's process
//! group and every process with the life's mark in its environment.

use rustix::process::{Pid, Signal};

use crate::child_exit::reap;

/// The processes of one server.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) leader: Pid,
    /// The ID of the life, in the environment of each process.
    #[cfg_attr(target_os = "linux", expect(dead_code, reason = "the walk finds them all"))]
    pub(crate) life: String,
}

impl Tree {
    /// Signals every process below the shim once. Returns false if the leader's process group was
    /// left out.
    pub(crate) fn signal_each(&self, signals: &[Signal]) -> bool {
        walk::signal_each(self, signals)
    }

    /// Reaps every dead child but the leader. Returns true if any process is left beside the
    /// leader.
    pub(crate) fn has_others(&self) -> bool {
        loop {
            let others = walk::children(self).into_iter().filter(|&pid| pid != self.leader);
            let (dead, alive): (Vec<Pid>, Vec<Pid>) = others.partition(|&pid| reap(pid));
            if !alive.is_empty() {
                return true;
            }
            // A process that died after the list was read may have left children that are not on
            // it.
            if dead.is_empty() {
                return false;
            }
        }
    }

    /// Returns the living processes below the shim.
    pub(crate) fn alive(&self) -> Vec<Pid> {
        walk::alive(self)
    }
}

#[cfg(target_os = "linux")]
pub(crate) use walk::children_of;

#[cfg(not(target_os = "linux"))]
mod walk {
    use rustix::process::{Pid, Signal, getpgid};

    use super::Tree;
    use crate::env_mark;

    /// Signals the marked processes outside the leader's group. Those in it get the signal with the
    /// group, and none gets it twice.
    pub(super) fn signal_each(tree: &Tree, signals: &[Signal]) -> bool {
        for process in env_mark::processes(|life| life == tree.life) {
            let pid = pid_of(process.pid);
            if pid.is_some_and(|pid| getpgid(Some(pid)) != Ok(tree.leader)) {
                signals.iter().for_each(|signal| process.signal(*signal));
            }
        }
        false
    }

    /// Returns the remaining processes. They are not children of the shim, which adopts none here.
    pub(super) fn children(tree: &Tree) -> Vec<Pid> {
        alive(tree)
    }

    pub(super) fn alive(tree: &Tree) -> Vec<Pid> {
        let marked = env_mark::processes(|life| life == tree.life);
        marked.iter().filter_map(|process| pid_of(process.pid)).collect()
    }

    fn pid_of(number: u32) -> Option<Pid> {
        number.try_into().ok().and_then(Pid::from_raw)
    }
}

#[cfg(target_os = "linux")]
mod walk {
    use std::collections::HashSet;
    use std::fs;
    use std::os::fd::OwnedFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::process::{
        Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
    };

    use super::Tree;
    use crate::proc_stat::ProcStat;

    /// Maximum depth of a walk. Deeper processes move up when those above them die.
    const MAX_DEPTH: usize = 200;

    /// Walks a few times: a process forked during one walk is found by the next. One that is missed
    /// even so was forked by a process that ignores the signal.
    pub(super) fn signal_each(_: &Tree, signals: &[Signal]) -> bool {
        const WALKS: usize = 4;
        let mut signalled = HashSet::new();
        for _ in 0..WALKS {
            let before = signalled.len();
            visit(getpid(), 0, &mut |process| {
                if signalled.insert(process.pid) {
                    process.signal(signals);
                }
            });
            if signalled.len() == before {
                break;
            }
        }
        true
    }

    pub(super) fn alive(_: &Tree) -> Vec<Pid> {
        let mut found = Vec::new();
        visit(getpid(), 0, &mut |process| found.push(process.pid));
        found
    }

    pub(super) fn children(_: &Tree) -> Vec<Pid> {
        children_of(getpid())
    }

    /// Visits every process below `parent`, each before its own children.
    fn visit(parent: Pid, depth: usize, act: &mut impl FnMut(&Process)) {
        if depth == MAX_DEPTH {
            return;
        }
        for pid in children_of(parent) {
            let Some(process) = Process::below(pid, parent) else { continue };
            act(&process);
            // The pidfd stays open until its children are visited, so its ID is not reused
            // meanwhile.
            visit(pid, depth + 1, act);
        }
    }

    /// A living process that is certainly below the shim.
    struct Process {
        pid: Pid,
        /// `None` where the kernel is too old for pidfds.
        pidfd: Option<OwnedFd>,
    }

    impl Process {
        /// Opens the process if it is alive and is a child of `parent`, or has become the shim's
        /// child since.
        fn below(pid: Pid, parent: Pid) -> Option<Self> {
            let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pidfd) => Some(pidfd),
                Err(Errno::NOSYS) => None,
                // The process is gone, or no descriptor is free: the next walk finds it.
                Err(_) => return None,
            };
            let parent_now = parent_of(pid)?;
            let is_below = parent_now == parent || parent_now == getpid();
            let is_same = pidfd.as_ref().is_none_or(is_alive);
            (is_below && is_same).then_some(Self { pid, pidfd })
        }

        /// Sends the signals. Does nothing if the process has just died.
        fn signal(&self, signals: &[Signal]) {
            for &signal in signals {
                let _ = match &self.pidfd {
                    Some(pidfd) => pidfd_send_signal(pidfd, signal),
                    None => kill_process(self.pid, signal),
                };
            }
        }
    }

    /// Returns true if the process runs: its pidfd becomes readable when it dies.
    fn is_alive(pidfd: &OwnedFd) -> bool {
        let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }

    /// Returns all children of a process, those of each of its threads.
    pub(crate) fn children_of(parent: Pid) -> Vec<Pid> {
        let tasks = format!("/proc/{}/task", parent.as_raw_nonzero());
        let Ok(threads) = fs::read_dir(tasks) else { return Vec::new() };
        let lists: Vec<String> = threads
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok())
            .collect();
        if lists.is_empty() {
            return children_by_scan(parent);
        }
        lists.iter().flat_map(|list| list.split_whitespace()).filter_map(parse_pid).collect()
    }

    /// Returns all children by a scan of `/proc`, for kernels without lists of children.
    fn children_by_scan(parent: Pid) -> Vec<Pid> {
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        all.filter_map(|entry| parse_pid(entry.ok()?.file_name().to_str()?))
            .filter(|&pid| parent_of(pid) == Some(parent))
            .collect()
    }

    fn parent_of(pid: Pid) -> Option<Pid> {
        ProcStat::of(pid.as_raw_pid().unsigned_abs()).ok()?.parent
    }

    fn parse_pid(text: &str) -> Option<Pid> {
        Pid::from_raw(text.parse().ok()?)
    }

    #[cfg(test)]
    mod tests {
        use std::process::Command;

        use super::*;

        fn pid_of(child: &std::process::Child) -> Pid {
            Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
        }

        #[test]
        fn list_and_scan_find_the_same_children() {
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            let pid = pid_of(&child);
            assert!(children_of(getpid()).contains(&pid));
            assert!(children_by_scan(getpid()).contains(&pid));
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!children_of(getpid()).contains(&pid));
        }

        #[test]
        fn unrelated_process_is_not_below_the_shim() {
            let parent = rustix::process::getppid().unwrap();
            assert!(Process::below(parent, getpid()).is_none());
            // Not even if its parent is the expected one.
            assert!(Process::below(Pid::INIT, getpid()).is_none());
        }

        #[test]
        fn dead_process_is_not_signalled() {
            let mut child = Command::new("true").spawn().unwrap();
            let pid = pid_of(&child);
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
            let mut dead = [PollFd::new(&pidfd, PollFlags::IN)];
            poll(&mut dead, None).unwrap();
            assert!(Process::below(pid, getpid()).is_none(), "a zombie is dead");
            child.wait().unwrap();
            assert!(Process::below(pid, getpid()).is_none());
        }
    }
}
