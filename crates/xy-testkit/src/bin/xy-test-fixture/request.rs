//! A request that is being answered: its words, and what it may do meanwhile. Whatever era it
//! is of, a tool does the same with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::era::Era;
use crate::session::Session;
use crate::stream::Out;
use crate::{dress, inputs, legacy, modern};
use xy_testkit::json::{Members, quoted};

/// There is no such method.
pub(crate) const NO_METHOD: i64 = -32601;

/// The params are not what the method wants.
pub(crate) const BAD_PARAMS: i64 = -32602;

/// From the least to the most serious.
pub(crate) const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// More requests than any test has in flight, over all conversations.
const MOST_WORKERS: usize = 1024;

/// Requests that are worked on, over all conversations.
static WORKERS: AtomicUsize = AtomicUsize::new(0);

/// A request, with an id that goes back as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) session: Arc<Session>,
    /// What it is remembered by: its id, unless another client may use the same.
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) method: String,
    /// The text of the params; `{}` without.
    pub(crate) params_text: String,
    pub(crate) params: Members,
    pub(crate) out: Out,
    pub(crate) era: Era,
}

impl Request {
    /// Answers on a thread of its own what may take time; else at once, in order.
    pub(crate) fn begin(self) {
        if !takes_time(&self.method, &self.params) {
            return self.answer();
        }
        if WORKERS.fetch_add(1, Ordering::Relaxed) >= MOST_WORKERS {
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
        // Methods that are in no revision.
        match (self.method.as_str(), &self.era) {
            ("fixture/echo", _) => self.result(&self.params_text),
            ("fixture/poked", _) => {
                let poked = self.session.state().poked.clone();
                self.result(&format!(r#"{{"poked":{}}}"#, poked.as_deref().unwrap_or("null")));
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
        let dressed = self.is_modern().then(|| dress::result(&self.method, result));
        let result = dressed.as_deref().unwrap_or(result);
        // The order of keys is nobody's business; here it is unusual.
        self.say(&format!(r#"{{"result":{result},"id":{},"jsonrpc":"2.0"}}"#, self.id));
        self.out.finish();
    }

    /// Answers with an error.
    pub(crate) fn refuse(&self, code: i64, why: &str) {
        self.fail(&format!(r#"{{"code":{code},"message":{}}}"#, quoted(why)));
    }

    /// Answers with the JSON text of an error.
    pub(crate) fn fail(&self, error: &str) {
        self.say(&format!(r#"{{"jsonrpc":"2.0","error":{error},"id":{}}}"#, self.id));
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

    /// Answers that it cannot be done, whether it is a tool or not.
    pub(crate) fn cannot(&self, why: &str) {
        match self.method.as_str() {
            "tools/call" => self.failed(why),
            _ => self.refuse(-32603, why),
        }
    }

    /// Sends a notification that belongs to this request.
    pub(crate) fn notify(&self, method: &str, params: &str) {
        self.say(&notification(method, params));
    }

    /// Says a message. In the modern era nothing is said of what was cancelled.
    pub(crate) fn say(&self, message: &str) {
        if !(self.is_modern() && self.session.is_cancelled(&self.key)) {
            self.out.say(message);
        }
    }

    /// Says something in the log, if the client wants to hear of such things.
    pub(crate) fn log(&self, level: &str, data: &str) {
        if self.is_heard(level) {
            let level = quoted(level);
            let params = format!(r#"{{"level":{level},"logger":"fixture","data":{data}}}"#);
            self.notify("notifications/message", &params);
        }
    }

    /// Whether the client wants to hear of what is so serious.
    pub(crate) fn is_heard(&self, level: &str) -> bool {
        let wanted = match &self.era {
            Era::Legacy => Some(self.session.state().level),
            Era::Modern(meta) => meta.level,
        };
        let number = LEVELS.iter().position(|known| *known == level);
        wanted.is_some_and(|wanted| number >= Some(wanted))
    }

    /// What the client has said that it can do.
    pub(crate) fn capabilities(&self) -> Members {
        match &self.era {
            Era::Legacy => self.session.state().capabilities.clone(),
            Era::Modern(meta) => meta.capabilities.clone(),
        }
    }

    /// The token for progress, as it came.
    pub(crate) fn progress_token(&self) -> Option<String> {
        self.params.members("_meta").raw("progressToken").map(str::to_owned)
    }

    /// Waits; false as soon as the request is cancelled.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        self.session.wait_for_cancel(&self.key, time).is_none()
    }

    /// Asks the client in the middle of this, which only the legacy era knows: the whole
    /// answer, or `None` if it takes too long or the request is cancelled.
    pub(crate) fn ask(&self, method: &str, params: &str) -> Option<Members> {
        self.ask_all(&[(method, params)]).pop().flatten()
    }

    /// The same with several things at once, each a method and its params.
    pub(crate) fn ask_all(&self, questions: &[(&str, &str)]) -> Vec<Option<Members>> {
        self.session.ask(&self.out, &self.key, questions)
    }
}

/// Whether a request may say something before it is answered.
pub(crate) fn takes_time(method: &str, params: &Members) -> bool {
    matches!(method, "tools/call" | "tasks/result") || inputs::asks(method, params)
}

/// A notification; `params` is JSON text.
pub(crate) fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}
