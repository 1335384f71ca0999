//! Who a shim is, for a daemon that did not start it.
//!
//! A number alone means nobody: it is given again. With the moment its process began,
//! and the boot that moment counts from, it means one process. The words are in the lock
//! file that the shim holds, so they are true for as long as the lock is held.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::held::Held;
#[cfg(target_os = "linux")]
use crate::proc_stat::ProcStat;
use crate::wire;

/// The longest identity; a file that holds more holds something else.
pub const MAX_IDENTITY: u64 = 4 * 1024;

/// A process, and where it listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The version of the conversation it speaks.
    pub protocol: u32,
    /// Its number.
    pub pid: u32,
    /// When it began, as the system counts.
    pub began: u64,
    /// In which boot.
    pub boot: String,
    /// What tells its server's life from all others.
    pub life: String,
    /// Where it listens.
    pub socket: String,
}

impl Identity {
    /// Who this process is.
    pub(crate) fn of_this_process(life: &str, socket: &str) -> io::Result<Self> {
        let pid = std::process::id();
        let unknown = || io::Error::other("the system does not say when this process began");
        Ok(Self {
            protocol: wire::PROTOCOL,
            pid,
            began: began(pid).ok_or_else(unknown)?,
            boot: boot(),
            life: life.to_owned(),
            socket: socket.to_owned(),
        })
    }

    /// Writes it to a file that holds nothing else.
    pub(crate) fn write(&self, file: &mut File) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&text)
    }

    /// Signals the process that is meant, if it is there, and never another of its number.
    pub fn signal(&self, signal: Signal) {
        // First held, then looked at: what is signalled is what was looked at.
        if let Some(held) = Held::new(self.pid).filter(|_| self.is_alive()) {
            held.signal(signal);
        }
    }

    /// Whether its stdout is this file, as that of a shim is its lock. Only Linux tells.
    pub fn holds(&self, lock: &Path) -> bool {
        if !cfg!(target_os = "linux") {
            return self.is_alive();
        }
        let file = |path: &Path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
        let stdout = file(Path::new(&format!("/proc/{}/fd/1", self.pid)));
        stdout.is_some() && stdout == file(lock) && self.is_alive()
    }

    /// Whether somebody has stopped it, so that it cannot answer.
    pub fn is_stopped(&self) -> bool {
        self.is_alive() && is_stopped(self.pid)
    }

    /// Whether the process that has this number now is the one that is meant.
    pub fn is_alive(&self) -> bool {
        self.boot == boot() && began(self.pid) == Some(self.began)
    }
}

/// When the process `pid` began, as this system counts; `None` if there is none.
#[cfg(target_os = "linux")]
pub(crate) fn began(pid: u32) -> Option<u64> {
    ProcStat::of(pid).ok().map(|stat| stat.began)
}

#[cfg(target_os = "linux")]
fn is_stopped(pid: u32) -> bool {
    ProcStat::of(pid).is_ok_and(|stat| matches!(stat.state, 'T' | 't'))
}

#[cfg(not(target_os = "linux"))]
fn is_stopped(_pid: u32) -> bool {
    false // Nobody tells; it is given its time.
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn began(pid: u32) -> Option<u64> {
    crate::sys::began(pid)
}

/// What tells this boot of the machine from all others.
#[cfg(target_os = "linux")]
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

#[cfg(not(target_os = "linux"))]
fn boot() -> String {
    crate::sys::boot()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Identity {
        Identity::of_this_process("life", "socket").unwrap()
    }

    #[test]
    fn this_process_is_who_it_says() {
        assert!(ours().is_alive());
    }

    #[test]
    fn a_stranger_with_the_same_number_is_somebody_else() {
        assert!(!Identity { began: ours().began + 1, ..ours() }.is_alive());
        assert!(!Identity { boot: "another boot".into(), ..ours() }.is_alive());
        assert!(!Identity { pid: u32::MAX >> 1, ..ours() }.is_alive());
    }

    #[test]
    fn a_stranger_is_not_killed_in_place_of_the_one_that_is_meant() {
        let mut sleep = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let real = Identity { pid: sleep.id(), began: began(sleep.id()).unwrap(), ..ours() };
        Identity { began: real.began + 1, ..real.clone() }.signal(Signal::KILL);
        Identity { boot: "another boot".into(), ..real.clone() }.signal(Signal::KILL);
        assert!(sleep.try_wait().unwrap().is_none());
        real.signal(Signal::KILL);
        assert!(!sleep.wait().unwrap().success());
        real.signal(Signal::KILL); // There is nobody any more.
    }

    #[test]
    fn it_replaces_what_the_file_held() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[b'x'; 1000]).unwrap();
        ours().write(&mut file).unwrap();
        file.rewind().unwrap();
        assert_eq!(serde_json::from_reader::<_, Identity>(&file).unwrap(), ours());
    }
}
