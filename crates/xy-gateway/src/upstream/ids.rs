//! Ids towards one server: integers that are never used twice, not even by a later daemon.
//!
//! They begin small, since some servers keep them in small numbers. A daemon that is killed
//! leaves word of how far it may have come, so they are recorded in blocks, ahead. Pure.

/// How many ids are recorded at a time.
const BLOCK: u64 = 1 << 16;

/// A new block is recorded when so few of the last are left, so that the record is there
/// long before it is needed.
const AHEAD: u64 = 1 << 12;

#[derive(Debug)]
pub(super) struct Ids {
    next: u64,
    /// Ids below this may have been used, as far as a later daemon knows.
    recorded: u64,
}

impl Ids {
    pub(super) fn from(first: u64) -> Self {
        Self { next: first, recorded: first }
    }

    /// The next id, and whether enough are recorded.
    pub(super) fn next(&mut self) -> (u64, bool) {
        let id = self.next;
        self.next += 1;
        (id, self.next + AHEAD <= self.recorded)
    }

    /// What is to be written down: the id that a later daemon has to begin with.
    pub(super) fn to_record(&self) -> u64 {
        if self.next + AHEAD > self.recorded { self.next + BLOCK } else { self.recorded }
    }

    /// That is written down.
    pub(super) fn recorded(&mut self, first_free: u64) {
        self.recorded = self.recorded.max(first_free);
    }
}

/// Which of ours an id is, as a server wrote it: for some, all numbers have fractions.
pub(super) fn ours(id: &str) -> Option<u64> {
    let whole = match id.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|digit| digit == b'0') => whole,
        _ => id,
    };
    whole.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_is_ours_however_it_is_written() {
        for id in ["41", "41.0", "41.00"] {
            assert_eq!(ours(id), Some(41), "{id}");
        }
        for id in ["41.5", "4.1e1", "-41", "\"41\"", "41.0e1", "null", ""] {
            assert_eq!(ours(id), None, "{id}");
        }
    }

    #[test]
    fn none_is_used_that_was_not_recorded_before() {
        let mut ids = Ids::from(5);
        let mut noted = ids.to_record();
        ids.recorded(noted);
        for expected in 5..5 + 3 * BLOCK {
            let (id, is_recorded) = ids.next();
            assert_eq!(id, expected);
            assert!(id < noted, "{id} {noted}");
            if !is_recorded {
                noted = ids.to_record();
                ids.recorded(noted);
            }
        }
    }
}
