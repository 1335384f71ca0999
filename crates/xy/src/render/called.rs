//! Rendering of a tool's result: its texts, and one line for each other content item.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::safe_text;
use crate::output::terminal;

/// The parts of a tool's result that are shown.
#[derive(Debug, Deserialize)]
pub(crate) struct Called<'r> {
    #[serde(borrow, default)]
    content: Vec<&'r RawValue>,
    #[serde(borrow, default, rename = "structuredContent")]
    structured: Option<&'r RawValue>,
    /// True if the tool reports an error.
    #[serde(default, rename = "isError")]
    pub(crate) is_error: bool,
}

/// One content item.
#[derive(Debug, Default, Deserialize)]
struct Content<'r> {
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'r, str>,
    #[serde(borrow, default)]
    text: Option<Cow<'r, str>>,
    #[serde(borrow, default)]
    data: Option<Cow<'r, str>>,
    #[serde(borrow, default)]
    blob: Option<Cow<'r, str>>,
    #[serde(borrow, default, rename = "mimeType")]
    mime: Option<Cow<'r, str>>,
    #[serde(borrow, default)]
    uri: Option<Cow<'r, str>>,
    #[serde(borrow, default)]
    resource: Option<&'r RawValue>,
}

/// Renders a result. With `is_safe`, texts are escaped for a terminal.
pub(crate) fn render(called: &Called<'_>, is_safe: bool) -> String {
    let mut shown = String::new();
    let mut has_text = false;
    for raw in &called.content {
        let content: Content<'_> = serde_json::from_str(raw.get()).unwrap_or_default();
        let line = match &content.text {
            Some(text) if content.kind == "text" => {
                has_text = true;
                if is_safe { safe(text) } else { text.to_string() }
            }
            _ => short(&content),
        };
        shown.push_str(&line);
        if !shown.ends_with('\n') {
            shown.push('\n');
        }
    }
    if let Some(structured) = called.structured.filter(|_| !has_text) {
        shown.extend([&*terminal::json(structured.get(), is_safe), "\n"]);
    }
    shown
}

fn safe(text: &str) -> String {
    text.lines().flat_map(|line| [safe_text(line), "\n".into()]).collect()
}

/// Summarizes an item, such as `[image image/png, 1234 bytes]`.
fn short(content: &Content<'_>) -> String {
    let inside: Content<'_> =
        content.resource.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    let kind = if content.kind.is_empty() { "unknown" } else { &*content.kind };
    let mut words = vec![kind.to_owned()];
    for part in [&content.uri, &inside.uri, &content.mime, &inside.mime].into_iter().flatten() {
        words.push(part.to_string());
    }
    let bytes = match (&content.data, &inside.blob, &inside.text) {
        (Some(base64), ..) | (_, Some(base64), _) => Some(decoded_length(base64)),
        (.., Some(text)) => Some(text.len()),
        _ => None,
    };
    let bytes = bytes.map(|count| format!(", {count} bytes")).unwrap_or_default();
    format!("[{}{bytes}]", safe_text(&words.join(" ")))
}

/// Returns the number of bytes that a Base64 text encodes.
fn decoded_length(base64: &str) -> usize {
    base64.trim_end_matches('=').len() * 3 / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(result: &str, is_safe: bool) -> String {
        render(&serde_json::from_str(result).unwrap(), is_safe)
    }

    #[test]
    fn texts_are_shown_and_other_items_summarized() {
        let result = r#"{"content":[
            {"type":"text","text":"two\nlines"},
            {"type":"image","mimeType":"image/png","data":"aGVsbG8="},
            {"type":"audio","mimeType":"audio/wav","data":""},
            {"type":"resource","resource":{"uri":"file:///a","mimeType":"text/plain","text":"abc"}},
            {"type":"resource","resource":{"uri":"file:///b","blob":"aGVsbG8="}},
            {"type":"resource_link","uri":"file:///c","name":"c"},
            {"type":"of the future\u001b"}, {}, 7],
            "structuredContent":{"a":1}}"#;
        insta::assert_snapshot!(shown(result, false), @r"
        two
        lines
        [image image/png, 5 bytes]
        [audio audio/wav, 0 bytes]
        [resource file:///a text/plain, 3 bytes]
        [resource file:///b, 5 bytes]
        [resource_link file:///c]
        [of the future\x1b]
        [unknown]
        [unknown]
        ");
    }

    #[test]
    fn structured_content_is_shown_without_text() {
        let result = r#"{"content":[],"structuredContent":{"n": 1.50}}"#;
        assert_eq!(shown(result, true), "{\"n\": 1.50}\n");
        assert_eq!(shown("{}", true), "");
    }

    #[test]
    fn text_is_escaped_for_terminals_only() {
        let result = r#"{"content":[{"type":"text","text":"a\u001b[31m\nb\n"}]}"#;
        assert_eq!(shown(result, true), "a\\x1b[31m\nb\n");
        assert_eq!(shown(result, false), "a\x1b[31m\nb\n");
    }
}
