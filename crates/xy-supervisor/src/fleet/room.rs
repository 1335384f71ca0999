//! How many instances there may be at once, and how much memory they may use: who has to wait
//! outside, and who goes for them.
//!
//! Only what comes by need is kept out: a client's own instance, and one that is woken. What a
//! file starts with the daemon, and what an operator starts, comes in any case; but all count.
//! One that is ending counts no more, so for a moment there may be more than the limit.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use xy_config::settings::InstanceSettings;
use xy_protocol::server::{ServerName, ServerState};
use xy_protocol::size::Size;
use xy_shim::wire::Containment;

use super::{Fleet, Roster};
use crate::instance::{InstanceHandle, InstanceKey};

/// How often memory is measured, if it is limited.
const MEASURED_EVERY: Duration = Duration::from_secs(5);

/// Of so many others it is told that they are in the way.
const TOLD: usize = 5;

/// How long one that goes may take until that is known.
const GOES_WITHIN: Duration = Duration::from_secs(2);

const FOR_ANOTHER: &str = "not used, and another needed its place";

/// How much memory each instance used when it was last measured.
pub(super) type Usage = HashMap<InstanceKey, u64>;

/// There is no room for one more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoRoom {
    /// What there is too much of.
    pub what: Limit,
    /// Whose instances are in the way, and how many; the most first.
    pub by: Vec<(ServerName, usize)>,
}

/// What there is too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Instances.
    Most(usize),
    /// Memory: how many bytes are used, and how many may be.
    Memory {
        /// Bytes used.
        used: u64,
        /// The budget.
        of: u64,
    },
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            Limit::Most(most) => write!(f, "{most} instances are there, which is the most"),
            Limit::Memory { used, of } => {
                // To the megabyte: nobody wants to know more.
                write!(f, "servers use {} of {} of memory", Size(used >> 20 << 20), Size(of))
            }
        }?;
        let by: Vec<String> =
            self.by.iter().map(|(name, count)| format!("{name} {count}")).collect();
        write!(f, ", and none of those that may sleep is idle: {}", by.join(", "))
    }
}

impl NoRoom {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self.what {
            Limit::Most(_) => {
                "raise `most` in `instances { … }` of xy.kdl, or `xy stop` one of them"
            }
            Limit::Memory { .. } => {
                "raise `memory` in `instances { … }` of xy.kdl, or `xy stop` one of them"
            }
        }
    }
}

/// Whether one more may come beside these, each with the memory that it uses. Pure.
fn room(there: &[(ServerName, u64)], limits: InstanceSettings) -> Result<(), NoRoom> {
    let used: u64 = there.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let what = match limits.memory {
        _ if there.len() >= limits.most => Limit::Most(limits.most),
        Some(of) if used >= of => Limit::Memory { used, of },
        _ => return Ok(()),
    };
    let mut counts: BTreeMap<&ServerName, usize> = BTreeMap::new();
    for (name, _) in there {
        *counts.entry(name).or_default() += 1;
    }
    let mut by: Vec<(ServerName, usize)> =
        counts.into_iter().map(|(name, count)| (name.clone(), count)).collect();
    by.sort_by_key(|(_, count)| std::cmp::Reverse(*count)); // Stable: then by their names.
    by.truncate(TOLD);
    Err(NoRoom { what, by })
}

/// Who goes first: of those that are idle, for so long, the one that was used least recently.
fn first_to_go(mut idle: Vec<(Duration, InstanceKey)>) -> Vec<InstanceKey> {
    idle.sort_by(|(a, key_a), (b, key_b)| b.cmp(a).then_with(|| key_a.cmp(key_b)));
    idle.into_iter().map(|(_, key)| key).collect()
}

/// Whether an instance has a place: it is there, or comes back by itself.
fn has_place(instance: &InstanceHandle) -> bool {
    let now = instance.now();
    let is_here = now.settings.remote().is_none();
    is_here
        && matches!(
            now.state(),
            ServerState::Starting | ServerState::Running | ServerState::Restarting
        )
}

fn places(roster: &Roster) -> impl Iterator<Item = &InstanceHandle> {
    roster.values().flat_map(super::Member::own_instances).filter(|it| has_place(it))
}

/// Whether one more may come.
pub(super) fn check(
    roster: &Roster,
    usage: &Usage,
    limits: InstanceSettings,
) -> Result<(), NoRoom> {
    let bytes = |key: &InstanceKey| usage.get(key).copied().unwrap_or(0);
    let there: Vec<(ServerName, u64)> =
        places(roster).map(|it| (it.key().server.clone(), bytes(it.key()))).collect();
    room(&there, limits)
}

/// Has one instance sleep that may and that nobody uses, the least recently used first; whether
/// one does.
pub(super) async fn make_room(roster: &Roster) -> bool {
    let mut asking = JoinSet::new();
    for instance in places(roster).filter(|it| it.now().settings.rules.may_sleep()) {
        let instance = instance.clone();
        asking.spawn(async move { Some((instance.idle_for().await?, instance)) });
    }
    let mut idle = Vec::new();
    let mut handles: HashMap<InstanceKey, InstanceHandle> = HashMap::new();
    while let Some(asked) = asking.join_next().await {
        if let Ok(Some((idle_for, instance))) = asked {
            idle.push((idle_for, instance.key().clone()));
            handles.insert(instance.key().clone(), instance);
        }
    }
    for instance in first_to_go(idle).iter().filter_map(|key| handles.get(key)) {
        if instance.rest(FOR_ANOTHER).await {
            let goes = instance.wait_until(|_| !has_place(instance));
            let _ = timeout(GOES_WITHIN, goes).await; // It may be back already.
            return true;
        }
    }
    false
}

/// Measures what instances use, and has those sleep that nobody uses while that is too much.
pub(super) async fn keep_measured(
    limits: InstanceSettings,
    roster: watch::Receiver<Arc<Roster>>,
    usage: watch::Sender<Usage>,
) {
    let Some(budget) = limits.memory else { return };
    let mut ticks = interval(MEASURED_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = roster.borrow().clone();
        let measured = measure(&now).await;
        usage.send_replace(measured);
        loop {
            let used: u64 =
                places(&now).filter_map(|it| usage.borrow().get(it.key()).copied()).sum();
            if used < budget || !make_room(&now).await {
                break;
            }
        }
    }
}

/// What each instance uses now, as far as that can be told.
async fn measure(roster: &Roster) -> Usage {
    let asked: Vec<(InstanceKey, u32, bool)> = places(roster)
        .filter_map(|it| {
            let now = it.now();
            let has_group =
                now.confined.as_ref().is_some_and(|it| it.containment == Containment::Cgroup);
            Some((it.key().clone(), now.process()?, has_group))
        })
        .collect();
    let measuring = tokio::task::spawn_blocking(move || {
        let used = |(key, pid, has_group)| Some((key, xy_shim::memory::used(pid, has_group)?));
        asked.into_iter().filter_map(used).collect()
    });
    measuring.await.unwrap_or_default()
}

impl Fleet {
    /// Makes room for one more; whether somebody goes.
    pub(super) async fn make_room(&self) -> bool {
        make_room(&self.roster()).await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(name: &str) -> ServerName {
        ServerName::new(name).unwrap()
    }

    fn limits(most: usize, memory: Option<u64>) -> InstanceSettings {
        InstanceSettings { most, memory }
    }

    #[test]
    fn one_more_may_come_as_long_as_neither_is_used_up() {
        let there = [(name("b"), 30), (name("a"), 10), (name("b"), 60)];
        assert_eq!(room(&there, limits(4, None)), Ok(()));
        assert_eq!(room(&there, limits(4, Some(101))), Ok(()));
        let by = vec![(name("b"), 2), (name("a"), 1)];
        let full = NoRoom { what: Limit::Most(3), by: by.clone() };
        assert_eq!(room(&there, limits(3, Some(1))), Err(full));
        let full = NoRoom { what: Limit::Memory { used: 100, of: 100 }, by };
        assert_eq!(room(&there, limits(4, Some(100))), Err(full));
        assert_eq!(room(&[], limits(1, Some(1))), Ok(()));
    }

    #[test]
    fn what_is_full_says_of_what_by_whom_and_what_helps() {
        let there: Vec<(ServerName, u64)> =
            (0..9).map(|it| (name(&format!("s{}", it % 7)), 1 << 29)).collect();
        let told = [limits(9, None), limits(10, Some(1 << 32))]
            .map(|limits| room(&there, limits).unwrap_err())
            .map(|full| format!("{full}\n{}", full.hint()));
        insta::assert_snapshot!(told.join("\n"), @"
        9 instances are there, which is the most, and none of those that may sleep is idle: s0 2, s1 2, s2 1, s3 1, s4 1
        raise `most` in `instances { … }` of xy.kdl, or `xy stop` one of them
        servers use 4608 MiB of 4 GiB of memory, and none of those that may sleep is idle: s0 2, s1 2, s2 1, s3 1, s4 1
        raise `memory` in `instances { … }` of xy.kdl, or `xy stop` one of them
        ");
    }

    proptest! {
        #[test]
        fn whoever_was_used_least_recently_goes_first(idle in proptest::collection::vec(0..9_u64, 0..9)) {
            let keys = idle.iter().enumerate().map(|(nth, seconds)| {
                let key = InstanceKey::shared(name(&format!("s{nth}")));
                (Duration::from_secs(*seconds), key)
            });
            let order = first_to_go(keys.clone().collect());
            let seconds = |key: &InstanceKey| keys.clone().find(|it| it.1 == *key).unwrap().0;
            let times: Vec<Duration> = order.iter().map(seconds).collect();
            prop_assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
            prop_assert_eq!(order.len(), idle.len());
        }
    }
}
