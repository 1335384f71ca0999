//! The timeouts of one call, as set in the server's settings.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use xy_config::settings::CallRules;
use xy_protocol::error::{CallError, ErrorKind};

/// The timeouts of one call.
pub(crate) struct CallTimer {
    /// The method and its target, for error messages.
    what: Box<str>,
    rules: CallRules,
    began: Instant,
    /// The time of the last progress.
    last_progress: Cell<Instant>,
}

/// A limit of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallLimit {
    Idle(Duration),
    Within(Duration),
}

impl CallTimer {
    /// Starts the timeouts of a call. Returns `None` if it has none.
    pub(crate) fn begin(rules: CallRules, what: impl FnOnce() -> String) -> Option<Rc<Self>> {
        if rules == CallRules::default() {
            return None;
        }
        let now = Instant::now();
        Some(Rc::new(Self {
            what: what().into(),
            rules,
            began: now,
            last_progress: Cell::new(now),
        }))
    }

    /// Records progress, which resets the idle timeout.
    pub(crate) fn touch(&self) {
        self.last_progress.set(Instant::now());
    }

    /// Returns when the total timeout ends the call, whatever progress is reported.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.rules.within.map(|within| self.began + within)
    }

    /// Returns the error of a call that timed out while the server waited for its client's input.
    pub(crate) fn late_answer(&self) -> CallError {
        let within = self.rules.within.unwrap_or_default();
        let cause = format!(
            "it took longer than {within:?}; the server was waiting for input of the client"
        );
        self.timed_out().cause(cause).hint("reply sooner, or allow more with `calls { within }`")
    }

    fn timed_out(&self) -> CallError {
        CallError::new(ErrorKind::TimedOut, format!("{} timed out", self.what))
    }

    /// Returns when the next limit is reached, and which it is.
    pub(crate) fn limit(&self) -> Option<(Instant, CallLimit)> {
        let idle =
            self.rules.idle.map(|idle| (self.last_progress.get() + idle, CallLimit::Idle(idle)));
        let within =
            self.rules.within.zip(self.end()).map(|(it, end)| (end, CallLimit::Within(it)));
        match (idle, within) {
            (Some(idle), Some(within)) if idle.0 < within.0 => Some(idle),
            (idle, within) => within.or(idle),
        }
    }

    pub(crate) fn fault(&self, limit: CallLimit) -> CallError {
        let (why, rule) = match limit {
            CallLimit::Idle(idle) => (format!("no progress was reported for {idle:?}"), "idle"),
            CallLimit::Within(within) => (format!("it took longer than {within:?}"), "within"),
        };
        self.timed_out()
            .cause(format!("{why}; the server was told to stop, but may have completed the call"))
            .hint(format!("find out whether it was executed before you repeat it, or allow more with `calls {{ {rule} }}`"))
    }
}
