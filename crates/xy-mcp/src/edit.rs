//! Replacing parts of a text where they stand.
//!
//! A part is a piece of that very text, borrowed from it; what is between the parts is
//! copied as it is.

use std::borrow::Cow;
use std::ops::Range;

/// Some parts of a text, and what stands there instead.
#[derive(Debug)]
pub struct Edits<'t> {
    text: &'t [u8],
    /// Where each begins and ends.
    parts: Vec<(usize, usize, Cow<'t, str>)>,
}

/// A piece of an edited text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    /// This range of the original text.
    Unchanged(Range<usize>),
    /// This text, which replaces something or is inserted.
    New(&'a str),
}

impl<'t> Edits<'t> {
    /// Edits of `text`, none yet.
    pub fn of(text: &'t [u8]) -> Self {
        Self { text, parts: Vec::new() }
    }

    /// Puts `new` where `part` stands, which must be a piece of the text, not an equal one.
    pub fn replace(&mut self, part: &'t str, new: impl Into<Cow<'t, str>>) {
        let begins = offset(self.text, part.as_bytes());
        self.parts.push((begins, begins + part.len(), new.into()));
    }

    /// Puts `new` before `part`.
    pub fn insert_before(&mut self, part: &'t str, new: impl Into<Cow<'t, str>>) {
        let begins = offset(self.text, part.as_bytes());
        self.parts.push((begins, begins, new.into()));
    }

    /// Appends the edited text to `out`, on one line: a line break between the parts of a
    /// JSON text is only space.
    pub fn append_to(&mut self, out: &mut Vec<u8>) {
        let text = self.text;
        self.for_each_piece(|piece| match piece {
            Piece::Unchanged(range) => append_on_one_line(out, &text[range]),
            Piece::New(new) => append_on_one_line(out, new.as_bytes()),
        });
    }

    /// Visits the edited text piece by piece, in order.
    pub fn for_each_piece(&mut self, mut visit: impl FnMut(Piece<'_>)) {
        self.parts.sort_by_key(|(begins, ends, _)| (*begins, *ends));
        let mut done = 0;
        for (begins, ends, new) in &self.parts {
            visit(Piece::Unchanged(done..*begins));
            visit(Piece::New(new));
            done = *ends;
        }
        visit(Piece::Unchanged(done..self.text.len()));
    }

    /// The edited text.
    pub fn to_vec(mut self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text.len() + 32);
        self.append_to(&mut out);
        out
    }
}

/// Appends JSON, with spaces for its line breaks: no string in it can hold a bare one.
pub fn append_on_one_line(out: &mut Vec<u8>, json: &[u8]) {
    let from = out.len();
    out.extend_from_slice(json);
    let copied = &mut out[from..];
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'\n', b'\r', &copied[at..]) {
        copied[at + found] = b' ';
        at += found + 1;
    }
}

/// Where `part` stands in `text`.
fn offset(text: &[u8], part: &[u8]) -> usize {
    let begins = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    assert!(
        begins.checked_add(part.len()).is_some_and(|ends| ends <= text.len()),
        "a part is a piece of the text it is replaced in"
    );
    begins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_there_is_on_the_same_line() {
        let text = r#"{"a":1}"#;
        let mut edits = Edits::of(text.as_bytes());
        edits.replace(&text[5..6], "[\n{\r\n}]");
        edits.insert_before(&text[1..2], "\n");
        let edited = String::from_utf8(edits.to_vec()).unwrap();
        assert_eq!(edited, r#"{ "a":[ {  }]}"#);
    }

    #[test]
    fn only_the_parts_change() {
        let text = "{ \"id\" : 7,\"a\":1.50,\n\"method\":\"x\" }";
        let part = |part: &str| {
            let begins = text.find(part).unwrap();
            &text[begins..begins + part.len()]
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
    fn an_equal_text_elsewhere_is_not_a_part() {
        let elsewhere = String::from("7");
        Edits::of(b"7").replace(&elsewhere, "8");
    }
}
