//! A read buffer that returns all complete lines at once.
//!
//! Complete lines are not copied; only the start of an unfinished line is moved to the front. The
//! buffer does no I/O: its owner reads into [`Lines::room`].

use std::ops::Range;

/// Size of one read; the capacity of a pipe.
const CHUNK: usize = 64 * 1024;

/// Maximum size of an empty buffer; a larger one is shrunk.
const MAX_IDLE_BUFFER: usize = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// Start of the data that is not consumed.
    start: usize,
    /// End of the last complete line.
    complete_end: usize,
    /// End of the data.
    filled: usize,
}

impl Lines {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; CHUNK], start: 0, complete_end: 0, filled: 0 }
    }

    /// Returns space to read into, which is never empty. Moves data and grows as needed.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.start == self.filled {
            (self.start, self.complete_end, self.filled) = (0, 0, 0);
            if self.buffer.len() > MAX_IDLE_BUFFER {
                self.buffer.truncate(CHUNK);
                self.buffer.shrink_to_fit();
            }
        }
        if self.buffer.len() - self.filled < CHUNK / 4 && self.start > 0 {
            self.buffer.copy_within(self.start..self.filled, 0);
            self.complete_end -= self.start;
            self.filled -= self.start;
            self.start = 0;
        }
        if self.buffer.len() - self.filled < CHUNK / 4 {
            // Doubling limits how often a long line is copied.
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        &mut self.buffer[self.filled..]
    }

    /// Records that `count` bytes were read into [`Self::room`].
    pub(super) fn read(&mut self, count: usize) {
        let from = self.filled;
        self.filled += count;
        if let Some(end) = memchr::memrchr(b'\n', &self.buffer[from..self.filled]) {
            self.complete_end = from + end + 1;
        }
    }

    /// Appends bytes as if they had been read.
    pub(super) fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room();
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            self.read(count);
            bytes = &bytes[count..];
        }
    }

    /// Terminates the unfinished line at the end of input.
    pub(super) fn end(&mut self) {
        if self.unfinished() > 0 {
            self.room()[0] = b'\n';
            self.read(1);
        }
    }

    /// Returns all complete lines, with their newlines.
    pub(super) fn whole(&self) -> &[u8] {
        &self.buffer[self.start..self.complete_end]
    }

    /// Removes the first `count` bytes of [`Self::whole`].
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.complete_end, "only whole lines are consumed");
    }

    /// Returns the current length of the unfinished line.
    pub(super) fn unfinished(&self) -> usize {
        self.filled - self.complete_end.max(self.start)
    }

    /// Removes the unfinished line, and returns its first `keep` bytes.
    pub(super) fn drop_unfinished(&mut self, keep: usize) -> Vec<u8> {
        let from = self.complete_end.max(self.start);
        let head = self.buffer[from..self.filled.min(from + keep)].to_vec();
        self.filled = from;
        self.complete_end = from;
        head
    }

    /// Removes data up to the end of a line. Returns false if the end is not there yet.
    pub(super) fn drop_rest_of_line(&mut self) -> bool {
        let end = memchr::memchr(b'\n', &self.buffer[self.start..self.filled]);
        self.start = end.map_or(self.filled, |end| self.start + end + 1);
        self.complete_end = self.complete_end.max(self.start);
        end.is_some()
    }

    /// Returns the number of buffered bytes.
    pub(super) fn held(&self) -> usize {
        self.filled - self.start
    }

    /// Removes all data.
    pub(super) fn clear(&mut self) {
        self.start = self.filled;
        self.complete_end = self.filled;
    }
}

/// Returns the range of each line in a text of complete lines, including its newline.
pub(super) fn line_ranges(whole: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    memchr::memchr_iter(b'\n', whole).map(move |end| {
        let line = start..end + 1;
        start = end + 1;
        line
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn complete_lines_are_returned() {
        let mut lines = Lines::new();
        lines.put(b"one\ntw");
        assert_eq!(lines.whole(), b"one\n");
        assert_eq!(lines.unfinished(), 2);
        lines.consume(4);
        assert_eq!(lines.whole(), b"");
        lines.put(b"o\n\nthree");
        assert_eq!(lines.whole(), b"two\n\n");
        assert_eq!(line_ranges(lines.whole()).collect::<Vec<_>>(), [0..4, 4..5]);
        lines.consume(5);
        lines.end();
        assert_eq!(lines.whole(), b"three\n");
    }

    #[test]
    fn buffer_shrinks_after_a_long_line() {
        let mut lines = Lines::new();
        let mut long = vec![b'x'; 5 * 1024 * 1024];
        long.push(b'\n');
        lines.put(&long);
        assert_eq!(lines.whole(), long);
        lines.consume(long.len());
        assert!(lines.room().len() <= CHUNK);
    }

    #[test]
    fn oversized_line_can_be_skipped() {
        let mut lines = Lines::new();
        lines.put(b"first\nlonglonglong");
        assert_eq!(lines.drop_unfinished(4), b"long");
        assert_eq!(lines.whole(), b"first\n");
        lines.consume(6);
        lines.put(b"still long");
        assert!(!lines.drop_rest_of_line());
        lines.put(b"end\nnext\nun");
        assert!(lines.drop_rest_of_line());
        assert_eq!(lines.whole(), b"next\n");
        assert_eq!(lines.unfinished(), 2);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_read_sizes(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..3000),
            cuts in proptest::collection::vec(1usize..400, 1..40),
        ) {
            let mut lines = Lines::new();
            let mut seen = Vec::new();
            let mut rest = &text[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                lines.put(now);
                rest = later;
                if cut % 3 > 0 {
                    // Consume lines only sometimes, and not always all of them.
                    let first = line_ranges(lines.whole()).next().map_or(0, |line| line.end);
                    let count = if cut % 3 == 1 { lines.whole().len() } else { first };
                    seen.extend_from_slice(&lines.whole()[..count]);
                    lines.consume(count);
                }
            }
            seen.extend_from_slice(lines.whole());
            let whole = memchr::memrchr(b'\n', &text).map_or(0, |end| end + 1);
            prop_assert_eq!(seen, &text[..whole]);
        }
    }
}
