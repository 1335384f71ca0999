//! The words of one tool, taken out of its definition.
//!
//! A definition is what a server said, and servers say odd things: every piece is read by
//! itself, and one that is not what it should be is only left out. Everything is bounded.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// The longest text that is read of a description, in bytes.
const LONGEST_TEXT: usize = 4 * 1024;

/// The most arguments that are read of one tool, with those inside of others.
const MOST_ARGUMENTS: usize = 100;

/// How deep arguments inside of arguments are read.
const DEEPEST: usize = 4;

/// The most values of an enumeration that are read.
const MOST_VALUES: usize = 20;

/// What is searched of one tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    /// The server it belongs to.
    pub server: String,
    /// The name it is called by, which is also the answer of a search.
    pub name: String,
    /// The name that the server itself gives it.
    pub own_name: String,
    /// Its name for people.
    pub title: String,
    /// What it does.
    pub description: String,
    /// Names of arguments, with what is said about each.
    pub arguments: Vec<(String, String)>,
}

type Fields<'j> = BTreeMap<String, &'j RawValue>;

impl Document {
    /// Takes the words out of a definition as it stands in `tools/list`. What is not there
    /// or not readable is empty; the name is always there.
    pub fn of(server: &str, name: &str, definition: &str) -> Self {
        let fields = fields(definition).unwrap_or_default();
        let annotations = fields.get("annotations").and_then(|it| self::fields(it.get()));
        let title = text(&fields, "title");
        let title =
            if title.is_empty() { text(&annotations.unwrap_or_default(), "title") } else { title };
        let own_name = text(&fields, "name");
        let mut arguments = Vec::new();
        if let Some(schema) = fields.get("inputSchema") {
            read_schema(schema, DEEPEST, &mut arguments);
        }
        Self {
            server: cut(server).to_owned(),
            name: name.to_owned(),
            own_name: if own_name.is_empty() { cut(name).to_owned() } else { own_name },
            title,
            description: text(&fields, "description"),
            arguments,
        }
    }
}

/// The fields of an object, each still as text; `None` if it is no object.
fn fields(json: &str) -> Option<Fields<'_>> {
    serde_json::from_str(json).ok()
}

/// A field that is a text, as far as it is read; empty if it is none.
fn text(fields: &Fields<'_>, name: &str) -> String {
    let found = fields.get(name).and_then(|it| serde_json::from_str::<String>(it.get()).ok());
    found.map_or_else(String::new, |text| cut(&text).to_owned())
}

/// As much of a text as is read, whole characters.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}

/// Collects the arguments of a schema, and those inside of them.
fn read_schema(schema: &RawValue, depth: usize, found: &mut Vec<(String, String)>) {
    let Some(parts) = fields(schema.get()).filter(|_| depth > 0) else { return };
    if let Some(properties) = parts.get("properties").and_then(|it| fields(it.get())) {
        for (name, schema) in properties {
            if found.len() >= MOST_ARGUMENTS {
                return;
            }
            found.push((cut(&name).to_owned(), about(schema)));
            read_schema(schema, depth - 1, found);
        }
    }
    if let Some(items) = parts.get("items") {
        read_schema(items, depth - 1, found);
    }
    for several in ["anyOf", "oneOf", "allOf"] {
        let choices = parts.get(several).map(|it| serde_json::from_str::<Vec<&RawValue>>(it.get()));
        for choice in choices.into_iter().flatten().flatten().take(MOST_VALUES) {
            read_schema(choice, depth - 1, found);
        }
    }
}

/// What is said about an argument: its title, its description, the values it may have.
fn about(schema: &RawValue) -> String {
    let Some(parts) = fields(schema.get()) else { return String::new() };
    let values = parts.get("enum").map(|it| serde_json::from_str::<Vec<&RawValue>>(it.get()));
    let values = values.into_iter().flatten().flatten().take(MOST_VALUES);
    let values = values.filter_map(|it| serde_json::from_str::<String>(it.get()).ok());
    let mut said = vec![text(&parts, "title"), text(&parts, "description")];
    said.extend(values);
    said.retain(|it| !it.is_empty());
    cut(&said.join(" ")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(definition: &str) -> Document {
        Document::of("files", "files__read", definition)
    }

    #[test]
    fn everything_that_says_something_is_read() {
        let found = of(r#"{
            "name": "read", "title": "Read a file", "description": "Reads a \"file\"",
            "inputSchema": {"type": "object", "properties": {
                "path": {"type": "string", "description": "Where it is"},
                "mode": {"enum": ["text", "binary", 3]},
                "edits": {"type": "array", "items": {"properties": {"oldText": {}}}},
                "either": {"anyOf": [{"properties": {"left": true}}, null]}
            }}}"#);
        assert_eq!(found.own_name, "read");
        assert_eq!(found.title, "Read a file");
        assert_eq!(found.description, "Reads a \"file\"");
        let arguments: Vec<(&str, &str)> =
            found.arguments.iter().map(|(name, about)| (name.as_str(), about.as_str())).collect();
        let expected = [
            ("edits", ""),
            ("oldText", ""),
            ("either", ""),
            ("left", ""),
            ("mode", "text binary"),
            ("path", "Where it is"),
        ];
        assert_eq!(arguments, expected);
    }

    #[test]
    fn an_odd_piece_costs_only_itself() {
        let found = of(r#"{"name": 7, "title": null, "description": ["no"],
            "annotations": {"title": "Kept"},
            "inputSchema": {"properties": {"a": 1, "b": {"description": {}}, "c": {"enum": 5}}}}"#);
        assert_eq!(found.own_name, "files__read");
        assert_eq!(found.title, "Kept");
        assert_eq!(found.description, "");
        assert_eq!(found.arguments.len(), 3);
        for odd in
            ["", "null", "[]", "{", "\u{0}", "{\"inputSchema\": [[[[", "{\"name\": \"\\ud800\"}"]
        {
            assert_eq!(of(odd).name, "files__read", "{odd}");
        }
    }

    #[test]
    fn what_is_huge_is_cut() {
        let long = "ü".repeat(1_000_000);
        let found = of(&format!(r#"{{"name": "{long}", "description": "{long}"}}"#));
        assert!(found.own_name.len() <= LONGEST_TEXT && found.description.len() <= LONGEST_TEXT);

        let deep = format!("{}{}", r#"{"properties": {"a": "#.repeat(5000), "}}".repeat(5000));
        let found = of(&format!(r#"{{"inputSchema": {deep}}}"#));
        assert!(found.arguments.len() <= DEEPEST);

        let many: Vec<String> = (0..1000).map(|it| format!(r#""a{it}": {{}}"#)).collect();
        let found = of(&format!(r#"{{"inputSchema": {{"properties": {{{}}}}}}}"#, many.join(",")));
        assert_eq!(found.arguments.len(), MOST_ARGUMENTS);
    }
}
