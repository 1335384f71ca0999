//! A request in progress: its content, and the messages that may be sent for it.
//!
//! [`Request`] hides the era, so that tools are the same in both.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::era::Era;
use crate::session::Session;
use crate::stream::MessageSink;
use crate::{inputs, legacy, modern, modern_fields};
use xy_testkit::json::{Members, quoted};

/// JSON-RPC error code: method not found.
pub(crate) const NO_METHOD: i64 = -32601;

/// JSON-RPC error code: invalid params.
pub(crate) const BAD_PARAMS: i64 = -32602;

/// Log levels, from the least to the most severe.
pub(crate) const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Maximum number of requests in progress, over all sessions.
const MAX_WORKERS: usize = 1024;

/// Number of requests in progress on their own threads, over all sessions.
static WORKERS: AtomicUsize = AtomicUsize::new(0);

/// A request. Its id is kept as text, so that the response repeats it unchanged.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) session: Arc<Session>,
    /// The key of the request in its session: its id, or a generated one if clients share the
    /// session.
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) method: String,
    /// The text of the params. `{}` if there are none.
    pub(crate) params_text: String,
    pub(crate) params: Members,
    pub(crate) out: MessageSink,
    pub(crate) era: Era,
}

impl Request {
    /// Answers the request: on a separate thread if it may take time, otherwise immediately and in
    /// order.
    pub(crate) fn begin(self) {
        if !takes_time(&self.method, &self.params) {
            return self.answer();
        }
        if WORKERS.fetch_add(1, Ordering::Relaxed) >= MAX_WORKERS {
            WORKERS.fetch_sub(1, Ordering::Relaxed);
            return self.refuse(-32603, "too many calls in flight");
        }
        self.session.open(&self.key);
        thread::spawn(move || {
            self.answer();
            self.session.close(&self.key);
            WORKERS.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn answer(&self) {
        // The `fixture/` methods exist only for tests.
        match (self.method.as_str(), &self.era) {
            ("fixture/echo", _) => self.result(&self.params_text),
            ("fixture/poked", _) => {
                let last_poke = self.session.state().last_poke.clone();
                self.result(&format!(r#"{{"poked":{}}}"#, last_poke.as_deref().unwrap_or("null")));
            }
            (_, Era::Legacy) => legacy::answer(self),
            (_, Era::Modern(meta)) => modern::answer(self, meta),
        }
    }

    pub(crate) fn is_modern(&self) -> bool {
        matches!(self.era, Era::Modern(_))
    }

    /// Answers with the JSON text `result`.
    pub(crate) fn result(&self, result: &str) {
        let complete = self.is_modern().then(|| modern_fields::add_to_result(&self.method, result));
        let result = complete.as_deref().unwrap_or(result);
        // JSON-RPC does not define an order of keys, so this uses an unusual one.
        self.send(&format!(r#"{{"result":{result},"id":{},"jsonrpc":"2.0"}}"#, self.id));
        self.out.finish();
    }

    /// Answers with an error, from a code and a message.
    pub(crate) fn refuse(&self, code: i64, why: &str) {
        self.fail(&format!(r#"{{"code":{code},"message":{}}}"#, quoted(why)));
    }

    /// Answers with the JSON text `error`.
    pub(crate) fn fail(&self, error: &str) {
        self.send(&format!(r#"{{"jsonrpc":"2.0","error":{error},"id":{}}}"#, self.id));
        self.out.finish();
    }

    /// Answers with a text as the tool result.
    pub(crate) fn text(&self, text: &str) {
        self.result(&format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, quoted(text)));
    }

    /// Answers with a tool error.
    pub(crate) fn tool_error(&self, why: &str) {
        let content = format!(r#"[{{"type":"text","text":{}}}]"#, quoted(why));
        self.result(&format!(r#"{{"isError":true,"content":{content}}}"#));
    }

    /// Answers with a tool error for a tool call, otherwise with a JSON-RPC error.
    pub(crate) fn refuse_operation(&self, why: &str) {
        match self.method.as_str() {
            "tools/call" => self.tool_error(why),
            _ => self.refuse(-32603, why),
        }
    }

    /// Sends a notification that belongs to this request.
    pub(crate) fn notify(&self, method: &str, params: &str) {
        self.send(&notification(method, params));
    }

    /// Sends a message. In the modern era, drops messages for a cancelled request.
    pub(crate) fn send(&self, message: &str) {
        if !(self.is_modern() && self.session.is_cancelled(&self.key)) {
            self.out.send(message);
        }
    }

    /// Sends a log message if the client wants messages of this level.
    pub(crate) fn log(&self, level: &str, data: &str) {
        if self.is_log_enabled(level) {
            let level = quoted(level);
            let params = format!(r#"{{"level":{level},"logger":"fixture","data":{data}}}"#);
            self.notify("notifications/message", &params);
        }
    }

    /// Returns true if the client wants log messages of this level.
    pub(crate) fn is_log_enabled(&self, level: &str) -> bool {
        let wanted = match &self.era {
            Era::Legacy => Some(self.session.state().level),
            Era::Modern(meta) => meta.level,
        };
        let number = LEVELS.iter().position(|known| *known == level);
        wanted.is_some_and(|wanted| number >= Some(wanted))
    }

    /// Returns the capabilities that the client declared.
    pub(crate) fn capabilities(&self) -> Members {
        match &self.era {
            Era::Legacy => self.session.state().capabilities.clone(),
            Era::Modern(meta) => meta.capabilities.clone(),
        }
    }

    /// Returns the unchanged text of the progress token.
    pub(crate) fn progress_token(&self) -> Option<String> {
        self.params.members("_meta").raw("progressToken").map(str::to_owned)
    }

    /// Waits for `time`. Returns false as soon as the request is cancelled.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        self.session.wait_for_cancel(&self.key, time).is_none()
    }

    /// Sends a request to the client, in the legacy era only. Returns the whole response, or
    /// `None` after a timeout or if this request is cancelled.
    pub(crate) fn ask(&self, method: &str, params: &str) -> Option<Members> {
        self.ask_all(&[(method, params)]).pop().flatten()
    }

    /// Sends several requests to the client at once, each a method and its params.
    pub(crate) fn ask_all(&self, questions: &[(&str, &str)]) -> Vec<Option<Members>> {
        self.session.ask(&self.out, &self.key, questions)
    }
}

/// Returns true if other messages may precede the response to a request.
pub(crate) fn takes_time(method: &str, params: &Members) -> bool {
    matches!(method, "tools/call" | "tasks/result") || inputs::needs_input(method, params)
}

/// Returns a notification. `params` is JSON text.
pub(crate) fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}
