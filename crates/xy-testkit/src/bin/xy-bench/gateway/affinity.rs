//! CPU affinity: pins all processes to one core, or each process to one of two.

/// The pinning of this thread, undone on drop. Processes started meanwhile stay pinned.
pub(super) struct PinGuard(imp::Before);

impl Drop for PinGuard {
    fn drop(&mut self) {
        imp::restore(&self.0);
    }
}

/// Pins this thread, and processes that it starts, to the first core.
pub(super) fn pin_to_one_core() -> Result<PinGuard, String> {
    imp::pin_to_one().map(PinGuard)
}

/// One of two cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Core {
    /// The core of this thread while it is pinned.
    First,
    /// The other core.
    Second,
}

/// Pins all current threads of a process to a core, permanently.
pub(super) fn pin(pid: u32, side: Core) -> Result<(), String> {
    imp::pin(pid, side)
}

#[cfg(target_os = "linux")]
mod imp {
    use rustix::process::Pid;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::Core;

    pub(super) type Before = CpuSet;

    pub(super) fn pin_to_one() -> Result<CpuSet, String> {
        let before = sched_getaffinity(None).map_err(|problem| problem.to_string())?;
        sched_setaffinity(None, &only(Core::First)?).map_err(|problem| problem.to_string())?;
        Ok(before)
    }

    pub(super) fn pin(pid: u32, side: Core) -> Result<(), String> {
        let side = only(side)?;
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.map_err(|problem| problem.to_string())?.flatten() {
            let number = thread.file_name().to_str().and_then(|it| it.parse().ok());
            let thread = number.and_then(Pid::from_raw).ok_or("a thread without a number")?;
            sched_setaffinity(Some(thread), &side).map_err(|problem| problem.to_string())?;
        }
        Ok(())
    }

    /// Returns one of the cores available to pid 1, whose affinity this benchmark never changes.
    fn only(side: Core) -> Result<CpuSet, String> {
        let all = sched_getaffinity(Some(Pid::INIT)).map_err(|problem| problem.to_string())?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
        let core = match side {
            Core::First => cores.next(),
            Core::Second => cores.nth(1),
        };
        let mut one = CpuSet::new();
        one.set(core.ok_or("the machine has too few cores")?);
        Ok(one)
    }

    pub(super) fn restore(before: &CpuSet) {
        let _ = sched_setaffinity(None, before); // The set was valid before.
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    pub(super) struct Before;

    pub(super) fn pin_to_one() -> Result<Before, String> {
        Err("this system has no CPU affinity".to_owned())
    }

    pub(super) fn restore(_before: &Before) {}

    pub(super) fn pin(_pid: u32, _side: super::Core) -> Result<(), String> {
        Err("this system has no CPU affinity".to_owned())
    }
}
