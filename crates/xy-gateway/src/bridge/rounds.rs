//! Rounds: a modern server requires input for a legacy client's call. xy asks the client as a
//! legacy server would, and repeats the call with the answers.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::{Rc, Weak};

use tokio::task::AbortHandle;
use tokio::time::sleep_until;
use xy_http::frontend::{Route, StreamNo};
use xy_mcp::capabilities::RequiredCapabilities;
use xy_mcp::edit::{Edits, quoted};
use xy_mcp::envelope::{self, Message, Outcome, text_of};
use xy_mcp::members::Members;
use xy_mcp::reply;
use xy_protocol::error::{CallError, ErrorKind};

use super::translation::{OriginalRequest, is_empty};
use crate::call::{AnswerReceiver, CallClient, RetryState, Rounds};

/// Maximum number of rounds of one call.
const MAX_ROUNDS: u8 = 16;

/// Maximum number of questions in one round.
const MAX_QUESTIONS: usize = 32;

/// One round: the questions to the client and their answers.
pub(crate) struct Round {
    client: Weak<dyn CallClient>,
    /// The client's request id, and its stream.
    id: Box<str>,
    stream: StreamNo,
    original: OriginalRequest,
    /// The server's `requestState`, as JSON text.
    state: Option<Box<str>>,
    wanted: RefCell<Vec<RequestedInput>>,
    is_over: Cell<bool>,
    /// The task that ends the round when the call times out.
    timer: Cell<Option<AbortHandle>>,
}

impl Drop for Round {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
    }
}

/// One question of the server.
struct RequestedInput {
    key: Box<str>,
    method: Box<str>,
    /// The client's answer, as JSON text.
    answer: Option<Box<str>>,
}

/// Returns the members of an `input_required` result; `None` for any other result.
pub(crate) fn input_requests(result: &str) -> Option<Members<'_>> {
    let has = |word: &[u8]| memchr::memmem::find(result.as_bytes(), word).is_some();
    if !has(b"input_required") && !has(b"\\u") {
        return None; // The common case.
    }
    let members = Members::read(result)?;
    let kind = members.get("resultType").and_then(text_of);
    (kind.as_deref() == Some("input_required")).then_some(members)
}

impl Round {
    /// Asks the client all questions of an `input_required` result. The client's call stays open
    /// until it is repeated, answered or cancelled.
    pub(crate) fn begin(
        client: &Rc<dyn CallClient>,
        (id, stream): (&str, StreamNo),
        original: OriginalRequest,
        wanted: &Members<'_>,
    ) -> Result<Rc<Self>, CallError> {
        if original.rounds.count >= MAX_ROUNDS {
            client.limit_hit("rounds of input in one call");
            return Err(too_many_rounds());
        }
        let requests = match wanted.get("inputRequests") {
            None => Members::default(),
            Some(text) => Members::read(text)
                .ok_or_else(|| invalid_question("`inputRequests` is not an object"))?,
        };
        let keys: HashSet<&str> = requests.iter().map(|(key, _)| key).collect();
        if keys.len() < requests.len() {
            return Err(invalid_question("two of its requests have the same key"));
        }
        if requests.len() > MAX_QUESTIONS {
            client.limit_hit("inputs that a server requires at once");
            return Err(invalid_question(&format!(
                "it requires more than {MAX_QUESTIONS} inputs at once"
            )));
        }
        let mut questions = Vec::new();
        for (key, request) in requests.iter() {
            questions.push((key, Question::read(&**client, request)?));
        }
        let round = Rc::new(Self {
            client: Rc::downgrade(client),
            id: id.into(),
            stream,
            original,
            state: wanted.get("requestState").map(Into::into),
            wanted: RefCell::default(),
            is_over: Cell::new(false),
            timer: Cell::new(None),
        });
        *round.wanted.borrow_mut() = questions
            .iter()
            .map(|(key, it)| RequestedInput {
                key: (*key).into(),
                method: it.method.into(),
                answer: None,
            })
            .collect();
        for (key, Question { method, params }) in questions {
            let sent =
                client.ask_for_input(round.clone(), key, (method, &params), Route::Related(stream));
            if let Err(fault) = sent {
                round.clone().end(); // Cancels the questions already sent.
                return Err(fault);
            }
        }
        round.start_timer();
        Ok(round)
    }

    /// Starts the timer that ends the round when the call times out. The time for the client's
    /// answers counts.
    fn start_timer(self: &Rc<Self>) {
        let Some(end) = self.original.rounds.timer.as_ref().and_then(|it| it.end()) else { return };
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
        self.clone().end();
        if let (Some(client), Some(timer)) = (self.client.upgrade(), &self.original.rounds.timer) {
            client.respond_error(&self.id, self.stream, &timer.late_answer());
        }
    }

    /// Returns true if no answer is missing; the server may have asked nothing.
    pub(crate) fn is_answered(&self) -> bool {
        self.wanted.borrow().iter().all(|it| it.answer.is_some())
    }

    /// Repeats the client's call with the answers.
    pub(crate) fn resend(self: &Rc<Self>, client: &dyn CallClient) {
        if self.is_over.replace(true) {
            return;
        }
        let Rounds { count, timer } = self.original.rounds.clone();
        let rounds = Rounds { count: count + 1, timer };
        let was_written = self.original.was_written;
        let retry_state = RetryState { rounds, was_written, ..RetryState::default() };
        match self.request() {
            Some(text) => {
                client.redispatch_with(&self.id, text.as_slice().into(), self.stream, retry_state);
            }
            None => client.respond_error(
                &self.id,
                self.stream,
                &invalid_question("the call cannot be repeated"),
            ),
        }
    }

    /// Returns the client's request with the answers.
    fn request(&self) -> Option<Vec<u8>> {
        let Ok(Message::Request { params: Some(params), .. }) =
            envelope::parse(&self.original.text)
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
        // Parameters of earlier rounds are dropped.
        let rest = Members::read(params)?.without(is_round_param).to_string();
        let comma = if is_empty(&rest) || added.is_empty() { "" } else { "," };
        let mut edits = Edits::of(&self.original.text);
        edits.replace(params, format!("{{{}{comma}{}", added.join(","), &rest[1..]));
        Some(edits.to_vec())
    }
}

impl AnswerReceiver for Round {
    // An error fails the call, except for an elicitation, which the user may ignore.
    fn receive_answer(self: Rc<Self>, key: &str, outcome: Outcome<'_>) {
        let Some(client) = self.client.upgrade().filter(|_| !self.is_over.get()) else { return };
        let mut wanted = self.wanted.borrow_mut();
        let Some(one) = wanted.iter_mut().find(|it| &*it.key == key) else { return };
        match outcome {
            Outcome::Result(result) if result.starts_with('{') => one.answer = Some(result.into()),
            Outcome::Result(_) => {
                drop(wanted);
                self.clone().end();
                let fault = reply::invalid("the client's answer to its server is not an object");
                return client.respond_error(&self.id, self.stream, &fault);
            }
            Outcome::Error(_) if &*one.method == "elicitation/create" => {
                one.answer = Some(r#"{"action":"cancel"}"#.into());
            }
            Outcome::Error(error) => {
                drop(wanted);
                self.clone().end();
                let id = &self.id;
                let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
                return client.respond(id, self.stream, line.as_bytes());
            }
        }
        drop(wanted);
        if self.is_answered() {
            self.resend(&*client);
        }
    }

    fn end(self: Rc<Self>) {
        if !self.is_over.replace(true)
            && let Some(client) = self.client.upgrade()
        {
            client.cancel_input(&*self);
        }
    }
}

/// Returns true if a parameter belongs to a round.
pub(super) fn is_round_param(key: &str) -> bool {
    matches!(key, "inputResponses" | "requestState")
}

/// Returns a request without the parameters of earlier rounds.
pub(crate) fn without_round_params(text: &[u8]) -> Option<Vec<u8>> {
    let Ok(Message::Request { params: Some(params), .. }) = envelope::parse(text) else {
        return None;
    };
    let mut edits = Edits::of(text);
    edits.replace(params, Members::read(params)?.without(is_round_param).to_string());
    Some(edits.to_vec())
}

/// A question of a modern server, in legacy form.
struct Question<'t> {
    method: &'t str,
    params: String,
}

impl<'t> Question<'t> {
    fn read(client: &dyn CallClient, request: &'t str) -> Result<Self, CallError> {
        let members = Members::read(request)
            .ok_or_else(|| invalid_question("one of its requests is malformed"))?;
        let method = match members.get("method").and_then(text_of).as_deref() {
            Some("elicitation/create") => "elicitation/create",
            Some("sampling/createMessage") => "sampling/createMessage",
            Some("roots/list") => "roots/list",
            other => {
                let what = xy_protocol::control::quoted(other.unwrap_or_default());
                return Err(invalid_question(&format!("it requests `{what}`")));
            }
        };
        let params = members.get("params").unwrap_or("{}");
        if !params.starts_with('{') {
            return Err(invalid_question("the `params` of its request are not an object"));
        }
        let allowed = client.allows(method, &RequiredCapabilities::read(Some(params)));
        allowed.map_err(|(_, why)| invalid_question(why))?;
        Ok(Self { method, params: with_elicitation_id(method, params) })
    }
}

/// Adds the elicitation id that legacy clients need for a URL elicitation.
fn with_elicitation_id(method: &str, params: &str) -> String {
    let wants = RequiredCapabilities::read(Some(params));
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

fn invalid_question(why: &str) -> CallError {
    CallError::new(ErrorKind::Internal, "the server requires input that this client cannot give")
        .cause(why)
        .hint("the server has not executed the call")
}

fn too_many_rounds() -> CallError {
    let message = format!("the server required input {MAX_ROUNDS} times");
    CallError::new(ErrorKind::Internal, message).hint("the server has not executed the call")
}
