//! Reassembly of messages that a server writes over several lines, which MCP forbids. Pure.
//!
//! Lines that begin a JSON object or array are held until later lines close it. A line that cannot
//! continue the JSON shows that all of them are ordinary output.

use tokio::time::{Duration, Instant};
use xy_transport::message_text::MAX_MESSAGE;

/// Time for which lines are held. A server writes a message in one go, and other output must soon
/// reach the log.
const HOLD_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum nesting depth; the parser of messages accepts no more.
const MAX_DEPTH: usize = 128;

/// The held lines of a message that has begun.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    /// The lines so far, each with its line end.
    text: Vec<u8>,
    scan: Scan,
    overdue_at: Option<Instant>,
}

/// The result of adding a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The line is held: the message is not complete.
    Held,
    /// The line completes the JSON. Contains all its lines.
    Whole(Vec<u8>),
    /// The held lines are no message. Contains them, without the new line.
    NotMessage(Vec<u8>),
}

impl Assembler {
    /// Returns true if no line is held.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Begins with the first line of what may be a message. Returns false if the line cannot begin
    /// one.
    pub(super) fn begin(&mut self, line: &[u8], now: Instant) -> bool {
        let is_opened = matches!(line.trim_ascii_start().first(), Some(b'{' | b'['));
        self.scan = Scan::default();
        if !is_opened || line.len() >= MAX_MESSAGE || self.scan.line(line) != JsonState::Open {
            return false;
        }
        self.hold(line);
        self.overdue_at = Some(now + HOLD_TIMEOUT);
        true
    }

    /// Adds the next line.
    pub(super) fn go_on(&mut self, line: &[u8]) -> Step {
        if self.text.len() + line.len() > MAX_MESSAGE {
            return Step::NotMessage(self.give_up());
        }
        match self.scan.line(line) {
            JsonState::Open => {
                self.hold(line);
                Step::Held
            }
            JsonState::Closed => {
                self.hold(line);
                Step::Whole(self.give_up())
            }
            JsonState::NotJson => Step::NotMessage(self.give_up()),
        }
    }

    /// Returns until when the lines are held.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.overdue_at
    }

    /// Returns the held lines, without the last line end, and holds none any more.
    pub(super) fn give_up(&mut self) -> Vec<u8> {
        self.overdue_at = None;
        let mut text = std::mem::take(&mut self.text);
        text.pop();
        text
    }

    fn hold(&mut self, line: &[u8]) {
        self.text.extend_from_slice(line);
        self.text.push(b'\n');
    }
}

/// The state of the JSON after a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonState {
    /// The beginning of a JSON value.
    Open,
    /// One complete JSON value.
    Closed,
    /// No JSON.
    NotJson,
}

/// Scanner that reads JSON line by line to find its end. No JSON token spans a line end.
#[derive(Debug, Default)]
struct Scan {
    /// The open containers: true for an object, false for an array.
    open: Vec<bool>,
    expects: Expects,
}

/// The tokens that may come next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Expects {
    #[default]
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    Nothing,
}

impl Scan {
    fn line(&mut self, mut rest: &[u8]) -> JsonState {
        loop {
            rest = rest.trim_ascii_start();
            let Some(first) = rest.first() else {
                let is_closed = self.expects == Expects::Nothing;
                return if is_closed { JsonState::Closed } else { JsonState::Open };
            };
            let Some(length) = self.token(*first, rest) else { return JsonState::NotJson };
            rest = &rest[length..];
        }
    }

    /// Takes one token and returns its length, or `None` if it is not allowed here.
    fn token(&mut self, first: u8, text: &[u8]) -> Option<usize> {
        use Expects::{Colon, CommaOrEnd, Key, KeyOrEnd, Value, ValueOrEnd};
        match (first, self.expects) {
            (b'{' | b'[', Value | ValueOrEnd) if self.open.len() < MAX_DEPTH => {
                let is_object = first == b'{';
                self.open.push(is_object);
                self.expects = if is_object { KeyOrEnd } else { ValueOrEnd };
                Some(1)
            }
            (b'}', KeyOrEnd | CommaOrEnd) if self.open.last() == Some(&true) => {
                self.close();
                Some(1)
            }
            (b']', ValueOrEnd | CommaOrEnd) if self.open.last() == Some(&false) => {
                self.close();
                Some(1)
            }
            (b',', CommaOrEnd) => {
                self.expects = if self.open.last() == Some(&true) { Key } else { Value };
                Some(1)
            }
            (b':', Colon) => {
                self.expects = Value;
                Some(1)
            }
            (b'"', Key | KeyOrEnd) => {
                self.expects = Colon;
                string(text)
            }
            (b'"', Value | ValueOrEnd) => {
                self.value_ends();
                string(text)
            }
            (b'-' | b'0'..=b'9' | b't' | b'f' | b'n', Value | ValueOrEnd) => {
                self.value_ends();
                plain(text)
            }
            _ => None,
        }
    }

    fn close(&mut self) {
        self.open.pop();
        self.value_ends();
    }

    fn value_ends(&mut self) {
        let is_inside = !self.open.is_empty();
        self.expects = if is_inside { Expects::CommaOrEnd } else { Expects::Nothing };
    }
}

/// Returns the length of the string at the beginning of a text.
fn string(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Returns the length of the number or literal at the beginning of a text.
fn plain(text: &[u8]) -> Option<usize> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let length = text.iter().take_while(|byte| is_part(byte)).count();
    let is_value = serde_json::from_slice::<serde::de::IgnoredAny>(&text[..length]).is_ok();
    is_value.then_some(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Returns one letter for each line: `h`eld, `w`hole, `n`o message, or `-` for not begun.
    fn played(lines: &[&str]) -> String {
        let (mut assembler, now) = (Assembler::default(), Instant::now());
        let mut story = String::new();
        for line in lines {
            if assembler.is_empty() {
                story.push(if assembler.begin(line.as_bytes(), now) { 'h' } else { '-' });
                continue;
            }
            match assembler.go_on(line.as_bytes()) {
                Step::Held => story.push('h'),
                Step::Whole(_) => story.push('w'),
                Step::NotMessage(_) => story.push('n'),
            }
        }
        story
    }

    #[test]
    fn lines_are_held_while_they_may_form_json() {
        for (lines, story) in [
            (&["{", "}"][..], "hw"),
            (&["{", r#"  "a": [1, -2.5e+3,"#, r#"  true, null], "b""#, r#": "x\"y{" }"#], "hhhw"),
            (&["[", "{}", ",", "{}", "]"], "hhhhw"),
            (&[r#"{"a":{"#, "", "  ", "}}"], "hhhw"),
            // Complete on one line, or no JSON: not held.
            (&["{}"], "-"),
            (&["ready"], "-"),
            (&["{port: 3000}"], "-"),
            (&["[info] it starts"], "-"),
            (&["{} trailing"], "-"),
            (&["\"a\"", "7"], "--"),
            // Output that only begins like JSON.
            (&["{", "  port: 3000,"], "hn"),
            (&["[", "it listens"], "hn"),
            (&["{", r#"{"jsonrpc":"2.0","method":"m"}"#], "hn"),
            (&[r#"{"a":"#, "}"], "hn"),
            (&["{", "]"], "hn"),
            (&["{", r#""a" "b""#], "hn"),
            (&["{", r#""a": 01"#], "hn"),
            (&["{", r#""a": nul"#], "hn"),
            (&["{", r#""a": "never closed"#], "hn"),
            (&["{", r#""a": 1} and more"#], "hn"),
            (&["{", r#""a": 1,"#, "}"], "hhn"),
        ] {
            assert_eq!(played(lines), story, "{lines:?}");
        }
    }

    #[test]
    fn held_lines_are_returned_unchanged() {
        let (mut assembler, now) = (Assembler::default(), Instant::now());
        assert!(assembler.begin(b"{ ", now));
        assert_eq!(assembler.overdue_at(), Some(now + HOLD_TIMEOUT));
        assert_eq!(assembler.go_on(b"  \"a\": 1,"), Step::Held);
        assert_eq!(assembler.go_on(b"no"), Step::NotMessage(b"{ \n  \"a\": 1,".to_vec()));
        assert!(assembler.is_empty() && assembler.overdue_at().is_none());
    }

    #[test]
    fn held_lines_are_limited() {
        let (mut assembler, now) = (Assembler::default(), Instant::now());
        assert!(assembler.begin(b"[", now));
        let long = format!("\"{}\",", "x".repeat(MAX_MESSAGE / 4));
        let mut held = 0;
        while assembler.go_on(long.as_bytes()) == Step::Held {
            held += 1;
        }
        assert_eq!(held, 3);
        assert!(assembler.is_empty());
        let deep = ["[".repeat(MAX_DEPTH), "[".to_owned()];
        assert!(assembler.begin(deep[0].as_bytes(), now));
        assert!(matches!(assembler.go_on(deep[1].as_bytes()), Step::NotMessage(_)));
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f32>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".{0,8}", inner, 0..6)
                    .prop_map(|it| Value::Object(it.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn message_is_assembled_from_any_line_breaks(
            inside in json(),
            breaks in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
        ) {
            let message = serde_json::json!({ "jsonrpc": "2.0", "id": 1, "result": inside });
            let pretty = serde_json::to_string_pretty(&message).unwrap();
            // Some lines are joined again: breaks remain only where a token ends.
            let mut lines: Vec<String> = pretty.lines().map(str::to_owned).collect();
            for place in breaks {
                if lines.len() > 2 {
                    let at = place.index(lines.len() - 1);
                    let next = lines.remove(at + 1);
                    lines[at].push_str(&next);
                }
            }
            let (mut assembler, now) = (Assembler::default(), Instant::now());
            prop_assert!(assembler.begin(lines[0].as_bytes(), now));
            let (last, middle) = lines[1..].split_last().unwrap();
            for line in middle {
                prop_assert_eq!(assembler.go_on(line.as_bytes()), Step::Held);
            }
            let Step::Whole(text) = assembler.go_on(last.as_bytes()) else { panic!("not whole") };
            prop_assert_eq!(String::from_utf8(text).unwrap(), lines.join("\n"));
        }

        #[test]
        fn no_line_is_lost(
            lines in prop::collection::vec("[\\[\\]{}\",:a1 \\\\-]{0,6}", 0..12),
        ) {
            let (mut assembler, now) = (Assembler::default(), Instant::now());
            let mut given: Vec<u8> = Vec::new();
            let mut put = |text: &[u8]| { given.extend_from_slice(text); given.push(b'\n'); };
            for line in &lines {
                let mut is_taken = false;
                if !assembler.is_empty() {
                    is_taken = match assembler.go_on(line.as_bytes()) {
                        Step::Held => true,
                        Step::Whole(text) => { put(&text); true }
                        Step::NotMessage(text) => { put(&text); false }
                    };
                }
                if !is_taken && !assembler.begin(line.as_bytes(), now) {
                    put(line.as_bytes());
                }
            }
            if !assembler.is_empty() {
                put(&assembler.give_up());
            }
            let all: Vec<u8> = lines.iter().flat_map(|it| [it.as_bytes(), b"\n"].concat()).collect();
            prop_assert_eq!(given, all);
        }
    }
}
