//! Decides whether and when a server is restarted after an unexpected end.

use std::time::{Duration, Instant};

use xy_config::settings::{RestartPolicy, RestartRules, Rules, Start};

use super::reason::{Exit, Reason};
use super::state::{Life, State, Tally};
use super::{Context, SHORT_LIFE, SHORT_LIFE_DELAY, WINDOW};

/// The duration of a life.
pub(super) struct LifeSpan {
    pub(super) total: Duration,
    pub(super) ready: Duration,
}

impl LifeSpan {
    pub(super) const ZERO: Self = Self { total: Duration::ZERO, ready: Duration::ZERO };
}

/// An end of a life that was not requested.
pub(super) struct UnexpectedEnd {
    pub(super) reason: Reason,
    pub(super) clean: bool,
    pub(super) lived: LifeSpan,
}

impl UnexpectedEnd {
    pub(super) fn of(exit: Exit, lived: LifeSpan) -> Self {
        Self { reason: Reason::Exited(exit), clean: exit.is_clean(), lived }
    }
}

/// Decides whether to restart the server, and when.
pub(super) fn decide_restart(
    mut life: Life,
    end: UnexpectedEnd,
    rules: &Rules,
    context: Context,
) -> Life {
    let restart = &rules.restart;
    let is_lazy = rules.start == Start::Lazy;
    if is_lazy && end.clean {
        return life.enter(State::Asleep { not_before: None }, end.reason);
    }
    let wants_restart = match restart.policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => !end.clean,
        RestartPolicy::Never => false,
    };
    if !wants_restart {
        let state = if end.clean { State::Stopped } else { State::Failed };
        return life.enter(state, end.reason);
    }
    life = reset_restarts(life, end.lived.ready, rules);
    let exits = record_exit(&mut life.tally, restart.max_retries_per_minute, context.now);
    let last = Box::new(end.reason);
    if restart.max_retries_per_minute != 0 && exits > restart.max_retries_per_minute {
        let limit = restart.max_retries_per_minute;
        return life.enter(State::Failed, Reason::TooManyExits { exits, limit, last });
    }
    if restart.max_attempts != 0 && life.tally.in_a_row >= restart.max_attempts {
        let attempts = life.tally.in_a_row;
        return life.enter(State::Failed, Reason::TooManyAttempts { attempts, last });
    }
    let delay = restart_delay(life.tally.in_a_row, end.lived.total, rules, context.random);
    life.enter(delayed_state(context.now + delay, is_lazy), *last)
}

/// Returns the state that waits until `at` for the next life. A lazy server has to be woken too.
fn delayed_state(at: Instant, is_lazy: bool) -> State {
    if is_lazy { State::Asleep { not_before: Some(at) } } else { State::Backoff { retry_at: at } }
}

/// Schedules the next attempt to reach a server that is unreachable. Delays grow from attempt to
/// attempt, and start anew after `reset-after` of ready uptime.
pub(super) fn schedule_reconnect(
    mut life: Life,
    why: Reason,
    rules: &Rules,
    context: Context,
) -> Life {
    let ready = match life.state {
        State::Running { ready_at, .. } => context.now - ready_at,
        _ => Duration::ZERO,
    };
    life = reset_reconnect_delays(life, ready, rules);
    let unreachable_count = &mut life.tally.unreachable_count;
    let restart = &rules.restart;
    let initial = restart.backoff_initial.max(SHORT_LIFE_DELAY);
    let delay = exponential_delay(initial, *unreachable_count, restart, context.random)
        .max(SHORT_LIFE_DELAY);
    *unreachable_count = unreachable_count.saturating_add(1);
    let state = delayed_state(context.now + delay, rules.start == Start::Lazy);
    life.enter(state, why)
}

/// Resets the reconnect delays if the server was ready for `reset-after`.
pub(super) fn reset_reconnect_delays(mut life: Life, ready: Duration, rules: &Rules) -> Life {
    if ready >= rules.restart.reset_after {
        life.tally.unreachable_count = 0;
    }
    life
}

/// Resets the restarts in a row if the life was ready for `reset-after`.
pub(super) fn reset_restarts(mut life: Life, ready: Duration, rules: &Rules) -> Life {
    if ready >= rules.restart.reset_after {
        life.tally.in_a_row = 0;
    }
    life
}

/// Records an unexpected exit. Returns the number of exits within the window.
fn record_exit(tally: &mut Tally, limit: u32, now: Instant) -> u32 {
    let exits = &mut tally.recent_exits;
    exits.push_back(now);
    while exits.front().is_some_and(|&at| now - at >= WINDOW) || exits.len() > limit as usize + 1 {
        exits.pop_front();
    }
    u32::try_from(exits.len()).unwrap_or(u32::MAX)
}

/// Returns the delay before a restart: `min(max, initial · 2ⁿ)` plus a jitter of up to a quarter,
/// but never more than the maximum. With a `backoff-initial` of 0 there is no delay, except a short
/// one after a short life.
fn restart_delay(in_a_row: u32, lived: Duration, rules: &Rules, random: u8) -> Duration {
    let restart = &rules.restart;
    if restart.backoff_initial.is_zero() {
        return if lived >= SHORT_LIFE { Duration::ZERO } else { SHORT_LIFE_DELAY };
    }
    exponential_delay(restart.backoff_initial, in_a_row, restart, random)
}

fn exponential_delay(
    initial: Duration,
    times: u32,
    restart: &RestartRules,
    random: u8,
) -> Duration {
    let doubled = 2u32.checked_pow(times).and_then(|by| initial.checked_mul(by));
    let delay = doubled.unwrap_or(restart.backoff_max).min(restart.backoff_max);
    let jitter = if restart.jitter { delay / 4 * u32::from(random) / 255 } else { Duration::ZERO };
    (delay + jitter).min(restart.backoff_max)
}
