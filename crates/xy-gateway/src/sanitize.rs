//! What every client can read of an item of a list. Pure.
//!
//! Some clients give up a whole list for one item that is not as the protocol has it. Beside
//! those of other servers an item is therefore mended: what is wrong and may be missing is left
//! out, as `null` where there is nothing to say, and the little that must be there and has only
//! one meaning is added. What is wrong and must be there cannot be mended. Whatever is right
//! stays as it was written, and so does all that the protocol says nothing of.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use xy_mcp::envelope::text_of;

use crate::catalog::Kind;
use crate::names;

/// Some clients cannot read what is nested deeper, and then nothing of the message.
const DEEPEST: usize = 100;

/// What there is to say of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fit {
    /// All can read it.
    Sound,
    /// All can read this instead.
    Mended {
        text: String,
        /// What was changed of it.
        parts: Vec<&'static str>,
    },
    /// Some can read nothing where it is.
    Unfit {
        /// The part for which that is so.
        part: &'static str,
    },
}

impl Fit {
    pub(crate) fn of(kind: Kind, raw: &str) -> Self {
        let Some(mut fields) = Fields::read(raw).filter(|_| is_readable(raw)) else {
            return Self::Unfit { part: "depth or escapes" };
        };
        let mut changed = Vec::new();
        if fields.say_once() {
            changed.push("doubles");
        }
        if let Some(uri) = kind.is_by_uri().then(|| fields.get(kind.field())).flatten() {
            let name = fields.get("name");
            if name.is_none_or(|name| text_of(&name).is_none()) {
                fields.set("name", uri);
                changed.push("name");
            }
        }
        for part in parts_of(kind) {
            match fields.mend(part) {
                Ok(true) => changed.push(part.name),
                Ok(false) => {}
                Err(()) => return Self::Unfit { part: part.name },
            }
        }
        if changed.is_empty() {
            return Self::Sound;
        }
        Self::Mended { text: fields.text(), parts: changed }
    }
}

/// One member of an object, as the protocol has it.
struct Part {
    name: &'static str,
    shape: Shape,
    is_needed: bool,
}

const fn may(name: &'static str, shape: Shape) -> Part {
    Part { name, shape, is_needed: false }
}

const fn must(name: &'static str, shape: Shape) -> Part {
    Part { name, shape, is_needed: true }
}

/// What a value has to be.
enum Shape {
    Text,
    Truth,
    /// A whole number.
    Count,
    /// A number from 0 to 1.
    Share,
    /// A date and a time with its zone.
    Moment,
    One(&'static [&'static str]),
    /// An object of whatever is in it.
    Anything,
    /// The JSON Schema of an object. Arguments are one in any case, so that need not be said of
    /// them; results may be something else, which only clients of the newer era can read.
    Schema {
        may_lack_type: bool,
    },
    List(&'static Shape),
    Object(&'static [Part]),
}

fn parts_of(kind: Kind) -> &'static [Part] {
    match kind {
        Kind::Tools => TOOL,
        Kind::Prompts => PROMPT,
        Kind::Resources => RESOURCE,
        Kind::Templates => TEMPLATE,
    }
}

const TOOL: &[Part] = &[
    may("title", Shape::Text),
    may("description", Shape::Text),
    must("inputSchema", Shape::Schema { may_lack_type: true }),
    may("outputSchema", Shape::Schema { may_lack_type: false }),
    may("annotations", Shape::Object(HINTS)),
    may("execution", Shape::Object(EXECUTION)),
    ICONS,
    META,
];

const PROMPT: &[Part] = &[
    may("title", Shape::Text),
    may("description", Shape::Text),
    may("arguments", Shape::List(&Shape::Object(ARGUMENT))),
    ICONS,
    META,
];

const RESOURCE: &[Part] = &[
    may("title", Shape::Text),
    may("description", Shape::Text),
    may("mimeType", Shape::Text),
    may("size", Shape::Count),
    may("annotations", Shape::Object(ANNOTATIONS)),
    ICONS,
    META,
];

const TEMPLATE: &[Part] = &[
    may("title", Shape::Text),
    may("description", Shape::Text),
    may("mimeType", Shape::Text),
    may("annotations", Shape::Object(ANNOTATIONS)),
    ICONS,
    META,
];

const META: Part = may("_meta", Shape::Anything);

const ICONS: Part = may("icons", Shape::List(&Shape::Object(ICON)));

const ICON: &[Part] = &[
    must("src", Shape::Text),
    may("mimeType", Shape::Text),
    may("sizes", Shape::List(&Shape::Text)),
    may("theme", Shape::One(&["light", "dark"])),
];

const HINTS: &[Part] = &[
    may("title", Shape::Text),
    may("readOnlyHint", Shape::Truth),
    may("destructiveHint", Shape::Truth),
    may("idempotentHint", Shape::Truth),
    may("openWorldHint", Shape::Truth),
];

const EXECUTION: &[Part] =
    &[may("taskSupport", Shape::One(&["required", "optional", "forbidden"]))];

const ARGUMENT: &[Part] = &[
    must("name", Shape::Text),
    may("title", Shape::Text),
    may("description", Shape::Text),
    may("required", Shape::Truth),
];

const ANNOTATIONS: &[Part] = &[
    may("audience", Shape::List(&Shape::One(&["user", "assistant"]))),
    may("priority", Shape::Share),
    may("lastModified", Shape::Moment),
];

impl Shape {
    /// The value as it fits; `None` if it cannot.
    fn mend<'t>(&self, raw: &'t str) -> Option<Cow<'t, str>> {
        match self {
            Self::Text => text_of(raw).map(|_| Cow::Borrowed(raw)),
            Self::Truth => matches!(raw, "true" | "false").then_some(Cow::Borrowed(raw)),
            Self::Count => {
                let number = raw.parse::<f64>().ok()?; // `1e2` is one too.
                (number >= 0.0 && number.fract() == 0.0).then_some(Cow::Borrowed(raw))
            }
            Self::Share => {
                let number = raw.parse::<f64>().ok()?;
                (0.0..=1.0).contains(&number).then_some(Cow::Borrowed(raw))
            }
            Self::Moment => text_of(raw).filter(|it| is_moment(it)).map(|_| Cow::Borrowed(raw)),
            Self::One(words) => {
                let text = text_of(raw)?;
                words.contains(&&*text).then_some(Cow::Borrowed(raw))
            }
            Self::Anything => raw.starts_with('{').then_some(Cow::Borrowed(raw)),
            Self::Schema { may_lack_type } => mended_schema(raw, *may_lack_type),
            Self::List(shape) => {
                let all: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
                let fit: Vec<_> = all.iter().filter_map(|it| shape.mend(it.get())).collect();
                let is_same =
                    fit.len() == all.len() && fit.iter().all(|it| matches!(it, Cow::Borrowed(_)));
                Some(if is_same { raw.into() } else { format!("[{}]", fit.join(",")).into() })
            }
            Self::Object(parts) => {
                let mut fields = Fields::read(raw)?;
                let mut is_same = true;
                for part in *parts {
                    is_same &= !fields.mend(part).ok()?;
                }
                Some(if is_same { raw.into() } else { fields.text().into() })
            }
        }
    }
}

/// A schema of an object says so, and each of its properties is an object too.
fn mended_schema(raw: &str, may_lack_type: bool) -> Option<Cow<'_, str>> {
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
        let mended = Fields::read(&properties).map(Fields::of_objects);
        match mended {
            Some(None) => {}
            Some(Some(mended)) => {
                fields.set("properties", mended.into());
                is_same = false;
            }
            None => {
                fields.leave_out("properties");
                is_same = false;
            }
        }
    }
    for part in [may("required", Shape::List(&Shape::Text)), may("$schema", Shape::Text)] {
        is_same &= !fields.mend(&part).ok()?;
    }
    Some(if is_same { raw.into() } else { fields.text().into() })
}

/// The members of an object, in their order and as they were written.
struct Fields<'t>(Vec<(Cow<'t, str>, Cow<'t, str>)>);

impl<'t> Fields<'t> {
    fn read(raw: &'t str) -> Option<Self> {
        serde_json::from_str(raw).ok()
    }

    /// Who is written twice counts as it was written last.
    fn get(&self, name: &str) -> Option<Cow<'t, str>> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    fn set(&mut self, name: &'static str, value: Cow<'t, str>) {
        self.leave_out(name);
        self.0.push((name.into(), value));
    }

    fn leave_out(&mut self, name: &str) {
        self.0.retain(|(key, _)| key != name);
    }

    /// Leaves out what is written again later. Whether there was such.
    fn say_once(&mut self) -> bool {
        let before = self.0.len();
        let mut seen = HashSet::new();
        self.0.reverse();
        self.0.retain(|(key, _)| seen.insert(key.clone()));
        self.0.reverse();
        self.0.len() < before
    }

    /// Whether something had to be changed for a part to fit; an error if it cannot.
    fn mend(&mut self, part: &Part) -> Result<bool, ()> {
        let Some(value) = self.get(part.name) else {
            return if part.is_needed { Err(()) } else { Ok(false) };
        };
        match part.shape.mend(&value) {
            Some(Cow::Borrowed(_)) => Ok(false),
            Some(Cow::Owned(mended)) => {
                self.set(part.name, mended.into());
                Ok(true)
            }
            None if part.is_needed => Err(()),
            None => {
                self.leave_out(part.name);
                Ok(true)
            }
        }
    }

    /// All values as schemas that are objects, if one of them is not: `true` allows anything,
    /// and `false` nothing.
    fn of_objects(mut self) -> Option<String> {
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
        let members = self.0.iter().map(|(key, value)| format!("{}:{value}", names::quoted(key)));
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

/// Whether a JSON text is not nested too deep, and each of its escapes stands for something:
/// one half of a pair does not.
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
                if depth > DEEPEST {
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

/// How long the escape is that begins here; `None` for half a pair.
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

/// Whether a text is a date and a time with its zone: `2025-01-31T12:30:00Z`.
fn is_moment(text: &str) -> bool {
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

/// Numbers of so many digits, with this between them.
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

    fn mended(kind: Kind, raw: &str) -> (String, Vec<&'static str>) {
        match Fit::of(kind, raw) {
            Fit::Mended { text, parts } => {
                assert_eq!(Fit::of(kind, &text), Fit::Sound, "{text}");
                (text, parts)
            }
            other => panic!("{raw}: {other:?}"),
        }
    }

    #[test]
    fn what_all_clients_can_read_stays_as_it_is() {
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
            assert_eq!(Fit::of(kind, raw), Fit::Sound, "{raw}");
        }
    }

    #[test]
    fn what_is_wrong_and_may_be_missing_is_left_out() {
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
            let (text, parts) = mended(Kind::Tools, &raw);
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
            let [text, expected] = [&mended(kind, raw).0, expected].map(value);
            assert_eq!(text, expected, "{raw}");
        }
    }

    #[test]
    fn what_must_be_there_and_has_one_meaning_is_added() {
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
            let [text, expected] = [&mended(kind, raw).0, expected].map(value);
            assert_eq!(text, expected, "{raw}");
        }
    }

    #[test]
    fn what_must_be_there_and_is_wrong_cannot_be_mended() {
        let deep = |levels| format!(r#""d":{}{}"#, "[".repeat(levels), "]".repeat(levels));
        let tool =
            |more: &str| format!(r#"{{"name":"a","inputSchema":{{"type":"object"}},{more}}}"#);
        assert_eq!(Fit::of(Kind::Tools, &tool(&deep(DEEPEST - 1))), Fit::Sound);
        for raw in [
            r#"{"name":"a"}"#.to_owned(),
            r#"{"name":"a","inputSchema":7}"#.to_owned(),
            r#"{"name":"a","inputSchema":null}"#.to_owned(),
            r#"{"name":"a","inputSchema":{"type":"array"}}"#.to_owned(),
            r#"{"name":"a","inputSchema":{"type":["object"]}}"#.to_owned(),
            tool(&deep(DEEPEST)),
            tool(r#""description":"\ud83d""#),
            tool(r#""description":"\ud83d\\\ude00""#),
            tool(r#""x":{"\udc00":1}"#),
        ] {
            assert!(matches!(Fit::of(Kind::Tools, &raw), Fit::Unfit { .. }), "{raw}");
        }
        assert_eq!(Fit::of(Kind::Tools, &tool(r#""description":"\\ud83d [[[ \" {{""#)), Fit::Sound);
    }

    #[test]
    fn a_moment_has_a_date_a_time_and_a_zone() {
        for text in
            ["2025-01-31T12:30:00Z", "2025-01-31T12:30:00.123-05:30", "2024-02-29T00:00:00+23:59"]
        {
            assert!(is_moment(text), "{text}");
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
            assert!(!is_moment(text), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_makes_it_panic_and_what_is_mended_is_sound(
            raw in r#"\{"(name|uri|uriTemplate)":"a"(,"(inputSchema|title|icons|annotations|_meta|arguments|size|name)":(null|7|"\\ud83d"|"x"|\[\{\}\]|\{"type":"object"\}|\{"src":1\})){0,5}\}"#,
        ) {
            for kind in Kind::ALL {
                if let Fit::Mended { text, .. } = Fit::of(kind, &raw) {
                    proptest::prop_assert_eq!(Fit::of(kind, &text), Fit::Sound, "{}", text);
                }
            }
        }
    }
}
