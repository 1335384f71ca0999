//! Shared limits on bytes of unfinished work.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::share::{Holdings, TokenUse};

/// The bytes that one user of a shared limit holds. Dropping it gives them back.
#[derive(Debug)]
pub struct Reservation {
    total: Rc<Cell<usize>>,
    size: usize,
    max: usize,
}

impl Reservation {
    /// Creates a reservation of no bytes. `total` counts the bytes of all reservations, up to
    /// `max`.
    pub fn new(total: &Rc<Cell<usize>>, max: usize) -> Self {
        Self { total: total.clone(), size: 0, max }
    }

    /// Sets the size of this reservation. Returns false if all reservations together exceed the
    /// limit.
    pub fn resize(&mut self, bytes: usize) -> bool {
        let total = self.total.get() - self.size + bytes;
        self.total.set(total);
        self.size = bytes;
        total <= self.max
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.size);
    }
}

/// A limit on bytes, of which each token has its share.
#[derive(Debug)]
pub struct SharedBudget {
    held: RefCell<Holdings>,
    max: usize,
}

impl SharedBudget {
    /// Creates a budget of at most `max` bytes.
    pub fn new(max: usize) -> Rc<Self> {
        Rc::new(Self { held: RefCell::default(), max })
    }

    /// Creates a reservation of no bytes for this token.
    pub fn reserve(self: &Rc<Self>, token: TokenUse) -> TokenReservation {
        TokenReservation { budget: self.clone(), token, size: 0 }
    }

    /// Returns the bytes of all reservations.
    pub fn held(&self) -> usize {
        self.held.borrow().all()
    }
}

/// The bytes that one user of a [`SharedBudget`] holds for a token. Dropping it gives them back.
#[derive(Debug)]
pub struct TokenReservation {
    budget: Rc<SharedBudget>,
    token: TokenUse,
    size: usize,
}

impl TokenReservation {
    /// Sets the size of this reservation. Returns false if the reservation grew beyond the limit,
    /// or beyond the share of its token.
    pub fn resize(&mut self, bytes: usize) -> bool {
        let mut held = self.budget.held.borrow_mut();
        let (more, max) = (bytes.saturating_sub(self.size), self.budget.max);
        let has_room = more == 0
            || (held.all().saturating_add(more) <= max
                && held.may_take_more(self.token, more, max));
        held.remove(self.token, self.size);
        held.add(self.token, bytes);
        self.size = bytes;
        has_room
    }
}

impl Drop for TokenReservation {
    fn drop(&mut self) {
        self.budget.held.borrow_mut().remove(self.token, self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::LOCAL;

    #[test]
    fn budget_is_shared_and_freed_on_drop() {
        let total = Rc::default();
        let (mut one, mut other) = (Reservation::new(&total, 10), Reservation::new(&total, 10));
        assert!(one.resize(6) && other.resize(4) && !other.resize(5));
        assert!(one.resize(1) && other.resize(9));
        drop(one);
        assert!(other.resize(10));
        drop(other);
        assert_eq!(total.get(), 0);
    }

    #[test]
    fn each_token_has_its_share_of_the_budget() {
        let budget = SharedBudget::new(100);
        let [mut greedy, mut more, mut other] =
            [70, 70, 71].map(|id| budget.reserve(TokenUse { id }));
        assert!(greedy.resize(70) && more.resize(5));
        assert!(!more.resize(6), "the share of both reservations");
        assert!(more.resize(5) && other.resize(19) && !other.resize(20));
        drop((greedy, more, other));
        assert_eq!(budget.held(), 0);
        let mut local = budget.reserve(TokenUse { id: LOCAL });
        assert!(local.resize(100) && !local.resize(101), "no share, but the limit");
        assert!(local.resize(0));
        assert_eq!(budget.held(), 0);
    }
}
