//! The limits that refused clients recently, and which clients. Pure.

use std::time::Duration;

use tokio::time::Instant;

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
    fn distinct_hits_are_limited() {
        let mut hits = LimitHits::default();
        for token in 0..100 {
            hits.record("a", Some(token), Instant::now());
        }
        let recent = hits.recent(Instant::now());
        assert_eq!((recent.len(), recent[0].token), (MAX_ENTRIES, Some(100 - MAX_ENTRIES as u64)));
    }
}
