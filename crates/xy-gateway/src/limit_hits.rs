//! Which limits kept somebody out lately, and whom. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// A limit is told of for so long after it was last hit.
const RECENT: Duration = Duration::from_secs(60);

/// Maximum number of distinct entries.
const MOST: usize = 16;

/// A limit that kept somebody out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitHit {
    /// What there may be no more of, for people.
    pub limit: &'static str,
    /// The id of the token; `None` for a client that has shown none.
    pub token: Option<u64>,
    /// How often since it began.
    pub times: u64,
    /// When it was last hit.
    last: Instant,
}

/// All that were hit lately.
#[derive(Debug, Default)]
pub(crate) struct LimitHits(Vec<LimitHit>);

impl LimitHits {
    /// Notes that a limit was hit. If too many are known, the one that was hit first goes.
    pub(crate) fn note(&mut self, limit: &'static str, token: Option<u64>, now: Instant) {
        self.0.retain(|hit| is_recent(hit, now));
        let known = self.0.iter().position(|hit| hit.limit == limit && hit.token == token);
        let mut hit = match known {
            Some(place) => self.0.remove(place),
            None => LimitHit { limit, token, times: 0, last: now },
        };
        (hit.times, hit.last) = (hit.times + 1, now);
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        self.0.push(hit);
    }

    /// Returns those that were hit lately, in the order of their last hit.
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
            hits.note("a", token, Instant::now());
        }
        assert_eq!(seen(&hits), [("a", None, 1), ("a", Some(7), 2)]);
        tokio::time::advance(RECENT / 2).await;
        hits.note("a", None, Instant::now());
        tokio::time::advance(RECENT / 2).await;
        assert_eq!(seen(&hits), [("a", None, 2)]);
        tokio::time::advance(RECENT / 2).await;
        assert_eq!(seen(&hits), []);
        hits.note("a", None, Instant::now());
        assert_eq!(seen(&hits), [("a", None, 1)]);
    }

    #[test]
    fn only_so_many_are_told_apart() {
        let mut hits = LimitHits::default();
        for token in 0..100 {
            hits.note("a", Some(token), Instant::now());
        }
        let recent = hits.recent(Instant::now());
        assert_eq!((recent.len(), recent[0].token), (MOST, Some(100 - MOST as u64)));
    }
}
