//! Resource usage of this process and its machine, as far as the system reports it.

use xy_protocol::time::Timestamp;

/// Returns the current wall-clock time.
#[expect(clippy::disallowed_methods, reason = "only for display")]
pub(crate) fn wall_clock() -> Timestamp {
    Timestamp::from(std::time::SystemTime::now())
}

/// Returns the resident memory of this process, in bytes.
pub(crate) fn resident() -> Option<u64> {
    bytes_of("VmRSS", &read("/proc/self/status")?)
}

/// Returns the total memory of the machine, in bytes.
pub(crate) fn total_memory() -> Option<u64> {
    bytes_of("MemTotal", &read("/proc/meminfo")?)
}

/// Returns the available memory of the machine, in bytes.
pub(crate) fn free_memory() -> Option<u64> {
    bytes_of("MemAvailable", &read("/proc/meminfo")?)
}

/// Returns the name of the operating system, as Node.js spells it.
pub(crate) fn platform() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    }
}

fn read(file: &str) -> Option<String> {
    std::fs::read_to_string(file).ok() // These files exist only on Linux.
}

/// Returns the bytes in a line such as `Name:   123 kB`.
fn bytes_of(name: &str, text: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kilobytes: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessState {
    /// It does not exist, or is a zombie.
    Gone,
    /// A signal has stopped it until another continues it.
    Stopped,
    /// It exists and is not stopped.
    Alive,
}

/// Returns the state of a process with this pid.
pub(crate) fn process_state(pid: u32) -> ProcessState {
    let Some(known) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
        return ProcessState::Gone;
    };
    if rustix::process::test_kill_process(known) == Err(rustix::io::Errno::SRCH) {
        return ProcessState::Gone;
    }
    match read(&format!("/proc/{pid}/stat")).as_deref().and_then(state_in) {
        Some('T') => ProcessState::Stopped,
        Some('Z' | 'X') => ProcessState::Gone,
        _ => ProcessState::Alive,
    }
}

/// Returns the state letter after the name, which may contain any character.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit(')').next()?.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let text = "Name:\txy\nVmRSSx:\t1 kB\nVmRSS:\t   12 kB\nBad: 3\n";
        assert_eq!(bytes_of("VmRSS", text), Some(12 * 1024));
        assert_eq!((bytes_of("Bad", text), bytes_of("None", text)), (None, None));
        assert_eq!(state_in("12 (a) b) T 1 2"), Some('T'));
        assert_eq!(state_in(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_alive_and_uses_memory() {
        assert!(resident() > Some(0) && total_memory() > free_memory());
        assert_eq!(process_state(std::process::id()), ProcessState::Alive);
        assert_eq!(
            (process_state(0), process_state(u32::MAX)),
            (ProcessState::Gone, ProcessState::Gone)
        );
    }
}
