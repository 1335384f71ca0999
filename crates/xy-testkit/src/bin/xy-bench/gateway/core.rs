//! Says where things run: everything on one core, or each process where it is put.

/// Until it is dropped. Whoever was started meanwhile stays there.
pub(super) struct OnOne(imp::Before);

impl Drop for OnOne {
    fn drop(&mut self) {
        imp::go_back(&self.0);
    }
}

/// An error says why that cannot be.
pub(super) fn stay_on_one() -> Result<OnOne, String> {
    imp::stay().map(OnOne)
}

/// Which of two cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Where this thread is while it stays on one.
    Here,
    /// The other.
    There,
}

/// Has all threads that a process has now run on one side, for good.
pub(super) fn put(pid: u32, side: Side) -> Result<(), String> {
    imp::put(pid, side)
}

#[cfg(target_os = "linux")]
mod imp {
    use rustix::process::Pid;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::Side;

    pub(super) type Before = CpuSet;

    pub(super) fn stay() -> Result<CpuSet, String> {
        let before = sched_getaffinity(None).map_err(|problem| problem.to_string())?;
        sched_setaffinity(None, &only(Side::Here)?).map_err(|problem| problem.to_string())?;
        Ok(before)
    }

    pub(super) fn put(pid: u32, side: Side) -> Result<(), String> {
        let side = only(side)?;
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.map_err(|problem| problem.to_string())?.flatten() {
            let number = thread.file_name().to_str().and_then(|it| it.parse().ok());
            let thread = number.and_then(Pid::from_raw).ok_or("a thread without a number")?;
            sched_setaffinity(Some(thread), &side).map_err(|problem| problem.to_string())?;
        }
        Ok(())
    }

    /// One core of those that the first process of the system may use, which nobody here moves.
    fn only(side: Side) -> Result<CpuSet, String> {
        let all = sched_getaffinity(Some(Pid::INIT)).map_err(|problem| problem.to_string())?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
        let core = match side {
            Side::Here => cores.next(),
            Side::There => cores.nth(1),
        };
        let mut one = CpuSet::new();
        one.set(core.ok_or("there are not enough cores")?);
        Ok(one)
    }

    pub(super) fn go_back(before: &CpuSet) {
        let _ = sched_setaffinity(None, before); // It was so before.
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    pub(super) struct Before;

    pub(super) fn stay() -> Result<Before, String> {
        Err("this system does not let us choose".to_owned())
    }

    pub(super) fn go_back(_before: &Before) {}

    pub(super) fn put(_pid: u32, _side: super::Side) -> Result<(), String> {
        Err("this system does not let us choose".to_owned())
    }
}
