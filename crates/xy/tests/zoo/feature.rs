//! The features of a server, and how clients of each era see them through xy.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::drive::{Era, Record};

/// The features in the order of the table, each with the labels of its steps.
pub(crate) const FEATURES: [(&str, &[&str]); 8] = [
    ("handshake", &["handshake"]),
    ("tools", &["tools", "good call", "bad call", "unknown tool"]),
    ("prompts", &["prompts", "prompt", "unknown prompt"]),
    ("resources", &["resources", "templates", "resource", "unknown resource"]),
    ("completion", &["completion"]),
    ("logging", &["level"]),
    ("ping", &["ping"]),
    ("other methods", &["unknown method"]),
];

/// The features of a server that were compared.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Features {
    legacy: BTreeMap<String, Compared>,
    modern: BTreeMap<String, Compared>,
}

/// The comparison of a feature for clients of one era.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Compared {
    /// The server answers one of the steps with a result.
    is_offered: bool,
    /// The keys of the entries that explain differences.
    differences: BTreeSet<String>,
}

impl Features {
    /// Records a step of the server without xy that was compared.
    pub(crate) fn add(&mut self, era: Era, record: &Record) {
        self.of(era, &record.label).is_offered |= record.member == "result";
    }

    /// Records a difference of a step, by the key of the entry that allows it.
    pub(crate) fn add_difference(&mut self, era: Era, label: &str, key: String) {
        self.of(era, label).differences.insert(key);
    }

    /// Returns the cells of the table: the sign for a legacy client, and that for a modern one.
    /// `number` returns the number of the reason of an entry.
    pub(crate) fn cells(&self, number: impl Fn(&str) -> Option<usize>) -> Vec<String> {
        let sign = |compared: Option<&Compared>| match compared {
            None => "·".to_owned(),
            Some(it) if !it.differences.is_empty() => {
                let numbers = it.differences.iter().filter_map(|key| number(key));
                let numbers: BTreeSet<usize> = numbers.collect();
                numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
            }
            Some(it) if it.is_offered => "✓".to_owned(),
            Some(_) => "–".to_owned(),
        };
        let cell = |(name, _): &(&str, _)| {
            format!("{} {}", sign(self.legacy.get(*name)), sign(self.modern.get(*name)))
        };
        FEATURES.iter().map(cell).collect()
    }

    fn of(&mut self, era: Era, label: &str) -> &mut Compared {
        let all = match era {
            Era::Legacy => &mut self.legacy,
            Era::Modern => &mut self.modern,
        };
        all.entry(feature(label).to_owned()).or_default()
    }
}

/// Returns the feature of a step.
///
/// # Panics
///
/// Panics if no feature has the step: then the table would leave it out.
#[track_caller]
fn feature(label: &str) -> &'static str {
    let first_page = label.split_once(", page ").map_or(label, |(list, _)| list);
    let found = FEATURES.iter().find(|(_, labels)| labels.contains(&first_page));
    found.unwrap_or_else(|| panic!("no feature has the step `{label}`")).0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(label: &str, member: &'static str) -> Record {
        Record { label: label.to_owned(), member, text: "{}".to_owned() }
    }

    #[test]
    fn cell_has_a_sign_for_each_era() {
        let mut features = Features::default();
        for (label, member) in [("tools", "result"), ("unknown tool", "error"), ("level", "error")]
        {
            features.add(Era::Legacy, &record(label, member));
        }
        features.add(Era::Modern, &record("tools, page 2", "result"));
        features.add_difference(Era::Modern, "bad call", "b".to_owned());
        features.add_difference(Era::Modern, "good call", "a".to_owned());
        let cells = features.cells(|key| Some(if key == "a" { 1 } else { 2 }));
        assert_eq!(cells, ["· ·", "✓ 1,2", "· ·", "· ·", "· ·", "– ·", "· ·", "· ·"]);
    }

    #[test]
    #[should_panic(expected = "no feature has the step `news`")]
    fn step_without_a_feature_is_refused() {
        feature("news");
    }
}
