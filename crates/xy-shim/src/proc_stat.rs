//! What `/proc/<pid>/stat` says of a process.

use std::fs;
use std::io;

use rustix::process::Pid;

/// The few of its fields that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcStat {
    /// The kernel's letter for what it does.
    pub(crate) state: char,
    pub(crate) parent: Option<Pid>,
    /// In ticks since the boot: a later process of the same number has another.
    pub(crate) began: u64,
}

impl ProcStat {
    /// An error of the kind `NotFound` means that there is no such process; any other, that
    /// it could not be looked at.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).map_err(|error| {
            let is_gone = error.raw_os_error() == Some(libc::ESRCH);
            if is_gone { io::ErrorKind::NotFound.into() } else { error }
        })?;
        Self::parse(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The fields after the name, which may itself contain anything.
    fn parse(stat: &[u8]) -> Option<Self> {
        let after_name = stat.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(&stat[after_name + 1..]).ok()?;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok().and_then(Pid::from_raw);
        let began = fields.nth(17)?.parse().ok()?;
        Some(Self { state, parent, began })
    }

    /// Whether that process lives, or cannot be looked at.
    pub(crate) fn may_live(pid: u32) -> bool {
        match Self::of(pid) {
            Ok(stat) => !stat.is_dead(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Whether that process is below this one, however far.
    pub(crate) fn is_below_us(pid: u32) -> bool {
        const MAX_DEPTH: usize = 200;
        let ours = rustix::process::getpid();
        let mut number = pid;
        for _ in 0..MAX_DEPTH {
            match Self::of(number).ok().and_then(|stat| stat.parent) {
                Some(parent) if parent == ours => return true,
                Some(parent) => number = parent.as_raw_pid().unsigned_abs(),
                None => return false,
            }
        }
        false
    }

    /// Dead, and not reaped.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = b"12 (a) R (b) Z 1 2 3) S 7 12 12 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711 9";
        let parsed = ProcStat::parse(stat).unwrap();
        assert_eq!((parsed.state, parsed.began), ('S', 4711));
        assert_eq!(parsed.parent, Pid::from_raw(7));
        for broken in [&b""[..], b"12 (a)", b"12 (a) S", b"12 (a) S 7 1", &[0xff; 9]] {
            assert_eq!(ProcStat::parse(broken), None);
        }
    }

    #[test]
    fn one_that_is_not_there_is_told_apart() {
        let ours = ProcStat::of(std::process::id()).unwrap();
        assert_eq!(ours.parent, rustix::process::getppid());
        assert!(!ProcStat::is_below_us(ours.parent.unwrap().as_raw_pid().unsigned_abs()));
        let nobody = ProcStat::of(u32::MAX >> 1).unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::NotFound);
    }
}
