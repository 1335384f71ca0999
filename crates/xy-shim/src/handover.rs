//! State that one daemon leaves to the next.

use std::time::Instant;

use crate::wire::{MAX_FRAME, MAX_NOTE};

/// Maximum size of the stdout kept while no daemon is attached; no more is read after that.
const MAX_UNREAD: usize = 1024 * 1024;

/// State that one daemon leaves to the next.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) note: Vec<u8>,
    pub(crate) noted_at: Instant,
    /// Output of stdout that no daemon has read.
    pub(crate) unread: Vec<u8>,
    /// Output sent to the attached daemon and not yet returned as unparsed output. It is sent again to
    /// the next daemon if this one is killed.
    lent: Vec<u8>,
    /// Set once stdout has ended.
    pub(crate) has_ended: bool,
    /// Set while the daemon writes a long message to stdin.
    pub(crate) is_writing: bool,
    /// Set if a daemon left in the middle of such a message.
    pub(crate) is_torn: bool,
}

impl Handover {
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

    /// Replaces the note. A note that is too long is ignored: the previous one is better than half
    /// of it.
    pub(crate) fn set_note(&mut self, note: &[u8], now: Instant) {
        if note.len() <= MAX_NOTE {
            self.note = note.to_vec();
            self.noted_at = now;
        }
    }

    /// Takes back output that the daemon could not use, never more than it was sent. Lent output
    /// that does not come back has been used.
    pub(crate) fn take_back(&mut self, bytes: &[u8]) {
        self.lent = Vec::new();
        if self.unread.len() + bytes.len() <= MAX_FRAME {
            self.unread.extend_from_slice(bytes);
        }
    }

    /// Returns true if more of stdout may be read and kept.
    pub(crate) fn has_room(&self) -> bool {
        self.unread.len() < MAX_UNREAD && !self.has_ended
    }

    /// Returns the note and the unread output for a newly attached daemon.
    pub(crate) fn lend(&mut self) -> (&[u8], &[u8]) {
        self.lent = std::mem::take(&mut self.unread);
        (&self.note, &self.lent)
    }

    /// Records that `bytes` of the lent output have been logged. Lent output always precedes output
    /// read later.
    pub(crate) fn on_returned(&mut self, bytes: usize) {
        self.lent.drain(..bytes.min(self.lent.len()));
    }

    /// Handles a daemon that left, perhaps in the middle of a message or before it had used all
    /// lent output.
    pub(crate) fn on_disconnect(&mut self) {
        self.is_torn |= std::mem::take(&mut self.is_writing);
        let given_back = std::mem::replace(&mut self.unread, std::mem::take(&mut self.lent));
        self.unread.extend(given_back);
    }
}
