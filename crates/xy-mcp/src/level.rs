//! The log levels of MCP.

use std::fmt;

/// The names of the levels, the least important first.
const WORDS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// A log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(usize);

impl Level {
    /// The level of clients that set none: `info`.
    pub const DEFAULT: Self = Self(1);

    /// Returns the level with this name.
    pub fn parse(word: &str) -> Option<Self> {
        WORDS.iter().position(|known| *known == word).map(Self)
    }

    /// Returns the names of all levels, for error messages.
    pub fn words() -> String {
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
        let [debug, error] = ["debug", "error"].map(|word| Level::parse(word).unwrap());
        assert!(debug < error);
        assert_eq!(error.to_string(), "error");
        assert_eq!(Level::DEFAULT.to_string(), "info");
        assert_eq!(Level::parse("loud"), None);
    }
}
