//! Parses the `env` block: variables of a process.

use std::collections::BTreeMap;

use super::read::{Reader, Spanned};
use super::words::{Word, word};
use crate::raw::{RawNode, RawValue, Value};
use crate::references::Holder;
use crate::report::{Problem, quote};

const VARIABLE: Word = word("a variable", r#"RUST_LOG "info""#);

/// Reads the variables of an `env` block: of a container, or of a process that inherits the
/// daemon's.
pub(super) fn read(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
    is_container: bool,
) -> BTreeMap<String, Spanned<String>> {
    let Some(children) = reader.block(node, word) else { return BTreeMap::new() };
    let mut variables = BTreeMap::new();
    for variable in reader.once(children) {
        let name_problem = bad_name(reader, variable);
        let name_is_good = name_problem.is_none();
        if let Some(problem) = name_problem {
            reader.report(problem);
        }
        let value = reader
            .value(variable, VARIABLE)
            .and_then(|value| as_value(reader, value, &variable.name));
        if let Some(value) = &value {
            let holder = if is_container {
                Holder::ContainerVariable
            } else {
                Holder::Variable(&variable.name)
            };
            reader.warn_of_reference(&value.value, &value.at, holder);
        }
        if let Some(value) = value.filter(|_| name_is_good) {
            variables.insert(variable.name.clone(), value);
        }
    }
    variables
}

fn bad_name(reader: &Reader<'_>, variable: &RawNode) -> Option<Problem> {
    let name = variable.name.as_str();
    let error = |message: &str| Some(reader.error(variable.name_span, message));
    if name.is_empty() {
        return error("the name of a variable is empty");
    }
    if name.contains(['=', '\0']) {
        return error("the name of a variable contains a `=` or a NUL byte");
    }
    if name.starts_with("XY_") {
        return error(&format!("{} is reserved", quote(name)))
            .map(|problem| problem.suggest("names that start with `XY_` are reserved for xy"));
    }
    None
}

/// Returns a value as the process sees it: text, or a number or flag as text.
fn as_value(reader: &mut Reader<'_>, value: &RawValue, name: &str) -> Option<Spanned<String>> {
    let text = match &value.value {
        Value::Text(_) => return reader.as_text(value, name),
        Value::Whole(number) => number.to_string(),
        Value::Flag(flag) => flag.to_string(),
        Value::Fraction(_) | Value::Null => {
            let problem =
                reader.wrong_type(value, name, "text, a whole number, `#true` or `#false`");
            let written = reader.file.slice(value.span).trim_start_matches('#').to_owned();
            reader.report(problem.suggest(format!("put it in quotes: `\"{written}\"`")));
            return None;
        }
    };
    Some(Spanned { value: text, at: reader.at(value.span) })
}
