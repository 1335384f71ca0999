//! A buffer that is read into and gives whole lines, as many as there are at once.
//!
//! Nothing is copied as long as whole lines come; only the beginning of an unfinished one is
//! moved to the front. It does no I/O itself: whoever has it reads into [`Lines::room`].

use std::ops::Range;

/// What a pipe gives at once.
const CHUNK: usize = 64 * 1024;

/// A buffer that grew larger than this for a long line becomes small again.
const KEPT: usize = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// What is still wanted begins here.
    begins: usize,
    /// The last whole line ends here.
    whole_until: usize,
    /// What was read ends here.
    filled: usize,
}

impl Lines {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; CHUNK], begins: 0, whole_until: 0, filled: 0 }
    }

    /// Where to read to; never empty. Moves and grows as needed.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.begins == self.filled {
            (self.begins, self.whole_until, self.filled) = (0, 0, 0);
            if self.buffer.len() > KEPT {
                self.buffer.truncate(CHUNK);
                self.buffer.shrink_to_fit();
            }
        }
        if self.buffer.len() - self.filled < CHUNK / 4 && self.begins > 0 {
            self.buffer.copy_within(self.begins..self.filled, 0);
            self.whole_until -= self.begins;
            self.filled -= self.begins;
            self.begins = 0;
        }
        if self.buffer.len() - self.filled < CHUNK / 4 {
            // Doubling: a long line is moved a few times only.
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        &mut self.buffer[self.filled..]
    }

    /// So many bytes were read to [`Self::room`].
    pub(super) fn read(&mut self, count: usize) {
        let from = self.filled;
        self.filled += count;
        if let Some(end) = memchr::memrchr(b'\n', &self.buffer[from..self.filled]) {
            self.whole_until = from + end + 1;
        }
    }

    /// Adds these bytes as if they had been read.
    pub(super) fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room();
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            self.read(count);
            bytes = &bytes[count..];
        }
    }

    /// Ends the unfinished line, since nothing will follow.
    pub(super) fn end(&mut self) {
        if self.unfinished() > 0 {
            self.room()[0] = b'\n';
            self.read(1);
        }
    }

    /// All whole lines, with their ends.
    pub(super) fn whole(&self) -> &[u8] {
        &self.buffer[self.begins..self.whole_until]
    }

    /// The first so many bytes of [`Self::whole`] are done with.
    pub(super) fn consume(&mut self, count: usize) {
        self.begins += count;
        debug_assert!(self.begins <= self.whole_until, "only whole lines are consumed");
    }

    /// How many bytes the unfinished line has so far.
    pub(super) fn unfinished(&self) -> usize {
        self.filled - self.whole_until.max(self.begins)
    }

    /// Takes the unfinished line away, and answers its first bytes.
    pub(super) fn drop_unfinished(&mut self, keep: usize) -> Vec<u8> {
        let from = self.whole_until.max(self.begins);
        let head = self.buffer[from..self.filled.min(from + keep)].to_vec();
        self.filled = from;
        self.whole_until = from;
        head
    }

    /// Takes away everything up to the end of a line; `false` if that has not come.
    pub(super) fn drop_rest_of_line(&mut self) -> bool {
        let end = memchr::memchr(b'\n', &self.buffer[self.begins..self.filled]);
        self.begins = end.map_or(self.filled, |end| self.begins + end + 1);
        self.whole_until = self.whole_until.max(self.begins);
        end.is_some()
    }

    /// How much is held.
    pub(super) fn held(&self) -> usize {
        self.filled - self.begins
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.begins = self.filled;
        self.whole_until = self.filled;
    }
}

/// Where each line of a text of whole lines stands, its end included.
pub(super) fn each(whole: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut begins = 0;
    memchr::memchr_iter(b'\n', whole).map(move |end| {
        let line = begins..end + 1;
        begins = end + 1;
        line
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_given_once_they_are_whole() {
        let mut lines = Lines::new();
        lines.put(b"one\ntw");
        assert_eq!(lines.whole(), b"one\n");
        assert_eq!(lines.unfinished(), 2);
        lines.consume(4);
        assert_eq!(lines.whole(), b"");
        lines.put(b"o\n\nthree");
        assert_eq!(lines.whole(), b"two\n\n");
        assert_eq!(each(lines.whole()).collect::<Vec<_>>(), [0..4, 4..5]);
        lines.consume(5);
        lines.end();
        assert_eq!(lines.whole(), b"three\n");
    }

    #[test]
    fn a_long_line_makes_it_large_for_a_while() {
        let mut lines = Lines::new();
        let mut long = vec![b'x'; 5 * 1024 * 1024];
        long.push(b'\n');
        lines.put(&long);
        assert_eq!(lines.whole(), long);
        lines.consume(long.len());
        assert!(lines.room().len() <= CHUNK);
    }

    #[test]
    fn a_line_that_is_too_long_can_be_passed_over() {
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
        fn however_it_comes_the_same_lines_go(
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
                    // Not always at once, and not always all.
                    let first = each(lines.whole()).next().map_or(0, |line| line.end);
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
