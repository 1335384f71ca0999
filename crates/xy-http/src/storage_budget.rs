//! The limits on stored events, per session and for all sessions.

use std::cell::Cell;
use std::rc::Rc;

use crate::counters::StorageUse;
use crate::limits::{
    STORED_BYTES_ALL_MAX, STORED_BYTES_MAX, STORED_EVENTS_ALL_MAX, STORED_EVENTS_MAX,
};

/// A limit on the number and size of stored events, and the current use.
#[derive(Debug)]
pub(super) struct StorageBudget {
    used: Cell<StorageUse>,
    max: StorageUse,
    /// The budget that this one is part of.
    parent: Option<Rc<StorageBudget>>,
}

impl StorageBudget {
    /// Creates the budget of all sessions.
    pub(super) fn for_all() -> Rc<Self> {
        let max = StorageUse { events: STORED_EVENTS_ALL_MAX, bytes: STORED_BYTES_ALL_MAX };
        Rc::new(Self { used: Cell::default(), max, parent: None })
    }

    /// Creates the budget of one session.
    pub(super) fn for_session(all: &Rc<Self>) -> Rc<Self> {
        let max = StorageUse { events: STORED_EVENTS_MAX, bytes: STORED_BYTES_MAX };
        Rc::new(Self { used: Cell::default(), max, parent: Some(Rc::clone(all)) })
    }

    /// Returns the current use.
    pub(super) fn used(&self) -> StorageUse {
        self.used.get()
    }

    /// Returns true if the use exceeds the limit of this budget or of its parent.
    pub(super) fn is_exceeded(&self) -> bool {
        self.would_exceed(0)
    }

    /// Returns true if `bytes` more would exceed the limit of this budget or of its parent.
    pub(super) fn would_exceed(&self, bytes: usize) -> bool {
        let used = self.used.get();
        used.events > self.max.events
            || used.bytes.saturating_add(bytes) > self.max.bytes
            || self.parent.as_ref().is_some_and(|parent| parent.would_exceed(bytes))
    }

    /// Replaces `before` by `after` in the current use.
    pub(super) fn update(&self, before: StorageUse, after: StorageUse) {
        if before == after {
            return;
        }
        let used = self.used.get();
        self.used.set(StorageUse {
            events: used.events + after.events - before.events,
            bytes: used.bytes + after.bytes - before.bytes,
        });
        if let Some(parent) = &self.parent {
            parent.update(before, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_exceeds_its_own_or_the_total_budget() {
        let all = StorageBudget::for_all();
        let sessions: Vec<_> = (0..=STORED_BYTES_ALL_MAX / STORED_BYTES_MAX)
            .map(|_| StorageBudget::for_session(&all))
            .collect();
        let much = StorageUse { events: 1, bytes: STORED_BYTES_MAX };
        for session in &sessions[1..] {
            session.update(StorageUse::default(), much);
            assert!(!session.is_exceeded());
        }
        let little = StorageUse { events: 1, bytes: 1 };
        sessions[0].update(StorageUse::default(), little);
        assert!(sessions[0].is_exceeded());
        sessions[1].update(much, StorageUse::default());
        assert!(!sessions[0].is_exceeded());
        sessions[0].update(little, StorageUse { events: 1, bytes: STORED_BYTES_MAX + 1 });
        assert!(sessions[0].is_exceeded());
    }
}
