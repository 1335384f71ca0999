//! The nodes of a KDL file as written, with spans.
//!
//! This module knows KDL; `json.rs` knows JSON. `mistakes.rs` and `foreign.rs` recognise what users
//! write who know another language better. `check` decides what nodes mean. An unreadable node is
//! reported and marked as broken, and the rest of the file is read.

mod foreign;
pub(crate) mod json;
mod lex;
pub(crate) mod mistakes;
mod shape;

use std::ops::Range;
use std::sync::Arc;

use kdl::{KdlEntry, KdlError, KdlNode, KdlValue};

use self::mistakes::{Line, Mistake, MistakeKind};
use self::shape::{Fault, FaultKind, MAX_DEPTH, MAX_NESTING_MARKS, NodeShape, Shape, shape_of};
use crate::report::{Problem, ProblemKind, quote};
use crate::source::{SourceFile, SourceSpan, Span};

/// Maximum number of syntax problems that are reported per text.
const MAX_SYNTAX_PROBLEMS: usize = 20;
/// Maximum number of lines that are reported as unreadable without a specific reason.
const MAX_UNREADABLE: usize = 3;
/// Maximum number of lines that are attributed to a block whose `{` is missing.
const MAX_BLOCK_LINES: usize = 100;
/// Maximum number of nodes in a block.
const MAX_NODES: usize = 5000;
/// Maximum number of nesting marks with which a node is parsed on the caller's stack.
const SHALLOW_MARKS: usize = 16;
/// The stack size for deep nodes: twice what [`MAX_NESTING_MARKS`] parser calls need in a debug
/// build.
const DEEP_STACK: usize = 64 * 1024 * 1024;

/// A node: a name, arguments, properties, children.
#[derive(Debug)]
pub(crate) struct RawNode {
    pub(crate) name: String,
    pub(crate) name_span: Span,
    /// The `(type)` before the name.
    pub(crate) annotation: Option<Span>,
    pub(crate) args: Vec<RawValue>,
    pub(crate) props: Vec<RawProp>,
    pub(crate) children: Option<Vec<RawNode>>,
    /// True if its text has an error that was reported, so that no other problem of it is reported.
    /// Without a name, it may have been any field.
    pub(crate) is_broken: bool,
}

impl RawNode {
    fn broken((name, name_span): (String, Span)) -> Self {
        let (args, props) = (Vec::new(), Vec::new());
        Self { name, name_span, annotation: None, args, props, children: None, is_broken: true }
    }

    /// Creates a broken node for text that may have been any field.
    fn unknown(span: Span) -> Self {
        Self::broken((String::new(), span))
    }

    /// Returns true if the node or one of its descendants is broken.
    pub(crate) fn has_broken_part(&self) -> bool {
        self.is_broken || self.children.iter().flatten().any(Self::has_broken_part)
    }
}

/// A property, `name=value`.
#[derive(Debug)]
pub(crate) struct RawProp {
    pub(crate) name: String,
    pub(crate) span: Span,
}

/// An argument.
#[derive(Debug)]
pub(crate) struct RawValue {
    pub(crate) value: Value,
    pub(crate) span: Span,
    /// The `(type)` before the value.
    pub(crate) annotation: Option<Span>,
}

/// The value of an argument.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Whole(i128),
    Fraction(f64),
    Flag(bool),
    Null,
}

/// The nodes of a file, and its syntax problems.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) nodes: Vec<RawNode>,
    pub(crate) problems: Vec<Problem>,
}

/// Parses the nodes of a file.
pub(crate) fn parse(file: &Arc<SourceFile>) -> Parsed {
    let mut shape = shape_of(&file.text);
    let lost = take_lost_braces(&mut shape);
    let mut parser = Parser { file, text: &shape.text, problems: Vec::new(), unreadable: 0 };
    for fault in shape.faults.iter().take(MAX_SYNTAX_PROBLEMS) {
        parser.problems.push(explain(file, fault));
    }
    let mut nodes: Vec<RawNode> = lost.iter().map(|block| parser.without_brace(block)).collect();
    nodes.extend(parser.file_nodes(&shape.nodes));
    if shape.is_cut_off || parser.problems.len() >= MAX_SYNTAX_PROBLEMS {
        nodes.push(RawNode::unknown(Span { start: file.text.len(), end: file.text.len() }));
    }
    Parsed { nodes, problems: parser.problems }
}

/// A block without its `{`.
struct LostBrace {
    name: Range<usize>,
    close: usize,
}

/// Removes blocks that lack only their `{`: a name alone, more deeply indented lines below it, and
/// a `}` without a partner.
fn take_lost_braces(shape: &mut Shape) -> Vec<LostBrace> {
    let mut lost = Vec::new();
    let mut checked = 0;
    let Shape { text, nodes, faults, .. } = shape;
    faults.retain(|fault| {
        checked += 1;
        if checked > MAX_SYNTAX_PROBLEMS {
            return true; // It is not reported anyway.
        }
        let close = fault.span.start;
        let end = nodes.partition_point(|node| node.range.start < close);
        let indent = |node: &NodeShape| shape::indent(text, node.range.start);
        let inside = |node: &&NodeShape| indent(node) > shape::indent(text, close);
        let count = nodes[..end].iter().rev().take(MAX_BLOCK_LINES).take_while(inside).count();
        let name = nodes[..end - count].last().filter(|node| {
            let is_name = !text[node.range.clone()].contains(char::is_whitespace);
            is_name && node.block.is_none() && indent(node) == shape::indent(text, close)
        });
        let is_lost = fault.kind == FaultKind::StrayBrace && count > 0;
        let Some(name) = name.filter(|_| is_lost).map(|node| node.range.clone()) else {
            return true;
        };
        nodes.drain(end - count - 1..end);
        lost.push(LostBrace { name, close });
        false
    });
    lost
}

struct Parser<'a> {
    file: &'a Arc<SourceFile>,
    /// The text of the file, comments blanked out.
    text: &'a str,
    problems: Vec<Problem>,
    /// The number of problems that only say that a line cannot be read.
    unreadable: usize,
}

impl Parser<'_> {
    /// Returns the nodes of the whole file, which may be in another language.
    fn file_nodes(&mut self, shapes: &[NodeShape]) -> Vec<RawNode> {
        let Some((language, span)) = foreign::language(self.text, shapes) else {
            return self.nodes(shapes, 0);
        };
        let message = format!("this is {}, and xy reads KDL", language.name());
        let advice = foreign::advice_for_lines(self.text, shapes);
        self.report(span, message, advice);
        vec![RawNode::unknown(span)]
    }

    fn nodes(&mut self, shapes: &[NodeShape], offset: usize) -> Vec<RawNode> {
        let mut nodes: Vec<RawNode> = Vec::new();
        if let Some(next) = shapes.get(MAX_NODES) {
            let start = next.range.start + offset;
            let span = Span { start, end: start + 1 };
            let message = format!("there are more than {MAX_NODES} fields");
            self.report(span, message, "is this the right file?");
            nodes.push(RawNode::unknown(span));
        }
        for shape in shapes.iter().take(MAX_NODES) {
            if self.problems.len() >= MAX_SYNTAX_PROBLEMS {
                break;
            }
            let shape = shape.moved(offset);
            match nodes.last_mut() {
                _ if !shape.is_object => nodes.extend(self.node(&shape)),
                Some(last) if last.children.is_none() && !self.is_json(&shape) => {
                    self.brace_in_own_line(&shape, last);
                }
                _ => nodes.push(self.object(&shape)),
            }
        }
        nodes
    }

    /// Returns true if an object begins like JSON: with a quoted text and a `:`.
    fn is_json(&self, shape: &NodeShape) -> bool {
        let inside = self.text[shape.range.clone()].trim_start_matches('{').trim_start();
        inside.starts_with('"') && {
            let length = shape::string_length(inside);
            inside[length..].trim_start().starts_with(':')
        }
    }

    fn without_brace(&mut self, block: &LostBrace) -> RawNode {
        let span = Span { start: block.name.start, end: block.name.end };
        let name = self.text[block.name.clone()].to_owned();
        let line = SourceSpan::new(self.file, Span { start: block.close, end: block.close }).line();
        let message = format!("{} has no `{{` for the `}}` in line {line}", quote(&name));
        self.report(span, message, format!("write {}", quote(&format!("{name} {{"))));
        RawNode::broken((name, span))
    }

    fn object(&mut self, shape: &NodeShape) -> RawNode {
        let span = Span { start: shape.range.start, end: shape.range.end };
        let (message, advice) = if self.is_json(shape) {
            let advice = foreign::advice_for_json(&self.file.text[shape.range.clone()]);
            ("this is JSON, and xy reads KDL", advice)
        } else {
            let advice = "write the name of the block before it, for example `env {`".to_owned();
            ("this block has no name", advice)
        };
        let first_line = Span { start: span.start, end: span.start + 1 };
        self.report(first_line, message, advice);
        RawNode::unknown(span)
    }

    fn brace_in_own_line(&mut self, shape: &NodeShape, last: &mut RawNode) {
        let span = Span { start: shape.range.start, end: shape.range.start + 1 };
        let message = format!("this `{{` must be on the line of {}", quote(&last.name));
        self.report(span, message, format!("write {}", quote(&format!("{} {{", last.name))));
        last.is_broken = true;
    }

    /// Reads one node; `None` if it is commented out.
    fn node(&mut self, shape: &NodeShape) -> Option<RawNode> {
        let NodeShape { range, block, has_slashdash, hash_comment, .. } = shape;
        if *has_slashdash {
            return self.leaf(range);
        }
        let node_end = hash_comment.unwrap_or(range.end);
        let end = block.map_or(node_end, |(open, _)| open.min(node_end));
        if let Some(hash) = *hash_comment {
            let span = Span { start: hash, end: range.end };
            let rest = self.file.shown_text(span);
            let rest = rest.trim_start_matches('#').trim().chars().take(40).collect::<String>();
            self.report(
                span,
                "a comment begins with `//`, not with `#`",
                format!("write `// {rest}`"),
            );
        }
        let header = range.start..end;
        let text = self.text;
        if text[header.clone()].trim().is_empty() {
            return None;
        }
        let tokens = lex::tokens(&text[header.clone()]);
        let line = Line {
            file: self.file,
            start: header.start,
            text: &text[header.clone()],
            tokens: &tokens,
            has_block: block.is_some(),
        };
        let mistake = line.mistake();
        let name = line.name();
        if let Some(mistake) = mistake {
            return Some(self.broken(mistake, name, *block, node_end));
        }
        let Some((open, close)) = *block else { return self.leaf(&header) };
        let mut node = self.leaf(&header)?;
        node.children = Some(self.children(open, close.unwrap_or(node_end)));
        self.tail(close.map_or(node_end, |close| close + 1)..node_end);
        Some(node)
    }

    fn children(&mut self, open: usize, close: usize) -> Vec<RawNode> {
        let inside = open + 1..close.max(open + 1);
        // Problems of the shape were reported with those of the whole text.
        let shape = shape_of(&self.text[inside.clone()]);
        let nodes = self.nodes(&shape.nodes, inside.start);
        if !shape.faults.is_empty() && self.problems.is_empty() {
            let span = Span { start: open, end: open + 1 };
            self.report(span, "xy cannot read this block", "check for a missing or extra brace");
        }
        nodes
    }

    /// Reports a mistake in the line of a node's name. If the line is in another language, so is
    /// its block, which is then skipped.
    fn broken(
        &mut self,
        mistake: Mistake,
        name: Option<(String, Span)>,
        block: Option<(usize, Option<usize>)>,
        end: usize,
    ) -> RawNode {
        let is_foreign = mistake.kind == MistakeKind::Foreign;
        let Mistake { message, span, suggestion, .. } = mistake;
        self.report(span, message, suggestion);
        let mut node = name.map_or_else(|| RawNode::unknown(span), RawNode::broken);
        if let Some((open, close)) = block.filter(|_| !is_foreign) {
            node.children = Some(self.children(open, close.unwrap_or(end)));
        }
        node
    }

    /// Reports text after a block.
    fn tail(&mut self, range: Range<usize>) {
        let text = self.text[range.clone()].trim_start();
        let start = range.end - text.len();
        let text = text.trim_end();
        if text.is_empty() {
            return;
        }
        let span = Span { start, end: start + text.len() };
        if text == "," {
            self.report(span, "no comma follows a block", "remove it");
        } else {
            self.report(span, "this cannot follow a `}`", "begin a new line before it");
        }
    }

    /// Parses a node without checking its parts.
    fn leaf(&mut self, range: &Range<usize>) -> Option<RawNode> {
        match parse_node(&self.text[range.clone()]) {
            Ok(node) => node.map(|node| raw_node(&node, range.start)),
            Err(error) => {
                let span = error.diagnostics.first().map(|it| {
                    let start = range.start + it.span.offset();
                    Span { start, end: start + it.span.len() }
                });
                let whole = Span { start: range.start, end: range.end };
                let span = span.filter(|it| it.start < it.end && it.end <= range.end);
                if self.unreadable < MAX_UNREADABLE {
                    self.unreadable += 1;
                    let (message, advice) = if self.text[range.clone()].contains("\"\"\"") {
                        let advice = "start the text on the line after `\"\"\"`, and indent each line \
                                      like the closing `\"\"\"`";
                        ("xy cannot read this multi-line text", advice)
                    } else {
                        let advice = "a field is a name and its values: `args \"-y\" \"x\"`";
                        ("xy cannot read this", advice)
                    };
                    self.report(span.unwrap_or(whole), message, advice);
                }
                let tokens = lex::tokens(&self.text[range.clone()]);
                let text = &self.text[range.clone()];
                let (file, start) = (self.file, range.start);
                let line = Line { file, start, text, tokens: &tokens, has_block: false };
                let name = line.name();
                Some(name.map_or_else(|| RawNode::unknown(whole), RawNode::broken))
            }
        }
    }

    fn report(&mut self, span: Span, message: impl Into<String>, suggestion: impl Into<String>) {
        if self.problems.len() < MAX_SYNTAX_PROBLEMS {
            let problem = Problem::error(&SourceSpan::new(self.file, span), message)
                .kind(ProblemKind::Syntax);
            self.problems.push(problem.suggest(suggestion));
        }
    }
}

/// Parses one node; `None` if it is commented out.
fn parse_node(text: &str) -> Result<Option<KdlNode>, KdlError> {
    if shape::marks(text) <= SHALLOW_MARKS {
        parse_on_this_stack(text)
    } else {
        parse_on_deep_stack(text, parse_on_this_stack)
    }
}

fn parse_on_this_stack(text: &str) -> Result<Option<KdlNode>, KdlError> {
    match text.strip_prefix("/-") {
        // A replacement of the same length keeps the spans valid.
        Some(rest) => KdlNode::parse(&format!("  {rest}")).map(|_| None),
        None => KdlNode::parse(text).map(Some),
    }
}

fn parse_on_deep_stack<T: Send>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, KdlError> + Send,
) -> Result<T, KdlError> {
    let no_thread = || KdlError { input: Arc::default(), diagnostics: Vec::new() };
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(DEEP_STACK);
        let parser = builder.spawn_scoped(scope, move || parse(text)).map_err(|_| no_thread())?;
        parser.join().unwrap_or_else(|_| Err(no_thread()))
    })
}

fn raw_node(node: &KdlNode, offset: usize) -> RawNode {
    let (props, args): (Vec<_>, Vec<_>) =
        node.entries().iter().partition(|entry| entry.name().is_some());
    RawNode {
        name: node.name().value().to_owned(),
        name_span: moved((node.name().span().offset(), node.name().span().len()), offset),
        annotation: node.ty().map(|ty| moved((ty.span().offset(), ty.span().len()), offset)),
        args: args.into_iter().map(|entry| raw_value(entry, offset)).collect(),
        props: props.into_iter().filter_map(|entry| raw_prop(entry, offset)).collect(),
        children: node
            .children()
            .map(|block| block.nodes().iter().map(|node| raw_node(node, offset)).collect()),
        is_broken: false,
    }
}

fn raw_value(entry: &KdlEntry, offset: usize) -> RawValue {
    let value = match entry.value() {
        KdlValue::String(text) => Value::Text(text.clone()),
        KdlValue::Integer(number) => Value::Whole(*number),
        KdlValue::Float(number) => Value::Fraction(*number),
        KdlValue::Bool(flag) => Value::Flag(*flag),
        KdlValue::Null => Value::Null,
    };
    let annotation = entry.ty().map(|ty| moved((ty.span().offset(), ty.span().len()), offset));
    RawValue { value, span: moved((entry.span().offset(), entry.span().len()), offset), annotation }
}

fn raw_prop(entry: &KdlEntry, offset: usize) -> Option<RawProp> {
    let name = entry.name()?.value().to_owned();
    Some(RawProp { name, span: moved((entry.span().offset(), entry.span().len()), offset) })
}

/// Converts a span of one node, as offset and length, to a span of the whole text.
fn moved(span: (usize, usize), offset: usize) -> Span {
    let (start, length) = (span.0 + offset, span.1);
    Span { start, end: start + length }
}

fn explain(file: &Arc<SourceFile>, fault: &Fault) -> Problem {
    let at = SourceSpan::new(file, fault.span);
    let problem = |message: String| Problem::error(&at, message).kind(ProblemKind::Syntax);
    match fault.kind {
        FaultKind::StrayBrace => problem("this `}` has no matching `{`".to_owned())
            .suggest("remove it, or write the `{` it belongs to"),
        FaultKind::OpenBlock => {
            let advice = match fault.ends_before {
                Some(start) => {
                    let line = SourceSpan::new(file, Span { start, end: start }).line();
                    format!("add a `}}` before line {line}")
                }
                None => "add a `}` where it ends".to_owned(),
            };
            problem("this `{` is never closed".to_owned()).suggest(advice)
        }
        FaultKind::OpenComment => {
            problem("this comment is never closed".to_owned()).suggest("add a `*/` where it ends")
        }
        FaultKind::TooDeep => problem(format!("blocks are nested more than {MAX_DEPTH} deep")),
        FaultKind::TooMany => {
            problem(format!("there are more than {MAX_NESTING_MARKS} braces in this one node"))
                .suggest("keep long values in a file of their own and pass its path")
        }
        FaultKind::RepeatedSlashdash => problem("a `/-` cannot follow a `/-`".to_owned())
            .suggest("remove one: the first already comments out what follows"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kdl::KdlDocument;
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Vec<RawNode>, Vec<Problem>> {
        let parsed = parse(&SourceFile::new(Path::new("/c/servers/a.kdl"), "servers/a.kdl", text));
        if parsed.problems.is_empty() { Ok(parsed.nodes) } else { Err(parsed.problems) }
    }

    fn reports(text: &str) -> String {
        let problems = read(text).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn nodes_have_values_and_spans() {
        let text = "\u{feff}/* c */ a \"é\" 0x10 // d\n(t)b (u8)1 k=#true { c #null; d 1.5 }\n";
        let nodes = read(text).unwrap();
        let slice = |span: Span| &text[span.start..span.end];
        assert_eq!(nodes.len(), 2);
        assert_eq!(slice(nodes[0].name_span), "a");
        assert_eq!(nodes[0].args[0].value, Value::Text("é".to_owned()));
        assert_eq!(slice(nodes[0].args[0].span), "\"é\"");
        assert_eq!(nodes[0].args[1].value, Value::Whole(16));
        assert_eq!(slice(nodes[1].annotation.unwrap()), "t");
        assert_eq!(slice(nodes[1].args[0].annotation.unwrap()), "u8");
        assert_eq!(slice(nodes[1].props[0].span), "k=#true");
        let children = nodes[1].children.as_ref().unwrap();
        assert_eq!(children[0].args[0].value, Value::Null);
        assert_eq!(slice(children[1].args[0].span), "1.5");
    }

    #[test]
    fn all_syntax_problems_are_reported() {
        insta::assert_snapshot!(reports(
            "command \"x\nport true\nargs 1.\nenv {\n  A \"\\q\"\n}\n}\nstop = 1\n/* open"
        ));
    }

    #[test]
    fn unclosed_block_is_reported_once() {
        insta::assert_snapshot!(reports("a 1\nenv {\n  A 1\nport 2\n"));
    }

    #[test]
    fn commented_out_nodes_are_skipped() {
        let nodes = read("/- a 1\nb /- 1 2 /-{ c }\n/-\nd {\n e\n}").unwrap();
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes[0].args.len(), 1);
    }

    #[test]
    fn hostile_texts_use_little_stack_and_time() {
        for (part, count) in [
            ("a{", 20_000),
            ("}", 20_000),
            ("=", 20_000),
            ("/*", 20_000),
            ("/- ", 20_000),
            ("/-a{", 20_000),
            ("\"\\q{", 20_000),
            ("\"\\q /*", 20_000),
            ("a \\\n", 20_000),
            ("a \"\"\"{", 10_000),
            ("(", 10_000),
        ] {
            let _ = read(&part.repeat(count));
        }
        assert!(read(&format!("/{}/ a", "*".repeat(500_000))).is_ok());
        assert!(read(&format!("a \"\\q{}\"", "{".repeat(510))).is_err());
    }

    /// Generates fragments of KDL that matter to the scanner or the parser.
    fn kdl_fragments() -> impl Strategy<Value = String> {
        let bit = prop::sample::select(vec![
            "a", "b 1", " ", "\n", ";", "{", "}", "\"", "\"x\"", "\"\"\"", "\\", "\\\"", "#",
            "#true", "//", "/*", "*/", "/-", "=", "(", ")", "k=1", "é", "\r\n", "\u{2028}", "#\"",
            "\"#", "{ b }",
        ]);
        prop::collection::vec(bit, 0..24).prop_map(|kdl_fragments| kdl_fragments.concat())
    }

    /// Generates fragments of other languages.
    fn foreign_fragments() -> impl Strategy<Value = String> {
        let bit = prop::sample::select(vec![
            "a", "\"x\"", " ", "\n", "{", "}", "[", "]", ":", ",", "'", "“", "=", "# x", "#", "\"",
            "//", "://", "  b 1\n", "- c",
        ]);
        prop::collection::vec(bit, 0..24).prop_map(|kdl_fragments| kdl_fragments.concat())
    }

    proptest! {
        #[test]
        fn accepted_text_is_valid_kdl(text in foreign_fragments()) {
            if read(&text).is_ok() {
                prop_assert!(KdlDocument::parse_v2(&text).is_ok());
            }
        }

        #[test]
        fn valid_kdl_is_accepted_in_parts(text in kdl_fragments()) {
            // The KDL parser accepts a commented-out node after a block; xy does not.
            prop_assume!(!text.contains('}') || !text.contains("/-"));
            if let Ok(whole) = KdlDocument::parse_v2(&text) {
                let names: Vec<_> = whole.nodes().iter().map(|node| node.name().value().to_owned()).collect();
                let parts = read(&text).map_err(|problems| TestCaseError::fail(problems[0].to_string()))?;
                let parts: Vec<_> = parts.into_iter().map(|node| node.name).collect();
                prop_assert_eq!(parts, names);
            }
        }

        #[test]
        fn text_accepted_in_parts_is_valid_kdl(text in kdl_fragments()) {
            let text = text.replace(';', " "); // A `;` without a node is accepted.
            // So is a second `\` after one that continues the line.
            prop_assume!(text.matches('\\').count() < 2);
            if read(&text).is_ok() {
                prop_assert!(KdlDocument::parse_v2(&text).is_ok());
            }
        }
    }
}
