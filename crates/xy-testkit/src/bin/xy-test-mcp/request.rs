//! A request that awaits its answer, and the JSON text of answers and notifications.

use std::sync::Arc;

use serde_json::Value;

use crate::responder::Responder;
use xy_testkit::json::{Members, quoted};

/// The error code of an unknown method.
pub(crate) const NO_METHOD: i64 = -32601;

/// The error code of invalid params.
pub(crate) const BAD_PARAMS: i64 = -32602;

/// A request to answer; its id is sent back unchanged.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) responder: Arc<Responder>,
}

impl Request {
    /// Answers with the JSON text `result`.
    pub(crate) fn result(&self, result: &str) {
        self.responder.answer(self.as_result(result));
    }

    /// Returns the text of an answer with the JSON text `result`.
    pub(crate) fn as_result(&self, result: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.id)
    }

    /// Answers with an error.
    pub(crate) fn refuse(&self, code: i64, why: &str) {
        self.responder.answer(refusal(&self.id, code, why));
    }
}

impl Request {
    /// Answers with the JSON text of an error.
    pub(crate) fn refuse_with(&self, error: &str) {
        self.responder.answer(format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, self.id));
    }
}

/// A `tools/call`.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) tool: String,
    pub(crate) arguments: Members,
    pub(crate) progress_token: Option<String>,
    /// The call requests a task, in a revision with `initialize`.
    pub(crate) is_task: bool,
    /// The client supports tasks, in the revision without `initialize`.
    pub(crate) knows_tasks: bool,
}

impl Call {
    pub(crate) fn new(request: Request, params: &Members) -> Option<Self> {
        Some(Self {
            request,
            tool: params.string("name")?,
            arguments: params.members("arguments"),
            is_task: params.raw("task").is_some(),
            knows_tasks: crate::modern_tasks::knows_tasks(params),
            progress_token: params.members("_meta").raw("progressToken").map(str::to_owned),
        })
    }

    /// Answers with a text.
    pub(crate) fn text(&self, text: &str) {
        self.request.result(&text_result(text));
    }

    /// Answers that the tool failed.
    pub(crate) fn failed(&self, why: &str) {
        let why = quoted(why);
        let content = format!(r#"[{{"type":"text","text":{why}}}]"#);
        self.request.result(&format!(r#"{{"content":{content},"isError":true}}"#));
    }

    /// Sends a notification; `params` is JSON text.
    pub(crate) fn notify(&self, method: &str, params: &str) {
        self.request.responder.send(notification(method, params));
    }

    /// Returns a numeric argument, or `otherwise` without one.
    pub(crate) fn number(&self, name: &str, otherwise: u64) -> u64 {
        self.arguments.number(name).unwrap_or(otherwise)
    }

    /// Returns a numeric argument as a size in memory, or `otherwise` without one.
    pub(crate) fn size(&self, name: &str, otherwise: u64) -> usize {
        usize::try_from(self.number(name, otherwise)).expect("a size")
    }

    /// Returns a string argument, or an empty string without one.
    pub(crate) fn string(&self, name: &str) -> String {
        self.arguments.string(name).unwrap_or_default()
    }
}

/// Returns a result with one text.
pub(crate) fn text_result(text: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, quoted(text))
}

/// Returns a result with structured content, and its JSON text as the only content.
pub(crate) fn structured_result(value: &Value) -> String {
    let text = quoted(&value.to_string());
    format!(r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{value}}}"#)
}

/// Returns an error response to the request `id`.
pub(crate) fn refusal(id: &str, code: i64, why: &str) -> String {
    let why = quoted(why);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{why}}}}}"#)
}

/// Returns the text of a notification; `params` is JSON text.
pub(crate) fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}
