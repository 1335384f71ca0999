//! Waiting for a condition, with a time limit.

use std::time::Duration;

use crate::clock;

/// Interval between two checks.
const STEP: Duration = Duration::from_millis(5);

/// The result of a check: a `bool`, or an `Option` with a value.
pub trait Sign {
    /// The value of a successful check.
    type Output;

    /// Returns the value if the check succeeded.
    fn into_output(self) -> Option<Self::Output>;
}

impl Sign for bool {
    type Output = ();

    fn into_output(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Sign for Option<T> {
    type Output = T;

    fn into_output(self) -> Option<T> {
        self
    }
}

/// Checks until it succeeds; returns `None` if it does not within `limit`.
pub(crate) fn poll<S: Sign>(limit: Duration, mut look: impl FnMut() -> S) -> Option<S::Output> {
    let until = clock::now() + limit;
    loop {
        // The clock is read before the check, so the last check happens at the limit or later.
        let over = clock::now() >= until;
        if let Some(seen) = look().into_output() {
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
    fn true_condition_returns_at_the_first_check() {
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
