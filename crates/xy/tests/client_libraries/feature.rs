//! The features, and the report of a driver about each of them.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The features as the drivers call them, each with its heading in the table.
pub(crate) const FEATURES: [(&str, &str); 16] = [
    ("list", "list"),
    ("unicode", "Unicode"),
    ("large", "4 MB"),
    ("error", "error"),
    ("unknown", "unknown tool"),
    ("progress", "progress"),
    ("concurrent", "50 calls"),
    ("elicitation", "elicitation"),
    ("sampling", "sampling"),
    ("roots", "roots"),
    ("completion", "completion"),
    ("resources", "resources"),
    ("subscribe", "subscribe"),
    ("logging", "logging"),
    ("cancel", "cancel"),
    ("prompt", "prompt"),
];

/// The outcome of one feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Works,
    /// The library has no API for it.
    Unsupported,
    Failed(String),
}

/// The outcome of each feature, by its name.
pub(crate) type Outcomes = BTreeMap<&'static str, Outcome>;

/// One line of a driver.
#[derive(Debug, Deserialize)]
struct Line {
    feature: String,
    result: String,
    why: String,
}

/// Reads the lines of a driver.
///
/// `bad_end` describes a failed exit of the driver. The features without a line have then failed,
/// or the last feature if each has a line.
///
/// # Panics
///
/// Panics if a line is invalid or repeats a feature, or if a driver that exited cleanly omitted a
/// feature.
#[track_caller]
pub(crate) fn read_outcomes(stdout: &str, bad_end: Option<&str>) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut last = None;
    for text in stdout.lines() {
        let line: Line = serde_json::from_str(text)
            .unwrap_or_else(|cause| panic!("a driver printed `{text}`: {cause}"));
        let (name, _) = FEATURES
            .into_iter()
            .find(|(name, _)| *name == line.feature)
            .unwrap_or_else(|| panic!("a driver reports an unknown feature: {line:?}"));
        let outcome = match line.result.as_str() {
            "ok" => Outcome::Works,
            "unsupported" if !line.why.is_empty() => Outcome::Unsupported,
            "failed" => Outcome::Failed(line.why),
            _ => panic!("a driver reports no outcome: {text}"),
        };
        assert!(outcomes.insert(name, outcome).is_none(), "a driver reports `{name}` twice");
        last = Some(name);
    }
    let is_complete = outcomes.len() == FEATURES.len();
    let missing =
        FEATURES.into_iter().map(|(name, _)| name).filter(|it| !outcomes.contains_key(it));
    let failed: Vec<&str> =
        if is_complete { last.into_iter().collect() } else { missing.collect() };
    match bad_end {
        Some(why) => {
            let failed = failed.into_iter().map(|it| (it, Outcome::Failed(why.to_owned())));
            outcomes.extend(failed);
        }
        None => assert!(is_complete, "a driver left out {failed:?}"),
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(feature: &str) -> String {
        format!("{{\"feature\":\"{feature}\",\"result\":\"ok\",\"why\":\"\"}}\n")
    }

    #[test]
    fn features_after_a_crash_fail() {
        let outcomes = read_outcomes(&line("list"), Some("exit 1"));
        assert_eq!(outcomes["list"], Outcome::Works);
        assert_eq!(outcomes["prompt"], Outcome::Failed("exit 1".to_owned()));
        assert_eq!(outcomes.len(), FEATURES.len());
    }

    #[test]
    fn crash_after_the_last_feature_fails_it() {
        let all: String = FEATURES.iter().rev().map(|(name, _)| line(name)).collect();
        let outcomes = read_outcomes(&all, Some("exit 1"));
        assert_eq!(outcomes["list"], Outcome::Failed("exit 1".to_owned()));
        assert_eq!(outcomes["prompt"], Outcome::Works);
        assert!(read_outcomes(&all, None).values().all(|it| *it == Outcome::Works));
    }

    #[test]
    #[should_panic(expected = "left out")]
    fn feature_without_a_line_is_refused() {
        read_outcomes(&line("list"), None);
    }

    #[test]
    #[should_panic(expected = "no outcome")]
    fn unsupported_without_a_reason_is_refused() {
        read_outcomes("{\"feature\":\"list\",\"result\":\"unsupported\",\"why\":\"\"}", None);
    }
}
