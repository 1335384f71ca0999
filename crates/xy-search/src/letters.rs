//! A quick comparison of words by their letters.

/// The letters of a word and their number, for a quick comparison before the slow one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LetterSet {
    set: u32,
    count: usize,
}

impl LetterSet {
    pub(crate) fn of(word: &str) -> Self {
        let set = word.chars().fold(0, |set, it| set | 1 << (u32::from(it) % 32));
        Self { set, count: word.chars().count() }
    }

    /// Returns true if `max_errors` typing errors may turn one word into the other. Each error
    /// removes at most one letter and adds at most one.
    pub(crate) fn may_be_within(self, other: Self, max_errors: usize) -> bool {
        let differing = (self.set ^ other.set).count_ones() as usize;
        self.count.abs_diff(other.count) <= max_errors && differing <= 2 * max_errors
    }
}
