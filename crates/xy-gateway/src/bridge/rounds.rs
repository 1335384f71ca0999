//! A modern server wants to know something before it does what a legacy client asked: the
//! client is asked as servers of its era ask, and its request is sent again with the answers.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::{Rc, Weak};

use tokio::task::AbortHandle;
use tokio::time::sleep_until;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Message, Outcome, text_of};
use xy_mcp::members::Members;
use xy_protocol::error::{CallError, ErrorKind};

use super::across::{Asked, is_empty};
use crate::backend::RetryState;
use crate::capabilities::Wants;
use crate::client::Client;
use crate::frontend::{Route, StreamNo};
use crate::names::quoted;
use crate::reply;
use crate::upstream::Watch;

/// How many times a server may want to know more.
const MOST_ROUNDS: u8 = 16;

/// How many things it may want to know at a time.
const MOST_AT_ONCE: usize = 32;

/// What a request has behind it that is sent again with what its server wanted to know.
#[derive(Clone, Default)]
pub(crate) struct Rounds {
    /// How many times it was sent again.
    pub(crate) count: u8,
    /// How long it may take, since it was first sent.
    pub(crate) watch: Option<Rc<Watch>>,
}

/// One round: what is asked of the client, and what comes of it.
pub(crate) struct Round {
    client: Weak<Client>,
    /// What the client calls its request, and where it asked.
    id: Box<str>,
    stream: StreamNo,
    asked: Asked,
    /// What the server wants to have back, as it was written.
    state: Option<Box<str>>,
    wanted: RefCell<Vec<Wanted>>,
    is_over: Cell<bool>,
    /// Ends it when the request takes too long.
    timer: Cell<Option<AbortHandle>>,
}

impl Drop for Round {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
    }
}

/// One thing that a server wants to know.
struct Wanted {
    key: Box<str>,
    method: Box<str>,
    /// As the client wrote it.
    answer: Option<Box<str>>,
}

/// What a server says that it wants to know, if that is what its result is.
pub(crate) fn wanted(result: &str) -> Option<Members<'_>> {
    let has = |word: &[u8]| memchr::memmem::find(result.as_bytes(), word).is_some();
    if !has(b"input_required") && !has(b"\\u") {
        return None; // As nearly all.
    }
    let members = Members::read(result)?;
    let kind = members.get("resultType").and_then(text_of);
    (kind.as_deref() == Some("input_required")).then_some(members)
}

impl Round {
    /// Asks the client what a server wants to know. Its request is open until it is sent again,
    /// answered or cancelled.
    pub(crate) fn begin(
        client: &Rc<Client>,
        (id, stream): (&str, StreamNo),
        asked: Asked,
        wanted: &Members<'_>,
    ) -> Result<Rc<Self>, CallError> {
        if asked.rounds.count >= MOST_ROUNDS {
            return Err(too_often());
        }
        let requests = match wanted.get("inputRequests") {
            None => Members::default(),
            Some(text) => {
                Members::read(text).ok_or_else(|| strange("what it wants is no object"))?
            }
        };
        let keys: HashSet<&str> = requests.iter().map(|(key, _)| key).collect();
        if keys.len() < requests.len() {
            return Err(strange("it wants two things under one name"));
        }
        if requests.len() > MOST_AT_ONCE {
            return Err(strange(&format!("it wants more than {MOST_AT_ONCE} things at once")));
        }
        let mut questions = Vec::new();
        for (key, request) in requests.iter() {
            questions.push((key, Question::read(client, request)?));
        }
        let round = Rc::new(Self {
            client: Rc::downgrade(client),
            id: id.into(),
            stream,
            asked,
            state: wanted.get("requestState").map(Into::into),
            wanted: RefCell::default(),
            is_over: Cell::new(false),
            timer: Cell::new(None),
        });
        *round.wanted.borrow_mut() = questions
            .iter()
            .map(|(key, it)| Wanted { key: (*key).into(), method: it.method.into(), answer: None })
            .collect();
        for (key, Question { method, params }) in questions {
            let asked = client.ask_for_round(&round, key, method, &params, Route::Related(stream));
            if let Err(fault) = asked {
                round.end(); // What was asked before is of no use.
                return Err(fault);
            }
        }
        round.end_in_time();
        Ok(round)
    }

    /// Ends it when the request takes too long: also the time that its client needs for an
    /// answer is time that whoever waits for the request has to wait.
    fn end_in_time(self: &Rc<Self>) {
        let Some(end) = self.asked.rounds.watch.as_ref().and_then(|it| it.end()) else { return };
        if self.is_answered() {
            return;
        }
        let round = Rc::downgrade(self);
        let timer = tokio::task::spawn_local(async move {
            sleep_until(end).await;
            if let Some(round) = round.upgrade() {
                round.time_out();
            }
        });
        self.timer.set(Some(timer.abort_handle()));
    }

    fn time_out(self: &Rc<Self>) {
        if self.is_over.get() {
            return;
        }
        self.end();
        if let (Some(client), Some(watch)) = (self.client.upgrade(), &self.asked.rounds.watch) {
            client.failed(&self.id, self.stream, &watch.late_answer());
        }
    }

    /// Whether there is nothing to ask: the server only wants to be asked again.
    pub(crate) fn is_answered(&self) -> bool {
        self.wanted.borrow().iter().all(|it| it.answer.is_some())
    }

    /// The client answers. What it cannot do is the end of its request, but for a question to
    /// its user, who may simply not answer.
    pub(crate) fn answered(self: &Rc<Self>, key: &str, outcome: Outcome<'_>) {
        let Some(client) = self.client.upgrade().filter(|_| !self.is_over.get()) else { return };
        let mut wanted = self.wanted.borrow_mut();
        let Some(one) = wanted.iter_mut().find(|it| &*it.key == key) else { return };
        match outcome {
            Outcome::Result(result) if result.starts_with('{') => one.answer = Some(result.into()),
            Outcome::Result(_) => {
                drop(wanted);
                self.end();
                let fault = reply::invalid("what the client answered to its server is no object");
                return client.failed(&self.id, self.stream, &fault);
            }
            Outcome::Error(_) if &*one.method == "elicitation/create" => {
                one.answer = Some(r#"{"action":"cancel"}"#.into());
            }
            Outcome::Error(error) => {
                drop(wanted);
                self.end();
                let id = &self.id;
                let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
                return client.answered(id, self.stream, line.as_bytes());
            }
        }
        drop(wanted);
        if self.is_answered() {
            self.ask_again(&client);
        }
    }

    /// Has the client's request sent again, with all that is known now.
    pub(crate) fn ask_again(self: &Rc<Self>, client: &Client) {
        if self.is_over.replace(true) {
            return;
        }
        let Rounds { count, watch } = self.asked.rounds.clone();
        let rounds = Rounds { count: count + 1, watch };
        let was_written = self.asked.was_written;
        let past = RetryState { rounds, was_written, ..RetryState::default() };
        match self.request() {
            Some(text) => client.again_after(&self.id, text.as_slice().into(), self.stream, past),
            None => client.failed(&self.id, self.stream, &strange("it cannot be asked again")),
        }
    }

    /// The client's request, with its answers in it.
    fn request(&self) -> Option<Vec<u8>> {
        let Ok(Message::Request { params: Some(params), .. }) = envelope::parse(&self.asked.text)
        else {
            return None;
        };
        let wanted = self.wanted.borrow();
        let answers = wanted.iter().filter_map(|it| Some((&it.key, it.answer.as_ref()?)));
        let answers: Vec<String> =
            answers.map(|(key, answer)| format!("{}:{answer}", quoted(key))).collect();
        let mut added = Vec::new();
        if !answers.is_empty() {
            added.push(format!(r#""inputResponses":{{{}}}"#, answers.join(",")));
        }
        if let Some(state) = &self.state {
            added.push(format!(r#""requestState":{state}"#));
        }
        // What was said in an earlier round is not said again.
        let rest = Members::read(params)?.without(is_of_round).to_string();
        let comma = if is_empty(&rest) || added.is_empty() { "" } else { "," };
        let mut edits = Edits::of(&self.asked.text);
        edits.replace(params, format!("{{{}{comma}{}", added.join(","), &rest[1..]));
        Some(edits.to_vec())
    }

    /// Nobody waits for it any more: what is still asked is taken back.
    pub(crate) fn end(self: &Rc<Self>) {
        if !self.is_over.replace(true)
            && let Some(client) = self.client.upgrade()
        {
            client.unask_round(self);
        }
    }
}

/// Whether a param is only there when something is asked again.
pub(super) fn is_of_round(key: &str) -> bool {
    matches!(key, "inputResponses" | "requestState")
}

/// A request as it was before anything was asked.
pub(crate) fn as_at_first(text: &[u8]) -> Option<Vec<u8>> {
    let Ok(Message::Request { params: Some(params), .. }) = envelope::parse(text) else {
        return None;
    };
    let mut edits = Edits::of(text);
    edits.replace(params, Members::read(params)?.without(is_of_round).to_string());
    Some(edits.to_vec())
}

/// Something that a server wants of a client, as a legacy server would ask it.
struct Question<'t> {
    method: &'t str,
    params: String,
}

impl<'t> Question<'t> {
    fn read(client: &Client, request: &'t str) -> Result<Self, CallError> {
        let members =
            Members::read(request).ok_or_else(|| strange("what it wants is no request"))?;
        let method = match members.get("method").and_then(text_of).as_deref() {
            Some("elicitation/create") => "elicitation/create",
            Some("sampling/createMessage") => "sampling/createMessage",
            Some("roots/list") => "roots/list",
            other => {
                let what = xy_protocol::control::quoted(other.unwrap_or_default());
                return Err(strange(&format!("it wants `{what}` of the client")));
            }
        };
        let params = members.get("params").unwrap_or("{}");
        if !params.starts_with('{') {
            return Err(strange("what it wants has params that are no object"));
        }
        let allowed = client.allows(method, &Wants::read(Some(params)));
        allowed.map_err(|(_, why)| strange(why))?;
        Ok(Self { method, params: with_elicitation_id(method, params) })
    }
}

/// A legacy client wants a name for what its user is to do elsewhere.
fn with_elicitation_id(method: &str, params: &str) -> String {
    let wants = Wants::read(Some(params));
    if method != "elicitation/create" || !wants.is_url() || wants.elicitation().is_some() {
        return params.to_owned();
    }
    let comma = if is_empty(params) { "" } else { "," };
    let id = quoted(&format!("xy-{:016x}", digest(params)));
    format!(r#"{{"elicitationId":{id}{comma}{}"#, &params[1..])
}

fn digest(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn strange(why: &str) -> CallError {
    CallError::new(ErrorKind::Internal, "the server asks what cannot be asked of this client")
        .cause(why)
        .hint("it waited for that before it did the call")
}

fn too_often() -> CallError {
    let message = format!("the server wanted to know more {MOST_ROUNDS} times");
    CallError::new(ErrorKind::Internal, message).hint("it waited for that before it did the call")
}
