//! A message's outside. Everything borrowed points into the text that was read, so a part
//! can be replaced where it stands: see [`crate::edit`].

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// One JSON-RPC message, as far as a proxy has to know it.
#[derive(Debug, Clone)]
pub enum Message<'t> {
    /// Asks for an answer.
    Request {
        /// As it was written: `7`, `"seven"`.
        id: &'t str,
        /// What is asked.
        method: Cow<'t, str>,
        /// The text of its params.
        params: Option<&'t str>,
    },
    /// Tells something.
    Notification {
        /// What is told.
        method: Cow<'t, str>,
        /// The text of its params.
        params: Option<&'t str>,
    },
    /// Answers a request.
    Answer {
        /// Of which request; `None` for `null`, which answers what could not be read.
        id: Option<&'t str>,
        /// What came of it.
        outcome: Outcome<'t>,
    },
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'t> {
    /// The text of the result.
    Result(&'t str),
    /// The text of the error.
    Error(&'t str),
}

/// Why a text is no message, in the codes of JSON-RPC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not JSON at all.
    #[error("this is not JSON: {0}")]
    NotJson(String),
    /// JSON, but not a JSON-RPC message.
    #[error("this is not a JSON-RPC message: {reason}")]
    NotAMessage {
        /// What is wrong with it.
        reason: String,
        /// The id it had, as written, so that it can be answered.
        id: Option<String>,
    },
    /// Several messages in an array.
    #[error("this is a batch of messages, which this revision of MCP does not have")]
    Batch,
}

impl Malformed {
    /// The code of JSON-RPC for it.
    pub fn code(&self) -> i64 {
        match self {
            Self::NotJson(_) => -32700,
            Self::NotAMessage { .. } | Self::Batch => -32600,
        }
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Outside<'t> {
    #[serde(borrow, default)]
    jsonrpc: Option<&'t RawValue>,
    #[serde(borrow, default, deserialize_with = "as_written")]
    id: Option<&'t RawValue>,
    #[serde(borrow, default)]
    method: Option<&'t RawValue>,
    #[serde(borrow, default)]
    params: Option<&'t RawValue>,
    #[serde(borrow, default, deserialize_with = "as_written")]
    result: Option<&'t RawValue>,
    #[serde(borrow, default)]
    error: Option<&'t RawValue>,
}

/// A value that may be `null`: a result is one whatever it is, and an id of a request is none.
fn as_written<'t, D: Deserializer<'t>>(value: D) -> Result<Option<&'t RawValue>, D::Error> {
    <&RawValue>::deserialize(value).map(Some)
}

/// Reads the outside of a message; the whole text is checked to be JSON.
pub fn parse(text: &[u8]) -> Result<Message<'_>, Malformed> {
    // All of it: what is passed over here is read by whoever it goes to.
    let text = std::str::from_utf8(text).map_err(|cause| Malformed::NotJson(cause.to_string()))?;
    if text.trim_ascii_start().starts_with('[') {
        let valid = serde_json::from_str::<&RawValue>(text);
        return Err(
            valid.map_or_else(|cause| Malformed::NotJson(cause.to_string()), |_| Malformed::Batch)
        );
    }
    let outside: Outside<'_> = match serde_json::from_str(text) {
        Ok(outside) => outside,
        Err(cause) if cause.is_data() => return Err(wrong(cause.to_string(), None)),
        Err(cause) => return Err(Malformed::NotJson(cause.to_string())),
    };
    outside.message()
}

fn wrong(reason: impl Into<String>, id: Option<&str>) -> Malformed {
    Malformed::NotAMessage { reason: reason.into(), id: id.map(str::to_owned) }
}

impl<'t> Outside<'t> {
    fn message(self) -> Result<Message<'t>, Malformed> {
        let id = match self.id.map(RawValue::get) {
            // What could not be read is answered like this; and some write it where they ask
            // nothing. Where something is asked, it could not be answered.
            Some("null") if self.is_no_question() => None,
            Some(id) if !is_id(id) => {
                return Err(wrong("`id` is neither a string nor a number", None));
            }
            id => id,
        };
        if self.jsonrpc.map(RawValue::get) != Some(r#""2.0""#) {
            return Err(wrong(r#"`jsonrpc` is not "2.0""#, id));
        }
        let Some(method) = self.method else {
            // Some write the one that it is not as `null`, which `error` cannot be.
            let outcome = match (self.result.map(RawValue::get), self.error) {
                (Some(result), None) => Outcome::Result(result),
                (None | Some("null"), Some(error)) => Outcome::Error(error.get()),
                _ => {
                    return Err(wrong(
                        "it has no `method`, and not one of `result` and `error`",
                        id,
                    ));
                }
            };
            return Ok(Message::Answer { id, outcome });
        };
        let method = text_of(method.get()).ok_or_else(|| wrong("`method` is not a string", id))?;
        let params = self.params.map(RawValue::get);
        if params.is_some_and(|params| !params.starts_with(['{', '['])) {
            return Err(wrong("`params` is neither an object nor an array", id));
        }
        Ok(match id {
            Some(id) => Message::Request { id, method, params },
            None => Message::Notification { method, params },
        })
    }
}

impl Outside<'_> {
    fn is_no_question(&self) -> bool {
        let method = self.method.map(RawValue::get);
        method.is_none_or(|method| method.starts_with(r#""notifications/"#))
    }
}

/// Whether a value, as it is written, may be an id.
fn is_id(raw: &str) -> bool {
    raw.starts_with(['"', '-']) || raw.starts_with(|first: char| first.is_ascii_digit())
}

/// The text of a JSON string, borrowed unless it has escapes; `None` for other values.
pub fn text_of(raw: &str) -> Option<Cow<'_, str>> {
    let inside = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inside.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inside));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::edit::Edits;

    /// A message in a few words.
    fn read(text: &str) -> String {
        match parse(text.as_bytes()) {
            Ok(Message::Request { id, method, params }) => {
                format!("request {id} {method} {params:?}")
            }
            Ok(Message::Notification { method, params }) => format!("told {method} {params:?}"),
            Ok(Message::Answer { id, outcome }) => format!("answer {id:?} {outcome:?}"),
            Err(problem) => format!("{} {problem}", problem.code()),
        }
    }

    #[test]
    fn the_outside_of_a_message_tells_what_it_is() {
        let table = [
            (r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#, "request 7 m None"),
            (
                r#"{"id":"a\"b","params":[1],"method":"m","jsonrpc":"2.0"}"#,
                r#"request "a\"b" m Some("[1]")"#,
            ),
            (r#"{"jsonrpc":"2.0","id":-1.5e3,"method":"t\u006fols"}"#, "request -1.5e3 tools None"),
            (
                r#" {"jsonrpc":"2.0","method":"m","params":{ "a" : 1.50 }} "#,
                r#"told m Some("{ \"a\" : 1.50 }")"#,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/m","id":null}"#,
                "told notifications/m None",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{},"error":null}"#,
                r#"answer Some("1") Result("{}")"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1}}"#,
                r#"answer Some("1") Error("{\"code\":1}")"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"x":[1]},"more":2}"#,
                r#"answer Some("1") Result("{\"x\":[1]}")"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":null,"error":null}"#,
                r#"answer Some("1") Result("null")"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#,
                r#"answer None Error("{\"code\":1}")"#,
            ),
        ];
        for (text, expected) in table {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused_with_the_code_for_it() {
        let table = [
            ("", "-32700"),
            ("{", "-32700"),
            ("nonsense", "-32700"),
            ("{}{}", "-32700"),
            ("\u{0}", "-32700"),
            ("[]", "-32600"),
            (r#"[{"jsonrpc":"2.0"}]"#, "-32600"),
            ("[", "-32700"),
            ("7", "-32600"),
            ("null", "-32600"),
            ("{}", "-32600"),
            (r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":1,"error":null}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":[1],"method":"m"}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":true,"method":"m"}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":7}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":1}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#, "-32600"),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}"#, "-32600"),
        ];
        for (text, code) in table {
            assert!(read(text).starts_with(code), "{text}: {}", read(text));
        }
        let Err(Malformed::NotAMessage { id, .. }) =
            parse(br#"{"jsonrpc":"2.0","id":"x","method":7}"#)
        else {
            panic!("it is no message");
        };
        assert_eq!(id.as_deref(), Some(r#""x""#), "it can be answered");
        assert_eq!(
            read("7"),
            "-32600 this is not a JSON-RPC message: invalid type: integer `7`, expected an object at \
             line 1 column 1"
        );
    }

    #[test]
    fn what_is_no_text_is_refused_wherever_it_stands() {
        for text in [
            &b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"x\":\"\xff\"}"[..],
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{},\"\xfe\":1}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"x\":\"\xff\"}}",
            b"[\"\xff\"]",
        ] {
            assert!(matches!(parse(text), Err(Malformed::NotJson(_))), "{text:?}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn with_another_id_a_request_is_otherwise_the_same(
            id in prop_oneof![any::<i64>().prop_map(Value::from), ".*".prop_map(Value::from)],
            inside in any_json(),
            is_pretty in any::<bool>(),
        ) {
            let before = json!({"jsonrpc": "2.0", "id": id, "method": "m", "params": {"x": inside}});
            let text = if is_pretty { format!("{before:#}") } else { before.to_string() };
            let Ok(Message::Request { id, .. }) = parse(text.as_bytes()) else {
                panic!("it is a request: {text}");
            };
            let mut edits = Edits::of(text.as_bytes());
            edits.replace(id, "900");
            let edited = edits.to_vec();
            prop_assert!(!edited.contains(&b'\n'), "it is one line");
            let after: Value = serde_json::from_slice(&edited).unwrap();
            prop_assert_eq!(&after["id"], 900);
            prop_assert_eq!(&after["params"], &before["params"]);
        }
    }
}
