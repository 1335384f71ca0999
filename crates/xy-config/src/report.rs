//! A problem as a person reads it.
//!
//! A [`Problem`] holds the facts; `render` makes the text of it. Whatever a file
//! holds, the text is safe to print: control characters never reach a terminal.

mod render;
mod safe;

use std::fmt;

use xy_protocol::control::{self, Severity};

pub(crate) use self::safe::{quote, safe};
use crate::source::At;

/// Something wrong, or odd, in the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// How bad.
    pub severity: Severity,
    /// Of which sort, for those who treat some apart.
    pub kind: Kind,
    /// What.
    pub message: String,
    /// In which file or folder, as reports show it.
    pub file: String,
    /// Where in it, when it is about a piece of its text.
    pub place: Option<Place>,
    /// What is to be said of the underlined text.
    pub label: Option<String>,
    /// What would be right.
    pub suggestion: Option<String>,
    /// The other place, when two contradict each other.
    pub related: Option<Related>,
}

/// The sorts of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A file or folder could not be read.
    Unreadable,
    /// A text is not KDL, or not JSON.
    Syntax,
    /// A field, a value or a name breaks a rule.
    Invalid,
    /// Two servers have the same port.
    PortConflict,
    /// It works, but looks like a mistake: a warning.
    Odd,
}

/// A piece of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, as reports show it: relative to the configuration folder.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, in characters.
    pub column: u32,
    /// How many characters are meant; 0 means the gap before the column.
    pub length: u32,
    /// The line, cut around the place (with `…`) when it is long.
    pub line_text: String,
    /// Where the place begins in `line_text`, from 0, in characters.
    pub text_column: u32,
}

/// The other place of a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Related {
    /// Where.
    pub place: Place,
    /// What is there.
    pub label: String,
}

/// Whether a rendering has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Paint {
    /// No.
    #[default]
    Plain,
    /// With ANSI codes.
    Colour,
}

impl Problem {
    /// The problem as a person reads it, ending with a newline.
    pub fn render(&self, paint: Paint) -> String {
        render::render(self, paint)
    }

    /// Whether the files cannot be used because of it.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    pub(crate) fn error(at: &At, message: impl Into<String>) -> Self {
        Self { place: Some(at.place()), ..Self::in_file(&at.file.shown, message) }
    }

    pub(crate) fn warning(at: &At, message: impl Into<String>) -> Self {
        Self::error(at, message).warn()
    }

    /// An error about a whole file or folder.
    pub(crate) fn in_file(file: &str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            kind: Kind::Invalid,
            message: message.into(),
            file: file.to_owned(),
            place: None,
            label: None,
            suggestion: None,
            related: None,
        }
    }

    /// The same as a warning.
    pub(crate) fn warn(self) -> Self {
        Self { severity: Severity::Warning, kind: Kind::Odd, ..self }
    }

    pub(crate) fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    pub(crate) fn label(self, label: impl Into<String>) -> Self {
        Self { label: Some(label.into()), ..self }
    }

    pub(crate) fn suggest(self, suggestion: impl Into<String>) -> Self {
        Self { suggestion: Some(suggestion.into()), ..self }
    }

    pub(crate) fn suggest_some(self, suggestion: Option<String>) -> Self {
        match suggestion {
            Some(suggestion) => self.suggest(suggestion),
            None => self,
        }
    }

    pub(crate) fn related(self, at: &At, label: impl Into<String>) -> Self {
        Self { related: Some(Related { place: at.place(), label: label.into() }), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Paint::Plain))
    }
}

impl From<&Problem> for control::Problem {
    fn from(problem: &Problem) -> Self {
        Self {
            severity: problem.severity,
            message: problem.message.clone(),
            file: problem.file.clone(),
            line: problem.place.as_ref().map(|place| place.line),
            column: problem.place.as_ref().map(|place| place.column),
            suggestion: problem.suggestion.clone(),
            rendered: problem.render(Paint::Plain),
        }
    }
}
