//! Fair shares: how much of a limited resource one token may hold, so that no token locks out
//! others. Pure.

use std::collections::HashMap;

/// Maximum ratio of what a token holds to what is still free. A single token gets three quarters of
/// the limit, the next one three quarters of the rest, and so on: there is always room for another.
const MAX_RATIO: usize = 3;

/// Returns true if a token that holds `own` may take one more, where all tokens together hold
/// `all` of `most`.
pub fn may_take(own: usize, all: usize, most: usize) -> bool {
    let free = most.saturating_sub(all);
    own < free.saturating_mul(MAX_RATIO)
}

/// The token id of local clients.
pub const LOCAL: u64 = 0;

/// The token id of all HTTP clients if no token is required.
pub const ANONYMOUS: u64 = 1;

/// The token of a client, for the accounting of shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenUse {
    /// The id of the token.
    pub id: u64,
}

impl TokenUse {
    /// Returns true if the token may take one more of a resource with limit `most`. It holds `own`
    /// of `all` that are taken.
    pub fn may_take(self, own: usize, all: usize, most: usize) -> bool {
        matches!(self.id, LOCAL | ANONYMOUS) || may_take(own, all, most)
    }

    /// Returns true if the token may take `more` units, such as bytes, of a resource with limit
    /// `most`. It holds `own` of `all` that are taken.
    pub fn may_take_more(self, more: usize, own: usize, all: usize, most: usize) -> bool {
        // The rule decides on one more unit: here, on the last one.
        let Some(others) = more.checked_sub(1) else { return true };
        self.may_take(own.saturating_add(others), all.saturating_add(others), most)
    }
}

/// How much of a resource all tokens hold, and how much each of them.
#[derive(Debug, Default)]
pub struct Holdings {
    all: usize,
    /// Only tokens that hold something.
    by_token: HashMap<u64, usize>,
}

impl Holdings {
    /// Returns how much all tokens hold.
    pub fn all(&self) -> usize {
        self.all
    }

    /// Returns how much a token holds.
    pub fn of(&self, token: TokenUse) -> usize {
        self.by_token.get(&token.id).copied().unwrap_or_default()
    }

    /// Adds `more` to what a token holds.
    pub fn add(&mut self, token: TokenUse, more: usize) {
        if more > 0 {
            self.all += more;
            *self.by_token.entry(token.id).or_default() += more;
        }
    }

    /// Removes `less` from what a token holds.
    pub fn remove(&mut self, token: TokenUse, less: usize) {
        let own = self.of(token);
        let less = less.min(own);
        self.all -= less;
        if own > less {
            self.by_token.insert(token.id, own - less);
        } else {
            self.by_token.remove(&token.id);
        }
    }

    /// Returns true if a token may take `more` without exceeding its share of `most`.
    pub fn may_take_more(&self, token: TokenUse, more: usize, most: usize) -> bool {
        token.may_take_more(more, self.of(token), self.all, most)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns how many a token may take, where `all` are held by others.
    fn takes(all: usize, most: usize) -> usize {
        let mut own = 0;
        while may_take(own, all + own, most) {
            own += 1;
        }
        own
    }

    #[test]
    fn single_token_gets_three_quarters() {
        for (most, own) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (8, 6), (200, 150), (1000, 750)]
        {
            assert_eq!(takes(0, most), own, "{most}");
        }
    }

    #[test]
    fn later_tokens_share_the_rest() {
        let mut all = 0;
        let mut shares = Vec::new();
        for _ in 0..5 {
            let own = takes(all, 1000);
            shares.push(own);
            all += own;
        }
        assert_eq!(shares, [750, 188, 47, 12, 3]);
    }

    #[test]
    fn several_units_are_taken_as_one_after_another() {
        let token = TokenUse { id: 70 };
        for (own, all, fits) in [(0, 0, 75), (0, 75, 19), (20, 20, 55), (5, 75, 18), (0, 100, 0)] {
            assert!(token.may_take_more(fits, own, all, 100), "{own} {all}");
            assert!(!token.may_take_more(fits + 1, own, all, 100), "{own} {all}");
        }
        assert!(!token.may_take_more(usize::MAX, 1, 1, 100), "nothing overflows");
    }

    #[test]
    fn holdings_are_counted_by_token() {
        let (one, other) = (TokenUse { id: 70 }, TokenUse { id: 71 });
        let mut held = Holdings::default();
        assert!(held.may_take_more(one, 75, 100) && !held.may_take_more(one, 76, 100));
        held.add(one, 75);
        assert!(!held.may_take_more(one, 1, 100) && held.may_take_more(other, 18, 100));
        held.add(other, 18);
        held.remove(one, 70);
        assert_eq!((held.all(), held.of(one), held.of(other)), (23, 5, 18));
        held.remove(one, 5);
        held.remove(other, 99);
        assert!(held.all() == 0 && held.by_token.is_empty());
    }

    proptest! {
        #[test]
        fn new_token_gets_a_place_unless_all_are_taken(all in 0_usize..2000, most in 0_usize..2000) {
            prop_assert_eq!(may_take(0, all, most), all < most);
        }

        #[test]
        fn holding_more_never_allows_more(own in 0_usize..2000, all in 0_usize..2000) {
            prop_assert!(may_take(own, all, 1000) || !may_take(own + 1, all, 1000));
        }
    }
}
