//! Extracts the words of one tool from its definition.
//!
//! Definitions come from servers and may be malformed: each part is parsed separately, and an
//! invalid one is skipped. Everything is bounded.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// Maximum length of a text, in bytes.
const MAX_TEXT: usize = 4 * 1024;

/// Maximum number of arguments of one tool, including nested ones.
const MAX_ARGUMENTS: usize = 100;

/// Maximum nesting depth of arguments.
const MAX_DEPTH: usize = 4;

/// Maximum number of values of an enumeration.
const MAX_VALUES: usize = 20;

/// The searchable texts of one tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    /// The server it belongs to.
    pub server: String,
    /// The exposed name, which is also the result of a search.
    pub name: String,
    /// The name that the server gives the tool.
    pub own_name: String,
    /// The title.
    pub title: String,
    /// The description.
    pub description: String,
    /// The names of the arguments, each with its description.
    pub arguments: Vec<(String, String)>,
}

type FieldMap<'j> = BTreeMap<String, &'j RawValue>;

impl Document {
    /// Extracts the texts of a definition as it appears in `tools/list`. Missing and unreadable
    /// parts are empty; the name is always set.
    pub fn from_definition(server: &str, name: &str, definition: &str) -> Self {
        let fields = parse_fields(definition).unwrap_or_default();
        let annotations = fields.get("annotations").and_then(|it| parse_fields(it.get()));
        let title = text_field(&fields, "title");
        let title = if title.is_empty() {
            text_field(&annotations.unwrap_or_default(), "title")
        } else {
            title
        };
        let own_name = text_field(&fields, "name");
        let mut arguments = Vec::new();
        if let Some(schema) = fields.get("inputSchema") {
            collect_arguments(schema, MAX_DEPTH, &mut arguments);
        }
        Self {
            server: truncate(server).to_owned(),
            name: name.to_owned(),
            own_name: if own_name.is_empty() { truncate(name).to_owned() } else { own_name },
            title,
            description: text_field(&fields, "description"),
            arguments,
        }
    }
}

/// Returns the fields of an object as raw text; `None` if it is not an object.
fn parse_fields(json: &str) -> Option<FieldMap<'_>> {
    serde_json::from_str(json).ok()
}

/// Returns a string field, truncated; empty if it is missing or not a string.
fn text_field(fields: &FieldMap<'_>, name: &str) -> String {
    let found = fields.get(name).and_then(|it| serde_json::from_str::<String>(it.get()).ok());
    found.map_or_else(String::new, |text| truncate(&text).to_owned())
}

/// Truncates a text at a character boundary.
fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

/// Collects the arguments of a schema, including nested ones.
fn collect_arguments(schema: &RawValue, depth: usize, collected: &mut Vec<(String, String)>) {
    let Some(parts) = parse_fields(schema.get()).filter(|_| depth > 0) else { return };
    if let Some(properties) = parts.get("properties").and_then(|it| parse_fields(it.get())) {
        for (name, schema) in properties {
            if collected.len() >= MAX_ARGUMENTS {
                return;
            }
            collected.push((truncate(&name).to_owned(), describe(schema)));
            collect_arguments(schema, depth - 1, collected);
        }
    }
    if let Some(items) = parts.get("items") {
        collect_arguments(items, depth - 1, collected);
    }
    for combinator in ["anyOf", "oneOf", "allOf"] {
        let choices =
            parts.get(combinator).map(|it| serde_json::from_str::<Vec<&RawValue>>(it.get()));
        for choice in choices.into_iter().flatten().flatten().take(MAX_VALUES) {
            collect_arguments(choice, depth - 1, collected);
        }
    }
}

/// Returns the title, the description and the enumerated values of an argument.
fn describe(schema: &RawValue) -> String {
    let Some(parts) = parse_fields(schema.get()) else { return String::new() };
    let values = parts.get("enum").map(|it| serde_json::from_str::<Vec<&RawValue>>(it.get()));
    let values = values.into_iter().flatten().flatten().take(MAX_VALUES);
    let values = values.filter_map(|it| serde_json::from_str::<String>(it.get()).ok());
    let mut texts = vec![text_field(&parts, "title"), text_field(&parts, "description")];
    texts.extend(values);
    texts.retain(|it| !it.is_empty());
    truncate(&texts.join(" ")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(definition: &str) -> Document {
        Document::from_definition("files", "files__read", definition)
    }

    #[test]
    fn all_descriptive_fields_are_read() {
        let document = of(r#"{
            "name": "read", "title": "Read a file", "description": "Reads a \"file\"",
            "inputSchema": {"type": "object", "properties": {
                "path": {"type": "string", "description": "Where it is"},
                "mode": {"enum": ["text", "binary", 3]},
                "edits": {"type": "array", "items": {"properties": {"oldText": {}}}},
                "either": {"anyOf": [{"properties": {"left": true}}, null]}
            }}}"#);
        assert_eq!(document.own_name, "read");
        assert_eq!(document.title, "Read a file");
        assert_eq!(document.description, "Reads a \"file\"");
        let arguments: Vec<(&str, &str)> = document
            .arguments
            .iter()
            .map(|(name, describe)| (name.as_str(), describe.as_str()))
            .collect();
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
    fn invalid_parts_are_skipped() {
        let document = of(r#"{"name": 7, "title": null, "description": ["no"],
            "annotations": {"title": "Kept"},
            "inputSchema": {"properties": {"a": 1, "b": {"description": {}}, "c": {"enum": 5}}}}"#);
        assert_eq!(document.own_name, "files__read");
        assert_eq!(document.title, "Kept");
        assert_eq!(document.description, "");
        assert_eq!(document.arguments.len(), 3);
        for odd in
            ["", "null", "[]", "{", "\u{0}", "{\"inputSchema\": [[[[", "{\"name\": \"\\ud800\"}"]
        {
            assert_eq!(of(odd).name, "files__read", "{odd}");
        }
    }

    #[test]
    fn huge_definitions_are_truncated() {
        let long = "ü".repeat(1_000_000);
        let document = of(&format!(r#"{{"name": "{long}", "description": "{long}"}}"#));
        assert!(document.own_name.len() <= MAX_TEXT && document.description.len() <= MAX_TEXT);

        let deep = format!("{}{}", r#"{"properties": {"a": "#.repeat(5000), "}}".repeat(5000));
        let document = of(&format!(r#"{{"inputSchema": {deep}}}"#));
        assert!(document.arguments.len() <= MAX_DEPTH);

        let many: Vec<String> = (0..1000).map(|it| format!(r#""a{it}": {{}}"#)).collect();
        let document =
            of(&format!(r#"{{"inputSchema": {{"properties": {{{}}}}}}}"#, many.join(",")));
        assert_eq!(document.arguments.len(), MAX_ARGUMENTS);
    }
}
