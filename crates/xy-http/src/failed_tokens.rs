//! Limits how many requests with wrong tokens are logged. Pure.
//!
//! A client can send wrong tokens at any rate. Each address is logged once a minute, and the rest
//! is counted.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// How long an address is not logged again.
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of addresses that are logged in one window.
const MAX_ADDRESSES: usize = 10;

/// The logged and skipped wrong tokens of the current window.
#[derive(Debug, Default)]
pub(super) struct FailedTokens {
    began: Option<Instant>,
    logged: Vec<Option<IpAddr>>,
    /// The number of requests that were not logged since the last line.
    skipped: u64,
}

impl FailedTokens {
    /// Records a wrong token. Returns the number of skipped requests if this one is to be logged.
    pub(super) fn record(&mut self, from: Option<IpAddr>, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= WINDOW) {
            self.began = Some(now);
            self.logged.clear();
        }
        if self.logged.contains(&from) || self.logged.len() >= MAX_ADDRESSES {
            self.skipped += 1;
            return None;
        }
        self.logged.push(from);
        Some(std::mem::take(&mut self.skipped))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    #[test]
    fn each_address_is_logged_once_a_minute() {
        let mut failed = FailedTokens::default();
        let start = Instant::now();
        assert_eq!(failed.record(Some(address(1)), start), Some(0));
        assert_eq!(failed.record(Some(address(1)), start), None);
        assert_eq!(failed.record(Some(address(1)), start + WINDOW / 2), None);
        assert_eq!(failed.record(Some(address(2)), start + WINDOW / 2), Some(2));
        assert_eq!(failed.record(Some(address(1)), start + WINDOW), Some(0));
    }

    #[test]
    fn many_addresses_do_not_fill_the_log() {
        let mut failed = FailedTokens::default();
        let start = Instant::now();
        let logged =
            (0..=255).filter(|&it| failed.record(Some(address(it)), start).is_some()).count();
        assert_eq!(logged, MAX_ADDRESSES);
        assert_eq!(failed.record(None, start + WINDOW), Some(256 - 10));
    }
}
