//! Finds processes by a mark in their environment.
//!
//! Every process of a server inherits its environment, and with it the mark of its life. A
//! process that has lost its shim, its parent and its session is still recognised by it. A process
//! that has cleared its environment is not: only the process tree finds that one.

use rustix::process::Signal;

use crate::pidfd::ProcessHandle;

/// The environment variable that holds the ID of the life.
pub const MARK: &str = "XY_INSTANCE";

/// A living process whose mark is known.
#[derive(Debug)]
pub struct MarkedProcess {
    /// The process ID.
    pub pid: u32,
    /// The ID of the life, which is the value of the mark.
    pub life: String,
    handle: ProcessHandle,
}

impl MarkedProcess {
    /// Signals this very process, or none if it has just died.
    pub fn signal(&self, signal: Signal) {
        self.handle.signal(signal);
    }
}

/// Returns every process but this one whose mark satisfies `is_wanted`.
pub fn processes(is_wanted: impl Fn(&str) -> bool) -> Vec<MarkedProcess> {
    let own_pid = std::process::id();
    system::all_pids()
        .into_iter()
        .filter(|pid| *pid != own_pid)
        .filter_map(|pid| {
            // The handle is opened first and checked last, so the environment read in between is
            // that of the same process.
            let handle = ProcessHandle::new(pid)?;
            let life = mark_in(&system::environment(pid)?).filter(|life| is_wanted(life))?;
            handle.is_alive().then_some(MarkedProcess { pid, life, handle })
        })
        .collect()
}

/// Returns the mark of a process. The caller must hold a handle to it, because process IDs are
/// reused.
pub fn mark_of(pid: u32) -> Option<String> {
    mark_in(&system::environment(pid)?)
}

/// Returns the value of the mark in an environment: entries that end with a NUL.
fn mark_in(environment: &[u8]) -> Option<String> {
    let entry = environment.split(|&byte| byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")?;
        std::str::from_utf8(value).ok()
    });
    entry.map(str::to_owned)
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;

    pub(super) fn all_pids() -> Vec<u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    pub(super) fn environment(pid: u32) -> Option<Vec<u8>> {
        fs::read(format!("/proc/{pid}/environ")).ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use crate::sys;

    pub(super) fn all_pids() -> Vec<u32> {
        sys::all_pids()
    }

    /// Returns the path, the arguments and the environment, in that order. An argument is mistaken
    /// for the mark only if a user wrote it there.
    pub(super) fn environment(pid: u32) -> Option<Vec<u8>> {
        sys::arguments_and_environment(pid)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn mark_is_found_among_other_variables() {
        let environment = b"A=1\0XY_INSTANCE=home-life\0XY_INSTANCE_NOT=x\0";
        assert_eq!(mark_in(environment).as_deref(), Some("home-life"));
        assert_eq!(mark_in(b"XY_INSTANCES=1\0"), None);
        assert_eq!(mark_in(b""), None);
    }

    #[test]
    fn only_the_marked_process_is_found_and_killed() {
        let life = format!("test-{}", std::process::id());
        let sleep = |life: &str| {
            let mut command = Command::new("sleep");
            command.arg("60").env(MARK, life).stdout(Stdio::null()).spawn().unwrap()
        };
        let (mut wanted, mut other) = (sleep(&life), sleep("test-other"));
        let found = processes(|it| it == life);
        assert_eq!(found.iter().map(|it| it.pid).collect::<Vec<_>>(), [wanted.id()]);
        found[0].signal(Signal::KILL);
        assert!(!wanted.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(processes(|it| it == life).is_empty());
    }
}
