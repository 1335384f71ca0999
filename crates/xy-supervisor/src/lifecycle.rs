//! The life of one instance, as a pure function.
//!
//! Nothing here spawns, sleeps, logs, reads a clock or draws a number. [`on_event`]
//! is told what an instance is doing and one thing that happened; it answers with
//! what it does next and what to do about it. `task.rs` does the doing.
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
//! One that lives somewhere else cannot die here. If it does not answer it is *unreachable*:
//! it goes to `backoff` by delays of its own, and nothing is counted.
//!
//! One that may be away while nobody uses it *sleeps*: it is there as far as anybody can see, and
//! is launched when it is woken. If it is lazy it also sleeps after a death, and whoever still
//! needs it wakes it: not before its delay is over.
//!
//! ```text
//!             woken                     idle
//! asleep ──────────────► starting …  running ───► stopping ── exited ──► asleep
//!    │ woken, delay not over                          └── woken ──► starting
//!    └────────────────► backoff
//! ```
//!
//! One that does not bear the first thing it is asked is started again at once and asked
//! otherwise. That was our doing: nothing is counted, once.

use std::time::{Duration, Instant};

use xy_config::settings::{RestartPolicy, Rules};
use xy_protocol::server::Wanted;

mod after;
mod limits;
pub(crate) mod note;
pub mod reason;
mod state;

use after::{End, Lived, after_end, after_silence, after_uptime, reached_for};
pub use limits::{LastAttempt, LimitsUsed};
pub use reason::{Exit, LaunchFault, Oom, Reason, Retirement};
pub use state::{AfterStop, Life, State, Tally};

/// The window of `max-retries-per-minute`.
pub const WINDOW: Duration = Duration::from_mins(1);

/// With no back-off at all, a successor waits this long if the life before it was short.
pub const SHORT_LIFE_DELAY: Duration = Duration::from_millis(100);

/// A life shorter than this was a short one.
pub const SHORT_LIFE: Duration = Duration::from_secs(1);

/// The launcher keeps the grace itself; if it has not by then, it is forced.
pub const STOP_MARGIN: Duration = Duration::from_secs(10);

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants it up.
    StartRequested,
    /// Somebody wants it down.
    StopRequested,
    /// Somebody wants a new life.
    RestartRequested,
    /// Somebody has found it broken, for this reason, and would start it again. It is no wish of
    /// an operator: who wants it down has the last word.
    RepairRequested(String),
    /// Somebody uses it.
    Woken,
    /// Nobody uses it, for this reason it may go; whoever speaks with it takes no more calls.
    Idle(String),
    /// It is not needed any more, for this reason, and no new life of it will be.
    RetireRequested(Retirement),
    /// Its file now describes another process.
    ProcessChanged,
    /// Its file now has other rules; the process is the same.
    RulesChanged,
    /// The launcher could not start it.
    LaunchFailed(LaunchFault),
    /// What would run it is not there now, or does not answer.
    Away(LaunchFault),
    /// What it needs is still being fetched: it has all its time to become ready after that.
    Preparing,
    /// The probe says that it is ready.
    Ready,
    /// It cannot be spoken with, for this reason.
    Unfit(String),
    /// It was ready and does not answer any more, for this reason.
    Unhealthy(String),
    /// It lives somewhere else and does not answer, for this reason. Nobody speaks with it
    /// any more.
    Unreachable(String),
    /// It refuses to be spoken with or must not be used, for this reason, until somebody changes
    /// something. One that lives somewhere else is not spoken with any more; a process still runs.
    Hopeless(String),
    /// It is gone.
    Exited(Exit),
    /// It is gone, and what it was asked to find out how to speak with it may be why.
    ExitedOnProbe(Exit),
    /// The same of one that is still there, but cannot be spoken with, for this reason.
    UnfitOnProbe(String),
    /// A daemon was killed while it was speaking with it, in the middle of a message.
    Torn,
    /// The gateway needs a new life of it, for this reason, to speak with it otherwise.
    StartOver(String),
    /// The state's own deadline has come.
    DeadlineReached,
}

/// What must be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Begin a new life.
    Launch,
    /// End this one, gently at first, within the grace of its rules.
    Stop,
    /// End this one by force: the gentle way took too long.
    Kill,
}

/// What a decision may depend on besides the state: the time, a number drawn at random, and
/// where the server lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The time.
    pub now: Instant,
    /// Decides the jitter: 0 for none of it, 255 for all.
    pub chance: u8,
    /// Whether it lives somewhere else.
    pub is_remote: bool,
}

/// Decides what one event means to an instance.
#[expect(clippy::too_many_lines, reason = "it is one flat table")]
pub fn on_event(life: Life, event: Event, rules: &Rules, moment: Moment) -> (Life, Option<Effect>) {
    use AfterStop::{CountFailure, GiveUp, Retire, Sleep, StartAgain, StayDown, TryAgain};
    use Event::{
        Away, DeadlineReached, Exited, ExitedOnProbe, Hopeless, Idle, LaunchFailed, Preparing,
        ProcessChanged, Ready, RepairRequested, RestartRequested, RetireRequested, RulesChanged,
        StartOver, StartRequested, StopRequested, Torn, Unfit, UnfitOnProbe, Unhealthy,
        Unreachable, Woken,
    };
    use State::{Asleep, Backoff, Failed, Retired, Running, Starting, Stopped, Stopping};

    let now = moment.now;
    let life = Life { wanted: wanted_after(&event, life.wanted), ..life };
    let event = match event {
        ExitedOnProbe(exit) if !life.forgives_probe(Some(exit)) => Exited(exit),
        UnfitOnProbe(why) if !life.forgives_probe(None) => Unfit(why),
        event => event,
    };
    match (life.state, event) {
        // What an operator asks for.
        (Stopped | Backoff { .. } | Asleep { .. } | Failed, StartRequested) => {
            launch_afresh(life, Reason::StartRequested, rules, now)
        }
        (Stopped | Backoff { .. } | Asleep { .. } | Failed, RestartRequested) => {
            launch_afresh(life, Reason::RestartRequested, rules, now)
        }
        (Starting { .. } | Running { .. }, RestartRequested) => {
            stop(life, StartAgain, Reason::RestartRequested, rules, now)
        }
        // What an operator did not ask for counts like a restart by policy, or whoever repeats it
        // would keep one that crashes from ever being given up.
        (Backoff { .. } | Failed, RepairRequested(why)) if life.wanted == Wanted::Up => {
            launch_counted(life, |_| Reason::Repaired(why), rules, now)
        }
        (Running { ready_at, .. }, RepairRequested(why)) => {
            let life = after_uptime(life, now - ready_at, rules);
            let life = reached_for(life, now - ready_at, rules);
            stop(life, StartAgain, Reason::Repaired(why), rules, now)
        }
        (Starting { .. } | Running { .. }, StopRequested) => {
            stop(life, StayDown, Reason::StopRequested, rules, now)
        }
        (Backoff { .. } | Asleep { .. } | Failed, StopRequested) => {
            (life.enters(Stopped, Reason::StopRequested), None)
        }

        // What comes after a stop can still change, unless it is retirement.
        (Stopping { then: Retire, .. }, StartRequested | RestartRequested | StopRequested) => {
            (life, None)
        }
        (Stopping { overdue_at, .. }, StartRequested | RestartRequested) => {
            let state = Stopping { overdue_at, then: StartAgain };
            (life.enters(state, Reason::RestartRequested), None)
        }
        (Stopping { overdue_at, .. }, StopRequested) => {
            (life.enters(Stopping { overdue_at, then: StayDown }, Reason::StopRequested), None)
        }

        // The end for good.
        (Stopped | Backoff { .. } | Asleep { .. } | Failed, RetireRequested(why)) => {
            (life.enters(Retired, Reason::RetireRequested(why)), None)
        }
        (Starting { .. } | Running { .. }, RetireRequested(why)) => {
            stop(life, Retire, Reason::RetireRequested(why), rules, now)
        }
        (Stopping { overdue_at, .. }, RetireRequested(why)) => {
            (life.enters(Stopping { overdue_at, then: Retire }, Reason::RetireRequested(why)), None)
        }

        // Whether somebody uses it. What went wrong before is not forgotten for that.
        (Asleep { not_before: Some(at) }, Woken) if at > now => {
            (Life { state: Backoff { retry_at: at }, ..life }, None)
        }
        (Asleep { .. }, Woken) => launch(life, Reason::Woken, rules, now),
        (Stopping { overdue_at, then: Sleep }, Woken) => {
            (life.enters(Stopping { overdue_at, then: StartAgain }, Reason::Woken), None)
        }
        (Running { ready_at, .. }, Idle(why)) => {
            let life = after_uptime(life, now - ready_at, rules);
            stop(life, Sleep, Reason::Idle(why), rules, now)
        }
        (Starting { .. }, Idle(why)) => stop(life, Sleep, Reason::Idle(why), rules, now),

        // What a reload brings. A server that an operator stopped stays stopped.
        (Stopped | Backoff { .. } | Failed, ProcessChanged) | (Failed, RulesChanged)
            if life.wanted == Wanted::Up =>
        {
            launch_afresh(life, Reason::SettingsChanged, rules, now)
        }
        // Its file says that it is there whether or not it is used.
        (Asleep { .. }, ProcessChanged | RulesChanged) if !rules.may_sleep() => {
            launch_afresh(life, Reason::SettingsChanged, rules, now)
        }
        (Asleep { .. }, ProcessChanged) => {
            let life = Life { tally: life.tally.fresh(), ..life };
            (life.enters(Asleep { not_before: None }, Reason::SettingsChanged), None)
        }
        (Failed, ProcessChanged | RulesChanged) => {
            (life.enters(Stopped, Reason::SettingsChanged), None)
        }
        (Starting { .. } | Running { .. }, ProcessChanged) => {
            stop(life, StartAgain, Reason::SettingsChanged, rules, now)
        }
        // Its end is no longer a failure of the settings it is judged by.
        (Stopping { overdue_at, then: CountFailure | TryAgain | GiveUp }, ProcessChanged) => {
            let state = Stopping { overdue_at, then: StartAgain };
            (life.enters(state, Reason::SettingsChanged), None)
        }
        (Stopping { then: StartAgain, .. }, ProcessChanged)
            if matches!(life.reason, Reason::Repaired(_)) =>
        {
            (Life { reason: Reason::SettingsChanged, ..life }, None)
        }

        // Half a message cannot be taken back. It is our fault, so nothing is counted.
        (Starting { .. } | Running { .. }, Torn) => {
            stop(life, StartAgain, Reason::Torn, rules, now)
        }
        (Starting { .. } | Running { .. }, StartOver(why)) => {
            stop(life, StartAgain, Reason::StartedOver(why), rules, now)
        }

        // Asking it was our doing too. Whoever asks does it otherwise now.
        (Starting { .. } | Running { .. }, ExitedOnProbe(_)) => {
            launch(life.forgiven(), Reason::Probed, rules, now)
        }
        (Starting { .. } | Running { .. }, UnfitOnProbe(_)) => {
            stop(life.forgiven(), StartAgain, Reason::Probed, rules, now)
        }

        // What becomes of one that lives somewhere else.
        (Starting { .. }, DeadlineReached) if moment.is_remote => {
            let why = format!("no answer within {:?}", rules.ready.within);
            stop(life, TryAgain, Reason::Unreachable(why), rules, now)
        }
        (Starting { .. } | Running { .. }, Unreachable(why)) => {
            (after_silence(life, Reason::Unreachable(why), rules, moment), None)
        }
        // There is nobody here who could end it, and it has not crashed.
        (Running { ready_at, .. }, Unhealthy(why)) if moment.is_remote => {
            let life = reached_for(life, now - ready_at, rules);
            stop(life, TryAgain, Reason::Unreachable(why), rules, now)
        }
        (Starting { .. } | Running { .. }, Hopeless(why)) if moment.is_remote => {
            (life.enters(Failed, Reason::Unfit(why)), None)
        }
        // A process is ended first. Its next life would be no better.
        (Starting { .. } | Running { .. }, Hopeless(why)) => {
            stop(life, GiveUp, Reason::Unfit(why), rules, now)
        }
        (Stopping { .. }, Hopeless(_)) if !moment.is_remote => (life, None),
        (Starting { .. } | Running { .. }, Exited(_)) if moment.is_remote => {
            let why = Reason::Unreachable("nobody speaks with it any more".to_owned());
            (after_silence(life, why, rules, moment), None)
        }
        (Starting { .. }, LaunchFailed(fault)) if moment.is_remote && !fault.permanent => {
            (after_silence(life, Reason::Unreachable(fault.message), rules, moment), None)
        }
        // That what would run it is away is nobody's failure, either.
        (Starting { .. }, Away(fault)) if rules.restart.policy != RestartPolicy::Never => {
            (after_silence(life, Reason::Away(fault), rules, moment), None)
        }
        (Starting { .. }, Away(fault)) => (life.enters(Failed, Reason::Away(fault)), None),
        (Backoff { .. }, DeadlineReached)
            if moment.is_remote || matches!(life.reason, Reason::Away(_)) =>
        {
            let attempt = life.tally.unreached.saturating_add(1);
            launch(life, Reason::TriedAgain { attempt }, rules, now)
        }

        // What becomes of a life.
        (Starting { launched_at, .. }, Ready) => {
            let mut life = life.enters(Running { launched_at, ready_at: now }, Reason::Ready);
            if !moment.is_remote {
                life.tally.unreached = 0; // What runs it is back.
            }
            (life, None)
        }
        (Starting { launched_at, .. }, Preparing) => {
            let ready_by = now + rules.ready.within;
            (Life { state: Starting { launched_at, ready_by }, ..life }, None)
        }
        (Starting { .. }, DeadlineReached) => {
            let within = rules.ready.within;
            stop(life, CountFailure, Reason::NeverReady { within, stray: None }, rules, now)
        }
        (Starting { .. }, Unfit(why)) => stop(life, CountFailure, Reason::Unfit(why), rules, now),
        (Running { ready_at, .. }, Unfit(why)) => {
            let life = after_uptime(life, now - ready_at, rules);
            stop(life, CountFailure, Reason::Unfit(why), rules, now)
        }
        (Running { ready_at, .. }, Unhealthy(why)) => {
            let life = after_uptime(life, now - ready_at, rules);
            stop(life, CountFailure, Reason::Unhealthy(why), rules, now)
        }
        // Where its program is enough, one is ready before it is known that this cannot be run.
        (Starting { .. } | Running { .. }, LaunchFailed(fault)) if fault.permanent => {
            (life.enters(Failed, Reason::LaunchFailed(fault)), None)
        }
        (Starting { .. }, LaunchFailed(fault)) => {
            let end = End { what: Reason::LaunchFailed(fault), clean: false, lived: Lived::NOT };
            (after_end(life, end, rules, moment), None)
        }
        (Starting { launched_at, .. }, Exited(exit)) => {
            let lived = Lived { total: now - launched_at, ready: Duration::ZERO };
            (after_end(life, End::of(exit, lived), rules, moment), None)
        }
        (Running { launched_at, ready_at }, Exited(exit)) => {
            let lived = Lived { total: now - launched_at, ready: now - ready_at };
            (after_end(life, End::of(exit, lived), rules, moment), None)
        }
        (Backoff { .. }, DeadlineReached) => launch_again(life, rules, now),

        // The end of a stop. Why one is counted has to be known until then.
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
            life.enters(Stopping { overdue_at: None, then }, Reason::StopOverdue),
            Some(Effect::Kill),
        ),
        // It was not slow: it could not be started at all, which took long to be known.
        (Stopping { then: CountFailure, .. }, LaunchFailed(fault))
            if fault.permanent && matches!(life.reason, Reason::NeverReady { .. }) =>
        {
            (life.enters(Failed, Reason::LaunchFailed(fault)), None)
        }
        (
            Stopping { then, .. },
            Exited(_) | LaunchFailed(_) | Away(_) | Unreachable(_) | Hopeless(_),
        ) => {
            match then {
                StayDown => (life.enters(Stopped, Reason::StopDone), None),
                // Its file has been changed meanwhile.
                Sleep if !rules.may_sleep() => {
                    launch_afresh(life, Reason::SettingsChanged, rules, now)
                }
                Sleep => (Life { state: Asleep { not_before: None }, ..life }, None),
                Retire => (life.enters(Retired, Reason::StopDone), None),
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
                        Reason::Torn | Reason::Probed | Reason::StartedOver(_) | Reason::Woken
                    ) =>
                {
                    let why = life.reason.clone();
                    launch(life, why, rules, now)
                }
                StartAgain => launch_afresh(life, Reason::RestartRequested, rules, now),
                CountFailure => {
                    let what = match &life.reason {
                        reason if reason.is_failure() => reason.clone(),
                        _ => Reason::NeverReady { within: rules.ready.within, stray: None },
                    };
                    let end = End { what, clean: false, lived: Lived::NOT };
                    (after_end(life, end, rules, moment), None)
                }
                TryAgain => {
                    let why = Reason::Unreachable(life.reason.to_string());
                    (after_silence(life, why, rules, moment), None)
                }
            }
        }

        // The rest asks for what is already so, or is news that came too late.
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

/// A new life that somebody asked for: what went wrong before is forgotten.
fn launch_afresh(life: Life, why: Reason, rules: &Rules, now: Instant) -> (Life, Option<Effect>) {
    let tally = life.tally.fresh();
    launch(Life { tally, ..life }, why, rules, now)
}

/// A new life by policy.
fn launch_again(life: Life, rules: &Rules, now: Instant) -> (Life, Option<Effect>) {
    let of = rules.restart.max_attempts;
    launch_counted(life, |attempt| Reason::Retry { attempt, of }, rules, now)
}

/// One more restart, for a reason that may depend on how many there were in a row.
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
    (life.enters(state, why), Some(Effect::Launch))
}

fn stop(
    life: Life,
    then: AfterStop,
    why: Reason,
    rules: &Rules,
    now: Instant,
) -> (Life, Option<Effect>) {
    let overdue_at = Some(now + rules.stop.grace + STOP_MARGIN);
    (life.enters(State::Stopping { overdue_at, then }, why), Some(Effect::Stop))
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
