//! When output is read: in a flood many lines at once, not each by itself.
//!
//! A server that writes line by line wakes whoever waits at its pipe with each line, and then both
//! do little else than to wake and to fall asleep. So a pipe that has just been read and is hardly
//! filled is left alone for a moment, in which lines gather: a millisecond, in which 64 KiB fit into
//! a pipe, and less where a pipe holds less. A line that comes alone is read at once, and a pipe that
//! was half full is not left alone.

use std::time::{Duration, Instant};

/// Output that comes sooner than this after it could have been read is a flood.
const FLOOD: Duration = Duration::from_millis(1);

/// How long lines gather in a pipe of the usual size.
const REST: Duration = Duration::from_millis(1);
const USUAL: u32 = 64 * 1024;

/// When a pipe is read.
#[derive(Debug)]
pub(crate) struct Pace {
    /// So much fits into it.
    bytes: u32,
    read_at: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Pace {
    /// Of a pipe that holds so much.
    pub(crate) fn new(bytes: usize) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(USUAL).min(USUAL);
        Self { bytes, read_at: None, rests_until: None }
    }

    /// So much has been read at once.
    pub(crate) fn on_read(&mut self, count: usize, now: Instant) {
        let rest = REST * self.bytes / USUAL;
        let last = self.read_at.replace(now);
        let is_flood = last.is_some_and(|last| now.saturating_duration_since(last) < FLOOD + rest);
        let is_little = count < self.bytes as usize / 2;
        self.rests_until = (is_flood && is_little).then(|| now + rest);
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

    /// Reads of so many bytes, each so many microseconds after the one before, and for how many
    /// microseconds the pipe is left alone after each.
    fn play(bytes: usize, reads: &[(u64, usize, u64)]) {
        let mut now = crate::clock::now();
        let mut pace = Pace::new(bytes);
        for (index, &(after, count, rests)) in reads.iter().enumerate() {
            now += Duration::from_micros(after);
            pace.on_time(now);
            pace.on_read(count, now);
            let rest = pace.rests_until().map_or(Duration::ZERO, |until| until - now);
            assert_eq!(rest, Duration::from_micros(rests), "read {index} of {reads:?}");
        }
    }

    #[test]
    fn lines_that_come_alone_are_read_at_once() {
        play(65_536, &[(0, 20, 0), (2_000, 20, 0), (50_000, 20, 0), (2_001, 20, 0)]);
    }

    #[test]
    fn lines_that_come_in_a_flood_gather() {
        play(65_536, &[(0, 20, 0), (5, 20, 1_000), (1_003, 9_000, 1_000), (1_900, 9_000, 1_000)]);
    }

    #[test]
    fn a_pipe_that_was_half_full_is_not_left_alone() {
        play(65_536, &[(0, 65_536, 0), (30, 65_536, 0), (30, 32_768, 0), (30, 100, 1_000)]);
    }

    #[test]
    fn the_less_a_pipe_holds_the_sooner_it_is_read() {
        play(8_192, &[(0, 20, 0), (5, 20, 125), (130, 8_192, 0), (5, 4_095, 125), (130, 4_096, 0)]);
        play(1 << 20, &[(0, 20, 0), (5, 40_000, 0), (5, 20_000, 1_000)]);
        play(0, &[(0, 20, 0), (5, 20, 0)]);
    }

    #[test]
    fn a_rest_is_over_when_its_time_is() {
        let now = crate::clock::now();
        let mut pace = Pace::new(65_536);
        pace.on_read(1, now);
        pace.on_read(1, now);
        pace.on_time(now + REST / 2);
        assert_eq!(pace.rests_until(), Some(now + REST));
        pace.on_time(now + REST);
        assert_eq!(pace.rests_until(), None);
    }
}
