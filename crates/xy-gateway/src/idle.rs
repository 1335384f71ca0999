//! Whether an instance is used, and when it may sleep. Pure.
//!
//! Whoever decides that it may has to close it in the same breath: a call that comes later
//! waits for the next life, and none is lost in between.

use std::time::Duration;

use tokio::time::Instant;

/// What an instance is used for just now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// Calls that it has not answered.
    pub(crate) calls: usize,
    /// Calls that wait for their turn.
    pub(crate) waiting: usize,
    /// Tasks that can be asked about.
    pub(crate) tasks: usize,
    /// Resources and tasks that somebody watches.
    pub(crate) watched: usize,
    /// The client that it lives for is there.
    pub(crate) has_client: bool,
    /// It has not said yet what it offers.
    pub(crate) is_new: bool,
}

impl Use {
    /// Whether anything of that is so.
    pub(crate) fn is_any(&self) -> bool {
        self.calls + self.waiting > 0 || self.lasts()
    }

    /// Whether it is used by something whose end nobody writes down.
    fn lasts(&self) -> bool {
        self.tasks + self.watched > 0 || self.has_client || self.is_new
    }
}

/// How long an instance has been of no use, as far as was seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Idleness {
    /// It was used until then.
    since: Instant,
    /// When it was last looked at it was used by something whose end nobody writes down.
    lasted: bool,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may sleep.
    Rest,
    /// It is to be looked at again then.
    LookAt(Instant),
}

impl Idleness {
    /// It is used at this moment.
    pub(crate) fn begins(now: Instant) -> Self {
        Self { since: now, lasted: false }
    }

    /// Looks at it: `used` is what it is used for now, and `called_at` when a call of it last
    /// began or ended.
    pub(crate) fn look(
        &mut self,
        used: Use,
        called_at: Instant,
        idle_stop: Duration,
        now: Instant,
    ) -> Verdict {
        if used.is_any() || self.lasted {
            self.since = now; // It may have been used until just now.
        }
        self.lasted = used.lasts();
        self.since = self.since.max(called_at);
        let rests_at = self.since + idle_stop;
        match used.is_any() {
            false if now >= rests_at => Verdict::Rest,
            false => Verdict::LookAt(rests_at),
            // Not every use tells when it ends, so it is looked at a few times meanwhile.
            true => Verdict::LookAt(now + (idle_stop / 4).max(LEAST_LOOK)),
        }
    }

    /// For how long it has been of no use; `None` if it is used.
    pub(crate) fn so_far(used: Use, called_at: Instant, now: Instant) -> Option<Duration> {
        (!used.is_any()).then(|| now.saturating_duration_since(called_at))
    }
}

/// It is not looked at more often.
const LEAST_LOOK: Duration = Duration::from_millis(10);

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
    fn any_use_keeps_it_however_long_and_it_rests_when_that_is_over() {
        for (name, used) in uses() {
            let began = Instant::now();
            let mut idle = Idleness::begins(began);
            for seconds in 0..100 {
                let verdict = idle.look(used, began, STOP, began + seconds * SECOND);
                assert_ne!(verdict, Verdict::Rest, "{name} after {seconds} s");
            }
            let over = began + 100 * SECOND;
            // A call that ended says so; of the rest it is only known that it ended by now.
            let called_at = if used.lasts() { began } else { over };
            let rests_at = over + STOP;
            let verdict = idle.look(Use::default(), called_at, STOP, over);
            assert_eq!(verdict, Verdict::LookAt(rests_at), "{name}");
            let early = rests_at - Duration::from_nanos(1);
            let verdict = idle.look(Use::default(), called_at, STOP, early);
            assert_eq!(verdict, Verdict::LookAt(rests_at), "{name}");
            assert_eq!(idle.look(Use::default(), called_at, STOP, rests_at), Verdict::Rest);
        }
    }

    #[test]
    fn a_call_of_the_very_moment_keeps_it() {
        let began = Instant::now();
        let at = began + STOP;
        let call = Use { calls: 1, ..Use::default() };
        let mut idle = Idleness::begins(began);
        assert_ne!(idle.look(call, at, STOP, at), Verdict::Rest);
        let mut idle = Idleness::begins(began);
        assert_eq!(idle.look(Use::default(), at, STOP, at), Verdict::LookAt(at + STOP));
    }

    #[test]
    fn how_long_it_was_of_no_use_is_only_known_of_one_that_is_not_used() {
        let now = Instant::now() + STOP;
        let called_at = now - SECOND;
        assert_eq!(Idleness::so_far(Use::default(), called_at, now), Some(SECOND));
        for (name, used) in uses() {
            assert_eq!(Idleness::so_far(used, called_at, now), None, "{name}");
        }
    }

    proptest! {
        /// Uses come and go, and it is looked at whenever a look is due.
        #[test]
        fn it_never_rests_while_it_is_used_nor_sooner_than_it_may(
            uses in proptest::collection::vec((0_usize..6, 1_u64..20_000, 0_u64..20_000), 0..20),
        ) {
            let began = Instant::now();
            let kinds = self::uses();
            // When each use begins and ends, one after the other.
            let mut spans = Vec::new();
            let mut at = began;
            for (kind, takes, pause) in uses {
                let from = at + Duration::from_millis(pause);
                at = from + Duration::from_millis(takes);
                spans.push((kinds[kind].1, from, at));
            }
            let mut idle = Idleness::begins(began);
            let mut now = began;
            loop {
                let used = spans.iter().find(|(_, from, to)| *from <= now && now < *to);
                let called = spans.iter().filter(|(used, ..)| used.calls > 0);
                let times = called.flat_map(|(_, from, to)| [*from, *to]);
                let called_at = times.filter(|at| *at <= now).max().unwrap_or(began);
                match idle.look(used.map(|it| it.0).unwrap_or_default(), called_at, STOP, now) {
                    Verdict::Rest => break,
                    Verdict::LookAt(at) => {
                        prop_assert!(at > now, "time goes on");
                        now = at;
                    }
                }
                prop_assert!(now < began + 2000 * SECOND, "it rests at last");
            }
            // What was not seen at a look has not kept it; what was has, and all calls have.
            for (used, from, to) in &spans {
                prop_assert!(!(*from <= now && now < *to), "used");
                if used.calls > 0 && *to <= now {
                    prop_assert!(now >= *to + STOP, "too soon after a call");
                }
            }
        }
    }
}
