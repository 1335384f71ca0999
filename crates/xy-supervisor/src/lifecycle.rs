//! The lifecycle of one instance, as a pure function.
//!
//! Nothing here spawns, sleeps, logs, reads a clock or draws a random number. [`on_event`] takes
//! the state of an instance and one event, and returns the next state and the effect to carry
//! out. `task.rs` carries it out.
//!
//! ```text
//!            start                 ready
//! stopped ──────────► starting ──────────► running
//!    ▲  ▲                │ exited,            │ exited
//!    │  │                │ launch failed      │
//!    │  │ clean exit,    ▼                    ▼
//!    │  └─────────── by policy: restart?  ◄───┘
//!    │                   │ yes         │ no, or too often
//!    │      deadline     ▼             ▼
//!    │   starting ◄── backoff       failed ── start, changed file ──► starting
//!    │                   │             │
//!    │ exited            │ stop        │ stop
//! stopping ◄── stop ── (any)           └──────► stopped
//!    └── then: start again, count a failure, or retire for good
//! ```
//!
//! A remote server cannot exit here. If it does not answer, it is *unreachable*: it goes to
//! `backoff` with delays of its own, and nothing is counted.
//!
//! A server that may stop while it is idle *sleeps*: to clients it is available, and it is
//! launched when it is woken. A lazy server also sleeps after an exit. A client that still needs
//! it wakes it, but not before the delay is over.
//!
//! ```text
//!             woken                     idle
//! asleep ──────────────► starting …  running ───► stopping ── exited ──► asleep
//!    │ woken, delay not over                          └── woken ──► starting
//!    └────────────────► backoff
//! ```
//!
//! A server that fails on the protocol probe is restarted at once, and the driver tries another
//! protocol. xy caused that failure, so the first one is not counted.

use std::time::{Duration, Instant};

use xy_config::settings::{RestartPolicy, Rules};
use xy_protocol::server::Wanted;

mod limits;
pub(crate) mod note;
pub mod reason;
mod restart;
mod state;

pub use limits::{LastAttempt, LimitsUsed};
pub use note::Note;
pub use reason::{Exit, LaunchFault, Oom, Reason, Retirement};
use restart::{
    LifeSpan, UnexpectedEnd, decide_restart, reset_reconnect_delays, reset_restarts,
    schedule_reconnect,
};
pub use state::{AfterStop, Life, State, Tally};

/// The window of `max-retries-per-minute`.
pub const WINDOW: Duration = Duration::from_mins(1);

/// Delay after a short life if there is no back-off.
pub const SHORT_LIFE_DELAY: Duration = Duration::from_millis(100);

/// A life shorter than this is a short life.
pub const SHORT_LIFE: Duration = Duration::from_secs(1);

/// How long after the grace a stop is forced. The launcher enforces the grace itself.
pub const STOP_MARGIN: Duration = Duration::from_secs(10);

/// An event in the life of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An operator wants the server up.
    StartRequested,
    /// An operator wants the server down.
    StopRequested,
    /// An operator wants a new life.
    RestartRequested,
    /// The self-test found the server broken, for this reason, and wants a restart. This is not
    /// an operator's wish, so it does not start a stopped server.
    RepairRequested(String),
    /// A client uses the server.
    WakeRequested,
    /// The server is idle and may stop, for this reason. The driver sends it no more calls.
    Idle(String),
    /// The instance is not needed any more, for this reason, and will have no new life.
    RetireRequested(Retirement),
    /// The settings now describe another process.
    ProcessChanged,
    /// The settings have other rules for the same process.
    RulesChanged,
    /// The launcher could not start the server.
    LaunchFailed(LaunchFault),
    /// The container engine is not running, or does not answer.
    EngineUnavailable(LaunchFault),
    /// The launch is still being prepared. The time to become ready starts after that.
    Preparing,
    /// The readiness probe has succeeded.
    Ready,
    /// The server violates the protocol, for this reason.
    ProtocolError(String),
    /// The server was ready and does not answer any more, for this reason.
    Unhealthy(String),
    /// The remote server does not answer, for this reason. The driver has disconnected.
    Unreachable(String),
    /// The server refuses all clients or must not be used, for this reason, until its configuration
    /// changes. The driver has disconnected from a remote server; a local process still runs.
    Unrecoverable(String),
    /// The server has ended.
    Exited(Exit),
    /// The server has ended during the protocol probe, which may be why.
    ExitedOnProbe(Exit),
    /// The server violates the protocol, for this reason, during the protocol probe.
    ProtocolErrorOnProbe(String),
    /// An earlier daemon was killed while it was writing a message to the server.
    WriteInterrupted,
    /// The driver needs a new life, for this reason, to use another protocol.
    RestartRequired(String),
    /// The deadline of the state has passed.
    DeadlineReached,
}

/// An effect to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Start a new life.
    Launch,
    /// Stop the life gracefully, within the grace of its rules.
    Stop,
    /// Kill the life: the graceful stop took too long.
    Kill,
}

/// The inputs of a decision besides state, event and rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The current time.
    pub now: Instant,
    /// A random number that scales the jitter: 0 for none, 255 for all of it.
    pub random: u8,
    /// Whether the server is remote.
    pub is_remote: bool,
}

/// Decides what one event means to an instance.
#[expect(clippy::too_many_lines, reason = "it is one flat table")]
pub fn on_event(
    life: Life,
    event: Event,
    rules: &Rules,
    context: Context,
) -> (Life, Option<Effect>) {
    use AfterStop::{CountFailure, GiveUp, Retire, Sleep, StartAgain, StayDown, TryAgain};
    use Event::{
        DeadlineReached, EngineUnavailable, Exited, ExitedOnProbe, Idle, LaunchFailed, Preparing,
        ProcessChanged, ProtocolError, ProtocolErrorOnProbe, Ready, RepairRequested,
        RestartRequested, RestartRequired, RetireRequested, RulesChanged, StartRequested,
        StopRequested, Unhealthy, Unreachable, Unrecoverable, WakeRequested, WriteInterrupted,
    };
    use State::{Asleep, Backoff, Failed, Retired, Running, Starting, Stopped, Stopping};

    let now = context.now;
    let life = Life { wanted: wanted_after(&event, life.wanted), ..life };
    let event = match event {
        ExitedOnProbe(exit) if !life.forgives_probe(Some(exit)) => Exited(exit),
        ProtocolErrorOnProbe(why) if !life.forgives_probe(None) => ProtocolError(why),
        event => event,
    };
    match (life.state, event) {
        // Requests of operators.
        (Stopped | Backoff { .. } | Asleep { .. } | Failed, StartRequested) => {
            launch_afresh(life, Reason::StartRequested, rules, now)
        }
        (Stopped | Backoff { .. } | Asleep { .. } | Failed, RestartRequested) => {
            launch_afresh(life, Reason::RestartRequested, rules, now)
        }
        (Starting { .. } | Running { .. }, RestartRequested) => {
            stop(life, StartAgain, Reason::RestartRequested, rules, now)
        }
        // A repair counts like a restart by policy. Otherwise repeated self-tests would keep a
        // crashing server from being given up.
        (Backoff { .. } | Failed, RepairRequested(why)) if life.wanted == Wanted::Up => {
            launch_counted(life, |_| Reason::Repaired(why), rules, now)
        }
        (Running { ready_at, .. }, RepairRequested(why)) => {
            let life = reset_restarts(life, now - ready_at, rules);
            let life = reset_reconnect_delays(life, now - ready_at, rules);
            stop(life, StartAgain, Reason::Repaired(why), rules, now)
        }
        (Starting { .. } | Running { .. }, StopRequested) => {
            stop(life, StayDown, Reason::StopRequested, rules, now)
        }
        (Backoff { .. } | Asleep { .. } | Failed, StopRequested) => {
            (life.enter(Stopped, Reason::StopRequested), None)
        }

        // A stop in progress: what follows can still change, unless it is retirement.
        (Stopping { then: Retire, .. }, StartRequested | RestartRequested | StopRequested) => {
            (life, None)
        }
        (Stopping { overdue_at, .. }, StartRequested | RestartRequested) => {
            let state = Stopping { overdue_at, then: StartAgain };
            (life.enter(state, Reason::RestartRequested), None)
        }
        (Stopping { overdue_at, .. }, StopRequested) => {
            (life.enter(Stopping { overdue_at, then: StayDown }, Reason::StopRequested), None)
        }

        // Retirement.
        (Stopped | Backoff { .. } | Asleep { .. } | Failed, RetireRequested(why)) => {
            (life.enter(Retired, Reason::RetireRequested(why)), None)
        }
        (Starting { .. } | Running { .. }, RetireRequested(why)) => {
            stop(life, Retire, Reason::RetireRequested(why), rules, now)
        }
        (Stopping { overdue_at, .. }, RetireRequested(why)) => {
            (life.enter(Stopping { overdue_at, then: Retire }, Reason::RetireRequested(why)), None)
        }

        // Wake-up and idleness. A wake-up does not reset the counts.
        (Asleep { not_before: Some(at) }, WakeRequested) if at > now => {
            (Life { state: Backoff { retry_at: at }, ..life }, None)
        }
        (Asleep { .. }, WakeRequested) => launch(life, Reason::WakeRequested, rules, now),
        (Stopping { overdue_at, then: Sleep }, WakeRequested) => {
            (life.enter(Stopping { overdue_at, then: StartAgain }, Reason::WakeRequested), None)
        }
        (Running { ready_at, .. }, Idle(why)) => {
            let life = reset_restarts(life, now - ready_at, rules);
            stop(life, Sleep, Reason::Idle(why), rules, now)
        }
        (Starting { .. }, Idle(why)) => stop(life, Sleep, Reason::Idle(why), rules, now),

        // Reloads. A server that an operator stopped stays stopped.
        (Stopped | Backoff { .. } | Failed, ProcessChanged) | (Failed, RulesChanged)
            if life.wanted == Wanted::Up =>
        {
            launch_afresh(life, Reason::SettingsChanged, rules, now)
        }
        // The new settings do not let it sleep.
        (Asleep { .. }, ProcessChanged | RulesChanged) if !rules.may_sleep() => {
            launch_afresh(life, Reason::SettingsChanged, rules, now)
        }
        (Asleep { .. }, ProcessChanged) => {
            let life = Life { tally: life.tally.fresh(), ..life };
            (life.enter(Asleep { not_before: None }, Reason::SettingsChanged), None)
        }
        (Failed, ProcessChanged | RulesChanged) => {
            (life.enter(Stopped, Reason::SettingsChanged), None)
        }
        (Starting { .. } | Running { .. }, ProcessChanged) => {
            stop(life, StartAgain, Reason::SettingsChanged, rules, now)
        }
        // The stop is no failure under the new settings.
        (Stopping { overdue_at, then: CountFailure | TryAgain | GiveUp }, ProcessChanged) => {
            let state = Stopping { overdue_at, then: StartAgain };
            (life.enter(state, Reason::SettingsChanged), None)
        }
        (Stopping { then: StartAgain, .. }, ProcessChanged)
            if matches!(life.reason, Reason::Repaired(_)) =>
        {
            (Life { reason: Reason::SettingsChanged, ..life }, None)
        }

        // A partial message cannot be withdrawn. xy caused that, so nothing is counted.
        (Starting { .. } | Running { .. }, WriteInterrupted) => {
            stop(life, StartAgain, Reason::WriteInterrupted, rules, now)
        }
        (Starting { .. } | Running { .. }, RestartRequired(why)) => {
            stop(life, StartAgain, Reason::RestartRequired(why), rules, now)
        }

        // The protocol probe was xy's doing too. The driver tries another protocol next.
        (Starting { .. } | Running { .. }, ExitedOnProbe(_)) => {
            launch(life.forgive_probe(), Reason::ProtocolProbeFailed, rules, now)
        }
        (Starting { .. } | Running { .. }, ProtocolErrorOnProbe(_)) => {
            stop(life.forgive_probe(), StartAgain, Reason::ProtocolProbeFailed, rules, now)
        }

        // Remote servers.
        (Starting { .. }, DeadlineReached) if context.is_remote => {
            let why = format!("no answer within {:?}", rules.ready.within);
            stop(life, TryAgain, Reason::Unreachable(why), rules, now)
        }
        (Starting { .. } | Running { .. }, Unreachable(why)) => {
            (schedule_reconnect(life, Reason::Unreachable(why), rules, context), None)
        }
        // xy cannot end a remote server, and it has not crashed.
        (Running { ready_at, .. }, Unhealthy(why)) if context.is_remote => {
            let life = reset_reconnect_delays(life, now - ready_at, rules);
            stop(life, TryAgain, Reason::Unreachable(why), rules, now)
        }
        (Starting { .. } | Running { .. }, Unrecoverable(why)) if context.is_remote => {
            (life.enter(Failed, Reason::ProtocolError(why)), None)
        }
        // A process is stopped first. A restart would not help.
        (Starting { .. } | Running { .. }, Unrecoverable(why)) => {
            stop(life, GiveUp, Reason::ProtocolError(why), rules, now)
        }
        (Stopping { .. }, Unrecoverable(_)) if !context.is_remote => (life, None),
        (Starting { .. } | Running { .. }, Exited(_)) if context.is_remote => {
            let why = Reason::Unreachable("the connection to it was closed".to_owned());
            (schedule_reconnect(life, why, rules, context), None)
        }
        (Starting { .. }, LaunchFailed(fault)) if context.is_remote && !fault.permanent => {
            (schedule_reconnect(life, Reason::Unreachable(fault.message), rules, context), None)
        }
        // A missing engine is no failure of the server, either.
        (Starting { .. }, EngineUnavailable(fault))
            if rules.restart.policy != RestartPolicy::Never =>
        {
            (schedule_reconnect(life, Reason::EngineUnavailable(fault), rules, context), None)
        }
        (Starting { .. }, EngineUnavailable(fault)) => {
            (life.enter(Failed, Reason::EngineUnavailable(fault)), None)
        }
        (Backoff { .. }, DeadlineReached)
            if context.is_remote || matches!(life.reason, Reason::EngineUnavailable(_)) =>
        {
            let attempt = life.tally.unreachable_count.saturating_add(1);
            launch(life, Reason::ReconnectAttempt { attempt }, rules, now)
        }

        // The course of a life.
        (Starting { launched_at, .. }, Ready) => {
            let mut life = life.enter(Running { launched_at, ready_at: now }, Reason::Ready);
            if !context.is_remote {
                life.tally.unreachable_count = 0; // The engine is back.
            }
            (life, None)
        }
        (Starting { launched_at, .. }, Preparing) => {
            let ready_by = now + rules.ready.within;
            (Life { state: Starting { launched_at, ready_by }, ..life }, None)
        }
        (Starting { .. }, DeadlineReached) => {
            let within = rules.ready.within;
            stop(
                life,
                CountFailure,
                Reason::NeverReady { within, unparsed_output: None },
                rules,
                now,
            )
        }
        (Starting { .. }, ProtocolError(why)) => {
            stop(life, CountFailure, Reason::ProtocolError(why), rules, now)
        }
        (Running { ready_at, .. }, ProtocolError(why)) => {
            let life = reset_restarts(life, now - ready_at, rules);
            stop(life, CountFailure, Reason::ProtocolError(why), rules, now)
        }
        (Running { ready_at, .. }, Unhealthy(why)) => {
            let life = reset_restarts(life, now - ready_at, rules);
            stop(life, CountFailure, Reason::Unhealthy(why), rules, now)
        }
        // With `ready "process"`, a server is ready before the launcher knows that its program
        // cannot be run.
        (Starting { .. } | Running { .. }, LaunchFailed(fault)) if fault.permanent => {
            (life.enter(Failed, Reason::LaunchFailed(fault)), None)
        }
        (Starting { .. }, LaunchFailed(fault)) => {
            let reason = Reason::LaunchFailed(fault);
            let end = UnexpectedEnd { reason, clean: false, lived: LifeSpan::ZERO };
            (decide_restart(life, end, rules, context), None)
        }
        (Starting { launched_at, .. }, Exited(exit)) => {
            let lived = LifeSpan { total: now - launched_at, ready: Duration::ZERO };
            (decide_restart(life, UnexpectedEnd::of(exit, lived), rules, context), None)
        }
        (Running { launched_at, ready_at }, Exited(exit)) => {
            let lived = LifeSpan { total: now - launched_at, ready: now - ready_at };
            (decide_restart(life, UnexpectedEnd::of(exit, lived), rules, context), None)
        }
        (Backoff { .. }, DeadlineReached) => launch_again(life, rules, now),

        // The end of a stop. The reason of a counted failure has to be kept until then.
        (
            Stopping {
                overdue_at: Some(_),
                then: then @ (CountFailure | GiveUp | TryAgain | Sleep),
            },
            DeadlineReached,
        ) => (Life { state: Stopping { overdue_at: None, then }, ..life }, Some(Effect::Kill)),
        (Stopping { overdue_at: Some(_), then: StartAgain }, DeadlineReached)
            if matches!(life.reason, Reason::Repaired(_)) =>
        {
            let state = Stopping { overdue_at: None, then: StartAgain };
            (Life { state, ..life }, Some(Effect::Kill))
        }
        (Stopping { then, .. }, DeadlineReached) => (
            life.enter(Stopping { overdue_at: None, then }, Reason::StopOverdue),
            Some(Effect::Kill),
        ),
        // The server was not slow: it could not be started, which was known late.
        (Stopping { then: CountFailure, .. }, LaunchFailed(fault))
            if fault.permanent && matches!(life.reason, Reason::NeverReady { .. }) =>
        {
            (life.enter(Failed, Reason::LaunchFailed(fault)), None)
        }
        (
            Stopping { then, .. },
            Exited(_) | LaunchFailed(_) | EngineUnavailable(_) | Unreachable(_) | Unrecoverable(_),
        ) => {
            match then {
                StayDown => (life.enter(Stopped, Reason::StopDone), None),
                // The settings have changed meanwhile.
                Sleep if !rules.may_sleep() => {
                    launch_afresh(life, Reason::SettingsChanged, rules, now)
                }
                Sleep => (Life { state: Asleep { not_before: None }, ..life }, None),
                Retire => (life.enter(Retired, Reason::StopDone), None),
                GiveUp => (Life { state: Failed, ..life }, None),
                StartAgain if matches!(life.reason, Reason::SettingsChanged) => {
                    launch_afresh(life, Reason::SettingsChanged, rules, now)
                }
                StartAgain if matches!(life.reason, Reason::Repaired(_)) => {
                    let why = life.reason.clone();
                    launch_counted(life, |_| why, rules, now)
                }
                StartAgain
                    if matches!(
                        life.reason,
                        Reason::WriteInterrupted
                            | Reason::ProtocolProbeFailed
                            | Reason::RestartRequired(_)
                            | Reason::WakeRequested
                    ) =>
                {
                    let why = life.reason.clone();
                    launch(life, why, rules, now)
                }
                StartAgain => launch_afresh(life, Reason::RestartRequested, rules, now),
                CountFailure => {
                    let reason = match &life.reason {
                        reason if reason.is_failure() => reason.clone(),
                        _ => {
                            Reason::NeverReady { within: rules.ready.within, unparsed_output: None }
                        }
                    };
                    let end = UnexpectedEnd { reason, clean: false, lived: LifeSpan::ZERO };
                    (decide_restart(life, end, rules, context), None)
                }
                TryAgain => {
                    let why = Reason::Unreachable(life.reason.to_string());
                    (schedule_reconnect(life, why, rules, context), None)
                }
            }
        }

        // All other events ask for the current state, or come too late.
        (
            Stopped
            | Starting { .. }
            | Running { .. }
            | Backoff { .. }
            | Stopping { .. }
            | Asleep { .. }
            | Failed
            | Retired,
            _,
        ) => (life, None),
    }
}

fn wanted_after(event: &Event, wanted: Wanted) -> Wanted {
    match event {
        Event::StartRequested | Event::RestartRequested => Wanted::Up,
        Event::StopRequested => Wanted::Down,
        _ => wanted,
    }
}

/// Starts a new life that was requested, and resets the counts.
fn launch_afresh(life: Life, why: Reason, rules: &Rules, now: Instant) -> (Life, Option<Effect>) {
    let tally = life.tally.fresh();
    launch(Life { tally, ..life }, why, rules, now)
}

/// Starts a new life by policy.
fn launch_again(life: Life, rules: &Rules, now: Instant) -> (Life, Option<Effect>) {
    let of = rules.restart.max_attempts;
    launch_counted(life, |attempt| Reason::Retry { attempt, of }, rules, now)
}

/// Starts a new life and counts a restart. The reason may depend on the restarts in a row.
fn launch_counted(
    mut life: Life,
    why: impl FnOnce(u32) -> Reason,
    rules: &Rules,
    now: Instant,
) -> (Life, Option<Effect>) {
    let tally = &mut life.tally;
    tally.in_a_row = tally.in_a_row.saturating_add(1);
    tally.restart_count = tally.restart_count.saturating_add(1);
    tally.restarts_total = tally.restarts_total.saturating_add(1);
    let why = why(tally.in_a_row);
    launch(life, why, rules, now)
}

fn launch(life: Life, why: Reason, rules: &Rules, now: Instant) -> (Life, Option<Effect>) {
    let state = State::Starting { launched_at: now, ready_by: now + rules.ready.within };
    (life.enter(state, why), Some(Effect::Launch))
}

fn stop(
    life: Life,
    then: AfterStop,
    why: Reason,
    rules: &Rules,
    now: Instant,
) -> (Life, Option<Effect>) {
    let overdue_at = Some(now + rules.stop.grace + STOP_MARGIN);
    (life.enter(State::Stopping { overdue_at, then }, why), Some(Effect::Stop))
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
