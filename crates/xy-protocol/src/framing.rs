//! Splits bytes into lines, with a bound on the memory for a line that never ends.
//!
//! Pure: the splitter receives chunks as they arrive, and the result does not depend on how the
//! bytes were cut.

/// Maximum length of a request. The largest legitimate one has a few hundred bytes.
pub const MAX_REQUEST_LINE: usize = 1024 * 1024;

/// Buffer capacity retained between lines. The memory of a longer line is released.
const RETAINED_CAPACITY: usize = 64 * 1024;

/// Number of bytes returned of a line that is too long.
const MAX_HEAD: usize = 4096;

/// The result of splitting: the bytes between two newlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// A whole line, without its newline.
    Whole(&'a [u8]),
    /// The beginning of a line over the limit; the rest of it is dropped.
    TooLong(&'a [u8]),
}

/// Splits chunks of bytes into lines.
///
/// Empty lines are skipped, and a carriage return before the newline is removed.
#[derive(Debug)]
pub struct LineSplitter {
    limit: usize,
    partial: Vec<u8>,
    /// Set if the line in `partial` has been returned.
    is_returned: bool,
    /// Set if the current line was too long; everything up to its newline is dropped.
    is_dropping: bool,
}

impl LineSplitter {
    /// Creates a splitter for lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, partial: Vec::new(), is_returned: false, is_dropping: false }
    }

    /// Takes the next line off the front of `chunk`. Returns `None` once `chunk` is consumed.
    pub fn next_line<'a, 'b: 'a>(&'a mut self, chunk: &mut &'b [u8]) -> Option<Line<'a>> {
        self.discard_returned();
        loop {
            let Some(end) = memchr::memchr(b'\n', chunk) else {
                let is_too_long = self.store(std::mem::take(chunk));
                return is_too_long.then_some(Line::TooLong(&self.partial));
            };
            let (line, rest) = (&chunk[..end], &chunk[end + 1..]);
            *chunk = rest;
            if std::mem::take(&mut self.is_dropping) {
                continue;
            }
            if self.partial.len() + line.len() > self.limit {
                self.store_head(line);
                return Some(Line::TooLong(&self.partial));
            }
            if self.partial.is_empty() {
                match trim_carriage_return(line) {
                    [] => continue,
                    line => return Some(Line::Whole(line)),
                }
            }
            self.partial.extend_from_slice(line);
            if trim_carriage_return(&self.partial).is_empty() {
                self.partial.clear();
                continue;
            }
            self.is_returned = true;
            return Some(Line::Whole(trim_carriage_return(&self.partial)));
        }
    }

    /// Returns true if a line has begun whose newline has not arrived.
    pub fn is_inside_line(&self) -> bool {
        self.is_dropping || (!self.partial.is_empty() && !self.is_returned)
    }

    /// Takes the beginning of the current line.
    pub fn take_partial(&mut self) -> Vec<u8> {
        self.discard_returned();
        std::mem::take(&mut self.partial)
    }

    /// Stores the beginning of a line that is too long, until it has been read.
    fn store_head(&mut self, part: &[u8]) {
        let room = MAX_HEAD.saturating_sub(self.partial.len());
        self.partial.extend_from_slice(&part[..part.len().min(room)]);
        self.partial.truncate(MAX_HEAD);
        self.partial.shrink_to(MAX_HEAD);
        self.is_returned = true;
    }

    fn discard_returned(&mut self) {
        if std::mem::take(&mut self.is_returned) {
            self.partial.clear();
            self.partial.shrink_to(RETAINED_CAPACITY);
        }
    }

    /// Stores the beginning of a line. Returns true if the line has just become too long.
    fn store(&mut self, part: &[u8]) -> bool {
        if self.is_dropping {
            return false;
        }
        if self.partial.len() + part.len() > self.limit {
            self.is_dropping = true;
            self.store_head(part);
            return true;
        }
        self.partial.extend_from_slice(part);
        false
    }
}

fn trim_carriage_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the lines, with `TOO LONG` for those over the limit.
    fn split(limit: usize, chunks: &[&[u8]]) -> Vec<String> {
        let mut splitter = LineSplitter::new(limit);
        let mut lines = Vec::new();
        for chunk in chunks {
            let mut rest = *chunk;
            while let Some(line) = splitter.next_line(&mut rest) {
                lines.push(match line {
                    Line::Whole(line) => String::from_utf8_lossy(line).into_owned(),
                    Line::TooLong(_) => "TOO LONG".to_owned(),
                });
            }
        }
        lines
    }

    #[test]
    fn whole_lines_are_returned_and_the_rest_waits() {
        assert_eq!(split(9, &[b"ab\ncd\nef"]), ["ab", "cd"]);
        assert_eq!(split(9, &[b"a", b"b", b"\n"]), ["ab"]);
    }

    #[test]
    fn empty_lines_and_carriage_returns_are_skipped() {
        assert_eq!(split(9, &[b"\n\r\n", b"\r", b"\na\r\n"]), ["a"]);
    }

    #[test]
    fn long_line_is_reported_once() {
        assert_eq!(split(3, &[b"abcd\nef\n"]), ["TOO LONG", "ef"]);
        assert_eq!(split(3, &[b"ab", b"cd", b"ef", b"\ngh\n"]), ["TOO LONG", "gh"]);
        assert_eq!(split(3, &[b"abc\n"]), ["abc"]);
    }

    #[test]
    fn endless_line_uses_little_memory() {
        let mut splitter = LineSplitter::new(MAX_REQUEST_LINE);
        let chunk = vec![b'x'; 1_000_000];
        let mut count = 0;
        for _ in 0..100 {
            let mut rest = chunk.as_slice();
            while splitter.next_line(&mut rest).is_some() {
                count += 1;
            }
            assert!(splitter.partial.capacity() <= 2 * MAX_REQUEST_LINE);
        }
        assert_eq!(count, 1);
        assert!(splitter.partial.capacity() <= MAX_HEAD);
        assert!(splitter.is_inside_line());
    }

    #[test]
    fn splitter_knows_if_it_is_inside_a_line() {
        let mut splitter = LineSplitter::new(9);
        assert!(!splitter.is_inside_line());
        assert_eq!(splitter.next_line(&mut b"ab".as_slice()), None);
        assert!(splitter.is_inside_line());
        assert_eq!(splitter.next_line(&mut b"c\n".as_slice()), Some(Line::Whole(b"abc")));
        assert!(!splitter.is_inside_line());
    }

    proptest! {
        #[test]
        fn result_is_independent_of_chunk_boundaries(
            bytes in proptest::collection::vec(
                prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a'), Just(b'b')], 0..60),
            cuts in proptest::collection::vec(0_usize..60, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut chunks = Vec::new();
            let mut from = 0;
            for cut in cuts {
                chunks.push(&bytes[from..cut]);
                from = cut;
            }
            chunks.push(&bytes[from..]);
            prop_assert_eq!(split(5, &chunks), split(5, &[&bytes]));
        }
    }
}
