//! The envelope: JSON-RPC 2.0, one message per line.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::CallError;

/// The id of a request, given back in its answer as it came.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RequestId {
    /// A whole number.
    Number(i64),
    /// A text.
    Text(String),
    /// The id of a request that could not be read.
    Null,
}

/// A request or a notification as it arrives: its params are not read yet.
#[derive(Debug)]
pub struct Incoming {
    /// `None` for a notification, which gets no answer.
    pub id: Option<RequestId>,
    /// What is asked.
    pub method: String,
    /// The params as written.
    pub params: Option<Box<RawValue>>,
}

/// Why a line is no request, and the id to answer with.
#[derive(Debug)]
pub struct NotARequest {
    /// The id, as far as it could be read.
    pub id: RequestId,
    /// What is wrong with it.
    pub error: CallError,
}

impl Incoming {
    /// Reads one line.
    pub fn parse(line: &[u8]) -> Result<Self, NotARequest> {
        let unreadable = |error| NotARequest { id: RequestId::Null, error };
        let text = std::str::from_utf8(line)
            .map_err(|_| unreadable(CallError::parse("the message is not valid UTF-8")))?;
        if text.trim_start().starts_with('[') {
            let error = CallError::invalid_request("batches are not supported")
                .hint("send one request per line");
            return Err(unreadable(error));
        }
        let envelope: Envelope = serde_json::from_str(text).map_err(|cause| {
            unreadable(if cause.is_data() {
                CallError::invalid_request("the message is not a JSON-RPC 2.0 request")
            } else {
                CallError::parse("the message is not valid JSON").cause(cause)
            })
        })?;
        envelope.check()
    }
}

/// What a line may hold; every field is optional, so that each can be missed by name.
#[derive(Deserialize)]
struct Envelope {
    jsonrpc: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    method: Option<Value>,
    params: Option<Box<RawValue>>,
}

/// Tells `"id": null` from no id at all.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Envelope {
    fn check(self) -> Result<Incoming, NotARequest> {
        let id = match self.id {
            None => None,
            Some(Value::Null) => Some(RequestId::Null),
            Some(Value::String(text)) => Some(RequestId::Text(text)),
            Some(Value::Number(number)) if number.is_i64() => {
                Some(RequestId::Number(number.as_i64().unwrap_or_default()))
            }
            Some(_) => {
                let error = CallError::invalid_request("`id` is neither a text nor a whole number");
                return Err(NotARequest { id: RequestId::Null, error });
            }
        };
        let wrong = |what: &str| NotARequest {
            id: id.clone().unwrap_or(RequestId::Null),
            error: CallError::invalid_request(what),
        };
        if self.jsonrpc != Some(Value::from("2.0")) {
            return Err(wrong("`jsonrpc` is not \"2.0\""));
        }
        let Some(Value::String(method)) = self.method else {
            return Err(wrong("`method` is not a text"));
        };
        Ok(Incoming { id, method, params: self.params })
    }
}

/// A request as a front end sends it.
#[derive(Debug, Serialize)]
pub struct OutgoingRequest<'a> {
    jsonrpc: &'static str,
    id: i64,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<Box<RawValue>>,
}

impl<'a> OutgoingRequest<'a> {
    /// Asks for `method`.
    pub fn new(id: i64, method: &'a str, params: Option<Box<RawValue>>) -> Self {
        Self { jsonrpc: "2.0", id, method, params }
    }
}

/// An answer as the daemon sends it.
#[derive(Debug, Serialize)]
pub struct OutgoingResponse<'a> {
    jsonrpc: &'static str,
    id: &'a RequestId,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a CallError>,
}

impl<'a> OutgoingResponse<'a> {
    /// The request `id` was done.
    pub fn result(id: &'a RequestId, result: &'a RawValue) -> Self {
        Self { jsonrpc: "2.0", id, result: Some(result), error: None }
    }

    /// The request `id` was not done.
    pub fn error(id: &'a RequestId, error: &'a CallError) -> Self {
        Self { jsonrpc: "2.0", id, result: None, error: Some(error) }
    }
}

/// A notification as the daemon sends it.
#[derive(Debug, Serialize)]
pub struct OutgoingNotification<'a, P> {
    jsonrpc: &'static str,
    method: &'a str,
    params: P,
}

impl<'a, P: Serialize> OutgoingNotification<'a, P> {
    /// Tells `method`.
    pub fn new(method: &'a str, params: P) -> Self {
        Self { jsonrpc: "2.0", method, params }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal(line: &str) -> String {
        let refused = Incoming::parse(line.as_bytes()).unwrap_err();
        format!("{:?} {} {}", refused.id, refused.error.code(), refused.error.message)
    }

    #[test]
    fn a_request_is_read_and_its_params_are_left_as_written() {
        let line = br#"{"jsonrpc":"2.0","id":7,"method":"status","params":{ "name" : "a" }}"#;
        let incoming = Incoming::parse(line).unwrap();
        assert_eq!(incoming.id, Some(RequestId::Number(7)));
        assert_eq!(incoming.method, "status");
        assert_eq!(incoming.params.unwrap().get(), r#"{ "name" : "a" }"#);
    }

    #[test]
    fn a_notification_has_no_id_but_a_null_id_is_one() {
        let told = Incoming::parse(br#"{"jsonrpc":"2.0","method":"list"}"#).unwrap();
        assert_eq!(told.id, None);
        let asked = Incoming::parse(br#"{"jsonrpc":"2.0","id":null,"method":"list"}"#).unwrap();
        assert_eq!(asked.id, Some(RequestId::Null));
    }

    #[test]
    fn what_is_no_request_is_refused_with_the_reason() {
        let lines = [
            "",
            "{",
            "42",
            "[]",
            r#"{"jsonrpc":"1.0","id":1,"method":"list"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":"a","method":5}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"list"}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"list"}"#,
        ];
        let told: Vec<String> = lines.iter().map(|line| refusal(line)).collect();
        insta::assert_snapshot!(told.join("\n"), @r#"
        Null -32700 the message is not valid JSON
        Null -32700 the message is not valid JSON
        Null -32600 the message is not a JSON-RPC 2.0 request
        Null -32600 batches are not supported
        Number(1) -32600 `jsonrpc` is not "2.0"
        Number(1) -32600 `method` is not a text
        Text("a") -32600 `method` is not a text
        Null -32600 `id` is neither a text nor a whole number
        Null -32600 `id` is neither a text nor a whole number
        "#);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Incoming::parse(&line);
        }
    }
}
