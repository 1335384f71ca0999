//! CPU time that a server has used so far, all its processes together.
//!
//! Where the server has a control group, the kernel keeps count. Elsewhere on Linux the processes
//! below its shim are added up; the time of an ended process is in the count of the process that
//! reaped it. On macOS, which reports neither without unsafe code, there is no answer.

use std::time::Duration;

/// Returns the CPU time used so far by the server of this leader. `has_group` says that the server
/// has a control group of its own.
///
/// Reads a few files, so it may block for a moment.
pub fn used(leader: u32, has_group: bool) -> Option<Duration> {
    #[cfg(target_os = "linux")]
    return linux::used(leader, has_group);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (leader, has_group);
        None
    }
}

/// Returns true if the parent of this process was started with `word` among its arguments.
///
/// The process that monitors a container has the container's ID as an argument, which distinguishes
/// it from an unrelated process with a reused ID.
pub fn parent_has_argument(leader: u32, word: &str) -> bool {
    #[cfg(target_os = "linux")]
    return linux::parent_has_argument(leader, word);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (leader, word);
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
pub(crate) use linux::ChildOfMonitor;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::time::Duration;

    use rustix::process::Pid;

    use crate::cgroup;
    use crate::proc_stat::ProcStat;
    use crate::tree::children_of;

    /// Length of a tick in `/proc`, whatever the kernel's own tick is.
    const TICK: Duration = Duration::from_millis(10);

    /// Maximum number of processes that are added up.
    const MAX_PROCESSES: usize = 10_000;

    pub(super) fn used(leader: u32, has_group: bool) -> Option<Duration> {
        let by_group = || fs::read_to_string(cgroup::group_of(leader)?.join("cpu.stat")).ok();
        match has_group.then(by_group).flatten() {
            Some(stat) => parse_cpu_stat(&stat),
            None => sum_of_processes(leader),
        }
    }

    pub(super) fn parent_has_argument(leader: u32, word: &str) -> bool {
        let parent = ProcStat::of(leader).ok().and_then(|stat| stat.parent);
        let arguments =
            parent.and_then(|it| fs::read(format!("/proc/{}/cmdline", it.as_raw_nonzero())).ok());
        let arguments = arguments.unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|it| it == word.as_bytes())
    }

    fn parse_cpu_stat(stat: &str) -> Option<Duration> {
        let micros = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        micros.trim().parse().ok().map(Duration::from_micros)
    }

    /// Adds up the leader and all processes beside and below it. The shim reaps orphans.
    fn sum_of_processes(leader: u32) -> Option<Duration> {
        let shim = ProcStat::of(leader).ok()?.parent?;
        let mut ticks = Ticks::of(shim)?.reaped;
        let mut pending = children_of(shim);
        let mut visited = 0;
        while let Some(pid) = pending.pop() {
            visited += 1;
            if visited > MAX_PROCESSES {
                break;
            }
            // The time of a process that has just ended is in the count of its reaper.
            let Some(used) = Ticks::of(pid) else { continue };
            ticks = ticks.saturating_add(used.own).saturating_add(used.reaped);
            pending.extend(children_of(pid));
        }
        Some(TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX)))
    }

    /// CPU time of one process, in ticks.
    #[derive(Debug, PartialEq, Eq)]
    struct Ticks {
        own: u64,
        /// Used by the children that it has reaped.
        reaped: u64,
    }

    impl Ticks {
        fn of(pid: Pid) -> Option<Self> {
            let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
            Self::parse(&stat)
        }

        fn parse(stat: &[u8]) -> Option<Self> {
            // The name may contain any character.
            let after_name = stat.iter().rposition(|&byte| byte == b')')?;
            let rest = std::str::from_utf8(&stat[after_name + 1..]).ok()?;
            let mut times = rest.split_whitespace().skip(11).map_while(|it| it.parse().ok());
            let mut next_pair = || -> Option<u64> {
                let (user, system): (u64, u64) = (times.next()?, times.next()?);
                user.checked_add(system)
            };
            Some(Self { own: next_pair()?, reaped: next_pair()? })
        }
    }

    /// A process whose parent has `word` as an argument, for tests. Both are killed on drop.
    #[cfg(test)]
    pub(crate) struct ChildOfMonitor {
        pub(crate) pid: u32,
        monitor: std::process::Child,
    }

    #[cfg(test)]
    impl ChildOfMonitor {
        pub(crate) fn new(word: &str) -> Self {
            let mut monitor = std::process::Command::new("sh")
                .args(["-c", "sleep 60 & echo $!; wait", "sh", word])
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let stdout = monitor.stdout.take().unwrap();
            std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
            Self { pid: line.trim().parse().unwrap(), monitor }
        }
    }

    #[cfg(test)]
    impl Drop for ChildOfMonitor {
        fn drop(&mut self) {
            let pid = Pid::from_raw(self.pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            self.monitor.wait().unwrap(); // The monitor waits for this child only.
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn ticks_are_parsed_whatever_the_process_name() {
            let line = b"7 (a b) c) R 1 7 7 0 -1 4194304 1 2 3 4 50 6 70 8 20 0 1 0 99 1 1";
            assert_eq!(Ticks::parse(line), Some(Ticks { own: 56, reaped: 78 }));
            for odd in ["", "7 (a", "7 (a) R 1 7", "7 (a) R 1 7 7 0 -1 4 1 2 3 4 x 6 70 8"] {
                assert_eq!(Ticks::parse(odd.as_bytes()), None, "{odd}");
            }
        }

        #[test]
        fn cpu_stat_is_parsed() {
            let stat = "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n";
            assert_eq!(parse_cpu_stat(stat), Some(Duration::from_micros(1500)));
            assert_eq!(parse_cpu_stat("user_usec 1\n"), None);
            assert_eq!(parse_cpu_stat("usage_usec x\n"), None);
        }

        #[test]
        fn parent_is_recognised_by_its_argument() {
            let child = ChildOfMonitor::new("the-word");
            assert!(parent_has_argument(child.pid, "the-word"));
            assert!(
                !parent_has_argument(child.pid, "the-wor") && !parent_has_argument(0, "the-word")
            );
            assert!(!parent_has_argument(child.monitor.id(), "the-word"));
        }

        /// Starts a busy child of this process, which stands in for the shim.
        fn busy_child() -> std::process::Child {
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()
        }

        #[test]
        fn time_of_busy_and_ended_processes_is_counted() {
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
        fn missing_process_has_no_time() {
            assert_eq!(used(u32::MAX, false), None);
            assert_eq!(used(u32::MAX, true), None);
        }
    }
}
