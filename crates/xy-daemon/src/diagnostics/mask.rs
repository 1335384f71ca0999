//! Secrets, and texts without them: pure.
//!
//! What is known to be secret is taken out wherever it stands; what only looks like it, as
//! [`xy_protocol::mask`] says.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;
use xy_protocol::control::MASK;
use xy_protocol::mask::{self, is_scheme};
pub(super) use xy_protocol::mask::{is_secret_name, text};

/// Shorter ones cannot be told from ordinary words.
const SHORTEST: usize = 6;

/// So much of a text is compared with the beginnings of all secrets at once.
type Head = [u8; SHORTEST];

/// Everything that must not be seen.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    /// Those with the same beginning, longest first.
    by_head: HashMap<Head, Vec<String>>,
}

impl Secrets {
    /// A whole value is secret, and what is likely to be seen of it alone.
    pub(super) fn know(&mut self, value: &str) {
        self.know_exactly(value);
        let mut words = value.split_whitespace();
        if words.next().is_some_and(is_scheme) {
            self.know_exactly(value.split_once(char::is_whitespace).map_or("", |(_, rest)| rest));
        }
        for line in value.lines() {
            self.know_exactly(line.trim());
        }
        for it in &mask::url(value).1 {
            self.know_exactly(it);
        }
    }

    fn know_exactly(&mut self, value: &str) {
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

    /// The text without any of them.
    pub(super) fn scrub<'t>(&self, text: &'t str) -> Cow<'t, str> {
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

    /// The same for every text in a value.
    pub(super) fn scrub_all(&self, value: &mut Value) {
        each_text(value, &mut |text| {
            if let Cow::Owned(clean) = self.scrub(text) {
                *text = clean;
            }
        });
    }
}

/// Does something to every text in a value, but for the names of its fields.
pub(super) fn each_text(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_text(field, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Arguments without what looks like a secret, which is known from now on.
pub(super) fn args(args: &[String], secrets: &mut Secrets) -> Vec<String> {
    let masked = mask::args(args.iter().map(String::as_str));
    for it in &masked.found {
        secrets.know(it);
    }
    masked.words
}

/// A URL without what may be secret in it, which is known from now on.
pub(super) fn url(url: &str, secrets: &mut Secrets) -> String {
    let (masked, found) = mask::url(url);
    for it in &found {
        secrets.know_exactly(it);
    }
    masked
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

    #[test]
    fn what_was_an_argument_is_known_elsewhere() {
        let mut secrets = Secrets::default();
        let given =
            ["--token", "ab c def", "-H", "X-Api-Key: hijklmn", "--url", "http://a/?k=opqrstu"];
        let given = given.map(str::to_owned);
        assert_eq!(
            args(&given, &mut secrets),
            ["--token", "***", "-H", "X-Api-Key: ***", "--url", "http://a/?***"]
        );
        assert_eq!(secrets.scrub("ab c def hijklmn opqrstu"), "*** *** ***");
        let given =
            ["-H", "Authorization: SSWS first12", "--header=Cookie: s=second3; t=x", "last"];
        let given = given.map(str::to_owned);
        let masked =
            ["-H", "Authorization: *** ***", "--header=Cookie: *** ***", "last"].map(str::to_owned);
        assert_eq!(args(&given, &mut secrets), masked);
        assert_eq!(secrets.scrub("first12 second3"), "*** ***");
        let given = ["Authorization: Bearer", "third345", "last"].map(str::to_owned);
        assert_eq!(args(&given, &mut secrets), ["Authorization: Bearer", "***", "last"]);
        assert_eq!(url("https://u:longpass@h/x?y", &mut secrets), "https://***@h/x?***");
        assert_eq!(secrets.scrub("longpass"), "***");
    }
}
