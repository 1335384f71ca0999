//! Processes known by a mark in their environment, wherever they have gone.
//!
//! Everything a server starts inherits its environment, and with it the mark of that life.
//! So what has lost its shim, its parent and its session is still known. What cleared its
//! environment is not: the tree finds that, this does not.

use rustix::process::Signal;

use crate::held::Held;

/// The variable that tells of which life a process is.
pub const MARK: &str = "XY_INSTANCE";

/// A living process whose mark is known.
#[derive(Debug)]
pub struct Marked {
    /// Its number.
    pub pid: u32,
    /// What its mark says.
    pub life: String,
    held: Held,
}

impl Marked {
    /// Signals this very process, or nobody: it may have ended this instant.
    pub fn signal(&self, signal: Signal) {
        self.held.signal(signal);
    }
}

/// Every process but this one whose mark `is_wanted`.
pub fn processes(is_wanted: impl Fn(&str) -> bool) -> Vec<Marked> {
    let ours = std::process::id();
    system::all_pids()
        .into_iter()
        .filter(|pid| *pid != ours)
        .filter_map(|pid| {
            // First held, then looked at, then found still alive: one and the same process.
            let held = Held::new(pid)?;
            let life = mark_in(&system::environment(pid)?).filter(|life| is_wanted(life))?;
            held.is_alive().then_some(Marked { pid, life, held })
        })
        .collect()
}

/// The mark of a process, which its caller must hold: a number may be given again.
pub fn life_of(pid: u32) -> Option<String> {
    mark_in(&system::environment(pid)?)
}

/// The value of the mark in an environment: entries that end with a NUL.
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

    /// The environment comes after the path and the arguments; a mark is nowhere else
    /// unless somebody wrote it there.
    pub(super) fn environment(pid: u32) -> Option<Vec<u8>> {
        sys::arguments_and_environment(pid)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_mark_is_found_among_other_variables() {
        let environment = b"A=1\0XY_INSTANCE=home-life\0XY_INSTANCE_NOT=x\0";
        assert_eq!(mark_in(environment).as_deref(), Some("home-life"));
        assert_eq!(mark_in(b"XY_INSTANCES=1\0"), None);
        assert_eq!(mark_in(b""), None);
    }

    #[test]
    fn a_marked_process_is_found_and_killed_and_no_other() {
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
