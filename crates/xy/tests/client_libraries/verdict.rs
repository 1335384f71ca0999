//! Compares the outcomes direct and through xy. A pure decision.

use crate::allowed::{Allowed, Side};
use crate::feature::{FEATURES, Outcome, Outcomes};
use crate::library::Library;
use crate::server::{Era, Way};

/// The outcomes with a server of one era.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) era: Era,
    pub(crate) direct: Outcomes,
    pub(crate) through: Outcomes,
}

/// The result of a feature over all eras, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cell {
    Works,
    Unsupported,
    Fails,
}

/// Why a feature fails with the servers of some eras.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailureReason {
    pub(crate) heading: &'static str,
    pub(crate) eras: Vec<Era>,
    pub(crate) why: String,
}

/// The comparison of one library over one transport.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// In the order of the features.
    pub(crate) cells: Vec<Cell>,
    /// The reasons for the cells that fail.
    pub(crate) notes: Vec<FailureReason>,
    /// Reasons for which the test fails.
    pub(crate) problems: Vec<String>,
}

impl Verdict {
    /// Adds a reason, or an era to the same reason of the same feature.
    fn add_note(&mut self, heading: &'static str, era: Era, why: String) {
        let is_same = |note: &&mut FailureReason| note.heading == heading && note.why == why;
        match self.notes.iter_mut().find(is_same) {
            Some(note) => note.eras.push(era),
            None => self.notes.push(FailureReason { heading, eras: vec![era], why }),
        }
    }
}

/// Decides about every feature of a library over one transport.
pub(crate) fn judge(
    library: &Library,
    way: Way,
    runs: &[Run],
    allowed: &'static [Allowed],
) -> Verdict {
    let mut verdict = Verdict::default();
    for (feature, heading) in FEATURES {
        let mut worst = Cell::Works;
        for run in runs {
            let place = format!("{feature} with the `{}` server", run.era.name());
            let excuse = |side| {
                let at = (way, run.era);
                allowed.iter().find(|it| it.covers(side, library, at, feature)).map(|it| it.why)
            };
            let is_listed = library.unsupported.contains(&feature);
            let (cell, note) =
                match judge_feature(&run.direct[feature], &run.through[feature], is_listed, excuse)
                {
                    Ok(judged) => judged,
                    Err(problem) => {
                        verdict.problems.push(format!("{place}: {problem}"));
                        (Cell::Fails, None)
                    }
                };
            worst = worst.max(cell);
            if let Some(why) = note {
                verdict.add_note(heading, run.era, why);
            }
        }
        verdict.cells.push(worst);
    }
    verdict
}

/// Decides about a feature with one server: its cell and a note, or a problem.
fn judge_feature(
    direct: &Outcome,
    through: &Outcome,
    is_listed: bool,
    excuse: impl Fn(Side) -> Option<&'static str>,
) -> Result<(Cell, Option<String>), String> {
    use Outcome::{Failed, Unsupported, Works};
    let allowed = (excuse(Side::Direct), excuse(Side::Through));
    match (direct, through, allowed) {
        (Unsupported, Unsupported, (None, None)) if is_listed => Ok((Cell::Unsupported, None)),
        (Unsupported, Unsupported, _) if is_listed => {
            Err("is listed as unsupported and as allowed to fail".to_owned())
        }
        (Unsupported, ..) | (_, Unsupported, _) if is_listed => {
            Err("is unsupported on one side only".to_owned())
        }
        (Unsupported, ..) | (_, Unsupported, _) => {
            Err("is reported as unsupported, but `library.rs` does not list it".to_owned())
        }
        _ if is_listed => Err("is listed as unsupported, but the driver tries it".to_owned()),
        // The library may or may not do better with xy in between.
        (Failed(_), _, (Some(why), None)) => {
            Ok((Cell::Fails, Some(format!("direct: failed. {why}"))))
        }
        (Failed(why), ..) => Err(format!("fails direct, which no entry allows: {why}")),
        (Works, _, (Some(_), _)) => {
            Err("works direct, but an entry allows it to fail: remove the entry".to_owned())
        }
        (Works, Failed(_), (None, Some(why))) => Ok((Cell::Fails, Some(why.to_owned()))),
        (Works, Failed(why), (None, None)) => Err(format!("works direct, not through xy: {why}")),
        (Works, Works, (None, Some(_))) => {
            Err("works through xy, but an entry allows it to fail: remove the entry".to_owned())
        }
        (Works, Works, (None, None)) => Ok((Cell::Works, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::PYTHON_SDK_1;
    use crate::server::{Sharing, Transport};

    const NEVER: fn(Side) -> Option<&'static str> = |_| None;
    const DIRECT: fn(Side) -> Option<&'static str> = |it| (it == Side::Direct).then_some("why");
    const THROUGH: fn(Side) -> Option<&'static str> = |it| (it == Side::Through).then_some("why");

    fn failed() -> Outcome {
        Outcome::Failed("broken".to_owned())
    }

    #[test]
    fn working_feature_works() {
        let judged = judge_feature(&Outcome::Works, &Outcome::Works, false, NEVER);
        assert_eq!(judged, Ok((Cell::Works, None)));
    }

    #[test]
    fn feature_that_fails_only_through_xy_is_a_problem() {
        let problem = judge_feature(&Outcome::Works, &failed(), false, NEVER).unwrap_err();
        assert_eq!(problem, "works direct, not through xy: broken");
        let judged = judge_feature(&Outcome::Works, &failed(), false, THROUGH);
        assert_eq!(judged, Ok((Cell::Fails, Some("why".to_owned()))));
    }

    #[test]
    fn feature_that_fails_directly_needs_an_entry() {
        let problem = judge_feature(&failed(), &failed(), false, NEVER).unwrap_err();
        assert!(problem.starts_with("fails direct"), "{problem}");
        for through in [failed(), Outcome::Works] {
            let judged = judge_feature(&failed(), &through, false, DIRECT);
            assert_eq!(judged, Ok((Cell::Fails, Some("direct: failed. why".to_owned()))));
        }
    }

    #[test]
    fn stale_entry_is_a_problem() {
        for entry in [DIRECT, THROUGH] {
            let problem = judge_feature(&Outcome::Works, &Outcome::Works, false, entry);
            assert!(problem.unwrap_err().ends_with("remove the entry"));
        }
    }

    #[test]
    fn feature_is_unsupported_only_by_the_list() {
        let unsupported = Outcome::Unsupported;
        let judged = judge_feature(&unsupported, &unsupported, true, NEVER);
        assert_eq!(judged, Ok((Cell::Unsupported, None)));
        judge_feature(&unsupported, &unsupported, false, NEVER).unwrap_err();
        judge_feature(&unsupported, &Outcome::Works, true, NEVER).unwrap_err();
        judge_feature(&Outcome::Works, &Outcome::Works, true, NEVER).unwrap_err();
        judge_feature(&failed(), &failed(), true, DIRECT).unwrap_err();
    }

    #[test]
    fn worst_era_decides_a_cell() {
        let outcomes = |outcome: Outcome| -> Outcomes {
            FEATURES.iter().map(|(name, _)| (*name, outcome.clone())).collect()
        };
        let good =
            |era| Run { era, direct: outcomes(Outcome::Works), through: outcomes(Outcome::Works) };
        let mut bad = good(Era::Both);
        bad.through.insert("roots", failed());
        let way = Way { transport: Transport::Stdio, sharing: Sharing::PerClient };
        let verdict = judge(&PYTHON_SDK_1, way, &[good(Era::Legacy), bad], &[]);
        let fails = verdict.cells.iter().filter(|it| **it == Cell::Fails).count();
        assert_eq!((verdict.cells.len(), fails), (FEATURES.len(), 1));
        let [problem] = &verdict.problems[..] else { panic!("{:?}", verdict.problems) };
        assert!(problem.starts_with("roots with the `both` server: works direct"), "{problem}");
    }
}
