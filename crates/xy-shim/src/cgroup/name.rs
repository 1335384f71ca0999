//! Name of a control group: it identifies the shim that created the group.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::proc_stat::ProcStat;

/// The name `xy-<pid>-<start time>-<PID namespace>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupName {
    pid: u32,
    /// Start time in ticks since boot, which distinguishes processes with the same ID.
    started: u64,
    /// PID namespace. In another one, the same ID means another process.
    namespace: u64,
}

impl GroupName {
    /// Returns the name for groups of this process, or `None` where the system does not report
    /// enough.
    pub(super) fn of_current_process() -> Option<Self> {
        let pid = std::process::id();
        let started = ProcStat::of(pid).ok()?.start_time;
        Some(Self { pid, started, namespace: current_namespace()? })
    }

    /// Parses a name; returns `None` if it is not of this form.
    pub(super) fn parse(group_name: &str) -> Option<Self> {
        let mut parts = group_name.strip_prefix("xy-")?.split('-');
        let parsed = Self {
            pid: parts.next()?.parse().ok()?,
            started: parts.next()?.parse().ok()?,
            namespace: parts.next()?.parse().ok()?,
        };
        // Nothing may follow, and the numbers must be written as xy writes them.
        (parsed.to_string() == group_name).then_some(parsed)
    }

    /// Returns true if the shim that created the group is certainly dead.
    pub(super) fn is_stale(self) -> bool {
        if current_namespace() != Some(self.namespace) {
            return false; // The shim is in another namespace, so its state is unknown.
        }
        match ProcStat::of(self.pid) {
            Ok(stat) => stat.is_dead() || stat.start_time != self.started,
            // Otherwise its state is unknown.
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xy-{}-{}-{}", self.pid, self.started, self.namespace)
    }
}

fn current_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|it| it.ino())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn name_round_trips() {
        let group_name = GroupName::of_current_process().unwrap();
        assert_eq!(GroupName::parse(&group_name.to_string()), Some(group_name));
        for other in
            ["xy-daemon", "xy-1-2", "xy-1-2-3-4", "xy-01-2-3", "xy-+1-2-3", "user.slice", ""]
        {
            assert_eq!(GroupName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn only_groups_of_dead_shims_are_stale() {
        let group_name = GroupName::of_current_process().unwrap();
        assert!(!group_name.is_stale());
        assert!(
            GroupName { started: group_name.started + 1, ..group_name }.is_stale(),
            "another process had this ID"
        );
        let elsewhere = GroupName { started: 1, namespace: group_name.namespace + 1, ..group_name };
        assert!(!elsewhere.is_stale(), "another namespace");
    }

    #[test]
    fn zombie_counts_as_dead() {
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
