//! Differences between two runs of one script, and the reasons for them.

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use xy_testkit::text::{Text, differences as text_differences};

use crate::drive::{Era, Record};
use crate::{Direct, Way, allowed};

/// Maximum length of a text in a message.
const SHOWN: usize = 300;

/// Steps that the modern era does not have.
const LEGACY_ONLY: [&str; 2] = ["level", "ping"];

/// Fields of each modern result, or of each cacheable one.
const MODERN_FIELDS: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];

/// The member of `_meta` with the server's name.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// A path at which an answer through xy differs from the server's own.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) label: String,
    /// `result/tools/0/name`, or with `#order` at the end if only the order of the keys differs.
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

/// The servers that an entry covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    All,
    /// Servers with which xy speaks the legacy era.
    Legacy,
    /// Servers with which xy speaks the modern era.
    Modern,
}

/// An allowed difference, and its reason.
#[derive(Debug)]
pub(crate) struct AllowedDifference {
    pub(crate) of: Of,
    pub(crate) ways: &'static [Way],
    /// A label; `*` matches any text.
    pub(crate) step: &'static str,
    /// A path; `*` matches any text.
    pub(crate) path: &'static str,
    pub(crate) why: &'static str,
}

impl AllowedDifference {
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
pub(crate) fn entries() -> impl Iterator<Item = &'static AllowedDifference> {
    allowed::ALLOWED.iter()
}

/// Returns the key of the entry that explains a difference.
pub(crate) fn find_reason(spoken: Era, way: Way, difference: &Difference) -> Option<String> {
    entries().find(|it| it.fits(spoken, way, difference)).map(AllowedDifference::key)
}

/// Returns the keys of the entries that were not used.
pub(crate) fn stale<'a>(
    entries: impl Iterator<Item = &'a AllowedDifference>,
    seen: &BTreeSet<String>,
) -> Vec<String> {
    let stale = entries.filter(|it| !seen.contains(&it.key()));
    stale.map(|it| format!("{} ({})", it.key(), it.why)).collect()
}

/// The paths that differ between two runs without xy: times, random ids.
pub(crate) struct Masks(Vec<Difference>);

impl Masks {
    pub(crate) fn between(before: &[Record], after: &[Record]) -> Self {
        Self(differences(before, after))
    }

    /// Returns true if the difference is below one of the paths.
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

/// Compares the texts byte for byte, and searches for paths only if they differ.
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

/// Returns the parts of a legacy server's direct runs that a modern client can receive.
pub(crate) fn bridged(legacy: &Direct) -> Direct {
    Direct { before: comparable(&legacy.before), after: comparable(&legacy.after) }
}

/// Returns the records that both eras have, without the fields of modern results. Of a handshake
/// only the common members are left.
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

/// Returns true if `text` matches `pattern`, in which `*` matches any text.
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
    fn every_byte_is_compared() {
        assert_eq!(paths(r#"{"a":1}"#, r#"{"a":1}"#), [""; 0]);
        assert_eq!(paths(r#"{"a":1}"#, r#"{"a": 1}"#), ["#spaces"]);
        assert_eq!(paths(r#"{"a":1}"#, r#"{"a":1.0}"#), ["result/a"]);
        assert_eq!(paths(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#), ["result#order"]);
    }

    #[test]
    fn error_and_missing_answer_are_differences() {
        let result = record("a", "{}");
        let error = Record { member: "error", ..result.clone() };
        let path = |found: Vec<Difference>| found.into_iter().map(|it| it.path).collect::<String>();
        assert_eq!(path(differences(from_ref(&result), &[error])), "result becomes error");
        assert_eq!(path(differences(from_ref(&result), &[])), "#missing");
        assert_eq!(path(differences(&[], &[result])), "#more");
    }

    #[test]
    fn mask_hides_only_its_path() {
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
    fn unused_entry_is_stale() {
        let entry =
            |path| AllowedDifference { of: Of::All, ways: &[], step: "a", path, why: "why" };
        let (old, new) = (entry("old"), entry("new"));
        let seen = BTreeSet::from([new.key()]);
        assert_eq!(stale([&old, &new].into_iter(), &seen), ["All [] a: old (why)"]);
    }

    #[test]
    fn entry_applies_only_to_its_ways_and_era() {
        let ways = &[Way::LegacyHttp];
        let entry =
            AllowedDifference { of: Of::Modern, ways, step: "a", path: "result/b", why: "why" };
        let found = differences(&[record("a", r#"{"b":1}"#)], &[record("a", r#"{"b":2}"#)]);
        assert!(entry.fits(Era::Modern, Way::LegacyHttp, &found[0]));
        assert!(!entry.fits(Era::Legacy, Way::LegacyHttp, &found[0]));
        assert!(!entry.fits(Era::Modern, Way::LegacyStdio, &found[0]));
    }

    #[test]
    fn star_matches_any_text() {
        assert!(fits("result/tools/*/name", "result/tools/12/name"));
        assert!(fits("result*", "result"));
        assert!(!fits("result/*", "error/code"));
        assert!(!fits("result/*/name", "result/1/title"));
    }
}
