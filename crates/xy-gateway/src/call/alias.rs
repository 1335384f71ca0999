//! A server under the name that clients use, and the counters of the calls made under it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;

use super::RetryState;

/// A server under the name that clients use. Several names can share one process.
#[derive(Debug)]
pub(crate) struct Alias {
    pub(crate) name: ServerName,
    pub(crate) counts: Counts,
}

/// The counters of a server's calls.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Number of waiting calls. Read by other threads.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// Number of calls that ever had to wait.
    pub(crate) parked: Cell<u64>,
    /// Number of calls that were ever sent again.
    pub(crate) again: Cell<u64>,
    /// Number of calls whose outcome is unknown.
    pub(crate) unknown: Cell<u64>,
}

impl Alias {
    pub(crate) fn new(name: ServerName) -> Self {
        Self { name, counts: Counts::default() }
    }

    /// Counts a call that was sent again.
    pub(crate) fn count_again(&self) {
        self.counts.again.set(self.counts.again.get() + 1);
    }

    /// Returns the error for the client of a call that fails with `fault`, and counts it if the
    /// outcome is unknown. It is unknown too if the call was written to an earlier life.
    pub(crate) fn failure(&self, retry_state: &RetryState, fault: &CallError) -> CallError {
        let is_unknown = fault.kind.is_outcome_unknown();
        if !is_unknown && !retry_state.was_written {
            return fault.clone();
        }
        self.counts.unknown.set(self.counts.unknown.get() + 1);
        if is_unknown { fault.clone() } else { outcome_unknown(fault, Some(&self.name)) }
    }
}

/// Returns the error of a call that was written once and is not sent again.
pub(crate) fn outcome_unknown(fault: &CallError, server: Option<&ServerName>) -> CallError {
    let (whom, look) = match server {
        Some(name) => (format!("`{name}`"), format!("; `xy logs {name}` shows its last output")),
        None => ("its server".to_owned(), String::new()),
    };
    let once = format!("the call was sent to {whom} once, and not answered");
    let why = fault.cause.as_ref().map_or(once.clone(), |cause| format!("{cause}; {once}"));
    CallError::new(ErrorKind::OutcomeUnknown, format!("outcome unknown: {}", fault.message))
        .cause(why)
        .hint(format!("find out whether it was executed before you repeat it{look}"))
}
