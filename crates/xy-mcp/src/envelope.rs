//! The envelope of a JSON-RPC message.
//!
//! Everything borrowed points into the parsed text, so that a part can be replaced in place: see
//! [`crate::edit`].

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A JSON-RPC message, as far as a proxy must understand it.
#[derive(Debug, Clone)]
pub enum Message<'t> {
    /// A request.
    Request {
        /// The ID as written: `7`, `"seven"`.
        id: &'t str,
        /// The method.
        method: Cow<'t, str>,
        /// The text of the params.
        params: Option<&'t str>,
    },
    /// A notification.
    Notification {
        /// The method.
        method: Cow<'t, str>,
        /// The text of the params.
        params: Option<&'t str>,
    },
    /// A response.
    Response {
        /// The ID of the request; `None` for `null`, the response to a message that could not be
        /// parsed.
        id: Option<&'t str>,
        /// The result or the error.
        outcome: Outcome<'t>,
    },
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'t> {
    /// The text of the result.
    Result(&'t str),
    /// The text of the error.
    Error(&'t str),
}

/// Why a text is not a message, with the error code of JSON-RPC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The text is not JSON.
    #[error("this is not JSON: {0}")]
    NotJson(String),
    /// The text is JSON, but not a JSON-RPC message.
    #[error("this is not a JSON-RPC message: {reason}")]
    NotAMessage {
        /// The violation.
        reason: String,
        /// The ID as written, so that an error can be sent.
        id: Option<String>,
    },
    /// The text is a batch: several messages in an array.
    #[error("batches are not supported in this revision of MCP")]
    Batch,
}

impl Malformed {
    /// Returns the error code of JSON-RPC.
    pub fn code(&self) -> i64 {
        match self {
            Self::NotJson(_) => -32700,
            Self::NotAMessage { .. } | Self::Batch => -32600,
        }
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Envelope<'t> {
    #[serde(borrow, default)]
    jsonrpc: Option<&'t RawValue>,
    #[serde(borrow, default, deserialize_with = "deserialize_raw")]
    id: Option<&'t RawValue>,
    #[serde(borrow, default)]
    method: Option<&'t RawValue>,
    #[serde(borrow, default)]
    params: Option<&'t RawValue>,
    #[serde(borrow, default, deserialize_with = "deserialize_raw")]
    result: Option<&'t RawValue>,
    #[serde(borrow, default)]
    error: Option<&'t RawValue>,
}

/// Deserialises a value that may be `null`: a `null` result is a result, and a `null` ID is
/// distinct from a missing one.
fn deserialize_raw<'t, D: Deserializer<'t>>(value: D) -> Result<Option<&'t RawValue>, D::Error> {
    <&RawValue>::deserialize(value).map(Some)
}

/// Parses the envelope of a message. The whole text is checked to be JSON.
pub fn parse(text: &[u8]) -> Result<Message<'_>, Malformed> {
    // All of the text must be valid UTF-8, because its receiver parses the parts skipped here.
    let text = std::str::from_utf8(text).map_err(|cause| Malformed::NotJson(cause.to_string()))?;
    if text.trim_ascii_start().starts_with('[') {
        let valid = serde_json::from_str::<&RawValue>(text);
        return Err(
            valid.map_or_else(|cause| Malformed::NotJson(cause.to_string()), |_| Malformed::Batch)
        );
    }
    let envelope: Envelope<'_> = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(cause) if cause.is_data() => return Err(not_a_message(cause.to_string(), None)),
        Err(cause) => return Err(Malformed::NotJson(cause.to_string())),
    };
    envelope.message()
}

fn not_a_message(reason: impl Into<String>, id: Option<&str>) -> Malformed {
    Malformed::NotAMessage { reason: reason.into(), id: id.map(str::to_owned) }
}

impl<'t> Envelope<'t> {
    fn message(self) -> Result<Message<'t>, Malformed> {
        let id = match self.id.map(RawValue::get) {
            // A response to an unparsable message has a `null` ID, and some peers send one in
            // notifications. A request with a `null` ID could not be answered.
            Some("null") if self.may_have_null_id() => None,
            Some(id) if !is_id(id) => {
                return Err(not_a_message("`id` is neither a string nor a number", None));
            }
            id => id,
        };
        if self.jsonrpc.map(RawValue::get) != Some(r#""2.0""#) {
            return Err(not_a_message(r#"`jsonrpc` is not "2.0""#, id));
        }
        let Some(method) = self.method else {
            // Some peers send both members, one of them `null`. An error cannot be `null`.
            let outcome = match (self.result.map(RawValue::get), self.error) {
                (Some(result), None) => Outcome::Result(result),
                (None | Some("null"), Some(error)) => Outcome::Error(error.get()),
                _ => {
                    return Err(not_a_message(
                        "it has no `method`, and not exactly one of `result` and `error`",
                        id,
                    ));
                }
            };
            return Ok(Message::Response { id, outcome });
        };
        let method =
            text_of(method.get()).ok_or_else(|| not_a_message("`method` is not a string", id))?;
        let params = self.params.map(RawValue::get);
        if params.is_some_and(|params| !params.starts_with(['{', '['])) {
            return Err(not_a_message("`params` is neither an object nor an array", id));
        }
        Ok(match id {
            Some(id) => Message::Request { id, method, params },
            None => Message::Notification { method, params },
        })
    }
}

impl Envelope<'_> {
    fn may_have_null_id(&self) -> bool {
        let method = self.method.map(RawValue::get);
        method.is_none_or(|method| method.starts_with(r#""notifications/"#))
    }
}

/// Returns true if a raw value can be an ID.
fn is_id(raw: &str) -> bool {
    raw.starts_with(['"', '-']) || raw.starts_with(|first: char| first.is_ascii_digit())
}

/// Returns the text of a JSON string, borrowed unless it has escapes; `None` for other values.
pub fn text_of(raw: &str) -> Option<Cow<'_, str>> {
    let content = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', content.as_bytes()).is_none() {
        return Some(Cow::Borrowed(content));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::edit::Edits;

    /// Returns a short description of a message.
    fn summary(text: &str) -> String {
        match parse(text.as_bytes()) {
            Ok(Message::Request { id, method, params }) => {
                format!("request {id} {method} {params:?}")
            }
            Ok(Message::Notification { method, params }) => {
                format!("notification {method} {params:?}")
            }
            Ok(Message::Response { id, outcome }) => format!("answer {id:?} {outcome:?}"),
            Err(problem) => format!("{} {problem}", problem.code()),
        }
    }

    #[test]
    fn envelope_determines_the_kind_of_message() {
        let table = [
            (r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#, "request 7 m None"),
            (
                r#"{"id":"a\"b","params":[1],"method":"m","jsonrpc":"2.0"}"#,
                r#"request "a\"b" m Some("[1]")"#,
            ),
            (r#"{"jsonrpc":"2.0","id":-1.5e3,"method":"t\u006fols"}"#, "request -1.5e3 tools None"),
            (
                r#" {"jsonrpc":"2.0","method":"m","params":{ "a" : 1.50 }} "#,
                r#"notification m Some("{ \"a\" : 1.50 }")"#,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/m","id":null}"#,
                "notification notifications/m None",
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
            assert_eq!(summary(text), expected, "{text}");
        }
    }

    #[test]
    fn malformed_message_is_rejected_with_its_code() {
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
            assert!(summary(text).starts_with(code), "{text}: {}", summary(text));
        }
        let Err(Malformed::NotAMessage { id, .. }) =
            parse(br#"{"jsonrpc":"2.0","id":"x","method":7}"#)
        else {
            panic!("it is no message");
        };
        assert_eq!(id.as_deref(), Some(r#""x""#), "it can be answered");
        assert_eq!(
            summary("7"),
            "-32600 this is not a JSON-RPC message: invalid type: integer `7`, expected an object at \
             line 1 column 1"
        );
    }

    #[test]
    fn invalid_utf8_is_rejected_everywhere() {
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
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn replacing_the_id_keeps_the_rest(
            id in prop_oneof![any::<i64>().prop_map(Value::from), ".*".prop_map(Value::from)],
            content in any_json(),
            is_pretty in any::<bool>(),
        ) {
            let before = json!({"jsonrpc": "2.0", "id": id, "method": "m", "params": {"x": content}});
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
