//! When output is read: in a flood many lines at once, not each by itself.
//!
//! A server that writes line by line wakes whoever waits at its pipe with each line, and then both
//! do little else than to wake and to fall asleep. So a pipe that has just been read and is hardly
//! filled is left alone for a moment, in which lines gather. A line that comes alone is read at
//! once, and a pipe that is full is never left alone: nobody waits longer to write.

use std::time::{Duration, Instant};

/// Output that comes sooner than this after the last is a flood.
const FLOOD: Duration = Duration::from_millis(1);

/// How long lines gather.
const REST: Duration = Duration::from_millis(1);

/// A pipe with so much in it would be full before the rest is over.
const MUCH: usize = 32 * 1024;

/// When what was read, and whether it is time to read more.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    read_at: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Pace {
    /// So much has been read at once.
    pub(crate) fn on_read(&mut self, count: usize, now: Instant) {
        let last = self.read_at.replace(now);
        let is_flood = last.is_some_and(|last| now.saturating_duration_since(last) < FLOOD + REST);
        self.rests_until = (is_flood && count < MUCH).then(|| now + REST);
    }

    /// Until when nothing is to be read.
    pub(crate) fn rests_until(&self) -> Option<Instant> {
        self.rests_until
    }

    /// The time is now.
    pub(crate) fn on_time(&mut self, now: Instant) {
        self.rests_until = self.rests_until.filter(|until| now < *until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads of so many bytes, each so many microseconds after the one before, and whether the
    /// pipe is left alone after each.
    fn play(reads: &[(u64, usize, bool)]) {
        let mut now = crate::clock::now();
        let mut pace = Pace::default();
        for (index, &(after, count, rests)) in reads.iter().enumerate() {
            now += Duration::from_micros(after);
            pace.on_time(now);
            pace.on_read(count, now);
            assert_eq!(pace.rests_until().is_some(), rests, "read {index} of {reads:?}");
        }
    }

    #[test]
    fn lines_that_come_alone_are_read_at_once() {
        play(&[(0, 20, false), (2_000, 20, false), (50_000, 20, false), (2_001, 20, false)]);
    }

    #[test]
    fn lines_that_come_in_a_flood_gather() {
        play(&[(0, 20, false), (5, 20, true), (1_003, 9_000, true), (1_900, 9_000, true)]);
    }

    #[test]
    fn a_pipe_that_fills_up_is_never_left_alone() {
        play(&[(0, 65_536, false), (30, 65_536, false), (30, MUCH, false), (30, 100, true)]);
    }

    #[test]
    fn a_rest_is_over_when_its_time_is() {
        let now = crate::clock::now();
        let mut pace = Pace::default();
        pace.on_read(1, now);
        pace.on_read(1, now);
        pace.on_time(now + REST / 2);
        assert_eq!(pace.rests_until(), Some(now + REST));
        pace.on_time(now + REST);
        assert_eq!(pace.rests_until(), None);
    }
}
