//! Containers with our label that no server owns: they are removed, and no others are.
//!
//! A daemon that is killed between making a container and writing that down leaves one, and so
//! does an engine that was away when one should have been removed.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;
use super::cli::LABEL_RUN;
use super::create::{self, LABEL_HOME, LABEL_INSTANCE};
use super::engine::{Engine, Seen};
use super::faults;
use crate::instance::InstanceKey;

/// How often it is looked for what nobody owns.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// How long a shim may take to be taken over: before that nobody may own what its CLI made.
const TAKEN_OVER_WITHIN: Duration = Duration::from_mins(3);

/// How long one engine may take.
const ENGINE_WITHIN: Duration = Duration::from_mins(1);

/// The names of the containers that some life of this daemon owns.
#[derive(Debug, Default)]
pub(super) struct Owned(Mutex<HashSet<String>>);

impl Owned {
    pub(super) fn take(&self, name: &str) {
        self.names().insert(name.to_owned());
    }

    pub(super) fn release(&self, name: &str) {
        self.names().remove(name);
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names().contains(name)
    }

    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engines that there may be something of ours at.
#[derive(Debug, Default)]
pub(super) struct Engines {
    sockets: Mutex<BTreeSet<PathBuf>>,
    /// There is one that was not looked at yet.
    is_news: Notify,
}

impl Engines {
    pub(super) fn saw(&self, socket: &Path) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if sockets.insert(socket.to_owned()) {
            self.is_news.notify_one();
        }
    }

    fn all(&self) -> Vec<PathBuf> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.iter().cloned().collect()
    }
}

/// Looks at every engine that is seen, and at intervals, for as long as the daemon lives.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut again_at = Instant::now() + LOOK_EVERY;
    loop {
        tokio::select! {
            () = shared.engines.is_news.notified() => {}
            () = sleep_until(again_at) => again_at = Instant::now() + LOOK_EVERY,
        }
        let _ = once(&shared, true).await; // What could not be removed is found again.
    }
}

/// What nobody owned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unowned {
    /// The ids of those that were removed.
    pub removed: Vec<String>,
    /// The ids of those that are still there.
    pub left: Vec<String>,
}

/// Looks at every engine that has been seen, once, and removes what nobody owns.
pub(super) async fn once(shared: &Shared, removes: bool) -> Unowned {
    let mut all = Unowned::default();
    for socket in shared.engines.all() {
        let looking = one(shared, &socket, removes, &mut all);
        let _ = timeout(ENGINE_WITHIN, looking).await; // Later, then.
    }
    all
}

/// The same at one engine.
async fn one(shared: &Shared, socket: &Path, removes: bool, all: &mut Unowned) {
    let Ok(engine) = Engine::at(socket).await else { return };
    let label = format!("{LABEL_HOME}={}", shared.home);
    let Ok(mut found) = engine.labelled(&label).await else { return };
    if shared.began_at.elapsed() > TAKEN_OVER_WITHIN {
        found.extend(engine.labelled(LABEL_RUN).await.unwrap_or_default());
    }
    for seen in found.into_iter().filter(|seen| is_unowned(shared, seen)) {
        if !removes {
            all.left.push(seen.id);
            continue;
        }
        let instance = seen.labels.get(LABEL_INSTANCE).cloned().unwrap_or_default();
        match engine.remove(&seen.id).await {
            Ok(()) => {
                tracing::warn!(instance, container = seen.id, "nobody owned it: removed");
                all.removed.push(seen.id);
            }
            Err(why) => {
                let why = faults::words(&why);
                tracing::warn!(instance, container = seen.id, why, "nobody owns it");
                all.left.push(seen.id);
            }
        }
    }
}

/// Whether it is of this home, and no life of this daemon owns it.
fn is_unowned(shared: &Shared, seen: &Seen) -> bool {
    if let Some(run) = seen.labels.get(LABEL_RUN) {
        let is_ours = run.split_once('/').is_some_and(|(home, _)| home == shared.home);
        return is_ours && !shared.owned.has(&format!("{LABEL_RUN}={run}"));
    }
    let is_ours = seen.labels.get(LABEL_HOME) == Some(&shared.home);
    let key = seen.labels.get(LABEL_INSTANCE).and_then(|it| InstanceKey::parse(it));
    is_ours && key.is_none_or(|key| !shared.owned.has(&create::name(&shared.home, &key)))
}
