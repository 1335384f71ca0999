//! The write buffer of a stdio server: whole messages, in order. Pure.
//!
//! Offsets count from the first byte ever, so each call knows by the offset of its message whether
//! the server can have seen any of it.

use std::collections::VecDeque;

use xy_transport::chunks::Chunks;

/// Size up to which a pipe takes a write completely or not at all.
pub(super) const ATOMIC: usize = rustix::pipe::PIPE_BUF;

/// Messages that wait to be written.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    chunks: Chunks,
    /// Offset of the first unwritten byte.
    written: u64,
    /// Offsets at which messages end, the first unfinished one first.
    ends: VecDeque<u64>,
    /// Offset at which the last finished message ended.
    finished: u64,
}

/// The next write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    /// This many bytes in one write, which takes all of them or none.
    AtOnce(usize),
    /// This many bytes in several writes. If the daemon is killed meanwhile, a message is torn.
    InParts(usize),
}

impl WriteBuffer {
    /// Appends a message and its line end. Returns the offset at which it begins.
    pub(super) fn append(&mut self, write: impl FnOnce(&mut Chunks)) -> u64 {
        let begins = self.end();
        write(&mut self.chunks);
        self.chunks.tail().push(b'\n');
        self.ends.push_back(self.end());
        begins
    }

    /// Returns the number of messages that are not completely written.
    pub(super) fn messages(&self) -> usize {
        self.ends.len()
    }

    /// Returns the number of bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.chunks.byte_count()
    }

    /// Returns the offset of the first unwritten byte.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the waiting bytes, or only the first chunk of them if some are shared.
    pub(super) fn bytes(&self) -> &[u8] {
        self.chunks.front()
    }

    /// Returns true if a message is partly written.
    pub(super) fn is_amid(&self) -> bool {
        self.written > self.finished
    }

    /// Returns what to write next, if anything. `room` is how much an empty pipe takes at once, or
    /// 0 if the pipe may not be empty.
    pub(super) fn next(&self, room: usize) -> Option<Block> {
        let first = self.ends.front()? - self.written;
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let room = room.max(ATOMIC).min(self.bytes().len());
        if self.is_amid() || first > room {
            return Some(Block::InParts(first));
        }
        // Binary search: the ends are in order.
        let limit = self.written + room as u64;
        let fitting = self.ends.partition_point(|end| *end <= limit);
        let all = self.ends.get(fitting.checked_sub(1)?)? - self.written;
        Some(Block::AtOnce(usize::try_from(all).unwrap_or(first)))
    }

    /// Removes this many bytes of [`Self::bytes`], which were written.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.chunks.consume(bytes);
        self.written += bytes as u64;
        while let Some(end) = self.ends.front().copied().filter(|end| *end <= self.written) {
            self.ends.pop_front();
            self.finished = end;
        }
    }

    /// Returns the offset after the last byte.
    fn end(&self) -> u64 {
        self.written + self.chunks.byte_count() as u64
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Longer than any chunk that is copied.
    const LONG: usize = 1 << 20;

    fn put(out: &mut WriteBuffer, length: usize) -> u64 {
        out.append(|chunks| chunks.tail().extend(std::iter::repeat_n(b'x', length - 1)))
    }

    #[test]
    fn small_messages_are_written_together_and_whole() {
        let mut out = WriteBuffer::default();
        assert_eq!(out.next(0), None);
        let begins: Vec<u64> = (0..3).map(|_| put(&mut out, ATOMIC / 2)).collect();
        assert_eq!(begins, [0, ATOMIC as u64 / 2, ATOMIC as u64]);
        assert_eq!(out.next(0), Some(Block::AtOnce(ATOMIC)));
        // An empty pipe has room for all of them.
        assert_eq!(out.next(2 * ATOMIC), Some(Block::AtOnce(ATOMIC / 2 * 3)));
        out.wrote(ATOMIC);
        assert_eq!((out.next(0), out.written()), (Some(Block::AtOnce(ATOMIC / 2)), ATOMIC as u64));
        out.wrote(ATOMIC / 2);
        assert_eq!((out.next(0), out.len(), out.is_amid()), (None, 0, false));
    }

    #[test]
    fn long_message_is_written_alone_in_parts() {
        let mut out = WriteBuffer::default();
        put(&mut out, 10);
        put(&mut out, 3 * ATOMIC);
        put(&mut out, 10);
        assert_eq!(out.next(0), Some(Block::AtOnce(10)));
        out.wrote(10);
        assert_eq!(out.next(0), Some(Block::InParts(3 * ATOMIC)));
        out.wrote(ATOMIC);
        assert!(out.is_amid());
        // With or without room: a begun message is announced until its end.
        assert_eq!(out.next(10 * ATOMIC), Some(Block::InParts(2 * ATOMIC)));
        out.wrote(2 * ATOMIC);
        assert!(!out.is_amid());
        assert_eq!(out.next(0), Some(Block::AtOnce(10)));
    }

    #[test]
    fn offsets_continue_when_the_buffer_is_cleared() {
        let mut out = WriteBuffer::default();
        put(&mut out, 2 * LONG);
        out.wrote(2 * LONG - 1);
        assert_eq!((out.len(), out.written()), (1, 2 * LONG as u64 - 1));
        out.wrote(1);
        assert_eq!(put(&mut out, 5), 2 * LONG as u64);
        assert_eq!(out.bytes(), b"xxxx\n");
    }

    #[test]
    fn shared_message_is_written_in_parts_and_others_at_once() {
        let mut out = WriteBuffer::default();
        put(&mut out, 10);
        out.append(|chunks| chunks.share(Bytes::from(vec![b'y'; LONG])));
        put(&mut out, 10);
        // With any amount of room: the bytes are not contiguous.
        assert_eq!(out.next(4 * LONG), Some(Block::AtOnce(10)));
        out.wrote(10);
        assert_eq!(out.next(4 * LONG), Some(Block::InParts(LONG + 1)));
        out.wrote(out.bytes().len());
        assert!(out.is_amid());
        assert_eq!(out.next(4 * LONG), Some(Block::InParts(1)));
        out.wrote(1);
        assert_eq!((out.next(0), out.is_amid()), (Some(Block::AtOnce(10)), false));
    }
}
