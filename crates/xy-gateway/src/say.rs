//! What xy itself says to a client: answers and errors, as lines of JSON.

use xy_protocol::error::{CallError, ErrorKind};

use crate::names::quoted;

/// The answer to request `id`, with `result` as it is.
pub(crate) fn result(id: &str, result: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).into_bytes()
}

/// An error instead of an answer; `id` is `null` if it is not known.
pub(crate) fn error(id: &str, code: i64, message: &str) -> Vec<u8> {
    let message = quoted(message);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}}}}}"#)
        .into_bytes()
}

/// An error of ours, for people.
pub(crate) fn fault(id: &str, fault: &CallError) -> Vec<u8> {
    let mut message = fault.to_string();
    if let Some(hint) = &fault.hint {
        message = format!("{message}; {hint}");
    }
    error(id, i64::from(fault.code()), &message)
}

/// A notification.
pub(crate) fn notification(method: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#).into_bytes()
}

/// The request is not one that can be answered like this.
pub(crate) fn invalid(message: impl Into<String>) -> CallError {
    CallError::new(ErrorKind::InvalidParams, message.into())
}
