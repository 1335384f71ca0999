//! The state of an instance, and what is remembered from life to life.

use std::collections::VecDeque;
use std::time::Instant;

use xy_protocol::server::{ServerState, Wanted};

use super::reason::{Exit, Reason};

/// The state of an instance. Each state holds only the data that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not running; only a request starts it.
    Stopped,
    /// Launched, but not ready yet.
    Starting {
        /// When it was launched.
        launched_at: Instant,
        /// The time by which it must be ready, or it is stopped.
        ready_by: Instant,
    },
    /// Running and ready.
    Running {
        /// When it was launched.
        launched_at: Instant,
        /// When it became ready.
        ready_at: Instant,
    },
    /// Waiting for the next attempt.
    Backoff {
        /// The time of the next attempt.
        retry_at: Instant,
    },
    /// Being stopped.
    Stopping {
        /// When the stop is forced; `None` once that has been done.
        overdue_at: Option<Instant>,
        /// The next step after the stop.
        then: AfterStop,
    },
    /// Not running because it is idle; its next use wakes it.
    Asleep {
        /// The earliest time of the next launch, after an exit.
        not_before: Option<Instant>,
    },
    /// Given up; the reason says why.
    Failed,
    /// Ended for good. All events are ignored.
    Retired,
}

/// The next step after a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterStop {
    /// The server stays stopped.
    StayDown,
    /// A new life starts.
    StartAgain,
    /// The restart policy decides, as after a crash. The server never became ready, violated the
    /// protocol, or hung.
    CountFailure,
    /// The server has failed, whatever its restart policy is.
    GiveUp,
    /// After a delay, xy tries again to reach the server.
    TryAgain,
    /// The server sleeps until its next use.
    Sleep,
    /// The instance is retired.
    Retire,
}

impl State {
    /// Returns when the state times out, if it does.
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

    /// Returns the state as shown to clients.
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

    /// Returns true if the instance is being stopped for good.
    pub(crate) fn is_retiring(&self) -> bool {
        matches!(self, Self::Stopping { then: AfterStop::Retire, .. })
    }

    /// Returns true if the instance sleeps, or is about to, and has to be woken for its next use.
    pub fn is_sleeping(&self) -> bool {
        matches!(self, Self::Asleep { .. } | Self::Stopping { then: AfterStop::Sleep, .. })
    }

    /// Returns true if a process may exist.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Starting { .. } | Self::Running { .. } | Self::Stopping { .. })
    }
}

/// The counts that are remembered from life to life.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Restarts since an operator last started it.
    pub restart_count: u32,
    /// Restarts since the instance was created.
    pub restarts_total: u64,
    /// Restarts in a row, none of which led to `reset-after` of ready uptime.
    pub(super) in_a_row: u32,
    /// Unexpected exits of the last minute, at most one more than the limit.
    pub(super) recent_exits: VecDeque<Instant>,
    /// Attempts in a row that did not reach a remote server or its engine.
    pub(super) unreachable_count: u32,
    /// Whether one failed protocol probe was forgiven; the next one counts.
    pub(super) probe_forgiven: bool,
}

impl Tally {
    /// Returns the tally after an operator's start: everything but the total is reset.
    pub(super) fn fresh(&self) -> Self {
        Self { restarts_total: self.restarts_total, ..Self::default() }
    }
}

/// The lifecycle state of an instance, with its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The state.
    pub state: State,
    /// The state that the operator wants.
    pub wanted: Wanted,
    /// The counts.
    pub tally: Tally,
    /// The reason of the state.
    pub reason: Reason,
}

impl Life {
    /// Returns a stopped instance that has not run yet.
    pub fn new(wanted: Wanted) -> Self {
        let reason = match wanted {
            Wanted::Up => Reason::NotStarted,
            Wanted::Down => Reason::StopDone, // By an earlier daemon.
        };
        Self { state: State::Stopped, wanted, tally: Tally::default(), reason }
    }

    /// Returns an instance that starts on its first use.
    pub fn sleeping(wanted: Wanted) -> Self {
        let life = Self::new(wanted);
        match wanted {
            Wanted::Up => life.enter(State::Asleep { not_before: None }, Reason::NotUsedYet),
            Wanted::Down => life,
        }
    }

    /// Returns an instance that waits for the end of its predecessor. If `sleeps`, it then starts
    /// on its first use.
    pub fn after_predecessor(wanted: Wanted, sleeps: bool) -> Self {
        let then = match wanted {
            Wanted::Up if sleeps => AfterStop::Sleep,
            Wanted::Up => AfterStop::StartAgain,
            Wanted::Down => AfterStop::StayDown,
        };
        Self::new(wanted)
            .enter(State::Stopping { overdue_at: None, then }, Reason::WaitingForPredecessor)
    }

    /// Returns true if the last attempt to reach the remote server or the engine failed.
    pub fn is_unreachable(&self) -> bool {
        match self.state {
            State::Starting { .. } | State::Backoff { .. } => self.tally.unreachable_count > 0,
            State::Stopping { then, .. } => then == AfterStop::TryAgain,
            State::Stopped
            | State::Running { .. }
            | State::Asleep { .. }
            | State::Failed
            | State::Retired => false,
        }
    }

    /// Returns true if a failure on the protocol probe is not counted. That holds once until the
    /// next requested start, and not if the server was killed.
    pub fn forgives_probe(&self, exit: Option<Exit>) -> bool {
        let is_up = matches!(self.state, State::Starting { .. } | State::Running { .. });
        is_up && !self.tally.probe_forgiven && !exit.is_some_and(Exit::is_external_kill)
    }

    pub(super) fn enter(self, state: State, reason: Reason) -> Self {
        Self { state, reason, ..self }
    }

    pub(super) fn forgive_probe(mut self) -> Self {
        self.tally.probe_forgiven = true;
        self
    }
}
