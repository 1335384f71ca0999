//! Masks secrets in JSON-RPC messages. Pure.
//!
//! Everything else stays as it was written, byte by byte: numbers, order and spaces. IDs, methods
//! and tool names are never masked, so that a masked message can be sent again.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

use super::{Masker, Secrets, is_secret_name};
use crate::control::MASK;

/// Maximum depth of a message that is masked by its structure.
const MAX_DEPTH: usize = 100;

/// Maximum number of values that are learned from messages.
const MAX_LEARNED: usize = 1000;

/// Maximum length of a learned value, in bytes.
const MAX_LEARNED_LENGTH: usize = 4096;

/// Minimum length of a learned value, in bytes. Shorter ones are part of ordinary words.
const MIN_LEARNED_LENGTH: usize = 8;

/// Objects of which every value is secret.
const SECRET_MAPS: [&str; 5] = ["env", "environment", "headers", "http_headers", "cookies"];

/// Lists that are the arguments of a program.
const ARGUMENT_LISTS: [&str; 2] = ["args", "argv"];

/// Fields that are never masked: ids, names and counts of the protocol.
const PLAIN_FIELDS: [&[&str]; 22] = [
    &["jsonrpc"],
    &["id"],
    &["method"],
    &["params", "name"],
    &["params", "ref", "name"],
    &["params", "requestId"],
    &["params", "taskId"],
    &["params", "progressToken"],
    &["params", "_meta", "progressToken"],
    &["params", "_meta", "io.modelcontextprotocol/subscriptionId"],
    &["params", "_meta", "io.modelcontextprotocol/related-task", "taskId"],
    &["params", "protocolVersion"],
    &["params", "maxTokens"],
    &["result", "protocolVersion"],
    &["result", "taskId"],
    &["result", "task", "taskId"],
    &["result", "tasks", "taskId"],
    &["result", "tools", "name"],
    &["result", "prompts", "name"],
    &["result", "prompts", "arguments", "name"],
    &["result", "resources", "name"],
    &["result", "resourceTemplates", "name"],
];

/// Fields that describe values and hold none.
const SCHEMAS: [&[&str]; 4] = [
    &["result", "tools", "inputSchema"],
    &["result", "tools", "outputSchema"],
    &["params", "tools", "inputSchema"],
    &["params", "requestedSchema"],
];

/// Keywords of a schema that hold values.
const SCHEMA_VALUES: [&str; 5] = ["default", "const", "enum", "example", "examples"];

/// Masks messages of one session. A value that was masked by its name is masked in later texts.
#[derive(Debug, Default)]
pub struct MessageMasker {
    secrets: Secrets,
    learned_count: usize,
}

impl MessageMasker {
    /// Creates a masker that knows these secrets.
    pub fn new(secrets: Secrets) -> Self {
        Self { secrets, learned_count: 0 }
    }

    /// Returns a JSON text with its secrets masked; `None` if it is not JSON, or too deep.
    pub fn json(&mut self, json: &str) -> Option<String> {
        serde_json::from_str::<&RawValue>(json).ok()?;
        let out = String::with_capacity(json.len());
        let mut copier = Copier { masker: self, rest: json, out, depth: 0 };
        copier.value(&ROOT, None)?;
        copier.out.push_str(copier.rest); // Only whitespace is left.
        Some(copier.out)
    }

    /// Returns a text with its secrets masked.
    pub fn text(&self, text: &str) -> String {
        super::text(&self.secrets.scrub(text))
    }

    /// Remembers a masked value, unless it may be an ordinary word.
    fn remember(&mut self, value: &str) {
        let is_distinct = value.bytes().any(|byte| !byte.is_ascii_alphabetic())
            && (MIN_LEARNED_LENGTH..=MAX_LEARNED_LENGTH).contains(&value.len());
        let is_known = || self.secrets.scrub(value) == MASK;
        if is_distinct && self.learned_count < MAX_LEARNED && !is_known() {
            self.learned_count += 1;
            self.secrets.add(value);
        }
    }
}

/// How the values of a field are masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Likely secrets are masked in texts.
    Text,
    /// Nothing is masked.
    Plain,
    /// Every text and number is masked.
    Secret,
    /// Texts are the arguments of a program.
    Arguments,
    /// A part of a schema, whose values may describe a secret.
    Schema { is_secret: bool },
}

/// A field of a message and the fields that contain it. Lists add nothing to the path.
#[derive(Debug)]
struct FieldPath<'p> {
    name: &'p str,
    parent: Option<&'p Self>,
    rule: Rule,
}

/// The message itself.
const ROOT: FieldPath<'static> = FieldPath { name: "", parent: None, rule: Rule::Text };

impl FieldPath<'_> {
    /// Returns the path of a field of this object.
    fn field<'p>(&'p self, name: &'p str) -> FieldPath<'p> {
        let field_path = FieldPath { name, parent: Some(self), rule: Rule::Text };
        let is_any = |paths: &[&[&str]]| paths.iter().any(|path| field_path.is_at(path));
        let rule = match self.rule {
            Rule::Secret => Rule::Secret,
            Rule::Schema { is_secret: true } if SCHEMA_VALUES.contains(&name) => Rule::Secret,
            Rule::Schema { is_secret } => {
                Rule::Schema { is_secret: is_secret || is_secret_name(name) }
            }
            _ if is_any(&PLAIN_FIELDS) => Rule::Plain,
            _ if is_any(&SCHEMAS) => Rule::Schema { is_secret: false },
            _ if ARGUMENT_LISTS.contains(&name) => Rule::Arguments,
            _ if SECRET_MAPS.contains(&name) || is_secret_name(name) => Rule::Secret,
            _ => Rule::Text,
        };
        FieldPath { rule, ..field_path }
    }

    fn is_at(&self, path: &[&str]) -> bool {
        match (path.split_last(), self.parent) {
            (None, None) => true,
            (Some((name, path)), Some(parent)) => self.name == *name && parent.is_at(path),
            _ => false,
        }
    }

    /// Returns true if a text or number here is masked as a whole.
    fn is_secret(&self) -> bool {
        match self.rule {
            Rule::Secret => true,
            // `"token": {"type": "string"}` describes a secret; `"token": "abc"` is one.
            Rule::Schema { .. } => is_secret_name(self.name),
            Rule::Text | Rule::Plain | Rule::Arguments => false,
        }
    }
}

/// Copies a valid JSON text, value by value.
struct Copier<'m, 't> {
    masker: &'m mut MessageMasker,
    rest: &'t str,
    out: String,
    depth: usize,
}

impl Copier<'_, '_> {
    /// Copies the next value; `None` if it is too deep.
    fn value(&mut self, field_path: &FieldPath<'_>, arguments: Option<&mut Masker>) -> Option<()> {
        self.spaces();
        match self.rest.bytes().next()? {
            b'{' => self.object(field_path),
            b'[' => self.list(field_path),
            b'"' => {
                self.string(field_path, arguments);
                Some(())
            }
            _ => {
                self.literal(field_path);
                Some(())
            }
        }
    }

    fn object(&mut self, field_path: &FieldPath<'_>) -> Option<()> {
        self.enter()?;
        while !self.ends_with(b'}') {
            let name = self.take_string();
            self.out.push_str(name);
            self.marks(b":");
            self.value(&field_path.field(&text_of(name)), None)?;
            self.marks(b",");
        }
        self.depth -= 1;
        Some(())
    }

    fn list(&mut self, field_path: &FieldPath<'_>) -> Option<()> {
        self.enter()?;
        let mut arguments = (field_path.rule == Rule::Arguments).then(Masker::default);
        while !self.ends_with(b']') {
            self.value(field_path, arguments.as_mut())?;
            self.marks(b",");
        }
        self.depth -= 1;
        for found in arguments.into_iter().flat_map(|it| it.secrets) {
            self.masker.remember(&found);
        }
        Some(())
    }

    fn string(&mut self, field_path: &FieldPath<'_>, arguments: Option<&mut Masker>) {
        let raw = self.take_string();
        if field_path.rule == Rule::Plain {
            return self.out.push_str(raw);
        }
        let text = text_of(raw);
        let masked = match arguments {
            _ if field_path.is_secret() && text.is_empty() => String::new(),
            _ if field_path.is_secret() => {
                self.masker.remember(&text);
                MASK.to_owned()
            }
            Some(arguments) => arguments.arg(&self.masker.secrets.scrub(&text)),
            None => self.masker.text(&text),
        };
        if masked == text {
            self.out.push_str(raw);
        } else {
            self.out.push_str(&Value::from(masked).to_string());
        }
    }

    /// Copies a number, `true`, `false` or `null`.
    fn literal(&mut self, field_path: &FieldPath<'_>) {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        let length = self.rest.bytes().take_while(|&byte| is_part(byte)).count();
        let literal = self.take(length);
        let is_number = literal.starts_with(|it: char| it == '-' || it.is_ascii_digit());
        if is_number && field_path.is_secret() {
            self.out.extend(["\"", MASK, "\""]);
        } else {
            self.out.push_str(literal);
        }
    }

    /// Copies the opening bracket of an object or a list.
    fn enter(&mut self) -> Option<()> {
        self.depth += 1;
        let bracket = self.take(1);
        self.out.push_str(bracket);
        (self.depth <= MAX_DEPTH).then_some(())
    }

    /// Copies the closing bracket if it comes next. Also returns true at the end of the text.
    fn ends_with(&mut self, bracket: u8) -> bool {
        self.spaces();
        let next = self.rest.bytes().next();
        if next == Some(bracket) {
            let bracket = self.take(1);
            self.out.push_str(bracket);
        }
        next.is_none_or(|next| next == bracket)
    }

    fn spaces(&mut self) {
        self.marks(b"");
    }

    /// Copies whitespace and these characters.
    fn marks(&mut self, marks: &[u8]) {
        let is_mark = |byte: &u8| byte.is_ascii_whitespace() || marks.contains(byte);
        let length = self.rest.bytes().take_while(is_mark).count();
        let marks = self.take(length);
        self.out.push_str(marks);
    }
}

impl<'t> Copier<'_, 't> {
    fn take(&mut self, length: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    /// Takes a string with its quotes.
    fn take_string(&mut self) -> &'t str {
        let mut is_escaped = true; // The first quote is the opening one.
        let end = self.rest.bytes().position(|byte| {
            let is_end = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        });
        self.take(end.map_or(self.rest.len(), |end| end + 1))
    }
}

/// Returns the text of a JSON string, or the raw text if it is not valid Unicode.
fn text_of(raw: &str) -> Cow<'_, str> {
    match serde_json::from_str::<String>(raw) {
        Ok(text) => Cow::Owned(text),
        Err(_) => Cow::Borrowed(raw.trim_matches('"')),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn masked(json: &str) -> String {
        MessageMasker::default().json(json).unwrap()
    }

    #[test]
    fn only_secrets_of_a_message_are_masked() {
        let table = [
            // By the name of the field, whatever the value is.
            (r#"{"token":"abc"}"#, r#"{"token":"***"}"#),
            (r#"{"api_key":"a b","x":"a b"}"#, r#"{"api_key":"***","x":"a b"}"#),
            (r#"{ "Password" : 1234 , "n" : 1 }"#, r#"{ "Password" : "***" , "n" : 1 }"#),
            (r#"{"authorization":"Basic abc"}"#, r#"{"authorization":"***"}"#),
            (r#"{"auth":{"user":"me","on":true}}"#, r#"{"auth":{"user":"***","on":true}}"#),
            (r#"{"secrets":["a",null,2]}"#, r#"{"secrets":["***",null,"***"]}"#),
            (r#"{"to\u006ben":"abc"}"#, r#"{"to\u006ben":"***"}"#),
            (r#"{"token":"","secret":false}"#, r#"{"token":"","secret":false}"#),
            (r#"{"author":"me","max_tokens":5}"#, r#"{"author":"me","max_tokens":5}"#),
            // In texts.
            (r#"{"text":"Authorization: Bearer abc"}"#, r#"{"text":"Authorization: Bearer ***"}"#),
            (r#"{"text":"{\"token\":\"abc\"}"}"#, r#"{"text":"{\"token\":***"}"#),
            (r#"["https://me:pw@h/x?key=1"]"#, r#"["https://***@h/x?***"]"#),
            (r#"{"text":"a\nb \u00e9 \ud800"}"#, r#"{"text":"a\nb \u00e9 \ud800"}"#),
            // Maps of which every value may be secret, and arguments of programs.
            (r#"{"env":{"MODE":"x","N":1}}"#, r#"{"env":{"MODE":"***","N":"***"}}"#),
            (r#"{"env":[{"name":"A","value":"b"}]}"#, r#"{"env":[{"name":"***","value":"***"}]}"#),
            (r#"{"headers":{"X":"y"},"z":"y"}"#, r#"{"headers":{"X":"***"},"z":"y"}"#),
            (r#"{"args":["--token","abc","-v"]}"#, r#"{"args":["--token","***","-v"]}"#),
            // Ids, methods and names stay.
            (
                r#"{"jsonrpc":"2.0","id":"token=abc","method":"password: x"}"#,
                r#"{"jsonrpc":"2.0","id":"token=abc","method":"password: x"}"#,
            ),
            (
                r#"{"id":1.0e2,"params":{"name":"get_token=1","arguments":{"name":"token=1"}}}"#,
                r#"{"id":1.0e2,"params":{"name":"get_token=1","arguments":{"name":"token=***"}}}"#,
            ),
            (
                r#"{"params":{"_meta":{"progressToken":"t"},"arguments":{"progressToken":"t"}}}"#,
                r#"{"params":{"_meta":{"progressToken":"t"},"arguments":{"progressToken":"***"}}}"#,
            ),
            (
                r#"[{"id":"f00dfeed-0123-4567-89ab-cdef01234567"},{"id":{"token":"x"}}]"#,
                r#"[{"id":"f00dfeed-0123-4567-89ab-cdef01234567"},{"id":{"token":"***"}}]"#,
            ),
            // A schema describes values.
            (
                r#"{"result":{"tools":[{"name":"a","inputSchema":{"properties":{"token":{"type":"string","default":"abc"},"env":{"type":"object"}},"token":"x"}}]}}"#,
                r#"{"result":{"tools":[{"name":"a","inputSchema":{"properties":{"token":{"type":"string","default":"***"},"env":{"type":"object"}},"token":"***"}}]}}"#,
            ),
            // Long numbers and unusual JSON stay as they were written.
            ("123456789012345678901234567890.10", "123456789012345678901234567890.10"),
            (r#"{"a":1,"a":2,"":[]}"#, r#"{"a":1,"a":2,"":[]}"#),
            (" [ ] ", " [ ] "),
        ];
        for (json, expected) in table {
            assert_eq!(masked(json), expected, "{json}");
        }
    }

    #[test]
    fn masked_value_is_masked_in_later_texts() {
        let mut masker = MessageMasker::default();
        masker.json(r#"{"password":"hunter22","token":"undefined","args":["--key","wx-yz-123"]}"#);
        assert_eq!(
            masker.json(r#"{"id":"hunter22","text":"hunter22 is undefined, wx-yz-123"}"#).unwrap(),
            r#"{"id":"hunter22","text":"*** is undefined, ***"}"#
        );
        assert_eq!(masker.text("as hunter22"), "as ***");
    }

    #[test]
    fn learned_secrets_are_bounded() {
        let mut secrets = Secrets::default();
        secrets.add("from-a-file-1");
        let mut masker = MessageMasker::new(secrets);
        assert_eq!(masker.json(r#"["from-a-file-1"]"#).unwrap(), r#"["***"]"#);
        for _ in 0..=MAX_LEARNED {
            masker.json(r#"{"token":"value-0000"}"#); // The same value counts once.
        }
        for number in 0..=MAX_LEARNED {
            masker.json(&format!(r#"{{"token":"value-{number:04}"}}"#));
        }
        assert_eq!(masker.text("value-0999 value-1000"), "*** value-1000");
    }

    #[test]
    fn invalid_and_deep_json_is_rejected() {
        let mut masker = MessageMasker::default();
        for text in ["", "{", "token: abc", "{} {}", "nul", r#"{"a":}"#] {
            assert_eq!(masker.json(text), None, "{text}");
        }
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(masker.json(&nested(MAX_DEPTH)), Some(nested(MAX_DEPTH)));
        assert_eq!(masker.json(&nested(MAX_DEPTH + 1)), None);
        assert_eq!(masker.json(&nested(1_000_000)), None);
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let text = "(token|env|args|é|\"|\\\\|[a-z:= \n]){0,6}";
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            text.prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 5, move |inner| {
            let fields = (text, inner.clone());
            prop_oneof![
                proptest::collection::vec(inner, 0..5).prop_map(Into::into),
                proptest::collection::vec(fields, 0..5)
                    .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn masked_message_keeps_its_structure(value in any_json()) {
            let json = serde_json::to_string_pretty(&value).unwrap();
            let masked: serde_json::Value = serde_json::from_str(&masked(&json)).unwrap();
            prop_assert!(has_same_structure(&value, &masked), "{value} {masked}");
        }

        #[test]
        fn any_text_is_handled(text in "([\"{}:,\\\\\\[\\]0-9.eE+-]|token|true|\\\\u|é|\n){0,30}") {
            let masked = MessageMasker::default().json(&text);
            let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(masked.is_some(), is_json);
        }
    }

    fn has_same_structure(value: &serde_json::Value, masked: &serde_json::Value) -> bool {
        use serde_json::Value::{Array, Number, Object, String};
        match (value, masked) {
            (Array(all), Array(masked)) => {
                all.len() == masked.len()
                    && all.iter().zip(masked).all(|(a, b)| has_same_structure(a, b))
            }
            (Object(all), Object(masked)) => {
                all.keys().eq(masked.keys())
                    && all.values().zip(masked.values()).all(|(a, b)| has_same_structure(a, b))
            }
            (String(_), String(_)) => true,
            (Number(_), String(mask)) => mask == MASK,
            (value, masked) => value == masked,
        }
    }
}
