//! Bytes that are held of something unfinished, counted among all such.

use std::cell::Cell;
use std::rc::Rc;

/// What is held of one thing.
#[derive(Debug)]
pub(crate) struct Held {
    all: Rc<Cell<usize>>,
    own: usize,
    most: usize,
}

impl Held {
    /// One more, of which nothing is held yet; `all` of them may hold `most` bytes.
    pub(crate) fn of(all: &Rc<Cell<usize>>, most: usize) -> Self {
        Self { all: all.clone(), own: 0, most }
    }

    /// So much of it is held now; `false` if that is too much together with the others.
    pub(crate) fn holds(&mut self, bytes: usize) -> bool {
        let all = self.all.get() - self.own + bytes;
        self.all.set(all);
        self.own = bytes;
        all <= self.most
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_have_a_bound_and_what_is_gone_counts_no_more() {
        let all = Rc::default();
        let (mut one, mut other) = (Held::of(&all, 10), Held::of(&all, 10));
        assert!(one.holds(6) && other.holds(4) && !other.holds(5));
        assert!(one.holds(1) && other.holds(9));
        drop(one);
        assert!(other.holds(10));
        drop(other);
        assert_eq!(all.get(), 0);
    }
}
