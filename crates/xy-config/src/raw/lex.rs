//! Splits one line into words and marks, even if it is not KDL.

use std::ops::Range;

use super::shape::{hash_length, string_length};

/// Maximum number of tokens of a line; further ones are ignored.
const MAX_TOKENS: usize = 4096;

/// A token of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) range: Range<usize>,
    /// True if no space precedes it.
    pub(super) is_joined: bool,
}

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Unquoted text, a number or a keyword.
    Word,
    /// `"…"`, or `#"…"#`.
    Text,
    /// An unclosed `"…`.
    OpenText,
    /// `'…'`.
    SingleQuotes,
    /// `“…”` and similar quotes.
    CurlyQuotes,
    Comma,
    Equals,
    Colon,
    ListOpen,
    ListClose,
    /// `(type)`.
    Annotation,
}

impl TokenKind {
    /// Returns true if the token is a value, and not a mark.
    pub(super) fn is_value(self) -> bool {
        use TokenKind::{CurlyQuotes, OpenText, SingleQuotes, Text, Word};
        matches!(self, Word | Text | OpenText | SingleQuotes | CurlyQuotes)
    }
}

/// Splits a line into tokens.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut found: Vec<Token> = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        if found.len() >= MAX_TOKENS {
            break;
        }
        if first.is_whitespace() || is_continuation(&text[at..]) {
            at += first.len_utf8();
            continue;
        }
        let is_joined = found.last().is_some_and(|last| last.range.end == at);
        let (kind, length) = next(&text[at..], found.last());
        found.push(Token { kind, range: at..at + length, is_joined });
        at += length;
    }
    found
}

/// Returns true if the text begins with a `\` that continues the field on the next line.
fn is_continuation(text: &str) -> bool {
    text.strip_prefix('\\')
        .is_some_and(|rest| rest.trim_start_matches([' ', '\t', '\r']).starts_with('\n'))
}

fn next(text: &str, last: Option<&Token>) -> (TokenKind, usize) {
    use TokenKind::{
        Annotation, Colon, Comma, CurlyQuotes, Equals, ListClose, ListOpen, SingleQuotes, Text,
        Word,
    };
    let first = text.chars().next().unwrap_or_default();
    let length = first.len_utf8();
    let names = last.is_none_or(|last| last.kind == Comma);
    match first {
        '"' => quoted(text, string_length(text)),
        '#' if text.trim_start_matches('#').starts_with('"') => (Text, hash_length(text)),
        '[' => (ListOpen, length),
        ']' => (ListClose, length),
        '=' => (Equals, length),
        ',' => (Comma, length),
        ':' if last.is_some_and(|last| last.kind.is_value()) => (Colon, length),
        '(' => match text.find(')') {
            Some(end) if !text[..end].contains(char::is_whitespace) => (Annotation, end + 1),
            _ => (Word, word_length(text, false)),
        },
        '\'' => match text[1..].find(['\'', '\n']) {
            Some(end) if text[1 + end..].starts_with('\'') => (SingleQuotes, end + 2),
            _ => (Word, word_length(text, names)),
        },
        _ if is_curly(first) => {
            let rest = &text[length..];
            match rest.find(|c| is_curly(c) || c == '\n') {
                Some(end) if rest[end..].starts_with(is_curly) => {
                    let closing = rest[end..].chars().next().map_or(0, char::len_utf8);
                    (CurlyQuotes, length + end + closing)
                }
                _ => (CurlyQuotes, length.max(word_length(text, false))),
            }
        }
        _ => (Word, word_length(text, names)),
    }
    .min_length(text)
}

fn quoted(text: &str, length: usize) -> (TokenKind, usize) {
    let is_long = text.starts_with("\"\"\"");
    let closing = if is_long { "\"\"\"" } else { "\"" };
    let is_closed = length >= 2 * closing.len()
        && text[..length].ends_with(closing)
        && (is_long || closes(&text[1..length - 1]));
    (if is_closed { TokenKind::Text } else { TokenKind::OpenText }, length)
}

/// Returns true if this text does not escape a `"` after it.
fn closes(inside: &str) -> bool {
    inside.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 0
}

/// Returns the length of an unquoted text; never 0. A `:` ends it if a name may be here.
fn word_length(text: &str, is_name: bool) -> usize {
    let mut end = 0;
    for (at, character) in text.char_indices() {
        let after = &text[at + character.len_utf8()..];
        let is_last = || {
            after.is_empty()
                || after.starts_with(|c: char| c.is_whitespace() || "\"[],".contains(c))
        };
        let ends = match character {
            '"' | '[' | ']' | '=' => true,
            ',' => is_last(),
            ':' => is_name && is_last(),
            _ => character.is_whitespace() || is_curly(character),
        };
        if ends && at > 0 {
            break;
        }
        end = at + character.len_utf8();
    }
    end
}

/// Returns true for the quotes that word processors insert.
pub(super) fn is_curly(character: char) -> bool {
    matches!(character, '\u{201c}'..='\u{201f}' | '«' | '»')
}

trait MinLength {
    fn min_length(self, text: &str) -> Self;
}

impl MinLength for (TokenKind, usize) {
    /// Returns a length of at least one character, so that the scan advances.
    fn min_length(self, text: &str) -> Self {
        (self.0, self.1.max(text.chars().next().map_or(1, char::len_utf8)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> Vec<(TokenKind, &str)> {
        tokens(text).into_iter().map(|token| (token.kind, &text[token.range])).collect()
    }

    #[test]
    fn line_is_split_at_spaces_and_marks() {
        use TokenKind::*;
        assert_eq!(
            shown(r#"args: ["-y", 'a b', x,y] k=1"#),
            [
                (Word, "args"),
                (Colon, ":"),
                (ListOpen, "["),
                (Text, "\"-y\""),
                (Comma, ","),
                (SingleQuotes, "'a b'"),
                (Comma, ","),
                (Word, "x,y"),
                (ListClose, "]"),
                (Word, "k"),
                (Equals, "="),
                (Word, "1"),
            ]
        );
        assert_eq!(
            shown("\"A\": “b c” (t)d \"open"),
            [
                (Text, "\"A\""),
                (Colon, ":"),
                (CurlyQuotes, "“b c”"),
                (Annotation, "(t)"),
                (Word, "d"),
                (OpenText, "\"open"),
            ]
        );
        assert_eq!(shown("url https://a:1/b"), [(Word, "url"), (Word, "https://a:1/b")]);
        assert_eq!(shown(r#"a "\" "#), [(Word, "a"), (OpenText, r#""\" "#)]);
    }

    proptest! {
        #[test]
        fn any_line_is_accepted(text in "[a\"'“”#\\\\:,=\\[\\](){} \n\té/-]{0,40}") {
            let mut last = 0;
            for token in tokens(&text) {
                prop_assert!(token.range.start >= last && token.range.end > token.range.start);
                prop_assert!(text.get(token.range.clone()).is_some());
                last = token.range.end;
            }
        }
    }
}
