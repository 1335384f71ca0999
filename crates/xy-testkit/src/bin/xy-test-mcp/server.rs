//! What is done with each message, and what the server remembers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};

use crate::answer::{Asked, BAD_PARAMS, Call, NO_METHOD, notification, refusal};
use crate::errands::{self, Errand};
use crate::jobs::{self, Job};
use crate::outlet::Outlet;
use crate::plan::Plan;
use crate::{die, eras, lists, stdin, tools};
use xy_testkit::json::Members;

/// The revisions with `initialize`, the youngest last.
const KNOWN: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// More calls than any test has in flight.
const MOST_WORKERS: usize = 4096;

/// What a worker needs; there may be thousands.
const STACK: usize = 128 * 1024;

/// How long a client may take to answer.
const ASKED_WITHIN: Duration = Duration::from_mins(1);

/// From the least to the most serious.
const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The server: one for all its clients.
pub(crate) struct Server {
    pub(crate) plan: Plan,
    state: Mutex<State>,
    changed: Condvar,
    workers: AtomicUsize,
}

/// What it remembers.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The params of `initialize`.
    pub(crate) client: Value,
    pub(crate) level: usize,
    pub(crate) added: BTreeSet<String>,
    pub(crate) removed: BTreeSet<String>,
    /// Prompts and resources that were added, by kind and name.
    pub(crate) added_besides: BTreeSet<(String, String)>,
    pub(crate) counter: u64,
    pub(crate) subscribed: BTreeSet<String>,
    /// Requests that listen, and to which resources.
    pub(crate) listening: BTreeMap<String, Vec<String>>,
    pub(crate) has_closed_stdin: bool,
    pub(crate) jobs: BTreeMap<String, Job>,
    pub(crate) errands: BTreeMap<String, Errand>,
    /// Which of them whoever listens wants to hear of.
    pub(crate) following: BTreeMap<String, Vec<String>>,
    /// Requests that are worked on elsewhere, each with whether it is cancelled.
    open: BTreeMap<String, bool>,
    /// What clients were asked, and their answers.
    questions: BTreeMap<String, Option<Members>>,
    asked: u64,
}

impl Server {
    pub(crate) fn new(plan: Plan) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { plan, state, changed, workers: AtomicUsize::new(0) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One message; whether it is to be answered.
    pub(crate) fn hear(self: &Arc<Self>, line: &[u8], outlet: &Arc<Outlet>) -> bool {
        if self.plan.has("--skim")
            && line.len() > SKIM_MIN
            && let Some(id) = skimmed_id(line)
        {
            outlet.answer(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[]}}}}"#));
            return true;
        }
        let message = std::str::from_utf8(line).ok().and_then(Members::of);
        let Some(message) = message else {
            outlet.answer(refusal("null", -32700, "this is no message"));
            return true;
        };
        let method = message.string("method");
        if self.plan.die_on.is_some() && self.plan.die_on == method {
            die(1);
        }
        match (message.raw("id"), method) {
            (Some(id), Some(method)) => {
                let asked = Asked { id: id.to_owned(), outlet: Arc::clone(outlet) };
                self.request(asked, &method, &message);
                true
            }
            (Some(id), None) => {
                let id = id.to_owned();
                self.answered(&id, message);
                false
            }
            (None, Some(method)) => {
                self.notified(&method, &message.members("params"));
                false
            }
            (None, None) => {
                outlet.answer(refusal("null", -32600, "neither a method nor an id"));
                true
            }
        }
    }

    fn request(self: &Arc<Self>, asked: Asked, method: &str, message: &Members) {
        let params = message.members("params");
        let Some(asked) = eras::answer(self, asked, method, &params) else { return };
        let capability = method.split('/').next().unwrap_or_default();
        let is_optional = matches!(capability, "tools" | "prompts" | "resources" | "logging");
        if is_optional && !self.plan.declares(capability) {
            return asked.refuse(NO_METHOD, &format!("no method `{method}`: not declared"));
        }
        match method {
            "tools/call" => match Call::new(asked.clone(), &params) {
                Some(call) => tools::call(self, call),
                None => asked.refuse(BAD_PARAMS, "which tool?"),
            },
            "initialize" => self.initialize(asked, &params),
            "ping" if self.plan.has("--ignore-ping") => {}
            "ping" => asked.result("{}"),
            "logging/setLevel" => self.set_level(&asked, &params),
            "resources/subscribe" | "resources/unsubscribe" => {
                self.subscribe(&asked, method, &params);
            }
            "tools/list" if self.plan.has("--list-never") => {}
            "tasks/get" | "tasks/update" | "tasks/cancel"
                if self.plan.has("--tasks") && eras::is_modern(self, &params) =>
            {
                errands::answer(self, &asked, method, &params);
            }
            "tasks/get" | "tasks/result" | "tasks/list" | "tasks/cancel"
                if self.plan.has("--tasks") =>
            {
                jobs::answer(self, asked, method, &params);
            }
            _ => match lists::answer(self, method, &params) {
                Some(Ok(result)) => asked.result(&result),
                Some(Err(why)) => asked.refuse(BAD_PARAMS, &why),
                // Whoever asks for the next era shall see that this is not it.
                None if self.plan.has("--pass-unknown") && method != "server/discover" => {
                    asked.result(message.raw("params").unwrap_or("{}"));
                }
                None => asked.refuse(NO_METHOD, &format!("no method `{method}`")),
            },
        }
    }

    fn initialize(self: &Arc<Self>, asked: Asked, params: &Members) {
        let wanted = params.string("protocolVersion").unwrap_or_default();
        let client: serde_json::Map<String, Value> =
            ["protocolVersion", "clientInfo", "capabilities"]
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), params.raw(name)?.parse().ok()?)))
                .collect();
        self.state().client = Value::Object(client);
        if self.plan.has("--never-init") {
            return;
        }
        if self.plan.has("--refuse-init") {
            return asked.refuse(BAD_PARAMS, "this server talks to nobody");
        }
        let version = self.plan.protocol.clone().unwrap_or_else(|| agreed(&wanted).to_owned());
        let answer = self.introduction(&version).to_string();
        if self.plan.slow_init.is_zero() {
            return self.introduce(&asked, &answer);
        }
        self.work(asked, move |server, asked| {
            if server.wait(&asked, server.plan.slow_init) {
                server.introduce(&asked, &answer);
            }
        });
    }

    fn introduce(&self, asked: &Asked, answer: &str) {
        asked.result(answer);
        self.freeze_if_due();
        if self.plan.has("--close-stdin") {
            self.state().has_closed_stdin = true;
            stdin::close();
        }
    }

    /// Stops for good, if that is planned and no earlier life did. Over HTTP the answer has yet to
    /// be written, so whoever writes that does it.
    pub(crate) fn freeze_if_due(&self) {
        if self.plan.http.is_none() && self.is_freeze_due() {
            freeze();
        }
    }

    /// Whether it is to stop now, which it is once.
    pub(crate) fn is_freeze_due(&self) -> bool {
        self.plan.freeze_once.as_ref().is_some_and(|file| File::create_new(file).is_ok())
    }

    pub(crate) fn introduction(&self, version: &str) -> Value {
        let release = if self.plan.has("--v2") { "2.0.0" } else { "1.0.0" };
        let all = [
            ("tools", json!({ "listChanged": true })),
            ("prompts", json!({ "listChanged": true })),
            ("resources", json!({ "listChanged": true, "subscribe": true })),
            ("logging", json!({})),
            ("completions", json!({})),
            ("tasks", json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } })),
        ];
        let declared = all.into_iter().filter(|(name, _)| self.plan.declares(name));
        let declared = declared.map(|(name, value)| (name.to_owned(), value));
        let mut answer = json!({
            "protocolVersion": version,
            "capabilities": Value::Object(declared.collect()),
            "serverInfo": { "name": self.plan.name, "version": release },
        });
        if let Some(instructions) = &self.plan.instructions {
            answer["instructions"] = json!(instructions);
        }
        answer
    }

    fn set_level(&self, asked: &Asked, params: &Members) {
        match level_of(&params.string("level").unwrap_or_default()) {
            Some(level) => {
                self.state().level = level;
                asked.result("{}");
            }
            None => asked.refuse(BAD_PARAMS, "no such level"),
        }
    }

    fn subscribe(&self, asked: &Asked, method: &str, params: &Members) {
        let Some(uri) = params.string("uri") else {
            return asked.refuse(BAD_PARAMS, "which resource?");
        };
        if method == "resources/subscribe" {
            self.state().subscribed.insert(uri);
        } else {
            self.state().subscribed.remove(&uri);
        }
        asked.result("{}");
    }

    fn notified(&self, method: &str, params: &Members) {
        if let ("notifications/cancelled", Some(id)) = (method, params.raw("requestId")) {
            if let Some(is_cancelled) = self.state().open.get_mut(id) {
                *is_cancelled = true;
            }
            self.state().listening.remove(id);
            self.state().following.remove(id);
            self.changed.notify_all();
        }
    }

    fn answered(&self, id: &str, message: Members) {
        // Only what was asked is kept.
        if let Some(answer) = self.state().questions.get_mut(id) {
            *answer = Some(message);
        }
        self.changed.notify_all();
    }

    /// Does something slow on a thread of its own; from now on it can be cancelled.
    pub(crate) fn work(
        self: &Arc<Self>,
        asked: Asked,
        work: impl FnOnce(&Arc<Self>, Asked) + Send + 'static,
    ) {
        if self.workers.fetch_add(1, Ordering::Relaxed) >= MOST_WORKERS {
            self.workers.fetch_sub(1, Ordering::Relaxed);
            return asked.refuse(-32603, "too many calls in flight");
        }
        self.state().open.insert(asked.id.clone(), false);
        let server = Arc::clone(self);
        let worker = thread::Builder::new().stack_size(STACK).spawn(move || {
            let id = asked.id.clone();
            work(&server, asked);
            server.state().open.remove(&id);
            server.workers.fetch_sub(1, Ordering::Relaxed);
        });
        worker.expect("a thread can be started");
    }

    /// Waits; false as soon as the request is cancelled.
    pub(crate) fn wait(&self, asked: &Asked, time: Duration) -> bool {
        let is_open = |state: &mut State| !state.is_cancelled(&asked.id);
        let waited = self.changed.wait_timeout_while(self.state(), time, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.is_cancelled(&asked.id)
    }

    /// Tells those who wait that something is another.
    pub(crate) fn tell_change(&self) {
        self.changed.notify_all();
    }

    /// Waits until something has come to be; `None` as soon as the request is cancelled.
    pub(crate) fn wait_for<T>(
        &self,
        asked: &Asked,
        look: impl Fn(&State) -> Option<T>,
    ) -> Option<T> {
        let is_missing =
            |state: &mut State| look(state).is_none() && !state.is_cancelled(&asked.id);
        let waited = self.changed.wait_timeout_while(self.state(), ASKED_WITHIN, is_missing);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        look(&state)
    }

    /// Asks the client something in the middle of a request: its answer, or `None` if the
    /// request was cancelled or the client took too long.
    pub(crate) fn ask(&self, asked: &Asked, method: &str, params: &str) -> Option<Members> {
        let mut state = self.state();
        state.asked += 1;
        let id = format!("\"ask-{}\"", state.asked);
        state.questions.insert(id.clone(), None);
        drop(state);
        let question =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        asked.outlet.say(question);
        let is_unanswered = |state: &mut State| {
            state.questions.get(&id).is_some_and(Option::is_none) && !state.is_cancelled(&asked.id)
        };
        let waited = self.changed.wait_timeout_while(self.state(), ASKED_WITHIN, is_unanswered);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.questions.remove(&id).flatten()
    }

    /// Says that the list of this kind is another.
    pub(crate) fn list_has_changed(&self, asked: &Asked, kind: &str) {
        let method = format!("notifications/{kind}/list_changed");
        if !eras::tell(self, asked, &method, None) {
            asked.outlet.say(notification(&method, "{}"));
        }
    }
}

impl State {
    pub(crate) fn is_cancelled(&self, id: &str) -> bool {
        self.open.get(id).copied().unwrap_or(false)
    }
}

/// Stops for good. It reads nothing more even if it is continued, as it is for its TERM.
pub(crate) fn freeze() -> ! {
    kill_process(getpid(), Signal::STOP).expect("it can be stopped");
    hold_still()
}

/// Does nothing more in this thread.
pub(crate) fn hold_still() -> ! {
    loop {
        std::thread::park();
    }
}

/// The revision to go on with.
fn agreed(wanted: &str) -> &str {
    let youngest = KNOWN[KNOWN.len() - 1];
    if KNOWN.contains(&wanted) { wanted } else { youngest }
}

/// How serious a level of the log is.
pub(crate) fn level_of(name: &str) -> Option<usize> {
    LEVELS.iter().position(|level| *level == name)
}

/// With `--skim` a longer message is not parsed.
const SKIM_MIN: usize = 1 << 20;

/// Returns the first number after `"id":`, which stands at the beginning of a message of xy.
fn skimmed_id(line: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(&line[..line.len().min(64)]);
    let (_, rest) = head.split_once("\"id\":")?;
    let end = rest.find(|next: char| !next.is_ascii_digit())?;
    rest[..end].parse().ok()
}
