//! The limits that refused clients recently, and which clients. Pure.
//!
//! Each place that refuses a client for a limit records it with `CallClient::limit_hit`, or with
//! `CallClient::record_limit` if it has a fault of a server. Listeners use `HttpStatus::limit_hit`.

use std::time::Duration;

use tokio::time::Instant;
use xy_upstream::fault::ServerFault;

/// The limit on calls that wait for input of their clients, for users.
pub(crate) const PENDING_INPUT: &str = "calls that wait for input of their clients";

/// The limit on the bytes that such calls store, for users.
pub(crate) const PENDING_INPUT_BYTES: &str = "bytes of calls that wait for input of their clients";

/// The limit on the tasks of one client, for users.
pub(crate) const TASKS: &str = "tasks of one client";

/// How long a limit is reported after its last hit.
const RECENT: Duration = Duration::from_secs(60);

/// Maximum number of distinct entries.
const MAX_ENTRIES: usize = 16;

/// A limit that refused a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitHit {
    /// The name of the limit, for users.
    pub limit: &'static str,
    /// The id of the client's token; `None` for an unauthenticated client.
    pub token: Option<u64>,
    /// The number of hits since the first recent one.
    pub times: u64,
    /// The time of the last hit.
    last: Instant,
}

/// All recent hits.
#[derive(Debug, Default)]
pub(crate) struct LimitHits(Vec<LimitHit>);

impl LimitHits {
    /// Records a hit. Drops the entry with the oldest last hit if there are too many.
    pub(crate) fn record(&mut self, limit: &'static str, token: Option<u64>, now: Instant) {
        self.0.retain(|hit| is_recent(hit, now));
        let known = self.0.iter().position(|hit| hit.limit == limit && hit.token == token);
        let mut hit = match known {
            Some(place) => self.0.remove(place),
            None => LimitHit { limit, token, times: 0, last: now },
        };
        (hit.times, hit.last) = (hit.times + 1, now);
        if self.0.len() >= MAX_ENTRIES {
            self.0.remove(0);
        }
        self.0.push(hit);
    }

    /// Returns the recent hits, in the order of their last hit.
    pub(crate) fn recent(&self, now: Instant) -> Vec<LimitHit> {
        self.0.iter().filter(|hit| is_recent(hit, now)).cloned().collect()
    }
}

/// Returns the name of the limit that this fault reports, for users; `None` if it reports none.
pub(crate) fn limit_of(fault: &ServerFault) -> Option<&'static str> {
    match fault {
        ServerFault::TooManyOpen(_) | ServerFault::CallShare { .. } => {
            Some("open calls with one server")
        }
        ServerFault::NotReading | ServerFault::UnreadShare { .. } => {
            Some("bytes that one server has not read")
        }
        ServerFault::QueueFull { .. } | ServerFault::QueueShare { .. } => {
            Some("calls that wait for a server")
        }
        ServerFault::InstanceShare { .. } => Some("instances"),
        ServerFault::NoRoom { .. } => Some("instances, or the memory of all instances"),
        ServerFault::TooManyPartial => Some("bytes of incomplete responses of one server"),
        _ => None,
    }
}

fn is_recent(hit: &LimitHit, now: Instant) -> bool {
    now.saturating_duration_since(hit.last) < RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hits_are_counted_by_token_and_forgotten() {
        let mut hits = LimitHits::default();
        let seen = |hits: &LimitHits| -> Vec<(&str, Option<u64>, u64)> {
            let recent = hits.recent(Instant::now());
            recent.iter().map(|hit| (hit.limit, hit.token, hit.times)).collect()
        };
        for token in [Some(7), None, Some(7)] {
            hits.record("a", token, Instant::now());
        }
        assert_eq!(seen(&hits), [("a", None, 1), ("a", Some(7), 2)]);
        tokio::time::advance(RECENT / 2).await;
        hits.record("a", None, Instant::now());
        tokio::time::advance(RECENT / 2).await;
        assert_eq!(seen(&hits), [("a", None, 2)]);
        tokio::time::advance(RECENT / 2).await;
        assert_eq!(seen(&hits), []);
        hits.record("a", None, Instant::now());
        assert_eq!(seen(&hits), [("a", None, 1)]);
    }

    #[test]
    fn faults_of_a_limit_name_it() {
        let server = "calls that wait for a server";
        let (is_total, setting, own, most) = (false, "calls", "3".to_owned(), || "9".to_owned());
        let (cause, hint) = (String::new(), String::new());
        for (fault, limit) in [
            (ServerFault::TooManyOpen(9), Some("open calls with one server")),
            (ServerFault::CallShare { own: 3, most: 9 }, Some("open calls with one server")),
            (ServerFault::NotReading, Some("bytes that one server has not read")),
            (
                ServerFault::UnreadShare { own: 3, most: 9 },
                Some("bytes that one server has not read"),
            ),
            (ServerFault::QueueFull { is_total, setting, most: most() }, Some(server)),
            (ServerFault::QueueShare { is_total, setting, own, most: most() }, Some(server)),
            (ServerFault::InstanceShare { own: 3, most: 9 }, Some("instances")),
            (
                ServerFault::NoRoom { cause, hint },
                Some("instances, or the memory of all instances"),
            ),
            (ServerFault::TooManyPartial, Some("bytes of incomplete responses of one server")),
            (ServerFault::Closed, None),
            (ServerFault::TooLong, None),
        ] {
            assert_eq!(limit_of(&fault), limit, "{fault:?}");
        }
    }

    #[test]
    fn distinct_hits_are_limited() {
        let mut hits = LimitHits::default();
        for token in 0..100 {
            hits.record("a", Some(token), Instant::now());
        }
        let recent = hits.recent(Instant::now());
        assert_eq!((recent.len(), recent[0].token), (MAX_ENTRIES, Some(100 - MAX_ENTRIES as u64)));
    }
}
