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
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Message, text_of};
use xy_mcp::members::Members;
use xy_protocol::error::{CallError, ErrorKind};

use super::Across;
use super::state::{self, Bond, Key, Unfit};
use crate::client::{Client, Kin};
use crate::front::StreamNo;
use crate::held::Held;
use crate::modern::{Manner, SERVER_INFO};
use crate::names::quoted;
use crate::say;
use crate::upstream::Upstream;

/// How long a call is held for a client that does not come back.
pub(crate) const HELD_FOR: Duration = Duration::from_mins(10);

/// What a server asks within so long is asked of a client at once: it takes a round less.
pub(crate) const ASKED_AT_ONCE: Duration = Duration::from_millis(20);

/// For so long a call that its client is to come back to holds up the next of that client. An
/// answer for which nobody has to be asked comes sooner, and then no two are under way at once.
pub(crate) const HOLDS_UP: Duration = Duration::from_secs(2);

/// How many calls are parked at one time.
const MOST: usize = 1000;

/// How many of them may be of clients that a door cannot tell apart.
const MOST_OF_ONE: usize = 250;

/// How many states are remembered that have been used.
const MOST_USED: usize = 10_000;

/// What a server may ask in one call, until the client answers.
const MOST_ASKED: usize = 32;

/// Answers that wait for their clients, and questions, in bytes.
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// One call that is parked.
pub(crate) struct Hold {
    pub(crate) number: u64,
    /// The client that made it: the server's turn is its, until it has heard what is asked.
    pub(crate) client: u64,
    /// Whom the door cannot tell from it.
    pub(crate) house: u64,
    /// Whose it is.
    pub(crate) kin: Kin,
    /// The call ends with that client, who is alone there.
    pub(crate) is_tied: bool,
    pub(crate) manner: Rc<Manner>,
    pub(crate) method: Box<str>,
    pub(crate) bond: Bond,
    pub(crate) upstream: Weak<Upstream>,
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

impl Hold {
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
            upstream.send(&say::error(&question.id, -32603, why));
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
                told.push(say::result(&it.id, answer));
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

/// All calls that are parked.
pub(crate) struct Parked {
    key: Key,
    kept: RefCell<HashMap<u64, Kept>>,
    /// When each is given up, the next first; some of them may be taken.
    order: RefCell<VecDeque<(Instant, u64)>>,
    /// The oldest first.
    used: RefCell<VecDeque<u64>>,
    next: Cell<u64>,
    bytes: Rc<Cell<usize>>,
}

/// What a state stands for.
#[derive(Clone)]
pub(crate) enum Kept {
    /// A call that the server works on.
    Call(Rc<Hold>),
    /// One that it has refused until its client's user has done something: it is to be made
    /// again, by one of this house.
    Again(u64),
}

/// What a call that is to be parked is made of.
pub(crate) struct NewHold {
    pub(crate) reply_to: ReplyTo,
    pub(crate) manner: Rc<Manner>,
    pub(crate) method: Box<str>,
    pub(crate) bond: Bond,
    pub(crate) upstream: Weak<Upstream>,
    pub(crate) ours: u64,
    pub(crate) info: Option<String>,
    pub(crate) lacks: Option<&'static str>,
}

impl Parked {
    /// None yet. Numbers begin with `first`, which no other daemon has come to.
    pub(crate) fn new(key: Key, first: u64) -> Self {
        Self {
            key,
            kept: RefCell::default(),
            order: RefCell::default(),
            used: RefCell::default(),
            next: Cell::new(first),
            bytes: Rc::default(),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.kept.borrow().len()
    }

    /// A new number, for clients of this house; `None` if there are too many, over all or of
    /// theirs.
    fn number(&self, house: u64) -> Option<u64> {
        let kept = self.kept.borrow();
        let of = |kept: &Kept| match kept {
            Kept::Call(hold) => hold.house,
            Kept::Again(house) => *house,
        };
        let theirs = || kept.values().filter(|it| of(it) == house).count();
        let has_room = kept.len() < MOST && (kept.len() < MOST_OF_ONE || theirs() < MOST_OF_ONE);
        has_room.then(|| self.next.replace(self.next.get().wrapping_add(1)))
    }

    /// Parks a call, in which nothing is asked yet; `None` if there are too many.
    pub(crate) fn park(&self, new: NewHold) -> Option<Rc<Hold>> {
        let NewHold { reply_to, manner, method, bond, upstream, ours, info, lacks } = new;
        let number = self.number(reply_to.client.house())?;
        let (client, house) = (reply_to.client.number(), reply_to.client.house());
        let (is_tied, kin) = (reply_to.client.stays(), reply_to.client.kin());
        let hold = Rc::new(Hold {
            number,
            client,
            house,
            kin,
            is_tied,
            manner,
            method,
            bond,
            upstream,
            ours,
            info,
            lacks: Cell::new(lacks),
            inside: RefCell::new(Inside { reply_to: Some(reply_to), ..Inside::default() }),
            held: RefCell::new(Held::of(&self.bytes, MOST_BYTES)),
            given_at: Cell::new(None),
            is_over: Cell::new(false),
        });
        self.keep(number, Kept::Call(hold.clone()));
        Some(hold)
    }

    /// Remembers that a call may be made again; `None` if there are too many.
    pub(crate) fn allow_again(&self, house: u64) -> Option<u64> {
        let number = self.number(house)?;
        self.keep(number, Kept::Again(house));
        Some(number)
    }

    fn keep(&self, number: u64, kept: Kept) {
        let mut all = self.kept.borrow_mut();
        all.insert(number, kept);
        let mut order = self.order.borrow_mut();
        if order.len() > 2 * MOST {
            order.retain(|(_, number)| all.contains_key(number));
        }
        order.push_back((Instant::now() + HELD_FOR, number));
    }

    /// Takes out what nobody has come back for in time; when there may be more, if ever.
    pub(crate) fn overdue(&self) -> (Vec<Kept>, Option<Instant>) {
        let (mut overdue, now) = (Vec::new(), Instant::now());
        let mut order = self.order.borrow_mut();
        let mut kept = self.kept.borrow_mut();
        while let Some((at, number)) = order.front().copied() {
            if at > now && kept.contains_key(&number) {
                return (overdue, Some(at));
            }
            overdue.extend(kept.remove(&number));
            order.pop_front();
        }
        (overdue, None)
    }

    /// What the client is to carry.
    pub(crate) fn state(&self, number: u64, bond: &Bond) -> String {
        quoted(&state::sign(&self.key, number, now() + HELD_FOR.as_secs(), bond))
    }

    /// The number that a state stands for.
    pub(crate) fn verify(&self, written: &str, bond: &Bond) -> Result<u64, Unfit> {
        let state = text_of(written).ok_or(Unfit::NotOurs)?;
        state::verify(&self.key, &state, now(), bond)
    }

    /// Takes out what a state stands for, once.
    pub(crate) fn take(&self, number: u64) -> Result<Kept, CallError> {
        let kept = self.kept.borrow_mut().remove(&number);
        let mut used = self.used.borrow_mut();
        let Some(kept) = kept else {
            let is_used = used.contains(&number);
            return Err(if is_used { used_before() } else { gone() });
        };
        if used.len() >= MOST_USED {
            used.pop_front();
        }
        used.push_back(number);
        Ok(kept)
    }

    /// Forgets what nobody came back for; whether it was still there.
    pub(crate) fn forget(&self, number: u64) -> Option<Kept> {
        self.kept.borrow_mut().remove(&number)
    }

    /// The calls that end with this client.
    pub(crate) fn tied_to(&self, client: u64) -> Vec<Rc<Hold>> {
        let kept = self.kept.borrow();
        let calls = kept.values().filter_map(|kept| match kept {
            Kept::Call(hold) if hold.is_tied && hold.client == client => Some(hold.clone()),
            _ => None,
        });
        calls.collect()
    }

    /// A server takes back what it asked in a call that is parked.
    pub(crate) fn unask(&self, by: &Rc<Upstream>, id: &str) {
        for kept in self.kept.borrow().values() {
            if let Kept::Call(hold) = kept
                && std::ptr::eq(hold.upstream.as_ptr(), Rc::as_ptr(by))
            {
                hold.unask(id);
            }
        }
    }
}

/// Seconds since 1970: states outlive daemons.
fn now() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "no other clock outlives a daemon")]
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What is said of a state that is not taken.
pub(crate) fn refused(unfit: Unfit) -> CallError {
    let why = match unfit {
        Unfit::NotOurs => "it was not given out here, or it was changed",
        Unfit::Expired => "it was good for 10 minutes, which are over; the call was cancelled",
        Unfit::Foreign => "it was given to another client, or at another door",
        Unfit::OtherRequest => "it was given for another request",
    };
    say::invalid("`requestState` is not accepted").cause(why).hint("make the call anew, without it")
}

fn used_before() -> CallError {
    say::invalid("`requestState` is not accepted")
        .cause("it has been used, and is good for one use")
        .hint("whoever used it has got the answer")
}

/// No more calls can be parked.
pub(crate) fn too_many() -> CallError {
    let message = format!("{MOST} calls wait for their clients, which is the most there may be");
    CallError::new(ErrorKind::QueueFull, message).hint("try again later")
}

/// There is no such call any more.
pub(crate) fn gone() -> CallError {
    CallError::new(ErrorKind::OutcomeUnknown, "outcome unknown: the call is not there any more")
        .cause("it was sent to its server and waited for this client's answers; meanwhile the daemon was restarted, or the call was given up")
        .hint("find out whether it was done before you make it anew")
}
