//! The limits on the number and the memory of all instances, and the choice of the idle instance
//! that makes room for another.
//!
//! Only instances that start on demand are refused: client instances, and instances that are
//! woken. Instances that start with the daemon or by an operator always start, but they count.
//! Ending instances do not count, so the limit may be exceeded for a moment.

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
use crate::instance::{InstanceHandle, InstanceKey, Snapshot};

/// How often memory is measured, if it is limited.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of servers that an error names.
const MAX_NAMES: usize = 5;

/// How long to wait until an instance that makes room has left its state.
const SLEEP_TIMEOUT: Duration = Duration::from_secs(2);

const FOR_ANOTHER: &str = "idle, and another instance needed room";

/// The memory that each instance used at the last measurement.
pub(super) type Usage = HashMap<InstanceKey, u64>;

/// A limit does not allow one more instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoRoom {
    /// The limit.
    pub limit: Limit,
    /// The servers that have instances, and their number, in descending order.
    pub by: Vec<(ServerName, usize)>,
}

/// The limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The number of instances.
    Instances(usize),
    /// The memory of all instances.
    Memory {
        /// Bytes used.
        used: u64,
        /// The budget.
        of: u64,
    },
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            Limit::Instances(max) => write!(f, "{max} instances are active, which is the maximum"),
            Limit::Memory { used, of } => {
                // Rounded down to whole mebibytes.
                write!(f, "servers use {} of {} of memory", Size(used >> 20 << 20), Size(of))
            }
        }?;
        let by: Vec<String> =
            self.by.iter().map(|(name, count)| format!("{name} {count}")).collect();
        write!(f, ", and no instance that may be stopped is idle: {}", by.join(", "))
    }
}

impl NoRoom {
    /// Returns what the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self.limit {
            Limit::Instances(_) => {
                "raise `most` in `instances { … }` of xy.kdl, or `xy stop` one of them"
            }
            Limit::Memory { .. } => {
                "raise `memory` in `instances { … }` of xy.kdl, or `xy stop` one of them"
            }
        }
    }
}

/// Checks the limits for one more instance beside `active` ones with their memory. Pure.
fn check_limits(active: &[(ServerName, u64)], limits: InstanceSettings) -> Result<(), NoRoom> {
    let used: u64 = active.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let limit = match limits.memory {
        _ if active.len() >= limits.most => Limit::Instances(limits.most),
        Some(of) if used >= of => Limit::Memory { used, of },
        _ => return Ok(()),
    };
    let mut counts: BTreeMap<&ServerName, usize> = BTreeMap::new();
    for (name, _) in active {
        *counts.entry(name).or_default() += 1;
    }
    let mut by: Vec<(ServerName, usize)> =
        counts.into_iter().map(|(name, count)| (name.clone(), count)).collect();
    by.sort_by_key(|(_, count)| std::cmp::Reverse(*count)); // Stable, so then by name.
    by.truncate(MAX_NAMES);
    Err(NoRoom { limit, by })
}

/// Orders idle instances by idle time, longest first.
fn idle_order(mut idle: Vec<(Duration, InstanceKey)>) -> Vec<InstanceKey> {
    idle.sort_by(|(a, key_a), (b, key_b)| b.cmp(a).then_with(|| key_a.cmp(key_b)));
    idle.into_iter().map(|(_, key)| key).collect()
}

/// Returns true if an instance counts against the limits: it runs, or restarts by itself.
fn counts(now: &Snapshot) -> bool {
    let is_local = now.settings.remote().is_none();
    is_local
        && matches!(
            now.state(),
            ServerState::Starting | ServerState::Running | ServerState::Restarting
        )
}

fn counted_instances(roster: &Roster) -> impl Iterator<Item = &InstanceHandle> {
    roster.values().flat_map(super::Member::own_instances).filter(|it| counts(&it.now()))
}

/// Checks the limits for one more instance.
pub(super) fn check(
    roster: &Roster,
    usage: &Usage,
    limits: InstanceSettings,
) -> Result<(), NoRoom> {
    let bytes = |key: &InstanceKey| usage.get(key).copied().unwrap_or(0);
    let active: Vec<(ServerName, u64)> =
        counted_instances(roster).map(|it| (it.key().server.clone(), bytes(it.key()))).collect();
    check_limits(&active, limits)
}

/// Stops the least recently used idle instance that may sleep. Returns true if one stops.
pub(super) async fn make_room(roster: &Roster) -> bool {
    let mut queries = JoinSet::new();
    for instance in counted_instances(roster).filter(|it| it.now().settings.rules.may_sleep()) {
        let instance = instance.clone();
        queries.spawn(async move { Some((instance.idle_for().await?, instance)) });
    }
    let mut idle = Vec::new();
    let mut handles: HashMap<InstanceKey, InstanceHandle> = HashMap::new();
    while let Some(answer) = queries.join_next().await {
        if let Ok(Some((idle_for, instance))) = answer {
            idle.push((idle_for, instance.key().clone()));
            handles.insert(instance.key().clone(), instance);
        }
    }
    for instance in idle_order(idle).iter().filter_map(|key| handles.get(key)) {
        if instance.stop_if_idle(FOR_ANOTHER).await {
            let stopped = instance.wait_until(|now| !counts(now));
            let _ = timeout(SLEEP_TIMEOUT, stopped).await; // It may have been woken already.
            return true;
        }
    }
    false
}

/// Measures the memory of instances, and stops idle instances while they exceed the limit.
pub(super) async fn measure_usage(
    limits: InstanceSettings,
    roster: watch::Receiver<Arc<Roster>>,
    usage: watch::Sender<Usage>,
) {
    let Some(budget) = limits.memory else { return };
    let mut ticks = interval(MEASURE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = roster.borrow().clone();
        let measured = measure(&now).await;
        usage.send_replace(measured);
        loop {
            let used: u64 = counted_instances(&now)
                .filter_map(|it| usage.borrow().get(it.key()).copied())
                .sum();
            if used < budget || !make_room(&now).await {
                break;
            }
        }
    }
}

/// Returns the memory of each instance, as far as it can be measured.
async fn measure(roster: &Roster) -> Usage {
    let subjects: Vec<(InstanceKey, u32, bool)> = counted_instances(roster)
        .filter_map(|it| {
            let now = it.now();
            let has_group =
                now.confined.as_ref().is_some_and(|it| it.containment == Containment::Cgroup);
            Some((it.key().clone(), now.process()?, has_group))
        })
        .collect();
    let measuring = tokio::task::spawn_blocking(move || {
        let used = |(key, pid, has_group)| Some((key, xy_shim::memory::used(pid, has_group)?));
        subjects.into_iter().filter_map(used).collect()
    });
    measuring.await.unwrap_or_default()
}

impl Fleet {
    /// Makes room for one more instance. Returns true if an instance stops.
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
    fn limits_allow_one_more_until_reached() {
        let active = [(name("b"), 30), (name("a"), 10), (name("b"), 60)];
        assert_eq!(check_limits(&active, limits(4, None)), Ok(()));
        assert_eq!(check_limits(&active, limits(4, Some(101))), Ok(()));
        let by = vec![(name("b"), 2), (name("a"), 1)];
        let full = NoRoom { limit: Limit::Instances(3), by: by.clone() };
        assert_eq!(check_limits(&active, limits(3, Some(1))), Err(full));
        let full = NoRoom { limit: Limit::Memory { used: 100, of: 100 }, by };
        assert_eq!(check_limits(&active, limits(4, Some(100))), Err(full));
        assert_eq!(check_limits(&[], limits(1, Some(1))), Ok(()));
    }

    #[test]
    fn error_names_limit_servers_and_remedy() {
        let active: Vec<(ServerName, u64)> =
            (0..9).map(|it| (name(&format!("s{}", it % 7)), 1 << 29)).collect();
        let texts = [limits(9, None), limits(10, Some(1 << 32))]
            .map(|limits| check_limits(&active, limits).unwrap_err())
            .map(|full| format!("{full}\n{}", full.hint()));
        insta::assert_snapshot!(texts.join("\n"), @"
        9 instances are active, which is the maximum, and no instance that may be stopped is idle: s0 2, s1 2, s2 1, s3 1, s4 1
        raise `most` in `instances { … }` of xy.kdl, or `xy stop` one of them
        servers use 4608 MiB of 4 GiB of memory, and no instance that may be stopped is idle: s0 2, s1 2, s2 1, s3 1, s4 1
        raise `memory` in `instances { … }` of xy.kdl, or `xy stop` one of them
        ");
    }

    proptest! {
        #[test]
        fn least_recently_used_instance_stops_first(idle in proptest::collection::vec(0..9_u64, 0..9)) {
            let keys = idle.iter().enumerate().map(|(nth, seconds)| {
                let key = InstanceKey::shared(name(&format!("s{nth}")));
                (Duration::from_secs(*seconds), key)
            });
            let order = idle_order(keys.clone().collect());
            let seconds = |key: &InstanceKey| keys.clone().find(|it| it.1 == *key).unwrap().0;
            let times: Vec<Duration> = order.iter().map(seconds).collect();
            prop_assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
            prop_assert_eq!(order.len(), idle.len());
        }
    }
}
