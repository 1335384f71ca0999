//! How much a server has said so far: by that one can tell whether it lives.

use std::cell::Cell;

use super::Upstream;

/// Counts; of two counts it only matters whether they are equal.
#[derive(Debug, Default)]
pub(super) struct Activity {
    messages: Cell<u64>,
    reads: Cell<u64>,
}

impl Activity {
    /// It has said something, which is a message or is none.
    pub(super) fn message(&self, is_one: bool) {
        self.messages.set(self.messages.get().wrapping_add(u64::from(is_one)));
    }
}

impl Upstream {
    /// Something was read from it, which need not be whole.
    pub(super) fn was_read(&self) {
        self.heard.reads.set(self.heard.reads.get().wrapping_add(1));
    }

    /// How many messages it has said, and how often anything was read from it.
    pub(crate) fn heard_so_far(&self) -> (u64, u64) {
        (self.heard.messages.get(), self.heard.reads.get())
    }
}
