//! The problems of one file, with a limit.

use std::collections::HashSet;

use crate::report::Problem;

/// Maximum number of problems that are reported per file.
pub(super) const MAX_PROBLEMS: usize = 100;

/// A collector of problems.
#[derive(Debug, Default)]
pub(super) struct Problems {
    reported: Vec<Problem>,
    omitted: usize,
    omitted_errors: usize,
    errors: usize,
}

impl Problems {
    pub(super) fn push(&mut self, problem: Problem) {
        self.errors += usize::from(problem.is_error());
        if self.reported.len() < MAX_PROBLEMS {
            self.reported.push(problem);
        } else {
            self.omitted += 1;
            self.omitted_errors += usize::from(problem.is_error());
        }
    }

    pub(super) fn extend(&mut self, problems: impl IntoIterator<Item = Problem>) {
        for problem in problems {
            self.push(problem);
        }
    }

    /// Returns the number of errors, including omitted ones.
    pub(super) fn errors(&self) -> usize {
        self.errors
    }

    /// Returns true if any problem is an error.
    pub(super) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Returns all problems, in the order of the text.
    pub(super) fn finish(mut self, file: &str) -> Vec<Problem> {
        self.reported.sort_by_key(|problem| {
            problem.place.as_ref().map(|place| (place.file.clone(), place.line, place.column))
        });
        if self.omitted > 0 {
            let message = format!("there are {} more problems in this file", self.omitted);
            let mut rest = Problem::in_file(file, message);
            rest.suggestion = Some("fix the problems above first".to_owned());
            self.reported.push(if self.omitted_errors > 0 { rest } else { rest.warn() });
        }
        self.reported
    }
}

/// Removes repeated problems: each server reports the errors in `defaults` again.
pub(super) fn without_repeats(problems: Vec<Problem>) -> Vec<Problem> {
    let mut seen = HashSet::new();
    let mut unique = Vec::new();
    for problem in problems {
        let place = problem.place.as_ref().map(|place| (place.line, place.column));
        if seen.insert((problem.file.clone(), place, problem.message.clone())) {
            unique.push(problem);
        }
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_warnings_are_no_error() {
        let mut problems = Problems::default();
        problems.extend((0..=MAX_PROBLEMS).map(|_| Problem::in_file("a.kdl", "odd").warn()));
        assert!(!problems.finish("a.kdl").iter().any(Problem::is_error));
    }
}
