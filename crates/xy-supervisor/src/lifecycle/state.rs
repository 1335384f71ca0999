//! What an instance is doing, and what is remembered of it.

use std::collections::VecDeque;
use std::time::Instant;

use xy_protocol::server::{ServerState, Wanted};

use super::reason::{Exit, Reason};

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
    /// It has failed, whatever its restart policy says.
    GiveUp,
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
    pub(super) in_a_row: u32,
    /// Unexpected exits of the last minute, at most one more than the limit.
    pub(super) recent_exits: VecDeque<Instant>,
    /// How often in a row one that lives somewhere else could not be reached.
    pub(super) unreached: u32,
    /// An end on a probe was not counted; the next is.
    pub(super) is_forgiven: bool,
}

impl Tally {
    /// An operator starts it: everything but the total begins anew.
    pub(super) fn fresh(&self) -> Self {
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

    pub(super) fn enters(self, state: State, reason: Reason) -> Self {
        Self { state, reason, ..self }
    }

    pub(super) fn forgiven(mut self) -> Self {
        self.tally.is_forgiven = true;
        self
    }
}
