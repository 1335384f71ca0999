//! The envelope of a message: JSON-RPC 2.0, one message per line.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::CallError;

/// The ID of a request, returned unchanged in its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RequestId {
    /// An integer.
    Number(i64),
    /// A string.
    Text(String),
    /// The ID of a request whose ID is missing or could not be parsed.
    Null,
}

/// A received request or notification, whose params are not parsed yet.
#[derive(Debug)]
pub struct Incoming {
    /// The ID; `None` for a notification, which gets no answer.
    pub id: Option<RequestId>,
    /// The method.
    pub method: String,
    /// The params as written.
    pub params: Option<Box<RawValue>>,
}

/// The reason why a line is not a request, and the ID to answer with.
#[derive(Debug)]
pub struct InvalidRequest {
    /// The ID, or [`RequestId::Null`] if it is missing or could not be parsed.
    pub id: RequestId,
    /// The error to answer with.
    pub error: CallError,
}

impl Incoming {
    /// Parses one line.
    pub fn parse(line: &[u8]) -> Result<Self, InvalidRequest> {
        let unparsed = |error| InvalidRequest { id: RequestId::Null, error };
        let text = std::str::from_utf8(line)
            .map_err(|_| unparsed(CallError::parse("the message is not valid UTF-8")))?;
        if text.trim_start().starts_with('[') {
            let error = CallError::invalid_request("batches are not supported")
                .hint("send one request per line");
            return Err(unparsed(error));
        }
        let envelope: Envelope = serde_json::from_str(text).map_err(|cause| {
            unparsed(if cause.is_data() {
                CallError::invalid_request("the message is not a JSON-RPC 2.0 request")
            } else {
                CallError::parse("the message is not valid JSON").cause(cause)
            })
        })?;
        envelope.check()
    }
}

/// The fields of a message. Every field is optional, so that the error can name a missing one.
#[derive(Deserialize)]
struct Envelope {
    jsonrpc: Option<Value>,
    #[serde(default, deserialize_with = "deserialize_present")]
    id: Option<Value>,
    method: Option<Value>,
    params: Option<Box<RawValue>>,
}

/// Distinguishes `"id": null` from a missing ID.
fn deserialize_present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Envelope {
    fn check(self) -> Result<Incoming, InvalidRequest> {
        let id = match self.id {
            None => None,
            Some(Value::Null) => Some(RequestId::Null),
            Some(Value::String(text)) => Some(RequestId::Text(text)),
            Some(Value::Number(number)) if number.is_i64() => {
                Some(RequestId::Number(number.as_i64().unwrap_or_default()))
            }
            Some(_) => {
                let error =
                    CallError::invalid_request("`id` is neither a string nor a whole number");
                return Err(InvalidRequest { id: RequestId::Null, error });
            }
        };
        let invalid = |what: &str| InvalidRequest {
            id: id.clone().unwrap_or(RequestId::Null),
            error: CallError::invalid_request(what),
        };
        if self.jsonrpc != Some(Value::from("2.0")) {
            return Err(invalid("`jsonrpc` is not \"2.0\""));
        }
        let Some(Value::String(method)) = self.method else {
            return Err(invalid("`method` is not a string"));
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
    /// Creates a request.
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
    /// Creates the answer to a successful request.
    pub fn result(id: &'a RequestId, result: &'a RawValue) -> Self {
        Self { jsonrpc: "2.0", id, result: Some(result), error: None }
    }

    /// Creates the answer to a failed request.
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
    /// Creates a notification.
    pub fn new(method: &'a str, params: P) -> Self {
        Self { jsonrpc: "2.0", method, params }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rejection(line: &str) -> String {
        let rejected = Incoming::parse(line.as_bytes()).unwrap_err();
        format!("{:?} {} {}", rejected.id, rejected.error.code(), rejected.error.message)
    }

    #[test]
    fn request_is_parsed_and_params_stay_raw() {
        let line = br#"{"jsonrpc":"2.0","id":7,"method":"status","params":{ "name" : "a" }}"#;
        let incoming = Incoming::parse(line).unwrap();
        assert_eq!(incoming.id, Some(RequestId::Number(7)));
        assert_eq!(incoming.method, "status");
        assert_eq!(incoming.params.unwrap().get(), r#"{ "name" : "a" }"#);
    }

    #[test]
    fn null_id_is_not_a_notification() {
        let notification = Incoming::parse(br#"{"jsonrpc":"2.0","method":"list"}"#).unwrap();
        assert_eq!(notification.id, None);
        let request = Incoming::parse(br#"{"jsonrpc":"2.0","id":null,"method":"list"}"#).unwrap();
        assert_eq!(request.id, Some(RequestId::Null));
    }

    #[test]
    fn invalid_request_is_rejected_with_the_reason() {
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
        let rejections: Vec<String> = lines.iter().map(|line| rejection(line)).collect();
        insta::assert_snapshot!(rejections.join("\n"), @r#"
        Null -32700 the message is not valid JSON
        Null -32700 the message is not valid JSON
        Null -32600 the message is not a JSON-RPC 2.0 request
        Null -32600 batches are not supported
        Number(1) -32600 `jsonrpc` is not "2.0"
        Number(1) -32600 `method` is not a string
        Text("a") -32600 `method` is not a string
        Null -32600 `id` is neither a string nor a whole number
        Null -32600 `id` is neither a string nor a whole number
        "#);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Incoming::parse(&line);
        }
    }
}
