//! Problems in the configuration, as users read them.
//!
//! A [`Problem`] holds the facts, and `render` makes its text. The text is safe to print whatever a
//! file holds: control characters never reach a terminal.

mod render;

use std::fmt;

use xy_protocol::control::{self, Severity};

pub(crate) use crate::escape::{quote, safe};
use crate::source::{Location, SourceSpan};

/// An error or warning about the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The severity.
    pub severity: Severity,
    /// The kind, for callers that treat some kinds differently.
    pub kind: ProblemKind,
    /// The message.
    pub message: String,
    /// The file or folder, as reports show it.
    pub file: String,
    /// The location in the file, if the problem is about a part of its text.
    pub place: Option<Location>,
    /// The label of the underlined text.
    pub label: Option<String>,
    /// The suggestion how to fix it.
    pub suggestion: Option<String>,
    /// The other location, if two contradict each other.
    pub related: Option<RelatedLocation>,
}

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// A file or folder could not be read.
    Unreadable,
    /// A text is not KDL, or not JSON.
    Syntax,
    /// A field, a value or a name breaks a rule.
    Invalid,
    /// Two servers have the same port.
    PortConflict,
    /// The text is valid, but looks like a mistake: a warning.
    Odd,
}

/// The second location of a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelatedLocation {
    /// The location.
    pub place: Location,
    /// The label of the location.
    pub label: String,
}

/// The colour mode of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Paint {
    /// Without colours.
    #[default]
    Plain,
    /// With ANSI codes.
    Colour,
}

impl Problem {
    /// Renders the problem for users, ending with a newline.
    pub fn render(&self, paint: Paint) -> String {
        render::render(self, paint)
    }

    /// Returns true if the files cannot be used because of the problem.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    pub(crate) fn error(at: &SourceSpan, message: impl Into<String>) -> Self {
        Self { place: Some(at.place()), ..Self::in_file(&at.file.shown, message) }
    }

    pub(crate) fn warning(at: &SourceSpan, message: impl Into<String>) -> Self {
        Self::error(at, message).warn()
    }

    /// Creates an error about a whole file or folder.
    pub(crate) fn in_file(file: &str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            kind: ProblemKind::Invalid,
            message: message.into(),
            file: file.to_owned(),
            place: None,
            label: None,
            suggestion: None,
            related: None,
        }
    }

    /// Turns the problem into a warning.
    pub(crate) fn warn(self) -> Self {
        Self { severity: Severity::Warning, kind: ProblemKind::Odd, ..self }
    }

    pub(crate) fn kind(self, kind: ProblemKind) -> Self {
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

    pub(crate) fn related(self, at: &SourceSpan, label: impl Into<String>) -> Self {
        Self { related: Some(RelatedLocation { place: at.place(), label: label.into() }), ..self }
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
