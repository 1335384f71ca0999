//! Replaces parts of a text in place.
//!
//! A part is a slice of that very text. The text between the parts is copied unchanged.

use std::borrow::Cow;
use std::ops::Range;

/// Replacements of parts of a text.
#[derive(Debug)]
pub struct Edits<'t> {
    text: &'t [u8],
    /// The start and end of each part, and its replacement.
    parts: Vec<(usize, usize, Cow<'t, str>)>,
}

/// A piece of the edited text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    /// This range of the original text.
    Unchanged(Range<usize>),
    /// New text, which replaces a part or is inserted.
    New(&'a str),
}

impl<'t> Edits<'t> {
    /// Starts to edit `text`.
    pub fn of(text: &'t [u8]) -> Self {
        Self { text, parts: Vec::new() }
    }

    /// Replaces `part`, which must be a slice of the text, not an equal string.
    pub fn replace(&mut self, part: &'t str, new: impl Into<Cow<'t, str>>) {
        let start = offset(self.text, part.as_bytes());
        self.parts.push((start, start + part.len(), new.into()));
    }

    /// Inserts `new` before `part`.
    pub fn insert_before(&mut self, part: &'t str, new: impl Into<Cow<'t, str>>) {
        let start = offset(self.text, part.as_bytes());
        self.parts.push((start, start, new.into()));
    }

    /// Appends the edited text to `out` on one line. A line break between the tokens of JSON is
    /// only whitespace.
    pub fn append_to(&mut self, out: &mut Vec<u8>) {
        let text = self.text;
        self.for_each_piece(|piece| match piece {
            Piece::Unchanged(range) => append_on_one_line(out, &text[range]),
            Piece::New(new) => append_on_one_line(out, new.as_bytes()),
        });
    }

    /// Visits the pieces of the edited text in order.
    pub fn for_each_piece(&mut self, mut visit: impl FnMut(Piece<'_>)) {
        self.parts.sort_by_key(|(start, end, _)| (*start, *end));
        let mut copied_to = 0;
        for (start, end, new) in &self.parts {
            visit(Piece::Unchanged(copied_to..*start));
            visit(Piece::New(new));
            copied_to = *end;
        }
        visit(Piece::Unchanged(copied_to..self.text.len()));
    }

    /// Returns the edited text.
    pub fn to_vec(mut self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text.len() + 32);
        self.append_to(&mut out);
        out
    }
}

/// Appends JSON and replaces its line breaks by spaces. A JSON string contains no raw line break.
pub fn append_on_one_line(out: &mut Vec<u8>, json: &[u8]) {
    let start = out.len();
    out.extend_from_slice(json);
    let copied = &mut out[start..];
    let mut position = 0;
    while let Some(offset_found) = memchr::memchr2(b'\n', b'\r', &copied[position..]) {
        copied[position + offset_found] = b' ';
        position += offset_found + 1;
    }
}

/// Returns the position of `part` in `text`.
fn offset(text: &[u8], part: &[u8]) -> usize {
    let start = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    assert!(
        start.checked_add(part.len()).is_some_and(|end| end <= text.len()),
        "a part must be a piece of the text it is replaced in"
    );
    start
}

/// Returns a text as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_line_breaks_become_spaces() {
        let text = r#"{"a":1}"#;
        let mut edits = Edits::of(text.as_bytes());
        edits.replace(&text[5..6], "[\n{\r\n}]");
        edits.insert_before(&text[1..2], "\n");
        let edited = String::from_utf8(edits.to_vec()).unwrap();
        assert_eq!(edited, r#"{ "a":[ {  }]}"#);
    }

    #[test]
    fn only_edited_parts_change() {
        let text = "{ \"id\" : 7,\"a\":1.50,\n\"method\":\"x\" }";
        let part = |part: &str| {
            let start = text.find(part).unwrap();
            &text[start..start + part.len()]
        };
        let mut edits = Edits::of(text.as_bytes());
        edits.replace(part("\"x\""), "\"y\"");
        edits.replace(part("7"), "900");
        edits.insert_before(part("\"x\""), "!");
        let edited = String::from_utf8(edits.to_vec()).unwrap();
        assert_eq!(edited, "{ \"id\" : 900,\"a\":1.50, \"method\":!\"y\" }");
    }

    #[test]
    #[should_panic(expected = "a piece of the text")]
    fn equal_text_elsewhere_is_rejected() {
        let elsewhere = String::from("7");
        Edits::of(b"7").replace(&elsewhere, "8");
    }
}
