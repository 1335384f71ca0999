//! Containers with our label that no server owns: they are removed, and no others are.
//!
//! A daemon that is killed between making a container and writing that down leaves one, and so
//! does an engine that was away when one should have been removed. Where to look is known from
//! earlier daemons too (`engines.rs`).

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;
use super::cli::LABEL_RUN;
use super::create::{self, LABEL_HOME, LABEL_INSTANCE};
use super::engine::{Engine, Seen};
use super::faults;
use super::grip;
use crate::instance::InstanceKey;

#[cfg(test)]
mod tests;

/// How often it is looked for what nobody owns.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// How long a shim may take to be taken over: before that nobody may own what its CLI made.
const TAKEN_OVER_WITHIN: Duration = Duration::from_mins(3);

/// How long one engine may take.
const ENGINE_WITHIN: Duration = Duration::from_mins(1);

/// The names of the containers that some life of this daemon owns. Two never own the same one:
/// whoever comes second waits, as for the lock of a shim.
#[derive(Debug, Clone, Default)]
pub(super) struct Owned(Arc<watch::Sender<HashSet<String>>>);

impl Owned {
    /// `false` if somebody has it.
    pub(super) fn take(&self, name: &str) -> bool {
        self.0.send_if_modified(|names| names.insert(name.to_owned()))
    }

    pub(super) fn release(&self, name: &str) {
        self.0.send_if_modified(|names| names.remove(name));
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.borrow().contains(name)
    }

    /// Owns a name, once nobody else does. Cancel-safe.
    pub(super) async fn hold(&self, name: &str) -> Hold {
        let mut names = self.0.subscribe();
        while !self.take(name) {
            // The sender is here, so there is no error.
            let _ = names.wait_for(|names| !names.contains(name)).await;
        }
        Hold { owned: self.clone(), name: name.to_owned() }
    }
}

/// A name that is owned until this is dropped, also by a task that is ended in the middle.
#[derive(Debug)]
pub(super) struct Hold {
    owned: Owned,
    name: String,
}

impl Hold {
    /// It stays owned for as long as this daemon lives: it is left to another one.
    pub(super) fn keep(mut self) {
        self.name.clear();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.owned.release(&self.name);
    }
}

/// Looks at every engine that is seen, and at intervals, for as long as the daemon lives.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut again_at = Instant::now() + LOOK_EVERY;
    loop {
        tokio::select! {
            () = shared.engines.until_news() => {}
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

/// Looks at every engine that has been seen, once, and removes what nobody owns. All at the same
/// time: one that is silent holds up no other.
pub(super) async fn once(shared: &Arc<Shared>, removes: bool) -> Unowned {
    let mut looks = JoinSet::new();
    for socket in shared.engines.all() {
        let shared = shared.clone();
        looks.spawn(async move {
            let mut found = Unowned::default();
            let looking = one(&shared, &socket, removes, &mut found);
            let _ = timeout(ENGINE_WITHIN, looking).await; // Later, then.
            found
        });
    }
    let mut all = Unowned::default();
    while let Some(found) = looks.join_next().await {
        let Unowned { removed, left } = found.unwrap_or_default();
        all.removed.extend(removed);
        all.left.extend(left);
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
        grip::end_at(shared, &grip::path(&shared.kept_dir, &seen.id)).await;
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
