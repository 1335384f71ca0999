//! The names of containers, each with one owner at a time.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::watch;

/// The names of the containers that instances of this daemon own. A name has one owner at a time: a
/// second one waits, as for the lock of a shim.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnedNames(Arc<watch::Sender<HashSet<String>>>);

impl OwnedNames {
    /// Takes a name; returns false if it has an owner.
    pub(crate) fn take(&self, name: &str) -> bool {
        self.0.send_if_modified(|names| names.insert(name.to_owned()))
    }

    pub(crate) fn release(&self, name: &str) {
        self.0.send_if_modified(|names| names.remove(name));
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.borrow().contains(name)
    }

    /// Waits until a name is free, and takes it. Cancel-safe.
    pub(crate) async fn lease(&self, name: &str) -> NameLease {
        let mut names = self.0.subscribe();
        while !self.take(name) {
            // The sender is alive, so there is no error.
            let _ = names.wait_for(|names| !names.contains(name)).await;
        }
        NameLease { owned: self.clone(), name: name.to_owned() }
    }
}

/// Ownership of a name. Dropping it releases the name, also when its task is aborted.
#[derive(Debug)]
pub(crate) struct NameLease {
    owned: OwnedNames,
    name: String,
}

impl NameLease {
    /// Keeps the name owned as long as this daemon lives, for a container that is left to the next
    /// daemon.
    pub(crate) fn keep(mut self) {
        self.name.clear();
    }
}

impl Drop for NameLease {
    fn drop(&mut self) {
        self.owned.release(&self.name);
    }
}
