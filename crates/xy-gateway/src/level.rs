//! How much a client wants to know of what servers log.

use std::fmt;

/// The words for it, the least important first.
const WORDS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// How important something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level(usize);

impl Level {
    /// What those hear who have not said: `info`.
    pub(crate) const USUAL: Self = Self(1);

    /// The level of this word.
    pub(crate) fn read(word: &str) -> Option<Self> {
        WORDS.iter().position(|known| *known == word).map(Self)
    }

    /// All words, for whoever used another.
    pub(crate) fn words() -> String {
        WORDS.join(", ")
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WORDS[self.0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_in_order() {
        let [debug, error] = ["debug", "error"].map(|word| Level::read(word).unwrap());
        assert!(debug < error);
        assert_eq!(error.to_string(), "error");
        assert_eq!(Level::USUAL.to_string(), "info");
        assert_eq!(Level::read("loud"), None);
    }
}
