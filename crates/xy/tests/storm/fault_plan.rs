//! Injection of faults into servers while they are called.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;

use crate::faults::Fault;
use crate::fixture::Fixture;
use crate::pause;
use crate::rng::Rng;
use crate::support::{pid_in, signal_if_alive};

/// The rule for a fault of a server whose last fault interrupted calls that are still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// No call is hit twice.
    Some,
    /// Any moment, also during a start.
    None,
}

/// The state of a server after its last fault.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Well,
    /// This process was hit.
    Struck(u32),
    /// The server has recovered, and these calls may have been interrupted.
    Recovering(BTreeSet<u64>),
}

/// The faults to inject.
#[derive(Debug, Clone)]
pub(crate) struct FaultPlan {
    /// The target servers.
    pub(crate) servers: Vec<usize>,
    /// The signal to send.
    pub(crate) signal: Signal,
    pub(crate) spacing: Spacing,
    pub(crate) time: Duration,
}

/// Injects faults into one server after the other at random moments, until the time is over.
pub(crate) fn inject(fixture: &Fixture, rng: &mut Rng, plan: &FaultPlan) -> Vec<Fault> {
    let until = fixture.now() + plan.time;
    let mut conditions = vec![Condition::Well; fixture.names.len()];
    // The last process of each server that was hit.
    let mut last = vec![0_u64; fixture.names.len()];
    let mut faults = Vec::new();
    while fixture.now() < until {
        pause(rng.millis_below(60));
        let listed = fixture.listed();
        for (server, condition) in conditions.iter_mut().enumerate() {
            let next = match &*condition {
                Condition::Struck(pid)
                    if listed[server]["state"] == "running" && listed[server]["pid"] != *pid =>
                {
                    Condition::Recovering(fixture.open_at(server))
                }
                Condition::Recovering(open) if !fixture.is_any_open(open) => Condition::Well,
                _ => continue,
            };
            *condition = next;
        }
        let may_be_struck = |server: &usize| {
            // xy itself replaces a process of the wrong era, so there may be none now.
            let Some(pid) = listed[*server]["pid"].as_u64() else { return false };
            match plan.spacing {
                Spacing::Some => conditions[*server] == Condition::Well,
                Spacing::None => last[*server] != pid,
            }
        };
        let some: Vec<usize> = plan.servers.iter().copied().filter(may_be_struck).collect();
        if !some.is_empty() {
            let server = *rng.pick(&some);
            let (pid, at) = (pid_in(&listed[server]), fixture.now());
            if let Some(remote) = fixture.remote(server) {
                // The remote server is restarted at once or after a while.
                let most = if rng.one_in(2) { 100 } else { 1 };
                remote.kill(rng.millis_below(most));
            } else if !signal_if_alive(pid, plan.signal) {
                continue;
            }
            conditions[server] = Condition::Struck(pid);
            last[server] = pid.into();
            faults.push(Fault::at_server(server, pid, at));
        }
    }
    faults
}
