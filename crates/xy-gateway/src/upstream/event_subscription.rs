//! Listening to a server of the revision without sessions: one request that is not answered as
//! long as the server has something to say, about its lists and about resources.
//!
//! Whoever leads the life of a server keeps one such request open. When other resources are to
//! be heard of, another is opened before the older one is ended, so that nothing is missed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use xy_protocol::control::quoted;
use xy_protocol::error::{CallError, ErrorKind};

use super::probe::code_of;
use super::{Caller, Question, Upstream, ids};
use crate::modern::{self, LISTEN, SUBSCRIPTION};
use crate::params::Params;
use crate::retained::Retained;

const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
const CANCELLED: &str = "notifications/cancelled";

/// How long a server may take to say that it listens to what we want.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);

/// The same, and what was wished before it.
const HEARD_WITHIN: Duration = Duration::from_secs(20);

/// How soon it is tried again, and how late.
const FIRST_AGAIN: Duration = Duration::from_millis(500);
const LAST_AGAIN: Duration = Duration::from_secs(60);

/// What was heard for so long was good.
const GOOD_AFTER: Duration = Duration::from_secs(30);

/// Those who wait to be heard of; more than there are clients.
const MOST_ASKERS: usize = 10_000;

const METHOD_NOT_FOUND: i64 = -32601;

/// What is to be heard of besides lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) uris: BTreeSet<String>,
    /// The ids of tasks.
    pub(crate) tasks: BTreeSet<String>,
}

/// What is to be heard of a server, and what is.
#[derive(Default)]
pub(super) struct Ears {
    wanted: RefCell<Wanted>,
    /// Whoever waits for that.
    askers: RefCell<Vec<oneshot::Sender<SubscribeResult>>>,
    /// There is a wish.
    wished: Notify,
    /// The request that is to be acknowledged.
    opening: RefCell<Option<(u64, oneshot::Sender<Wanted>)>>,
    /// How many requests are open.
    count: Cell<usize>,
    /// The one that listens.
    current: Cell<Option<u64>>,
    /// One that an earlier daemon has left open.
    earlier: Cell<Option<u64>>,
    /// Lists were asked for while nothing listened.
    is_behind: Cell<bool>,
    /// It is known whether it can be listened to.
    is_settled: Cell<bool>,
    settled: Notify,
}

/// What is heard of, or why nothing is.
type SubscribeResult = Result<Rc<Wanted>, CallError>;

/// One request that listens. Dropping it ends it.
struct Ear {
    question: Question,
    accepted: Wanted,
    since: Instant,
}

impl Drop for Ear {
    fn drop(&mut self) {
        let ears = &self.question.upstream.ears;
        ears.count.set(ears.count.get().saturating_sub(1));
    }
}

/// What became of a wish.
enum Opened {
    Ear(Ear),
    /// There is nothing to hear.
    Nothing,
    /// The server has no such thing.
    Lacking,
}

impl Ears {
    pub(super) fn count(&self) -> usize {
        self.count.get()
    }

    /// How much is kept.
    pub(super) fn count_all(&self, census: &mut Retained) {
        let wanted = self.wanted.borrow();
        census.add("ears", self.count());
        census.add("ears_wanted", wanted.uris.len() + wanted.tasks.len());
        census.add("ears_askers", self.askers.borrow().len());
    }

    /// The request that listens.
    pub(super) fn listening(&self) -> Option<u64> {
        self.current.get()
    }

    /// Nothing more will be heard.
    pub(super) fn give_up(&self) {
        self.askers.take();
    }

    fn settle(&self) {
        self.is_settled.set(true);
        self.settled.notify_waiters();
    }
}

impl Upstream {
    /// From now on this is to be heard of, and nothing else; the answer says which of what is
    /// wanted by then really is. The wish stands also if nobody waits for the answer.
    pub(crate) fn listen_to(
        &self,
        wanted: Wanted,
    ) -> impl Future<Output = SubscribeResult> + use<> {
        let server = self.key.server.clone();
        let (asker, heard) = oneshot::channel();
        let has_room = self.ears.askers.borrow().len() < MOST_ASKERS;
        if has_room {
            self.ears.wanted.replace(wanted);
            self.ears.askers.borrow_mut().push(asker);
            self.ears.wished.notify_one();
        }
        async move {
            if !has_room {
                let message = format!("too many wait to hear of `{server}`");
                return Err(CallError::new(ErrorKind::QueueFull, message).hint("try again later"));
            }
            let gone =
                || CallError::new(ErrorKind::NotRunning, format!("`{server}` is not listened to"));
            match timeout(HEARD_WITHIN, heard).await {
                Ok(heard) => heard.unwrap_or_else(|_| Err(gone())),
                Err(_) => Err(gone().cause(format!("it took longer than {HEARD_WITHIN:?}"))),
            }
        }
    }

    /// An earlier daemon has left this open.
    pub(crate) fn was_listened_to(&self, earlier: Option<u64>) {
        self.ears.earlier.set(earlier);
    }

    /// Lists are asked for now; answers once whatever changes from now on is heard, or never
    /// will be.
    pub(crate) async fn listens_before_lists(&self) {
        let settled = self.ears.settled.notified();
        if !self.ears.is_settled.get() {
            settled.await;
        }
    }

    /// Lists are asked for now: if nothing listens, once more when something does.
    pub(crate) fn lists_are_asked(&self) {
        self.list_versions.requested.set(self.list_versions.current.get());
        self.ears.is_behind.set(self.ears.current.get().is_none());
    }

    /// Listens to what is wanted, for as long as the server can be asked.
    pub(crate) async fn keep_listening(self: &Rc<Self>) {
        if !self.is_modern() {
            return std::future::pending().await;
        }
        // Whoever listened before does not any more.
        self.ears.current.set(None);
        self.ears.is_settled.set(false);
        let mut keeper = Keeper { upstream: self, ear: None, again_at: None, delay: FIRST_AGAIN };
        loop {
            tokio::select! {
                () = self.ears.wished.notified() => keeper.open().await,
                why = end_of(&mut keeper.ear) => keeper.lost(&why),
                () = until(keeper.again_at) => keeper.open().await,
            }
        }
    }

    /// Whether this is a request of ours that listens.
    pub(super) fn is_ear(&self, ours: u64) -> bool {
        self.ears.count() > 0
            && self
                .calls
                .borrow()
                .get(&ours)
                .is_some_and(|call| matches!(call.caller, Caller::Ears(_)))
    }

    /// Takes what is said to whoever listens about the listening itself.
    pub(super) fn is_for_ears(self: &Rc<Self>, method: &str, params: Option<&str>) -> bool {
        match method {
            ACKNOWLEDGED => {
                let Some((ours, accepted)) = acknowledged(params) else { return true };
                let opening =
                    self.ears.opening.borrow_mut().take_if(|(waiting, _)| *waiting == ours);
                if let Some((_, opening)) = opening {
                    let _ = opening.send(accepted); // It may have come too late.
                }
                true
            }
            CANCELLED if self.is_modern() => {
                let ended = Params::read(params).request_id().and_then(ids::ours);
                if let Some(ours) = ended.filter(|ours| self.is_ear(*ours)) {
                    let fault = CallError::new(ErrorKind::NotRunning, "the server has ended it");
                    self.fail(ours, &fault);
                }
                true
            }
            _ => false,
        }
    }

    /// Opens what hears of this, and of all lists that the server tells of.
    async fn open_ear(self: &Rc<Self>, wanted: &Wanted) -> Result<Opened, CallError> {
        let Some(params) = self.filter(wanted) else { return Ok(Opened::Nothing) };
        let question = self.ask_as(LISTEN, Some(&params), Caller::Ears)?;
        self.ears.count.set(self.ears.count.get() + 1);
        let ours = question.ours;
        let mut ear = Ear { question, accepted: Wanted::default(), since: Instant::now() };
        let (opening, mut opened) = oneshot::channel();
        self.ears.opening.replace(Some((ours, opening)));
        let server = &self.key.server;
        let fault = |kind, why: String| {
            CallError::new(kind, format!("`{server}` cannot be listened to")).cause(why)
        };
        let answer = tokio::select! {
            biased;
            Ok(accepted) = &mut opened => {
                ear.accepted = accepted;
                return Ok(Opened::Ear(ear));
            }
            answer = ear.question.answered() => answer?,
            () = sleep(ACKNOWLEDGED_WITHIN) => {
                let why = format!("it did not say what it tells within {ACKNOWLEDGED_WITHIN:?}");
                return Err(fault(ErrorKind::TimedOut, why));
            }
        };
        if code_of(answer.as_bytes()) == Some(METHOD_NOT_FOUND) {
            return Ok(Opened::Lacking);
        }
        let why = super::result_of(&answer).map_or_else(|why| why, |_| "it ended it".to_owned());
        Err(fault(ErrorKind::Internal, why))
    }

    /// What is asked for; `None` if that is nothing.
    fn filter(&self, wanted: &Wanted) -> Option<String> {
        let introduction = self.introduction()?;
        let result: Value = serde_json::from_str(&introduction.result).unwrap_or_default();
        let mut filter = serde_json::Map::new();
        for (what, key) in [
            ("tools", "toolsListChanged"),
            ("prompts", "promptsListChanged"),
            ("resources", "resourcesListChanged"),
        ] {
            if result["capabilities"][what]["listChanged"] == true {
                filter.insert(key.to_owned(), json!(true));
            }
        }
        if !wanted.uris.is_empty() {
            filter.insert("resourceSubscriptions".to_owned(), json!(wanted.uris));
        }
        if wanted.tasks.is_empty() || !modern::offers_tasks(&introduction.result) {
            return (!filter.is_empty()).then(|| json!({ "notifications": filter }).to_string());
        }
        filter.insert("taskIds".to_owned(), json!(wanted.tasks));
        // Only who knows tasks may ask for them.
        let can: Value = serde_json::from_str(modern::CAN_TASKS).unwrap_or_default();
        let meta = json!({ modern::CAPABILITIES: can });
        Some(json!({ "notifications": filter, "_meta": meta }).to_string())
    }
}

/// Whoever keeps a server listened to.
struct Keeper<'k> {
    upstream: &'k Rc<Upstream>,
    ear: Option<Ear>,
    /// When it is tried again.
    again_at: Option<Instant>,
    delay: Duration,
}

impl Keeper<'_> {
    /// Opens what is wanted now, and ends what was there.
    async fn open(&mut self) {
        let ears = &self.upstream.ears;
        self.again_at = None;
        // Who asks from now on may want something else.
        let (wanted, askers) = (ears.wanted.borrow().clone(), ears.askers.take());
        let mut opened = self.upstream.open_ear(&wanted).await;
        if opened.is_err() && !wanted.tasks.is_empty() {
            // Whoever asks for a task must not keep others from hearing of what they watch.
            let rest = Wanted { tasks: BTreeSet::new(), ..wanted };
            opened = self.upstream.open_ear(&rest).await;
        }
        let heard = match opened {
            Ok(Opened::Ear(ear)) => {
                let accepted = Rc::new(ear.accepted.clone());
                self.replace(Some(ear));
                Ok(accepted)
            }
            Ok(Opened::Nothing | Opened::Lacking) => {
                self.replace(None);
                Ok(Rc::default())
            }
            Err(fault) => {
                self.fails(&fault.to_string());
                Err(fault)
            }
        };
        ears.settle();
        for asker in askers {
            let _ = asker.send(heard.clone()); // It may have left, and shares it with others.
        }
    }

    fn replace(&mut self, ear: Option<Ear>) {
        let ears = &self.upstream.ears;
        ears.current.set(ear.as_ref().map(|ear| ear.question.ours));
        if ear.is_some() && ears.is_behind.replace(false) {
            self.upstream.lists_changed();
        }
        self.ear = ear;
        if let Some(earlier) = ears.earlier.take() {
            let message = format!(
                r#"{{"jsonrpc":"2.0","method":"{CANCELLED}","params":{{"requestId":{earlier}}}}}"#
            );
            self.upstream.send(message.as_bytes());
        }
        self.upstream.leave_note();
    }

    /// It is not listened to any more.
    fn lost(&mut self, why: &str) {
        let ears = &self.upstream.ears;
        ears.current.set(None);
        ears.is_behind.set(true);
        if self.ear.take().is_some_and(|ear| ear.since.elapsed() >= GOOD_AFTER) {
            self.delay = FIRST_AGAIN;
        }
        self.fails(why);
    }

    fn fails(&mut self, why: &str) {
        tracing::debug!(server = %self.upstream.key, why, "not listened to");
        if self.ear.is_none() {
            self.again_at = Some(Instant::now() + self.delay);
            self.delay = (self.delay * 2).min(LAST_AGAIN);
        }
    }
}

/// Why it was ended; never, if there is none.
async fn end_of(ear: &mut Option<Ear>) -> String {
    let Some(ear) = ear else { return std::future::pending().await };
    match ear.question.answered().await {
        Ok(answer) => quoted(&answer),
        Err(fault) => fault.to_string(),
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The request that is acknowledged, and what is heard of.
fn acknowledged(params: Option<&str>) -> Option<(u64, Wanted)> {
    let params: Value = serde_json::from_str(params?).ok()?;
    let id = &params["_meta"][SUBSCRIPTION];
    let ours = id.as_u64().or_else(|| id.as_str()?.parse().ok())?;
    let accepted = |key: &str| {
        let all = params["notifications"][key].as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (uris, tasks) = (accepted("resourceSubscriptions"), accepted("taskIds"));
    Some((ours, Wanted { uris, tasks }))
}
