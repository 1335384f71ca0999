//! Known secrets, and their removal from texts. Pure.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::{is_scheme, url};
use crate::control::MASK;

/// Minimum length of a secret. Shorter values could be ordinary words.
const MIN_SECRET_LENGTH: usize = 6;

/// The first bytes of a secret, by which a text is compared with all secrets at once.
type Prefix = [u8; MIN_SECRET_LENGTH];

/// Values that must be masked.
#[derive(Debug, Default)]
pub struct Secrets {
    /// The secrets with each prefix, longest first.
    by_prefix: HashMap<Prefix, Vec<String>>,
}

impl Secrets {
    /// Adds a value, and the parts of it that are likely to appear alone.
    pub fn add(&mut self, value: &str) {
        self.add_exact(value);
        let mut words = value.split_whitespace();
        if words.next().is_some_and(is_scheme) {
            self.add_exact(value.split_once(char::is_whitespace).map_or("", |(_, rest)| rest));
        }
        for line in value.lines() {
            self.add_exact(line.trim());
        }
        for it in &url(value).1 {
            self.add_exact(it);
        }
    }

    /// Adds a value in its plain and its escaped forms.
    pub fn add_exact(&mut self, value: &str) {
        let quoted = Value::from(value).to_string();
        let escaped = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        for form in [value.to_owned(), escaped.to_owned(), percent_encoded(value)] {
            let Some(prefix) = form.as_bytes().first_chunk::<MIN_SECRET_LENGTH>() else { continue };
            let candidates = self.by_prefix.entry(*prefix).or_default();
            if !candidates.contains(&form) && form != MASK {
                candidates.push(form);
                candidates.sort_by_key(|it| std::cmp::Reverse(it.len()));
            }
        }
    }

    /// Returns the text with every known secret masked, also one that is cut off.
    pub fn scrub<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.by_prefix.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut masked = String::new();
        let (mut at, mut copied) = (0, 0);
        while let Some(prefix) =
            text.as_bytes().get(at..).and_then(<[u8]>::first_chunk::<MIN_SECRET_LENGTH>)
        {
            let rest = &text.as_bytes()[at..];
            let candidates = self.by_prefix.get(prefix).into_iter().flatten();
            let found = candidates.into_iter().find_map(|it| found_length(rest, it.as_bytes()));
            match found {
                Some(length) => {
                    masked.push_str(&text[copied..at]);
                    masked.push_str(MASK);
                    at += length;
                    copied = at;
                }
                None => at += 1,
            }
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        masked.push_str(&text[copied..]);
        Cow::Owned(masked)
    }

    /// Masks every known secret in the texts of a value.
    pub fn scrub_all(&self, value: &mut Value) {
        for_each_text(value, &mut |text| {
            if let Cow::Owned(masked) = self.scrub(text) {
                *text = masked;
            }
        });
    }
}

/// Returns the length of a secret at the beginning of `rest`. It may be cut off by the end of the
/// text or by `…`, as in a shortened error message.
fn found_length(rest: &[u8], secret: &[u8]) -> Option<usize> {
    let same = rest.iter().zip(secret).take_while(|(written, known)| written == known).count();
    let is_cut = || {
        let ends = rest.len() == same || rest[same..].starts_with("…".as_bytes());
        ends && same > MIN_SECRET_LENGTH
    };
    (same == secret.len() || is_cut()).then_some(same)
}

/// Changes every string in a value, except the names of fields.
pub fn for_each_text(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| for_each_text(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| for_each_text(field, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns the percent-encoded form of a value in a URL.
fn percent_encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}"); // Writing to a `String` cannot fail.
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn known_secret_is_masked_in_every_form() {
        let mut secrets = Secrets::default();
        secrets.add("hunter2hunter2");
        secrets.add("hunter2");
        secrets.add("Bearer abc/def+ghi");
        secrets.add("two words");
        secrets.add("-----BEGIN-----\nAAAABBBB\n-----END-----");
        secrets.add("short");
        secrets.add("quo\"ted");
        for (line, masked) in [
            ("hunter2", "***"),
            ("xhunter2hunter2x", "x***x"),
            ("hunter2hunter2hunter2", "******"),
            ("token abc/def+ghi", "token ***"),
            ("?t=abc%2Fdef%2Bghi", "?t=***"),
            ("AAAABBBB", "***"),
            (r#"{"x":"quo\"ted"}"#, r#"{"x":"***"}"#),
            ("two words, two", "***, two"),
            ("short hunter", "short hunter"),
            ("refused: two wor", "refused: ***"),
            ("refused: `two word…`", "refused: `***…`"),
            ("two wor ds", "two wor ds"),
            ("ünïcödé hunter2 ünïcödé", "ünïcödé *** ünïcödé"),
            ("", ""),
        ] {
            assert_eq!(secrets.scrub(line), masked);
        }
        let mut value = json!({ "a": ["hunter2", { "hunter2": "is hunter2" }], "n": 1 });
        secrets.scrub_all(&mut value);
        assert_eq!(value, json!({ "a": ["***", { "hunter2": "is ***" }], "n": 1 }));
    }
}
