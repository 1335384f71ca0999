//! Who is there to speak with. Pure.
//!
//! ```text
//!            left                  came                introduced
//!  Daemon ────────► Nobody ──────────────► Newcomer ─────────────► Daemon
//!                     │  ▲  left, or silent │
//!                     │  └──────────────────┘
//!                     └── too long alone ──► NobodyAnyMore
//! ```
//!
//! A stranger who connects and does not say who it is does not make the wait longer.

use std::time::{Duration, Instant};

use crate::clock::after;

/// How long somebody who has connected may take to say who it is.
const SPEAK_WITHIN: Duration = Duration::from_secs(2);

/// Who is there to speak with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    /// The daemon.
    Daemon,
    /// The daemon is gone; another is waited for.
    Nobody {
        /// Not longer than this.
        until: Instant,
    },
    /// Somebody has come and not said who it is.
    Newcomer {
        /// It has this long.
        speak_by: Instant,
        /// And if it is nobody, another is waited for.
        until: Instant,
    },
    /// Nobody is waited for.
    NobodyAnyMore,
}

impl Company {
    /// The connection has been lost; another daemon may take `wait` to come.
    pub(crate) fn left(self, now: Instant, wait: Duration) -> Self {
        match self {
            Self::Daemon => Self::Nobody { until: after(now, wait) },
            Self::Newcomer { until, .. } => Self::Nobody { until },
            Self::Nobody { .. } | Self::NobodyAnyMore => self,
        }
    }

    /// Somebody has connected.
    pub(crate) fn came(self, now: Instant) -> Self {
        match self {
            Self::Nobody { until } => Self::Newcomer { speak_by: now + SPEAK_WITHIN, until },
            _ => self,
        }
    }

    /// When the time itself changes something.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Daemon | Self::NobodyAnyMore => None,
            Self::Nobody { until } => Some(until),
            Self::Newcomer { speak_by, until } => Some(speak_by.min(until)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn strangers_do_not_make_the_wait_longer() {
        let began = crate::clock::now();
        let mut company = Company::Daemon.left(began, 60 * SECOND);
        for n in 0..10 {
            company = company.came(began + n * SECOND);
            assert_eq!(company.deadline(), Some(began + n * SECOND + SPEAK_WITHIN));
            let Company::Newcomer { until, .. } = company else { panic!("somebody came") };
            assert_eq!(until, began + 60 * SECOND);
            company = company.left(began + n * SECOND, 60 * SECOND);
        }
        assert_eq!(company, Company::Nobody { until: began + 60 * SECOND });
    }

    #[test]
    fn nobody_comes_to_one_that_waits_for_nobody() {
        let now = crate::clock::now();
        assert_eq!(Company::NobodyAnyMore.came(now), Company::NobodyAnyMore);
        assert_eq!(Company::NobodyAnyMore.left(now, SECOND), Company::NobodyAnyMore);
        assert_eq!(Company::Daemon.came(now), Company::Daemon);
    }

    #[test]
    fn a_wait_may_be_longer_than_time_lasts() {
        let now = crate::clock::now();
        assert!(Company::Daemon.left(now, Duration::MAX).deadline() > Some(now + 60 * SECOND));
    }
}
