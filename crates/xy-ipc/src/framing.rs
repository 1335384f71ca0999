//! Bytes to lines, with a bound on what is kept of a line that never ends.
//!
//! Pure: it is given chunks as they arrive, and how they were cut never shows.

/// The longest request. The largest honest one is a few hundred bytes.
pub const MAX_REQUEST_LINE: usize = 1024 * 1024;

/// Room that is kept from one line to the next; a longer line gives its room back.
const KEPT_ROOM: usize = 64 * 1024;

/// So much is shown of a line that is too long.
const HEAD: usize = 4096;

/// What stands between two newlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// The line, without its newline.
    Whole(&'a [u8]),
    /// A line over the limit, of which this is the beginning; the rest of it will be dropped
    /// unseen.
    TooLong(&'a [u8]),
}

/// Cuts chunks of bytes into lines.
///
/// Empty lines are left out, and a carriage return before the newline is too.
#[derive(Debug)]
pub struct LineSplitter {
    limit: usize,
    begun: Vec<u8>,
    /// The line in `begun` has been handed out.
    handed_out: bool,
    /// The current line was too long; all up to its newline is dropped.
    dropping: bool,
}

impl LineSplitter {
    /// For lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, begun: Vec::new(), handed_out: false, dropping: false }
    }

    /// Takes the next line off the front of `chunk`; `None` once all of it is taken.
    pub fn next_line<'a, 'b: 'a>(&'a mut self, chunk: &mut &'b [u8]) -> Option<Line<'a>> {
        self.forget_handed_out();
        loop {
            let Some(end) = memchr::memchr(b'\n', chunk) else {
                let is_too_long = self.keep(std::mem::take(chunk));
                return is_too_long.then_some(Line::TooLong(&self.begun));
            };
            let (line, rest) = (&chunk[..end], &chunk[end + 1..]);
            *chunk = rest;
            if std::mem::take(&mut self.dropping) {
                continue;
            }
            if self.begun.len() + line.len() > self.limit {
                self.keep_head(line);
                return Some(Line::TooLong(&self.begun));
            }
            if self.begun.is_empty() {
                match without_return(line) {
                    [] => continue,
                    line => return Some(Line::Whole(line)),
                }
            }
            self.begun.extend_from_slice(line);
            if without_return(&self.begun).is_empty() {
                self.begun.clear();
                continue;
            }
            self.handed_out = true;
            return Some(Line::Whole(without_return(&self.begun)));
        }
    }

    /// Whether a line has begun and its newline has not come yet.
    pub fn is_inside_a_line(&self) -> bool {
        self.dropping || (!self.begun.is_empty() && !self.handed_out)
    }

    /// What has begun and is no whole line yet.
    pub fn take_begun(&mut self) -> Vec<u8> {
        self.forget_handed_out();
        std::mem::take(&mut self.begun)
    }

    /// Of a line that is too long only its beginning is kept, until it has been looked at.
    fn keep_head(&mut self, part: &[u8]) {
        let room = HEAD.saturating_sub(self.begun.len());
        self.begun.extend_from_slice(&part[..part.len().min(room)]);
        self.begun.truncate(HEAD);
        self.begun.shrink_to(HEAD);
        self.handed_out = true;
    }

    fn forget_handed_out(&mut self) {
        if std::mem::take(&mut self.handed_out) {
            self.begun.clear();
            self.begun.shrink_to(KEPT_ROOM);
        }
    }

    /// Keeps the beginning of a line; says whether it has just become too long.
    fn keep(&mut self, part: &[u8]) -> bool {
        if self.dropping {
            return false;
        }
        if self.begun.len() + part.len() > self.limit {
            self.dropping = true;
            self.keep_head(part);
            return true;
        }
        self.begun.extend_from_slice(part);
        false
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The lines, `TOO LONG` for those that are.
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
    fn lines_come_out_one_by_one_and_the_rest_waits() {
        assert_eq!(split(9, &[b"ab\ncd\nef"]), ["ab", "cd"]);
        assert_eq!(split(9, &[b"a", b"b", b"\n"]), ["ab"]);
    }

    #[test]
    fn empty_lines_and_carriage_returns_are_left_out() {
        assert_eq!(split(9, &[b"\n\r\n", b"\r", b"\na\r\n"]), ["a"]);
    }

    #[test]
    fn a_line_over_the_limit_is_told_once_and_the_next_one_is_read() {
        assert_eq!(split(3, &[b"abcd\nef\n"]), ["TOO LONG", "ef"]);
        assert_eq!(split(3, &[b"ab", b"cd", b"ef", b"\ngh\n"]), ["TOO LONG", "gh"]);
        assert_eq!(split(3, &[b"abc\n"]), ["abc"]);
    }

    #[test]
    fn a_hundred_megabytes_without_a_newline_cost_nothing() {
        let mut splitter = LineSplitter::new(MAX_REQUEST_LINE);
        let chunk = vec![b'x'; 1_000_000];
        let mut told = 0;
        for _ in 0..100 {
            let mut rest = chunk.as_slice();
            while splitter.next_line(&mut rest).is_some() {
                told += 1;
            }
            assert!(splitter.begun.capacity() <= 2 * MAX_REQUEST_LINE);
        }
        assert_eq!(told, 1);
        assert!(splitter.begun.capacity() <= HEAD);
        assert!(splitter.is_inside_a_line());
    }

    #[test]
    fn it_knows_whether_it_is_inside_a_line() {
        let mut splitter = LineSplitter::new(9);
        assert!(!splitter.is_inside_a_line());
        assert_eq!(splitter.next_line(&mut b"ab".as_slice()), None);
        assert!(splitter.is_inside_a_line());
        assert_eq!(splitter.next_line(&mut b"c\n".as_slice()), Some(Line::Whole(b"abc")));
        assert!(!splitter.is_inside_a_line());
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_does_not_matter(
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
