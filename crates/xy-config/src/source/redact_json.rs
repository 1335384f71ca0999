//! Finds the parts of a JSON text that reports must not show: values of `headers`, keys in URLs,
//! variables with secret names, and arguments that look like secrets.
//!
//! Works without the parser, since texts that it cannot read are reported, too.

use std::ops::Range;

use xy_protocol::mask;

use super::redact::secrets;
use crate::references::{is_header_reference, is_reference};

/// Returns the ranges of a text that must not be shown, in order.
pub(super) fn secret_ranges(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    // The name of the current value, and the names of the objects around it.
    let mut name = "";
    let mut objects: Vec<&str> = Vec::new();
    // The values of one name, which may be the arguments of a program.
    let mut values: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while let Some(token) = next_token(text, at) {
        for mark in text[at..token.start].bytes() {
            match mark {
                b'{' => objects.push(std::mem::take(&mut name)),
                b'}' => name = objects.pop().unwrap_or_default(),
                _ => {}
            }
        }
        at = token.end;
        let word = text[token.clone()].trim_matches('"');
        if text[at..].trim_start().starts_with(':') {
            found.extend(secrets(text, &std::mem::take(&mut values)));
            name = word;
        } else if is_reference(word) || (objects.contains(&"headers") && is_header_reference(word))
        {
            // A reference names a secret, but is none.
        } else if objects.contains(&"headers") || mask::is_secret_name(name) {
            found.push(token);
        } else if !word.is_empty() {
            let quotes = usize::from(text[token.clone()].starts_with('"'));
            values.push(token.start + quotes..token.start + quotes + word.len());
        }
    }
    found.extend(secrets(text, &values));
    found.sort_by_key(|it| it.start);
    found
}

/// Returns the range of the next quoted text, or of the next word or number. An unclosed text ends
/// with its line.
fn next_token(text: &str, from: usize) -> Option<Range<usize>> {
    let is_blank = |c: char| c.is_whitespace() || "{}[]:,".contains(c);
    let start = from + text[from..].find(|c| !is_blank(c))?;
    let rest = &text[start..];
    if !rest.starts_with('"') {
        let length = rest.find(|c| is_blank(c) || c == '"').unwrap_or(rest.len());
        return Some(start..start + length);
    }
    let mut is_escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, character)| {
        let is_end = *character == '\n' || (*character == '"' && !is_escaped);
        is_escaped = *character == '\\' && !is_escaped;
        is_end
    });
    let length = end.map_or(rest.len(), |(at, it)| at + usize::from(it == '"'));
    Some(start..start + length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        super::super::starred(text, secret_ranges(text))
    }

    #[test]
    fn only_secrets_are_hidden() {
        let table = [
            (r#"{"command": "npx", "cwd": "/x"}"#, r#"{"command": "npx", "cwd": "/x"}"#),
            (r#"{"env": {"KEY": "s3cret", "N": 42}}"#, r#"{"env": {"KEY": *, "N": 42}}"#),
            (r#"{"args": ["--key", "s3cret"]}"#, r#"{"args": ["--key", "*"]}"#),
            (r#"{"args": ["-y", "@a/b"], "x": 1}"#, r#"{"args": ["-y", "@a/b"], "x": 1}"#),
            (r#"{"url": "https://a/?key=s"}"#, r#"{"url": "https://a/?*"}"#),
            (r#"{"headers": {"A": "b"}, "c": "d"}"#, r#"{"headers": {"A": *}, "c": "d"}"#),
            (
                r#"{"headers": {"A": "Bearer ${B}", "C": "${D} e"}}"#,
                r#"{"headers": {"A": "Bearer ${B}", "C": *}}"#,
            ),
            ("{\"KEY\": \"s3cret\n}", "{\"KEY\": *\n}"),
            (r#"{"KEY": "s\"t"}"#, r#"{"KEY": *}"#),
            ("{KEY: s3cret}", "{KEY: *}"),
            (r#""ghp_abcdefghijkl""#, "\"*\""),
        ];
        for (text, expected) in table {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_accepted(text in "(command|headers|token|[\"#{}:,\\\\/* \n?@é=\\[\\]]){0,40}") {
            let mut last = 0;
            for range in secret_ranges(&text) {
                prop_assert!(range.start >= last && text.get(range.clone()).is_some());
                last = range.end;
            }
        }
    }
}
