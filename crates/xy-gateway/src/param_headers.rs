//! Arguments of a tool that are said in the head of a request too, where whatever stands
//! between a client and a server can see them. The tool's schema marks them by `x-mcp-header`.
//! Pure.

use std::borrow::Cow;

use serde_json::{Map, Value};
use xy_mcp::envelope::text_of;
use xy_mcp::members::Members;

/// What marks an argument in a schema. Its value is the end of the header's name.
const MARK: &str = "x-mcp-header";

/// How the name of each such header begins.
pub(crate) const PREFIX: &str = "mcp-param-";

/// What is around a value that a header could not hold as it is.
const BEFORE: &str = "=?base64?";
const AFTER: &str = "?=";

/// Whole numbers beyond this are not the same number everywhere.
const SAFE: f64 = 9_007_199_254_740_991.0;

/// What a keyword holds that is no schema, whatever it looks like.
const DATA: [&str; 7] = ["const", "default", "enum", "example", "examples", "required", MARK];

/// Where the names of a schema are names of its author's.
const MAPS: [&str; 5] =
    ["$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties"];

/// One argument that is said in the head too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The argument, and if it is within others those before it.
    path: Vec<Box<str>>,
    /// As it is written in the schema.
    name: Box<str>,
}

/// Why the marks of a schema cannot be followed: no client may use the tool then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("its schema cannot be read")]
    Unreadable,
    #[error("`{MARK}` stands where no single argument is meant")]
    Misplaced,
    #[error("`{MARK}` is `{0}`, which is no name of a header")]
    NoName(String),
    #[error("`{MARK}` is `{0}` for two arguments")]
    Twice(String),
    #[error("`{MARK}` is of `{0}`, which is no string, integer or boolean")]
    NotPlain(String),
}

/// The arguments of a tool that are said in the head, from all that its server says of it.
pub(crate) fn of_tool(tool: &str) -> Result<Vec<Mirror>, Unfit> {
    if !is_marked(tool) {
        return Ok(Vec::new());
    }
    let members = Members::read(tool).ok_or(Unfit::Unreadable)?;
    members.get("inputSchema").map_or_else(|| Ok(Vec::new()), of_schema)
}

/// The same from the schema of its arguments.
pub(crate) fn of_schema(schema: &str) -> Result<Vec<Mirror>, Unfit> {
    if !is_marked(schema) {
        return Ok(Vec::new());
    }
    let schema: Value = serde_json::from_str(schema).map_err(|_| Unfit::Unreadable)?;
    let mut found = Vec::new();
    walk(&schema, Some(&mut Vec::new()), &mut found)?;
    Ok(found)
}

/// Most schemas have no mark at all, which is seen without reading them.
fn is_marked(text: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), MARK.as_bytes()).is_some()
}

/// Finds the marks of a schema and what is within it. `path` leads to the argument that it is
/// of; there is none where it may be of several, or of none.
fn walk(
    schema: &Value,
    mut path: Option<&mut Vec<Box<str>>>,
    found: &mut Vec<Mirror>,
) -> Result<(), Unfit> {
    let schema = match schema {
        Value::Object(schema) => schema,
        Value::Array(several) => {
            return several.iter().try_for_each(|schema| walk(schema, None, found));
        }
        _ => return Ok(()),
    };
    if let Some(mark) = schema.get(MARK) {
        let path = path.as_deref().filter(|path| !path.is_empty()).ok_or(Unfit::Misplaced)?;
        let name = judge(mark, schema, found)?;
        found.push(Mirror { path: path.clone(), name: name.into() });
    }
    for (keyword, inner) in schema {
        match (keyword.as_str(), inner) {
            ("properties", Value::Object(properties)) => {
                for (name, schema) in properties {
                    match path.as_deref_mut() {
                        Some(path) => {
                            path.push(name.as_str().into());
                            walk(schema, Some(path), found)?;
                            path.pop();
                        }
                        None => walk(schema, None, found)?,
                    }
                }
            }
            (keyword, Value::Object(schemas)) if MAPS.contains(&keyword) => {
                schemas.values().try_for_each(|schema| walk(schema, None, found))?;
            }
            (keyword, _) if DATA.contains(&keyword) => {}
            (_, inner) => walk(inner, None, found)?,
        }
    }
    Ok(())
}

/// The name that a mark gives to a header, if it may.
fn judge<'s>(
    mark: &'s Value,
    schema: &Map<String, Value>,
    found: &[Mirror],
) -> Result<&'s str, Unfit> {
    let name = mark.as_str().filter(|name| is_token(name));
    let shown = || xy_protocol::control::quoted(mark.as_str().unwrap_or(&mark.to_string()));
    let name = name.ok_or_else(|| Unfit::NoName(shown()))?;
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    if !matches!(kind, "string" | "integer" | "boolean") {
        return Err(Unfit::NotPlain(xy_protocol::control::quoted(kind)));
    }
    if found.iter().any(|other| other.name.eq_ignore_ascii_case(name)) {
        return Err(Unfit::Twice(shown()));
    }
    Ok(name)
}

fn is_token(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_allowed)
}

impl Mirror {
    /// The name of its header, in small letters.
    pub(crate) fn header(&self) -> String {
        format!("{PREFIX}{}", self.name.to_ascii_lowercase())
    }

    /// What the header has to say; nothing, if the argument is not there, is `null`, or is
    /// what no header can say.
    pub(crate) fn said<'t>(&self, arguments: Option<&'t str>) -> Option<Said<'t>> {
        let mut value = arguments?;
        for key in &self.path {
            let members = Members::read(value)?;
            // Of a key that is there twice, most take what comes last.
            value = members.iter().filter(|(it, _)| *it == &**key).last()?.1;
        }
        Said::read(value)
    }
}

/// An argument, as far as a header can say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said<'t> {
    Text(Cow<'t, str>),
    /// As it is written.
    Number(&'t str),
    Truth(bool),
}

impl<'t> Said<'t> {
    fn read(value: &'t str) -> Option<Self> {
        match value.as_bytes().first()? {
            b'"' => text_of(value).map(Self::Text),
            b't' => Some(Self::Truth(true)),
            b'f' => Some(Self::Truth(false)),
            b'-' | b'0'..=b'9' => Some(Self::Number(value)),
            _ => None,
        }
    }

    /// As a text, before it is made fit for a header.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Number(number) => plain_number(number),
            Self::Truth(true) => Cow::Borrowed("true"),
            Self::Truth(false) => Cow::Borrowed("false"),
        }
    }

    /// Whether a header says the same. Of numbers it does not matter how they are written.
    pub(crate) fn is(&self, heard: &str) -> bool {
        match self {
            Self::Number(number) => {
                *number == heard || is_number(heard) && plain_number(number) == plain_number(heard)
            }
            _ => self.text() == heard,
        }
    }
}

fn is_number(text: &str) -> bool {
    serde_json::from_str::<serde_json::Number>(text).is_ok()
}

/// A whole number in digits, however it is written. What is none stays as it is.
fn plain_number(written: &str) -> Cow<'_, str> {
    if let Ok(whole) = written.parse::<i64>() {
        return Cow::Owned(whole.to_string());
    }
    match written.parse::<f64>() {
        // Zero is added since there are two of it.
        Ok(number) if number.fract() == 0.0 && number.abs() <= SAFE => {
            Cow::Owned((number + 0.0).to_string())
        }
        _ => Cow::Borrowed(written),
    }
}

/// A text as the value of a header: as it is if that comes through unchanged.
pub(crate) fn encode(text: &str) -> Cow<'_, str> {
    let is_visible = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let is_trimmed = !text.is_empty() && !text.starts_with(' ') && !text.ends_with(' ');
    let seems_encoded = text.starts_with(BEFORE) && text.ends_with(AFTER);
    if is_visible && is_trimmed && !seems_encoded {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{BEFORE}{}{AFTER}", to_base64(text.as_bytes())))
}

/// What the value of a header says; `None` if that cannot be known.
pub(crate) fn decode(value: &str) -> Option<Cow<'_, str>> {
    match value.strip_prefix(BEFORE).and_then(|rest| rest.strip_suffix(AFTER)) {
        Some(encoded) => String::from_utf8(from_base64(encoded)?).ok().map(Cow::Owned),
        None => Some(Cow::Borrowed(value)),
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |place: usize| u32::from(three.get(place).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// Only what [`to_base64`] could have written is read.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.as_bytes().chunks(4) {
        let padding = four.iter().rev().take_while(|byte| **byte == b'=').count();
        let mut bits = 0;
        for digit in &four[..four.len() - padding] {
            let value = DIGITS.iter().position(|known| known == digit)?;
            bits = bits << 6 | u32::try_from(value).ok()?;
        }
        bits <<= 6 * padding;
        bytes.extend_from_slice(bits.to_be_bytes()[1..].get(..3_usize.checked_sub(padding)?)?);
    }
    (to_base64(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn found(schema: &Value) -> Vec<(String, String)> {
        let shown = |mirror: Mirror| (mirror.path.join("."), mirror.header());
        of_schema(&schema.to_string()).unwrap().into_iter().map(shown).collect()
    }

    #[test]
    fn marks_are_found_wherever_a_single_argument_is_meant() {
        let schema = json!({
            "type": "object",
            "properties": {
                "region": { "type": "string", MARK: "Region" },
                "query": { "type": "string", "default": { MARK: "no schema" } },
                "where": {
                    "type": "object",
                    "properties": {
                        "shelf": { "type": "integer", MARK: "Shelf" },
                        MARK: { "type": "boolean", MARK: "X.1" },
                    },
                },
            },
            "examples": [{ MARK: "no schema either" }],
        });
        let expected = [
            ("region", "mcp-param-region"),
            ("where.shelf", "mcp-param-shelf"),
            ("where.x-mcp-header", "mcp-param-x.1"),
        ];
        let mut found = found(&schema);
        found.sort();
        assert_eq!(found, expected.map(|(path, name)| (path.to_owned(), name.to_owned())));
        let tool = json!({ "name": "a", "inputSchema": schema });
        assert_eq!(of_tool(&tool.to_string()).unwrap().len(), 3);
    }

    #[test]
    fn what_has_no_mark_has_no_mirrors_whatever_it_is() {
        for text in ["", "{", "{}", "7", r#"{"type":"object"}"#] {
            assert_eq!(of_schema(text), Ok(Vec::new()), "{text}");
            assert_eq!(of_tool(text), Ok(Vec::new()), "{text}");
        }
        assert_eq!(of_tool(r#"{"description":"x-mcp-header"}"#), Ok(Vec::new()));
    }

    #[test]
    fn a_mark_that_cannot_be_followed_makes_a_tool_unfit() {
        let of = |properties: Value| of_schema(&json!({ "properties": properties }).to_string());
        let text = |name: &str| json!({ "type": "string", MARK: name });
        for name in ["", "My Region", "Region:Primary", "Région", "Region\t1", "a\r\nb"] {
            let unfit = of(json!({ "a": text(name) })).unwrap_err();
            assert!(matches!(unfit, Unfit::NoName(_)), "{name}: {unfit}");
        }
        let number = of(json!({ "a": { "type": "string", MARK: 7 } }));
        assert!(matches!(number, Err(Unfit::NoName(_))));
        for kind in [json!("number"), json!("object"), json!("array"), json!("null"), json!(null)] {
            let unfit = of(json!({ "a": { "type": kind, MARK: "A" } })).unwrap_err();
            assert!(matches!(unfit, Unfit::NotPlain(_)), "{kind}: {unfit}");
        }
        assert!(matches!(of(json!({ "a": { MARK: "A" } })), Err(Unfit::NotPlain(_))));
        let twice = of(json!({ "a": text("Name"), "b": text("nAME") }));
        assert!(matches!(twice, Err(Unfit::Twice(_))));

        let marked = json!({ "properties": { "b": text("B") } });
        for keyword in [
            "items",
            "prefixItems",
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "if",
            "then",
            "else",
            "additionalProperties",
            "x-other",
        ] {
            for inner in [marked.clone(), json!([marked]), text("B")] {
                let unfit = of(json!({ "a": { keyword: inner } }));
                assert_eq!(unfit, Err(Unfit::Misplaced), "{keyword}");
            }
        }
        for keyword in ["$defs", "definitions", "patternProperties", "dependentSchemas"] {
            let schema = json!({ keyword: { "default": text("B") } });
            assert_eq!(of_schema(&schema.to_string()), Err(Unfit::Misplaced), "{keyword}");
        }
        assert_eq!(of_schema(&text("Root").to_string()), Err(Unfit::Misplaced));
        assert_eq!(of_schema(r#"{"x-mcp-header""#), Err(Unfit::Unreadable));
        let deep = format!("{}\"{MARK}\"{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(of_schema(&deep), Err(Unfit::Unreadable));
    }

    fn mirror(path: &[&str]) -> Mirror {
        let path = path.iter().map(|key| (*key).into()).collect();
        Mirror { path, name: "Name".into() }
    }

    #[test]
    fn an_argument_is_read_at_its_very_path() {
        let said = |path: &[&str], arguments: &str| {
            mirror(path).said(Some(arguments)).map(|said| said.text().into_owned())
        };
        for (path, arguments, expected) in [
            (&["a"][..], r#"{"b":1,"a":"x\ny"}"#, Some("x\ny")),
            (&["a", "b"], r#"{ "a" : { "b" : true } }"#, Some("true")),
            (&["a"], r#"{"a":false}"#, Some("false")),
            (&["a"], r#"{"a":1,"\u0061":2}"#, Some("2")),
            (&["a"], r#"{"a":-7}"#, Some("-7")),
            (&["a"], r#"{"a":42.0}"#, Some("42")),
            (&["a"], r#"{"a":1e3}"#, Some("1000")),
            (&["a"], r#"{"a":-0.0}"#, Some("0")),
            (&["a"], r#"{"a":9007199254740991}"#, Some("9007199254740991")),
            (&["a"], r#"{"a":1.5}"#, Some("1.5")),
            (&["a"], r#"{"a":1e999}"#, Some("1e999")),
            (&["a"], r#"{"a":null}"#, None),
            (&["a"], r#"{"a":[1]}"#, None),
            (&["a"], r#"{"a":{}}"#, None),
            (&["a"], r#"{"b":1}"#, None),
            (&["a", "b"], r#"{"a":"b"}"#, None),
            (&["a"], "[]", None),
        ] {
            assert_eq!(said(path, arguments).as_deref(), expected, "{path:?} {arguments}");
        }
        assert_eq!(mirror(&["a"]).said(None), None);
    }

    #[test]
    fn numbers_are_the_same_however_they_are_written() {
        for (body, heard, same) in [
            ("42", "42", true),
            ("42", "42.0", true),
            ("42.0", "42", true),
            ("4.2e1", "42", true),
            ("0", "-0", true),
            ("42", "43", false),
            ("42", "+42", false),
            ("42", " 42", false),
            ("42", "042", false),
            ("42", "", false),
            ("42", "NaN", false),
            ("1e999", "inf", false),
            ("1e999", "1e999", true),
            ("9007199254740993", "9007199254740992", false),
            ("1.5", "1.5", true),
            ("true", "true", true),
            ("true", "True", false),
            ("\"42\"", "42.0", false),
            ("\"a\"", "A", false),
        ] {
            assert_eq!(Said::read(body).unwrap().is(heard), same, "{body} {heard}");
        }
    }

    #[test]
    fn a_value_is_encoded_where_a_header_could_not_hold_it() {
        for (text, value) in [
            ("us-west1", "us-west1"),
            ("a b", "a b"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
            ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
            ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
            ("\t", "=?base64?CQ==?="),
            ("", "=?base64??="),
        ] {
            assert_eq!(encode(text), value);
            assert_eq!(decode(value).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_is_not_well_encoded_says_nothing() {
        for inside in
            ["SGVsbG8", "SGVs!!!bG8=", "SGVsbG9=", "=", "====", "A===", "AA=A", "/w==", "é"]
        {
            assert_eq!(decode(&format!("{BEFORE}{inside}{AFTER}")), None, "{inside}");
        }
        assert_eq!(decode("=?BASE64?SGVsbG8=?=").as_deref(), Some("=?BASE64?SGVsbG8=?="));
        assert_eq!(decode("=?base64?=").as_deref(), Some("=?base64?="));
    }

    proptest! {
        #[test]
        fn whatever_is_encoded_is_a_header_and_comes_back(text in "(?s).*|[ -~]*|=\\?base64\\?.*\\?=") {
            let value = encode(&text);
            let header = hyper::header::HeaderValue::from_str(&value).unwrap();
            prop_assert_eq!(header.to_str().unwrap().trim(), &*value);
            prop_assert_eq!(decode(&value).unwrap(), &*text);
        }

        #[test]
        fn nothing_that_is_decoded_or_read_panics(text in ".*", bytes in "[A-Za-z0-9+/=!]{0,12}") {
            let _ = decode(&text);
            let _ = decode(&format!("{BEFORE}{bytes}{AFTER}"));
            let _ = of_schema(&format!("{text}{MARK}"));
            let _ = mirror(&["a"]).said(Some(&text));
        }
    }
}
