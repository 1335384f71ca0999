//! All open connections: how many there are, whose they are, and which ends when there is no
//! room for another.
//!
//! A connection is unauthenticated until a request on it has shown a valid token. Such
//! connections have a small share; when it is full, the one that has waited longest goes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::connection::ConnTimers;
use super::guard::TokenId;
use super::limits::{AUTHENTICATED_MAX, UNAUTHENTICATED_MAX};
use super::refused::{Refused, Shared};

/// All open connections, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Connections {
    by_number: RefCell<BTreeMap<u64, Open>>,
    last_number: Cell<u64>,
}

#[derive(Debug)]
struct Open {
    pulse: Rc<ConnTimers>,
    /// `None` until its task runs.
    task: Option<AbortHandle>,
}

/// What a connection waits for, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// For its next request.
    Idle(Instant),
    /// For the rest of a request's head.
    Head(Instant),
    /// For the rest of a request's body.
    Body(Instant),
}

impl Waits {
    fn since(self) -> Instant {
        match self {
            Self::Idle(since) | Self::Head(since) | Self::Body(since) => since,
        }
    }
}

/// The place of a connection among all, as long as this lives.
#[derive(Debug)]
pub(super) struct Endpoint {
    among: Rc<Connections>,
    number: u64,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.among.by_number.borrow_mut().remove(&self.number);
    }
}

impl Connections {
    /// Makes a place for a new connection, which has shown no token yet. Returns `None` if
    /// there is none and no other connection can go for it; the flag says whether one has gone.
    pub(super) fn enter(self: &Rc<Self>, pulse: &Rc<ConnTimers>) -> Option<(Endpoint, bool)> {
        let mut has_ended_one = false;
        if self.count_of(None) >= UNAUTHENTICATED_MAX {
            if !self.end_first(None, |_| true) {
                return None;
            }
            has_ended_one = true;
        }
        let number = self.last_number.get() + 1;
        self.last_number.set(number);
        let open = Open { pulse: Rc::clone(pulse), task: None };
        self.by_number.borrow_mut().insert(number, open);
        Some((Endpoint { among: Rc::clone(self), number }, has_ended_one))
    }

    /// Names the task of a connection, by which it is ended.
    pub(super) fn runs(&self, number: u64, task: AbortHandle) {
        if let Some(open) = self.by_number.borrow_mut().get_mut(&number) {
            open.task = Some(task);
        }
    }

    /// A request on this connection has shown a valid token. If the token may have no more
    /// connections, the longest idle one of its own goes; otherwise this one is refused.
    pub(super) fn authenticate(&self, pulse: &ConnTimers, who: TokenId) -> Result<(), Refused> {
        if pulse.owner() == Some(who) {
            return Ok(());
        }
        let all = self.by_number.borrow().values().filter(|it| it.pulse.owner().is_some()).count();
        let own = self.count_of(Some(who));
        let may = who.may_take(own, all, AUTHENTICATED_MAX)
            || self.end_first(Some(who), |waits| matches!(waits, Waits::Idle(_)));
        if may {
            pulse.set_owner(who);
            return Ok(());
        }
        let most = AUTHENTICATED_MAX;
        Err(match own {
            0 => Refused::TooManyConnections,
            _ => Refused::OverShare { what: Shared::Connections, own, most },
        })
    }

    fn count_of(&self, owner: Option<TokenId>) -> usize {
        self.by_number.borrow().values().filter(|it| it.pulse.owner() == owner).count()
    }

    /// Ends the connection of this owner that has waited for longest, if there is one.
    fn end_first(&self, owner: Option<TokenId>, may_go: impl Fn(Waits) -> bool) -> bool {
        let open = self.by_number.borrow();
        let waiting =
            open.iter().filter(|(_, it)| it.pulse.owner() == owner).filter_map(|(number, it)| {
                Some((it.pulse.waits_for().filter(|it| may_go(*it))?.since(), *number))
            });
        let Some((_, number)) = waiting.min() else { return false };
        drop(open);
        let Some(gone) = self.by_number.borrow_mut().remove(&number) else { return false };
        if let Some(task) = gone.task {
            task.abort();
        }
        true
    }
}

impl Endpoint {
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}
