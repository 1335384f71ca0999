//! What is known of instances that are not up yet: how far they are, why they fail, and when they
//! are tried again.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;
use xy_supervisor::fleet::Member;
use xy_supervisor::instance::{Holder, InstanceHandle};
use xy_supervisor::lifecycle::State;

use crate::backend::{Progressing, Trouble};

/// The instances that come back only if somebody wakes them.
pub(super) fn away(member: &Member) -> HashSet<Holder> {
    let all = member.instances.iter();
    all.filter(|(_, it)| it.now().life.state.is_away()).map(|(holder, _)| *holder).collect()
}

/// How far what each of its instances needs has been fetched, whenever that is asked.
pub(super) fn progress(member: &Member) -> HashMap<Holder, Progressing> {
    let all = member.instances.iter();
    all.map(|(holder, it)| (*holder, Box::new(it.progress()) as Progressing)).collect()
}

/// Explains why each of its instances is failing, whenever that is asked.
pub(super) fn troubles(member: &Member) -> HashMap<Holder, Trouble> {
    let all = member.instances.iter();
    all.map(|(holder, it)| (*holder, Box::new(it.trouble()) as Trouble)).collect()
}

/// When each of its instances that waits for its back-off is tried again.
pub(super) fn retries(member: &Member) -> HashMap<Holder, Instant> {
    let retry_at = |instance: &InstanceHandle| match instance.now().life.state {
        State::Backoff { retry_at, .. } => Some(Instant::from_std(retry_at)),
        _ => None,
    };
    member.instances.iter().filter_map(|(holder, it)| Some((*holder, retry_at(it)?))).collect()
}
