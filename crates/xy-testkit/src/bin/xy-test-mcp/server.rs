//! The handling of each message, and the state of the server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};

use crate::legacy_tasks::{self, LegacyTask};
use crate::modern_tasks::{self, ModernTask};
use crate::options::Options;
use crate::request::{BAD_PARAMS, Call, NO_METHOD, Request, notification, refusal};
use crate::responder::Responder;
use crate::{die, eras, lists, stdin, tools};
use xy_testkit::json::Members;

/// The revisions with `initialize`, the newest last.
const LEGACY_REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// Maximum number of concurrent workers; more than any test has calls in flight.
const MAX_WORKERS: usize = 4096;

/// The stack size of a worker; small, because there may be thousands.
const STACK_SIZE: usize = 128 * 1024;

/// How long the client may take to answer a request of the server.
const CLIENT_ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// The log levels, from the least to the most severe.
const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The server, shared by all its clients.
pub(crate) struct Server {
    pub(crate) options: Options,
    state: Mutex<State>,
    changed: Condvar,
    workers: AtomicUsize,
}

/// The mutable state of the server.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The params of `initialize`.
    pub(crate) client: Value,
    pub(crate) level: usize,
    pub(crate) added: BTreeSet<String>,
    pub(crate) removed: BTreeSet<String>,
    /// The prompts and resources added by `add_tool`, as kind and name.
    pub(crate) added_entries: BTreeSet<(String, String)>,
    pub(crate) counter: u64,
    pub(crate) subscribed: BTreeSet<String>,
    /// The resource URIs of each open `subscriptions/listen`, by request id.
    pub(crate) resource_listeners: BTreeMap<String, Vec<String>>,
    pub(crate) has_closed_stdin: bool,
    pub(crate) legacy_tasks: BTreeMap<String, LegacyTask>,
    pub(crate) modern_tasks: BTreeMap<String, ModernTask>,
    /// The task ids of each open `subscriptions/listen`, by request id.
    pub(crate) task_listeners: BTreeMap<String, Vec<String>>,
    /// The requests that a worker handles; true if the client has cancelled one.
    open: BTreeMap<String, bool>,
    /// The requests sent to clients, with the response once it has arrived.
    questions: BTreeMap<String, Option<Members>>,
    last_question: u64,
}

impl Server {
    pub(crate) fn new(options: Options) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { options, state, changed, workers: AtomicUsize::new(0) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles one message. Returns true if it gets an answer.
    pub(crate) fn handle(self: &Arc<Self>, line: &[u8], responder: &Arc<Responder>) -> bool {
        if self.options.has("--skim")
            && line.len() > SKIM_MIN
            && let Some(id) = skimmed_id(line)
        {
            responder.answer(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[]}}}}"#));
            return true;
        }
        let message = std::str::from_utf8(line).ok().and_then(Members::of);
        let Some(message) = message else {
            responder.answer(refusal("null", -32700, "this is no message"));
            return true;
        };
        let method = message.string("method");
        if self.options.die_on.is_some() && self.options.die_on == method {
            die(1);
        }
        match (message.raw("id"), method) {
            (Some(id), Some(method)) => {
                let request = Request { id: id.to_owned(), responder: Arc::clone(responder) };
                self.handle_request(request, &method, &message);
                true
            }
            (Some(id), None) => {
                let id = id.to_owned();
                self.handle_response(&id, message);
                false
            }
            (None, Some(method)) => {
                self.handle_notification(&method, &message.members("params"));
                false
            }
            (None, None) => {
                responder.answer(refusal("null", -32600, "neither a method nor an id"));
                true
            }
        }
    }

    fn handle_request(self: &Arc<Self>, request: Request, method: &str, message: &Members) {
        let params = message.members("params");
        let Some(request) = eras::answer(self, request, method, &params) else { return };
        let capability = method.split('/').next().unwrap_or_default();
        let is_optional = matches!(capability, "tools" | "prompts" | "resources" | "logging");
        if is_optional && !self.options.declares(capability) {
            return request.refuse(NO_METHOD, &format!("no method `{method}`: not declared"));
        }
        match method {
            "tools/call" => match Call::new(request.clone(), &params) {
                Some(call) => tools::call(self, call),
                None => request.refuse(BAD_PARAMS, "which tool?"),
            },
            "initialize" => self.initialize(request, &params),
            "ping" if self.options.has("--ignore-ping") => {}
            "ping" => request.result("{}"),
            "logging/setLevel" => self.set_level(&request, &params),
            "resources/subscribe" | "resources/unsubscribe" => {
                self.subscribe(&request, method, &params);
            }
            "tools/list" if self.options.has("--list-never") => {}
            "tasks/get" | "tasks/update" | "tasks/cancel"
                if self.options.has("--tasks") && eras::is_modern(self, &params) =>
            {
                modern_tasks::answer(self, &request, method, &params);
            }
            "tasks/get" | "tasks/result" | "tasks/list" | "tasks/cancel"
                if self.options.has("--tasks") =>
            {
                legacy_tasks::answer(self, request, method, &params);
            }
            _ => match lists::answer(self, method, &params) {
                Some(Ok(result)) => request.result(&result),
                Some(Err(why)) => request.refuse(BAD_PARAMS, &why),
                // An unknown `server/discover` must fail: it tells the client which era this is.
                None if self.options.has("--pass-unknown") && method != "server/discover" => {
                    request.result(message.raw("params").unwrap_or("{}"));
                }
                None => request.refuse(NO_METHOD, &format!("no method `{method}`")),
            },
        }
    }

    fn initialize(self: &Arc<Self>, request: Request, params: &Members) {
        let wanted = params.string("protocolVersion").unwrap_or_default();
        let client: serde_json::Map<String, Value> =
            ["protocolVersion", "clientInfo", "capabilities"]
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), params.raw(name)?.parse().ok()?)))
                .collect();
        self.state().client = Value::Object(client);
        if self.options.has("--never-init") {
            return;
        }
        if self.options.has("--refuse-init") {
            return request.refuse(BAD_PARAMS, "this server talks to nobody");
        }
        let version = self.options.protocol.clone().unwrap_or_else(|| agreed(&wanted).to_owned());
        let answer = self.initialize_result(&version).to_string();
        if self.options.slow_init.is_zero() {
            return self.send_initialize_result(&request, &answer);
        }
        self.spawn_worker(request, move |server, request| {
            if server.wait(&request, server.options.slow_init) {
                server.send_initialize_result(&request, &answer);
            }
        });
    }

    fn send_initialize_result(&self, request: &Request, answer: &str) {
        request.result(answer);
        self.freeze_if_due();
        if self.options.has("--close-stdin") {
            self.state().has_closed_stdin = true;
            stdin::close();
        }
    }

    /// Freezes the process if `--freeze-once` is due. Over HTTP the connection thread does this
    /// instead, because the answer has yet to be written.
    pub(crate) fn freeze_if_due(&self) {
        if self.options.http.is_none() && self.is_freeze_due() {
            freeze();
        }
    }

    /// Returns true if the process must freeze now, and creates the file that prevents a second
    /// time.
    pub(crate) fn is_freeze_due(&self) -> bool {
        self.options.freeze_once.as_ref().is_some_and(|file| File::create_new(file).is_ok())
    }

    pub(crate) fn initialize_result(&self, version: &str) -> Value {
        let release = if self.options.has("--v2") { "2.0.0" } else { "1.0.0" };
        let all = [
            ("tools", json!({ "listChanged": true })),
            ("prompts", json!({ "listChanged": true })),
            ("resources", json!({ "listChanged": true, "subscribe": true })),
            ("logging", json!({})),
            ("completions", json!({})),
            ("tasks", json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } })),
        ];
        let declared = all.into_iter().filter(|(name, _)| self.options.declares(name));
        let declared = declared.map(|(name, value)| (name.to_owned(), value));
        let mut answer = json!({
            "protocolVersion": version,
            "capabilities": Value::Object(declared.collect()),
            "serverInfo": { "name": self.options.name, "version": release },
        });
        if let Some(instructions) = &self.options.instructions {
            answer["instructions"] = json!(instructions);
        }
        answer
    }

    fn set_level(&self, request: &Request, params: &Members) {
        match level_of(&params.string("level").unwrap_or_default()) {
            Some(level) => {
                self.state().level = level;
                request.result("{}");
            }
            None => request.refuse(BAD_PARAMS, "no such level"),
        }
    }

    fn subscribe(&self, request: &Request, method: &str, params: &Members) {
        let Some(uri) = params.string("uri") else {
            return request.refuse(BAD_PARAMS, "which resource?");
        };
        if method == "resources/subscribe" {
            self.state().subscribed.insert(uri);
        } else {
            self.state().subscribed.remove(&uri);
        }
        request.result("{}");
    }

    fn handle_notification(&self, method: &str, params: &Members) {
        if let ("notifications/cancelled", Some(id)) = (method, params.raw("requestId")) {
            if let Some(is_cancelled) = self.state().open.get_mut(id) {
                *is_cancelled = true;
            }
            self.state().resource_listeners.remove(id);
            self.state().task_listeners.remove(id);
            self.changed.notify_all();
        }
    }

    fn handle_response(&self, id: &str, message: Members) {
        // Responses with an unknown id are dropped.
        if let Some(answer) = self.state().questions.get_mut(id) {
            *answer = Some(message);
        }
        self.changed.notify_all();
    }

    /// Runs `work` on its own thread. The client can cancel the request from then on.
    pub(crate) fn spawn_worker(
        self: &Arc<Self>,
        request: Request,
        work: impl FnOnce(&Arc<Self>, Request) + Send + 'static,
    ) {
        if self.workers.fetch_add(1, Ordering::Relaxed) >= MAX_WORKERS {
            self.workers.fetch_sub(1, Ordering::Relaxed);
            return request.refuse(-32603, "too many calls in flight");
        }
        self.state().open.insert(request.id.clone(), false);
        let server = Arc::clone(self);
        let worker = thread::Builder::new().stack_size(STACK_SIZE).spawn(move || {
            let id = request.id.clone();
            work(&server, request);
            server.state().open.remove(&id);
            server.workers.fetch_sub(1, Ordering::Relaxed);
        });
        worker.expect("a thread can be started");
    }

    /// Waits for `time`. Returns false as soon as the client cancels the request.
    pub(crate) fn wait(&self, request: &Request, time: Duration) -> bool {
        let is_open = |state: &mut State| !state.is_cancelled(&request.id);
        let waited = self.changed.wait_timeout_while(self.state(), time, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.is_cancelled(&request.id)
    }

    /// Wakes all threads that wait for a change of the state.
    pub(crate) fn notify_change(&self) {
        self.changed.notify_all();
    }

    /// Waits until `look` finds something. Returns `None` once the client cancels the request.
    pub(crate) fn wait_for<T>(
        &self,
        request: &Request,
        look: impl Fn(&State) -> Option<T>,
    ) -> Option<T> {
        let is_missing =
            |state: &mut State| look(state).is_none() && !state.is_cancelled(&request.id);
        let waited =
            self.changed.wait_timeout_while(self.state(), CLIENT_ANSWER_TIMEOUT, is_missing);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        look(&state)
    }

    /// Sends a request to the client and returns its response. Returns `None` if the client
    /// cancels `request` or takes too long.
    pub(crate) fn ask(&self, request: &Request, method: &str, params: &str) -> Option<Members> {
        let mut state = self.state();
        state.last_question += 1;
        let id = format!("\"ask-{}\"", state.last_question);
        state.questions.insert(id.clone(), None);
        drop(state);
        let question =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        request.responder.send(question);
        let is_unanswered = |state: &mut State| {
            state.questions.get(&id).is_some_and(Option::is_none)
                && !state.is_cancelled(&request.id)
        };
        let waited =
            self.changed.wait_timeout_while(self.state(), CLIENT_ANSWER_TIMEOUT, is_unanswered);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.questions.remove(&id).flatten()
    }

    /// Notifies clients that the list of this kind has changed.
    pub(crate) fn notify_list_changed(&self, request: &Request, kind: &str) {
        let method = format!("notifications/{kind}/list_changed");
        if !eras::notify_listeners(self, request, &method, None) {
            request.responder.send(notification(&method, "{}"));
        }
    }
}

impl State {
    pub(crate) fn is_cancelled(&self, id: &str) -> bool {
        self.open.get(id).copied().unwrap_or(false)
    }
}

/// Stops the process with SIGSTOP. It reads nothing more even after SIGCONT, which accompanies a
/// SIGTERM.
pub(crate) fn freeze() -> ! {
    kill_process(getpid(), Signal::STOP).expect("a process can stop itself");
    park_forever()
}

/// Parks this thread forever.
pub(crate) fn park_forever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Returns the revision to use with a client that wants `wanted`.
fn agreed(wanted: &str) -> &str {
    let newest = LEGACY_REVISIONS[LEGACY_REVISIONS.len() - 1];
    if LEGACY_REVISIONS.contains(&wanted) { wanted } else { newest }
}

/// Returns the severity of a log level, or `None` if there is no such level.
pub(crate) fn level_of(name: &str) -> Option<usize> {
    LEVELS.iter().position(|level| *level == name)
}

/// The message size from which `--skim` applies.
const SKIM_MIN: usize = 1 << 20;

/// Returns the number after the first `"id":`, which xy writes at the start of a message.
fn skimmed_id(line: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(&line[..line.len().min(64)]);
    let (_, rest) = head.split_once("\"id\":")?;
    let end = rest.find(|next: char| !next.is_ascii_digit())?;
    rest[..end].parse().ok()
}
