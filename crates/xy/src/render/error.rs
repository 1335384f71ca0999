//! Rendering of errors: what failed, why, and what to do next.

use anstyle::Style;
use xy_protocol::control::{Problem, Severity};
use xy_protocol::error::CallError;

use super::{BOLD, RED_BOLD, YELLOW, paint, safe_lines};

/// Renders the problems of the configuration, if any, then message, cause and hint.
pub(crate) fn render(error: &CallError) -> String {
    let mut text: String = error.problems.iter().map(problem).collect();
    text += &format!("{} {}\n", paint(RED_BOLD, "error:"), safe_lines(&error.message, "       "));
    for (label, words) in [("cause:", &error.cause), ("hint:", &error.hint)] {
        if let Some(words) = words {
            let indent = " ".repeat(3 + label.len());
            text += &format!("  {} {}\n", paint(BOLD, label), safe_lines(words, &indent));
        }
    }
    text
}

/// Renders one problem of the configuration and a blank line.
pub(crate) fn problem(problem: &Problem) -> String {
    let rendered = safe_lines(&problem.rendered, "");
    let (label, style): (_, Style) = match problem.severity {
        Severity::Error => ("error:", RED_BOLD),
        Severity::Warning => ("warning:", YELLOW.bold()),
    };
    match rendered.strip_prefix(label) {
        Some(rest) => format!("{}{rest}\n\n", paint(style, label)),
        None => format!("{rendered}\n\n"),
    }
}

/// Renders a warning.
pub(crate) fn warning(words: &str) -> String {
    format!("{} {}\n", paint(YELLOW.bold(), "warning:"), safe_lines(words, "         "))
}

#[cfg(test)]
mod tests {
    use xy_protocol::error::ErrorKind;

    use super::super::uncoloured;
    use super::*;

    #[test]
    fn error_has_three_parts() {
        let error = CallError::new(ErrorKind::SpawnFailed, "server `github` did not start")
            .cause("program `github-mcp` is not on PATH\nit said: \x1b[31mno")
            .hint("install it, or give its full path as `command` at github.kdl:1");
        insta::assert_snapshot!(uncoloured(&render(&error)));
    }

    #[test]
    fn problems_are_shown_before_the_error() {
        let problem = Problem {
            severity: Severity::Error,
            message: "unknown restart policy `allways`".into(),
            file: "servers/github.kdl".into(),
            line: Some(9),
            column: Some(12),
            suggestion: None,
            rendered:
                "error: unknown restart policy `allways`\n --> servers/github.kdl:9:12\n  |\n\
                9 |     policy \"allways\"\n  |            ^^^^^^^^^ did you mean `always`?\n"
                    .into(),
        };
        let error = CallError::new(ErrorKind::ConfigInvalid, "the configuration was not reloaded")
            .hint("the daemon keeps the settings it has")
            .problems(vec![problem]);
        insta::assert_snapshot!(uncoloured(&render(&error)));
    }
}
