//! Reads whole lines from a blocking source, without copying each.

use std::io::{self, Read};
use std::ops::Range;

/// Size of one read: hundreds of lines of a busy log.
const CHUNK: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct LineReader<R> {
    source: R,
    limit: usize,
    buffer: Vec<u8>,
    /// The bytes that have been read but not returned.
    unread: Range<usize>,
    /// Length of the start of `unread` that is known to contain no newline.
    searched: usize,
}

impl<R: Read> LineReader<R> {
    pub(super) fn new(source: R, limit: usize) -> Self {
        Self { source, limit, buffer: Vec::new(), unread: 0..0, searched: 0 }
    }

    pub(super) fn source(&mut self) -> &mut R {
        &mut self.source
    }

    pub(super) fn source_ref(&self) -> &R {
        &self.source
    }

    /// Returns true if a whole line can be returned without reading.
    pub(super) fn has_line(&self) -> bool {
        memchr::memchr(b'\n', &self.buffer[self.unread.clone()]).is_some()
    }

    /// Returns the next non-empty line without its newline; `None` at the end. A line over the
    /// limit is an error of kind `InvalidData`.
    pub(super) fn next_line(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            if let Some(line) = self.take_line() {
                if !line.is_empty() {
                    return Ok(Some(&self.buffer[line]));
                }
            } else if self.unread.len() > self.limit {
                let what = format!("a line is longer than {} bytes", self.limit);
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            } else if self.fill()? == 0 {
                return Ok(None);
            }
        }
    }

    fn take_line(&mut self) -> Option<Range<usize>> {
        let start = self.unread.start + self.searched;
        let Some(end) = memchr::memchr(b'\n', &self.buffer[start..self.unread.end]) else {
            self.searched = self.unread.len();
            return None;
        };
        let line = self.unread.start..start + end;
        self.unread.start = line.end + 1;
        self.searched = 0;
        Some(line)
    }

    fn fill(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        self.buffer.resize(self.unread.end + CHUNK, 0);
        loop {
            match self.source.read(&mut self.buffer[self.unread.end..]) {
                Ok(count) => {
                    self.unread.end += count;
                    return Ok(count);
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source that yields at most `at_once` bytes per read.
    struct Trickle<'a> {
        bytes: &'a [u8],
        at_once: usize,
    }

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.at_once.min(self.bytes.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.bytes[..count]);
            self.bytes = &self.bytes[count..];
            Ok(count)
        }
    }

    #[test]
    fn lines_are_independent_of_read_sizes() {
        for at_once in 1..12 {
            let source = Trickle { bytes: b"ab\n\ncde\nf\nrest", at_once };
            let mut lines = LineReader::new(source, 100);
            let mut lines_read = Vec::new();
            while let Some(line) = lines.next_line().unwrap() {
                lines_read.push(line.to_vec());
            }
            assert_eq!(lines_read, [b"ab".to_vec(), b"cde".to_vec(), b"f".to_vec()]);
        }
    }

    #[test]
    fn endless_line_is_an_error() {
        let mut lines = LineReader::new(io::repeat(b'x'), 100_000);
        let error = lines.next_line().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(lines.buffer.len() < 100_000 + 2 * CHUNK);
    }
}
