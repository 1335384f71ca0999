//! Waiting for something to become true, within a limit.

use std::time::Duration;

use crate::clock;

/// How long between two looks.
const STEP: Duration = Duration::from_millis(5);

/// What a look can answer: `bool`, or an `Option` whose inside is wanted.
pub trait Sign {
    /// What is known once the sign is there.
    type Seen;

    /// The answer, if it is there.
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

/// Looks until there is a sign; `None` if there was none within `limit`.
pub(crate) fn poll<S: Sign>(limit: Duration, mut look: impl FnMut() -> S) -> Option<S::Seen> {
    let until = clock::now() + limit;
    loop {
        // The clock is read before the look, so that the last look is a late one.
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
