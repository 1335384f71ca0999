//! Lines on their way: what of a chunk is passed on, in as few writes as possible.

use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::ledger::LineNo;

/// The longest message, either way.
pub(super) const MAX_LINE: usize = 32 * 1024 * 1024;

/// What is to be written, in order.
#[derive(Debug, Default)]
pub(super) struct Parcel {
    pieces: Vec<Piece>,
    /// How long all pieces are.
    length: usize,
    /// For each line: where it ends in what is written, and where it began in the chunk.
    lines: Vec<Mark>,
}

#[derive(Debug)]
enum Piece {
    /// A part of the chunk.
    Same(Range<usize>),
    Other(Vec<u8>),
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    no: LineNo,
    begins: usize,
    written_at: usize,
}

/// The first line that was not wholly written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unwritten {
    pub(super) no: LineNo,
    /// Where it begins in the chunk.
    pub(super) begins: usize,
}

impl Parcel {
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.lines.clear();
        self.length = 0;
    }

    /// This line of the chunk goes as it is.
    pub(super) fn pass(&mut self, line: Range<usize>) {
        self.length += line.len();
        if let Some(Piece::Same(last)) = self.pieces.last_mut()
            && last.end == line.start
        {
            last.end = line.end;
            return;
        }
        self.pieces.push(Piece::Same(line));
    }

    /// Another line goes in its place.
    pub(super) fn put(&mut self, line: Vec<u8>) {
        self.length += line.len();
        self.pieces.push(Piece::Other(line));
    }

    /// Notes that a line of the chunk is dealt with; after what stands for it was added.
    pub(super) fn mark(&mut self, no: LineNo, begins: usize) {
        self.lines.push(Mark { no, begins, written_at: self.length });
    }

    pub(super) fn pieces<'t>(&'t self, chunk: &'t [u8]) -> impl Iterator<Item = &'t [u8]> {
        self.pieces.iter().map(move |piece| match piece {
            Piece::Same(range) => &chunk[range.clone()],
            Piece::Other(line) => line,
        })
    }

    /// Writes it all; if that fails, answers the first line that was not wholly written.
    pub(super) fn write_to(&self, mut sink: impl Write, chunk: &[u8]) -> Result<(), Unwritten> {
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

    fn unwritten(&self, written: usize) -> Unwritten {
        let first = self.lines.iter().find(|line| line.written_at > written);
        let first = first.expect("something is left, and it is of some line");
        Unwritten { no: first.no, begins: first.begins }
    }
}

/// Reads once, waiting for it even if somebody made the source non-blocking.
pub(super) fn read_some(source: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(source, &mut *room) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(source),
            other => return Ok(other?),
        }
    }
}

/// Waits until there is something to read, or it fails: then a read will tell.
pub(super) fn wait_for(source: BorrowedFd<'_>) {
    let _ = poll(&mut [PollFd::new(&source, PollFlags::IN)], None);
}

/// Does nothing for a while.
pub(super) fn pause(moment: Duration) {
    crate::interrupts::readable(&[], moment);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes and is gone.
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

    fn parcel() -> (Parcel, &'static [u8]) {
        let mut parcel = Parcel::default();
        parcel.pass(0..2);
        parcel.mark(10, 0);
        parcel.pass(2..4);
        parcel.mark(11, 2);
        parcel.mark(12, 4); // Swallowed.
        parcel.put(b"other\n".to_vec());
        parcel.mark(13, 6);
        parcel.pass(8..10);
        parcel.mark(14, 8);
        (parcel, b"a\nb\nc\nd\ne\n")
    }

    #[test]
    fn neighbours_go_in_one_write() {
        let (parcel, chunk) = parcel();
        let pieces: Vec<&[u8]> = parcel.pieces(chunk).collect();
        assert_eq!(pieces, [&b"a\nb\n"[..], b"other\n", b"e\n"]);
    }

    #[test]
    fn a_half_written_line_is_unwritten_and_so_are_those_after_it() {
        let (parcel, chunk) = parcel();
        let first_unwritten = [10, 10, 11, 11, 13, 13, 13, 13, 13, 13, 14, 14];
        for (room, no) in first_unwritten.into_iter().enumerate() {
            let unwritten = parcel.write_to(Dies(room, Vec::new()), chunk).unwrap_err();
            assert_eq!(unwritten.no, no, "after {room} bytes");
            assert_eq!(u64::try_from(unwritten.begins).unwrap(), (no - 10) * 2);
        }
        let mut all = Dies(12, Vec::new());
        assert_eq!(parcel.write_to(&mut all, chunk), Ok(()));
        assert_eq!(all.1, b"a\nb\nother\ne\n");
    }
}
