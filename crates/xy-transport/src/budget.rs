//! A shared limit on bytes of unfinished work.

use std::cell::Cell;
use std::rc::Rc;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
