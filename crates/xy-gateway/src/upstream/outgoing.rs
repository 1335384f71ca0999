//! What is to be written to a server: whole messages, in order. Pure.
//!
//! Places are counted from the first byte ever, so that each call knows by the place of its
//! message whether the server can have seen any of it.

use std::collections::VecDeque;

/// What a pipe takes whole or not at all.
pub(super) const ATOMIC: usize = rustix::pipe::PIPE_BUF;

/// A buffer that has grown beyond this is given back once it is empty.
const KEPT: usize = 64 * 1024;

/// Messages that wait to be written.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// How many of them are written.
    head: usize,
    /// The place of the first byte of `bytes`.
    base: u64,
    /// Where each message ends, the first unfinished one first.
    ends: VecDeque<u64>,
    /// Where the last finished one ended.
    finished: u64,
}

/// What to write next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    /// So many bytes in one go, which takes all of them or none.
    AtOnce(usize),
    /// So many bytes, of which a part may be written when we are killed.
    InParts(usize),
}

impl Outgoing {
    /// Appends a message, whose end is added; answers the place where it begins.
    pub(super) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let begins = self.base + self.bytes.len() as u64;
        write(&mut self.bytes);
        self.bytes.push(b'\n');
        self.ends.push_back(self.base + self.bytes.len() as u64);
        begins
    }

    /// How many messages wait, or have not been written whole.
    pub(super) fn messages(&self) -> usize {
        self.ends.len()
    }

    /// How many bytes wait.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// The place of the first byte that is not written.
    pub(super) fn written(&self) -> u64 {
        self.base + self.head as u64
    }

    /// The bytes that wait.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.head..]
    }

    /// Whether a message is written in part.
    pub(super) fn is_amid(&self) -> bool {
        self.written() > self.finished
    }

    /// What to write next, if anything; `room` is what an empty pipe surely takes at once, 0
    /// unless it is known to be empty.
    pub(super) fn next(&self, room: usize) -> Option<Block> {
        let first = self.ends.front()? - self.written();
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let room = room.max(ATOMIC);
        if self.is_amid() || first > room {
            return Some(Block::InParts(first));
        }
        // Binary search: the ends are in order.
        let limit = self.written() + room as u64;
        let fitting = self.ends.partition_point(|end| *end <= limit);
        let all = self.ends.get(fitting.checked_sub(1)?)? - self.written();
        Some(Block::AtOnce(usize::try_from(all).unwrap_or(first)))
    }

    /// So many bytes have been written.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.head += bytes;
        let written = self.written();
        while let Some(end) = self.ends.front().copied().filter(|end| *end <= written) {
            self.ends.pop_front();
            self.finished = end;
        }
        if self.head == self.bytes.len() {
            self.base = written;
            self.head = 0;
            self.bytes.clear();
            if self.bytes.capacity() > KEPT {
                self.bytes = Vec::new();
            }
        } else if self.head >= KEPT && 2 * self.head >= self.bytes.len() {
            // Only then, so that each byte is moved once at most, however many wait.
            self.bytes.drain(..self.head);
            self.base = written;
            self.head = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(out: &mut Outgoing, length: usize) -> u64 {
        out.append(|bytes| bytes.resize(bytes.len() + length - 1, b'x'))
    }

    #[test]
    fn small_messages_go_together_and_no_message_is_cut() {
        let mut out = Outgoing::default();
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
    fn a_long_message_goes_alone_and_in_parts() {
        let mut out = Outgoing::default();
        put(&mut out, 10);
        put(&mut out, 3 * ATOMIC);
        put(&mut out, 10);
        assert_eq!(out.next(0), Some(Block::AtOnce(10)));
        out.wrote(10);
        assert_eq!(out.next(0), Some(Block::InParts(3 * ATOMIC)));
        out.wrote(ATOMIC);
        assert!(out.is_amid());
        // Room or not: what is begun is announced until its end.
        assert_eq!(out.next(10 * ATOMIC), Some(Block::InParts(2 * ATOMIC)));
        out.wrote(2 * ATOMIC);
        assert!(!out.is_amid());
        assert_eq!(out.next(0), Some(Block::AtOnce(10)));
    }

    #[test]
    fn places_go_on_when_the_buffer_begins_anew() {
        let mut out = Outgoing::default();
        put(&mut out, 2 * KEPT);
        out.wrote(2 * KEPT - 1);
        assert_eq!((out.len(), out.written()), (1, 2 * KEPT as u64 - 1));
        out.wrote(1);
        assert_eq!(put(&mut out, 5), 2 * KEPT as u64);
        assert_eq!(out.bytes(), b"xxxx\n");
    }
}
