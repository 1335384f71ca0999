//! Batches of lines, forwarded in as few writes as possible.

use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::ledger::LineNo;

/// Maximum message size in either direction, in bytes.
pub(super) const MAX_MESSAGE: usize = 32 * 1024 * 1024;

/// The data to write for a chunk of lines, in order.
#[derive(Debug, Default)]
pub(super) struct WriteBatch {
    pieces: Vec<Piece>,
    /// The length of all pieces.
    length: usize,
    /// For each line, its start in the chunk and its end in the written data.
    lines: Vec<Mark>,
}

#[derive(Debug)]
enum Piece {
    /// A part of the chunk.
    Original(Range<usize>),
    Replacement(Vec<u8>),
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    no: LineNo,
    begins: usize,
    written_at: usize,
}

/// The first line that was not written completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnwrittenLine {
    pub(super) no: LineNo,
    /// Its start in the chunk.
    pub(super) begins: usize,
}

impl WriteBatch {
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.lines.clear();
        self.length = 0;
    }

    /// Adds a line of the chunk unchanged.
    pub(super) fn pass(&mut self, line: Range<usize>) {
        self.length += line.len();
        if let Some(Piece::Original(last)) = self.pieces.last_mut()
            && last.end == line.start
        {
            last.end = line.end;
            return;
        }
        self.pieces.push(Piece::Original(line));
    }

    /// Adds a line that replaces one of the chunk.
    pub(super) fn put(&mut self, line: Vec<u8>) {
        self.length += line.len();
        self.pieces.push(Piece::Replacement(line));
    }

    /// Records that a line of the chunk is handled. Call it after its data was added.
    pub(super) fn mark(&mut self, no: LineNo, begins: usize) {
        self.lines.push(Mark { no, begins, written_at: self.length });
    }

    pub(super) fn pieces<'t>(&'t self, chunk: &'t [u8]) -> impl Iterator<Item = &'t [u8]> {
        self.pieces.iter().map(move |piece| match piece {
            Piece::Original(range) => &chunk[range.clone()],
            Piece::Replacement(line) => line,
        })
    }

    /// Writes the batch. On failure, returns the first line that was not written completely.
    pub(super) fn write_to(&self, mut sink: impl Write, chunk: &[u8]) -> Result<(), UnwrittenLine> {
        let mut written = 0;
        for piece in self.pieces(chunk) {
            let mut rest = piece;
            while !rest.is_empty() {
                match sink.write(rest) {
                    Ok(count) if count > 0 => {
                        written += count;
                        rest = &rest[count..];
                    }
                    Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                    Ok(_) | Err(_) => return Err(self.unwritten(written)),
                }
            }
        }
        Ok(())
    }

    fn unwritten(&self, written: usize) -> UnwrittenLine {
        let first = self.lines.iter().find(|line| line.written_at > written);
        let first = first.expect("unwritten bytes belong to a line");
        UnwrittenLine { no: first.no, begins: first.begins }
    }
}

/// Reads once. Blocks even if another process has made the source non-blocking.
pub(super) fn read_some(source: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(source, &mut *room) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(source),
            other => return Ok(other?),
        }
    }
}

/// Waits until the source is readable or has failed; the next read reports a failure.
pub(super) fn wait_for(source: BorrowedFd<'_>) {
    let _ = poll(&mut [PollFd::new(&source, PollFlags::IN)], None);
}

/// Sleeps.
pub(super) fn pause(moment: Duration) {
    crate::interrupts::readable(&[], moment);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink that accepts a number of bytes and then fails.
    struct Dies(usize, Vec<u8>);

    impl Write for Dies {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.0);
            if count == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.0 -= count;
            self.1.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn batch() -> (WriteBatch, &'static [u8]) {
        let mut batch = WriteBatch::default();
        batch.pass(0..2);
        batch.mark(10, 0);
        batch.pass(2..4);
        batch.mark(11, 2);
        batch.mark(12, 4); // Dropped.
        batch.put(b"other\n".to_vec());
        batch.mark(13, 6);
        batch.pass(8..10);
        batch.mark(14, 8);
        (batch, b"a\nb\nc\nd\ne\n")
    }

    #[test]
    fn adjacent_lines_are_written_together() {
        let (batch, chunk) = batch();
        let pieces: Vec<&[u8]> = batch.pieces(chunk).collect();
        assert_eq!(pieces, [&b"a\nb\n"[..], b"other\n", b"e\n"]);
    }

    #[test]
    fn partial_line_and_later_lines_are_unwritten() {
        let (batch, chunk) = batch();
        let first_unwritten = [10, 10, 11, 11, 13, 13, 13, 13, 13, 13, 14, 14];
        for (room, no) in first_unwritten.into_iter().enumerate() {
            let unwritten = batch.write_to(Dies(room, Vec::new()), chunk).unwrap_err();
            assert_eq!(unwritten.no, no, "after {room} bytes");
            assert_eq!(u64::try_from(unwritten.begins).unwrap(), (no - 10) * 2);
        }
        let mut all = Dies(12, Vec::new());
        assert_eq!(batch.write_to(&mut all, chunk), Ok(()));
        assert_eq!(all.1, b"a\nb\nother\ne\n");
    }
}
