//! A request that is to be answered, and the words of answers.

use std::sync::Arc;

use serde_json::Value;

use crate::outlet::Outlet;
use xy_testkit::json::{Members, quoted};

/// There is no such method.
pub(crate) const NO_METHOD: i64 = -32601;

/// The params are not what the method wants.
pub(crate) const BAD_PARAMS: i64 = -32602;

/// A request, with an id that goes back as it came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) id: String,
    pub(crate) outlet: Arc<Outlet>,
}

impl Asked {
    /// Answers with the JSON text `result`.
    pub(crate) fn result(&self, result: &str) {
        self.outlet.answer(self.as_result(result));
    }

    /// The text of an answer with the JSON text `result`.
    pub(crate) fn as_result(&self, result: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.id)
    }

    /// Answers with an error.
    pub(crate) fn refuse(&self, code: i64, why: &str) {
        self.outlet.answer(refusal(&self.id, code, why));
    }
}

impl Asked {
    /// Answers with the JSON text of an error.
    pub(crate) fn refuse_with(&self, error: &str) {
        self.outlet.answer(format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, self.id));
    }
}

/// A `tools/call`.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) asked: Asked,
    pub(crate) tool: String,
    pub(crate) arguments: Members,
    pub(crate) progress_token: Option<String>,
    /// It is to be done as a task.
    pub(crate) is_task: bool,
    /// It may be done as one, of the revision without `initialize`.
    pub(crate) knows_tasks: bool,
}

impl Call {
    pub(crate) fn new(asked: Asked, params: &Members) -> Option<Self> {
        Some(Self {
            asked,
            tool: params.string("name")?,
            arguments: params.members("arguments"),
            is_task: params.raw("task").is_some(),
            knows_tasks: crate::errands::knows_tasks(params),
            progress_token: params.members("_meta").raw("progressToken").map(str::to_owned),
        })
    }

    /// Answers with a text.
    pub(crate) fn text(&self, text: &str) {
        self.asked.result(&text_result(text));
    }

    /// Answers that the tool failed.
    pub(crate) fn failed(&self, why: &str) {
        let why = quoted(why);
        let content = format!(r#"[{{"type":"text","text":{why}}}]"#);
        self.asked.result(&format!(r#"{{"content":{content},"isError":true}}"#));
    }

    /// Sends a notification; `params` is JSON text.
    pub(crate) fn notify(&self, method: &str, params: &str) {
        self.asked.outlet.say(notification(method, params));
    }

    /// An argument that is a number, or what it is without.
    pub(crate) fn number(&self, name: &str, otherwise: u64) -> u64 {
        self.arguments.number(name).unwrap_or(otherwise)
    }

    /// The same, for what is held in memory.
    pub(crate) fn size(&self, name: &str, otherwise: u64) -> usize {
        usize::try_from(self.number(name, otherwise)).expect("a size")
    }

    /// An argument that is a string; empty without.
    pub(crate) fn string(&self, name: &str) -> String {
        self.arguments.string(name).unwrap_or_default()
    }
}

/// A result with one text.
pub(crate) fn text_result(text: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, quoted(text))
}

/// A result with a JSON value, and the same as a text.
pub(crate) fn structured_result(value: &Value) -> String {
    let text = quoted(&value.to_string());
    format!(r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{value}}}"#)
}

/// An error as an answer to the request `id`.
pub(crate) fn refusal(id: &str, code: i64, why: &str) -> String {
    let why = quoted(why);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{why}}}}}"#)
}

/// A notification; `params` is JSON text.
pub(crate) fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}
