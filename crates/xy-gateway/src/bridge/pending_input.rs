//! A call of a modern client that a legacy server has asked something in: it is parked until
//! the client comes back with answers.
//!
//! ```text
//!  asked ──► flushed: the client gets what is asked, and a state ──► taken up: answers go to
//!    ▲                  │                                             the server, the call is
//!    │                  │ nobody comes for it: cancelled              the client's again
//!    └── asked again, in the next round ◄───────────────────────────────┘
//! ```
//!
//! What the server asks meanwhile waits for the next round, and what it answers for whoever
//! takes the call up.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Message};
use xy_mcp::members::Members;
use xy_protocol::error::{CallError, ErrorKind};

mod parked;

pub(crate) use parked::{Kept, NewHold, Parked, gone, refused};

use super::Across;
use super::state::Bond;
use crate::backend::Backend;
use crate::client::{Client, Principal};
use crate::frontend::StreamNo;
use crate::held::Held;
use crate::modern::{RequestMeta, SERVER_INFO};
use crate::reply;
use crate::upstream::Upstream;

/// How long a call is held for a client that does not come back.
pub(crate) const HELD_FOR: Duration = Duration::from_mins(10);

/// What a server asks within so long is asked of a client at once: it takes a round less.
pub(crate) const ASKED_AT_ONCE: Duration = Duration::from_millis(20);

/// For so long a call that its client is to come back to holds up the next of that client. An
/// answer for which nobody has to be asked comes sooner, and then no two are under way at once.
pub(crate) const HOLDS_UP: Duration = Duration::from_secs(2);

/// What a server may ask in one call, until the client answers.
const MOST_ASKED: usize = 32;

/// One call that is parked.
pub(crate) struct PendingInput {
    pub(crate) number: u64,
    /// The client that made it: the server's turn is its, until it has heard what is asked.
    pub(crate) client: u64,
    /// Whom the door cannot tell from it.
    pub(crate) group_id: u64,
    /// Whose it is.
    pub(crate) principal: Principal,
    /// The call ends with that client, who is alone there.
    pub(crate) is_tied: bool,
    pub(crate) manner: Rc<RequestMeta>,
    pub(crate) method: Box<str>,
    pub(crate) bond: Bond,
    pub(crate) upstream: Weak<Upstream>,
    /// Its server, by the name that the client used.
    pub(crate) asked: Rc<Backend>,
    pub(crate) ours: u64,
    /// Who the server is, as it was written.
    pub(crate) info: Option<String>,
    /// What the server wanted of the client that it cannot do.
    pub(crate) lacks: Cell<Option<&'static str>>,
    inside: RefCell<Inside>,
    held: RefCell<Held>,
    /// When the client has heard what it is asked.
    given_at: Cell<Option<Instant>>,
    is_over: Cell<bool>,
}

#[derive(Default)]
struct Inside {
    /// The request that is to be answered with what is asked.
    reply_to: Option<ReplyTo>,
    /// What the client was given to answer.
    given: Vec<Question>,
    /// What was asked since.
    fresh: Vec<Question>,
    came: Option<Came>,
    last_key: u64,
    bytes: usize,
}

/// A request of a client.
pub(crate) struct ReplyTo {
    pub(crate) client: Rc<Client>,
    pub(crate) id: Box<str>,
    pub(crate) stream: StreamNo,
}

/// Something that a server asks.
pub(crate) struct Question {
    key: String,
    /// The server's own id, as it was written.
    id: Box<str>,
    method: Box<str>,
    params: String,
}

/// What came of a call that is parked.
pub(crate) enum Came {
    /// This whole answer.
    Answer(Box<[u8]>),
    /// Nothing, for this reason.
    Fault(CallError),
}

/// What is to be done with a call that a client takes up.
pub(crate) enum Next {
    /// It has been answered meanwhile.
    Deliver(Came),
    /// The server works on it.
    GoOn,
    /// More is asked.
    AskMore,
}

impl PendingInput {
    /// A server asks something in this call. `false` if that is too much.
    pub(crate) fn ask(&self, id: &str, method: &str, params: Option<&str>) -> bool {
        let mut inside = self.inside.borrow_mut();
        let params = as_modern(method, params.unwrap_or("{}"));
        let bytes = inside.bytes + params.len();
        let count = inside.given.len() + inside.fresh.len();
        if count >= MOST_ASKED || !self.held.borrow_mut().holds(bytes) {
            self.held.borrow_mut().holds(inside.bytes);
            return false;
        }
        inside.bytes = bytes;
        inside.last_key += 1;
        let key = format!("q{}", inside.last_key);
        inside.fresh.push(Question { key, id: id.into(), method: method.into(), params });
        true
    }

    /// The server takes back what it asked.
    pub(crate) fn unask(&self, id: &str) {
        let mut inside = self.inside.borrow_mut();
        inside.given.retain(|it| &*it.id != id);
        inside.fresh.retain(|it| &*it.id != id);
        self.count(&mut inside);
    }

    /// Counts what is still asked.
    fn count(&self, inside: &mut Inside) {
        inside.bytes = inside.given.iter().chain(&inside.fresh).map(|it| it.params.len()).sum();
        self.held.borrow_mut().holds(inside.bytes);
    }

    /// The server has answered, or never will.
    pub(crate) fn came(&self, came: Came) {
        let mut inside = self.inside.borrow_mut();
        let came = match came {
            Came::Answer(line) if !self.held.borrow_mut().holds(inside.bytes + line.len()) => {
                self.held.borrow_mut().holds(inside.bytes);
                Came::Fault(no_room())
            }
            came => came,
        };
        if matches!(came, Came::Fault(_)) {
            // Nobody is there to be answered.
            inside.given.clear();
            inside.fresh.clear();
            self.count(&mut inside);
        }
        inside.came = Some(came);
    }

    /// Whether the client has heard what it is asked.
    pub(crate) fn is_given(&self) -> bool {
        self.inside.borrow().reply_to.is_none()
    }

    /// Whether that is so long ago that its client seems to wait for a person.
    pub(crate) fn is_left(&self) -> bool {
        self.given_at.get().is_some_and(|at| at.elapsed() >= HOLDS_UP)
    }

    /// Whether the server has taken back nothing, or not all, of what the client was given to
    /// answer.
    pub(crate) fn is_awaited(&self) -> bool {
        let inside = self.inside.borrow();
        inside.reply_to.is_none() && !inside.given.is_empty()
    }

    /// It takes too long: what the server has asked is refused, and whoever comes back is told
    /// this.
    pub(crate) fn is_late(&self, fault: CallError) {
        self.refuse(&self.inside.borrow(), "this took too long");
        self.came(Came::Fault(fault));
    }

    fn refuse(&self, inside: &Inside, why: &str) {
        let Some(upstream) = self.upstream.upgrade() else { return };
        for question in inside.given.iter().chain(&inside.fresh) {
            upstream.send(&reply::error(&question.id, -32603, why));
        }
    }

    /// The request that is to hear what is asked, and what that is: an answer, if it has come,
    /// or else `None`. Nothing at all if nobody is to hear anything.
    pub(crate) fn flush(&self) -> Option<(ReplyTo, Option<Came>)> {
        let mut inside = self.inside.borrow_mut();
        let reply_to = inside.reply_to.take()?;
        self.given_at.set(Some(Instant::now()));
        let fresh = std::mem::take(&mut inside.fresh);
        inside.given.extend(fresh);
        Some((reply_to, inside.came.take()))
    }

    /// What the client is asked, as it stands in a result.
    fn wanted(&self) -> String {
        let inside = self.inside.borrow();
        let all = inside.given.iter().map(|Question { key, method, params, .. }| {
            format!(r#""{key}":{{"method":"{method}","params":{params}}}"#)
        });
        let all: Vec<String> = all.collect();
        format!("{{{}}}", all.join(","))
    }

    /// The client is back, with these answers: what the server is to be told, and what comes
    /// next.
    pub(crate) fn take_up(&self, answers: Option<&str>) -> (Vec<Vec<u8>>, Next) {
        let answers = answers.and_then(Members::read).unwrap_or_default();
        let mut inside = self.inside.borrow_mut();
        let mut told = Vec::new();
        // What is no object answers nothing: it is asked again.
        let answer_to = |key: &str| answers.get(key).filter(|it| it.starts_with('{'));
        inside.given.retain(|it| match answer_to(&it.key) {
            Some(answer) => {
                told.push(reply::result(&it.id, answer));
                false
            }
            None => true,
        });
        self.count(&mut inside);
        let next = match inside.came.take() {
            Some(came) => Next::Deliver(came),
            None if inside.given.is_empty() && inside.fresh.is_empty() => Next::GoOn,
            None => Next::AskMore,
        };
        (told, next)
    }

    /// Moves what is still asked to a new round, for whoever has come back.
    pub(crate) fn pass_on_to(&self, next: &Self) {
        let mut inside = self.inside.borrow_mut();
        let mut after = next.inside.borrow_mut();
        after.given = std::mem::take(&mut inside.given);
        after.fresh = std::mem::take(&mut inside.fresh);
        (after.last_key, after.bytes) = (inside.last_key, inside.bytes);
        self.held.borrow_mut().holds(0);
        next.held.borrow_mut().holds(after.bytes);
    }

    /// Nobody will come back, or the call is over: what the server has asked is refused.
    /// Whether that is new.
    pub(crate) fn end(&self) -> bool {
        if self.is_over.replace(true) {
            return false;
        }
        self.refuse(&self.inside.take(), "nobody has answered this");
        self.held.borrow_mut().holds(0);
        true
    }

    /// What stands between its client and its server.
    pub(crate) fn across(&self) -> Across {
        let (method, lacks) = (self.method.clone(), self.lacks.get());
        Across::ToLegacy { method, bond: Some(self.bond), lacks }
    }

    /// What came of it, as the answer to a client's request `id`.
    pub(crate) fn answer(&self, came: Came, id: &str) -> Result<Vec<u8>, CallError> {
        let line = match came {
            Came::Fault(fault) => return Err(fault),
            Came::Answer(line) => line,
        };
        let Ok(Message::Answer { id: Some(ours), outcome }) = envelope::parse(&line) else {
            return Err(gone());
        };
        let across = self.across();
        if let Some(wrong) = across.instead(outcome) {
            return Ok(wrong.line(id));
        }
        let mut edits = Edits::of(&line);
        edits.replace(ours, id.to_owned());
        across.edit_answer(outcome, self.info.as_deref(), &mut edits);
        Ok(edits.to_vec())
    }

    /// A result that asks the client for what the server wants to know.
    pub(crate) fn asks(&self, state: &str) -> String {
        asking(&self.wanted(), state, self.info.as_deref())
    }
}

/// A result that asks for input.
pub(crate) fn asking(wanted: &str, state: &str, info: Option<&str>) -> String {
    let meta = info.map(|info| format!(r#","_meta":{{"{SERVER_INFO}":{info}}}"#));
    format!(
        r#"{{"resultType":"input_required","inputRequests":{wanted},"requestState":{state}{}}}"#,
        meta.unwrap_or_default()
    )
}

/// What a legacy server asks, without what this revision does not have.
fn as_modern(method: &str, params: &str) -> String {
    let Some(members) = Members::read(params) else { return "{}".to_owned() };
    let is_gone = |key: &str| {
        matches!((method, key), (_, "task" | "_meta") | ("elicitation/create", "elicitationId"))
    };
    members.without(is_gone).to_string()
}

fn no_room() -> CallError {
    CallError::new(ErrorKind::OutcomeUnknown, "the server answered, and there was no room for it")
        .cause("too many answers wait for clients that have not come back")
        .hint("find out whether it was done before you repeat it")
}
