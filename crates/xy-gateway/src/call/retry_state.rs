//! The history of a call: how often it was repeated, and how long it has waited.

use std::rc::Rc;

use tokio::time::Instant;

use super::CallTimer;

/// The history of a call.
#[derive(Clone, Default)]
pub(crate) struct RetryState {
    /// The input rounds of the call, and its timer.
    pub(crate) rounds: Rounds,
    /// The position among the calls of its server, once it has one.
    pub(crate) ticket: Option<u64>,
    /// When the call began to wait, if it does.
    pub(crate) waits_since: Option<Instant>,
    /// The call was sent before.
    pub(crate) was_sent: bool,
    /// The call was sent before, and its server may have read it.
    pub(crate) was_written: bool,
}

impl RetryState {
    /// Returns true if the call has waited for its server, or is sent again.
    pub(crate) fn has_waited(&self) -> bool {
        self.waits_since.is_some() || self.was_sent
    }
}

/// The rounds of a call so far.
#[derive(Clone, Default)]
pub(crate) struct Rounds {
    /// Number of repetitions.
    pub(crate) count: u8,
    /// The timer of the call, since it was first sent.
    pub(crate) timer: Option<Rc<CallTimer>>,
}
