//! What one daemon leaves to the next.

use std::time::Instant;

use crate::wire::{MAX_FRAME, MAX_NOTE};

/// While nobody is there, no more of a server's stdout is read once this much is kept.
const ROOM: usize = 1024 * 1024;

/// What one daemon leaves to the next.
#[derive(Debug)]
pub(crate) struct Heritage {
    pub(crate) note: Vec<u8>,
    pub(crate) noted_at: Instant,
    /// What stdout said while nobody was there.
    pub(crate) unread: Vec<u8>,
    /// What of it was handed to a daemon, and has not come back as log: it may be killed.
    lent: Vec<u8>,
    /// There is nothing more to come.
    pub(crate) has_ended: bool,
    /// The daemon is in the middle of a long message on stdin.
    pub(crate) is_writing: bool,
    /// One was, when it left.
    pub(crate) is_torn: bool,
}

impl Heritage {
    pub(crate) fn new(note: &[u8], now: Instant) -> Self {
        Self {
            note: note.to_vec(),
            noted_at: now,
            unread: Vec::new(),
            lent: Vec::new(),
            has_ended: false,
            is_writing: false,
            is_torn: false,
        }
    }

    /// A note that is too long is not taken: the one before it is better than half of it.
    pub(crate) fn keep(&mut self, note: &[u8], now: Instant) {
        if note.len() <= MAX_NOTE {
            self.note = note.to_vec();
            self.noted_at = now;
        }
    }

    /// Takes back what a daemon could not use; there is never more than it was sent. All
    /// that was lent and does not come back like this has been used.
    pub(crate) fn take_back(&mut self, bytes: &[u8]) {
        self.lent = Vec::new();
        if self.unread.len() + bytes.len() <= MAX_FRAME {
            self.unread.extend_from_slice(bytes);
        }
    }

    /// Whether more of stdout may be kept.
    pub(crate) fn has_room(&self) -> bool {
        self.unread.len() < ROOM && !self.has_ended
    }

    /// The note, and what stdout said, for a daemon.
    pub(crate) fn lend(&mut self) -> (&[u8], &[u8]) {
        self.lent = std::mem::take(&mut self.unread);
        (&self.note, &self.lent)
    }

    /// So much of what was lent has come back: it comes before all that is read later.
    pub(crate) fn on_returned(&mut self, bytes: usize) {
        self.lent.drain(..bytes.min(self.lent.len()));
    }

    /// The daemon has left, perhaps in the middle of a message, or of what was lent.
    pub(crate) fn on_left(&mut self) {
        self.is_torn |= std::mem::take(&mut self.is_writing);
        let given_back = std::mem::replace(&mut self.unread, std::mem::take(&mut self.lent));
        self.unread.extend(given_back);
    }
}
