//! What of a JSON text nobody has to see: every value but those that are known to be no
//! secret. Found without the parser, as what it cannot read is reported too.

use std::ops::Range;

/// Names whose values may be shown.
const SHOWN: [&str; 5] = ["command", "cwd", "type", "transport", "disabled"];

/// The ranges of a text that are not to be shown, in order.
pub(super) fn hidden(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut name = "";
    let mut at = 0;
    while let Some(token) = next_token(text, at) {
        at = token.end;
        let word = text[token.clone()].trim_matches('"');
        if text[at..].trim_start().starts_with(':') {
            name = word;
        } else if !SHOWN.contains(&name) && !word.is_empty() {
            found.push(token);
        }
    }
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
    fn only_what_is_no_secret_is_shown() {
        let table = [
            (r#"{"command": "npx", "cwd": "/x"}"#, r#"{"command": "npx", "cwd": "/x"}"#),
            (r#"{"env": {"KEY": "s3cret", "N": 42}}"#, r#"{"env": {"KEY": *, "N": *}}"#),
            (r#"{"args": ["--key", "s3cret"]}"#, r#"{"args": [*, *]}"#),
            (r#"{"url": "https://a/?key=s"}"#, r#"{"url": *}"#),
            ("{\"KEY\": \"s3cret\n}", "{\"KEY\": *\n}"),
            (r#"{"KEY": "s\"t"}"#, r#"{"KEY": *}"#),
            ("{KEY: s3cret}", "{KEY: *}"),
            (r#""lonely""#, "*"),
        ];
        for (text, expected) in table {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "(command|[\"#{}:,\\\\/* \n?@é=\\[\\]]){0,40}") {
            let mut last = 0;
            for range in hidden(&text) {
                prop_assert!(range.start >= last && text.get(range.clone()).is_some());
                last = range.end;
            }
        }
    }
}
