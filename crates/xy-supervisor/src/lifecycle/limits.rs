//! The use of the restart limits, and detection of the last attempt. Pure.

use std::fmt;
use std::time::Instant;

use xy_config::settings::Rules;

use super::{Life, Reason, State, WINDOW};

/// The use of each restart limit. A limit of 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitsUsed {
    /// Restarts in a row, none of which has led to `reset-after` of ready uptime.
    pub in_a_row: u32,
    /// Maximum number of restarts in a row.
    pub max_attempts: u32,
    /// Unexpected exits within the last [`WINDOW`]; beyond the limit they are not counted.
    pub exits_last_minute: u32,
    /// Maximum number of unexpected exits within [`WINDOW`].
    pub max_retries_per_minute: u32,
}

/// Why a life is the last attempt. If it fails too, the server is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastAttempt {
    /// `max-attempts` allows no more.
    InARow {
        /// The number of this restart in a row.
        attempt: u32,
        /// The limit, `max-attempts`.
        of: u32,
    },
    /// `max-retries-per-minute` allows no more until some of the exits are a minute old.
    WithinAMinute {
        /// The number of exits.
        exits: u32,
    },
}

impl Life {
    /// Returns the use of each limit.
    pub fn limits_used(&self, rules: &Rules, now: Instant) -> LimitsUsed {
        let is_stable = matches!(self.state, State::Running { ready_at, .. }
            if now.saturating_duration_since(ready_at) >= rules.restart.reset_after);
        let recent = self.tally.recent_exits.iter();
        let exits = recent.filter(|at| now.saturating_duration_since(**at) < WINDOW).count();
        LimitsUsed {
            in_a_row: if is_stable { 0 } else { self.tally.in_a_row },
            max_attempts: rules.restart.max_attempts,
            exits_last_minute: u32::try_from(exits).unwrap_or(u32::MAX),
            max_retries_per_minute: rules.restart.max_retries_per_minute,
        }
    }

    /// Returns why the life that has just started by policy is the last attempt, if it is.
    pub fn last_attempt(&self, rules: &Rules, now: Instant) -> Option<LastAttempt> {
        let Reason::Retry { attempt, of } = self.reason else { return None };
        let used = self.limits_used(rules, now);
        if of != 0 && attempt >= of {
            return Some(LastAttempt::InARow { attempt, of });
        }
        let (exits, limit) = (used.exits_last_minute, used.max_retries_per_minute);
        (limit != 0 && exits >= limit).then_some(LastAttempt::WithinAMinute { exits })
    }
}

impl fmt::Display for LastAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InARow { attempt, of } => write!(f, "final restart attempt ({attempt} of {of})"),
            Self::WithinAMinute { exits } => write!(
                f,
                "final restart attempt ({exits} unexpected exits within 60 s, the limit of \
                 max-retries-per-minute)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use xy_protocol::server::Wanted;

    use super::super::{Context, Effect, Event, Exit, on_event};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rules(max_attempts: u32, max_retries_per_minute: u32) -> Rules {
        let mut rules = Rules::default();
        rules.restart.max_attempts = max_attempts;
        rules.restart.max_retries_per_minute = max_retries_per_minute;
        rules.restart.jitter = false;
        rules
    }

    /// Lets each life of a server exit at once. Returns the last-attempt state of each launch.
    fn crash_repeatedly(rules: &Rules, count: usize) -> Vec<Option<LastAttempt>> {
        let mut now = tokio::time::Instant::now().into_std();
        let mut life = Life::new(Wanted::Up);
        let mut last_attempts = Vec::new();
        let mut apply = |life: &mut Life, event, now| {
            let context = Context { now, random: 0, is_remote: false };
            let (next, effect) = on_event(life.clone(), event, rules, context);
            *life = next;
            if effect == Some(Effect::Launch) {
                last_attempts.push(life.last_attempt(rules, now));
            }
        };
        apply(&mut life, Event::StartRequested, now);
        for _ in 0..count {
            apply(&mut life, Event::Exited(Exit::code(1)), now);
            if let Some(deadline) = life.state.deadline() {
                now = deadline;
                apply(&mut life, Event::DeadlineReached, now);
            }
        }
        last_attempts
    }

    #[test]
    fn last_restart_in_a_row_is_last_attempt() {
        let last = Some(LastAttempt::InARow { attempt: 3, of: 3 });
        assert_eq!(crash_repeatedly(&rules(3, 0), 9), [None, None, None, last]);
    }

    #[test]
    fn last_exit_within_a_minute_is_last_attempt() {
        let last = Some(LastAttempt::WithinAMinute { exits: 2 });
        assert_eq!(crash_repeatedly(&rules(0, 2), 9), [None, None, last]);
        let in_a_row = Some(LastAttempt::InARow { attempt: 2, of: 2 });
        assert_eq!(
            crash_repeatedly(&rules(2, 2), 9),
            [None, None, in_a_row],
            "only one limit is named"
        );
    }

    #[test]
    fn unlimited_restarts_have_no_last_attempt() {
        assert_eq!(crash_repeatedly(&rules(0, 0), 5), [None; 6]);
    }

    #[test]
    fn old_exits_no_longer_count() {
        let rules = rules(5, 5);
        let began = tokio::time::Instant::now().into_std();
        let mut life = Life::new(Wanted::Up);
        life.tally.in_a_row = 2;
        life.tally.recent_exits = [began, began + 30 * SECOND].into();
        life.state = State::Running { launched_at: began, ready_at: began + 30 * SECOND };
        let used = |seconds| {
            let used = life.limits_used(&rules, began + seconds * SECOND);
            (used.in_a_row, used.exits_last_minute)
        };
        assert_eq!(used(59), (2, 2));
        assert_eq!(used(60), (2, 1));
        assert_eq!(used(90), (0, 0));
    }
}
