//! JSON as a tree of texts. Key order and spelling are preserved; whitespace is not.

use std::fmt::{self, Display};

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// Keys without their quotes, as they were written.
    Object(Vec<(String, Text)>),
    /// Items in their order.
    Array(Vec<Text>),
    /// Anything else as it was written: `"a\u0062"`, `1e3`, `null`.
    Plain(String),
}

impl Text {
    /// Reads a whole text.
    ///
    /// # Panics
    ///
    /// Panics if it is no JSON.
    #[track_caller]
    pub fn of(text: &str) -> Self {
        let mut rest = text;
        let read = value(&mut rest).filter(|_| rest.trim_start().is_empty());
        read.unwrap_or_else(|| panic!("this is no JSON: {text}"))
    }

    /// Returns the first member of this name.
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Returns the first member of this name, mutably.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Self> {
        let Self::Object(members) = self else { return None };
        members.iter_mut().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Returns a member's text, without the quotes of a string; empty if there is none.
    pub fn word(&self, name: &str) -> &str {
        match self.get(name) {
            Some(Self::Plain(text)) => text.trim_matches('"'),
            _ => "",
        }
    }
}

impl Display for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(text) => out.write_str(text),
            Self::Array(items) => {
                out.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(out, "{}{item}", if index == 0 { "" } else { "," })?;
                }
                out.write_str("]")
            }
            Self::Object(members) => {
                out.write_str("{")?;
                for (index, (key, value)) in members.iter().enumerate() {
                    write!(out, "{}\"{key}\":{value}", if index == 0 { "" } else { "," })?;
                }
                out.write_str("}")
            }
        }
    }
}

fn value(rest: &mut &str) -> Option<Text> {
    *rest = rest.trim_start();
    match rest.chars().next()? {
        '{' => object(rest),
        '[' => array(rest),
        '"' => Some(Text::Plain(format!("\"{}\"", string(rest)?))),
        _ => {
            let end = rest.find([',', ']', '}', ' ', '\t', '\r', '\n']).unwrap_or(rest.len());
            let (plain, after) = rest.split_at(end);
            *rest = after;
            Some(Text::Plain(plain.to_owned()))
        }
    }
}

fn object(rest: &mut &str) -> Option<Text> {
    let mut members = Vec::new();
    *rest = rest[1..].trim_start();
    while !rest.starts_with('}') {
        let key = string(rest)?;
        *rest = rest.trim_start().strip_prefix(':')?;
        members.push((key, value(rest)?));
        *rest = next(rest, '}')?;
    }
    *rest = &rest[1..];
    Some(Text::Object(members))
}

fn array(rest: &mut &str) -> Option<Text> {
    let mut items = Vec::new();
    *rest = rest[1..].trim_start();
    while !rest.starts_with(']') {
        items.push(value(rest)?);
        *rest = next(rest, ']')?;
    }
    *rest = &rest[1..];
    Some(Text::Array(items))
}

/// Returns the text after a comma, or the text from `end` on.
fn next(rest: &str, end: char) -> Option<&str> {
    let rest = rest.trim_start();
    match rest.strip_prefix(',') {
        Some(rest) => Some(rest.trim_start()),
        None => rest.starts_with(end).then_some(rest),
    }
}

/// Returns a string without its quotes, with its original spelling.
fn string(rest: &mut &str) -> Option<String> {
    let inside = rest.strip_prefix('"')?;
    let mut is_escaped = false;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            b'"' if !is_escaped => {
                *rest = &inside[at + 1..];
                return Some(inside[..at].to_owned());
            }
            b'\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

/// Returns the differences of two values: each path, and both texts.
pub fn differences(path: &str, one: &Text, other: &Text) -> Vec<(String, String, String)> {
    let told = |path: String| vec![(path, one.to_string(), other.to_string())];
    match (one, other) {
        (Text::Object(one), Text::Object(other)) => members(path, one, other),
        (Text::Array(one), Text::Array(other)) if one.len() == other.len() => {
            let pairs = one.iter().zip(other).enumerate();
            let each = |(at, (one, other))| differences(&format!("{path}/{at}"), one, other);
            pairs.flat_map(each).collect()
        }
        (one, other) if one == other => Vec::new(),
        _ => told(path.to_owned()),
    }
}

fn members(
    path: &str,
    one: &[(String, Text)],
    other: &[(String, Text)],
) -> Vec<(String, String, String)> {
    let nothing = || "(nothing)".to_owned();
    let mut all = Vec::new();
    for (key, value) in one {
        let path = format!("{path}/{key}");
        match other.iter().find(|(it, _)| it == key) {
            Some((_, other)) => all.extend(differences(&path, value, other)),
            None => all.push((path, value.to_string(), nothing())),
        }
    }
    let is_new = |(key, _): &&(String, Text)| !one.iter().any(|(it, _)| it == key);
    for (key, value) in other.iter().filter(is_new) {
        all.push((format!("{path}/{key}"), nothing(), value.to_string()));
    }
    let order = |of: &[(String, Text)], with: &[(String, Text)]| {
        let common =
            of.iter().map(|(key, _)| key).filter(|key| with.iter().any(|(it, _)| it == *key));
        common.cloned().collect::<Vec<_>>().join(" ")
    };
    let (first, second) = (order(one, other), order(other, one));
    if first != second {
        all.push((format!("{path}#order"), first, second));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Text, differences};

    #[test]
    fn text_is_parsed_unchanged() {
        for text in
            [r#"{"a":[1.0,-0.0,{"\u00e9":"\"]}\\"}],"b":{},"c":[],"a":null}"#, "1e3", "\"\""]
        {
            assert_eq!(Text::of(text).to_string(), text);
        }
        assert_eq!(Text::of(" { \"a\" : [ 1 , 2 ] } ").to_string(), r#"{"a":[1,2]}"#);
    }

    #[test]
    fn every_difference_has_its_path() {
        let paths = |one: &str, other: &str| {
            let all = differences("m", &Text::of(one), &Text::of(other));
            all.into_iter().map(|(path, ..)| path).collect::<Vec<_>>()
        };
        assert_eq!(paths(r#"{"a":{"b":[1.0]}}"#, r#"{"a":{"b":[1]}}"#), ["m/a/b/0"]);
        assert_eq!(paths(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#), ["m#order"]);
        assert_eq!(paths(r#"{"a":1}"#, r#"{"b":1}"#), ["m/a", "m/b"]);
        assert_eq!(paths(r#"["a"]"#, r#"["\u0061"]"#), ["m/0"]);
        assert_eq!(paths("[1]", "[1,2]"), ["m"]);
        assert_eq!(paths(r#"{"a" : 1}"#, r#"{"a":1}"#), [""; 0]);
    }
}
