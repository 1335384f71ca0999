//! How much memory a server uses now, all its processes together.
//!
//! Where the server has a control group that counts memory, the kernel knows: what could be
//! dropped at once (the cache of files that nobody has read lately) is left out. Elsewhere on
//! Linux the share of each process below its shim is added up. Where neither can be told there
//! is no answer.

/// Bytes used by the server whose leader this is; `has_group` if it has a control group of its
/// own. Reads a few files, so it may block for a moment.
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

    /// No more processes are looked at.
    const MOST: usize = 10_000;

    pub(super) fn used(leader: u32, has_group: bool) -> Option<u64> {
        let by_group = || {
            let group = cgroup::group_of(leader)?;
            let current = fs::read_to_string(group.join("memory.current")).ok()?;
            in_group(&current, &fs::read_to_string(group.join("memory.stat")).ok()?)
        };
        has_group.then(by_group).flatten().or_else(|| below_shim(leader))
    }

    fn in_group(current: &str, stat: &str) -> Option<u64> {
        let cache = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
        let cache = cache.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
        Some(current.trim().parse::<u64>().ok()?.saturating_sub(cache))
    }

    /// Of the leader and everything beside and below it, but not of its shim.
    fn below_shim(leader: u32) -> Option<u64> {
        let shim = ProcStat::of(leader).ok()?.parent?;
        let mut left = children_of(shim);
        let (mut bytes, mut looked_at) = (0_u64, 0);
        while let Some(pid) = left.pop() {
            looked_at += 1;
            if looked_at > MOST {
                break;
            }
            bytes = bytes.saturating_add(of_one(pid).unwrap_or(0)); // One may be gone meanwhile.
            left.extend(children_of(pid));
        }
        Some(bytes)
    }

    /// Its share of what it has mapped, or all of that where the share is not told.
    fn of_one(pid: Pid) -> Option<u64> {
        let file = |name| fs::read_to_string(format!("/proc/{}/{name}", pid.as_raw_nonzero()));
        let share = file("smaps_rollup").ok().and_then(|text| field(&text, "Pss:"));
        share.or_else(|| field(&file("status").ok()?, "VmRSS:"))
    }

    /// A field that the kernel tells in kB.
    fn field(text: &str, name: &str) -> Option<u64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        let number: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(number.saturating_mul(1024))
    }

    #[cfg(test)]
    mod tests {

        use super::*;

        #[test]
        fn what_the_kernel_tells_is_read_by_its_name() {
            assert_eq!(field("Rss:    9 kB\nPss:       12 kB\n", "Pss:"), Some(12 * 1024));
            for odd in ["", "Pss:", "Pss: x kB", "Pss: 12", "Pss: -1 kB"] {
                assert_eq!(field(odd, "Pss:"), None, "{odd}");
            }
            assert_eq!(in_group("100\n", "anon 60\ninactive_file 30\n"), Some(70));
            assert_eq!(in_group("100\n", ""), Some(100));
            assert_eq!(in_group("10\n", "inactive_file 30\n"), Some(0));
            assert_eq!(in_group("max\n", ""), None);
        }

        #[test]
        fn a_child_uses_something_and_nobody_uses_nothing() {
            let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            // Until it is another program, it may not be told what it uses.
            let is_some = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes > 4096);
            let looks = std::iter::repeat_with(|| {
                std::thread::yield_now();
                used(child.id(), false)
            });
            let bytes = looks.take(1_000_000).find(|bytes| is_some(*bytes)).flatten();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(is_some(bytes), "{bytes:?}");
            assert_eq!(used(u32::MAX, false), None);
            assert_eq!(used(u32::MAX, true), None);
        }
    }
}
