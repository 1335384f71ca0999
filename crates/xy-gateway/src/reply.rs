//! What xy itself says to a client: answers and errors, as lines of JSON.

use std::time::Duration;

use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;

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
        // Lines of a server's stderr end before the hint begins.
        let separator = if message.contains('\n') { "\n" } else { "; " };
        message = format!("{message}{separator}{hint}");
    }
    error(id, i64::from(code(fault.kind)), &message)
}

/// Returns the code of an error for MCP clients. A call that was sent and not answered has one
/// code, whatever the cause: its outcome is unknown.
pub(crate) fn code(kind: ErrorKind) -> i32 {
    if kind.is_outcome_unknown() { ErrorKind::OutcomeUnknown.code() } else { kind.code() }
}

/// A notification.
pub(crate) fn notification(method: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#).into_bytes()
}

/// The request is not one that can be answered like this.
pub(crate) fn invalid(message: impl Into<String>) -> CallError {
    CallError::new(ErrorKind::InvalidParams, message.into())
}

/// How long something took, for people.
pub(crate) fn time(time: Duration) -> String {
    if time.is_zero() { "0s".to_owned() } else { format!("{time:?}") }
}

/// What is said of the process of `owner` to who has asked it under another of its names.
/// Names stand in backticks, alone or at the end of a command.
pub(crate) fn under(asked: &ServerName, owner: &ServerName, fault: &CallError) -> CallError {
    if asked == owner {
        return fault.clone();
    }
    let renamed = |text: &str| {
        let text = text.replace(&format!("`{owner}`"), &format!("`{asked}`"));
        text.replace(&format!(" {owner}`"), &format!(" {asked}`"))
    };
    CallError {
        kind: fault.kind,
        message: renamed(&fault.message),
        cause: fault.cause.as_deref().map(renamed),
        hint: fault.hint.as_deref().map(renamed),
        problems: fault.problems.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_a_process_names_it_as_it_was_asked() {
        let (a, b) = (ServerName::new("a").unwrap(), ServerName::new("b-2").unwrap());
        let fault = CallError::new(ErrorKind::NotRunning, "`a` is not a running `xy a b`")
            .cause("`ab` and `b__a` are others; `a` died")
            .hint("`xy logs a` says more, and so does a");
        let under_b = under(&b, &a, &fault);
        assert_eq!(under_b.message, "`b-2` is not a running `xy a b`");
        assert_eq!(under_b.cause.unwrap(), "`ab` and `b__a` are others; `b-2` died");
        assert_eq!(under_b.hint.unwrap(), "`xy logs b-2` says more, and so does a");
        assert_eq!(under(&a, &a, &fault).to_string(), fault.to_string());
    }

    #[test]
    fn no_time_is_no_nanoseconds() {
        assert_eq!(time(Duration::ZERO), "0s");
        assert_eq!(time(Duration::from_millis(1500)), "1.5s");
    }

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
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32005,"message":"`a` is not \"there\": it has\nended\nstart it"}}"#
        );
    }

    #[test]
    fn to_clients_a_broken_way_is_an_unknown_outcome() {
        let problem = CallError::new(ErrorKind::TransportFailed, "it broke");
        assert!(text(fault("7", &problem)).contains(r#""code":-32010,"#));
    }

    #[test]
    fn ids_and_results_stay_as_they_are_written() {
        let id = r#""\u00e9""#;
        assert_eq!(text(result(id, "1.50")), r#"{"jsonrpc":"2.0","id":"\u00e9","result":1.50}"#);
        assert_eq!(text(notification("n/m")), r#"{"jsonrpc":"2.0","method":"n/m"}"#);
    }
}
