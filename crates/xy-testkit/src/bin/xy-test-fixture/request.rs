//! A request that is being answered: its words, and what it may do meanwhile.

use std::sync::Arc;
use std::time::Duration;

use crate::session::Session;
use crate::stream::Out;
use xy_testkit::json::{Members, quoted};

/// There is no such method.
pub(crate) const NO_METHOD: i64 = -32601;

/// The params are not what the method wants.
pub(crate) const BAD_PARAMS: i64 = -32602;

/// A request, with an id that goes back as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) session: Arc<Session>,
    pub(crate) id: String,
    pub(crate) method: String,
    /// The text of the params; `{}` without.
    pub(crate) params_text: String,
    pub(crate) params: Members,
    pub(crate) out: Out,
}

impl Request {
    /// Answers with the JSON text `result`.
    pub(crate) fn result(&self, result: &str) {
        // The order of keys is nobody's business; here it is unusual.
        self.out.say(&format!(r#"{{"result":{result},"id":{},"jsonrpc":"2.0"}}"#, self.id));
        self.out.finish();
    }

    /// Answers with an error.
    pub(crate) fn refuse(&self, code: i64, why: &str) {
        self.fail(&format!(r#"{{"code":{code},"message":{}}}"#, quoted(why)));
    }

    /// Answers with the JSON text of an error.
    pub(crate) fn fail(&self, error: &str) {
        self.out.say(&format!(r#"{{"jsonrpc":"2.0","error":{error},"id":{}}}"#, self.id));
        self.out.finish();
    }

    /// Answers with a text.
    pub(crate) fn text(&self, text: &str) {
        self.result(&format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, quoted(text)));
    }

    /// Answers that the tool failed.
    pub(crate) fn failed(&self, why: &str) {
        let content = format!(r#"[{{"type":"text","text":{}}}]"#, quoted(why));
        self.result(&format!(r#"{{"isError":true,"content":{content}}}"#));
    }

    /// Sends a notification that belongs to this request.
    pub(crate) fn notify(&self, method: &str, params: &str) {
        self.out.say(&notification(method, params));
    }

    /// The token for progress, as it came.
    pub(crate) fn progress_token(&self) -> Option<String> {
        self.params.members("_meta").raw("progressToken").map(str::to_owned)
    }

    /// Waits; false as soon as the request is cancelled.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        self.session.wait_for_cancel(&self.id, time).is_none()
    }

    /// Asks the client: the whole answer, or `None` if it takes too long or the request is
    /// cancelled.
    pub(crate) fn ask(&self, method: &str, params: &str) -> Option<Members> {
        self.session.ask(&self.out, &self.id, method, params)
    }
}

/// A notification; `params` is JSON text.
pub(crate) fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}
