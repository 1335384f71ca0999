//! Tool arguments that are mirrored into HTTP headers, where intermediaries can see them. The
//! tool's schema marks them with `x-mcp-header`. Pure.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::envelope::text_of;
use crate::members::Members;

/// The keyword that marks an argument in a schema. Its value is the end of the header's name.
const ANNOTATION: &str = "x-mcp-header";

/// The prefix of the header names.
pub const PREFIX: &str = "mcp-param-";

/// The delimiters of a value that is encoded to fit into a header.
const ENCODED_PREFIX: &str = "=?base64?";
const ENCODED_SUFFIX: &str = "?=";

/// Maximum integer that is the same number in every implementation.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

/// Keywords whose value is data and no schema, whatever it looks like.
const DATA_KEYWORDS: [&str; 7] =
    ["const", "default", "enum", "example", "examples", "required", ANNOTATION];

/// Keywords whose value maps author-defined names to schemas.
const SCHEMA_MAP_KEYWORDS: [&str; 5] =
    ["$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties"];

/// An argument that is mirrored into a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamHeader {
    /// The path of the argument: its own name, after those of the objects that contain it.
    path: Vec<Box<str>>,
    /// The end of the header's name, as written in the schema.
    name: Box<str>,
}

/// Why the marks of a schema are invalid. No client may use such a tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// It cannot be parsed.
    #[error("its schema cannot be read")]
    Unreadable,
    /// A mark is not at a property.
    #[error("`{ANNOTATION}` does not mark a single argument")]
    Misplaced,
    /// A header name is invalid.
    #[error("`{ANNOTATION}` is `{0}`, which is no valid header name")]
    InvalidName(String),
    /// Two arguments have one header name.
    #[error("`{ANNOTATION}` is `{0}` for two arguments")]
    Duplicate(String),
    /// The argument has a type that no header can hold.
    #[error("`{ANNOTATION}` marks a `{0}`, which is no string, integer or boolean")]
    NotPrimitive(String),
}

/// Returns the mirrored arguments of a tool, from its list entry.
pub fn of_tool(tool: &str) -> Result<Vec<ParamHeader>, SchemaError> {
    if !is_marked(tool) {
        return Ok(Vec::new());
    }
    let members = Members::read(tool).ok_or(SchemaError::Unreadable)?;
    members.get("inputSchema").map_or_else(|| Ok(Vec::new()), of_schema)
}

/// Returns the mirrored arguments of a schema.
pub fn of_schema(schema: &str) -> Result<Vec<ParamHeader>, SchemaError> {
    if !is_marked(schema) {
        return Ok(Vec::new());
    }
    let schema: Value = serde_json::from_str(schema).map_err(|_| SchemaError::Unreadable)?;
    let mut found = Vec::new();
    walk(&schema, Some(&mut Vec::new()), &mut found)?;
    Ok(found)
}

/// Returns true if a text may contain marks. Most schemas have none, and are not parsed.
fn is_marked(text: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), ANNOTATION.as_bytes()).is_some()
}

/// Collects the marks of a schema and of the schemas in it. `path` leads to the argument that the
/// schema describes, or is `None` where that is not one argument.
fn walk(
    schema: &Value,
    mut path: Option<&mut Vec<Box<str>>>,
    found: &mut Vec<ParamHeader>,
) -> Result<(), SchemaError> {
    let schema = match schema {
        Value::Object(schema) => schema,
        Value::Array(several) => {
            return several.iter().try_for_each(|schema| walk(schema, None, found));
        }
        _ => return Ok(()),
    };
    if let Some(mark) = schema.get(ANNOTATION) {
        let path = path.as_deref().filter(|path| !path.is_empty()).ok_or(SchemaError::Misplaced)?;
        let name = header_name(mark, schema, found)?;
        found.push(ParamHeader { path: path.clone(), name: name.into() });
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
            (keyword, Value::Object(schemas)) if SCHEMA_MAP_KEYWORDS.contains(&keyword) => {
                schemas.values().try_for_each(|schema| walk(schema, None, found))?;
            }
            (keyword, _) if DATA_KEYWORDS.contains(&keyword) => {}
            (_, inner) => walk(inner, None, found)?,
        }
    }
    Ok(())
}

/// Returns the header name that a mark gives, if it is valid.
fn header_name<'s>(
    mark: &'s Value,
    schema: &Map<String, Value>,
    found: &[ParamHeader],
) -> Result<&'s str, SchemaError> {
    let name = mark.as_str().filter(|name| is_token(name));
    let shown = || xy_protocol::control::quoted(mark.as_str().unwrap_or(&mark.to_string()));
    let name = name.ok_or_else(|| SchemaError::InvalidName(shown()))?;
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    if !matches!(kind, "string" | "integer" | "boolean") {
        return Err(SchemaError::NotPrimitive(xy_protocol::control::quoted(kind)));
    }
    if found.iter().any(|other| other.name.eq_ignore_ascii_case(name)) {
        return Err(SchemaError::Duplicate(shown()));
    }
    Ok(name)
}

fn is_token(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_allowed)
}

impl ParamHeader {
    /// Returns the name of the header, in lowercase.
    pub fn header(&self) -> String {
        format!("{PREFIX}{}", self.name.to_ascii_lowercase())
    }

    /// Returns the value of the header. `None` if the argument is absent, `null`, or of a type that
    /// no header can hold.
    pub fn value<'t>(&self, arguments: Option<&'t str>) -> Option<HeaderValue<'t>> {
        let mut value = arguments?;
        for key in &self.path {
            let members = Members::read(value)?;
            // Most parsers take the last of duplicate keys.
            value = members.iter().filter(|(it, _)| *it == &**key).last()?.1;
        }
        HeaderValue::read(value)
    }
}

/// The value of an argument, as far as a header can hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValue<'t> {
    /// A string.
    Text(Cow<'t, str>),
    /// The number, as written.
    Number(&'t str),
    /// A boolean.
    Bool(bool),
}

impl<'t> HeaderValue<'t> {
    fn read(value: &'t str) -> Option<Self> {
        match value.as_bytes().first()? {
            b'"' => text_of(value).map(Self::Text),
            b't' => Some(Self::Bool(true)),
            b'f' => Some(Self::Bool(false)),
            b'-' | b'0'..=b'9' => Some(Self::Number(value)),
            _ => None,
        }
    }

    /// Returns the value as text, before it is encoded.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Number(number) => plain_number(number),
            Self::Bool(true) => Cow::Borrowed("true"),
            Self::Bool(false) => Cow::Borrowed("false"),
        }
    }

    /// Returns true if a header has this value. Numbers are compared by value, not as written.
    pub fn is(&self, header: &str) -> bool {
        match self {
            Self::Number(number) => {
                *number == header
                    || is_number(header) && plain_number(number) == plain_number(header)
            }
            _ => self.text() == header,
        }
    }
}

fn is_number(text: &str) -> bool {
    serde_json::from_str::<serde_json::Number>(text).is_ok()
}

/// Returns an integer in plain digits, however it is written. Other numbers stay as written.
fn plain_number(written: &str) -> Cow<'_, str> {
    if let Ok(whole) = written.parse::<i64>() {
        return Cow::Owned(whole.to_string());
    }
    match written.parse::<f64>() {
        // Adding zero turns negative zero into zero.
        Ok(number) if number.fract() == 0.0 && number.abs() <= MAX_SAFE_INTEGER => {
            Cow::Owned((number + 0.0).to_string())
        }
        _ => Cow::Borrowed(written),
    }
}

/// Encodes a text for a header, unless it would come through unchanged.
pub fn encode(text: &str) -> Cow<'_, str> {
    let is_visible = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let is_trimmed = !text.is_empty() && !text.starts_with(' ') && !text.ends_with(' ');
    let seems_encoded = text.starts_with(ENCODED_PREFIX) && text.ends_with(ENCODED_SUFFIX);
    if is_visible && is_trimmed && !seems_encoded {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{ENCODED_PREFIX}{}{ENCODED_SUFFIX}", to_base64(text.as_bytes())))
}

/// Decodes the value of a header; `None` if it is malformed.
pub fn decode(value: &str) -> Option<Cow<'_, str>> {
    match value.strip_prefix(ENCODED_PREFIX).and_then(|rest| rest.strip_suffix(ENCODED_SUFFIX)) {
        Some(encoded) => String::from_utf8(from_base64(encoded)?).ok().map(Cow::Owned),
        None => Some(Cow::Borrowed(value)),
    }
}

const BASE64_ALPHABET: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let digit = BASE64_ALPHABET[(bits >> (18 - 6 * index) & 63) as usize];
            text.push(if index <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// Decodes base64, and accepts only what [`to_base64`] could have written.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.as_bytes().chunks(4) {
        let padding = four.iter().rev().take_while(|byte| **byte == b'=').count();
        let mut bits = 0;
        for digit in &four[..four.len() - padding] {
            let value = BASE64_ALPHABET.iter().position(|known| known == digit)?;
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
        let shown = |mirror: ParamHeader| (mirror.path.join("."), mirror.header());
        of_schema(&schema.to_string()).unwrap().into_iter().map(shown).collect()
    }

    #[test]
    fn marks_are_found_on_single_arguments() {
        let schema = json!({
            "type": "object",
            "properties": {
                "region": { "type": "string", ANNOTATION: "Region" },
                "query": { "type": "string", "default": { ANNOTATION: "no schema" } },
                "where": {
                    "type": "object",
                    "properties": {
                        "shelf": { "type": "integer", ANNOTATION: "Shelf" },
                        ANNOTATION: { "type": "boolean", ANNOTATION: "X.1" },
                    },
                },
            },
            "examples": [{ ANNOTATION: "no schema either" }],
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
    fn schema_without_marks_has_no_mirrors() {
        for text in ["", "{", "{}", "7", r#"{"type":"object"}"#] {
            assert_eq!(of_schema(text), Ok(Vec::new()), "{text}");
            assert_eq!(of_tool(text), Ok(Vec::new()), "{text}");
        }
        assert_eq!(of_tool(r#"{"description":"x-mcp-header"}"#), Ok(Vec::new()));
    }

    #[test]
    fn unusable_mark_makes_a_tool_unfit() {
        let of = |properties: Value| of_schema(&json!({ "properties": properties }).to_string());
        let text = |name: &str| json!({ "type": "string", ANNOTATION: name });
        for name in ["", "My Region", "Region:Primary", "Région", "Region\t1", "a\r\nb"] {
            let unfit = of(json!({ "a": text(name) })).unwrap_err();
            assert!(matches!(unfit, SchemaError::InvalidName(_)), "{name}: {unfit}");
        }
        let number = of(json!({ "a": { "type": "string", ANNOTATION: 7 } }));
        assert!(matches!(number, Err(SchemaError::InvalidName(_))));
        for kind in [json!("number"), json!("object"), json!("array"), json!("null"), json!(null)] {
            let unfit = of(json!({ "a": { "type": kind, ANNOTATION: "A" } })).unwrap_err();
            assert!(matches!(unfit, SchemaError::NotPrimitive(_)), "{kind}: {unfit}");
        }
        assert!(matches!(
            of(json!({ "a": { ANNOTATION: "A" } })),
            Err(SchemaError::NotPrimitive(_))
        ));
        let twice = of(json!({ "a": text("Name"), "b": text("nAME") }));
        assert!(matches!(twice, Err(SchemaError::Duplicate(_))));

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
                assert_eq!(unfit, Err(SchemaError::Misplaced), "{keyword}");
            }
        }
        for keyword in ["$defs", "definitions", "patternProperties", "dependentSchemas"] {
            let schema = json!({ keyword: { "default": text("B") } });
            assert_eq!(of_schema(&schema.to_string()), Err(SchemaError::Misplaced), "{keyword}");
        }
        assert_eq!(of_schema(&text("Root").to_string()), Err(SchemaError::Misplaced));
        assert_eq!(of_schema(r#"{"x-mcp-header""#), Err(SchemaError::Unreadable));
        let deep = format!("{}\"{ANNOTATION}\"{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(of_schema(&deep), Err(SchemaError::Unreadable));
    }

    fn mirror(path: &[&str]) -> ParamHeader {
        let path = path.iter().map(|key| (*key).into()).collect();
        ParamHeader { path, name: "Name".into() }
    }

    #[test]
    fn argument_is_read_at_its_exact_path() {
        let value = |path: &[&str], arguments: &str| {
            mirror(path).value(Some(arguments)).map(|value| value.text().into_owned())
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
            assert_eq!(value(path, arguments).as_deref(), expected, "{path:?} {arguments}");
        }
        assert_eq!(mirror(&["a"]).value(None), None);
    }

    #[test]
    fn equal_numbers_match_in_any_notation() {
        for (body, header, same) in [
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
            assert_eq!(HeaderValue::read(body).unwrap().is(header), same, "{body} {header}");
        }
    }

    #[test]
    fn unsafe_header_values_are_encoded() {
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
    fn malformed_encoding_has_no_value() {
        for inside in
            ["SGVsbG8", "SGVs!!!bG8=", "SGVsbG9=", "=", "====", "A===", "AA=A", "/w==", "é"]
        {
            assert_eq!(
                decode(&format!("{ENCODED_PREFIX}{inside}{ENCODED_SUFFIX}")),
                None,
                "{inside}"
            );
        }
        assert_eq!(decode("=?BASE64?SGVsbG8=?=").as_deref(), Some("=?BASE64?SGVsbG8=?="));
        assert_eq!(decode("=?base64?=").as_deref(), Some("=?base64?="));
    }

    proptest! {
        #[test]
        fn encoded_value_is_a_valid_header_and_reads_back(text in "(?s).*|[ -~]*|=\\?base64\\?.*\\?=") {
            let value = encode(&text);
            let header = hyper::header::HeaderValue::from_str(&value).unwrap();
            prop_assert_eq!(header.to_str().unwrap().trim(), &*value);
            prop_assert_eq!(decode(&value).unwrap(), &*text);
        }

        #[test]
        fn arbitrary_input_never_panics(text in ".*", bytes in "[A-Za-z0-9+/=!]{0,12}") {
            let _ = decode(&text);
            let _ = decode(&format!("{ENCODED_PREFIX}{bytes}{ENCODED_SUFFIX}"));
            let _ = of_schema(&format!("{text}{ANNOTATION}"));
            let _ = mirror(&["a"]).value(Some(&text));
        }
    }
}
