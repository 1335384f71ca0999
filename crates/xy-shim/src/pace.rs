//! Decides when output is read: in a flood, many lines at once.
//!
//! A server that writes line by line would wake the shim with each line, and both would spend their
//! time on wake-ups. So a pipe that has just been read and is hardly filled is left alone for a
//! moment, in which lines gather. That moment is a millisecond for a pipe of 64 KiB, and shorter
//! for a smaller one. A single line is read at once, and so is a pipe that was half full.

use std::time::{Duration, Instant};

/// Output read within this time after the last read is a flood.
const FLOOD_WINDOW: Duration = Duration::from_millis(1);

/// Pause in which lines gather in a pipe of the usual size.
const PAUSE: Duration = Duration::from_millis(1);
const USUAL_PIPE_BYTES: u32 = 64 * 1024;

/// The read schedule of one pipe.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Capacity of the pipe, in bytes.
    capacity: u32,
    read_at: Option<Instant>,
    paused_until: Option<Instant>,
}

impl Pace {
    /// Creates the schedule of a pipe with this capacity.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = u32::try_from(capacity).unwrap_or(USUAL_PIPE_BYTES).min(USUAL_PIPE_BYTES);
        Self { capacity, read_at: None, paused_until: None }
    }

    /// Records that `count` bytes were read at once.
    pub(crate) fn on_read(&mut self, count: usize, now: Instant) {
        let pause = PAUSE * self.capacity / USUAL_PIPE_BYTES;
        let last = self.read_at.replace(now);
        let is_flood =
            last.is_some_and(|last| now.saturating_duration_since(last) < FLOOD_WINDOW + pause);
        let is_little = count < self.capacity as usize / 2;
        self.paused_until = (is_flood && is_little).then(|| now + pause);
    }

    /// Returns when the pause ends, if the pipe is paused.
    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Ends the pause if its time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.paused_until = self.paused_until.filter(|until| now < *until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays reads of (microseconds since the last read, bytes, expected pause in microseconds).
    fn play(capacity: usize, reads: &[(u64, usize, u64)]) {
        let mut now = crate::clock::now();
        let mut pace = Pace::new(capacity);
        for (index, &(after, count, pause_micros)) in reads.iter().enumerate() {
            now += Duration::from_micros(after);
            pace.expire(now);
            pace.on_read(count, now);
            let pause = pace.paused_until().map_or(Duration::ZERO, |until| until - now);
            assert_eq!(pause, Duration::from_micros(pause_micros), "read {index} of {reads:?}");
        }
    }

    #[test]
    fn single_lines_are_read_at_once() {
        play(65_536, &[(0, 20, 0), (2_000, 20, 0), (50_000, 20, 0), (2_001, 20, 0)]);
    }

    #[test]
    fn flood_of_lines_gathers() {
        play(65_536, &[(0, 20, 0), (5, 20, 1_000), (1_003, 9_000, 1_000), (1_900, 9_000, 1_000)]);
    }

    #[test]
    fn half_full_pipe_is_not_paused() {
        play(65_536, &[(0, 65_536, 0), (30, 65_536, 0), (30, 32_768, 0), (30, 100, 1_000)]);
    }

    #[test]
    fn smaller_pipe_is_paused_for_less_time() {
        play(8_192, &[(0, 20, 0), (5, 20, 125), (130, 8_192, 0), (5, 4_095, 125), (130, 4_096, 0)]);
        play(1 << 20, &[(0, 20, 0), (5, 40_000, 0), (5, 20_000, 1_000)]);
        play(0, &[(0, 20, 0), (5, 20, 0)]);
    }

    #[test]
    fn pause_expires() {
        let now = crate::clock::now();
        let mut pace = Pace::new(65_536);
        pace.on_read(1, now);
        pace.on_read(1, now);
        pace.expire(now + PAUSE / 2);
        assert_eq!(pace.paused_until(), Some(now + PAUSE));
        pace.expire(now + PAUSE);
        assert_eq!(pace.paused_until(), None);
    }
}
