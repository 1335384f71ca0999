//! Fair shares: how much of a limited resource one token may hold, so that no token locks out
//! others. Pure.

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
#[derive(Debug, Clone, Copy)]
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
