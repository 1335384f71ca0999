//! How much of the processors' time a server has used so far, all its processes together.
//!
//! Where the server has a control group, the kernel keeps count. Elsewhere on Linux the
//! processes below its shim are added up; what has ended meanwhile is in the count of whoever
//! reaped it. Where neither can be told (macOS: not without unsafe code) there is no answer.

use std::time::Duration;

/// The time used so far by the server whose leader this is; `has_group` if it has a control
/// group of its own. Reads a few files, so it may block for a moment.
pub fn used(leader: u32, has_group: bool) -> Option<Duration> {
    #[cfg(target_os = "linux")]
    return linux::used(leader, has_group);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (leader, has_group);
        None
    }
}

/// Whether the parent of this process was started with this word among its arguments: so it is
/// with the one that minds a container, and nobody else that happens to have its number.
pub fn is_minded_for(leader: u32, word: &str) -> bool {
    #[cfg(target_os = "linux")]
    return linux::is_minded_for(leader, word);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (leader, word);
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
pub(crate) use linux::Minded;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::time::Duration;

    use rustix::process::Pid;

    use crate::cgroup;
    use crate::proc_stat::ProcStat;
    use crate::tree::children_of;

    /// The kernel tells all programs of ticks of this length, whatever its own are.
    const TICK: Duration = Duration::from_millis(10);

    /// No more processes are looked at.
    const MOST: usize = 10_000;

    pub(super) fn used(leader: u32, has_group: bool) -> Option<Duration> {
        let by_group = || fs::read_to_string(cgroup::group_of(leader)?.join("cpu.stat")).ok();
        match has_group.then(by_group).flatten() {
            Some(stat) => in_group(&stat),
            None => below_shim(leader),
        }
    }

    pub(super) fn is_minded_for(leader: u32, word: &str) -> bool {
        let parent = ProcStat::of(leader).ok().and_then(|stat| stat.parent);
        let words =
            parent.and_then(|it| fs::read(format!("/proc/{}/cmdline", it.as_raw_nonzero())).ok());
        let words = words.unwrap_or_default();
        words.split(|byte| *byte == 0).any(|it| it == word.as_bytes())
    }

    fn in_group(stat: &str) -> Option<Duration> {
        let micros = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        micros.trim().parse().ok().map(Duration::from_micros)
    }

    /// Of the leader and everything beside and below it; the shim reaps what has no parent.
    fn below_shim(leader: u32) -> Option<Duration> {
        let shim = ProcStat::of(leader).ok()?.parent?;
        let mut ticks = Ticks::of(shim)?.reaped;
        let mut left = children_of(shim);
        let mut looked_at = 0;
        while let Some(pid) = left.pop() {
            looked_at += 1;
            if looked_at > MOST {
                break;
            }
            // One that is gone meanwhile is in the count of whoever has reaped it.
            let Some(used) = Ticks::of(pid) else { continue };
            ticks = ticks.saturating_add(used.own).saturating_add(used.reaped);
            left.extend(children_of(pid));
        }
        Some(TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX)))
    }

    /// What one process has used, in ticks.
    #[derive(Debug, PartialEq, Eq)]
    struct Ticks {
        own: u64,
        /// By those of its children that it has reaped.
        reaped: u64,
    }

    impl Ticks {
        fn of(pid: Pid) -> Option<Self> {
            let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
            Self::parse(&stat)
        }

        fn parse(stat: &[u8]) -> Option<Self> {
            // The name may itself contain anything.
            let after_name = stat.iter().rposition(|&byte| byte == b')')?;
            let rest = std::str::from_utf8(&stat[after_name + 1..]).ok()?;
            let mut times = rest.split_whitespace().skip(11).map_while(|it| it.parse().ok());
            let mut two = || -> Option<u64> {
                let (user, system): (u64, u64) = (times.next()?, times.next()?);
                user.checked_add(system)
            };
            Some(Self { own: two()?, reaped: two()? })
        }
    }

    /// A process with a minder that has this word, for tests; both end with it.
    #[cfg(test)]
    pub(crate) struct Minded {
        pub(crate) pid: u32,
        minder: std::process::Child,
    }

    #[cfg(test)]
    impl Minded {
        pub(crate) fn new(word: &str) -> Self {
            let mut minder = std::process::Command::new("sh")
                .args(["-c", "sleep 60 & echo $!; wait", "sh", word])
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = String::new();
            let stdout = minder.stdout.take().unwrap();
            std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut said).unwrap();
            Self { pid: said.trim().parse().unwrap(), minder }
        }
    }

    #[cfg(test)]
    impl Drop for Minded {
        fn drop(&mut self) {
            let pid = Pid::from_raw(self.pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            self.minder.wait().unwrap(); // It waits for nobody else.
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_line_of_the_kernel_is_read_whatever_the_name() {
            let line = b"7 (a b) c) R 1 7 7 0 -1 4194304 1 2 3 4 50 6 70 8 20 0 1 0 99 1 1";
            assert_eq!(Ticks::parse(line), Some(Ticks { own: 56, reaped: 78 }));
            for odd in ["", "7 (a", "7 (a) R 1 7", "7 (a) R 1 7 7 0 -1 4 1 2 3 4 x 6 70 8"] {
                assert_eq!(Ticks::parse(odd.as_bytes()), None, "{odd}");
            }
        }

        #[test]
        fn a_group_is_read_by_its_name() {
            let stat = "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n";
            assert_eq!(in_group(stat), Some(Duration::from_micros(1500)));
            assert_eq!(in_group("user_usec 1\n"), None);
            assert_eq!(in_group("usage_usec x\n"), None);
        }

        #[test]
        fn who_minds_a_process_is_known_by_its_words() {
            let minded = Minded::new("the-word");
            assert!(is_minded_for(minded.pid, "the-word"));
            assert!(!is_minded_for(minded.pid, "the-wor") && !is_minded_for(0, "the-word"));
            assert!(!is_minded_for(minded.minder.id(), "the-word"));
        }

        /// A child of this process, which stands for its shim.
        fn busy_child() -> std::process::Child {
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()
        }

        #[test]
        fn what_is_busy_uses_more_and_more_and_what_has_ended_is_not_forgotten() {
            let mut child = busy_child();
            let mut other = busy_child();
            let first = used(child.id(), false).unwrap();
            while used(child.id(), false).unwrap() < first + 5 * TICK {
                std::thread::yield_now();
            }
            let before = used(child.id(), false).unwrap();
            other.kill().unwrap();
            other.wait().unwrap();
            assert!(used(child.id(), false).unwrap() >= before);
            child.kill().unwrap();
            child.wait().unwrap();
        }

        #[test]
        fn nobody_has_used_nothing() {
            assert_eq!(used(u32::MAX, false), None);
            assert_eq!(used(u32::MAX, true), None);
        }
    }
}
