//! State of the control connection: which daemon, if any, controls this shim. Pure.
//!
//! ```text
//!            disconnected           connected            Hello
//! Attached ──────────────► Detached ───────────► Pending ───────► Attached
//!                            │  ▲  disconnected,    │
//!                            │  │  or no Hello      │
//!                            │  └───────────────────┘
//!                            └── timed out ──► Abandoned
//! ```
//!
//! A connection that never sends `Hello` does not prolong the wait for a daemon.

use std::time::{Duration, Instant};

use crate::clock::after;

/// How long a new connection may take to send `Hello`.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// State of the control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    /// A daemon is attached.
    Attached,
    /// The daemon is gone, and another may attach.
    Detached {
        /// The wait ends at this time.
        until: Instant,
    },
    /// A client has connected and has not sent `Hello` yet.
    Pending {
        /// When the connection is dropped.
        hello_by: Instant,
        /// When the wait for a daemon ends, as in `Detached`.
        until: Instant,
    },
    /// No daemon is waited for any more.
    Abandoned,
}

impl Controller {
    /// Returns the state after the connection was lost; another daemon has `wait` to attach.
    pub(crate) fn disconnected(self, now: Instant, wait: Duration) -> Self {
        match self {
            Self::Attached => Self::Detached { until: after(now, wait) },
            Self::Pending { until, .. } => Self::Detached { until },
            Self::Detached { .. } | Self::Abandoned => self,
        }
    }

    /// Returns the state after a client has connected.
    pub(crate) fn connected(self, now: Instant) -> Self {
        match self {
            Self::Detached { until } => Self::Pending { hello_by: now + HELLO_TIMEOUT, until },
            _ => self,
        }
    }

    /// Returns when the state changes by time alone.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Attached | Self::Abandoned => None,
            Self::Detached { until } => Some(until),
            Self::Pending { hello_by, until } => Some(hello_by.min(until)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silent_connections_do_not_prolong_the_wait() {
        let began = crate::clock::now();
        let mut controller = Controller::Attached.disconnected(began, 60 * SECOND);
        for n in 0..10 {
            controller = controller.connected(began + n * SECOND);
            assert_eq!(controller.deadline(), Some(began + n * SECOND + HELLO_TIMEOUT));
            let Controller::Pending { until, .. } = controller else {
                panic!("a client has connected")
            };
            assert_eq!(until, began + 60 * SECOND);
            controller = controller.disconnected(began + n * SECOND, 60 * SECOND);
        }
        assert_eq!(controller, Controller::Detached { until: began + 60 * SECOND });
    }

    #[test]
    fn abandoned_and_attached_ignore_new_connections() {
        let now = crate::clock::now();
        assert_eq!(Controller::Abandoned.connected(now), Controller::Abandoned);
        assert_eq!(Controller::Abandoned.disconnected(now, SECOND), Controller::Abandoned);
        assert_eq!(Controller::Attached.connected(now), Controller::Attached);
    }

    #[test]
    fn wait_may_exceed_the_range_of_time() {
        let now = crate::clock::now();
        assert!(
            Controller::Attached.disconnected(now, Duration::MAX).deadline()
                > Some(now + 60 * SECOND)
        );
    }
}
