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

#[cfg(test)]
mod tests {
    use super::*;

    fn text(message: Vec<u8>) -> String {
        String::from_utf8(message).unwrap()
    }

    #[test]
    fn an_error_says_what_why_and_what_next_on_one_line() {
        let problem = CallError::new(ErrorKind::NotRunning, "`a` is not \"there\"")
            .cause("it has\nended")
            .hint("start it");
        assert_eq!(
            text(fault("7", &problem)),
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32005,"message":"`a` is not \"there\": it has\nended; start it"}}"#
        );
    }

    #[test]
    fn ids_and_results_stay_as_they_are_written() {
        let id = r#""\u00e9""#;
        assert_eq!(text(result(id, "1.50")), r#"{"jsonrpc":"2.0","id":"\u00e9","result":1.50}"#);
        assert_eq!(text(notification("n/m")), r#"{"jsonrpc":"2.0","method":"n/m"}"#);
    }
}
