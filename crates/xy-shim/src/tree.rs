//! Everything below the shim: found, made sure of, signalled.
//!
//! The shim is a child subreaper: whatever loses its parent below it becomes its own
//! child. So the tree is empty exactly when the shim has no children, and whoever
//! slips away during one walk is nearer at the next.
//!
//! A number read from `/proc` may be a stranger's by the time it is used. So each
//! process is first held by a descriptor, then looked at, then found still alive: only
//! then was it the one that was looked at, and only then is it signalled, through the
//! descriptor. Without a subreaper (macOS) there is no walk: there is the leader's group,
//! and beyond it what carries the mark of this life in its environment.

use rustix::process::{Pid, Signal};

use crate::leader;

/// One server, as its processes are found.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) leader: Pid,
    /// In the environment of each.
    #[cfg_attr(target_os = "linux", expect(dead_code, reason = "the walk finds them all"))]
    pub(crate) life: String,
}

impl Tree {
    /// Signals everything below the shim, each process once. Answers whether that was all;
    /// otherwise the leader's group is left.
    pub(crate) fn signal_each(&self, signals: &[Signal]) -> bool {
        walk::signal_each(self, signals)
    }

    /// Reaps every dead child but the leader; answers whether any is left beside it.
    pub(crate) fn has_others(&self) -> bool {
        loop {
            let others = walk::children(self).into_iter().filter(|&pid| pid != self.leader);
            let (dead, alive): (Vec<Pid>, Vec<Pid>) = others.partition(|&pid| leader::reap(pid));
            if !alive.is_empty() {
                return true;
            }
            // Who died after the list was read may have left us children that are not on it.
            if dead.is_empty() {
                return false;
            }
        }
    }

    /// What is below the shim and alive.
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
    use crate::marked;

    /// Those in the leader's group hear it with their group, and nobody hears it twice.
    pub(super) fn signal_each(tree: &Tree, signals: &[Signal]) -> bool {
        for process in marked::processes(|life| life == tree.life) {
            let pid = pid_of(process.pid);
            if pid.is_some_and(|pid| getpgid(Some(pid)) != Ok(tree.leader)) {
                signals.iter().for_each(|signal| process.signal(*signal));
            }
        }
        false
    }

    /// Nothing falls to us here, so those that are left are no children of ours.
    pub(super) fn children(tree: &Tree) -> Vec<Pid> {
        alive(tree)
    }

    pub(super) fn alive(tree: &Tree) -> Vec<Pid> {
        let marked = marked::processes(|life| life == tree.life);
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

    /// Whoever is deeper comes up when those above it die.
    const MAX_DEPTH: usize = 200;

    /// Those born during one walk are found by the next; after a few, whoever is left has
    /// been born by somebody who does not listen.
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

    /// Goes to everything below `parent`, each before what is below it.
    fn visit(parent: Pid, depth: usize, act: &mut impl FnMut(&Process)) {
        if depth == MAX_DEPTH {
            return;
        }
        for pid in children_of(parent) {
            let Some(process) = Process::below(pid, parent) else { continue };
            act(&process);
            // It is held until all below it are done, so its number means nobody else.
            visit(pid, depth + 1, act);
        }
    }

    /// A process that is alive and surely below us.
    struct Process {
        pid: Pid,
        /// Absent where the kernel is too old for it.
        held: Option<OwnedFd>,
    }

    impl Process {
        /// The process `pid`, if it is alive and a child of `parent`, or has come to us since.
        fn below(pid: Pid, parent: Pid) -> Option<Self> {
            let held = match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(held) => Some(held),
                Err(Errno::NOSYS) => None,
                Err(_) => return None, // Gone, or no descriptor is left: the next walk finds it.
            };
            let parent_now = parent_of(pid)?;
            let is_below = parent_now == parent || parent_now == getpid();
            let is_same = held.as_ref().is_none_or(is_alive);
            (is_below && is_same).then_some(Self { pid, held })
        }

        /// It may have died this instant; that is as good.
        fn signal(&self, signals: &[Signal]) {
            for &signal in signals {
                let _ = match &self.held {
                    Some(held) => pidfd_send_signal(held, signal),
                    None => kill_process(self.pid, signal),
                };
            }
        }
    }

    /// A descriptor of a process becomes readable when it dies.
    fn is_alive(held: &OwnedFd) -> bool {
        let mut asked = [PollFd::new(held, PollFlags::IN)];
        poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }

    /// All children of a process, those of each of its threads.
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

    /// The slow way, for kernels without lists of children.
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
        fn both_ways_find_the_same_children() {
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            let pid = pid_of(&child);
            assert!(children_of(getpid()).contains(&pid));
            assert!(children_by_scan(getpid()).contains(&pid));
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!children_of(getpid()).contains(&pid));
        }

        #[test]
        fn a_stranger_is_not_below_us() {
            let parent = rustix::process::getppid().unwrap();
            assert!(Process::below(parent, getpid()).is_none());
            // Not even if it has the parent that we expect.
            assert!(Process::below(Pid::INIT, getpid()).is_none());
        }

        #[test]
        fn the_dead_are_not_signalled() {
            let mut child = Command::new("true").spawn().unwrap();
            let pid = pid_of(&child);
            let held = pidfd_open(pid, PidfdFlags::empty()).unwrap();
            let mut dead = [PollFd::new(&held, PollFlags::IN)];
            poll(&mut dead, None).unwrap();
            assert!(Process::below(pid, getpid()).is_none(), "a zombie is dead");
            child.wait().unwrap();
            assert!(Process::below(pid, getpid()).is_none());
        }
    }
}
