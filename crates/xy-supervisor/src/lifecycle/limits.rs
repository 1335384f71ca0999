//! How much of the limits on restarts is used, and when the last attempt has come. Pure.

use std::fmt;
use std::time::Instant;

use xy_config::settings::Rules;

use super::{Life, Reason, State, WINDOW};

/// How much of each limit on restarts is used; a limit of 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitsUsed {
    /// Restarts in a row, none of which has led to `reset-after` of ready uptime.
    pub in_a_row: u32,
    /// How many there may be.
    pub max_attempts: u32,
    /// Unexpected exits of the last [`WINDOW`]; beyond the limit they are not counted.
    pub exits_last_minute: u32,
    /// How many there may be.
    pub max_retries_per_minute: u32,
}

/// Why a life is the last attempt: if it fails as well, the server is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastAttempt {
    /// `max-attempts` allows no more.
    InARow {
        /// Which restart in a row this is.
        attempt: u32,
        /// The limit, `max-attempts`.
        of: u32,
    },
    /// `max-retries-per-minute` allows no more, until some of the exits are a minute ago.
    WithinAMinute {
        /// How many exits there were.
        exits: u32,
    },
}

impl Life {
    /// How much of each limit is used.
    pub fn limits_used(&self, rules: &Rules, now: Instant) -> LimitsUsed {
        let has_proved_itself = matches!(self.state, State::Running { ready_at, .. }
            if now.saturating_duration_since(ready_at) >= rules.restart.reset_after);
        let recent = self.tally.recent_exits.iter();
        let exits = recent.filter(|at| now.saturating_duration_since(**at) < WINDOW).count();
        LimitsUsed {
            in_a_row: if has_proved_itself { 0 } else { self.tally.in_a_row },
            max_attempts: rules.restart.max_attempts,
            exits_last_minute: u32::try_from(exits).unwrap_or(u32::MAX),
            max_retries_per_minute: rules.restart.max_retries_per_minute,
        }
    }

    /// Whether a life that has just begun by policy is the last that is tried.
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

    use super::super::{Effect, Event, Exit, Moment, on_event};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rules(max_attempts: u32, max_retries_per_minute: u32) -> Rules {
        let mut rules = Rules::default();
        rules.restart.max_attempts = max_attempts;
        rules.restart.max_retries_per_minute = max_retries_per_minute;
        rules.restart.jitter = false;
        rules
    }

    /// Lets a server die at once, again and again; answers what each new life was.
    fn deaths(rules: &Rules, count: usize) -> Vec<Option<LastAttempt>> {
        let mut now = tokio::time::Instant::now().into_std();
        let mut life = Life::new(Wanted::Up);
        let mut last_attempts = Vec::new();
        let mut happens = |life: &mut Life, event, now| {
            let moment = Moment { now, chance: 0, is_remote: false };
            let (next, effect) = on_event(life.clone(), event, rules, moment);
            *life = next;
            if effect == Some(Effect::Launch) {
                last_attempts.push(life.last_attempt(rules, now));
            }
        };
        happens(&mut life, Event::StartRequested, now);
        for _ in 0..count {
            happens(&mut life, Event::Exited(Exit::code(1)), now);
            if let Some(deadline) = life.state.deadline() {
                now = deadline;
                happens(&mut life, Event::DeadlineReached, now);
            }
        }
        last_attempts
    }

    #[test]
    fn the_last_restart_in_a_row_is_known_as_such() {
        let last = Some(LastAttempt::InARow { attempt: 3, of: 3 });
        assert_eq!(deaths(&rules(3, 0), 9), [None, None, None, last]);
    }

    #[test]
    fn so_is_the_last_within_a_minute() {
        let last = Some(LastAttempt::WithinAMinute { exits: 2 });
        assert_eq!(deaths(&rules(0, 2), 9), [None, None, last]);
        let in_a_row = Some(LastAttempt::InARow { attempt: 2, of: 2 });
        assert_eq!(deaths(&rules(2, 2), 9), [None, None, in_a_row], "one word is enough");
    }

    #[test]
    fn without_limits_there_is_no_last_attempt() {
        assert_eq!(deaths(&rules(0, 0), 5), [None; 6]);
    }

    #[test]
    fn what_is_used_is_given_back_with_time() {
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
