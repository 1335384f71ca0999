//! The status of instances that are not running yet: progress, failures and retries.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;
use xy_protocol::server::ServerState;
use xy_supervisor::fleet::Member;
use xy_supervisor::instance::{Holder, InstanceHandle};
use xy_supervisor::lifecycle::State;

use crate::backend::{FailureReporter, ProgressReporter};

/// Returns the instances that start only when they are used.
pub(super) fn sleeping_holders(member: &Member) -> HashSet<Holder> {
    let all = member.instances.iter();
    all.filter(|(_, it)| it.now().life.state.is_sleeping()).map(|(holder, _)| *holder).collect()
}

/// Returns a reporter for each instance, which tells how much of its download is complete.
pub(super) fn progress_reporters(member: &Member) -> HashMap<Holder, ProgressReporter> {
    let all = member.instances.iter();
    all.map(|(holder, it)| (*holder, Box::new(it.progress()) as ProgressReporter)).collect()
}

/// Returns a reporter for each instance, which explains why it is failing.
pub(super) fn failure_reporters(member: &Member) -> HashMap<Holder, FailureReporter> {
    let all = member.instances.iter();
    all.map(|(holder, it)| (*holder, Box::new(it.failure()) as FailureReporter)).collect()
}

/// Returns when each instance in back-off is started again.
pub(super) fn retry_times(member: &Member) -> HashMap<Holder, Instant> {
    let retry_at = |instance: &InstanceHandle| match instance.now().life.state {
        State::Backoff { retry_at, .. } => Some(Instant::from_std(retry_at)),
        _ => None,
    };
    member.instances.iter().filter_map(|(holder, it)| Some((*holder, retry_at(it)?))).collect()
}

/// Returns true if an instance is in back-off after a life that never became ready.
pub(super) fn start_failed(instance: &InstanceHandle) -> bool {
    let now = instance.now();
    let begun = now.transitions.iter().rev().map(|it| it.to);
    let mut begun = begun.filter(|to| matches!(to, ServerState::Starting | ServerState::Running));
    matches!(now.life.state, State::Backoff { .. }) && begun.next() == Some(ServerState::Starting)
}
