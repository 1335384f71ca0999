//! Two runs of one script: their differences, and the reasons for them.

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use xy_testkit::text::{Text, differences as text_differences};

use crate::drive::{Era, Record};
use crate::{Direct, Way, allowed};

/// The longest part of a text that a message shows.
const SHOWN: usize = 300;

/// Steps that the modern era does not have.
const LEGACY_ONLY: [&str; 2] = ["level", "ping"];

/// Fields that each modern result has, or each that may be cached.
const MODERN_FIELDS: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];

/// The member of `_meta` that says who the server is.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// A place where an answer through xy is not the server's own.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) label: String,
    /// `result/tools/0/name`; `#order` at the end if only the order of the keys differs.
    pub(crate) path: String,
    direct: String,
    through: String,
}

impl Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [direct, through] = [&self.direct, &self.through].map(|it| shorten(it));
        write!(out, "{}: {}\n  direct  {direct}\n  through {through}", self.label, self.path)
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The servers that an entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    All,
    /// Servers that xy speaks the legacy era with.
    Legacy,
    /// Servers that xy speaks the modern era with.
    Modern,
}

/// A difference that may be seen, and its reason.
#[derive(Debug)]
pub(crate) struct Differs {
    pub(crate) of: Of,
    pub(crate) ways: &'static [Way],
    /// A label; `*` stands for any text.
    pub(crate) step: &'static str,
    /// A path; `*` stands for any text.
    pub(crate) path: &'static str,
    pub(crate) why: &'static str,
}

impl Differs {
    /// Returns the text that names this entry in rows.
    pub(crate) fn key(&self) -> String {
        let Self { of, ways, step, path, .. } = self;
        format!("{of:?} {ways:?} {step}: {path}")
    }

    fn fits(&self, spoken: Era, way: Way, difference: &Difference) -> bool {
        let of = match self.of {
            Of::All => true,
            Of::Legacy => spoken == Era::Legacy,
            Of::Modern => spoken == Era::Modern,
        };
        of && self.ways.contains(&way)
            && fits(self.step, &difference.label)
            && fits(self.path, &difference.path)
    }
}

/// Returns all entries.
pub(crate) fn entries() -> impl Iterator<Item = &'static Differs> {
    allowed::ALLOWED.iter()
}

/// Returns the key of the entry that explains a difference.
pub(crate) fn find_reason(spoken: Era, way: Way, difference: &Difference) -> Option<String> {
    entries().find(|it| it.fits(spoken, way, difference)).map(Differs::key)
}

/// Names the entries that are not among the keys that were seen.
pub(crate) fn stale<'a>(
    entries: impl Iterator<Item = &'a Differs>,
    seen: &BTreeSet<String>,
) -> Vec<String> {
    let stale = entries.filter(|it| !seen.contains(&it.key()));
    stale.map(|it| format!("{} ({})", it.key(), it.why)).collect()
}

/// The places that differ between two runs without xy: times, random ids.
pub(crate) struct Masks(Vec<Difference>);

impl Masks {
    pub(crate) fn between(before: &[Record], after: &[Record]) -> Self {
        Self(differences(before, after))
    }

    /// Returns true if the difference is within one of the places.
    pub(crate) fn hide(&self, difference: &Difference) -> bool {
        self.0.iter().any(|mask| {
            let rest = difference.path.strip_prefix(&mask.path);
            mask.label == difference.label
                && rest.is_some_and(|it| it.is_empty() || it.starts_with('/'))
        })
    }
}

/// Returns every difference between two runs.
pub(crate) fn differences(direct: &[Record], through: &[Record]) -> Vec<Difference> {
    let mut all = Vec::new();
    for one in direct {
        match through.iter().find(|it| it.label == one.label) {
            Some(other) => all.extend(between(one, other)),
            None => all.push(missing(one, "#missing", &one.text, "(nothing)")),
        }
    }
    for other in through.iter().filter(|it| !direct.iter().any(|one| one.label == it.label)) {
        all.push(missing(other, "#more", "(nothing)", &other.text));
    }
    all
}

fn missing(record: &Record, path: &str, direct: &str, through: &str) -> Difference {
    let (label, path) = (record.label.clone(), path.to_owned());
    Difference { label, path, direct: direct.to_owned(), through: through.to_owned() }
}

/// Compares the texts byte for byte, and looks for places only if they differ.
fn between(one: &Record, other: &Record) -> Vec<Difference> {
    if one.member != other.member {
        let path = format!("{} becomes {}", one.member, other.member);
        return vec![missing(one, &path, &one.text, &other.text)];
    }
    if one.text == other.text {
        return Vec::new();
    }
    let found = text_differences(one.member, &Text::of(&one.text), &Text::of(&other.text));
    if found.is_empty() {
        return vec![missing(one, "#spaces", &one.text, &other.text)];
    }
    let each = found.into_iter();
    each.map(|(path, direct, through)| Difference {
        label: one.label.clone(),
        path,
        direct,
        through,
    })
    .collect()
}

/// Returns the part of a legacy server's own runs that a modern client can be given.
pub(crate) fn bridged(legacy: &Direct) -> Direct {
    Direct { before: comparable(&legacy.before), after: comparable(&legacy.after) }
}

/// Returns the records that both eras have, without the fields that only a modern result has. Of
/// a handshake these are the members that both have.
pub(crate) fn comparable(records: &[Record]) -> Vec<Record> {
    let kept = records.iter().filter(|it| !LEGACY_ONLY.contains(&it.label.as_str()));
    let mut kept: Vec<Record> = kept.cloned().collect();
    for record in &mut kept {
        let Text::Object(mut members) = Text::of(&record.text) else { continue };
        if record.label == "handshake" {
            members.retain(|(name, _)| name == "capabilities" || name == "instructions");
        }
        members.retain(|(name, _)| !MODERN_FIELDS.contains(&name.as_str()));
        for (_, meta) in members.iter_mut().filter(|(name, _)| name == "_meta") {
            if let Text::Object(all) = meta {
                all.retain(|(name, _)| name != SERVER_INFO);
            }
        }
        members.retain(|(name, value)| name != "_meta" || *value != Text::Object(Vec::new()));
        record.text = Text::Object(members).to_string();
    }
    kept
}

/// Returns true if `pattern`, in which `*` stands for any text, is `text`.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            let mut ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.any(|at| fits(rest, &text[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn record(label: &str, text: &str) -> Record {
        Record { label: label.to_owned(), member: "result", text: text.to_owned() }
    }

    fn paths(one: &str, other: &str) -> Vec<String> {
        let found = differences(&[record("a", one)], &[record("a", other)]);
        found.into_iter().map(|it| it.path).collect()
    }

    #[test]
    fn every_byte_counts() {
        assert_eq!(paths(r#"{"a":1}"#, r#"{"a":1}"#), [""; 0]);
        assert_eq!(paths(r#"{"a":1}"#, r#"{"a": 1}"#), ["#spaces"]);
        assert_eq!(paths(r#"{"a":1}"#, r#"{"a":1.0}"#), ["result/a"]);
        assert_eq!(paths(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#), ["result#order"]);
    }

    #[test]
    fn an_error_for_a_result_and_a_missing_answer_differ() {
        let result = record("a", "{}");
        let error = Record { member: "error", ..result.clone() };
        let path = |found: Vec<Difference>| found.into_iter().map(|it| it.path).collect::<String>();
        assert_eq!(path(differences(from_ref(&result), &[error])), "result becomes error");
        assert_eq!(path(differences(from_ref(&result), &[])), "#missing");
        assert_eq!(path(differences(&[], &[result])), "#more");
    }

    #[test]
    fn a_mask_hides_its_place_and_nothing_else() {
        let runs = |time: &str| vec![record("a", &format!(r#"{{"at":{time},"n":1}}"#))];
        let masks = Masks::between(&runs("1"), &runs("2"));
        let hidden = |text: &str| {
            let found = differences(&runs("1"), &[record("a", text)]);
            found.iter().all(|it| masks.hide(it))
        };
        assert!(hidden(r#"{"at":3,"n":1}"#));
        assert!(!hidden(r#"{"at":3,"n":2}"#));
        assert!(!hidden(r#"{"at":1,"n":1,"atlas":1}"#));
    }

    #[test]
    fn an_entry_that_was_not_seen_is_stale() {
        let entry = |path| Differs { of: Of::All, ways: &[], step: "a", path, why: "why" };
        let (old, new) = (entry("old"), entry("new"));
        let seen = BTreeSet::from([new.key()]);
        assert_eq!(stale([&old, &new].into_iter(), &seen), ["All [] a: old (why)"]);
    }

    #[test]
    fn an_entry_allows_its_ways_and_its_era_alone() {
        let ways = &[Way::LegacyHttp];
        let entry = Differs { of: Of::Modern, ways, step: "a", path: "result/b", why: "why" };
        let found = differences(&[record("a", r#"{"b":1}"#)], &[record("a", r#"{"b":2}"#)]);
        assert!(entry.fits(Era::Modern, Way::LegacyHttp, &found[0]));
        assert!(!entry.fits(Era::Legacy, Way::LegacyHttp, &found[0]));
        assert!(!entry.fits(Era::Modern, Way::LegacyStdio, &found[0]));
    }

    #[test]
    fn a_star_stands_for_any_text() {
        assert!(fits("result/tools/*/name", "result/tools/12/name"));
        assert!(fits("result*", "result"));
        assert!(!fits("result/*", "error/code"));
        assert!(!fits("result/*/name", "result/1/title"));
    }
}
