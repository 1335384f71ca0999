//! Connection ids: integers that are never used twice towards one server, not even by a later daemon.
//! Pure.
//!
//! They begin small, since some servers store them in small integers. A daemon may be killed at any
//! time, so ids are recorded in blocks, ahead of their use.

/// Number of ids that are recorded at a time.
const BLOCK: u64 = 1 << 16;

/// The next block is recorded while this many ids are left, long before it is needed.
const RESERVE: u64 = 1 << 12;

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

    /// Returns the next id, and whether enough ids are recorded.
    pub(super) fn next(&mut self) -> (u64, bool) {
        let id = self.next;
        self.next += 1;
        (id, self.next + RESERVE <= self.recorded)
    }

    /// Returns the id to record, with which a later daemon has to begin.
    pub(super) fn to_record(&self) -> u64 {
        if self.next + RESERVE > self.recorded { self.next + BLOCK } else { self.recorded }
    }

    /// Confirms that this id is recorded.
    pub(super) fn recorded(&mut self, first_free: u64) {
        self.recorded = self.recorded.max(first_free);
    }
}

/// Parses an id as a server wrote it. Some servers write all numbers with a fraction.
pub(super) fn parse(id: &str) -> Option<u64> {
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
    fn whole_number_id_is_read_in_any_notation() {
        for id in ["41", "41.0", "41.00"] {
            assert_eq!(parse(id), Some(41), "{id}");
        }
        for id in ["41.5", "4.1e1", "-41", "\"41\"", "41.0e1", "null", ""] {
            assert_eq!(parse(id), None, "{id}");
        }
    }

    #[test]
    fn only_recorded_ids_are_used() {
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
