//! A queue of bytes to write. Small pieces are copied together; large ones are shared with their
//! owner.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

/// The size below which a piece is copied, as that costs less than a separate write.
const SHARE_MIN: usize = 64 * 1024;

/// The capacity above which an empty buffer is freed.
const KEEP_ROOM: usize = 64 * 1024;

/// Bytes in order, in as few chunks as possible.
#[derive(Debug, Default)]
pub struct Chunks {
    /// The chunks that nothing is appended to.
    full: VecDeque<Bytes>,
    /// The length of all full chunks.
    full_len: usize,
    /// The last chunk.
    tail: Vec<u8>,
    /// How many bytes of the tail are consumed; 0 while there are full chunks.
    head: usize,
}

impl Chunks {
    /// Returns the buffer to append small pieces to.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Appends a piece without copying it, unless it is small.
    pub fn share(&mut self, piece: Bytes) {
        if piece.len() < SHARE_MIN {
            return self.tail.extend_from_slice(&piece);
        }
        let mut copied = Bytes::from(std::mem::take(&mut self.tail));
        copied.advance(std::mem::take(&mut self.head));
        for chunk in [copied, piece].into_iter().filter(|chunk| !chunk.is_empty()) {
            self.full_len += chunk.len();
            self.full.push_back(chunk);
        }
    }

    /// Returns the number of bytes.
    pub fn byte_count(&self) -> usize {
        self.full_len + self.tail.len() - self.head
    }

    /// Returns the first bytes, or all of them if none are shared.
    pub fn front(&self) -> &[u8] {
        self.full.front().map_or(&self.tail[self.head..], |chunk| chunk)
    }

    /// Removes the first `count` bytes, which must be part of [`Self::front`].
    pub fn consume(&mut self, count: usize) {
        if let Some(chunk) = self.full.front_mut() {
            chunk.advance(count);
            self.full_len -= count;
            if chunk.is_empty() {
                self.full.pop_front();
            }
            return;
        }
        self.head += count;
        if self.head == self.tail.len() {
            self.head = 0;
            self.tail.clear();
            if self.tail.capacity() > KEEP_ROOM {
                self.tail = Vec::new();
            }
        } else if self.head >= KEEP_ROOM && 2 * self.head >= self.tail.len() {
            // Only then, so that each byte is moved at most once, however many bytes wait.
            self.tail.drain(..self.head);
            self.head = 0;
        }
    }

    /// Returns all bytes in one piece. Copies them if some are shared.
    pub fn into_bytes(self) -> Bytes {
        if self.full.is_empty() {
            let mut tail = Bytes::from(self.tail);
            tail.advance(self.head);
            return tail;
        }
        let mut all = Vec::with_capacity(self.byte_count());
        self.full.iter().for_each(|chunk| all.extend_from_slice(chunk));
        all.extend_from_slice(&self.tail);
        all.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn large_chunks_are_shared_and_small_ones_copied() {
        let large = Bytes::from(vec![b'x'; SHARE_MIN]);
        let mut chunks = Chunks::default();
        chunks.tail().extend_from_slice(b"abc");
        chunks.consume(1);
        chunks.share(Bytes::from_static(b"de"));
        chunks.share(large.clone());
        assert_eq!((chunks.front(), chunks.byte_count()), (&b"bcde"[..], 4 + SHARE_MIN));
        chunks.consume(4);
        assert_eq!(chunks.front().as_ptr(), large.as_ptr());
        chunks.tail().push(b'!');
        chunks.consume(SHARE_MIN);
        assert_eq!((chunks.front(), chunks.byte_count()), (&b"!"[..], 1));
        chunks.consume(1);
        assert_eq!((chunks.front(), chunks.byte_count()), (&b""[..], 0));
    }

    proptest! {
        /// Whatever is appended and in whatever steps it is consumed, all bytes come out once.
        #[test]
        fn bytes_come_out_in_order(
            pieces in prop::collection::vec((any::<bool>(), 0..3 * SHARE_MIN), 0..6),
            steps in prop::collection::vec(1..2 * SHARE_MIN, 0..8),
        ) {
            let mut expected = Vec::new();
            let mut chunks = Chunks::default();
            let mut written = Vec::new();
            let mut steps = steps.into_iter();
            for (number, (is_shared, length)) in pieces.into_iter().enumerate() {
                let piece = vec![u8::try_from(number).unwrap(); length];
                expected.extend_from_slice(&piece);
                if is_shared {
                    chunks.share(piece.into());
                } else {
                    chunks.tail().extend_from_slice(&piece);
                }
                if let Some(step) = steps.next() {
                    let count = step.min(chunks.front().len());
                    written.extend_from_slice(&chunks.front()[..count]);
                    chunks.consume(count);
                }
                prop_assert_eq!(written.len() + chunks.byte_count(), expected.len());
            }
            written.extend_from_slice(&chunks.into_bytes());
            prop_assert_eq!(written, expected);
        }
    }
}
