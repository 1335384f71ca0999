//! Fields of `/proc/<pid>/stat`.

use std::fs;
use std::io;

use rustix::process::Pid;

/// The fields of `/proc/<pid>/stat` that are used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcStat {
    /// The kernel's letter for the process state.
    pub(crate) state: char,
    pub(crate) parent: Option<Pid>,
    /// Start time in ticks since boot, which distinguishes processes with the same ID.
    pub(crate) start_time: u64,
}

impl ProcStat {
    /// Reads the fields of a process. An error of kind `NotFound` means that there is no such
    /// process; any other, that it could not be read.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).map_err(|error| {
            let is_gone = error.raw_os_error() == Some(libc::ESRCH);
            if is_gone { io::ErrorKind::NotFound.into() } else { error }
        })?;
        Self::parse(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses the fields after the name, which may contain any character.
    fn parse(stat: &[u8]) -> Option<Self> {
        let after_name = stat.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(&stat[after_name + 1..]).ok()?;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok().and_then(Pid::from_raw);
        let start_time = fields.nth(17)?.parse().ok()?;
        Some(Self { state, parent, start_time })
    }

    /// Returns true if the process is alive, or if that cannot be determined.
    pub(crate) fn may_live(pid: u32) -> bool {
        match Self::of(pid) {
            Ok(stat) => !stat.is_dead(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Returns true if the process is a descendant of this one.
    pub(crate) fn is_descendant(pid: u32) -> bool {
        const MAX_DEPTH: usize = 200;
        let own_pid = rustix::process::getpid();
        let mut number = pid;
        for _ in 0..MAX_DEPTH {
            match Self::of(number).ok().and_then(|stat| stat.parent) {
                Some(parent) if parent == own_pid => return true,
                Some(parent) => number = parent.as_raw_pid().unsigned_abs(),
                None => return false,
            }
        }
        false
    }

    /// Returns true for a dead process, reaped or not.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn process_name_may_contain_anything() {
        let stat = b"12 (a) R (b) Z 1 2 3) S 7 12 12 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711 9";
        let parsed = ProcStat::parse(stat).unwrap();
        assert_eq!((parsed.state, parsed.start_time), ('S', 4711));
        assert_eq!(parsed.parent, Pid::from_raw(7));
        for broken in [&b""[..], b"12 (a)", b"12 (a) S", b"12 (a) S 7 1", &[0xff; 9]] {
            assert_eq!(ProcStat::parse(broken), None);
        }
    }

    #[test]
    fn missing_process_is_not_found() {
        let own_pid = ProcStat::of(std::process::id()).unwrap();
        assert_eq!(own_pid.parent, rustix::process::getppid());
        assert!(!ProcStat::is_descendant(own_pid.parent.unwrap().as_raw_pid().unsigned_abs()));
        let missing = ProcStat::of(u32::MAX >> 1).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
