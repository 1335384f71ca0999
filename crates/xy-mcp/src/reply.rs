//! JSON-RPC messages of xy itself, as lines of JSON.

use std::time::Duration;

use xy_protocol::error::{CallError, ErrorKind};

use crate::edit::quoted;

/// Formats a response with this result.
pub fn result(id: &str, result: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).into_bytes()
}

/// Formats an error response; `id` is `null` if unknown.
pub fn error(id: &str, code: i64, message: &str) -> Vec<u8> {
    let message = quoted(message);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}}}}}"#)
        .into_bytes()
}

/// Formats an error of xy, with its hint.
pub fn fault(id: &str, fault: &CallError) -> Vec<u8> {
    let mut message = fault.to_string();
    if let Some(hint) = &fault.hint {
        // The hint goes on a line of its own after lines of stderr.
        let separator = if message.contains('\n') { "\n" } else { "; " };
        message = format!("{message}{separator}{hint}");
    }
    error(id, i64::from(code(fault.kind)), &message)
}

/// Returns the code of an error for MCP clients. All calls that were sent and not answered share
/// one code: their outcome is unknown.
pub fn code(kind: ErrorKind) -> i32 {
    if kind.is_outcome_unknown() { ErrorKind::OutcomeUnknown.code() } else { kind.code() }
}

/// Formats a notification without params.
pub fn notification(method: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#).into_bytes()
}

/// Returns an error for invalid params.
pub fn invalid(message: impl Into<String>) -> CallError {
    CallError::new(ErrorKind::InvalidParams, message.into())
}

/// Formats a duration for people.
pub fn format_duration(time: Duration) -> String {
    if time.is_zero() { "0s".to_owned() } else { format!("{time:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_duration_has_no_nanoseconds() {
        assert_eq!(format_duration(Duration::ZERO), "0s");
        assert_eq!(format_duration(Duration::from_millis(1500)), "1.5s");
    }

    fn text(message: Vec<u8>) -> String {
        String::from_utf8(message).unwrap()
    }

    #[test]
    fn error_has_cause_and_hint_on_one_line() {
        let problem = CallError::new(ErrorKind::NotRunning, "`a` is not \"there\"")
            .cause("it has\nended")
            .hint("start it");
        assert_eq!(
            text(fault("7", &problem)),
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32005,"message":"`a` is not \"there\": it has\nended\nstart it"}}"#
        );
    }

    #[test]
    fn transport_failure_becomes_an_unknown_outcome() {
        let problem = CallError::new(ErrorKind::TransportFailed, "it broke");
        assert!(text(fault("7", &problem)).contains(r#""code":-32010,"#));
    }

    #[test]
    fn ids_and_results_are_not_reformatted() {
        let id = r#""\u00e9""#;
        assert_eq!(text(result(id, "1.50")), r#"{"jsonrpc":"2.0","id":"\u00e9","result":1.50}"#);
        assert_eq!(text(notification("n/m")), r#"{"jsonrpc":"2.0","method":"n/m"}"#);
    }
}
