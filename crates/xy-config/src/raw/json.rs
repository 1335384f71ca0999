//! A JSON parser that keeps spans.
//!
//! Comments and trailing commas are ignored, as the editors of these files allow both. Parsing
//! stops at the first error.

use crate::source::Span;

/// Maximum nesting depth.
const MAX_DEPTH: usize = 100;

/// A value and its span.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonNode {
    pub(crate) value: Json,
    pub(crate) span: Span,
}

/// A JSON value. Numbers have only a span, as their values are not needed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Flag(bool),
    Number,
    Text(String),
    List(Vec<JsonNode>),
    Object(Vec<JsonMember>),
}

/// A member of an object, `"name": value`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonMember {
    pub(crate) name: String,
    pub(crate) name_span: Span,
    pub(crate) value: JsonNode,
}

/// A syntax error and its span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JsonFault {
    pub(crate) message: &'static str,
    pub(crate) span: Span,
}

impl JsonNode {
    /// Returns the type of the value, as the end of a sentence.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Json::Null => "null",
            Json::Flag(_) => "true or false",
            Json::Number => "a number",
            Json::Text(_) => "text",
            Json::List(_) => "a list",
            Json::Object(_) => "an object",
        }
    }
}

/// Parses a text that holds one value.
pub(crate) fn parse(text: &str) -> Result<JsonNode, JsonFault> {
    let start = text.len() - text.trim_start_matches('\u{feff}').len();
    let mut parser = Parser { text, at: start };
    let value = parser.value(MAX_DEPTH)?;
    parser.skip_blank()?;
    if parser.at < text.len() {
        return Err(parser.fault("this follows the end of the value"));
    }
    Ok(value)
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Returns an error at the next character.
    fn fault(&self, message: &'static str) -> JsonFault {
        let length = self.rest().chars().next().map_or(0, char::len_utf8);
        self.fault_over(self.at, self.at + length, message)
    }

    fn fault_over(&self, start: usize, end: usize, message: &'static str) -> JsonFault {
        JsonFault { message, span: Span { start, end: end.min(self.text.len()) } }
    }

    fn skip_blank(&mut self) -> Result<(), JsonFault> {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
            let rest = &rest[blank..];
            let comment = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                let Some(end) = rest.find("*/") else {
                    self.at += blank;
                    return Err(self.fault("this comment is never closed"));
                };
                end + 2
            } else {
                0
            };
            self.at += blank + comment;
            if comment == 0 {
                return Ok(());
            }
        }
    }

    /// Consumes a character, if it is next.
    fn consume(&mut self, character: char) -> Result<bool, JsonFault> {
        self.skip_blank()?;
        let is_next = self.rest().starts_with(character);
        self.at += if is_next { character.len_utf8() } else { 0 };
        Ok(is_next)
    }

    fn value(&mut self, depth: usize) -> Result<JsonNode, JsonFault> {
        self.skip_blank()?;
        let start = self.at;
        if depth == 0 {
            return Err(self.fault("this is nested too deep"));
        }
        let value = match self.rest().as_bytes().first() {
            None => return Err(self.fault("the text ends too early")),
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Json::Text(self.string()?),
            Some(_) => self.word()?,
        };
        Ok(JsonNode { value, span: Span { start, end: self.at } })
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonFault> {
        self.at += 1;
        let mut members = Vec::new();
        while !self.consume('}')? {
            if !members.is_empty() && !self.consume(',')? {
                return Err(self.fault("a `,` or a `}` is missing before this"));
            }
            if !members.is_empty() && self.consume('}')? {
                break;
            }
            let start = self.at;
            if !self.rest().starts_with('"') {
                return Err(self.fault("a name in quotes is missing before this"));
            }
            let name = self.string()?;
            let name_span = Span { start, end: self.at };
            if !self.consume(':')? {
                return Err(self.fault("a `:` is missing before this"));
            }
            members.push(JsonMember { name, name_span, value: self.value(depth - 1)? });
        }
        Ok(Json::Object(members))
    }

    fn list(&mut self, depth: usize) -> Result<Json, JsonFault> {
        self.at += 1;
        let mut items = Vec::new();
        while !self.consume(']')? {
            if !items.is_empty() && !self.consume(',')? {
                return Err(self.fault("a `,` or a `]` is missing before this"));
            }
            if !items.is_empty() && self.consume(']')? {
                break;
            }
            items.push(self.value(depth - 1)?);
        }
        Ok(Json::List(items))
    }

    fn string(&mut self) -> Result<String, JsonFault> {
        let start = self.at;
        let mut is_escaped = false;
        let end = self.rest().bytes().enumerate().skip(1).find(|(_, byte)| {
            let is_end = *byte == b'\n' || (*byte == b'"' && !is_escaped);
            is_escaped = *byte == b'\\' && !is_escaped;
            is_end
        });
        let Some((length, b'"')) = end else {
            let line = self.rest().lines().next().map_or(0, str::len);
            return Err(self.fault_over(start, start + line, "this text is never closed"));
        };
        self.at += length + 1;
        serde_json::from_str(&self.text[start..self.at]).map_err(|_| {
            let message = "this text holds a `\\` or a character that JSON does not allow";
            self.fault_over(start, self.at, message)
        })
    }

    /// Parses a number, `true`, `false` or `null`.
    fn word(&mut self) -> Result<Json, JsonFault> {
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '+' | '.' | '_');
        let word: String = self.rest().chars().take_while(|it| is_part(*it)).collect();
        let value = match word.as_str() {
            "" => return Err(self.fault("a value is missing before this")),
            "null" => Json::Null,
            "true" => Json::Flag(true),
            "false" => Json::Flag(false),
            number if serde_json::from_str::<serde_json::Number>(number).is_ok() => Json::Number,
            _ => {
                let end = self.at + word.len();
                return Err(self.fault_over(self.at, end, "text must be in quotes"));
            }
        };
        self.at += word.len();
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Converts a value to plain JSON; numbers become 0.
    fn plain(node: &JsonNode) -> serde_json::Value {
        match &node.value {
            Json::Null => serde_json::Value::Null,
            Json::Flag(flag) => (*flag).into(),
            Json::Number => 0.into(),
            Json::Text(text) => text.as_str().into(),
            Json::List(items) => items.iter().map(plain).collect(),
            Json::Object(members) => {
                members.iter().map(|it| (it.name.clone(), plain(&it.value))).collect()
            }
        }
    }

    fn fault(text: &str) -> (&'static str, &str) {
        let fault = parse(text).unwrap_err();
        (fault.message, &text[fault.span.start..fault.span.end])
    }

    #[test]
    fn comments_and_trailing_commas_are_accepted() {
        let text =
            "\u{feff}// mine\n{ \"a\": [1, true, null, \"\\u00e9\\n\",], /* x */ \"b\": {},\n}\n";
        let expected = serde_json::json!({"a": [0, true, null, "é\n"], "b": {}});
        assert_eq!(plain(&parse(text).unwrap()), expected);
    }

    #[test]
    fn first_error_is_reported_with_its_span() {
        let table = [
            ("", "the text ends too early", ""),
            ("{", "a name in quotes is missing before this", ""),
            ("{a: 1}", "a name in quotes is missing before this", "a"),
            ("{\"a\" 1}", "a `:` is missing before this", "1"),
            ("{\"a\": 1 \"b\": 2}", "a `,` or a `}` is missing before this", "\""),
            ("[1 2]", "a `,` or a `]` is missing before this", "2"),
            ("[,]", "a value is missing before this", ","),
            ("{\"a\": }", "a value is missing before this", "}"),
            ("[\"a]", "this text is never closed", "\"a]"),
            ("[\"a\nb\"]", "this text is never closed", "\"a"),
            ("[nope]", "text must be in quotes", "nope"),
            ("[01]", "text must be in quotes", "01"),
            ("[] x", "this follows the end of the value", "x"),
            ("/* x", "this comment is never closed", "/"),
        ];
        for (text, message, at) in table {
            assert_eq!(fault(text), (message, at), "{text}");
        }
        assert_eq!(fault("[\"\\x\"]").1, "\"\\x\"");
        let deep = "[".repeat(1_000_000);
        assert_eq!(fault(&deep).0, "this is nested too deep");
    }

    proptest! {
        #[test]
        fn any_text_is_accepted(text in "([\\[\\]{}:,\"\\\\/* \n0-9atrue.é-]|null){0,40}") {
            match parse(&text) {
                Ok(node) => prop_assert!(text.get(node.span.start..node.span.end).is_some()),
                Err(fault) => prop_assert!(text.get(fault.span.start..fault.span.end).is_some()),
            }
        }

        #[test]
        fn valid_json_is_parsed(
            text in "\\PC{0,20}", flag: bool, names in prop::collection::btree_set("[a-z]{1,3}", 0..5)
        ) {
            let object: serde_json::Map<_, _> =
                names.into_iter().map(|it| (it, serde_json::json!([text, flag, null]))).collect();
            let value = serde_json::Value::Object(object);
            for written in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                prop_assert_eq!(plain(&parse(&written).unwrap()), value.clone());
            }
        }
    }
}
