//! Splits a text into its top-level nodes before the parser sees it.
//!
//! The parser recurses for every `{`, for every star in a comment and for every stray character, so
//! a hostile text could exhaust the stack, and so could a long banner of stars. Such texts
//! are refused here, comments are blanked out, and the rest is cut into its top-level nodes, which
//! are parsed one by one. `mistakes.rs` and the parser decide whether a node is valid KDL.
//!
//! Lists in brackets, objects in braces and `#` comments are not KDL. Each is kept together, so
//! that it is reported as one mistake.

use std::ops::Range;

use crate::source::Span;

/// Maximum nesting depth of blocks; xy's own fields need 3.
pub(crate) const MAX_DEPTH: usize = 16;
/// Maximum number of nesting marks such as `{` per node, including those inside strings.
pub(super) const MAX_NESTING_MARKS: usize = 512;

/// Maximum length of a multi-line list.
const MAX_LIST: usize = 64 * 1024;

/// A text, split into its top-level nodes.
#[derive(Debug, Default)]
pub(super) struct Shape {
    /// The text, with comments replaced by spaces; as long as the original.
    pub(super) text: String,
    /// The top-level nodes.
    pub(super) nodes: Vec<NodeShape>,
    /// The faults in the shape.
    pub(super) faults: Vec<Fault>,
    /// True if a fault hides the rest of the text.
    pub(super) is_cut_off: bool,
}

/// The range of a node and of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeShape {
    /// The whole node.
    pub(super) range: Range<usize>,
    /// The offsets of its `{` and `}`, which may be missing.
    pub(super) block: Option<(usize, Option<usize>)>,
    /// True if a part of it is commented out by `/-`.
    pub(super) has_slashdash: bool,
    /// True if it is a `{…}` without a name.
    pub(super) is_object: bool,
    /// The offset of a `#` that was meant to begin a comment.
    pub(super) hash_comment: Option<usize>,
}

impl NodeShape {
    fn at(start: usize) -> Self {
        let range = start..start;
        Self { range, block: None, has_slashdash: false, is_object: false, hash_comment: None }
    }

    /// Returns the node moved by `offset`, the start of this text in a larger one.
    pub(super) fn moved(&self, offset: usize) -> Self {
        Self {
            range: self.range.start + offset..self.range.end + offset,
            block: self.block.map(|(open, close)| (open + offset, close.map(|it| it + offset))),
            hash_comment: self.hash_comment.map(|it| it + offset),
            ..*self
        }
    }
}

/// A fault in the shape of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    pub(super) span: Span,
    /// The start of the line before which a block seems to end.
    pub(super) ends_before: Option<usize>,
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultKind {
    StrayBrace,
    OpenBlock,
    OpenComment,
    TooDeep,
    TooMany,
    RepeatedSlashdash,
}

/// Splits a text into its top-level nodes. If a `}` is missing, a less indented line ends the
/// block.
pub(super) fn shape_of(text: &str) -> Shape {
    let by_braces = scan(text, false);
    let is_open = by_braces.faults.iter().any(|fault| fault.kind == FaultKind::OpenBlock);
    if is_open { scan(text, true) } else { by_braces }
}

fn scan(text: &str, by_indentation: bool) -> Shape {
    let mut scanner = Scanner::new(text, by_indentation);
    while !scanner.rest().is_empty() {
        if !scanner.step() {
            return scanner.finish_early();
        }
    }
    scanner.finish()
}

/// A block that is still open.
#[derive(Debug, Clone, Copy)]
struct OpenBlock {
    at: usize,
    /// The indentation of the line in which it begins.
    indent: usize,
}

struct Scanner<'a> {
    text: &'a str,
    blanked: Vec<u8>,
    position: usize,
    /// The current node, once it has begun.
    node: Option<NodeShape>,
    open_blocks: Vec<OpenBlock>,
    by_indentation: bool,
    /// The start of the current line.
    line_start: usize,
    /// The indentation of the current line, once its first token was seen.
    indent: Option<usize>,
    /// True if a `[` without its `]` was found: no other is searched for.
    has_open_list: bool,
    /// The offset of a `/-` that waits for the part it comments out.
    slashdash: Option<usize>,
    /// The offset of a `\` that makes the next newline insignificant.
    line_continues: Option<usize>,
    shape: Shape,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str, by_indentation: bool) -> Self {
        let position = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        Self {
            text,
            blanked: text.as_bytes().to_vec(),
            position,
            node: None,
            open_blocks: Vec::new(),
            by_indentation,
            line_start: position,
            indent: None,
            has_open_list: false,
            slashdash: None,
            line_continues: None,
            shape: Shape::default(),
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    /// Reads one token. Returns false if a fault ends the scan.
    fn step(&mut self) -> bool {
        let rest = self.rest();
        match rest.as_bytes()[0] {
            b'/' if rest.starts_with("//") && !self.is_in_url() => self.blank(line_length(rest)),
            b'/' if rest.starts_with("/*") => return self.block_comment(),
            b'/' if rest.starts_with("/-") => return self.slashdash(),
            b'"' => self.string(),
            b'#' if self.is_hash_comment() => self.hash_comment(),
            b'#' => self.content(hash_length(rest)),
            b'[' => self.list(),
            b'{' if self.begins_object() => self.object(),
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

    /// Reads any other character: a newline, a space, or part of a word.
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
            self.line_start = self.position;
            self.indent = None;
        } else if character.is_whitespace() {
            self.position += length;
        } else {
            self.content(length);
        }
    }

    /// Adds the next `length` bytes to the current node.
    fn content(&mut self, length: usize) {
        self.line_begins(false);
        // A `\` without a newline is an error, which the parser reports.
        let start = self.line_continues.take().unwrap_or(self.position);
        self.slashdash = None;
        self.position += length;
        let node = self.node.get_or_insert_with(|| NodeShape::at(start));
        node.range.end = self.position;
    }

    /// Reads a quoted text. An unclosed one does not include the `}` of its line.
    fn string(&mut self) {
        let rest = self.rest();
        let length = string_length(rest);
        let inside = &rest[1..length.max(1)];
        let is_open = length == 1 || !inside.ends_with('"');
        let has_block = self.open_blocks.last().is_some_and(|it| it.at >= self.line_start);
        match inside.trim_end().strip_suffix('}') {
            Some(before) if is_open && has_block => self.content(1 + before.trim_end().len()),
            _ => self.content(length),
        }
    }

    /// Returns true if the next `//` is part of an unquoted URL.
    fn is_in_url(&self) -> bool {
        let is_word = self.node.as_ref().is_some_and(|node| node.range.end == self.position);
        is_word && self.text[..self.position].ends_with(':')
    }

    /// Returns true if the next `#` is meant to begin a comment. No node begins with a keyword.
    fn is_hash_comment(&self) -> bool {
        let after = self.rest().trim_start_matches('#');
        let is_first = self.node.is_none() && self.slashdash.is_none();
        let follows_space = self.text[..self.position].ends_with(char::is_whitespace);
        !after.starts_with('"')
            && ((is_first && self.open_blocks.is_empty())
                || (follows_space && (after.is_empty() || after.starts_with(char::is_whitespace))))
    }

    fn hash_comment(&mut self) {
        let here = self.position;
        self.content(line_length(self.rest()));
        // Comments inside a block are found when the block is read.
        if let Some(node) = &mut self.node
            && self.open_blocks.is_empty()
        {
            node.hash_comment.get_or_insert(here);
        }
    }

    fn list(&mut self) {
        let rest = self.rest();
        let length = if self.has_open_list { None } else { list_length(rest) };
        self.has_open_list |= length.is_none();
        self.content(length.unwrap_or(1));
    }

    fn begins_object(&self) -> bool {
        self.node.is_none() && self.slashdash.is_none() && self.line_continues.is_none()
    }

    fn object(&mut self) {
        self.content(object_length(self.rest()));
        if let Some(node) = &mut self.node {
            node.is_object = true;
        }
    }

    /// Ends blocks that are over according to the indentation of a new line. `closes` is true if
    /// the line begins with a `}`.
    fn line_begins(&mut self, closes: bool) {
        if self.indent.is_some() {
            return;
        }
        let indent = self.position - self.line_start;
        self.indent = Some(indent);
        if !self.by_indentation {
            return;
        }
        let is_over = |block: &OpenBlock| {
            if closes { block.indent > indent } else { block.indent >= indent }
        };
        while let Some(block) = self.open_blocks.pop_if(|block| is_over(block)) {
            let span = Span { start: block.at, end: block.at + 1 };
            let ends_before = Some(self.line_start);
            self.shape.faults.push(Fault { kind: FaultKind::OpenBlock, span, ends_before });
            if self.open_blocks.is_empty() {
                self.end_node();
            }
        }
    }

    /// Ends the current node with the next `length` bytes, unless a block is open.
    fn terminator(&mut self, length: usize) {
        if self.open_blocks.is_empty() {
            self.end_node();
        }
        self.slashdash = None;
        self.line_continues = None;
        self.position += length;
    }

    fn end_node(&mut self) {
        self.shape.nodes.extend(self.node.take());
    }

    fn slashdash(&mut self) -> bool {
        if self.slashdash.is_some() {
            return self.fatal(FaultKind::RepeatedSlashdash, self.position, 2);
        }
        let here = self.position;
        self.content(2);
        self.slashdash = Some(here);
        if let Some(node) = &mut self.node {
            node.has_slashdash = true;
        }
        true
    }

    fn open_block(&mut self) -> bool {
        if self.open_blocks.len() == MAX_DEPTH {
            return self.fatal(FaultKind::TooDeep, self.position, 1);
        }
        let here = self.position;
        self.content(1);
        if let Some(node) = &mut self.node
            && self.open_blocks.is_empty()
        {
            node.block.get_or_insert((here, None));
        }
        self.open_blocks.push(OpenBlock { at: here, indent: self.indent.unwrap_or_default() });
        true
    }

    fn close_block(&mut self) {
        self.slashdash = None;
        self.line_begins(true);
        if self.open_blocks.pop().is_none() {
            self.fault(FaultKind::StrayBrace, self.position, 1);
            self.terminator(1);
            return;
        }
        let here = self.position;
        self.content(1);
        if let Some(NodeShape { block: Some((_, close)), .. }) = &mut self.node
            && self.open_blocks.is_empty()
        {
            close.get_or_insert(here);
        }
    }

    /// Skips a block comment, which may nest.
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

    /// Replaces the next `length` bytes with spaces.
    fn blank(&mut self, length: usize) {
        self.blanked[self.position..self.position + length].fill(b' ');
        self.position += length;
    }

    fn fault(&mut self, kind: FaultKind, start: usize, length: usize) {
        let span = Span { start, end: start + length };
        self.shape.faults.push(Fault { kind, span, ends_before: None });
    }

    /// Adds a fault that ends the scan.
    fn fatal(&mut self, kind: FaultKind, start: usize, length: usize) -> bool {
        self.fault(kind, start, length);
        self.shape.is_cut_off = true;
        false
    }

    fn finish_early(mut self) -> Shape {
        self.node = None;
        self.finish()
    }

    fn finish(mut self) -> Shape {
        if let (Some(_), Some(&opened)) = (&self.node, self.open_blocks.last()) {
            self.fault(FaultKind::OpenBlock, opened.at, 1);
        }
        self.end_node();
        let mut shape = self.shape;
        shape.text = String::from_utf8(self.blanked).unwrap_or_default();
        let too_many: Vec<_> = shape
            .nodes
            .extract_if(.., |node| {
                !node.is_object && marks(&shape.text[node.range.clone()]) > MAX_NESTING_MARKS
            })
            .collect();
        shape.is_cut_off |= !too_many.is_empty();
        shape.faults.extend(too_many.into_iter().map(|node| Fault {
            kind: FaultKind::TooMany,
            span: Span { start: node.range.start, end: node.range.start + 1 },
            ends_before: None,
        }));
        shape
    }
}

/// Returns the maximum number of recursive parser calls for this text, even if the parser misreads
/// a string.
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

/// Returns the number of spaces and tabs directly before an offset.
pub(super) fn indent(text: &str, at: usize) -> usize {
    text[..at].chars().rev().take_while(|it| matches!(it, ' ' | '\t')).count()
}

fn is_newline(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Returns the length of the text before the end of the line.
fn line_length(text: &str) -> usize {
    text.find(is_newline).unwrap_or(text.len())
}

/// Returns the length of a quoted string; an unclosed one ends with its line.
pub(super) fn string_length(text: &str) -> usize {
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

/// Returns the length of an escape: a `\` with all whitespace after it, or with one character.
fn escape_length(text: &str) -> usize {
    let after = &text[1..];
    let spaces = after.len() - after.trim_start().len();
    if spaces > 0 { 1 + spaces } else { 1 + after.chars().next().map_or(0, char::len_utf8) }
}

/// Returns the length of a raw string, or of the start of a keyword such as `#true`.
pub(super) fn hash_length(text: &str) -> usize {
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

/// Returns the length of a list in brackets; `None` if no `]` closes it. A line that begins with a
/// letter is the next field.
fn list_length(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    let mut is_first = false;
    while let Some(character) = text[at..].chars().next().filter(|_| at < MAX_LIST) {
        let rest = &text[at..];
        match character {
            '[' => depth += 1,
            ']' if depth == 1 => return Some(at + 1),
            ']' => depth -= 1,
            '{' | '}' => return None,
            _ if is_first && character.is_alphabetic() => return None,
            _ => {}
        }
        is_first = is_newline(character) || (is_first && character.is_whitespace());
        at += match character {
            '"' => string_length(rest),
            '/' if rest.starts_with("//") => line_length(rest),
            _ => character.len_utf8(),
        };
    }
    None
}

/// Returns the length of an object in braces; the whole text if no brace closes it.
fn object_length(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(character) = text[at..].chars().next() {
        let rest = &text[at..];
        match character {
            '{' => depth += 1,
            '}' if depth <= 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
        at += match character {
            '"' => string_length(rest),
            '/' if rest.starts_with("//") => line_length(rest),
            _ => character.len_utf8(),
        };
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str) -> Vec<String> {
        let shape = shape_of(text);
        assert_eq!(shape.text.len(), text.len());
        let text_of = |node: &NodeShape| shape.text[node.range.clone()].trim_end().to_owned();
        shape.nodes.iter().map(text_of).collect()
    }

    fn faults(text: &str) -> Vec<(FaultKind, usize)> {
        shape_of(text).faults.iter().map(|fault| (fault.kind, fault.span.start)).collect()
    }

    #[test]
    fn text_is_split_at_newlines_and_semicolons_outside_blocks() {
        assert_eq!(nodes("a 1\nb 2; c 3\r\nd {\n e\n}\n"), ["a 1", "b 2", "c 3", "d {\n e\n}"]);
    }

    #[test]
    fn string_contents_end_no_node() {
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
    fn shape_faults_have_their_offsets() {
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
