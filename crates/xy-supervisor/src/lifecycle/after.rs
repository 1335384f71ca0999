//! What comes after an end that nobody asked for: whether it is tried again, and when.

use std::time::{Duration, Instant};

use xy_config::settings::{RestartPolicy, RestartRules, Rules, Start};

use super::reason::{Exit, Reason};
use super::state::{Life, State, Tally};
use super::{Moment, SHORT_LIFE, SHORT_LIFE_DELAY, WINDOW};

/// How long a life was.
pub(super) struct Lived {
    pub(super) total: Duration,
    pub(super) ready: Duration,
}

impl Lived {
    pub(super) const NOT: Self = Self { total: Duration::ZERO, ready: Duration::ZERO };
}

/// An end that nobody asked for.
pub(super) struct End {
    pub(super) what: Reason,
    pub(super) clean: bool,
    pub(super) lived: Lived,
}

impl End {
    pub(super) fn of(exit: Exit, lived: Lived) -> Self {
        Self { what: Reason::Exited(exit), clean: exit.is_clean(), lived }
    }
}

/// Whether to try again, and when.
pub(super) fn after_end(mut life: Life, end: End, rules: &Rules, moment: Moment) -> Life {
    let restart = &rules.restart;
    let is_lazy = rules.start == Start::Lazy;
    if is_lazy && end.clean {
        return life.enters(State::Asleep { not_before: None }, end.what);
    }
    let wants_restart = match restart.policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => !end.clean,
        RestartPolicy::Never => false,
    };
    if !wants_restart {
        let state = if end.clean { State::Stopped } else { State::Failed };
        return life.enters(state, end.what);
    }
    life = after_uptime(life, end.lived.ready, rules);
    let exits = note_exit(&mut life.tally, restart.max_retries_per_minute, moment.now);
    let last = Box::new(end.what);
    if restart.max_retries_per_minute != 0 && exits > restart.max_retries_per_minute {
        let limit = restart.max_retries_per_minute;
        return life.enters(State::Failed, Reason::TooManyExits { exits, limit, last });
    }
    if restart.max_attempts != 0 && life.tally.in_a_row >= restart.max_attempts {
        let attempts = life.tally.in_a_row;
        return life.enters(State::Failed, Reason::TooManyAttempts { attempts, last });
    }
    let delay = delay_after(life.tally.in_a_row, end.lived.total, rules, moment.chance);
    life.enters(later(moment.now + delay, is_lazy), *last)
}

/// A new life may begin then; one that is lazy has to be woken for that.
fn later(at: Instant, is_lazy: bool) -> State {
    if is_lazy { State::Asleep { not_before: Some(at) } } else { State::Backoff { retry_at: at } }
}

/// When to try again to reach one that lives somewhere else. A while of being ready ends the
/// row of delays that grow.
pub(super) fn after_silence(mut life: Life, why: Reason, rules: &Rules, moment: Moment) -> Life {
    let ready = match life.state {
        State::Running { ready_at, .. } => moment.now - ready_at,
        _ => Duration::ZERO,
    };
    life = reached_for(life, ready, rules);
    let unreached = &mut life.tally.unreached;
    let restart = &rules.restart;
    let initial = restart.backoff_initial.max(SHORT_LIFE_DELAY);
    let delay = grown(initial, *unreached, restart, moment.chance).max(SHORT_LIFE_DELAY);
    *unreached = unreached.saturating_add(1);
    let state = later(moment.now + delay, rules.start == Start::Lazy);
    life.enters(state, why)
}

/// The delays of one that lives somewhere else begin anew if it was reached for long enough.
pub(super) fn reached_for(mut life: Life, ready: Duration, rules: &Rules) -> Life {
    if ready >= rules.restart.reset_after {
        life.tally.unreached = 0;
    }
    life
}

/// A row ends with a life that was ready for long enough.
pub(super) fn after_uptime(mut life: Life, ready: Duration, rules: &Rules) -> Life {
    if ready >= rules.restart.reset_after {
        life.tally.in_a_row = 0;
    }
    life
}

/// Counts one more unexpected exit; answers how many there were within the window.
fn note_exit(tally: &mut Tally, limit: u32, now: Instant) -> u32 {
    let exits = &mut tally.recent_exits;
    exits.push_back(now);
    while exits.front().is_some_and(|&at| now - at >= WINDOW) || exits.len() > limit as usize + 1 {
        exits.pop_front();
    }
    u32::try_from(exits.len()).unwrap_or(u32::MAX)
}

/// `min(max, initial · 2ⁿ)`, and up to a quarter more, but never over the maximum.
fn delay_after(in_a_row: u32, lived: Duration, rules: &Rules, chance: u8) -> Duration {
    let restart = &rules.restart;
    if restart.backoff_initial.is_zero() {
        return if lived >= SHORT_LIFE { Duration::ZERO } else { SHORT_LIFE_DELAY };
    }
    grown(restart.backoff_initial, in_a_row, restart, chance)
}

fn grown(initial: Duration, times: u32, restart: &RestartRules, chance: u8) -> Duration {
    let doubled = 2u32.checked_pow(times).and_then(|by| initial.checked_mul(by));
    let delay = doubled.unwrap_or(restart.backoff_max).min(restart.backoff_max);
    let jitter = if restart.jitter { delay / 4 * u32::from(chance) / 255 } else { Duration::ZERO };
    (delay + jitter).min(restart.backoff_max)
}
