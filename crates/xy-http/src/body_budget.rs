//! The limit on the bytes of bodies that are not complete or not parsed yet. Each token has a
//! share, so that the uploads of one token do not refuse the bodies of others.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::error::{HttpError, SharedResource};
use crate::guard::TokenId;
use crate::limits::BODIES_BYTES_MAX;

/// The bytes of all bodies, and those of each token.
#[derive(Debug)]
pub(super) struct BodyBudget {
    used: RefCell<Used>,
}

#[derive(Debug)]
struct Used {
    all: usize,
    /// Only tokens that hold bytes.
    by_token: HashMap<u64, usize>,
    max: usize,
}

impl Default for BodyBudget {
    fn default() -> Self {
        let used = Used { all: 0, by_token: HashMap::new(), max: BODIES_BYTES_MAX };
        Self { used: RefCell::new(used) }
    }
}

impl BodyBudget {
    /// Reserves no bytes yet, for one body of this token.
    pub(super) fn reserve(self: &Rc<Self>, token_id: TokenId) -> BodyReservation {
        BodyReservation { budget: Rc::clone(self), token_id, size: 0 }
    }

    /// Returns the number of bytes of all bodies.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.borrow().all
    }

    #[cfg(test)]
    pub(super) fn set_max(&self, max: usize) {
        self.used.borrow_mut().max = max;
    }
}

/// The bytes of one body. Dropping it gives them back.
#[derive(Debug)]
pub(super) struct BodyReservation {
    budget: Rc<BodyBudget>,
    token_id: TokenId,
    size: usize,
}

impl BodyReservation {
    /// Sets the size of a body that grows, unless it exceeds the limit or the share of the token.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), HttpError> {
        let more = bytes.saturating_sub(self.size);
        if more == 0 {
            return Ok(());
        }
        let used = &mut *self.budget.used.borrow_mut();
        let token = self.token_id.number();
        let own = used.by_token.get(&token).copied().unwrap_or_default();
        let (all, max) = (used.all + more, used.max);
        if all > max {
            return Err(HttpError::TooManyBodies);
        }
        // The rule decides on one more byte: here, on the last one.
        if !self.token_id.may_take(own + more - 1, all - 1, max) {
            return Err(HttpError::OverShare { what: SharedResource::BodyBytes, own, max });
        }
        used.by_token.insert(token, own + more);
        used.all = all;
        self.size = bytes;
        Ok(())
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        if self.size == 0 {
            return;
        }
        let used = &mut *self.budget.used.borrow_mut();
        used.all -= self.size;
        let token = self.token_id.number();
        let own = used.by_token.remove(&token).unwrap_or_default();
        if own > self.size {
            used.by_token.insert(token, own - self.size);
        }
    }
}
