//! A text with a name, and places in it.
//!
//! Spans count bytes, places count characters: a span becomes a place only when
//! somebody is going to read it.

mod hidden;
mod hidden_json;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::report::Place;

/// How many characters of a line a report quotes.
const QUOTED_CHARS: usize = 100;
/// How many of them may stand before the underlined text.
const QUOTED_BEFORE: usize = 40;

/// A range of bytes in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A text, where it came from, and where its lines begin.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    /// The name that reports show.
    pub(crate) shown: String,
    pub(crate) text: String,
    /// Whether the text is JSON and not KDL.
    pub(crate) is_json: bool,
    line_starts: Vec<usize>,
    /// What may be a secret, and is not shown.
    hidden: Vec<Range<usize>>,
}

impl SourceFile {
    pub(crate) fn new(path: &Path, shown: &str, text: &str) -> Arc<Self> {
        Self::with_hidden(path, shown, text, false)
    }

    /// A text that is JSON and not KDL.
    pub(crate) fn json(path: &Path, shown: &str, text: &str) -> Arc<Self> {
        Self::with_hidden(path, shown, text, true)
    }

    fn with_hidden(path: &Path, shown: &str, text: &str, is_json: bool) -> Arc<Self> {
        let hidden = if is_json { hidden_json::hidden(text) } else { hidden::hidden(text) };
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

    /// The characters of a range, as they may be shown to anybody.
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

    /// The text of a span, as it may be shown to anybody.
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

    /// The text of a span, as it was written.
    pub(crate) fn slice(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or_default()
    }

    /// The line of an offset, from 0, and where that line begins and ends.
    fn line_of(&self, offset: usize) -> (usize, usize, usize) {
        let index = self.line_starts.partition_point(|&start| start <= offset).saturating_sub(1);
        let start = self.line_starts[index];
        let next = self.line_starts.get(index + 1).map_or(self.text.len(), |next| next - 1);
        let end = if self.text[start..next].ends_with('\r') { next - 1 } else { next };
        (index, start, end)
    }

    /// The nearest offset at or before this one that does not cut a character.
    fn floor(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.len());
        (0..=offset).rev().find(|&at| self.text.is_char_boundary(at)).unwrap_or(0)
    }
}

/// A span and the text it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct At {
    pub(crate) file: Arc<SourceFile>,
    pub(crate) span: Span,
}

impl At {
    pub(crate) fn new(file: &Arc<SourceFile>, span: Span) -> Self {
        Self { file: Arc::clone(file), span }
    }

    /// Where `text` stands on a line, from 1; else the whole line.
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

    /// The line, from 1.
    pub(crate) fn line(&self) -> u32 {
        number(self.file.line_of(self.file.floor(self.span.start)).0 + 1)
    }

    /// The place a person looks for; of a span over several lines, its first line.
    pub(crate) fn place(&self) -> Place {
        let file = &self.file;
        let start = file.floor(self.span.start);
        let (index, line_start, line_end) = file.line_of(start);
        let start = start.min(line_end);
        let end = file.floor(self.span.end).clamp(start, line_end);
        let before: Vec<char> = file.shown_chars(line_start..start).collect();
        let marked: Vec<char> = file.shown_chars(start..end).collect();
        let (line_text, text_column, length) =
            quote_line(&before, &marked, file.shown_chars(end..line_end));
        Place {
            file: file.shown.clone(),
            line: number(index + 1),
            column: number(before.len() + 1),
            length: number(length),
            line_text,
            text_column: number(text_column),
        }
    }
}

/// Cuts a long line around the marked text; answers with the text, where the
/// marked part begins in it, and how long that part is.
fn quote_line(
    before: &[char],
    marked: &[char],
    after: impl Iterator<Item = char>,
) -> (String, usize, usize) {
    // One character more than could be shown tells whether some are left out.
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

/// A text with a star for each of these ranges.
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

    fn place(text: &str, start: usize, end: usize) -> Place {
        let file = SourceFile::new(Path::new("/c/a.kdl"), "a.kdl", text);
        At::new(&file, Span { start, end }).place()
    }

    #[test]
    fn lines_and_columns_count_from_one_in_characters() {
        let found = place("a\r\n é b\n", 7, 8);
        assert_eq!((found.line, found.column, found.length), (2, 4, 1));
        assert_eq!(found.line_text, " é b");
    }

    #[test]
    fn a_span_over_several_lines_is_cut_to_its_first() {
        let found = place("ab {\n c\n}", 3, 9);
        assert_eq!((found.line, found.column, found.length), (1, 4, 1));
    }

    #[test]
    fn a_span_at_or_beyond_the_end_is_a_place_too() {
        for (start, end) in [(3, 3), (3, 9), (70, 90)] {
            let found = place("abc", start, end);
            assert_eq!((found.line, found.column, found.length), (1, 4, 0), "{start}..{end}");
        }
        assert_eq!(place("", 0, 0).line, 1);
        assert_eq!(place("a\n", 2, 2).line, 2);
    }

    #[test]
    fn a_span_that_cuts_a_character_is_moved_to_its_start() {
        assert_eq!(place("aé", 2, 2).column, 2);
    }

    #[test]
    fn a_long_line_is_cut_on_both_sides_of_the_span() {
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
    fn a_long_span_is_cut_too() {
        let found = place(&"x".repeat(5000), 0, 5000);
        assert_eq!(found.length as usize, QUOTED_CHARS - QUOTED_BEFORE);
        assert!(found.line_text.ends_with('…'));
    }
}
