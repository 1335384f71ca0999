//! Recognises mistakes of users who know JSON, TOML, YAML or a shell better than KDL, and suggests
//! the correct text.
//!
//! Some of them are valid KDL, but never intended: `command: "npx"` is a node with a `:` in its
//! name.

use std::ops::Range;

use kdl::KdlNode;

use super::lex::{Token, TokenKind, is_curly};
use crate::source::{SourceFile, Span};
use crate::write::quoted;

/// Maximum length of a suggestion.
const MAX_ADVICE: usize = 240;

/// A mistake in a line, with its message and suggestion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) kind: MistakeKind,
    pub(super) message: String,
    pub(super) span: Span,
    pub(super) suggestion: String,
}

/// The kind of a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MistakeKind {
    /// A `=` or `:` after a name, a list in brackets, or commas: another language.
    Foreign,
    Other,
}

/// A line to check.
pub(super) struct Line<'a> {
    pub(super) file: &'a SourceFile,
    /// The start of its text in the file.
    pub(super) start: usize,
    /// The text, with comments blanked out.
    pub(super) text: &'a str,
    pub(super) tokens: &'a [Token],
    /// True if a block follows.
    pub(super) has_block: bool,
}

impl Line<'_> {
    /// Returns the first mistake, if there is one.
    pub(super) fn mistake(&self) -> Option<Mistake> {
        self.open_text()
            .or_else(|| self.list())
            .or_else(|| self.assignment())
            .or_else(|| self.foreign_quotes())
            .or_else(|| self.comma())
            .or_else(|| self.word_without_quotes())
            .or_else(|| self.escape())
            .or_else(|| self.missing_space())
    }

    /// Returns the name of the field, if it is recognisable.
    pub(super) fn name(&self) -> Option<(String, Span)> {
        let token = self.tokens.iter().find(|it| it.kind != TokenKind::Annotation)?;
        token.kind.is_value().then(|| (self.content(token).to_owned(), self.span(&token.range)))
    }

    fn open_text(&self) -> Option<Mistake> {
        let token = self.find(TokenKind::OpenText)?;
        if self.content(token).trim().is_empty() {
            let message = "a quote is missing on this line";
            let advice = "put a `\"` before and after each text";
            return Some(self.other(message, &token.range, advice.to_owned()));
        }
        if self.raw(&token.range).starts_with("\"\"\"") {
            let advice = "add `\"\"\"` in a line of its own where it ends";
            return Some(self.other("this text is never closed", &token.range, advice.to_owned()));
        }
        Some(self.other("this text is never closed", &token.range, self.advice()))
    }

    fn list(&self) -> Option<Mistake> {
        let open = self.find(TokenKind::ListOpen)?;
        let close = self.tokens.iter().rev().find(|it| it.kind == TokenKind::ListClose);
        let range = open.range.start..close.map_or(open.range.end, |it| it.range.end);
        let range = range.start..range.end.max(open.range.end);
        let message = "write values one after another, without brackets and commas";
        Some(self.foreign(message.to_owned(), &range))
    }

    fn assignment(&self) -> Option<Mistake> {
        let name = self.tokens.first().filter(|it| it.kind.is_value())?;
        let sign = self.tokens.get(1)?;
        let shown = match sign.kind {
            TokenKind::Equals => "=",
            TokenKind::Colon => ":",
            _ => return None,
        };
        let name = crate::report::quote(self.content(name));
        let message = format!("unexpected `{shown}` between {name} and its value");
        Some(self.foreign(message, &sign.range))
    }

    fn comma(&self) -> Option<Mistake> {
        let comma = self.find(TokenKind::Comma)?;
        let message = "separate values with spaces, not commas";
        Some(self.foreign(message.to_owned(), &comma.range))
    }

    fn foreign_quotes(&self) -> Option<Mistake> {
        let is_foreign =
            |it: &&Token| matches!(it.kind, TokenKind::SingleQuotes | TokenKind::CurlyQuotes);
        let token = self.tokens.iter().find(is_foreign)?;
        let message = match token.kind {
            TokenKind::SingleQuotes => "write text in double quotes",
            _ => "use `\"` instead of typographic quotes",
        };
        Some(self.other(message, &token.range, self.advice()))
    }

    fn word_without_quotes(&self) -> Option<Mistake> {
        for (index, token) in self.tokens.iter().enumerate() {
            let word = self.raw(&token.range);
            if token.kind != TokenKind::Word {
                continue;
            }
            if index > 0 && is_keyword(word) {
                let message = format!("write `{word}` with a `#`");
                return Some(self.other(&message, &token.range, self.advice()));
            }
            if needs_quotes(word) {
                let message = "this text needs quotes";
                return Some(self.other(message, &token.range, self.advice()));
            }
        }
        None
    }

    fn escape(&self) -> Option<Mistake> {
        let is_wrong = |it: &&Token| {
            let text = self.raw(&it.range);
            it.kind == TokenKind::Text && text.starts_with('"') && has_bad_escape(text)
        };
        let token = self.tokens.iter().find(is_wrong)?;
        let message = "this text contains an invalid `\\` escape";
        let advice = "write `\\\\` for a `\\`, or `#\"…\"#` around text that is taken as it is";
        Some(self.other(message, &token.range, advice.to_owned()))
    }

    fn missing_space(&self) -> Option<Mistake> {
        let mut pairs = self.tokens.windows(2);
        let (_, second) = pairs.find_map(|pair| {
            let [first, second] = pair else { return None };
            let are_values = first.kind.is_value() && second.kind.is_value();
            (are_values && second.is_joined).then_some((first, second))
        })?;
        Some(self.other("a space is missing before this", &second.range, self.advice()))
    }

    fn find(&self, kind: TokenKind) -> Option<&Token> {
        self.tokens.iter().find(|it| it.kind == kind)
    }

    fn foreign(&self, message: String, range: &Range<usize>) -> Mistake {
        let (span, suggestion) = (self.span(range), self.advice());
        Mistake { kind: MistakeKind::Foreign, message, span, suggestion }
    }

    fn other(&self, message: &str, range: &Range<usize>, suggestion: String) -> Mistake {
        let (kind, span) = (MistakeKind::Other, self.span(range));
        Mistake { kind, message: message.to_owned(), span, suggestion }
    }

    fn span(&self, range: &Range<usize>) -> Span {
        Span { start: self.start + range.start, end: self.start + range.end }
    }

    fn raw(&self, range: &Range<usize>) -> &str {
        &self.text[range.clone()]
    }

    /// Returns the content of a token, without its quotes.
    fn content(&self, token: &Token) -> &str {
        bare(token.kind, self.raw(&token.range))
    }

    /// Returns the content of a token, without its quotes and with secrets masked.
    fn shown(&self, token: &Token) -> String {
        let shown = self.file.shown_text(self.span(&token.range));
        let shown = bare(token.kind, &shown);
        if token.kind == TokenKind::OpenText { shown.trim_end() } else { shown }.to_owned()
    }

    fn advice(&self) -> String {
        let advice = self.corrected().filter(|it| it.len() <= MAX_ADVICE);
        advice.unwrap_or_else(|| "write it like `args \"-y\" \"some-server\"`".to_owned())
    }

    /// Returns the correct text.
    fn corrected(&self) -> Option<String> {
        let parts = self.parts();
        let fields: Option<Vec<String>> = parts.iter().map(|part| self.field(part)).collect();
        let fields = fields?;
        match fields.as_slice() {
            [] => None,
            [one] if one.contains("` and `") => Some(format!("write {one}")),
            [one] if self.has_block => Some(format!("write `{one} {{`")),
            many => Some(format!("write `{}`", many.join("; "))),
        }
    }

    /// Returns the tokens of each field: `"A": "1", "B": "2"` is two fields.
    pub(super) fn parts(&self) -> Vec<&[Token]> {
        let parts: Vec<&[Token]> = self
            .tokens
            .split(|it| it.kind == TokenKind::Comma)
            .filter(|part| !part.is_empty())
            .collect();
        let is_field = |part: &&[Token]| {
            matches!(part, [name, sign, _, ..] if name.kind.is_value()
                && matches!(sign.kind, TokenKind::Colon | TokenKind::Equals))
        };
        if parts.len() > 1 && parts.iter().all(is_field) { parts } else { vec![self.tokens] }
    }

    fn field(&self, tokens: &[Token]) -> Option<String> {
        let mut values = tokens.iter().filter(|it| it.kind.is_value());
        let name = self.shown(values.next()?);
        let is_texts = matches!(name.as_str(), "args" | "command");
        let values: Vec<String> = values.map(|token| self.value(token, is_texts)).collect();
        if name == "command" && values.len() > 1 {
            let (program, args) = values.split_first()?;
            return Some(format!("`command {program}` and `args {}`", args.join(" ")));
        }
        let name = if needs_quotes(&name) || name.contains(char::is_whitespace) || is_keyword(&name)
        {
            quoted(&name)
        } else {
            name
        };
        Some(std::iter::once(name).chain(values).collect::<Vec<_>>().join(" "))
    }

    fn value(&self, token: &Token, is_text: bool) -> String {
        let shown = self.shown(token);
        match token.kind {
            TokenKind::Text => self.file.shown_text(self.span(&token.range)),
            TokenKind::Word if is_keyword(&shown) && !is_text => format!("#{shown}"),
            TokenKind::Word if (is_number(&shown) || shown.starts_with('#')) && !is_text => shown,
            _ => quoted(&shown),
        }
    }
}

/// Returns a command line as the two fields that it should be.
pub(crate) fn command_and_args(program: &str, args: &[String]) -> String {
    let args: Vec<String> = args.iter().map(|it| quoted(it)).collect();
    match args.as_slice() {
        [] => format!("`command {}`", quoted(program)),
        args => format!("`command {}` and `args {}`", quoted(program), args.join(" ")),
    }
}

fn bare(kind: TokenKind, text: &str) -> &str {
    match kind {
        TokenKind::Text | TokenKind::OpenText => text.trim_matches('#').trim_matches('"'),
        TokenKind::SingleQuotes => text.trim_matches('\''),
        TokenKind::CurlyQuotes => text.trim_matches(is_curly),
        _ => text,
    }
}

/// Returns true for a keyword that KDL writes with a `#`.
fn is_keyword(word: &str) -> bool {
    matches!(word, "true" | "false")
}

/// Returns true if a word needs quotes.
fn needs_quotes(word: &str) -> bool {
    if let Some(keyword) = word.strip_prefix('#') {
        return !is_keyword(keyword) && !is_odd_keyword(keyword);
    }
    let is_mark = |c: char| "/\\(){}[];\"#".contains(c);
    word.contains(is_mark) || is_odd_keyword(word) || (looks_like_number(word) && !is_number(word))
}

/// Returns true for a KDL keyword that no xy field accepts.
fn is_odd_keyword(word: &str) -> bool {
    matches!(word, "null" | "inf" | "-inf" | "nan")
}

fn looks_like_number(word: &str) -> bool {
    let digits = word.trim_start_matches(['-', '+']);
    digits.trim_start_matches('.').starts_with(|c: char| c.is_ascii_digit())
}

fn is_number(word: &str) -> bool {
    looks_like_number(word) && word.len() < 64 && KdlNode::parse(&format!("a {word}")).is_ok()
}

/// Returns true if a quoted text has an invalid escape.
fn has_bad_escape(text: &str) -> bool {
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            continue;
        }
        match characters.next() {
            Some('n' | 'r' | 't' | '\\' | '"' | 'b' | 'f' | 's' | 'u') => {}
            Some(other) if other.is_whitespace() => {}
            _ => return true,
        }
    }
    false
}
