//! The table of all pending inputs, and the states by which clients find them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};

use tokio::time::Instant;
use xy_config::settings::ParkSettings;
use xy_mcp::edit::quoted;
use xy_mcp::envelope::text_of;
use xy_mcp::modern::RequestMeta;
use xy_mcp::reply;
use xy_protocol::error::{CallError, ErrorKind};
use xy_transport::budget::SharedBudget;
use xy_transport::retained::Retained;
use xy_transport::share::TokenUse;
use xy_upstream::connection::Connection;

use super::{INPUT_TIMEOUT, PendingInput, ReplyTo, State};
use crate::bridge::state::{self, Key, StateBinding, StateError};
use crate::call::Alias;
use crate::limit_hits;

/// One group may have at most one part in this many of all pending inputs.
const GROUP_SHARE: usize = 4;

/// Maximum number of remembered used states.
const MAX_USED_STATES: usize = 10_000;

/// All pending inputs.
pub(crate) struct PendingInputs {
    key: Key,
    entries: RefCell<HashMap<u64, PendingEntry>>,
    /// Deadlines in order, including those of calls that were already taken.
    order: RefCell<VecDeque<(Instant, u64)>>,
    /// Numbers of used states, oldest first.
    used: RefCell<VecDeque<u64>>,
    next: Cell<u64>,
    /// Maximum number of pending inputs.
    max_calls: usize,
    /// The budget of stored results and questions.
    bytes: Rc<SharedBudget>,
    /// The start of this daemon, on the monotonic clock and in seconds since 1970.
    since: (Instant, u64),
}

/// The meaning of a state.
#[derive(Clone)]
pub(crate) enum PendingEntry {
    /// A call that the server works on.
    Call(Rc<PendingInput>),
    /// A call that the server rejected until its client's user has acted; a client of this group
    /// may repeat it.
    Again { group_id: u64, token: TokenUse },
}

/// The parts of a new pending input.
pub(crate) struct NewPendingInput {
    pub(crate) reply_to: ReplyTo,
    pub(crate) request_meta: Rc<RequestMeta>,
    pub(crate) method: Box<str>,
    pub(crate) binding: StateBinding,
    pub(crate) connection: Weak<Connection>,
    pub(crate) alias: Rc<Alias>,
    pub(crate) upstream_id: u64,
    pub(crate) info: Option<String>,
    pub(crate) missing: Option<&'static str>,
}

impl PendingInputs {
    /// Creates an empty table. Numbers begin with `first`, which no earlier daemon has reached.
    pub(crate) fn new(key: Key, first: u64, park: &ParkSettings) -> Self {
        Self {
            key,
            entries: RefCell::default(),
            order: RefCell::default(),
            used: RefCell::default(),
            next: Cell::new(first),
            max_calls: park.held_calls,
            bytes: SharedBudget::new(usize::try_from(park.held_bytes).unwrap_or(usize::MAX)),
            since: (Instant::now(), seconds_now()),
        }
    }

    /// Returns the number of pending inputs.
    pub(crate) fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    /// Adds the retained counts to `counts`.
    pub(crate) fn count(&self, counts: &mut Retained) {
        counts.add("calls_parked", self.entries.borrow().len());
        counts.add("calls_parked_bytes", self.bytes.held());
        counts.add("calls_parked_deadlines", self.order.borrow().len());
        counts.add("states_used", self.used.borrow().len());
    }

    /// Returns a new number; `None` if the total, the group's limit or the token's share is
    /// reached.
    fn number(&self, group_id: u64, token: TokenUse) -> Option<u64> {
        let entries = self.entries.borrow();
        let of = |entry: &PendingEntry| match entry {
            PendingEntry::Call(pending) => (pending.group_id, pending.token),
            PendingEntry::Again { group_id, token } => (*group_id, *token),
        };
        let of_group = || entries.values().filter(|it| of(it).0 == group_id).count();
        let of_token = || entries.values().filter(|it| of(it).1 == token).count();
        let (all, of_one) = (entries.len(), self.max_calls.div_ceil(GROUP_SHARE));
        let has_room = all < self.max_calls
            && (all < of_one || of_group() < of_one)
            // Without a count: holds even if all calls are those of the token.
            && (token.may_take(all, all, self.max_calls)
                || token.may_take(of_token(), all, self.max_calls));
        has_room.then(|| self.next.replace(self.next.get().wrapping_add(1)))
    }

    /// Returns the error for a full table.
    pub(crate) fn full_error(&self) -> CallError {
        CallError::new(ErrorKind::QueueFull, "too many calls wait for their clients")
            .cause(format!(
                "the limit is {} (`park {{ held-calls }}`), a quarter of that for one client, and a \
                 share for one token",
                self.max_calls
            ))
            .hint(
                "try again later, or raise `park { held-calls }` in `xy.kdl` and restart the daemon",
            )
    }

    /// Parks a call without questions; returns `None` if a limit is reached.
    pub(crate) fn insert(&self, new: NewPendingInput) -> Option<Rc<PendingInput>> {
        let NewPendingInput {
            reply_to,
            request_meta,
            method,
            binding,
            connection,
            alias,
            upstream_id,
            info,
            missing,
        } = new;
        let token = reply_to.client.token();
        let Some(number) = self.number(reply_to.client.group_id(), token) else {
            reply_to.client.limit_hit(limit_hits::PENDING_INPUT);
            return None;
        };
        let (client, group_id) = (reply_to.client.number(), reply_to.client.group_id());
        let (ends_with_client, principal) =
            (reply_to.client.has_session(), reply_to.client.principal());
        let pending = Rc::new(PendingInput {
            number,
            client,
            group_id,
            token,
            principal,
            ends_with_client,
            request_meta,
            method,
            binding,
            connection,
            alias,
            upstream_id,
            info,
            missing: Cell::new(missing),
            state: RefCell::new(State { reply_to: Some(reply_to), ..State::default() }),
            held: RefCell::new(self.bytes.reserve(token)),
            delivered_at: Cell::new(None),
            is_over: Cell::new(false),
        });
        self.keep(number, PendingEntry::Call(pending.clone()));
        Some(pending)
    }

    /// Allows a group to repeat a call; returns `None` if a limit is reached.
    pub(crate) fn allow_again(&self, group_id: u64, token: TokenUse) -> Option<u64> {
        let number = self.number(group_id, token)?;
        self.keep(number, PendingEntry::Again { group_id, token });
        Some(number)
    }

    fn keep(&self, number: u64, entry: PendingEntry) {
        let mut all = self.entries.borrow_mut();
        all.insert(number, entry);
        let mut order = self.order.borrow_mut();
        if order.len() > self.max_calls.saturating_mul(2) {
            order.retain(|(_, number)| all.contains_key(number));
        }
        order.push_back((Instant::now() + INPUT_TIMEOUT, number));
    }

    /// Removes the expired entries; returns them and the next deadline.
    pub(crate) fn take_expired(&self) -> (Vec<PendingEntry>, Option<Instant>) {
        let (mut expired, now) = (Vec::new(), Instant::now());
        let mut order = self.order.borrow_mut();
        let mut entries = self.entries.borrow_mut();
        while let Some((at, number)) = order.front().copied() {
            if at > now && entries.contains_key(&number) {
                return (expired, Some(at));
            }
            expired.extend(entries.remove(&number));
            order.pop_front();
        }
        (expired, None)
    }

    /// Returns a signed state, as JSON text.
    pub(crate) fn state(&self, number: u64, binding: &StateBinding) -> String {
        quoted(&state::sign(&self.key, number, self.now() + INPUT_TIMEOUT.as_secs(), binding))
    }

    /// Verifies a state; returns its number.
    pub(crate) fn verify(&self, written: &str, binding: &StateBinding) -> Result<u64, StateError> {
        let state = text_of(written).ok_or(StateError::Unknown)?;
        state::verify(&self.key, &state, self.now(), binding)
    }

    /// Returns the seconds since 1970, since states outlive daemons. Advances with the monotonic
    /// clock, even if the system clock is set.
    fn now(&self) -> u64 {
        let (began, at) = self.since;
        at + began.elapsed().as_secs()
    }

    /// Takes the entry of a state, once.
    pub(crate) fn take(&self, number: u64) -> Result<PendingEntry, CallError> {
        let entry = self.entries.borrow_mut().remove(&number);
        let mut used = self.used.borrow_mut();
        let Some(entry) = entry else {
            let is_used = used.contains(&number);
            return Err(if is_used { used_before() } else { call_gone() });
        };
        if used.len() >= MAX_USED_STATES {
            used.pop_front();
        }
        used.push_back(number);
        Ok(entry)
    }

    /// Removes an entry; returns it if it was still there.
    pub(crate) fn forget(&self, number: u64) -> Option<PendingEntry> {
        self.entries.borrow_mut().remove(&number)
    }

    /// Returns the calls that end with this client.
    pub(crate) fn tied_to(&self, client: u64) -> Vec<Rc<PendingInput>> {
        let entries = self.entries.borrow();
        let calls = entries.values().filter_map(|entry| match entry {
            PendingEntry::Call(pending) if pending.ends_with_client && pending.client == client => {
                Some(pending.clone())
            }
            _ => None,
        });
        calls.collect()
    }

    /// Removes a question that a server has cancelled.
    pub(crate) fn cancel_question(&self, by: &Rc<Connection>, id: &str) {
        for entry in self.entries.borrow().values() {
            if let PendingEntry::Call(pending) = entry
                && std::ptr::eq(pending.connection.as_ptr(), Rc::as_ptr(by))
            {
                pending.cancel_question(id);
            }
        }
    }
}

/// Returns the seconds since 1970.
fn seconds_now() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "no other clock outlives a daemon")]
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn used_before() -> CallError {
    reply::invalid("`requestState` is not accepted")
        .cause("it has been used, and is valid only once")
        .hint("the client that used it received the answer")
}

/// Returns the error for a call that no longer exists.
pub(crate) fn call_gone() -> CallError {
    CallError::new(ErrorKind::OutcomeUnknown, "outcome unknown: the call no longer exists")
        .cause("it was sent to its server and waited for this client's answers; meanwhile the daemon was restarted, or the call was given up")
        .hint("check whether the call was executed before repeating it")
}
