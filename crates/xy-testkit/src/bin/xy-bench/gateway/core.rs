//! Keeps this thread, and every process that it starts, on one core.

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

#[cfg(target_os = "linux")]
mod imp {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub(super) type Before = CpuSet;

    pub(super) fn stay() -> Result<CpuSet, String> {
        let before = sched_getaffinity(None).map_err(|problem| problem.to_string())?;
        let first = (0..CpuSet::MAX_CPU).find(|core| before.is_set(*core));
        let mut one = CpuSet::new();
        one.set(first.ok_or("this process may run nowhere")?);
        sched_setaffinity(None, &one).map_err(|problem| problem.to_string())?;
        Ok(before)
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
}
