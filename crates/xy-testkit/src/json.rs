//! JSON whose values stay the text they came as: numbers and ids go back unchanged. For test
//! servers.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// The members of an object.
#[derive(Debug, Default, Clone)]
pub struct Members(BTreeMap<String, Box<RawValue>>);

impl Members {
    /// The members of `text`, unless it is no object.
    pub fn of(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self)
    }

    /// Whether there is such a member.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The text of a member.
    pub fn raw(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.get())
    }

    /// The members of a member; none if it is absent or no object.
    #[must_use]
    pub fn members(&self, name: &str) -> Self {
        self.raw(name).and_then(Self::of).unwrap_or_default()
    }

    /// A member that is a string.
    pub fn string(&self, name: &str) -> Option<String> {
        self.raw(name).and_then(|raw| serde_json::from_str(raw).ok())
    }

    /// A member that is a whole number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.raw(name).and_then(|raw| raw.parse().ok())
    }
}

/// `text` as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
