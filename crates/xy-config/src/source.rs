//! Named source texts, and spans in them.
//!
//! Spans count bytes, locations count characters. A span is converted to a location only for a
//! report.

mod redact;
mod redact_json;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file, as reports show it: relative to the configuration folder.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, in characters.
    pub column: u32,
    /// The number of characters; 0 means the gap before the column.
    pub length: u32,
    /// The text of the line, cut around the location (with `…`) if it is long.
    pub line_text: String,
    /// The start of the location in `line_text`, from 0, in characters.
    pub text_column: u32,
}

/// Maximum number of characters that a report quotes of a line.
const QUOTED_CHARS: usize = 100;
/// Maximum number of them before the underlined text.
const QUOTED_BEFORE: usize = 40;

/// A range of bytes in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A text, its origin, and the starts of its lines.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    /// The name that reports show.
    pub(crate) shown: String,
    pub(crate) text: String,
    /// True if the text is JSON and not KDL.
    pub(crate) is_json: bool,
    line_starts: Vec<usize>,
    /// The ranges that may be secret, which reports do not show.
    hidden: Vec<Range<usize>>,
}

impl SourceFile {
    pub(crate) fn new(path: &Path, shown: &str, text: &str) -> Arc<Self> {
        Self::with_hidden(path, shown, text, false)
    }

    /// Creates the source of a JSON text.
    pub(crate) fn json(path: &Path, shown: &str, text: &str) -> Arc<Self> {
        Self::with_hidden(path, shown, text, true)
    }

    fn with_hidden(path: &Path, shown: &str, text: &str, is_json: bool) -> Arc<Self> {
        let hidden = secret_ranges(text, is_json);
        let line_starts =
            std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Arc::new(Self {
            path: path.to_owned(),
            shown: shown.to_owned(),
            text: text.to_owned(),
            is_json,
            line_starts,
            hidden,
        })
    }

    /// Returns the characters of a range, with secrets masked.
    fn shown_chars(&self, range: Range<usize>) -> impl Iterator<Item = char> {
        let mut hidden = self.hidden.iter().skip_while({
            let start = range.start;
            move |it| it.end <= start
        });
        let mut next = hidden.next();
        self.text[range.clone()].char_indices().map(move |(at, character)| {
            let at = range.start + at;
            while next.is_some_and(|it| it.end <= at) {
                next = hidden.next();
            }
            let is_hidden = next.is_some_and(|it| it.contains(&at));
            if is_hidden && !matches!(character, '"' | ' ') { '*' } else { character }
        })
    }

    /// Returns the text of a span, with secrets masked.
    pub(crate) fn shown_text(&self, span: Span) -> String {
        let (start, end) = (self.floor(span.start), self.floor(span.end));
        let mut shown = String::new();
        let mut at = start;
        for hidden in self.hidden.iter().filter(|it| it.start < end && it.end > start) {
            shown.push_str(self.text.get(at..hidden.start.max(at)).unwrap_or_default());
            let inside = self.text.get(hidden.start.max(at)..hidden.end.min(end));
            let mark = if inside.is_some_and(|it| it.starts_with('"')) { "\"…\"" } else { "…" };
            shown.push_str(mark);
            at = hidden.end.min(end);
        }
        shown.push_str(self.text.get(at..end).unwrap_or_default());
        shown
    }

    /// Returns the text of a span as it is written.
    pub(crate) fn slice(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or_default()
    }

    /// Returns the line of an offset, from 0, with the offsets of its start and end.
    fn line_of(&self, offset: usize) -> (usize, usize, usize) {
        let index = self.line_starts.partition_point(|&start| start <= offset).saturating_sub(1);
        let start = self.line_starts[index];
        let next = self.line_starts.get(index + 1).map_or(self.text.len(), |next| next - 1);
        let end = if self.text[start..next].ends_with('\r') { next - 1 } else { next };
        (index, start, end)
    }

    /// Returns the nearest character boundary at or before an offset.
    fn floor(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.len());
        (0..=offset).rev().find(|&at| self.text.is_char_boundary(at)).unwrap_or(0)
    }
}

/// A span and the text that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct SourceSpan {
    pub(crate) file: Arc<SourceFile>,
    pub(crate) span: Span,
}

impl SourceSpan {
    pub(crate) fn new(file: &Arc<SourceFile>, span: Span) -> Self {
        Self { file: Arc::clone(file), span }
    }

    /// Returns the span of `text` in a line, from 1, or of the whole line.
    pub(crate) fn of_line(file: &Arc<SourceFile>, line: u32, text: &str) -> Self {
        let index = usize::try_from(line).unwrap_or(1).saturating_sub(1);
        let start = file.line_starts.get(index).copied().unwrap_or_default();
        let (_, start, end) = file.line_of(start);
        let found = file.text[start..end].find(text).filter(|_| !text.is_empty());
        let span = match found {
            Some(at) => Span { start: start + at, end: start + at + text.len() },
            None => Span { start, end },
        };
        Self::new(file, span)
    }

    /// Returns the line, from 1.
    pub(crate) fn line(&self) -> u32 {
        number(self.file.line_of(self.file.floor(self.span.start)).0 + 1)
    }

    /// Returns the location for a report. A span over several lines is cut to its first line.
    pub(crate) fn place(&self) -> Location {
        let file = &self.file;
        let start = file.floor(self.span.start);
        let (index, line_start, line_end) = file.line_of(start);
        let start = start.min(line_end);
        let end = file.floor(self.span.end).clamp(start, line_end);
        let before: Vec<char> = file.shown_chars(line_start..start).collect();
        let marked: Vec<char> = file.shown_chars(start..end).collect();
        let (line_text, text_column, length) =
            quote_line(&before, &marked, file.shown_chars(end..line_end));
        Location {
            file: file.shown.clone(),
            line: number(index + 1),
            column: number(before.len() + 1),
            length: number(length),
            line_text,
            text_column: number(text_column),
        }
    }
}

/// Cuts a long line around the marked text. Returns the text, the start of the marked part in it,
/// and the length of that part.
fn quote_line(
    before: &[char],
    marked: &[char],
    after: impl Iterator<Item = char>,
) -> (String, usize, usize) {
    // One more character than fits tells whether some are left out.
    let after: Vec<char> = after.take(QUOTED_CHARS + 1).collect();
    let fits = before.len() + marked.len() + after.len() <= QUOTED_CHARS;
    let most_before = if fits { QUOTED_CHARS } else { QUOTED_BEFORE };
    let skipped = before.len().saturating_sub(most_before);
    let length = marked.len().min(if fits { QUOTED_CHARS } else { QUOTED_CHARS - QUOTED_BEFORE });
    let room = QUOTED_CHARS.saturating_sub(before.len() - skipped + length);
    let following = if length < marked.len() { 0 } else { after.len().min(room) };

    let mut line = String::new();
    if skipped > 0 {
        line.push('…');
    }
    line.extend(&before[skipped..]);
    let text_column = before.len() - skipped + usize::from(skipped > 0);
    line.extend(&marked[..length]);
    line.extend(&after[..following]);
    if length < marked.len() || following < after.len() {
        line.push('…');
    }
    (line, text_column, length)
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns the ranges of a text that must not be shown, in order. Users also paste JSON into files
/// of KDL.
fn secret_ranges(text: &str, is_json: bool) -> Vec<Range<usize>> {
    let is_pasted = text.trim_start_matches('\u{feff}').trim_start().starts_with('{');
    if is_json || is_pasted {
        redact_json::secret_ranges(text)
    } else {
        redact::secret_ranges(text)
    }
}

/// Replaces each of these ranges by a star.
#[cfg(test)]
fn starred(text: &str, hidden: Vec<Range<usize>>) -> String {
    let mut shown = text.to_owned();
    for range in hidden.into_iter().rev() {
        shown.replace_range(range, "*");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str, start: usize, end: usize) -> Location {
        let file = SourceFile::new(Path::new("/c/a.kdl"), "a.kdl", text);
        SourceSpan::new(&file, Span { start, end }).place()
    }

    #[test]
    fn pasted_json_is_redacted_as_json() {
        let text = "\u{feff} {\"env\": {\"API_KEY\": \"b\"}}";
        let shown = starred(text, secret_ranges(text, false));
        assert_eq!(shown, "\u{feff} {\"env\": {\"API_KEY\": *}}");
    }

    #[test]
    fn lines_and_columns_count_from_one_in_characters() {
        let found = place("a\r\n é b\n", 7, 8);
        assert_eq!((found.line, found.column, found.length), (2, 4, 1));
        assert_eq!(found.line_text, " é b");
    }

    #[test]
    fn multi_line_span_is_cut_to_its_first_line() {
        let found = place("ab {\n c\n}", 3, 9);
        assert_eq!((found.line, found.column, found.length), (1, 4, 1));
    }

    #[test]
    fn span_beyond_the_end_has_a_location() {
        for (start, end) in [(3, 3), (3, 9), (70, 90)] {
            let found = place("abc", start, end);
            assert_eq!((found.line, found.column, found.length), (1, 4, 0), "{start}..{end}");
        }
        assert_eq!(place("", 0, 0).line, 1);
        assert_eq!(place("a\n", 2, 2).line, 2);
    }

    #[test]
    fn span_inside_a_character_moves_to_its_start() {
        assert_eq!(place("aé", 2, 2).column, 2);
    }

    #[test]
    fn long_line_is_cut_on_both_sides_of_the_span() {
        let text = format!("{}MARK{}", "a".repeat(500), "b".repeat(500));
        let found = place(&text, 500, 504);
        assert_eq!(found.column, 501);
        assert!(found.line_text.starts_with("…aaa") && found.line_text.ends_with("bbb…"));
        let marked: String =
            found.line_text.chars().skip(found.text_column as usize).take(4).collect();
        assert_eq!(marked, "MARK");
        assert!(found.line_text.chars().count() <= QUOTED_CHARS + 2);
    }

    #[test]
    fn long_span_is_cut() {
        let found = place(&"x".repeat(5000), 0, 5000);
        assert_eq!(found.length as usize, QUOTED_CHARS - QUOTED_BEFORE);
        assert!(found.line_text.ends_with('…'));
    }
}
