//! The pace at which large messages are moved, so that they do not delay small ones.
//!
//! Moving a large message as fast as possible takes most of a processor: the gateway's thread has
//! then used up its share, and it and the processes of small calls wait for whole time slices of
//! others. While small messages arrive, large ones are therefore moved with pauses.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Bytes of large messages that are moved in a second while small messages arrive.
const RATE: u64 = 96 * 1024 * 1024;

/// Bytes that are moved without a pause after a rest.
const BURST: u64 = 2 * 1024 * 1024;

/// How long large messages are moved with pauses after a small one.
const ACTIVE_TIME: Duration = Duration::from_millis(100);

/// The pace of all large messages of a gateway.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the last small message arrived.
    last_small: Cell<Option<Instant>>,
    /// The time that the bytes of this burst take at `RATE`, less the time that has passed, as of
    /// the instant.
    used: Cell<Option<(Duration, Instant)>>,
}

impl Pace {
    /// Records that a client has sent a small message.
    pub fn record_small(&self) {
        self.last_small.set(Some(Instant::now()));
    }

    /// Lets other tasks run after `bytes` of a large message were moved. Pauses if small messages
    /// arrive and the rate is exceeded.
    pub async fn give_way(&self, bytes: usize) {
        match self.pause_after(bytes, Instant::now()) {
            Some(pause) => sleep(pause).await,
            None => tokio::task::yield_now().await,
        }
    }

    fn pause_after(&self, bytes: usize, now: Instant) -> Option<Duration> {
        let last_small = self.last_small.get()?;
        if now.duration_since(last_small) >= ACTIVE_TIME {
            self.used.set(None);
            return None;
        }
        let (before, at) = self.used.get().unwrap_or((Duration::ZERO, now));
        let rest = before.saturating_sub(now.duration_since(at));
        let used = rest + time_at_rate(bytes as u64);
        self.used.set(Some((used, now)));
        used.checked_sub(time_at_rate(BURST)).filter(|pause| !pause.is_zero())
    }
}

/// Returns how long it takes to move these bytes at `RATE`.
fn time_at_rate(bytes: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / RATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    /// Moves this many MiB, and returns how long that took.
    async fn moving(pace: &Pace, mebibytes: usize) -> Duration {
        let since = Instant::now();
        for _ in 0..16 * mebibytes {
            pace.give_way(MIB / 16).await;
        }
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn large_messages_are_slowed_only_while_small_ones_arrive() {
        let pace = Pace::default();
        assert_eq!(moving(&pace, 1000).await, Duration::ZERO, "nothing else arrives");
        pace.record_small();
        assert_eq!(moving(&pace, 2).await, Duration::ZERO, "a short one is not slowed");
        assert!(moving(&pace, 6).await >= Duration::from_millis(60));
        tokio::time::advance(ACTIVE_TIME).await;
        assert_eq!(moving(&pace, 1000).await, Duration::ZERO, "the small one was long ago");
    }

    #[tokio::test(start_paused = true)]
    async fn several_large_messages_share_the_rate() {
        let pace = Pace::default();
        pace.record_small();
        let at = Instant::now();
        let pauses: Vec<_> = (0..4).filter_map(|_| pace.pause_after(2 * MIB, at)).collect();
        assert_eq!(pauses.len(), 3, "the first fits in");
        assert!(pauses.is_sorted() && pauses[0] * 2 < pauses[2], "{pauses:?}");
    }
}
