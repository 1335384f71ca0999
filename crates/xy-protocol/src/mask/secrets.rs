//! Secrets that are known, and texts without them: pure.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::{is_scheme, url};
use crate::control::MASK;

/// Shorter ones cannot be told from ordinary words.
const SHORTEST: usize = 6;

/// So much of a text is compared with the beginnings of all secrets at once.
type Head = [u8; SHORTEST];

/// Everything that must not be seen.
#[derive(Debug, Default)]
pub struct Secrets {
    /// Those with the same beginning, longest first.
    by_head: HashMap<Head, Vec<String>>,
}

impl Secrets {
    /// Remembers a whole value, and the parts of it that are likely to be seen alone.
    pub fn know(&mut self, value: &str) {
        self.know_exactly(value);
        let mut words = value.split_whitespace();
        if words.next().is_some_and(is_scheme) {
            self.know_exactly(value.split_once(char::is_whitespace).map_or("", |(_, rest)| rest));
        }
        for line in value.lines() {
            self.know_exactly(line.trim());
        }
        for it in &url(value).1 {
            self.know_exactly(it);
        }
    }

    /// Remembers a value as it is, however it is escaped.
    pub fn know_exactly(&mut self, value: &str) {
        let quoted = Value::from(value).to_string();
        let escaped = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        for form in [value.to_owned(), escaped.to_owned(), percent_encoded(value)] {
            let Some(head) = form.as_bytes().first_chunk::<SHORTEST>() else { continue };
            let same = self.by_head.entry(*head).or_default();
            if !same.contains(&form) && form != MASK {
                same.push(form);
                same.sort_by_key(|it| std::cmp::Reverse(it.len()));
            }
        }
    }

    /// Returns the text with every known secret masked.
    pub fn scrub<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.by_head.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut clean = String::new();
        let (mut at, mut from) = (0, 0);
        while let Some(head) = text.as_bytes().get(at..).and_then(<[u8]>::first_chunk::<SHORTEST>) {
            let rest = &text.as_bytes()[at..];
            let same = self.by_head.get(head).into_iter().flatten();
            let found = same.into_iter().find(|it| rest.starts_with(it.as_bytes()));
            match found {
                Some(secret) => {
                    clean.push_str(&text[from..at]);
                    clean.push_str(MASK);
                    at += secret.len();
                    from = at;
                }
                None => at += 1,
            }
        }
        if from == 0 {
            return Cow::Borrowed(text);
        }
        clean.push_str(&text[from..]);
        Cow::Owned(clean)
    }

    /// Masks every known secret in the texts of a value.
    pub fn scrub_all(&self, value: &mut Value) {
        each_text(value, &mut |text| {
            if let Cow::Owned(clean) = self.scrub(text) {
                *text = clean;
            }
        });
    }
}

/// Changes every text in a value, but for the names of its fields.
pub fn each_text(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_text(field, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// As it stands in a URL.
fn percent_encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}"); // A `String` takes whatever it is given.
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_known_secret_is_taken_out_wherever_it_stands() {
        let mut secrets = Secrets::default();
        secrets.know("hunter2hunter2");
        secrets.know("hunter2");
        secrets.know("Bearer abc/def+ghi");
        secrets.know("two words");
        secrets.know("-----BEGIN-----\nAAAABBBB\n-----END-----");
        secrets.know("short");
        secrets.know("quo\"ted");
        for (line, clean) in [
            ("hunter2", "***"),
            ("xhunter2hunter2x", "x***x"),
            ("hunter2hunter2hunter2", "******"),
            ("token abc/def+ghi", "token ***"),
            ("?t=abc%2Fdef%2Bghi", "?t=***"),
            ("AAAABBBB", "***"),
            (r#"{"x":"quo\"ted"}"#, r#"{"x":"***"}"#),
            ("two words, two", "***, two"),
            ("short hunter", "short hunter"),
            ("ünïcödé hunter2 ünïcödé", "ünïcödé *** ünïcödé"),
            ("", ""),
        ] {
            assert_eq!(secrets.scrub(line), clean);
        }
        let mut value = json!({ "a": ["hunter2", { "hunter2": "is hunter2" }], "n": 1 });
        secrets.scrub_all(&mut value);
        assert_eq!(value, json!({ "a": ["***", { "hunter2": "is ***" }], "n": 1 }));
    }
}
