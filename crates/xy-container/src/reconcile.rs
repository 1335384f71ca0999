//! Removal of containers that carry our label but have no owner; all others are left alone.
//!
//! A daemon that is killed between creating a container and recording it leaves one behind. So does
//! an engine that was away when a container should have been removed. The engines to look at
//! include those of earlier daemons (`engines.rs`).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use xy_supervisor::instance::InstanceKey;

use crate::create::{self, LABEL_HOME, LABEL_INSTANCE, LABEL_RUN};
use crate::engine::{Engine, LabelledContainer};
use crate::faults;
use crate::shared::SharedState;
use crate::stream_holder;

#[cfg(test)]
mod tests;

/// Time between two looks.
const RECONCILE_INTERVAL: Duration = Duration::from_mins(1);

/// Time for a shim to be adopted; until then a container of its CLI may have no owner.
const ADOPTION_TIMEOUT: Duration = Duration::from_mins(3);

/// Time for one engine.
const ENGINE_TIMEOUT: Duration = Duration::from_mins(1);

/// Looks at each engine when it is first used, and at intervals, as long as the daemon lives.
pub(crate) async fn run(shared: Arc<SharedState>) {
    let mut again_at = Instant::now() + RECONCILE_INTERVAL;
    loop {
        tokio::select! {
            () = shared.engines.wait_for_new() => {}
            () = sleep_until(again_at) => again_at = Instant::now() + RECONCILE_INTERVAL,
        }
        let _ = once(&shared, true).await; // The next round finds the containers that remain.
    }
}

/// Containers that no server owned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnownedContainers {
    /// Ids of those that were removed.
    pub removed: Vec<String>,
    /// Ids of those that still exist.
    pub left: Vec<String>,
}

/// Looks once at every known engine, and removes containers without an owner. All engines are asked
/// at the same time, so a silent one holds up no other.
pub(crate) async fn once(shared: &Arc<SharedState>, removes: bool) -> UnownedContainers {
    let mut looks = JoinSet::new();
    for socket in shared.engines.all() {
        let shared = shared.clone();
        looks.spawn(async move {
            let mut found = UnownedContainers::default();
            let looking = reconcile_engine(&shared, &socket, removes, &mut found);
            let _ = timeout(ENGINE_TIMEOUT, looking).await; // It is asked again later.
            found
        });
    }
    let mut all = UnownedContainers::default();
    while let Some(found) = looks.join_next().await {
        let UnownedContainers { removed, left } = found.unwrap_or_default();
        all.removed.extend(removed);
        all.left.extend(left);
    }
    all
}

/// Looks at one engine.
async fn reconcile_engine(
    shared: &SharedState,
    socket: &Path,
    removes: bool,
    all: &mut UnownedContainers,
) {
    let Ok(engine) = Engine::at(socket).await else { return };
    let label = format!("{LABEL_HOME}={}", shared.home);
    let Ok(mut found) = engine.labelled(&label).await else { return };
    if shared.began_at.elapsed() > ADOPTION_TIMEOUT {
        found.extend(engine.labelled(LABEL_RUN).await.unwrap_or_default());
    }
    for container in found.into_iter().filter(|container| is_unowned(shared, container)) {
        if !removes {
            all.left.push(container.id);
            continue;
        }
        let instance = container.labels.get(LABEL_INSTANCE).cloned().unwrap_or_default();
        stream_holder::end_for(shared, &container.id).await;
        match engine.remove(&container.id).await {
            Ok(()) => {
                tracing::warn!(
                    instance,
                    container = container.id,
                    "removed a container without an owner"
                );
                all.removed.push(container.id);
            }
            Err(why) => {
                let why = faults::words(&why);
                tracing::warn!(
                    instance,
                    container = container.id,
                    why,
                    "a container without an owner could not be removed"
                );
                all.left.push(container.id);
            }
        }
    }
}

/// Returns true if a container belongs to this home but no instance of this daemon owns it.
fn is_unowned(shared: &SharedState, container: &LabelledContainer) -> bool {
    if let Some(run) = container.labels.get(LABEL_RUN) {
        let is_ours = run.split_once('/').is_some_and(|(home, _)| home == shared.home);
        return is_ours && !shared.owned.has(&format!("{LABEL_RUN}={run}"));
    }
    let is_ours = container.labels.get(LABEL_HOME) == Some(&shared.home);
    let key = container.labels.get(LABEL_INSTANCE).and_then(|it| InstanceKey::parse(it));
    is_ours && key.is_none_or(|key| !shared.owned.has(&create::name(&shared.home, &key)))
}
