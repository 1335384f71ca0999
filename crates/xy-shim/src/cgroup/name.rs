//! The name of a group says whose it is: a shim, told from all others of this boot.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::proc_stat::ProcStat;

/// `xy-<pid>-<when it started>-<its namespace of pids>`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pid: u32,
    /// In ticks since the boot: a later process of the same number has another.
    started: u64,
    /// Elsewhere the same number means somebody else.
    namespace: u64,
}

impl Name {
    /// The name for groups of this process; `None` where the system does not tell enough.
    pub(super) fn own() -> Option<Self> {
        let pid = std::process::id();
        let started = ProcStat::of(pid).ok()?.began;
        Some(Self { pid, started, namespace: own_namespace()? })
    }

    /// What a name means, if it is one of ours.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("xy-")?.split('-');
        let parsed = Self {
            pid: parts.next()?.parse().ok()?,
            started: parts.next()?.parse().ok()?,
            namespace: parts.next()?.parse().ok()?,
        };
        // Nothing follows, and nothing is written in another way than we write it.
        (parsed.to_string() == name).then_some(parsed)
    }

    /// Whether the shim it was made by is surely dead.
    pub(super) fn is_stale(self) -> bool {
        if own_namespace() != Some(self.namespace) {
            return false; // We cannot see whether it lives.
        }
        match ProcStat::of(self.pid) {
            Ok(stat) => stat.is_dead() || stat.began != self.started,
            Err(error) => error.kind() == io::ErrorKind::NotFound, // Else nobody knows.
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xy-{}-{}-{}", self.pid, self.started, self.namespace)
    }
}

fn own_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|it| it.ino())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_read_again() {
        let name = Name::own().unwrap();
        assert_eq!(Name::parse(&name.to_string()), Some(name));
        for other in
            ["xy-daemon", "xy-1-2", "xy-1-2-3-4", "xy-01-2-3", "xy-+1-2-3", "user.slice", ""]
        {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }

    #[test]
    fn only_the_groups_of_the_dead_are_stale() {
        let name = Name::own().unwrap();
        assert!(!name.is_stale());
        assert!(Name { started: name.started + 1, ..name }.is_stale(), "another had our number");
        let elsewhere = Name { started: 1, namespace: name.namespace + 1, ..name };
        assert!(!elsewhere.is_stale(), "who knows");
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let pid_of_child = rustix::process::Pid::from_child(&child);
        let dead = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid_of_child), dead).unwrap();
        assert!(ProcStat::of(pid).unwrap().is_dead());
        child.wait().unwrap();
        assert!(ProcStat::of(pid).is_err());
    }
}
