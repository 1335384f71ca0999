//! How much room the events of a session take, and those of all sessions together.

use std::cell::Cell;
use std::rc::Rc;

use super::counts::Stored;
use super::limits::{
    STORED_BYTES_ALL_MAX, STORED_BYTES_MAX, STORED_EVENTS_ALL_MAX, STORED_EVENTS_MAX,
};

/// What is taken, and what may be.
#[derive(Debug)]
pub(super) struct Room {
    taken: Cell<Stored>,
    max: Stored,
    /// What this is part of.
    whole: Option<Rc<Room>>,
}

impl Room {
    /// For all sessions.
    pub(super) fn for_all() -> Rc<Self> {
        let max = Stored { events: STORED_EVENTS_ALL_MAX, bytes: STORED_BYTES_ALL_MAX };
        Rc::new(Self { taken: Cell::default(), max, whole: None })
    }

    /// For one of them.
    pub(super) fn for_session(all: &Rc<Self>) -> Rc<Self> {
        let max = Stored { events: STORED_EVENTS_MAX, bytes: STORED_BYTES_MAX };
        Rc::new(Self { taken: Cell::default(), max, whole: Some(Rc::clone(all)) })
    }

    /// What is taken now.
    pub(super) fn taken(&self) -> Stored {
        self.taken.get()
    }

    /// Returns true if more is taken than may be, here or in all.
    pub(super) fn is_over(&self) -> bool {
        self.is_over_with(0)
    }

    /// Returns true if so many bytes more would be more than may be taken, here or in all.
    pub(super) fn is_over_with(&self, bytes: usize) -> bool {
        let taken = self.taken.get();
        taken.events > self.max.events
            || taken.bytes.saturating_add(bytes) > self.max.bytes
            || self.whole.as_ref().is_some_and(|whole| whole.is_over_with(bytes))
    }

    /// What took `before` takes `after` now.
    pub(super) fn changes(&self, before: Stored, after: Stored) {
        if before == after {
            return;
        }
        let taken = self.taken.get();
        self.taken.set(Stored {
            events: taken.events + after.events - before.events,
            bytes: taken.bytes + after.bytes - before.bytes,
        });
        if let Some(whole) = &self.whole {
            whole.changes(before, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_over_by_itself_or_with_all_others() {
        let all = Room::for_all();
        let sessions: Vec<_> = (0..=STORED_BYTES_ALL_MAX / STORED_BYTES_MAX)
            .map(|_| Room::for_session(&all))
            .collect();
        let much = Stored { events: 1, bytes: STORED_BYTES_MAX };
        for session in &sessions[1..] {
            session.changes(Stored::default(), much);
            assert!(!session.is_over());
        }
        let little = Stored { events: 1, bytes: 1 };
        sessions[0].changes(Stored::default(), little);
        assert!(sessions[0].is_over());
        sessions[1].changes(much, Stored::default());
        assert!(!sessions[0].is_over());
        sessions[0].changes(little, Stored { events: 1, bytes: STORED_BYTES_MAX + 1 });
        assert!(sessions[0].is_over());
    }
}
