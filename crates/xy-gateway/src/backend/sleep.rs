//! Instances that sleep, and the demand for them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::Notify;
use xy_config::settings::ServerSettings;
use xy_supervisor::instance::Holder;
use xy_supervisor::launch::Progress;

use super::Backend;

/// The sleeping instances of a server.
#[derive(Default)]
pub(super) struct Sleep {
    /// The instances that have to be woken, as last reported.
    asleep: RefCell<HashSet<Holder>>,
    /// Number of reports so far.
    reports: Cell<u64>,
    /// The instances that are being woken.
    waking: RefCell<HashSet<Holder>>,
    /// The shared instance is needed, and was not available since.
    is_needed: Cell<bool>,
    /// Signals a change of the idle-stop rules.
    rules: Notify,
    /// The start progress of each instance.
    progress: RefCell<HashMap<Holder, ProgressReporter>>,
    /// The failures of each instance.
    failures: RefCell<HashMap<Holder, FailureReporter>>,
}

impl Sleep {
    /// Returns the number of instances that sleep or are being woken.
    pub(super) fn count(&self) -> usize {
        self.asleep.borrow().len() + self.waking.borrow().len()
    }
}

/// Returns the progress of an instance's preparations, while they last.
pub(crate) type ProgressReporter = Box<dyn Fn() -> Option<Progress>>;

/// Returns why an instance is failing, if it is: how it ended, and the last lines of its stderr.
pub(crate) type FailureReporter = Box<dyn Fn() -> Option<String>>;

impl Backend {
    /// Sets which instances sleep.
    pub(crate) fn set_asleep(&self, asleep: HashSet<Holder>) {
        *self.sleep.asleep.borrow_mut() = asleep;
        self.sleep.reports.set(self.sleep.reports.get() + 1);
    }

    /// Sets the progress reporters of the instances.
    pub(crate) fn set_progress_reporters(&self, progress: HashMap<Holder, ProgressReporter>) {
        *self.sleep.progress.borrow_mut() = progress;
    }

    /// Returns the progress of an instance's preparations, while they last.
    pub(super) fn progress(&self, holder: Holder) -> Option<Progress> {
        self.sleep.progress.borrow().get(&holder).and_then(|progress| progress())
    }

    /// Sets the failure reporters of the instances.
    pub(crate) fn set_failure_reporters(&self, failures: HashMap<Holder, FailureReporter>) {
        *self.sleep.failures.borrow_mut() = failures;
    }

    /// Returns why an instance is failing, if it is. For a client's own instance, this includes the
    /// last lines of its stderr. Those of a shared instance may be about other clients.
    pub(crate) fn failure(&self, holder: Holder) -> Option<String> {
        let failure = self.sleep.failures.borrow().get(&holder).and_then(|failure| failure())?;
        match holder {
            Holder::Shared | Holder::Era(_) => failure.lines().next().map(str::to_owned),
            Holder::Client(_) => Some(failure),
        }
    }

    /// Returns the number of reports of sleeping instances.
    pub(crate) fn report_count(&self) -> u64 {
        self.sleep.reports.get()
    }

    /// Returns true if an instance sleeps, as last reported.
    pub(crate) fn is_asleep(&self, holder: Holder) -> bool {
        self.sleep.asleep.borrow().contains(&holder)
    }

    /// Returns all sleeping instances.
    pub(crate) fn all_asleep(&self) -> Vec<Holder> {
        self.sleep.asleep.borrow().iter().copied().collect()
    }

    /// Records that the shared instance is needed, until it is available.
    pub(crate) fn need_shared(&self) {
        self.sleep.is_needed.set(true);
    }

    /// Returns true if the shared instance was needed since it was last available.
    pub(crate) fn was_needed(&self) -> bool {
        self.sleep.is_needed.get()
    }

    /// Records that an instance accepts requests.
    pub(crate) fn mark_available(&self, holder: Holder) {
        if holder == Holder::Shared {
            self.sleep.is_needed.set(false);
        }
    }

    /// Records that an instance is being woken. Returns false if it was already.
    pub(crate) fn begin_wake(&self, holder: Holder) -> bool {
        self.sleep.waking.borrow_mut().insert(holder)
    }

    /// Returns the holders whose instances are being woken.
    pub(crate) fn holders_to_come(&self) -> Vec<Holder> {
        self.sleep.waking.borrow().iter().copied().collect()
    }

    /// Records that waking an instance has ended, or is not needed any more.
    pub(crate) fn end_wake(&self, holder: Holder, comes: bool) {
        self.sleep.waking.borrow_mut().remove(&holder);
        if !comes && holder == Holder::Shared {
            self.sleep.is_needed.set(false);
        }
    }

    /// Waits for a change of the idle-stop rules after this call.
    pub(crate) fn rules_change(&self) -> impl Future<Output = ()> + use<'_> {
        let mut changed = Box::pin(self.sleep.rules.notified());
        changed.as_mut().enable();
        changed
    }

    /// Signals a change of the idle-stop rules, if the settings differ from `before`.
    pub(super) fn rules_may_have_changed(&self, before: &Arc<ServerSettings>) {
        let rules = self.settings.borrow().rules.clone();
        if rules == before.rules {
            return;
        }
        for upstream in self.upstreams.borrow().values() {
            upstream.set_records_call_times(self.may_sleep(upstream.key().holder));
        }
        self.sleep.rules.notify_waiters();
    }
}
