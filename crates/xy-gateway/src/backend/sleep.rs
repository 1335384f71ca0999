//! Which instances of a server sleep, and who needs them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::Notify;
use xy_config::settings::ServerSettings;
use xy_supervisor::instance::Holder;
use xy_supervisor::launch::Progress;

use super::Backend;

/// What is known of that.
#[derive(Default)]
pub(super) struct Sleep {
    /// Those that have to be woken, as far as we have heard.
    away: RefCell<HashSet<Holder>>,
    /// How often that was looked at.
    looks: Cell<u64>,
    /// Those that are being made to come.
    held: RefCell<HashSet<Holder>>,
    /// Somebody needs the one that all share, which has not come since.
    is_needed: Cell<bool>,
    /// The rules it lives by have changed.
    rules: Notify,
    /// How far each is with what it needs before it can begin.
    progress: RefCell<HashMap<Holder, Progressing>>,
    /// Why each is failing, if it is.
    troubles: RefCell<HashMap<Holder, Trouble>>,
}

impl Sleep {
    /// How many instances sleep, or are being made to come.
    pub(super) fn count(&self) -> usize {
        self.away.borrow().len() + self.held.borrow().len()
    }
}

/// Says how far an instance is with what it needs before it can begin, while that goes on.
pub(crate) type Progressing = Box<dyn Fn() -> Option<Progress>>;

/// Explains why an instance is failing, if it is: how it ended, and the last lines of its stderr.
pub(crate) type Trouble = Box<dyn Fn() -> Option<String>>;

impl Backend {
    /// These of its instances sleep.
    pub(crate) fn set_away(&self, away: HashSet<Holder>) {
        *self.sleep.away.borrow_mut() = away;
        self.sleep.looks.set(self.sleep.looks.get() + 1);
    }

    /// These say how far its instances are with what they need.
    pub(crate) fn set_progress(&self, progress: HashMap<Holder, Progressing>) {
        *self.sleep.progress.borrow_mut() = progress;
    }

    /// How far an instance is with what it needs before it can begin, while that goes on.
    pub(super) fn progress(&self, holder: Holder) -> Option<Progress> {
        self.sleep.progress.borrow().get(&holder).and_then(|progress| progress())
    }

    /// Sets what explains why its instances are failing.
    pub(crate) fn set_troubles(&self, troubles: HashMap<Holder, Trouble>) {
        *self.sleep.troubles.borrow_mut() = troubles;
    }

    /// Returns why an instance is failing, if it is: of one client's own instance with the last
    /// lines of its stderr. Those of a shared one may be about other clients.
    pub(crate) fn trouble(&self, holder: Holder) -> Option<String> {
        let trouble = self.sleep.troubles.borrow().get(&holder).and_then(|trouble| trouble())?;
        match holder {
            Holder::Shared | Holder::Era(_) => trouble.lines().next().map(str::to_owned),
            Holder::Client(_) => Some(trouble),
        }
    }

    /// How often it was looked at which of its instances sleep.
    pub(crate) fn looks(&self) -> u64 {
        self.sleep.looks.get()
    }

    /// Whether an instance sleeps, as far as we have heard.
    pub(crate) fn is_away(&self, holder: Holder) -> bool {
        self.sleep.away.borrow().contains(&holder)
    }

    /// All that do.
    pub(crate) fn all_away(&self) -> Vec<Holder> {
        self.sleep.away.borrow().iter().copied().collect()
    }

    /// Somebody needs the instance that all share, from now on until it comes.
    pub(crate) fn need(&self) {
        self.sleep.is_needed.set(true);
    }

    /// Whether somebody has, since it was last there.
    pub(crate) fn was_needed(&self) -> bool {
        self.sleep.is_needed.get()
    }

    /// An instance can be asked.
    pub(crate) fn has_come(&self, holder: Holder) {
        if holder == Holder::Shared {
            self.sleep.is_needed.set(false);
        }
    }

    /// An instance is to come; whether that is not being done yet.
    pub(crate) fn begins_to_hold(&self, holder: Holder) -> bool {
        self.sleep.held.borrow_mut().insert(holder)
    }

    /// For whom instances are about to come.
    pub(crate) fn holders_to_come(&self) -> Vec<Holder> {
        self.sleep.held.borrow().iter().copied().collect()
    }

    /// It comes, or nobody waits for it any more.
    pub(crate) fn has_held(&self, holder: Holder, comes: bool) {
        self.sleep.held.borrow_mut().remove(&holder);
        if !comes && holder == Holder::Shared {
            self.sleep.is_needed.set(false);
        }
    }

    /// Resolves when the rules it lives by may have changed since this was asked.
    pub(crate) fn rules_change(&self) -> impl Future<Output = ()> + use<'_> {
        let mut changed = Box::pin(self.sleep.rules.notified());
        changed.as_mut().enable();
        changed
    }

    /// It is configured otherwise than before.
    pub(super) fn rules_may_have_changed(&self, before: &Arc<ServerSettings>) {
        let rules = self.settings.borrow().rules.clone();
        if rules == before.rules {
            return;
        }
        for upstream in self.upstreams.borrow().values() {
            upstream.set_dated(self.may_sleep(upstream.key().holder));
        }
        self.sleep.rules.notify_waiters();
    }
}
