//! The problems of one file, bounded.

use std::collections::HashSet;

use crate::report::Problem;

/// At most this many problems of one file are told.
pub(super) const MAX_PROBLEMS: usize = 100;

/// Problems in the making.
#[derive(Debug, Default)]
pub(super) struct Problems {
    told: Vec<Problem>,
    untold: usize,
    untold_errors: usize,
    errors: usize,
}

impl Problems {
    pub(super) fn push(&mut self, problem: Problem) {
        self.errors += usize::from(problem.is_error());
        if self.told.len() < MAX_PROBLEMS {
            self.told.push(problem);
        } else {
            self.untold += 1;
            self.untold_errors += usize::from(problem.is_error());
        }
    }

    pub(super) fn extend(&mut self, problems: impl IntoIterator<Item = Problem>) {
        for problem in problems {
            self.push(problem);
        }
    }

    /// How many errors there are, told or not.
    pub(super) fn errors(&self) -> usize {
        self.errors
    }

    /// Whether any of them forbids the use of the file.
    pub(super) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Them all, in the order of the text.
    pub(super) fn finish(mut self, file: &str) -> Vec<Problem> {
        self.told.sort_by_key(|problem| {
            problem.place.as_ref().map(|place| (place.file.clone(), place.line, place.column))
        });
        if self.untold > 0 {
            let message = format!("there are {} more problems in this file", self.untold);
            let mut rest = Problem::in_file(file, message);
            rest.suggestion = Some("correct the ones above first".to_owned());
            self.told.push(if self.untold_errors > 0 { rest } else { rest.warn() });
        }
        self.told
    }
}

/// All problems once: what is wrong with `defaults` is found anew by each server.
pub(super) fn without_repeats(problems: Vec<Problem>) -> Vec<Problem> {
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for problem in problems {
        let place = problem.place.as_ref().map(|place| (place.line, place.column));
        if seen.insert((problem.file.clone(), place, problem.message.clone())) {
            kept.push(problem);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_that_are_left_out_are_no_error() {
        let mut problems = Problems::default();
        problems.extend((0..=MAX_PROBLEMS).map(|_| Problem::in_file("a.kdl", "odd").warn()));
        assert!(!problems.finish("a.kdl").iter().any(Problem::is_error));
    }
}
