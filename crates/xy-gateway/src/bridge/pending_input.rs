//! Pending inputs: calls of modern clients in which a legacy server requests input.
//!
//! ```text
//!  asked ──► flushed: the client gets the questions and a state ──► resumed: the server gets
//!    ▲                  │                                             the answers, the client
//!    │                  │ the client never returns: cancelled         waits for the result
//!    └── asked again, in the next round ◄─────────────────────────────┘
//! ```
//!
//! Questions that the server asks meanwhile wait for the next round. A result that arrives
//! meanwhile waits for the client to resume.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Message};
use xy_mcp::members::Members;
use xy_protocol::error::{CallError, ErrorKind};

mod table;

pub(crate) use table::{NewPendingInput, PendingEntry, PendingInputs, call_gone};

use xy_http::frontend::StreamNo;
use xy_mcp::modern::{RequestMeta, SERVER_INFO};
use xy_mcp::reply;
use xy_transport::budget::TokenReservation;
use xy_transport::share::TokenUse;
use xy_upstream::connection::Connection;

use super::EraTranslation;
use super::state::StateBinding;
use crate::call::{Alias, CallClient, Principal};
use crate::limit_hits;

/// How long a call waits for its client.
pub(crate) const INPUT_TIMEOUT: Duration = Duration::from_mins(10);

/// How long questions are collected, so that several need only one round.
pub(crate) const QUESTION_BATCH_DELAY: Duration = Duration::from_millis(20);

/// How long a call that waits for its client delays that client's next call. Answers that need no
/// user come sooner, so that no two calls overlap.
pub(crate) const MAX_SLOT_HOLD: Duration = Duration::from_secs(2);

/// Maximum number of unanswered questions in one call.
const MAX_QUESTIONS: usize = 32;

/// The name of this limit, for users.
const QUESTIONS: &str = "open server requests of one call";

/// A call of a modern client that waits for input from this client.
pub(crate) struct PendingInput {
    pub(crate) number: u64,
    /// The client that made the call. The client holds the server's slot until it has received the
    /// questions.
    pub(crate) client: u64,
    /// The group of the client.
    pub(crate) group_id: u64,
    /// The token of the client.
    pub(crate) token: TokenUse,
    /// The owner of the call.
    pub(crate) principal: Principal,
    /// True if the call ends with this client.
    pub(crate) ends_with_client: bool,
    pub(crate) request_meta: Rc<RequestMeta>,
    pub(crate) method: Box<str>,
    pub(crate) binding: StateBinding,
    /// The connection to the server that asks.
    pub(crate) connection: Weak<Connection>,
    /// The server, by the alias that the client used.
    pub(crate) alias: Rc<Alias>,
    pub(crate) upstream_id: u64,
    /// The server's `serverInfo`, as JSON text.
    pub(crate) info: Option<String>,
    /// The capabilities that the server needed and the client lacks.
    pub(crate) missing: Cell<Option<&'static str>>,
    state: RefCell<State>,
    held: RefCell<TokenReservation>,
    /// When the client received the questions.
    delivered_at: Cell<Option<Instant>>,
    is_over: Cell<bool>,
}

#[derive(Default)]
struct State {
    /// The request to answer with the questions.
    reply_to: Option<ReplyTo>,
    /// The questions that the client has received.
    delivered: Vec<Question>,
    /// The questions asked since.
    undelivered: Vec<Question>,
    result: Option<CallResult>,
    last_key: u64,
    bytes: usize,
}

impl State {
    /// Records that `limit` rejected something of the client. While the client is away, there is
    /// none to name.
    fn limit_hit(&self, limit: &'static str) {
        if let Some(reply_to) = &self.reply_to {
            reply_to.client.limit_hit(limit);
        }
    }
}

/// An open request of a client.
pub(crate) struct ReplyTo {
    pub(crate) client: Rc<dyn CallClient>,
    pub(crate) id: Box<str>,
    pub(crate) stream: StreamNo,
}

/// A question of the server.
pub(crate) struct Question {
    key: String,
    /// The server's request id, as JSON text.
    id: Box<str>,
    method: Box<str>,
    params: String,
}

/// The result of a pending input.
pub(crate) enum CallResult {
    /// The complete response line.
    Response(Box<[u8]>),
    /// The reason why there is no response.
    Fault(CallError),
}

/// The next step of a resumed call.
pub(crate) enum ResumeAction {
    /// Deliver the result that has arrived meanwhile.
    Deliver(CallResult),
    /// Wait for the server.
    Continue,
    /// Ask the remaining questions.
    AskMore,
}

impl PendingInput {
    /// Adds a question of the server. Returns false if a limit is exceeded.
    pub(crate) fn ask(&self, id: &str, method: &str, params: Option<&str>) -> bool {
        let mut state = self.state.borrow_mut();
        let params = as_modern(method, params.unwrap_or("{}"));
        let bytes = state.bytes + params.len();
        let count = state.delivered.len() + state.undelivered.len();
        let has_room = self.held.borrow_mut().resize(bytes);
        if count >= MAX_QUESTIONS || !has_room {
            self.held.borrow_mut().resize(state.bytes);
            let is_count = count >= MAX_QUESTIONS;
            state.limit_hit(if is_count { QUESTIONS } else { limit_hits::PENDING_INPUT_BYTES });
            return false;
        }
        state.bytes = bytes;
        state.last_key += 1;
        let key = format!("q{}", state.last_key);
        state.undelivered.push(Question { key, id: id.into(), method: method.into(), params });
        true
    }

    /// Removes a question that the server has cancelled.
    pub(crate) fn cancel_question(&self, id: &str) {
        let mut state = self.state.borrow_mut();
        state.delivered.retain(|it| &*it.id != id);
        state.undelivered.retain(|it| &*it.id != id);
        self.count(&mut state);
    }

    /// Updates the byte count.
    fn count(&self, state: &mut State) {
        state.bytes =
            state.delivered.iter().chain(&state.undelivered).map(|it| it.params.len()).sum();
        self.held.borrow_mut().resize(state.bytes);
    }

    /// Stores the result of the call.
    pub(crate) fn set_result(&self, result: CallResult) {
        let mut state = self.state.borrow_mut();
        let result = match result {
            CallResult::Response(line)
                if !self.held.borrow_mut().resize(state.bytes + line.len()) =>
            {
                self.held.borrow_mut().resize(state.bytes);
                state.limit_hit(limit_hits::PENDING_INPUT_BYTES);
                CallResult::Fault(no_room())
            }
            result => result,
        };
        if matches!(result, CallResult::Fault(_)) {
            // The server no longer waits for answers.
            state.delivered.clear();
            state.undelivered.clear();
            self.count(&mut state);
        }
        state.result = Some(result);
    }

    /// Returns true if the client has received the questions.
    pub(crate) fn is_delivered(&self) -> bool {
        self.state.borrow().reply_to.is_none()
    }

    /// Returns true if the client has had the questions for so long that it seems to wait for a
    /// user.
    pub(crate) fn is_slow(&self) -> bool {
        self.delivered_at.get().is_some_and(|at| at.elapsed() >= MAX_SLOT_HOLD)
    }

    /// Returns true if questions that the client has received are still open.
    pub(crate) fn is_awaited(&self) -> bool {
        let state = self.state.borrow();
        state.reply_to.is_none() && !state.delivered.is_empty()
    }

    /// Rejects the server's questions and stores `fault` as the result, as the call takes too long.
    pub(crate) fn time_out(&self, fault: CallError) {
        self.reject_questions(&self.state.borrow(), "this took too long");
        self.set_result(CallResult::Fault(fault));
    }

    fn reject_questions(&self, state: &State, why: &str) {
        let Some(connection) = self.connection.upgrade() else { return };
        for question in state.delivered.iter().chain(&state.undelivered) {
            connection.send(&reply::error(&question.id, -32603, why));
        }
    }

    /// Takes the request to answer, and the result if there is one; otherwise the questions are the
    /// answer. Returns `None` if no request is open.
    pub(crate) fn flush(&self) -> Option<(ReplyTo, Option<CallResult>)> {
        let mut state = self.state.borrow_mut();
        let reply_to = state.reply_to.take()?;
        self.delivered_at.set(Some(Instant::now()));
        let undelivered = std::mem::take(&mut state.undelivered);
        state.delivered.extend(undelivered);
        Some((reply_to, state.result.take()))
    }

    /// Returns the questions as `inputRequests`.
    fn input_requests(&self) -> String {
        let state = self.state.borrow();
        let all = state.delivered.iter().map(|Question { key, method, params, .. }| {
            format!(r#""{key}":{{"method":"{method}","params":{params}}}"#)
        });
        let all: Vec<String> = all.collect();
        format!("{{{}}}", all.join(","))
    }

    /// Accepts the client's answers; returns the responses for the server and the next step.
    pub(crate) fn resume(&self, answers: Option<&str>) -> (Vec<Vec<u8>>, ResumeAction) {
        let answers = answers.and_then(Members::read).unwrap_or_default();
        let mut state = self.state.borrow_mut();
        let mut responses = Vec::new();
        // Only an object is an answer; any other question is asked again.
        let answer_to = |key: &str| answers.get(key).filter(|it| it.starts_with('{'));
        state.delivered.retain(|it| match answer_to(&it.key) {
            Some(answer) => {
                responses.push(reply::result(&it.id, answer));
                false
            }
            None => true,
        });
        self.count(&mut state);
        let next = match state.result.take() {
            Some(result) => ResumeAction::Deliver(result),
            None if state.delivered.is_empty() && state.undelivered.is_empty() => {
                ResumeAction::Continue
            }
            None => ResumeAction::AskMore,
        };
        (responses, next)
    }

    /// Moves the open questions to the pending input of the next round.
    pub(crate) fn move_questions_to(&self, next: &Self) {
        let mut state = self.state.borrow_mut();
        let mut after = next.state.borrow_mut();
        after.delivered = std::mem::take(&mut state.delivered);
        after.undelivered = std::mem::take(&mut state.undelivered);
        (after.last_key, after.bytes) = (state.last_key, state.bytes);
        self.held.borrow_mut().resize(0);
        next.held.borrow_mut().resize(after.bytes);
    }

    /// Ends the call and rejects the server's questions. Returns true if it was not over.
    pub(crate) fn end(&self) -> bool {
        if self.is_over.replace(true) {
            return false;
        }
        self.reject_questions(&self.state.take(), "the client did not answer");
        self.held.borrow_mut().resize(0);
        true
    }

    /// Returns the translation between the client and the server.
    pub(crate) fn translation(&self) -> EraTranslation {
        let (method, missing) = (self.method.clone(), self.missing.get());
        EraTranslation::ToLegacy { method, binding: Some(self.binding), missing }
    }

    /// Converts a result into the response to the client's request `id`.
    pub(crate) fn answer(&self, result: CallResult, id: &str) -> Result<Vec<u8>, CallError> {
        let line = match result {
            CallResult::Fault(fault) => return Err(fault),
            CallResult::Response(line) => line,
        };
        let Ok(Message::Response { id: Some(upstream_id), outcome }) = envelope::parse(&line)
        else {
            return Err(call_gone());
        };
        let translation = self.translation();
        if let Some(wrong) = translation.missing_capability_error(outcome) {
            return Ok(wrong.line(id));
        }
        let mut edits = Edits::of(&line);
        edits.replace(upstream_id, id.to_owned());
        translation.edit_answer(outcome, self.info.as_deref(), &mut edits);
        Ok(edits.to_vec())
    }

    /// Returns the `input_required` result with the questions.
    pub(crate) fn input_required_result(&self, state: &str) -> String {
        input_required(&self.input_requests(), state, self.info.as_deref())
    }
}

/// Formats an `input_required` result.
pub(crate) fn input_required(wanted: &str, state: &str, info: Option<&str>) -> String {
    let meta = info.map(|info| format!(r#","_meta":{{"{SERVER_INFO}":{info}}}"#));
    format!(
        r#"{{"resultType":"input_required","inputRequests":{wanted},"requestState":{state}{}}}"#,
        meta.unwrap_or_default()
    )
}

/// Removes what the modern era lacks from the params of a legacy question.
fn as_modern(method: &str, params: &str) -> String {
    let Some(members) = Members::read(params) else { return "{}".to_owned() };
    let is_gone = |key: &str| {
        matches!((method, key), (_, "task" | "_meta") | ("elicitation/create", "elicitationId"))
    };
    members.without(is_gone).to_string()
}

fn no_room() -> CallError {
    CallError::new(
        ErrorKind::OutcomeUnknown,
        "the server answered, but its answer could not be stored",
    )
    .cause("too many answers wait for clients")
    .hint("check whether the call was executed before repeating it")
}
