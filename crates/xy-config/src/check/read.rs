//! Checks the form of nodes: known or unknown, once or repeated, with a value or a block.
//!
//! `values.rs` checks what values mean.

use std::collections::HashMap;
use std::sync::Arc;

use super::Machine;
use super::problems::Problems;
use super::words::{Word, begins_field, listed, nearest};
use crate::raw::{RawNode, RawProp, RawValue};
use crate::references::{self, Holder};
use crate::report::{Problem, quote};
use crate::source::{SourceFile, SourceSpan, Span};

/// Maximum number of unknown or repeated fields per block that are reported one by one.
const MAX_UNKNOWN: usize = 10;

/// A value and its span.
#[derive(Debug, Clone)]
pub(super) struct Spanned<T> {
    pub(super) value: T,
    pub(super) at: SourceSpan,
}

impl<T> Spanned<T> {
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Spanned<U> {
        Spanned { value: change(self.value), at: self.at }
    }
}

/// A reader of the nodes of one file, which collects their problems.
pub(super) struct Reader<'a> {
    pub(super) file: &'a Arc<SourceFile>,
    pub(super) problems: &'a mut Problems,
    pub(super) machine: &'a dyn Machine,
}

impl Reader<'_> {
    pub(super) fn at(&self, span: Span) -> SourceSpan {
        SourceSpan::new(self.file, span)
    }

    pub(super) fn error(&self, span: Span, message: impl Into<String>) -> Problem {
        Problem::error(&self.at(span), message)
    }

    pub(super) fn report(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Warns if a value contains a reference to a variable, which xy does not expand.
    pub(super) fn warn_of_reference(&mut self, text: &str, at: &SourceSpan, holder: Holder<'_>) {
        if let Some(reference) = references::find(text) {
            let problem = Problem::warning(at, reference.message());
            self.report(problem.suggest(reference.advice(holder)));
        }
    }

    /// Returns the nodes with known names, each once. Reports the others.
    pub(super) fn known<'n>(
        &mut self,
        nodes: &'n [RawNode],
        words: &[Word],
        inside: Option<&str>,
    ) -> Vec<(&'n RawNode, Word)> {
        let mut found = Vec::new();
        let mut unknown = Vec::new();
        for node in self.once(nodes) {
            match words.iter().find(|word| word.name == node.name) {
                Some(word) => found.push((node, *word)),
                None if node.is_broken && node.name.is_empty() => {}
                None => unknown.push(node),
            }
        }
        for node in unknown.iter().take(MAX_UNKNOWN) {
            self.unknown(node, words, inside);
        }
        if let Some(next) = unknown.get(MAX_UNKNOWN) {
            let more = unknown.len() - MAX_UNKNOWN;
            let problem = self.error(next.name_span, format!("{more} more fields are unknown"));
            self.report(problem.suggest("is this the right file?"));
        }
        found
    }

    /// Returns the nodes without repeated ones, which are reported.
    pub(super) fn once<'n>(&mut self, nodes: &'n [RawNode]) -> Vec<&'n RawNode> {
        let mut first_spans: HashMap<&str, Span> = HashMap::new();
        let mut found = Vec::new();
        let mut repeated = 0;
        for node in nodes {
            let first = *first_spans.entry(&node.name).or_insert(node.name_span);
            if first == node.name_span || node.name.is_empty() {
                found.push(node);
                continue;
            }
            repeated += 1;
            if repeated <= MAX_UNKNOWN {
                self.report_duplicate(node, first);
            }
        }
        found
    }

    pub(super) fn report_duplicate(&mut self, node: &RawNode, first: Span) {
        let message = format!("{} is given twice", quote(&node.name));
        let problem = self.error(node.name_span, message).label("given again here");
        self.report(problem.related(&self.at(first), "first given here"));
    }

    pub(super) fn unknown(&mut self, node: &RawNode, words: &[Word], inside: Option<&str>) {
        let within = inside.map_or(String::new(), |block| format!(" in `{block}`"));
        let message = format!("unknown field {}{within}", quote(&node.name));
        let known = words.iter().map(|word| word.name);
        let suggestion = match nearest(&node.name, known.clone()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("the known fields are {}", listed(known)),
        };
        let problem = self.error(node.name_span, message).suggest(suggestion);
        self.report(problem);
    }

    /// Returns the only value of a node, which must have nothing else.
    pub(super) fn value<'n>(&mut self, node: &'n RawNode, word: Word) -> Option<&'n RawValue> {
        if node.is_broken {
            return None;
        }
        let plain = self.no_annotation(node) & self.no_props(node) & self.no_block(node);
        let [value, rest @ ..] = node.args.as_slice() else {
            // A block or a property in place of the value was reported.
            if plain {
                let message = format!("{} needs a value", quote(&node.name));
                let example = format!("for example `{}`", word.example);
                self.report(self.error(node.name_span, message).suggest(example));
            }
            return None;
        };
        let field = rest.iter().find(|it| begins_field(self.file.slice(it.span)));
        if let Some(field) = field {
            let name = quote(self.file.slice(field.span));
            let problem = self.error(field.span, format!("{name} must begin a new line"));
            self.report(problem.suggest("or put a `;` before it"));
            return None;
        }
        if let Some(extra) = rest.first() {
            let count = node.args.len();
            let message = format!("{} takes one value, not {count}", quote(&node.name));
            let example = format!("for example `{}`", word.example);
            self.report(self.error(extra.span, message).suggest(example));
            return None;
        }
        self.plain_value(value)
    }

    /// Returns all values of a node, which must have nothing else.
    pub(super) fn values<'n>(&mut self, node: &'n RawNode) -> Vec<&'n RawValue> {
        self.no_annotation(node);
        self.no_props(node);
        self.no_block(node);
        node.args.iter().filter_map(|value| self.plain_value(value)).collect()
    }

    /// Returns the children of a node, which must have nothing else.
    pub(super) fn block<'n>(&mut self, node: &'n RawNode, word: Word) -> Option<&'n [RawNode]> {
        if node.is_broken {
            return node.children.as_deref();
        }
        self.no_annotation(node);
        let no_props = self.no_props_as_children(node, word);
        if let Some(value) = node.args.first() {
            let message = format!("`{}` takes a block, not a value", word.name);
            let example = format!("for example `{}`", word.example);
            self.report(self.error(value.span, message).suggest(example));
        } else if node.children.is_none() && no_props {
            let message = format!("`{}` needs a block", word.name);
            let example = format!("for example `{}`", word.example);
            self.report(self.error(node.name_span, message).suggest(example));
        }
        node.children.as_deref()
    }

    /// Returns the only text and the children of a node, which must have nothing else.
    pub(super) fn named_block<'n>(
        &mut self,
        node: &'n RawNode,
        word: Word,
    ) -> Option<(Spanned<String>, &'n [RawNode])> {
        if node.is_broken {
            return None;
        }
        let is_plain = self.no_annotation(node) & self.no_props_as_children(node, word);
        let example = format!("for example `{}`", word.example);
        let Some(children) = node.children.as_deref() else {
            if is_plain {
                let message = format!("`{}` needs a name and a block", word.name);
                self.report(self.error(node.name_span, message).suggest(example));
            }
            return None;
        };
        let [name] = node.args.as_slice() else {
            let message = format!("`{}` takes one name, not {}", word.name, node.args.len());
            self.report(self.error(node.name_span, message).suggest(example));
            return None;
        };
        let name = self.plain_value(name)?;
        Some((self.as_text(name, word.name)?, children))
    }

    fn plain_value<'n>(&mut self, value: &'n RawValue) -> Option<&'n RawValue> {
        let Some(annotation) = value.annotation else { return Some(value) };
        self.annotated(annotation);
        None
    }

    fn no_annotation(&mut self, node: &RawNode) -> bool {
        node.annotation.is_none_or(|annotation| {
            self.annotated(annotation);
            false
        })
    }

    fn annotated(&mut self, annotation: Span) {
        let written = self.file.slice(annotation).to_owned();
        let message = format!("type annotation {} has no meaning here", quote(&written));
        self.report(self.error(annotation, message).suggest("remove it, with its parentheses"));
    }

    fn no_props(&mut self, node: &RawNode) -> bool {
        for prop in &node.props {
            self.unexpected_prop(node, prop, None);
        }
        node.props.is_empty()
    }

    /// Works like `no_props`, for a node whose properties were meant to be children.
    fn no_props_as_children(&mut self, node: &RawNode, word: Word) -> bool {
        for prop in &node.props {
            let written = self.file.slice(prop.span);
            let value = written.split_once('=').map(|(_, value)| value.trim());
            // The value of a header may be secret.
            let value = value.filter(|_| word.name != "headers").unwrap_or("…");
            let child = format!("`{} {{ {} {value} }}`", word.name, prop.name);
            self.unexpected_prop(node, prop, Some(format!("write it as {child}")));
        }
        node.props.is_empty()
    }

    fn unexpected_prop(&mut self, node: &RawNode, prop: &RawProp, suggestion: Option<String>) {
        let message = format!("{} has no property {}", quote(&node.name), quote(&prop.name));
        self.report(self.error(prop.span, message).suggest_some(suggestion));
    }

    fn no_block(&mut self, node: &RawNode) -> bool {
        if node.children.is_some() {
            let message = format!("{} takes no block", quote(&node.name));
            self.report(self.error(node.name_span, message));
        }
        node.children.is_none()
    }
}
