//! The parts of a JSON text that reports must not show: values of `headers`, keys in URLs,
//! variables with the name of a secret, and arguments that look like one. Found without the
//! parser, as text that it cannot read is reported too.

use std::ops::Range;

use xy_protocol::mask;

use super::hidden::secrets;
use crate::references::is_reference;

/// The ranges of a text that are not to be shown, in order.
pub(super) fn hidden(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    // The name before the value at hand, and those before the objects around it.
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
        } else if is_reference(word) {
            // It names a secret, but is none.
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

/// The next text in quotes, to the end of its line if it is not closed, or the next word or
/// number without.
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
        super::super::starred(text, hidden(text))
    }

    #[test]
    fn secrets_are_hidden_and_nothing_else() {
        let table = [
            (r#"{"command": "npx", "cwd": "/x"}"#, r#"{"command": "npx", "cwd": "/x"}"#),
            (r#"{"env": {"KEY": "s3cret", "N": 42}}"#, r#"{"env": {"KEY": *, "N": 42}}"#),
            (r#"{"args": ["--key", "s3cret"]}"#, r#"{"args": ["--key", "*"]}"#),
            (r#"{"args": ["-y", "@a/b"], "x": 1}"#, r#"{"args": ["-y", "@a/b"], "x": 1}"#),
            (r#"{"url": "https://a/?key=s"}"#, r#"{"url": "https://a/?*"}"#),
            (r#"{"headers": {"A": "b"}, "c": "d"}"#, r#"{"headers": {"A": *}, "c": "d"}"#),
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
        fn no_text_is_too_odd(text in "(command|headers|token|[\"#{}:,\\\\/* \n?@é=\\[\\]]){0,40}") {
            let mut last = 0;
            for range in hidden(&text) {
                prop_assert!(range.start >= last && text.get(range.clone()).is_some());
                last = range.end;
            }
        }
    }
}
