//! All open connections: their number, their owners, and which one closes to make room for another.
//!
//! A connection is unauthenticated until a request on it has a valid token. Unauthenticated
//! connections have a small share of all. When it is full, the one that has waited longest closes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::task::AbortHandle;

use crate::conn_timers::{ConnTimers, WaitingFor};
use crate::error::{HttpError, SharedResource};
use crate::guard::TokenId;
use crate::limits::{AUTHENTICATED_MAX, UNAUTHENTICATED_MAX};

/// All open connections, in the order in which they were accepted.
#[derive(Debug, Default)]
pub(super) struct Connections {
    by_number: RefCell<BTreeMap<u64, Open>>,
    last_number: Cell<u64>,
}

#[derive(Debug)]
struct Open {
    timers: Rc<ConnTimers>,
    /// `None` until its task is spawned.
    task: Option<AbortHandle>,
}

/// The slot of an open connection. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    registry: Rc<Connections>,
    number: u64,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.registry.by_number.borrow_mut().remove(&self.number);
    }
}

impl Connections {
    /// Adds a new, unauthenticated connection. Returns `None` if there is no room and no other
    /// connection can close. The flag is true if another one closed.
    pub(super) fn add(self: &Rc<Self>, timers: &Rc<ConnTimers>) -> Option<(ConnectionSlot, bool)> {
        let mut has_closed_one = false;
        if self.count_owned(None) >= UNAUTHENTICATED_MAX {
            if !self.close_longest_waiting(None, |_| true) {
                return None;
            }
            has_closed_one = true;
        }
        let number = self.last_number.get() + 1;
        self.last_number.set(number);
        let open = Open { timers: Rc::clone(timers), task: None };
        self.by_number.borrow_mut().insert(number, open);
        Some((ConnectionSlot { registry: Rc::clone(self), number }, has_closed_one))
    }

    /// Sets the task that is aborted to close the connection.
    pub(super) fn set_task(&self, number: u64, task: AbortHandle) {
        if let Some(open) = self.by_number.borrow_mut().get_mut(&number) {
            open.task = Some(task);
        }
    }

    /// Assigns a connection to the token that a request on it has shown. At the token's limit, its
    /// longest idle connection closes; if it has none, the request is refused.
    pub(super) fn authenticate(
        &self,
        timers: &ConnTimers,
        token_id: TokenId,
    ) -> Result<(), HttpError> {
        if timers.owner() == Some(token_id) {
            return Ok(());
        }
        let all = self.by_number.borrow().values().filter(|it| it.timers.owner().is_some()).count();
        let own = self.count_owned(Some(token_id));
        let is_allowed = token_id.may_take(own, all, AUTHENTICATED_MAX)
            || self.close_longest_waiting(Some(token_id), |waits| {
                matches!(waits, WaitingFor::Idle(_))
            });
        if is_allowed {
            timers.set_owner(token_id);
            return Ok(());
        }
        let max = AUTHENTICATED_MAX;
        Err(match own {
            0 => HttpError::TooManyConnections,
            _ => HttpError::OverShare { what: SharedResource::Connections, own, max },
        })
    }

    fn count_owned(&self, owner: Option<TokenId>) -> usize {
        self.by_number.borrow().values().filter(|it| it.timers.owner() == owner).count()
    }

    /// Closes the connection of `owner` that has waited longest. Returns false if none qualifies.
    fn close_longest_waiting(
        &self,
        owner: Option<TokenId>,
        may_close: impl Fn(WaitingFor) -> bool,
    ) -> bool {
        let open = self.by_number.borrow();
        let waiting =
            open.iter().filter(|(_, it)| it.timers.owner() == owner).filter_map(|(number, it)| {
                Some((it.timers.waiting_for().filter(|it| may_close(*it))?.since(), *number))
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

impl ConnectionSlot {
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}
