//! Messages that the bridge itself creates or rewrites.

use serde::Serialize;
use serde_json::value::RawValue;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{Message, parse};
use xy_protocol::error::CallError;

/// Appends an error response to the request with this id, which is raw JSON.
///
/// Clients show users little but the message, so it includes the cause and the hint.
pub(in super::super) fn error_response(id: &str, error: &CallError, out: &mut Vec<u8>) {
    #[derive(Serialize)]
    struct Line<'t> {
        jsonrpc: &'t str,
        id: Option<&'t RawValue>,
        error: Error<'t>,
    }
    #[derive(Serialize)]
    struct Error<'t> {
        code: i32,
        message: String,
        data: Data<'t>,
    }
    #[derive(Serialize)]
    struct Data<'t> {
        kind: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        cause: Option<&'t str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        hint: Option<&'t str>,
    }
    let message = match &error.hint {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    };
    let kind = format!("{:?}", error.kind);
    let data = Data { kind, cause: error.cause.as_deref(), hint: error.hint.as_deref() };
    let error = Error { code: error.code(), message, data };
    // An id that is not JSON becomes null, as for unparsable messages.
    let id = serde_json::from_str(id).ok();
    serde_json::to_writer(&mut *out, &Line { jsonrpc: "2.0", id, error })
        .expect("a response always serialises");
    out.push(b'\n');
}

/// Appends a `notifications/cancelled` for the request with this id. The reason is not escaped, so
/// it must not need escapes.
pub(super) fn cancelled(id: &str, reason: &str, out: &mut Vec<u8>) {
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"{reason}"}}}}"#
    );
    out.extend_from_slice(line.as_bytes());
    out.push(b'\n');
}

/// Returns the line with another id: its own, or that of the request it cancels.
pub(super) fn with_id(line: &[u8], old: &str, new: &str) -> Vec<u8> {
    let id = match parse(line) {
        Ok(Message::Request { id, .. } | Message::Response { id: Some(id), .. }) => Some(id),
        Ok(Message::Notification { params, .. }) => super::request_id(params),
        _ => None,
    };
    let Some(id) = id.filter(|id| *id == old) else {
        return line.to_vec();
    };
    let mut edits = Edits::of(line.trim_ascii_end());
    edits.replace(id, new);
    let mut line = edits.to_vec();
    line.push(b'\n');
    line
}
