//! One conversation: what it remembers, and what is done with each message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::request::{BAD_PARAMS, NO_METHOD, Request, notification};
use crate::stream::Out;
use crate::tasks::Tasks;
use crate::{catalog, tasks, tools};
use xy_testkit::json::{Members, quoted};

/// The revisions with `initialize`, the youngest last.
pub(crate) const KNOWN: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// From the least to the most serious.
const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// How long a client may take to answer.
const ASKED_WITHIN: Duration = Duration::from_mins(1);

/// More requests than any test has in flight, over all conversations.
const MOST_WORKERS: usize = 1024;

/// More resources than any test watches.
const MOST_WATCHED: usize = 1000;

/// Requests that are worked on, over all conversations.
static WORKERS: AtomicUsize = AtomicUsize::new(0);

/// A conversation with one client.
#[derive(Debug)]
pub(crate) struct Session {
    /// Where goes what belongs to no request.
    pub(crate) general: Out,
    state: Mutex<State>,
    changed: Condvar,
}

/// What it remembers.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) version: String,
    pub(crate) capabilities: Members,
    /// The params of `initialize`, as they came.
    client: String,
    level: usize,
    pub(crate) watched: BTreeSet<String>,
    pub(crate) has_more_tools: bool,
    pub(crate) tasks: Tasks,
    /// The params of the last notification that nobody knows.
    poked: Option<String>,
    /// What was said of the last call that was cancelled.
    pub(crate) cancelled: Option<String>,
    /// Requests that are worked on, each with the params of its cancellation.
    open: BTreeMap<String, Option<Members>>,
    /// What the client was asked, and its answers.
    questions: BTreeMap<String, Option<Members>>,
    asked: u64,
}

/// What a message was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A request, which will be answered.
    Request,
    /// A notification or an answer.
    Other,
    /// No message.
    Nothing,
}

impl Session {
    pub(crate) fn new(general: Out) -> Arc<Self> {
        Arc::new(Self { general, state: Mutex::default(), changed: Condvar::new() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One message; what it leads to goes to `out`.
    pub(crate) fn hear(self: &Arc<Self>, text: &str, out: &Out) -> Heard {
        let message = Members::of(text).unwrap_or_default();
        let params_text = message.raw("params").unwrap_or("{}").to_owned();
        let params = message.members("params");
        match (message.raw("id"), message.string("method")) {
            (Some(id), Some(method)) => {
                let (id, out) = (id.to_owned(), out.clone());
                let session = Arc::clone(self);
                self.begin(Request { session, id, method, params_text, params, out });
                Heard::Request
            }
            (Some(id), None) => {
                let id = id.to_owned();
                self.answered(&id, message);
                Heard::Other
            }
            (None, Some(method)) => {
                self.notified(&method, &params, params_text);
                Heard::Other
            }
            (None, None) => {
                let error = r#"{"code":-32700,"message":"this is no message"}"#;
                out.say(&format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#));
                out.finish();
                Heard::Nothing
            }
        }
    }

    /// Answers on a thread of its own what may take time; else at once, in order.
    fn begin(self: &Arc<Self>, request: Request) {
        if !matches!(request.method.as_str(), "tools/call" | "tasks/result") {
            return self.answer(&request);
        }
        if WORKERS.fetch_add(1, Ordering::Relaxed) >= MOST_WORKERS {
            WORKERS.fetch_sub(1, Ordering::Relaxed);
            return request.refuse(-32603, "too many calls in flight");
        }
        self.state().open.insert(request.id.clone(), None);
        thread::spawn(move || {
            request.session.answer(&request);
            request.session.state().open.remove(&request.id);
            WORKERS.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn answer(self: &Arc<Self>, request: &Request) {
        match request.method.as_str() {
            "initialize" => self.initialize(request),
            "ping" => request.result("{}"),
            "logging/setLevel" => self.set_level(request),
            "resources/subscribe" | "resources/unsubscribe" => self.watch(request),
            "tools/call" => tools::call(request),
            method if method.starts_with("tasks/") => tasks::answer(request),
            // Methods that are in no revision.
            "fixture/echo" => request.result(&request.params_text),
            "fixture/client" => request.result(&self.state().client),
            "fixture/poked" => {
                let poked = self.state().poked.clone();
                request.result(&format!(r#"{{"poked":{}}}"#, poked.as_deref().unwrap_or("null")));
            }
            method => match catalog::answer(self, method, &request.params) {
                Some(Ok(result)) => request.result(&result),
                Some(Err(error)) => request.fail(&error),
                None => request.refuse(NO_METHOD, &format!("no method `{method}`")),
            },
        }
    }

    fn initialize(&self, request: &Request) {
        let wanted = request.params.string("protocolVersion").unwrap_or_default();
        let known = KNOWN.into_iter().find(|known| *known == wanted);
        let version = known.unwrap_or(KNOWN[KNOWN.len() - 1]);
        let mut state = self.state();
        version.clone_into(&mut state.version);
        state.capabilities = request.params.members("capabilities");
        state.client.clone_from(&request.params_text);
        drop(state);
        request.result(&catalog::introduction(version));
    }

    fn set_level(&self, request: &Request) {
        let level = request.params.string("level").unwrap_or_default();
        match LEVELS.iter().position(|known| *known == level) {
            Some(level) => {
                self.state().level = level;
                request.result("{}");
            }
            None => request.refuse(BAD_PARAMS, &format!("no level `{level}`")),
        }
    }

    fn watch(&self, request: &Request) {
        let Some(uri) = request.params.string("uri") else {
            return request.refuse(BAD_PARAMS, "which resource?");
        };
        let mut state = self.state();
        if request.method == "resources/unsubscribe" {
            state.watched.remove(&uri);
        } else if state.watched.len() < MOST_WATCHED {
            state.watched.insert(uri);
        }
        drop(state);
        request.result("{}");
    }

    fn notified(&self, method: &str, params: &Members, params_text: String) {
        match (method, params.raw("requestId")) {
            ("notifications/cancelled", Some(id)) => {
                if let Some(cancelled) = self.state().open.get_mut(id) {
                    *cancelled = Some(params.clone());
                }
                self.changed.notify_all();
            }
            ("notifications/fixture/poke", _) => self.state().poked = Some(params_text),
            _ => {} // It means nothing to us, as it should be.
        }
    }

    fn answered(&self, id: &str, message: Members) {
        // Only what was asked is kept.
        if let Some(answer) = self.state().questions.get_mut(id) {
            *answer = Some(message);
        }
        self.changed.notify_all();
    }

    /// Says something in the log, if the client wants to hear of such things.
    pub(crate) fn log(&self, out: &Out, level: &str, data: &str) {
        let number = LEVELS.iter().position(|known| *known == level);
        if number >= Some(self.state().level) {
            let params =
                format!(r#"{{"level":{},"logger":"fixture","data":{data}}}"#, quoted(level));
            out.say(&notification("notifications/message", &params));
        }
    }

    /// Waits until a request is cancelled, at most so long: the params of the cancellation.
    pub(crate) fn wait_for_cancel(&self, id: &str, time: Duration) -> Option<Members> {
        let is_open = |state: &mut State| !state.is_cancelled(id);
        let waited = self.changed.wait_timeout_while(self.state(), time, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.open.get(id).cloned().flatten()
    }

    /// Waits until some call has been cancelled, at most so long: what was said of it.
    pub(crate) fn wait_for_cancelled(&self, time: Duration) -> Option<String> {
        let is_missing = |state: &mut State| state.cancelled.is_none();
        let waited = self.changed.wait_timeout_while(self.state(), time, is_missing);
        waited.unwrap_or_else(PoisonError::into_inner).0.cancelled.clone()
    }

    /// Changes what is remembered, and tells those who wait.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Asks the client something in the middle of the request `during`.
    pub(crate) fn ask(
        &self,
        out: &Out,
        during: &str,
        method: &str,
        params: &str,
    ) -> Option<Members> {
        let mut state = self.state();
        state.asked += 1;
        // An id may be either; neither is one that somebody else would think of.
        let id = match state.asked {
            odd if odd % 2 == 1 => (1000 + odd).to_string(),
            even => format!("\"ask-{even}\""),
        };
        state.questions.insert(id.clone(), None);
        drop(state);
        out.say(&format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":{id}}}"#));
        let is_unanswered = |state: &mut State| {
            state.questions.get(&id).is_some_and(Option::is_none) && !state.is_cancelled(during)
        };
        let waited = self.changed.wait_timeout_while(self.state(), ASKED_WITHIN, is_unanswered);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.questions.remove(&id).flatten()
    }
}

impl State {
    fn is_cancelled(&self, id: &str) -> bool {
        self.open.get(id).is_some_and(Option::is_some)
    }
}
