//! Counts of what a server has sent, by which a health check sees that it is alive.

use std::cell::Cell;

use super::Connection;

/// Counters of received messages and reads. Callers only compare them for equality.
#[derive(Debug, Default)]
pub(super) struct Activity {
    messages: Cell<u64>,
    reads: Cell<u64>,
}

impl Activity {
    /// Records a received text; only a valid message counts.
    pub(super) fn record_message(&self, is_one: bool) {
        self.messages.set(self.messages.get().wrapping_add(u64::from(is_one)));
    }
}

impl Connection {
    /// Records that bytes were read from the server, whether or not they are a whole message.
    pub(super) fn record_read(&self) {
        self.activity.reads.set(self.activity.reads.get().wrapping_add(1));
    }

    /// Returns the number of received messages, and the number of reads.
    pub fn activity_count(&self) -> (u64, u64) {
        (self.activity.messages.get(), self.activity.reads.get())
    }
}
