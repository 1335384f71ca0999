//! Identity of a shim, for a daemon that did not start it.
//!
//! A process ID alone identifies no process, because it is reused. Together with the start time of
//! the process and the boot it refers to, it does. The shim writes its identity to the lock file
//! that it holds, so the identity is valid for as long as the lock is held.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::pidfd::{ProcessHandle, start_time};
#[cfg(target_os = "linux")]
use crate::proc_stat::ProcStat;
use crate::wire;

/// Maximum size of an identity. A larger file is not one.
pub const MAX_IDENTITY: u64 = 4 * 1024;

/// A shim process, and where it listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Protocol version that the shim speaks.
    pub protocol: u32,
    /// Process ID.
    pub pid: u32,
    /// Start time of the process, in the system's own unit.
    pub began: u64,
    /// ID of the boot that the start time refers to.
    pub boot: String,
    /// ID of the server's life.
    pub life: String,
    /// Path of the socket at which the shim listens.
    pub socket: String,
}

impl Identity {
    /// Returns the identity of this process.
    pub(crate) fn of_current_process(life: &str, socket: &str) -> io::Result<Self> {
        let pid = std::process::id();
        let no_start_time =
            || io::Error::other("the system does not report when this process started");
        Ok(Self {
            protocol: wire::PROTOCOL,
            pid,
            began: start_time(pid).ok_or_else(no_start_time)?,
            boot: boot_id(),
            life: life.to_owned(),
            socket: socket.to_owned(),
        })
    }

    /// Replaces the content of the lock file.
    pub(crate) fn write(&self, file: &mut File) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&text)
    }

    /// Signals the identified process, never another with the same ID.
    pub fn signal(&self, signal: Signal) {
        // The handle is opened before the check, so the signalled process is the checked one.
        if let Some(handle) = ProcessHandle::new(self.pid).filter(|_| self.is_alive()) {
            handle.signal(signal);
        }
    }

    /// Returns true if the process's stdout is this lock file. Only Linux can tell; elsewhere true
    /// if it is alive.
    pub fn holds(&self, lock: &Path) -> bool {
        if !cfg!(target_os = "linux") {
            return self.is_alive();
        }
        let file = |path: &Path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
        let stdout = file(Path::new(&format!("/proc/{}/fd/1", self.pid)));
        stdout.is_some() && stdout == file(lock) && self.is_alive()
    }

    /// Returns true if the process is stopped by a signal, so that it cannot answer.
    pub fn is_stopped(&self) -> bool {
        self.is_alive() && is_stopped(self.pid)
    }

    /// Returns true if the process with this ID is still the identified one.
    pub fn is_alive(&self) -> bool {
        self.boot == boot_id() && start_time(self.pid) == Some(self.began)
    }
}

#[cfg(target_os = "linux")]
fn is_stopped(pid: u32) -> bool {
    ProcStat::of(pid).is_ok_and(|stat| matches!(stat.state, 'T' | 't'))
}

#[cfg(not(target_os = "linux"))]
fn is_stopped(_pid: u32) -> bool {
    false // The system does not report it; the shim gets its full time to answer.
}

/// Returns an ID that differs between boots of the machine.
#[cfg(target_os = "linux")]
fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

#[cfg(not(target_os = "linux"))]
fn boot_id() -> String {
    crate::sys::boot_id()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_identity() -> Identity {
        Identity::of_current_process("life", "socket").unwrap()
    }

    #[test]
    fn current_process_is_alive() {
        assert!(own_identity().is_alive());
    }

    #[test]
    fn same_pid_with_other_start_or_boot_is_not_alive() {
        assert!(!Identity { began: own_identity().began + 1, ..own_identity() }.is_alive());
        assert!(!Identity { boot: "another boot".into(), ..own_identity() }.is_alive());
        assert!(!Identity { pid: u32::MAX >> 1, ..own_identity() }.is_alive());
    }

    #[test]
    fn reused_pid_is_not_killed() {
        let mut sleep = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let real =
            Identity { pid: sleep.id(), began: start_time(sleep.id()).unwrap(), ..own_identity() };
        Identity { began: real.began + 1, ..real.clone() }.signal(Signal::KILL);
        Identity { boot: "another boot".into(), ..real.clone() }.signal(Signal::KILL);
        assert!(sleep.try_wait().unwrap().is_none());
        real.signal(Signal::KILL);
        assert!(!sleep.wait().unwrap().success());
        real.signal(Signal::KILL); // The process is gone.
    }

    #[test]
    fn write_replaces_the_content() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[b'x'; 1000]).unwrap();
        own_identity().write(&mut file).unwrap();
        file.rewind().unwrap();
        assert_eq!(serde_json::from_reader::<_, Identity>(&file).unwrap(), own_identity());
    }
}
