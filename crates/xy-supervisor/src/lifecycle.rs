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

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use xy_config::settings::{RestartPolicy, RestartRules, Rules, Start};
use xy_protocol::server::{ServerState, Wanted};

mod limits;
pub(crate) mod note;
pub mod reason;

pub use limits::{LastAttempt, LimitsUsed};
pub use reason::{Exit, LaunchFault, Oom, Reason};

/// The window of `max-retries-per-minute`.
pub const WINDOW: Duration = Duration::from_mins(1);

/// With no back-off at all, a successor waits this long if the life before it was short.
pub const SHORT_LIFE_DELAY: Duration = Duration::from_millis(100);

/// A life shorter than this was a short one.
pub const SHORT_LIFE: Duration = Duration::from_secs(1);

/// The launcher keeps the grace itself; if it has not by then, it is forced.
pub const STOP_MARGIN: Duration = Duration::from_secs(10);

/// What an instance is doing. Each state holds only what makes sense in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not there, and nothing will start it by itself.
    Stopped,
    /// Launched, not ready yet.
    Starting {
        /// When it was launched.
        launched_at: Instant,
        /// Ready by then, or it is ended.
        ready_by: Instant,
    },
    /// Ready.
    Running {
        /// When it was launched.
        launched_at: Instant,
        /// When it became ready.
        ready_at: Instant,
    },
    /// Waiting before the next try.
    Backoff {
        /// Until then.
        retry_at: Instant,
    },
    /// Being ended.
    Stopping {
        /// Forced then; `None` once that has been done.
        overdue_at: Option<Instant>,
        /// What comes after it.
        then: AfterStop,
    },
    /// Not there, as nobody uses it: whoever does wakes it.
    Asleep {
        /// It is not launched before then, as it has just died.
        not_before: Option<Instant>,
    },
    /// Given up; the reason says why.
    Failed,
    /// Ended for good: nothing happens any more.
    Retired,
}

/// What comes after a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterStop {
    /// Nothing.
    StayDown,
    /// A new life.
    StartAgain,
    /// What comes after a crash: it never became ready, cannot be spoken with, or does not
    /// answer any more.
    CountFailure,
    /// Another try to reach it, after a while.
    TryAgain,
    /// It sleeps until somebody uses it.
    Sleep,
    /// Nothing, for ever.
    Retire,
}

impl State {
    /// When something happens by itself, if ever.
    pub fn deadline(&self) -> Option<Instant> {
        match *self {
            Self::Starting { ready_by, .. } => Some(ready_by),
            Self::Backoff { retry_at } => Some(retry_at),
            Self::Stopping { overdue_at, .. } => overdue_at,
            Self::Stopped
            | Self::Running { .. }
            | Self::Asleep { .. }
            | Self::Failed
            | Self::Retired => None,
        }
    }

    /// The word for it on the wire.
    pub fn on_wire(&self) -> ServerState {
        match self {
            Self::Stopped | Self::Retired => ServerState::Stopped,
            Self::Starting { .. } => ServerState::Starting,
            Self::Running { .. } => ServerState::Running,
            Self::Backoff { .. } => ServerState::Restarting,
            Self::Stopping { .. } => ServerState::Stopping,
            Self::Asleep { .. } => ServerState::Asleep,
            Self::Failed => ServerState::Failed,
        }
    }

    /// Whether it is being ended for good.
    pub(crate) fn is_retiring(&self) -> bool {
        matches!(self, Self::Stopping { then: AfterStop::Retire, .. })
    }

    /// Whether it sleeps, or is about to: whoever needs it has to wake it.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Asleep { .. } | Self::Stopping { then: AfterStop::Sleep, .. })
    }

    /// Whether an instance exists, or may.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Starting { .. } | Self::Running { .. } | Self::Stopping { .. })
    }
}

/// What is remembered from one life to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Restarts since an operator last started it.
    pub restart_count: u32,
    /// Restarts ever.
    pub restarts_total: u64,
    /// Restarts in a row, none of which led to `reset-after` of ready uptime.
    in_a_row: u32,
    /// Unexpected exits of the last [`WINDOW`], at most one more than the limit.
    recent_exits: VecDeque<Instant>,
    /// How often in a row one that lives somewhere else could not be reached.
    unreached: u32,
    /// An end on a probe was not counted; the next is.
    is_forgiven: bool,
}

impl Tally {
    /// An operator starts it: everything but the total begins anew.
    fn fresh(&self) -> Self {
        Self { restarts_total: self.restarts_total, ..Self::default() }
    }
}

/// One instance: what it is doing, what is wanted of it, what is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// What it is doing.
    pub state: State,
    /// What the operator wants.
    pub wanted: Wanted,
    /// What is remembered.
    pub tally: Tally,
    /// Why the state is what it is.
    pub reason: Reason,
}

impl Life {
    /// A life that has not begun.
    pub fn new(wanted: Wanted) -> Self {
        let reason = match wanted {
            Wanted::Up => Reason::NotStarted,
            Wanted::Down => Reason::StopDone, // By an earlier daemon.
        };
        Self { state: State::Stopped, wanted, tally: Tally::default(), reason }
    }

    /// A life that begins when it is first used.
    pub fn sleeping(wanted: Wanted) -> Self {
        let life = Self::new(wanted);
        match wanted {
            Wanted::Up => life.enters(State::Asleep { not_before: None }, Reason::NotUsed),
            Wanted::Down => life,
        }
    }

    /// A life that has not begun, while another of the same key is still ending. If it `sleeps`,
    /// it only begins when it is used.
    pub fn after_predecessor(wanted: Wanted, sleeps: bool) -> Self {
        let then = match wanted {
            Wanted::Up if sleeps => AfterStop::Sleep,
            Wanted::Up => AfterStop::StartAgain,
            Wanted::Down => AfterStop::StayDown,
        };
        Self::new(wanted).enters(State::Stopping { overdue_at: None, then }, Reason::Predecessor)
    }

    /// Whether the last try to reach it came to nothing: it lives somewhere else, or what would
    /// run it is away.
    pub fn is_unreachable(&self) -> bool {
        match self.state {
            State::Starting { .. } | State::Backoff { .. } => self.tally.unreached > 0,
            State::Stopping { then, .. } => then == AfterStop::TryAgain,
            State::Stopped
            | State::Running { .. }
            | State::Asleep { .. }
            | State::Failed
            | State::Retired => false,
        }
    }

    /// Whether an end on a probe is not held against it: once, until somebody wants it anew, and
    /// not if it was killed.
    pub fn forgives_probe(&self, exit: Option<Exit>) -> bool {
        let is_up = matches!(self.state, State::Starting { .. } | State::Running { .. });
        is_up && !self.tally.is_forgiven && !exit.is_some_and(Exit::is_by_somebody)
    }

    fn enters(self, state: State, reason: Reason) -> Self {
        Self { state, reason, ..self }
    }

    fn forgiven(mut self) -> Self {
        self.tally.is_forgiven = true;
        self
    }
}

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
    /// Its file is gone, or the daemon ends.
    RetireRequested,
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
    /// It refuses to be spoken with, for this reason, until somebody changes something. Nobody
    /// speaks with it any more.
    Hopeless(String),
    /// It is gone.
    Exited(Exit),
    /// It is gone, and what it was asked to find out how to speak with it may be why.
    ExitedOnProbe(Exit),
    /// The same of one that is still there, but cannot be spoken with, for this reason.
    UnfitOnProbe(String),
    /// A daemon was killed while it was speaking with it, in the middle of a message.
    Torn,
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
    use AfterStop::{CountFailure, Retire, Sleep, StartAgain, StayDown, TryAgain};
    use Event::{
        Away, DeadlineReached, Exited, ExitedOnProbe, Hopeless, Idle, LaunchFailed, Preparing,
        ProcessChanged, Ready, RepairRequested, RestartRequested, RetireRequested, RulesChanged,
        StartRequested, StopRequested, Torn, Unfit, UnfitOnProbe, Unhealthy, Unreachable, Woken,
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
        (Stopped | Backoff { .. } | Asleep { .. } | Failed, RetireRequested) => {
            (life.enters(Retired, Reason::RetireRequested), None)
        }
        (Starting { .. } | Running { .. }, RetireRequested) => {
            stop(life, Retire, Reason::RetireRequested, rules, now)
        }
        (Stopping { overdue_at, .. }, RetireRequested) => {
            (life.enters(Stopping { overdue_at, then: Retire }, Reason::RetireRequested), None)
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
        (Stopping { overdue_at, then: CountFailure | TryAgain }, ProcessChanged) => {
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
        (Starting { .. } | Running { .. }, Hopeless(why)) => {
            (life.enters(Failed, Reason::Unfit(why)), None)
        }
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
            stop(life, CountFailure, Reason::NeverReady { within: rules.ready.within }, rules, now)
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
            Stopping { overdue_at: Some(_), then: then @ (CountFailure | TryAgain | Sleep) },
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
                StartAgain if matches!(life.reason, Reason::SettingsChanged) => {
                    launch_afresh(life, Reason::SettingsChanged, rules, now)
                }
                StartAgain if matches!(life.reason, Reason::Repaired(_)) => {
                    let why = life.reason.clone();
                    launch_counted(life, |_| why, rules, now)
                }
                StartAgain
                    if matches!(life.reason, Reason::Torn | Reason::Probed | Reason::Woken) =>
                {
                    let why = life.reason.clone();
                    launch(life, why, rules, now)
                }
                StartAgain => launch_afresh(life, Reason::RestartRequested, rules, now),
                CountFailure => {
                    let what = match &life.reason {
                        Reason::Unfit(_) | Reason::Unhealthy(_) => life.reason.clone(),
                        _ => Reason::NeverReady { within: rules.ready.within },
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

/// How long a life was.
struct Lived {
    total: Duration,
    ready: Duration,
}

impl Lived {
    const NOT: Self = Self { total: Duration::ZERO, ready: Duration::ZERO };
}

/// An end that nobody asked for.
struct End {
    what: Reason,
    clean: bool,
    lived: Lived,
}

impl End {
    fn of(exit: Exit, lived: Lived) -> Self {
        Self { what: Reason::Exited(exit), clean: exit.is_clean(), lived }
    }
}

/// Whether to try again, and when.
fn after_end(mut life: Life, end: End, rules: &Rules, moment: Moment) -> Life {
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
fn after_silence(mut life: Life, why: Reason, rules: &Rules, moment: Moment) -> Life {
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
fn reached_for(mut life: Life, ready: Duration, rules: &Rules) -> Life {
    if ready >= rules.restart.reset_after {
        life.tally.unreached = 0;
    }
    life
}

/// A row ends with a life that was ready for long enough.
fn after_uptime(mut life: Life, ready: Duration, rules: &Rules) -> Life {
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

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
