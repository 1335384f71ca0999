//! Splits a stream of bytes into records at its newlines.
//!
//! The stream is bytes, not text: NUL, CR and invalid UTF-8 are data. A line longer than
//! [`MAX_LINE`] becomes several records, so a stream without newlines needs no more memory than
//! that. Lines that lie whole within a chunk are not copied.

use crate::wire::{MAX_LINE, flags};

/// Buffer capacity that an idle stream retains for the start of its next line.
const RETAINED_CAPACITY: usize = 1024;

/// The unfinished line of one stream.
#[derive(Debug, Default)]
pub struct Splitter {
    rest: Vec<u8>,
    /// Set if pieces of this line have been emitted already.
    continued: bool,
}

impl Splitter {
    /// Continues a partial line that another splitter left. A part that is too long is emitted in
    /// pieces.
    pub fn resume(partial_line: &[u8], continued: bool) -> Self {
        Self { rest: partial_line.to_vec(), continued }
    }

    /// Returns the unfinished line, and whether pieces of it have been emitted already.
    pub fn partial_line(&self) -> (&[u8], bool) {
        (&self.rest, self.continued)
    }

    /// Splits the next bytes; `give` receives the flags and bytes of each record.
    pub fn push(&mut self, bytes: &[u8], mut give: impl FnMut(u8, &[u8])) {
        let mut start = 0;
        for newline in memchr::memchr_iter(b'\n', bytes) {
            let line = &bytes[start..newline];
            start = newline + 1;
            if self.rest.is_empty() && !self.continued && line.len() <= MAX_LINE {
                give(0, line);
            } else {
                self.end_line(line, &mut give);
            }
        }
        let rest = self.give_full_pieces(&bytes[start..], &mut give);
        self.rest.extend_from_slice(rest);
    }

    /// Ends the stream: the rest is the last line, which has no newline.
    pub fn finish(&mut self, mut give: impl FnMut(u8, &[u8])) {
        if !self.rest.is_empty() {
            give(self.continuation() | flags::UNTERMINATED, &self.rest);
        }
        *self = Self::default();
    }

    /// Releases memory after a long line.
    pub fn trim(&mut self) {
        self.rest.shrink_to(RETAINED_CAPACITY);
    }

    fn end_line(&mut self, line: &[u8], give: &mut impl FnMut(u8, &[u8])) {
        let last = self.give_full_pieces(line, give);
        if self.rest.is_empty() {
            give(self.continuation(), last);
        } else {
            self.rest.extend_from_slice(last);
            give(self.continuation(), &self.rest);
            self.rest.clear();
        }
        self.continued = false;
    }

    /// Emits pieces of exactly `MAX_LINE` while more than that is there. A line of just that length
    /// may end with the next byte, and is whole then.
    fn give_full_pieces<'a>(
        &mut self,
        mut line: &'a [u8],
        give: &mut impl FnMut(u8, &[u8]),
    ) -> &'a [u8] {
        while self.rest.len() + line.len() > MAX_LINE {
            let unfinished = self.continuation() | flags::UNTERMINATED;
            let room = MAX_LINE.saturating_sub(self.rest.len());
            let (piece, after) = line.split_at(room);
            if self.rest.is_empty() {
                give(unfinished, piece);
            } else if room == 0 {
                // The partial line may come from a process with another limit.
                give(unfinished, &self.rest[..MAX_LINE]);
                self.rest.drain(..MAX_LINE);
            } else {
                self.rest.extend_from_slice(piece);
                give(unfinished, &self.rest);
                self.rest.clear();
            }
            self.continued = true;
            line = after;
        }
        line
    }

    fn continuation(&self) -> u8 {
        if self.continued { flags::CONTINUED } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNTERMINATED: u8 = flags::UNTERMINATED;
    const CONTINUED: u8 = flags::CONTINUED;

    fn split(chunks: &[&[u8]]) -> Vec<(u8, Vec<u8>)> {
        let mut splitter = Splitter::default();
        let mut records = Vec::new();
        let mut give = |flags, line: &[u8]| records.push((flags, line.to_vec()));
        for chunk in chunks {
            splitter.push(chunk, &mut give);
        }
        splitter.finish(&mut give);
        records
    }

    /// Splits with a new splitter for each chunk, which continues where the previous one stopped.
    fn split_with_handovers(chunks: &[&[u8]]) -> Vec<(u8, Vec<u8>)> {
        let mut splitter = Splitter::default();
        let mut records = Vec::new();
        let mut give = |flags, line: &[u8]| records.push((flags, line.to_vec()));
        for chunk in chunks {
            let (partial_line, continued) = splitter.partial_line();
            splitter = Splitter::resume(partial_line, continued);
            splitter.push(chunk, &mut give);
        }
        splitter.finish(&mut give);
        records
    }

    fn shape(chunks: &[&[u8]]) -> Vec<(u8, usize)> {
        split(chunks).into_iter().map(|(flags, line)| (flags, line.len())).collect()
    }

    #[test]
    fn only_a_newline_ends_a_line() {
        let records = split(&[b"one\r\ntw", b"", b"o\0\xff\n\nthree"]);
        let expected: Vec<(u8, &[u8])> =
            vec![(0, b"one\r"), (0, b"two\0\xff"), (0, b""), (UNTERMINATED, b"three")];
        assert!(records.iter().map(|(flags, line)| (*flags, &line[..])).eq(expected));
    }

    #[test]
    fn final_newline_adds_no_empty_line() {
        assert_eq!(shape(&[b"one\n"]), [(0, 3)]);
        assert_eq!(shape(&[]), []);
    }

    #[test]
    fn line_of_exactly_the_limit_is_one_record() {
        let line = vec![b'x'; MAX_LINE];
        assert_eq!(shape(&[&line, b"\n"]), [(0, MAX_LINE)]);
        assert_eq!(shape(&[&line]), [(UNTERMINATED, MAX_LINE)]);
    }

    #[test]
    fn longer_line_is_split_and_flagged() {
        let line = vec![b'x'; 2 * MAX_LINE + 1];
        let pieces =
            [(UNTERMINATED, MAX_LINE), (CONTINUED | UNTERMINATED, MAX_LINE), (CONTINUED, 1)];
        assert_eq!(shape(&[&line, b"\n"]), pieces);
        assert_eq!(shape(&[&line[..7], &line[7..], b"\nnext\n"])[..3], pieces);
        assert_eq!(shape(&[&line[..7], &line[7..], b"\nnext\n"])[3], (0, 4));
    }

    #[test]
    fn endless_line_uses_bounded_memory() {
        let mut splitter = Splitter::default();
        for _ in 0..1000 {
            splitter.push(&[b'x'; 5000], |_, _| ());
            assert!(splitter.rest.len() <= MAX_LINE);
        }
        assert!(splitter.rest.capacity() <= 2 * MAX_LINE);
    }

    #[test]
    fn long_partial_line_is_emitted_in_pieces() {
        for more in [0, 1, MAX_LINE] {
            let mut splitter = Splitter::resume(&vec![b'x'; MAX_LINE + more], false);
            let mut records = Vec::new();
            splitter.push(b"y\n", |flags, line| records.push((flags, line.len())));
            let mut expected = vec![(UNTERMINATED, MAX_LINE), (CONTINUED, more + 1)];
            if more == MAX_LINE {
                expected[1] = (CONTINUED | UNTERMINATED, MAX_LINE);
                expected.push((CONTINUED, 1));
            }
            assert_eq!(records, expected, "{more}");
            assert_eq!(splitter.partial_line(), (b"".as_slice(), false));
        }
    }

    /// Runs of one byte, so that lines get long without long inputs.
    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let run = (prop_oneof![Just(b'\n'), any::<u8>()], prop_oneof![1..4_usize, 1..3 * MAX_LINE]);
        proptest::collection::vec(run, 0..12).prop_map(|runs| {
            let newline_runs_stay_short = |byte, length| if byte == b'\n' { 1 } else { length };
            runs.into_iter()
                .flat_map(|(byte, length)| vec![byte; newline_runs_stay_short(byte, length)])
                .collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn joined_records_equal_the_input(
            bytes in streams(),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let mut chunks = Vec::new();
            let mut start = 0;
            for cut in cuts {
                chunks.push(&bytes[start..cut]);
                start = cut;
            }

            prop_assert_eq!(split_with_handovers(&chunks), split(&chunks));

            let mut joined = Vec::new();
            let mut mid_line = false;
            for (flags, line) in split(&chunks) {
                prop_assert!(line.len() <= MAX_LINE);
                prop_assert_eq!(flags & CONTINUED != 0, mid_line);
                joined.extend(line);
                mid_line = flags & UNTERMINATED != 0;
                if !mid_line {
                    joined.push(b'\n');
                }
            }
            prop_assert!(joined == bytes);
        }
    }
}
