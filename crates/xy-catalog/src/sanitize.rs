//! Repairs list items that some clients could not read. Pure.
//!
//! Some clients reject a whole list for one item that violates the protocol. Items at combined
//! endpoints are therefore repaired:
//!
//! - A malformed optional member is removed, including a `null`.
//! - A missing required member with only one possible value is added.
//! - An item with any other malformed required member cannot be repaired.
//!
//! Valid members and unknown members keep their original text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use xy_mcp::edit;
use xy_mcp::envelope::text_of;
use xy_mcp::kind::Kind;

/// Maximum nesting depth that all clients can read; deeper nesting breaks the whole message.
const MAX_DEPTH: usize = 100;

/// The result of checking an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sanitized {
    /// All clients can read it.
    Valid,
    /// All clients can read this text instead.
    Repaired {
        text: String,
        /// The members that were changed.
        parts: Vec<&'static str>,
    },
    /// Some clients could read nothing of a list with it.
    Unreadable {
        /// The malformed member.
        part: &'static str,
    },
}

impl Sanitized {
    pub(crate) fn of(kind: Kind, raw: &str) -> Self {
        let Some(mut fields) = Fields::read(raw).filter(|_| is_readable(raw)) else {
            return Self::Unreadable { part: "depth or escapes" };
        };
        let mut changed = Vec::new();
        if fields.remove_duplicates() {
            changed.push("doubles");
        }
        if let Some(uri) = kind.is_by_uri().then(|| fields.get(kind.field())).flatten() {
            let name = fields.get("name");
            if name.is_none_or(|name| text_of(&name).is_none()) {
                fields.set("name", uri);
                changed.push("name");
            }
        }
        for part in members_of(kind) {
            match fields.repair(part) {
                Ok(true) => changed.push(part.name),
                Ok(false) => {}
                Err(()) => return Self::Unreadable { part: part.name },
            }
        }
        if changed.is_empty() {
            return Self::Valid;
        }
        Self::Repaired { text: fields.text(), parts: changed }
    }
}

/// A member of an object, as the protocol defines it.
struct Member {
    name: &'static str,
    shape: Shape,
    is_required: bool,
}

const fn optional(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, is_required: false }
}

const fn required(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, is_required: true }
}

/// The required shape of a value.
enum Shape {
    Text,
    Bool,
    /// A non-negative whole number.
    Integer,
    /// A number from 0 to 1.
    Fraction,
    /// A date and time with time zone.
    Timestamp,
    Enum(&'static [&'static str]),
    /// An object with any members.
    AnyObject,
    /// The JSON Schema of an object. The type of arguments is implied; other schemas of results are
    /// readable only to modern clients.
    Schema {
        may_lack_type: bool,
    },
    List(&'static Shape),
    Object(&'static [Member]),
}

fn members_of(kind: Kind) -> &'static [Member] {
    match kind {
        Kind::Tools => TOOL,
        Kind::Prompts => PROMPT,
        Kind::Resources => RESOURCE,
        Kind::Templates => TEMPLATE,
    }
}

const TOOL: &[Member] = &[
    optional("title", Shape::Text),
    optional("description", Shape::Text),
    required("inputSchema", Shape::Schema { may_lack_type: true }),
    optional("outputSchema", Shape::Schema { may_lack_type: false }),
    optional("annotations", Shape::Object(HINTS)),
    optional("execution", Shape::Object(EXECUTION)),
    ICONS,
    META,
];

const PROMPT: &[Member] = &[
    optional("title", Shape::Text),
    optional("description", Shape::Text),
    optional("arguments", Shape::List(&Shape::Object(ARGUMENT))),
    ICONS,
    META,
];

const RESOURCE: &[Member] = &[
    optional("title", Shape::Text),
    optional("description", Shape::Text),
    optional("mimeType", Shape::Text),
    optional("size", Shape::Integer),
    optional("annotations", Shape::Object(ANNOTATIONS)),
    ICONS,
    META,
];

const TEMPLATE: &[Member] = &[
    optional("title", Shape::Text),
    optional("description", Shape::Text),
    optional("mimeType", Shape::Text),
    optional("annotations", Shape::Object(ANNOTATIONS)),
    ICONS,
    META,
];

const META: Member = optional("_meta", Shape::AnyObject);

const ICONS: Member = optional("icons", Shape::List(&Shape::Object(ICON)));

const ICON: &[Member] = &[
    required("src", Shape::Text),
    optional("mimeType", Shape::Text),
    optional("sizes", Shape::List(&Shape::Text)),
    optional("theme", Shape::Enum(&["light", "dark"])),
];

const HINTS: &[Member] = &[
    optional("title", Shape::Text),
    optional("readOnlyHint", Shape::Bool),
    optional("destructiveHint", Shape::Bool),
    optional("idempotentHint", Shape::Bool),
    optional("openWorldHint", Shape::Bool),
];

const EXECUTION: &[Member] =
    &[optional("taskSupport", Shape::Enum(&["required", "optional", "forbidden"]))];

const ARGUMENT: &[Member] = &[
    required("name", Shape::Text),
    optional("title", Shape::Text),
    optional("description", Shape::Text),
    optional("required", Shape::Bool),
];

const ANNOTATIONS: &[Member] = &[
    optional("audience", Shape::List(&Shape::Enum(&["user", "assistant"]))),
    optional("priority", Shape::Fraction),
    optional("lastModified", Shape::Timestamp),
];

impl Shape {
    /// Returns the value in this shape, repaired if necessary; `None` if it cannot be.
    fn repair<'t>(&self, raw: &'t str) -> Option<Cow<'t, str>> {
        match self {
            Self::Text => text_of(raw).map(|_| Cow::Borrowed(raw)),
            Self::Bool => matches!(raw, "true" | "false").then_some(Cow::Borrowed(raw)),
            Self::Integer => {
                let number = raw.parse::<f64>().ok()?; // Also accepts `1e2`.
                (number >= 0.0 && number.fract() == 0.0).then_some(Cow::Borrowed(raw))
            }
            Self::Fraction => {
                let number = raw.parse::<f64>().ok()?;
                (0.0..=1.0).contains(&number).then_some(Cow::Borrowed(raw))
            }
            Self::Timestamp => {
                text_of(raw).filter(|it| is_timestamp(it)).map(|_| Cow::Borrowed(raw))
            }
            Self::Enum(words) => {
                let text = text_of(raw)?;
                words.contains(&&*text).then_some(Cow::Borrowed(raw))
            }
            Self::AnyObject => raw.starts_with('{').then_some(Cow::Borrowed(raw)),
            Self::Schema { may_lack_type } => repair_schema(raw, *may_lack_type),
            Self::List(shape) => {
                let all: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
                let fit: Vec<_> = all.iter().filter_map(|it| shape.repair(it.get())).collect();
                let is_same =
                    fit.len() == all.len() && fit.iter().all(|it| matches!(it, Cow::Borrowed(_)));
                Some(if is_same { raw.into() } else { format!("[{}]", fit.join(",")).into() })
            }
            Self::Object(parts) => {
                let mut fields = Fields::read(raw)?;
                let mut is_same = true;
                for part in *parts {
                    is_same &= !fields.repair(part).ok()?;
                }
                Some(if is_same { raw.into() } else { fields.text().into() })
            }
        }
    }
}

/// Repairs the JSON Schema of an object, whose properties must be objects too.
fn repair_schema(raw: &str, may_lack_type: bool) -> Option<Cow<'_, str>> {
    let mut fields = Fields::read(raw)?;
    let mut is_same = true;
    match fields.get("type").map(|it| text_of(&it).is_some_and(|it| it == "object")) {
        Some(true) => {}
        None if may_lack_type => {
            fields.set("type", r#""object""#.into());
            is_same = false;
        }
        Some(false) | None => return None,
    }
    if let Some(properties) = fields.get("properties") {
        let repaired = Fields::read(&properties).map(Fields::with_object_values);
        match repaired {
            Some(None) => {}
            Some(Some(repaired)) => {
                fields.set("properties", repaired.into());
                is_same = false;
            }
            None => {
                fields.remove("properties");
                is_same = false;
            }
        }
    }
    for part in [optional("required", Shape::List(&Shape::Text)), optional("$schema", Shape::Text)]
    {
        is_same &= !fields.repair(&part).ok()?;
    }
    Some(if is_same { raw.into() } else { fields.text().into() })
}

/// The members of an object, in their original order and text.
struct Fields<'t>(Vec<(Cow<'t, str>, Cow<'t, str>)>);

impl<'t> Fields<'t> {
    fn read(raw: &'t str) -> Option<Self> {
        serde_json::from_str(raw).ok()
    }

    /// Returns the last member of this name, as the last duplicate counts.
    fn get(&self, name: &str) -> Option<Cow<'t, str>> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    fn set(&mut self, name: &'static str, value: Cow<'t, str>) {
        self.remove(name);
        self.0.push((name.into(), value));
    }

    fn remove(&mut self, name: &str) {
        self.0.retain(|(key, _)| key != name);
    }

    /// Removes all but the last duplicate of each member. Returns true if there were any.
    fn remove_duplicates(&mut self) -> bool {
        let before = self.0.len();
        let mut seen = HashSet::new();
        self.0.reverse();
        self.0.retain(|(key, _)| seen.insert(key.clone()));
        self.0.reverse();
        self.0.len() < before
    }

    /// Repairs a member. Returns true if it was changed, or an error if it cannot be repaired.
    fn repair(&mut self, part: &Member) -> Result<bool, ()> {
        let Some(value) = self.get(part.name) else {
            return if part.is_required { Err(()) } else { Ok(false) };
        };
        match part.shape.repair(&value) {
            Some(Cow::Borrowed(_)) => Ok(false),
            Some(Cow::Owned(repaired)) => {
                self.set(part.name, repaired.into());
                Ok(true)
            }
            None if part.is_required => Err(()),
            None => {
                self.remove(part.name);
                Ok(true)
            }
        }
    }

    /// Replaces boolean schemas by objects: `true` allows anything, `false` nothing. Returns `None`
    /// if all values are objects.
    fn with_object_values(mut self) -> Option<String> {
        let mut is_same = true;
        for (_, value) in &mut self.0 {
            if !value.starts_with('{') {
                *value = if value == "false" { r#"{"not":{}}"# } else { "{}" }.into();
                is_same = false;
            }
        }
        (!is_same).then(|| self.text())
    }

    fn text(&self) -> String {
        let members = self.0.iter().map(|(key, value)| format!("{}:{value}", edit::quoted(key)));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }
}

impl<'t> Deserialize<'t> for Fields<'t> {
    fn deserialize<D: Deserializer<'t>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Reader)
    }
}

struct Reader;

impl<'t> Visitor<'t> for Reader {
    type Value = Fields<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Fields<'t>, A::Error> {
        let mut all = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
            all.push((Cow::Owned(key), Cow::Borrowed(value.get())));
        }
        Ok(Fields(all))
    }
}

/// Returns true if a JSON text is not nested too deeply and has no unpaired surrogates.
fn is_readable(raw: &str) -> bool {
    let bytes = raw.as_bytes();
    let (mut at, mut depth, mut is_inside) = (0, 0_usize, false);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => is_inside = !is_inside,
            b'\\' => {
                let Some(length) = escape(&bytes[at..]) else { return false };
                at += length;
                continue;
            }
            b'{' | b'[' if !is_inside => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return false;
                }
            }
            b'}' | b']' if !is_inside => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    true
}

/// Returns the length of the escape at the start of `bytes`; `None` for an unpaired surrogate.
fn escape(bytes: &[u8]) -> Option<usize> {
    let unit = |at: usize| {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    match unit(0) {
        None => Some(2),
        Some(0xd800..=0xdbff) => matches!(unit(6), Some(0xdc00..=0xdfff)).then_some(12),
        Some(0xdc00..=0xdfff) => None,
        Some(_) => Some(6),
    }
}

/// Returns true if a text is a date and time with zone, such as `2025-01-31T12:30:00Z`.
fn is_timestamp(text: &str) -> bool {
    let Some((date, rest)) = text.split_once('T') else { return false };
    let Some(zone) = rest.find(['Z', '+', '-']) else { return false };
    let (time, zone) = rest.split_at(zone);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let is_zone = match zone.strip_prefix('Z') {
        Some(rest) => rest.is_empty(),
        None => numbers(&zone[1..], [2, 2], ':').is_some_and(is_of_a_day),
    };
    let is_time = numbers(time, [2, 2, 2], ':')
        .is_some_and(|[hour, minute, second]| is_of_a_day([hour, minute]) && second < 60);
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|it| it.is_ascii_digit());
    numbers(date, [4, 2, 2], '-').is_some_and(is_date) && is_time && is_fraction && is_zone
}

fn is_of_a_day([hour, minute]: [u16; 2]) -> bool {
    hour < 24 && minute < 60
}

fn is_date([year, month, day]: [u16; 3]) -> bool {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// Parses numbers of fixed lengths with a separator.
fn numbers<const N: usize>(text: &str, digits: [usize; N], between: char) -> Option<[u16; N]> {
    let mut found = [0; N];
    let mut parts = text.split(between);
    for (number, digits) in found.iter_mut().zip(digits) {
        let part = parts.next().filter(|part| part.len() == digits)?;
        let is_number = part.bytes().all(|it| it.is_ascii_digit());
        *number = part.parse().ok().filter(|_| is_number)?;
    }
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> serde_json::Value {
        serde_json::from_str(text).unwrap()
    }

    fn repaired(kind: Kind, raw: &str) -> (String, Vec<&'static str>) {
        match Sanitized::of(kind, raw) {
            Sanitized::Repaired { text, parts } => {
                assert_eq!(Sanitized::of(kind, &text), Sanitized::Valid, "{text}");
                (text, parts)
            }
            other => panic!("{raw}: {other:?}"),
        }
    }

    #[test]
    fn valid_items_stay_unchanged() {
        let table = [
            (Kind::Tools, r#"{"name":"a","inputSchema":{"type":"object"}}"#),
            (
                Kind::Tools,
                r#"{ "x" : null, "name":"a", "description":"", "inputSchema":{"$defs":{"a":true},
                   "type":"obj\u0065ct","properties":{"a":{},"b":{"type":["string","null"]}},
                   "required":["a"],"x":[1.50]}, "outputSchema":{"type":"object"}, "title":"\ud83d\ude00",
                   "annotations":{"title":"","readOnlyHint":true,"new":7},"_meta":{"a":null},
                   "execution":{"taskSupport":"optional"},"icons":[{"src":"x","theme":"dark"}]}"#,
            ),
            (Kind::Prompts, r#"{"name":"a"}"#),
            (
                Kind::Prompts,
                r#"{"name":"a","arguments":[{"name":"b","required":false,"more":{}}]}"#,
            ),
            (
                Kind::Resources,
                r#"{"uri":"a:b","name":"","mimeType":"x","size":1e2,"annotations":{"audience":["user"],
                   "priority":0.5,"lastModified":"2025-01-31T12:30:00.25+01:00"}}"#,
            ),
            (Kind::Templates, r#"{"uriTemplate":"a:{b}","name":"n"}"#),
        ];
        for (kind, raw) in table {
            assert_eq!(Sanitized::of(kind, raw), Sanitized::Valid, "{raw}");
        }
    }

    #[test]
    fn malformed_optional_members_are_removed() {
        for part in [
            r#""title":null"#,
            r#""description":5"#,
            r#""outputSchema":{"type":"string"}"#,
            r#""outputSchema":{}"#,
            r#""outputSchema":{"oneOf":[{"type":"array"}]}"#,
            r#""outputSchema":null"#,
            r#""annotations":7"#,
            r#""execution":"x""#,
            r#""icons":"x""#,
            r#""_meta":[]"#,
        ] {
            let raw = format!(r#"{{"a":1,"name":"n",{part},"inputSchema":{{"type":"object"}}}}"#);
            let (text, parts) = repaired(Kind::Tools, &raw);
            assert_eq!(text, r#"{"a":1,"name":"n","inputSchema":{"type":"object"}}"#);
            assert!(part.starts_with(&format!("{:?}", parts[0])), "{part}: {parts:?}");
        }
        let table = [
            (
                Kind::Tools,
                r#"{"name":"a","inputSchema":{"type":"object"},"annotations":{"title":null,"readOnlyHint":true,"destructiveHint":"no"}}"#,
                r#"{"name":"a","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}"#,
            ),
            (
                Kind::Tools,
                r#"{"name":"a","inputSchema":{"type":"object"},"icons":[{"src":"x","sizes":"any"},{},7]}"#,
                r#"{"name":"a","inputSchema":{"type":"object"},"icons":[{"src":"x"}]}"#,
            ),
            (
                Kind::Prompts,
                r#"{"name":"a","arguments":[{"x":1},{"name":"b","required":"yes"},{"name":"c"}]}"#,
                r#"{"name":"a","arguments":[{"name":"b"},{"name":"c"}]}"#,
            ),
            (Kind::Prompts, r#"{"name":"a","arguments":7}"#, r#"{"name":"a"}"#),
            (
                Kind::Resources,
                r#"{"uri":"a:b","name":"n","size":"big","mimeType":7,"annotations":{"audience":["user","all"],"priority":2,"lastModified":"today"}}"#,
                r#"{"uri":"a:b","name":"n","annotations":{"audience":["user"]}}"#,
            ),
            (
                Kind::Resources,
                r#"{"uri":"a:b","name":"n","size":1.5}"#,
                r#"{"uri":"a:b","name":"n"}"#,
            ),
            (
                Kind::Tools,
                r#"{"name":"a","title":"b","inputSchema":{"$schema":7,"type":"object"},"title":"c"}"#,
                r#"{"name":"a","title":"c","inputSchema":{"type":"object"}}"#,
            ),
            (
                Kind::Prompts,
                r#"{"name":"a","arguments":[{"name":"b","title":5}]}"#,
                r#"{"name":"a","arguments":[{"name":"b"}]}"#,
            ),
            (
                Kind::Resources,
                r#"{"uri":"a:b","name":"n","size":-5}"#,
                r#"{"uri":"a:b","name":"n"}"#,
            ),
        ];
        for (kind, raw, expected) in table {
            let [text, expected] = [&repaired(kind, raw).0, expected].map(value);
            assert_eq!(text, expected, "{raw}");
        }
    }

    #[test]
    fn required_members_with_one_meaning_are_added() {
        let table = [
            (
                Kind::Tools,
                r#"{"name":"a","inputSchema":{}}"#,
                r#"{"name":"a","inputSchema":{"type":"object"}}"#,
            ),
            (
                Kind::Tools,
                r#"{"name":"a","inputSchema":{"type":"object","properties":{"a":true,"b":false,"c":{"x":1.50},"d":null}}}"#,
                r#"{"name":"a","inputSchema":{"type":"object","properties":{"a":{},"b":{"not":{}},"c":{"x":1.50},"d":{}}}}"#,
            ),
            (
                Kind::Tools,
                r#"{"name":"a","inputSchema":{"properties":7,"required":"a","type":"object"}}"#,
                r#"{"name":"a","inputSchema":{"type":"object"}}"#,
            ),
            (Kind::Resources, r#"{"uri":"a:b"}"#, r#"{"uri":"a:b","name":"a:b"}"#),
            (Kind::Resources, r#"{"name":null,"uri":"a:b"}"#, r#"{"uri":"a:b","name":"a:b"}"#),
            (
                Kind::Templates,
                r#"{"uriTemplate":"a:{b}"}"#,
                r#"{"uriTemplate":"a:{b}","name":"a:{b}"}"#,
            ),
        ];
        for (kind, raw, expected) in table {
            let [text, expected] = [&repaired(kind, raw).0, expected].map(value);
            assert_eq!(text, expected, "{raw}");
        }
    }

    #[test]
    fn malformed_required_members_make_an_item_unreadable() {
        let deep = |levels| format!(r#""d":{}{}"#, "[".repeat(levels), "]".repeat(levels));
        let tool =
            |more: &str| format!(r#"{{"name":"a","inputSchema":{{"type":"object"}},{more}}}"#);
        assert_eq!(Sanitized::of(Kind::Tools, &tool(&deep(MAX_DEPTH - 1))), Sanitized::Valid);
        for raw in [
            r#"{"name":"a"}"#.to_owned(),
            r#"{"name":"a","inputSchema":7}"#.to_owned(),
            r#"{"name":"a","inputSchema":null}"#.to_owned(),
            r#"{"name":"a","inputSchema":{"type":"array"}}"#.to_owned(),
            r#"{"name":"a","inputSchema":{"type":["object"]}}"#.to_owned(),
            tool(&deep(MAX_DEPTH)),
            tool(r#""description":"\ud83d""#),
            tool(r#""description":"\ud83d\\\ude00""#),
            tool(r#""x":{"\udc00":1}"#),
        ] {
            assert!(
                matches!(Sanitized::of(Kind::Tools, &raw), Sanitized::Unreadable { .. }),
                "{raw}"
            );
        }
        assert_eq!(
            Sanitized::of(Kind::Tools, &tool(r#""description":"\\ud83d [[[ \" {{""#)),
            Sanitized::Valid
        );
    }

    #[test]
    fn timestamp_has_date_time_and_zone() {
        for text in
            ["2025-01-31T12:30:00Z", "2025-01-31T12:30:00.123-05:30", "2024-02-29T00:00:00+23:59"]
        {
            assert!(is_timestamp(text), "{text}");
        }
        for text in [
            "",
            "T",
            "TZ",
            "2025-01-31",
            "2025-01-31T12:30:00",
            "2025-1-31T12:30:00Z",
            "+025-01-31T12:30:00Z",
            "2025-13-01T12:30:00Z",
            "2025-02-29T12:30:00Z",
            "2025-04-31T12:30:00Z",
            "2025-01-31T24:30:00Z",
            "2025-01-31T12:60:00Z",
            "2025-01-31T12:30:60Z",
            "2025-01-31T12:30:00.Z",
            "2025-01-31T12:30:00Z00:00",
            "2025-01-31T12:30:00+1",
            "2025-01-31T12:30:00+24:00",
            "2025-01-31T12:30:00+\u{e9}:00",
        ] {
            assert!(!is_timestamp(text), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_items_never_panic_and_repaired_ones_are_valid(
            raw in r#"\{"(name|uri|uriTemplate)":"a"(,"(inputSchema|title|icons|annotations|_meta|arguments|size|name)":(null|7|"\\ud83d"|"x"|\[\{\}\]|\{"type":"object"\}|\{"src":1\})){0,5}\}"#,
        ) {
            for kind in Kind::ALL {
                if let Sanitized::Repaired { text, .. } = Sanitized::of(kind, &raw) {
                    proptest::prop_assert_eq!(Sanitized::of(kind, &text), Sanitized::Valid, "{}", text);
                }
            }
        }
    }
}
