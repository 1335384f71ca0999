//! All calls that are parked, and what their clients carry to find them again.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};

use tokio::time::Instant;
use xy_config::settings::ParkSettings;
use xy_mcp::envelope::text_of;
use xy_protocol::error::{CallError, ErrorKind};

use super::{HELD_FOR, Inside, PendingInput, ReplyTo};
use crate::backend::Backend;
use crate::bridge::state::{self, Bond, Key, Unfit};
use crate::held::Held;
use crate::modern::RequestMeta;
use crate::names::quoted;
use crate::reply;
use crate::retained::Retained;
use crate::upstream::Upstream;

/// Of all that may be parked, one part in so many may be of clients that a door cannot tell
/// apart.
const PARTS: usize = 4;

/// How many states are remembered that have been used.
const MOST_USED: usize = 10_000;

/// All calls that are parked.
pub(crate) struct Parked {
    key: Key,
    kept: RefCell<HashMap<u64, Kept>>,
    /// When each is given up, the next first; some of them may be taken.
    order: RefCell<VecDeque<(Instant, u64)>>,
    /// The oldest first.
    used: RefCell<VecDeque<u64>>,
    next: Cell<u64>,
    /// How many there may be.
    most: usize,
    /// Answers that wait for their clients, and questions; and how much there may be of these.
    bytes: Rc<Cell<usize>>,
    most_bytes: usize,
    /// When this daemon began to keep any, and what time it was then.
    since: (Instant, u64),
}

/// What a state stands for.
#[derive(Clone)]
pub(crate) enum Kept {
    /// A call that the server works on.
    Call(Rc<PendingInput>),
    /// One that it has refused until its client's user has done something: it is to be made
    /// again, by one of this house.
    Again(u64),
}

/// What a call that is to be parked is made of.
pub(crate) struct NewHold {
    pub(crate) reply_to: ReplyTo,
    pub(crate) manner: Rc<RequestMeta>,
    pub(crate) method: Box<str>,
    pub(crate) bond: Bond,
    pub(crate) upstream: Weak<Upstream>,
    pub(crate) asked: Rc<Backend>,
    pub(crate) ours: u64,
    pub(crate) info: Option<String>,
    pub(crate) lacks: Option<&'static str>,
}

impl Parked {
    /// None yet. Numbers begin with `first`, which no other daemon has come to.
    pub(crate) fn new(key: Key, first: u64, park: &ParkSettings) -> Self {
        Self {
            key,
            kept: RefCell::default(),
            order: RefCell::default(),
            used: RefCell::default(),
            next: Cell::new(first),
            most: park.held_calls,
            bytes: Rc::default(),
            most_bytes: usize::try_from(park.held_bytes).unwrap_or(usize::MAX),
            since: (Instant::now(), seconds_now()),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.kept.borrow().len()
    }

    /// How much is kept.
    pub(crate) fn count(&self, census: &mut Retained) {
        census.add("calls_parked", self.kept.borrow().len());
        census.add("calls_parked_bytes", self.bytes.get());
        census.add("calls_parked_deadlines", self.order.borrow().len());
        census.add("states_used", self.used.borrow().len());
    }

    /// A new number, for clients of this house; `None` if there are too many, over all or of
    /// theirs.
    fn number(&self, group_id: u64) -> Option<u64> {
        let kept = self.kept.borrow();
        let of = |kept: &Kept| match kept {
            Kept::Call(hold) => hold.group_id,
            Kept::Again(group_id) => *group_id,
        };
        let theirs = || kept.values().filter(|it| of(it) == group_id).count();
        let of_one = self.most.div_ceil(PARTS);
        let has_room = kept.len() < self.most && (kept.len() < of_one || theirs() < of_one);
        has_room.then(|| self.next.replace(self.next.get().wrapping_add(1)))
    }

    /// Why no more calls can be parked.
    pub(crate) fn full(&self) -> CallError {
        CallError::new(ErrorKind::QueueFull, "too many calls wait for their clients")
            .cause(format!(
                "no more may be held than `held-calls` of `park` says, which is {}, and a quarter \
                 of these for one client",
                self.most
            ))
            .hint(
                "try again later, or write a larger `park { held-calls … }` in `xy.kdl` and start \
                 the daemon anew",
            )
    }

    /// Parks a call, in which nothing is asked yet; `None` if there are too many.
    pub(crate) fn park(&self, new: NewHold) -> Option<Rc<PendingInput>> {
        let NewHold { reply_to, manner, method, bond, upstream, asked, ours, info, lacks } = new;
        let number = self.number(reply_to.client.group_id())?;
        let (client, group_id) = (reply_to.client.number(), reply_to.client.group_id());
        let (is_tied, principal) = (reply_to.client.stays(), reply_to.client.principal());
        let hold = Rc::new(PendingInput {
            number,
            client,
            group_id,
            principal,
            is_tied,
            manner,
            method,
            bond,
            upstream,
            asked,
            ours,
            info,
            lacks: Cell::new(lacks),
            inside: RefCell::new(Inside { reply_to: Some(reply_to), ..Inside::default() }),
            held: RefCell::new(Held::of(&self.bytes, self.most_bytes)),
            given_at: Cell::new(None),
            is_over: Cell::new(false),
        });
        self.keep(number, Kept::Call(hold.clone()));
        Some(hold)
    }

    /// Remembers that a call may be made again; `None` if there are too many.
    pub(crate) fn allow_again(&self, group_id: u64) -> Option<u64> {
        let number = self.number(group_id)?;
        self.keep(number, Kept::Again(group_id));
        Some(number)
    }

    fn keep(&self, number: u64, kept: Kept) {
        let mut all = self.kept.borrow_mut();
        all.insert(number, kept);
        let mut order = self.order.borrow_mut();
        if order.len() > self.most.saturating_mul(2) {
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
        quoted(&state::sign(&self.key, number, self.now() + HELD_FOR.as_secs(), bond))
    }

    /// The number that a state stands for.
    pub(crate) fn verify(&self, written: &str, bond: &Bond) -> Result<u64, Unfit> {
        let state = text_of(written).ok_or(Unfit::NotOurs)?;
        state::verify(&self.key, &state, self.now(), bond)
    }

    /// Seconds since 1970, since states outlive daemons. They pass as they do for the calls
    /// that are kept, whoever sets the clock.
    fn now(&self) -> u64 {
        let (began, at) = self.since;
        at + began.elapsed().as_secs()
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
    pub(crate) fn tied_to(&self, client: u64) -> Vec<Rc<PendingInput>> {
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

/// Seconds since 1970.
fn seconds_now() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "no other clock outlives a daemon")]
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What is said of a state that is not taken.
pub(crate) fn refused(unfit: Unfit) -> CallError {
    let why = match unfit {
        Unfit::NotOurs => "it was not given out here, or it was changed",
        Unfit::Expired => "it was good for 10 minutes, which are over; the call was cancelled",
        Unfit::Foreign => "it was given to another client, or on another listener",
        Unfit::OtherRequest => "it was given for another request",
    };
    let hint = match unfit {
        Unfit::Expired => "find out whether it was done before you make it anew",
        Unfit::NotOurs | Unfit::Foreign | Unfit::OtherRequest => "make the call anew, without it",
    };
    reply::invalid("`requestState` is not accepted").cause(why).hint(hint)
}

fn used_before() -> CallError {
    reply::invalid("`requestState` is not accepted")
        .cause("it has been used, and is good for one use")
        .hint("whoever used it has got the answer")
}

/// There is no such call any more.
pub(crate) fn gone() -> CallError {
    CallError::new(ErrorKind::OutcomeUnknown, "outcome unknown: the call is not there any more")
        .cause("it was sent to its server and waited for this client's answers; meanwhile the daemon was restarted, or the call was given up")
        .hint("find out whether it was done before you make it anew")
}
