//! A file as it was written, spans kept.
//!
//! Knows KDL, and in `json.rs` JSON, but not xy: what the nodes mean is for `check` to say. A
//! text that is neither ends here, with every fault that was found in it.

pub(crate) mod json;
mod shape;

use std::sync::Arc;

use kdl::{KdlDiagnostic, KdlDocument, KdlEntry, KdlError, KdlNode, KdlValue};

use self::shape::{Fault, FaultKind, MAX_DEPTH, MAX_NESTING_MARKS, shape_of};
use crate::report::{Kind, Problem};
use crate::source::{At, SourceFile, Span};

/// At most this many faults of one text are told.
const MAX_SYNTAX_PROBLEMS: usize = 50;
/// With so few marks, a node is parsed on the stack of the caller.
const FEW_MARKS: usize = 16;
/// Enough for [`MAX_NESTING_MARKS`] calls of the parser in a debug build, twice over.
const DEEP_STACK: usize = 64 * 1024 * 1024;
/// A node up to this long is parsed once more for better words when it is broken.
const EXPLAINED_LENGTH: usize = 1024;

/// What is said of a fault that the parser has no words for.
const NOT_KDL: &str = "this is not valid KDL";

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

/// What an argument says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Whole(i128),
    Fraction(f64),
    Flag(bool),
    Null,
}

/// Reads the nodes of a file, or says why it is not KDL.
pub(crate) fn parse(file: &Arc<SourceFile>) -> Result<Vec<RawNode>, Vec<Problem>> {
    let shape = shape_of(&file.text);
    let mut problems: Vec<Problem> =
        shape.faults.iter().take(MAX_SYNTAX_PROBLEMS).map(|fault| explain(file, fault)).collect();
    let mut nodes = Vec::new();
    for range in shape.nodes {
        if problems.len() >= MAX_SYNTAX_PROBLEMS {
            break;
        }
        match parse_node(&shape.text[range.clone()]) {
            Ok(Some(node)) => nodes.push(raw_node(&node, range.start)),
            Ok(None) => {}
            Err(error) => {
                let room = MAX_SYNTAX_PROBLEMS - problems.len();
                let told = error.diagnostics.iter().filter(|it| !is_about_closing(it)).take(room);
                problems.extend(told.map(|diagnostic| translate(file, diagnostic, range.start)));
                if problems.is_empty() {
                    // The parser gave up without a word.
                    let at = At::new(file, Span { start: range.start, end: range.end });
                    problems.push(Problem::error(&at, NOT_KDL).kind(Kind::Syntax));
                }
            }
        }
    }
    if problems.is_empty() { Ok(nodes) } else { Err(problems) }
}

/// Parses one top-level node; `None` if it is commented out.
fn parse_node(text: &str) -> Result<Option<KdlNode>, KdlError> {
    let few = shape::marks(text) <= FEW_MARKS;
    let parsed = if few { parse_here(text) } else { on_deep_stack(text, parse_here) };
    let Err(error) = parsed else { return parsed };
    if text.len() > EXPLAINED_LENGTH {
        return Err(error);
    }
    // As a document the parser explains faults better, but calls itself for each.
    match on_deep_stack(text, KdlDocument::parse_v2) {
        Err(explained) if !explained.diagnostics.is_empty() => Err(explained),
        _ => Err(error),
    }
}

fn parse_here(text: &str) -> Result<Option<KdlNode>, KdlError> {
    match text.strip_prefix("/-") {
        // A stand-in of the same length, so that spans stay true.
        Some(rest) => KdlNode::parse(&format!("  {rest}")).map(|_| None),
        None => KdlNode::parse(text).map(Some),
    }
}

fn on_deep_stack<T: Send>(
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

/// A span of one node, as offset and length, as a span of the whole text.
fn moved(span: (usize, usize), offset: usize) -> Span {
    let (start, length) = (span.0 + offset, span.1);
    Span { start, end: start + length }
}

/// Braces are balanced before the parser is asked, which blames two places for one.
fn is_about_closing(diagnostic: &KdlDiagnostic) -> bool {
    diagnostic.message.as_deref().is_some_and(|message| message.contains("losing '}'"))
}

/// A fault of the parser's in our words.
fn translate(file: &Arc<SourceFile>, diagnostic: &KdlDiagnostic, offset: usize) -> Problem {
    let start = diagnostic.span.offset() + offset;
    let at = At::new(file, Span { start, end: start + diagnostic.span.len() });
    let written = file.slice(at.span).trim();
    if let "true" | "false" | "null" | "inf" | "-inf" | "nan" = written {
        return Problem::error(&at, format!("`{written}` is written with a `#`"))
            .kind(Kind::Syntax)
            .suggest(format!("did you mean `#{written}`?"));
    }
    let message = diagnostic.message.as_deref().unwrap_or(NOT_KDL);
    if let Some((message, suggestion)) = plainer(message, written) {
        return Problem::error(&at, message).kind(Kind::Syntax).suggest(suggestion);
    }
    let mut problem = Problem::error(&at, in_our_tone(message)).kind(Kind::Syntax);
    if let Some(label) = &diagnostic.label {
        problem = problem.label(in_our_tone(label));
    }
    if let Some(help) = &diagnostic.help {
        problem = problem.suggest(in_our_tone(help));
    }
    problem
}

/// Better words, with advice, for the most common faults.
fn plainer(message: &str, written: &str) -> Option<(&'static str, &'static str)> {
    let is_open = written.starts_with('"') && (written.len() == 1 || !written.ends_with('"'));
    match message {
        "Expected quoted string" if is_open => {
            Some(("this text is never closed", "add a `\"` where it ends"))
        }
        "Expected quoted string" => Some((
            "this text holds a `\\` that means nothing",
            "write `\\\\` for a `\\`, or `#\"…\"#` around text that is taken as it is",
        )),
        "Expected end of document" if written == "=" => Some((
            "this `=` has no property before it",
            "fields have no `=`, for example `port 8421`",
        )),
        "Expected end of document" => {
            Some(("this cannot stand here", "a newline or a `;` ends a field"))
        }
        _ => None,
    }
}

/// Lowercase, no final period, names in backticks.
fn in_our_tone(text: &str) -> String {
    let text = text.trim().trim_end_matches('.').replace('\'', "`");
    let mut characters = text.chars();
    match (characters.next(), characters.clone().next()) {
        // A word in capitals stays as it is.
        (Some(first), Some(second)) if !second.is_uppercase() => {
            first.to_lowercase().chain(characters).collect()
        }
        _ => text,
    }
}

fn explain(file: &Arc<SourceFile>, fault: &Fault) -> Problem {
    let at = At::new(file, fault.span);
    let problem = |message: String| Problem::error(&at, message).kind(Kind::Syntax);
    match fault.kind {
        FaultKind::StrayBrace => {
            problem("this `}` closes nothing".to_owned()).suggest("remove it, or add its `{`")
        }
        FaultKind::OpenBlock => {
            problem("this `{` is never closed".to_owned()).suggest("add a `}` where it ends")
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

    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Vec<RawNode>, Vec<Problem>> {
        parse(&SourceFile::new(Path::new("/c/servers/a.kdl"), "servers/a.kdl", text))
    }

    fn told(text: &str) -> String {
        let problems = read(text).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn nodes_keep_their_values_and_spans() {
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
    fn every_fault_of_a_text_is_told() {
        insta::assert_snapshot!(told(
            "command \"x\nport true\nargs 1.\nenv {\n  A \"\\q\"\n}\n}\nstop = 1\n/* open"
        ));
    }

    #[test]
    fn a_block_that_is_never_closed_is_told_once() {
        insta::assert_snapshot!(told("a 1\nenv {\n  A 1\nport 2\n"));
    }

    #[test]
    fn what_is_commented_out_is_not_there() {
        let nodes = read("/- a 1\nb /- 1 2 /-{ c }\n/-\nd {\n e\n}").unwrap();
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes[0].args.len(), 1);
    }

    #[test]
    fn hostile_texts_cost_neither_the_stack_nor_much_time() {
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

    /// Bits of KDL that mean something to the scanner or to the parser.
    fn bits() -> impl Strategy<Value = String> {
        let bit = prop::sample::select(vec![
            "a", "b 1", " ", "\n", ";", "{", "}", "\"", "\"x\"", "\"\"\"", "\\", "\\\"", "#",
            "#true", "//", "/*", "*/", "/-", "=", "(", ")", "k=1", "é", "\r\n", "\u{2028}", "#\"",
            "\"#", "{ b }",
        ]);
        prop::collection::vec(bit, 0..24).prop_map(|bits| bits.concat())
    }

    proptest! {
        #[test]
        fn what_the_parser_accepts_as_a_whole_is_accepted_in_parts(text in bits()) {
            // After a block the parser lets a node follow that is commented out; we do not.
            prop_assume!(!text.contains('}') || !text.contains("/-"));
            if let Ok(whole) = KdlDocument::parse_v2(&text) {
                let names: Vec<_> = whole.nodes().iter().map(|node| node.name().value().to_owned()).collect();
                let parts = read(&text).map_err(|problems| TestCaseError::fail(problems[0].to_string()))?;
                let parts: Vec<_> = parts.into_iter().map(|node| node.name).collect();
                prop_assert_eq!(parts, names);
            }
        }

        #[test]
        fn what_is_accepted_in_parts_is_accepted_as_a_whole(text in bits()) {
            let text = text.replace(';', " "); // A `;` that ends nothing is let pass.
            // So is a second `\` that continues a line which goes on already.
            prop_assume!(text.matches('\\').count() < 2);
            if read(&text).is_ok() {
                prop_assert!(KdlDocument::parse_v2(&text).is_ok());
            }
        }
    }
}
