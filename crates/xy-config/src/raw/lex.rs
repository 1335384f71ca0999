//! The words and marks of one line, also of a line that is not KDL.

use std::ops::Range;

use super::shape::{hash_length, string_length};

/// Further tokens of one line are not looked at.
const MAX_TOKENS: usize = 4096;

/// A piece of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) range: Range<usize>,
    /// Whether no space stands before it.
    pub(super) is_joined: bool,
}

/// What a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Text without quotes, a number or a keyword.
    Word,
    /// `"…"`, or `#"…"#`.
    Text,
    /// A `"…` without its end.
    OpenText,
    /// `'…'`.
    SingleQuotes,
    /// `“…”` and its like.
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
    /// Whether it says something, other than a mark.
    pub(super) fn is_value(self) -> bool {
        use TokenKind::{CurlyQuotes, OpenText, SingleQuotes, Text, Word};
        matches!(self, Word | Text | OpenText | SingleQuotes | CurlyQuotes)
    }
}

/// Cuts a line into its pieces.
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

/// Whether a `\` is at hand that lets a field go on in the next line.
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

/// Whether a `"` after this text is not escaped by it.
fn closes(inside: &str) -> bool {
    inside.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 0
}

/// The length of a text without quotes; never 0. Where a name may stand, a `:` ends it.
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

/// Whether a word processor makes this of a quote.
pub(super) fn is_curly(character: char) -> bool {
    matches!(character, '\u{201c}'..='\u{201f}' | '«' | '»')
}

trait MinLength {
    fn min_length(self, text: &str) -> Self;
}

impl MinLength for (TokenKind, usize) {
    /// At least one character, so that reading goes on.
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
    fn a_line_is_cut_at_spaces_and_marks() {
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
        fn no_line_is_too_odd(text in "[a\"'“”#\\\\:,=\\[\\](){} \n\té/-]{0,40}") {
            let mut last = 0;
            for token in tokens(&text) {
                prop_assert!(token.range.start >= last && token.range.end > token.range.start);
                prop_assert!(text.get(token.range.clone()).is_some());
                last = token.range.end;
            }
        }
    }
}
