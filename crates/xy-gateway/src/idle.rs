//! The use of an instance, and the decision when it may be stopped for being idle. Pure.
//!
//! The caller has to close the instance in the same step as the decision. A later call then waits
//! for the next life, and none is lost in between.

use std::time::Duration;

use tokio::time::Instant;

/// The current use of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// Calls that are not answered.
    pub(crate) calls: usize,
    /// Calls that wait for their turn.
    pub(crate) waiting: usize,
    /// Tasks that clients can ask for.
    pub(crate) tasks: usize,
    /// Resources and tasks that clients watch.
    pub(crate) watched: usize,
    /// The client that the instance serves is connected.
    pub(crate) has_client: bool,
    /// The instance has not listed what it offers.
    pub(crate) is_new: bool,
}

impl Use {
    /// Returns true if the instance is used.
    pub(crate) fn is_any(&self) -> bool {
        self.calls + self.waiting > 0 || self.has_unrecorded_use()
    }

    /// Returns true for a use without an end event (task, subscription, client, start).
    fn has_unrecorded_use(&self) -> bool {
        self.tasks + self.watched > 0 || self.has_client || self.is_new
    }
}

/// How long an instance has been idle, as far as checks have shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Idleness {
    /// When the instance was last used.
    since: Instant,
    /// The last check saw a use without an end event (task, subscription, client, start).
    had_unrecorded_use: bool,
}

/// The decision of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleDecision {
    /// Stop the instance.
    Stop,
    /// Check again then.
    CheckAt(Instant),
}

impl Idleness {
    /// Creates the state of an instance that is used now.
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, had_unrecorded_use: false }
    }

    /// Checks the instance: `used` is its current use, and `called_at` is when a call last began or
    /// ended.
    pub(crate) fn check(
        &mut self,
        used: Use,
        called_at: Instant,
        idle_stop: Duration,
        now: Instant,
    ) -> IdleDecision {
        if used.is_any() || self.had_unrecorded_use {
            self.since = now; // The use may have lasted until just now.
        }
        self.had_unrecorded_use = used.has_unrecorded_use();
        self.since = self.since.max(called_at);
        let rests_at = self.since + idle_stop;
        match used.is_any() {
            false if now >= rests_at => IdleDecision::Stop,
            false => IdleDecision::CheckAt(rests_at),
            // Not every use has an end event, so check a few times meanwhile.
            true => IdleDecision::CheckAt(now + (idle_stop / 4).max(MIN_CHECK_INTERVAL)),
        }
    }

    /// Returns how long the instance has been idle, or `None` if it is used.
    pub(crate) fn duration(used: Use, called_at: Instant, now: Instant) -> Option<Duration> {
        (!used.is_any()).then(|| now.saturating_duration_since(called_at))
    }
}

/// Minimum interval of checks.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STOP: Duration = Duration::from_secs(8);
    const SECOND: Duration = Duration::from_secs(1);

    fn uses() -> [(&'static str, Use); 6] {
        let none = Use::default();
        [
            ("calls", Use { calls: 1, ..none }),
            ("waiting", Use { waiting: 1, ..none }),
            ("tasks", Use { tasks: 1, ..none }),
            ("watched", Use { watched: 1, ..none }),
            ("client", Use { has_client: true, ..none }),
            ("new", Use { is_new: true, ..none }),
        ]
    }

    #[test]
    fn server_stays_while_used_and_stops_after_idle_time() {
        for (name, used) in uses() {
            let began = Instant::now();
            let mut idle = Idleness::new(began);
            for seconds in 0..100 {
                let verdict = idle.check(used, began, STOP, began + seconds * SECOND);
                assert_ne!(verdict, IdleDecision::Stop, "{name} after {seconds} s");
            }
            let over = began + 100 * SECOND;
            // The end of a call is recorded; any other use only has ended by now.
            let called_at = if used.has_unrecorded_use() { began } else { over };
            let rests_at = over + STOP;
            let verdict = idle.check(Use::default(), called_at, STOP, over);
            assert_eq!(verdict, IdleDecision::CheckAt(rests_at), "{name}");
            let early = rests_at - Duration::from_nanos(1);
            let verdict = idle.check(Use::default(), called_at, STOP, early);
            assert_eq!(verdict, IdleDecision::CheckAt(rests_at), "{name}");
            assert_eq!(idle.check(Use::default(), called_at, STOP, rests_at), IdleDecision::Stop);
        }
    }

    #[test]
    fn call_at_the_deadline_keeps_the_server() {
        let began = Instant::now();
        let at = began + STOP;
        let call = Use { calls: 1, ..Use::default() };
        let mut idle = Idleness::new(began);
        assert_ne!(idle.check(call, at, STOP, at), IdleDecision::Stop);
        let mut idle = Idleness::new(began);
        assert_eq!(idle.check(Use::default(), at, STOP, at), IdleDecision::CheckAt(at + STOP));
    }

    #[test]
    fn idle_time_is_known_only_of_unused_servers() {
        let now = Instant::now() + STOP;
        let called_at = now - SECOND;
        assert_eq!(Idleness::duration(Use::default(), called_at, now), Some(SECOND));
        for (name, used) in uses() {
            assert_eq!(Idleness::duration(used, called_at, now), None, "{name}");
        }
    }

    proptest! {
        /// Uses come and go, and a check follows whenever it is due.
        #[test]
        fn server_never_stops_while_used_or_too_early(
            uses in proptest::collection::vec((0_usize..6, 1_u64..20_000, 0_u64..20_000), 0..20),
        ) {
            let began = Instant::now();
            let kinds = self::uses();
            // The begin and end of each use, one after another.
            let mut spans = Vec::new();
            let mut at = began;
            for (kind, takes, pause) in uses {
                let from = at + Duration::from_millis(pause);
                at = from + Duration::from_millis(takes);
                spans.push((kinds[kind].1, from, at));
            }
            let mut idle = Idleness::new(began);
            let mut now = began;
            loop {
                let used = spans.iter().find(|(_, from, to)| *from <= now && now < *to);
                let called = spans.iter().filter(|(used, ..)| used.calls > 0);
                let times = called.flat_map(|(_, from, to)| [*from, *to]);
                let called_at = times.filter(|at| *at <= now).max().unwrap_or(began);
                match idle.check(used.map(|it| it.0).unwrap_or_default(), called_at, STOP, now) {
                    IdleDecision::Stop => break,
                    IdleDecision::CheckAt(at) => {
                        prop_assert!(at > now, "time goes on");
                        now = at;
                    }
                }
                prop_assert!(now < began + 2000 * SECOND, "it rests at last");
            }
            // Only uses that a check saw prolong its life, and all calls do.
            for (used, from, to) in &spans {
                prop_assert!(!(*from <= now && now < *to), "used");
                if used.calls > 0 && *to <= now {
                    prop_assert!(now >= *to + STOP, "too soon after a call");
                }
            }
        }
    }
}
