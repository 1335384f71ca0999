//! Waiting for a condition, with a time limit.

use std::time::Duration;

use crate::clock;

/// Interval between two checks.
const STEP: Duration = Duration::from_millis(5);

/// The result of a check: a `bool`, or an `Option` with a value.
pub trait Sign {
    /// The value of a successful check.
    type Seen;

    /// Returns the value if the check succeeded.
    fn seen(self) -> Option<Self::Seen>;
}

impl Sign for bool {
    type Seen = ();

    fn seen(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Sign for Option<T> {
    type Seen = T;

    fn seen(self) -> Option<T> {
        self
    }
}

/// Checks until it succeeds; returns `None` if it does not within `limit`.
pub(crate) fn poll<S: Sign>(limit: Duration, mut look: impl FnMut() -> S) -> Option<S::Seen> {
    let until = clock::now() + limit;
    loop {
        // The clock is read before the check, so the last check happens at the limit or later.
        let over = clock::now() >= until;
        if let Some(seen) = look().seen() {
            return Some(seen);
        }
        if over {
            return None;
        }
        clock::pause(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_that_is_there_is_seen_at_the_first_look() {
        let mut looks = 0;
        let seen = poll(Duration::ZERO, || {
            looks += 1;
            Some("it")
        });
        assert_eq!((seen, looks), (Some("it"), 1));
    }

    #[test]
    fn looking_goes_on_until_the_sign_is_there() {
        let mut looks = 0;
        let seen = poll(Duration::from_secs(20), || {
            looks += 1;
            looks == 3
        });
        assert_eq!((seen, looks), (Some(()), 3));
    }

    #[test]
    fn looking_ends_at_the_limit() {
        assert_eq!(poll(Duration::from_millis(20), || false), None);
    }
}
