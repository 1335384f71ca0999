//! What this process and its machine use, as far as the system tells.

use xy_protocol::time::Timestamp;

/// What people call now.
#[expect(clippy::disallowed_methods, reason = "it is only shown")]
pub(crate) fn wall_clock() -> Timestamp {
    Timestamp::from(std::time::SystemTime::now())
}

/// Bytes of this process that are in memory.
pub(crate) fn resident() -> Option<u64> {
    bytes_of("VmRSS", &read("/proc/self/status")?)
}

/// Bytes of memory that the machine has.
pub(crate) fn total_memory() -> Option<u64> {
    bytes_of("MemTotal", &read("/proc/meminfo")?)
}

/// Bytes of it that could be used.
pub(crate) fn free_memory() -> Option<u64> {
    bytes_of("MemAvailable", &read("/proc/meminfo")?)
}

/// The name of the system, as others than Rust call it.
pub(crate) fn platform() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    }
}

fn read(file: &str) -> Option<String> {
    std::fs::read_to_string(file).ok() // There is none but on Linux.
}

/// One line of such a file: `Name:   123 kB`.
fn bytes_of(name: &str, text: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kilobytes: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Whether a process is there, and whether a signal has stopped it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Process {
    /// There is none, or it is dead.
    Gone,
    /// It is there, but no longer runs until somebody lets it.
    Stopped,
    /// It is there.
    There,
}

/// What has become of a process of ours.
pub(crate) fn process(pid: u32) -> Process {
    let Some(known) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
        return Process::Gone;
    };
    if rustix::process::test_kill_process(known) == Err(rustix::io::Errno::SRCH) {
        return Process::Gone;
    }
    match read(&format!("/proc/{pid}/stat")).as_deref().and_then(state_in) {
        Some('T') => Process::Stopped,
        Some('Z' | 'X') => Process::Gone,
        _ => Process::There,
    }
}

/// The letter after the name, which may have anything in it.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit(')').next()?.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_kernel_are_read() {
        let text = "Name:\txy\nVmRSSx:\t1 kB\nVmRSS:\t   12 kB\nBad: 3\n";
        assert_eq!(bytes_of("VmRSS", text), Some(12 * 1024));
        assert_eq!((bytes_of("Bad", text), bytes_of("None", text)), (None, None));
        assert_eq!(state_in("12 (a) b) T 1 2"), Some('T'));
        assert_eq!(state_in(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_there_and_uses_memory() {
        assert!(resident() > Some(0) && total_memory() > free_memory());
        assert_eq!(process(std::process::id()), Process::There);
        assert_eq!((process(0), process(u32::MAX)), (Process::Gone, Process::Gone));
    }
}
