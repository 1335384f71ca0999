//! Where the nodes of a text begin and end, found before the parser sees it.
//!
//! The parser calls itself for every `{`, for every star in a comment and for
//! every stray character, so a hostile text (or a long banner of stars) could
//! exhaust the stack. Here such texts are refused, comments are blanked out, and
//! the rest is cut into its top-level nodes, which are then parsed one by one.
//! Whether a node is valid KDL is left to the parser.

use std::ops::Range;

use crate::source::Span;

/// How deep blocks may be nested; xy's own fields need 3.
pub(crate) const MAX_DEPTH: usize = 16;
/// How many `{` and the like one node may hold, counting those inside strings.
pub(super) const MAX_NESTING_MARKS: usize = 512;

/// A text cut into its top-level nodes.
#[derive(Debug, Default)]
pub(super) struct Shape {
    /// The text with spaces in place of comments; as long as the original.
    pub(super) text: String,
    /// The top-level nodes in it.
    pub(super) nodes: Vec<Range<usize>>,
    /// What is wrong with the shape.
    pub(super) faults: Vec<Fault>,
}

/// Something wrong with the shape of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    pub(super) span: Span,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultKind {
    StrayBrace,
    OpenBlock,
    OpenComment,
    TooDeep,
    TooMany,
    RepeatedSlashdash,
}

/// Cuts a text into its top-level nodes.
pub(super) fn shape_of(text: &str) -> Shape {
    let mut scanner = Scanner::new(text);
    while !scanner.rest().is_empty() {
        if !scanner.step() {
            return scanner.finish_early();
        }
    }
    scanner.finish()
}

struct Scanner<'a> {
    text: &'a str,
    blanked: Vec<u8>,
    position: usize,
    /// Where the node being read begins, once it has begun.
    node_start: Option<usize>,
    /// Where the last thing in it ends.
    node_end: usize,
    /// Where each block that is open was opened.
    open_blocks: Vec<usize>,
    /// Where the `/-` stands that waits for what it comments out.
    slashdash: Option<usize>,
    /// Where the `\` stands that takes away the meaning of the next newline.
    line_continues: Option<usize>,
    shape: Shape,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        let position = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        Self {
            text,
            blanked: text.as_bytes().to_vec(),
            position,
            node_start: None,
            node_end: 0,
            open_blocks: Vec::new(),
            slashdash: None,
            line_continues: None,
            shape: Shape::default(),
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    /// Reads one token; answers whether reading can go on.
    fn step(&mut self) -> bool {
        let rest = self.rest();
        match rest.as_bytes()[0] {
            b'/' if rest.starts_with("//") => self.blank(line_length(rest)),
            b'/' if rest.starts_with("/*") => return self.block_comment(),
            b'/' if rest.starts_with("/-") => return self.slashdash(),
            b'"' => self.content(string_length(rest)),
            b'#' => self.content(hash_length(rest)),
            b'\\' => {
                if self.line_continues.is_some() {
                    self.content(0);
                }
                self.line_continues = Some(self.position);
                self.position += 1;
            }
            b'{' => return self.open_block(),
            b'}' => self.close_block(),
            b';' => self.terminator(1),
            _ => self.plain(),
        }
        true
    }

    /// Any other character: a newline, a space, or part of a word.
    fn plain(&mut self) {
        let rest = self.rest();
        let character = rest.chars().next().unwrap_or_default();
        let length = if rest.starts_with("\r\n") { 2 } else { character.len_utf8() };
        if is_newline(character) {
            if self.line_continues.take().is_some() || self.slashdash.is_some() {
                self.position += length;
            } else {
                self.terminator(length);
            }
        } else if character.is_whitespace() {
            self.position += length;
        } else {
            self.content(length);
        }
    }

    /// The next `length` bytes belong to a node.
    fn content(&mut self, length: usize) {
        // A `\` that no newline follows is a mistake for the parser to tell.
        let start = self.line_continues.take().unwrap_or(self.position);
        self.node_start.get_or_insert(start);
        self.slashdash = None;
        self.position += length;
        self.node_end = self.position;
    }

    /// The next `length` bytes end a node, unless a block is open.
    fn terminator(&mut self, length: usize) {
        if self.open_blocks.is_empty() {
            self.end_node();
        }
        self.slashdash = None;
        self.line_continues = None;
        self.position += length;
    }

    fn end_node(&mut self) {
        if let Some(start) = self.node_start.take() {
            self.shape.nodes.push(start..self.node_end);
        }
    }

    fn slashdash(&mut self) -> bool {
        if self.slashdash.is_some() {
            return self.fatal(FaultKind::RepeatedSlashdash, self.position, 2);
        }
        let here = self.position;
        self.content(2);
        self.slashdash = Some(here);
        true
    }

    fn open_block(&mut self) -> bool {
        if self.open_blocks.len() == MAX_DEPTH {
            return self.fatal(FaultKind::TooDeep, self.position, 1);
        }
        let here = self.position;
        self.content(1);
        self.open_blocks.push(here);
        true
    }

    fn close_block(&mut self) {
        self.slashdash = None;
        if self.open_blocks.pop().is_none() {
            self.fault(FaultKind::StrayBrace, self.position, 1);
            self.terminator(1);
        } else {
            self.content(1);
        }
    }

    /// Skips a comment that may hold others.
    fn block_comment(&mut self) -> bool {
        let rest = self.rest();
        let mut depth = 0;
        let mut at = 0;
        while at < rest.len() {
            let two = &rest.as_bytes()[at..rest.len().min(at + 2)];
            match two {
                b"/*" => depth += 1,
                b"*/" => depth -= 1,
                _ => {
                    at += 1;
                    continue;
                }
            }
            at += 2;
            if depth == 0 {
                self.blank(at);
                return true;
            }
        }
        self.fatal(FaultKind::OpenComment, self.position, 2)
    }

    /// Replaces the next `length` bytes by spaces.
    fn blank(&mut self, length: usize) {
        self.blanked[self.position..self.position + length].fill(b' ');
        self.position += length;
    }

    fn fault(&mut self, kind: FaultKind, start: usize, length: usize) {
        self.shape.faults.push(Fault { kind, span: Span { start, end: start + length } });
    }

    /// A fault after which nothing more can be told.
    fn fatal(&mut self, kind: FaultKind, start: usize, length: usize) -> bool {
        self.fault(kind, start, length);
        false
    }

    fn finish_early(mut self) -> Shape {
        self.node_start = None;
        self.finish()
    }

    fn finish(mut self) -> Shape {
        if let (Some(_), Some(&opened)) = (self.node_start, self.open_blocks.last()) {
            self.fault(FaultKind::OpenBlock, opened, 1);
        }
        self.end_node();
        let mut shape = self.shape;
        shape.text = String::from_utf8(self.blanked).unwrap_or_default();
        let too_many: Vec<_> = shape
            .nodes
            .extract_if(.., |node| marks(&shape.text[node.clone()]) > MAX_NESTING_MARKS)
            .collect();
        shape.faults.extend(too_many.into_iter().map(|node| Fault {
            kind: FaultKind::TooMany,
            span: Span { start: node.start, end: node.start + 1 },
        }));
        shape
    }
}

/// How many times at most the parser would call itself for this text, even if it
/// loses its way inside a string.
pub(super) fn marks(text: &str) -> usize {
    let braces = text.bytes().filter(|&byte| byte == b'{').count();
    let slashdashes = text.matches("/-").count();
    let comments = if text.contains("/*") {
        text.bytes().filter(|&byte| matches!(byte, b'*' | b'/')).count()
    } else {
        0
    };
    braces + slashdashes + comments
}

fn is_newline(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The length of what comes before the end of the line.
fn line_length(text: &str) -> usize {
    text.find(is_newline).unwrap_or(text.len())
}

/// The length of a quoted string; one that is not closed ends with its line.
fn string_length(text: &str) -> usize {
    let closing = if text.starts_with("\"\"\"") { "\"\"\"" } else { "\"" };
    let mut at = closing.len();
    while let Some(character) = text[at..].chars().next() {
        if text[at..].starts_with(closing) {
            return at + closing.len();
        }
        if character == '\\' {
            at += escape_length(&text[at..]);
        } else if closing.len() == 1 && is_newline(character) {
            return at;
        } else {
            at += character.len_utf8();
        }
    }
    text.len()
}

/// The length of an escape: a `\` takes all whitespace after it, or one character.
fn escape_length(text: &str) -> usize {
    let after = &text[1..];
    let spaces = after.len() - after.trim_start().len();
    if spaces > 0 { 1 + spaces } else { 1 + after.chars().next().map_or(0, char::len_utf8) }
}

/// The length of a raw string or of the start of a keyword such as `#true`.
fn hash_length(text: &str) -> usize {
    let hashes = text.bytes().take_while(|&byte| byte == b'#').count();
    let body = &text[hashes..];
    if !body.starts_with('"') {
        return hashes;
    }
    let quotes = if body.starts_with("\"\"\"") { 3 } else { 1 };
    let closing = format!("{}{}", &body[..quotes], &text[..hashes]);
    let inside = &body[quotes..];
    let limit = if quotes == 1 { line_length(inside) } else { inside.len() };
    inside[..limit]
        .find(&closing)
        .map_or(hashes + quotes + limit, |end| hashes + quotes + end + closing.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str) -> Vec<String> {
        let shape = shape_of(text);
        assert_eq!(shape.text.len(), text.len());
        shape.nodes.iter().map(|node| shape.text[node.clone()].trim_end().to_owned()).collect()
    }

    fn faults(text: &str) -> Vec<(FaultKind, usize)> {
        shape_of(text).faults.iter().map(|fault| (fault.kind, fault.span.start)).collect()
    }

    #[test]
    fn a_text_is_cut_at_newlines_and_semicolons_outside_of_blocks() {
        assert_eq!(nodes("a 1\nb 2; c 3\r\nd {\n e\n}\n"), ["a 1", "b 2", "c 3", "d {\n e\n}"]);
    }

    #[test]
    fn what_strings_hold_ends_nothing() {
        let cases = [
            r#"a "x;}{\" y" b"#,
            "a #\"x\" ; \"#",
            "a \"\"\"\n  x;\n  } \"\n  \"\"\"",
            "a ##\"\"\"\n  \"# ; }\n  \"\"\"##",
            "a \"x \\\n  y\"",
            "a \\ // goes on\n b",
            "/-\n\n a { b }",
        ];
        for case in cases {
            assert_eq!(nodes(case).len(), 1, "{case}");
            assert_eq!(faults(case), [], "{case}");
        }
    }

    #[test]
    fn comments_become_spaces() {
        assert_eq!(nodes("/* é /* b */ { */ a // c {\n// d\nb"), ["a", "b"]);
    }

    #[test]
    fn faults_of_shape_are_found_where_they_are() {
        let table: &[(&str, FaultKind, usize)] = &[
            ("a }\nb", FaultKind::StrayBrace, 2),
            ("a { b {", FaultKind::OpenBlock, 6),
            ("a /* /* */", FaultKind::OpenComment, 2),
            ("/- /- a", FaultKind::RepeatedSlashdash, 3),
        ];
        for (text, kind, start) in table {
            assert_eq!(faults(text), [(*kind, *start)], "{text}");
        }
        assert_eq!(faults(&"a{".repeat(17)), [(FaultKind::TooDeep, 33)]);
        let many = format!("a \"{}\"", "{".repeat(600));
        assert_eq!(faults(&many), [(FaultKind::TooMany, 0)]);
    }
}
