//! JSON objects whose values keep their original text, so numbers and ids are returned unchanged.
//! For test servers.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// The members of an object.
#[derive(Debug, Default, Clone)]
pub struct Members(BTreeMap<String, Box<RawValue>>);

impl Members {
    /// Parses the members of `text`; `None` if it is not an object.
    pub fn of(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self)
    }

    /// Returns true if there is such a member.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the text of a member.
    pub fn raw(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.get())
    }

    /// Returns the members of a member; empty if it is absent or not an object.
    #[must_use]
    pub fn members(&self, name: &str) -> Self {
        self.raw(name).and_then(Self::of).unwrap_or_default()
    }

    /// Returns a member that is a string.
    pub fn string(&self, name: &str) -> Option<String> {
        self.raw(name).and_then(|raw| serde_json::from_str(raw).ok())
    }

    /// Returns a member that is an integer.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.raw(name).and_then(|raw| raw.parse().ok())
    }
}

/// Returns `text` as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
