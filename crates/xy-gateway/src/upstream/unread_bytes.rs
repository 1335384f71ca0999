//! The bytes of calls that were not written to the server yet, by token. Pure.

use xy_transport::share::TokenUse;

/// Minimum number of entries before written calls are removed.
const PRUNE_THRESHOLD: usize = 64;

/// Calls with the size of their texts. Also holds calls that were cancelled meanwhile, as their
/// bytes still take room.
#[derive(Debug, Default)]
pub(super) struct UnreadBytes {
    calls: Vec<UnreadCall>,
    /// The number of entries at which written calls are removed.
    prune_at: usize,
}

#[derive(Debug)]
struct UnreadCall {
    /// The offset of the message, which tells whether it was written.
    offset: u64,
    token: TokenUse,
    bytes: usize,
}

impl UnreadBytes {
    /// Adds a call. At most half of the entries are calls that were written.
    pub(super) fn add(
        &mut self,
        offset: u64,
        token: TokenUse,
        bytes: usize,
        is_written: impl Fn(u64) -> bool,
    ) {
        if self.calls.len() >= self.prune_at {
            self.prune(is_written);
        }
        self.calls.push(UnreadCall { offset, token, bytes });
    }

    /// Returns the unwritten bytes of a token.
    pub(super) fn of(&mut self, token: TokenUse, is_written: impl Fn(u64) -> bool) -> usize {
        self.prune(is_written);
        self.calls.iter().filter(|it| it.token == token).map(|it| it.bytes).sum()
    }

    /// Removes the calls that were written.
    fn prune(&mut self, is_written: impl Fn(u64) -> bool) {
        self.calls.retain(|it| !is_written(it.offset));
        self.prune_at = PRUNE_THRESHOLD.max(self.calls.len().saturating_mul(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_calls_are_removed() {
        let [one, other] = [70, 71].map(|id| TokenUse { id });
        let mut unread = UnreadBytes::default();
        for offset in 0..100 {
            let token = if offset % 2 == 0 { one } else { other };
            unread.add(offset, token, 10, |_| false);
        }
        assert_eq!(unread.of(one, |_| false), 500);
        assert_eq!((unread.of(one, |it| it < 90), unread.of(other, |it| it < 99)), (50, 10));
        for offset in 100..10_000 {
            unread.add(offset, one, 10, |_| true);
            assert!(unread.calls.len() <= PRUNE_THRESHOLD);
        }
    }
}
