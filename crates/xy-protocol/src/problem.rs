//! Problems in the configuration, as answers and errors carry them.

use serde::{Deserialize, Serialize};

/// The severity of a problem in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but looks like a mistake.
    Warning,
}

/// One problem in the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The severity.
    pub severity: Severity,
    /// The message.
    pub message: String,
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line: Option<u32>,
    /// The column in characters, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub column: Option<u32>,
    /// A correction.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub suggestion: Option<String>,
    /// The whole problem as text for people, with the faulty text underlined.
    pub rendered: String,
}
