//! Memory that a server uses now, all its processes together.
//!
//! Where the server has a control group that counts memory, the kernel's number is used, without
//! the file cache that could be dropped at once. Elsewhere on Linux the share of each process below
//! its shim is added up. Otherwise there is no answer.

/// Returns the bytes used by the server of this leader. `has_group` says that the server has a
/// control group of its own.
///
/// Reads a few files, so it may block for a moment.
pub fn used(leader: u32, has_group: bool) -> Option<u64> {
    #[cfg(target_os = "linux")]
    return linux::used(leader, has_group);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (leader, has_group);
        None
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;

    use rustix::process::Pid;

    use crate::cgroup;
    use crate::proc_stat::ProcStat;
    use crate::tree::children_of;

    /// Maximum number of processes that are added up.
    const MAX_PROCESSES: usize = 10_000;

    pub(super) fn used(leader: u32, has_group: bool) -> Option<u64> {
        let by_group = || {
            let group = cgroup::group_of(leader)?;
            let current = fs::read_to_string(group.join("memory.current")).ok()?;
            parse_memory_stat(&current, &fs::read_to_string(group.join("memory.stat")).ok()?)
        };
        has_group.then(by_group).flatten().or_else(|| sum_of_processes(leader))
    }

    fn parse_memory_stat(current: &str, stat: &str) -> Option<u64> {
        let cache = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
        let cache = cache.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
        Some(current.trim().parse::<u64>().ok()?.saturating_sub(cache))
    }

    /// Adds up the leader and all processes beside and below it, without the shim.
    fn sum_of_processes(leader: u32) -> Option<u64> {
        let shim = ProcStat::of(leader).ok()?.parent?;
        let mut pending = children_of(shim);
        let (mut bytes, mut visited) = (0_u64, 0);
        while let Some(pid) = pending.pop() {
            visited += 1;
            if visited > MAX_PROCESSES {
                break;
            }
            // The process may have just ended.
            bytes = bytes.saturating_add(process_bytes(pid).unwrap_or(0));
            pending.extend(children_of(pid));
        }
        Some(bytes)
    }

    /// Returns the proportional share of the mapped memory, or all of it where the share is
    /// unknown.
    fn process_bytes(pid: Pid) -> Option<u64> {
        let file = |name| fs::read_to_string(format!("/proc/{}/{name}", pid.as_raw_nonzero()));
        let share = file("smaps_rollup").ok().and_then(|text| field(&text, "Pss:"));
        share.or_else(|| field(&file("status").ok()?, "VmRSS:"))
    }

    /// Returns the bytes of a field that the kernel reports in kB.
    fn field(text: &str, name: &str) -> Option<u64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        let number: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(number.saturating_mul(1024))
    }

    #[cfg(test)]
    mod tests {

        use super::*;

        #[test]
        fn kernel_fields_are_parsed() {
            assert_eq!(field("Rss:    9 kB\nPss:       12 kB\n", "Pss:"), Some(12 * 1024));
            for odd in ["", "Pss:", "Pss: x kB", "Pss: 12", "Pss: -1 kB"] {
                assert_eq!(field(odd, "Pss:"), None, "{odd}");
            }
            assert_eq!(parse_memory_stat("100\n", "anon 60\ninactive_file 30\n"), Some(70));
            assert_eq!(parse_memory_stat("100\n", ""), Some(100));
            assert_eq!(parse_memory_stat("10\n", "inactive_file 30\n"), Some(0));
            assert_eq!(parse_memory_stat("max\n", ""), None);
        }

        #[test]
        fn child_uses_memory_and_missing_process_none() {
            let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            // Until the child has executed its program, its usage may be hidden.
            let is_some = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes > 4096);
            let readings = std::iter::repeat_with(|| {
                std::thread::yield_now();
                used(child.id(), false)
            });
            let bytes = readings.take(1_000_000).find(|bytes| is_some(*bytes)).flatten();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(is_some(bytes), "{bytes:?}");
            assert_eq!(used(u32::MAX, false), None);
            assert_eq!(used(u32::MAX, true), None);
        }
    }
}
