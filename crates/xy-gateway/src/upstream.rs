//! One living server, as the gateway speaks with it: what is to be written, which calls are
//! open, what each thing it says means.
//!
//! A call is appended to one buffer and remembered under an id of ours; its answer goes
//! straight to the outlet of whoever asked. There is no task and no channel in between.
//! What is sent is in `asking.rs`, what is said in `inbound.rs`; what moves the bytes is behind
//! `wire.rs`; `handshake.rs` says hello.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use xy_config::settings::ParkSettings;
use xy_mcp::envelope::Outcome;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::InstanceKey;
use xy_supervisor::speak::Said;

use crate::backend::{Backend, RetryState};
use crate::bridge::pending_input::PendingInput;
use crate::bridge::{Across, Bond};
use crate::catalog::Known;
use crate::client::Client;
use crate::era::{Era, Introduction};
use crate::frontend::StreamNo;
use crate::large::LargeReader;
use crate::message_text::MessageText;
use crate::modern::RequestMeta;
use crate::via::Via;

mod activity;
mod asking;
mod assembler;
pub(crate) mod call_log;
mod caller;
mod ending;
pub(crate) mod event_subscription;
pub(crate) mod handshake;
pub(crate) mod http_client;
mod ids;
mod in_flight;
mod inbound;
mod kept;
mod outgoing;
pub(crate) mod pipes;
pub(crate) mod probe;
mod response;
pub(crate) mod retry;
mod round_trip;
pub(crate) mod self_meta;
mod timeout;
mod unread;
pub(crate) mod wire;

use call_log::CallLog;
pub(crate) use caller::{Caller, Follow, Question, Whose};
pub(crate) use ending::{Cause, UnansweredCall};
use event_subscription::Ears;
pub(crate) use event_subscription::Wanted;
use ids::Ids;
pub(crate) use inbound::UNFRAMED;
use kept::Kept;
pub(crate) use response::result_of;
pub use round_trip::RoundTrip;
pub(crate) use timeout::Watch;
use wire::Wire;

/// How long something a server says may belong to a call that was given up, or to one of
/// another daemon's client.
pub(crate) const ECHO: Duration = Duration::from_secs(60);

/// Who hears what a server says of its own accord.
pub(crate) trait UpstreamEvents {
    /// It told something that belongs to no call by itself.
    fn told(&self, by: &Rc<Upstream>, told: &Told<'_>);
    /// It asks something, under this id of its own.
    fn asked(&self, by: &Rc<Upstream>, id: &str, asked: &Told<'_>);
    /// Returns what parses the large messages of all servers.
    fn large_reader(&self) -> &LargeReader;
    /// It has written a message over several lines.
    fn breaks_framing(&self, by: &Upstream);
    /// Returns the daemons that it serves.
    fn daemons_before(&self, upstream: &Upstream) -> Via;
    /// It has answered a client with an error, or something that is to be followed. Answers
    /// a part of that which is to be another.
    fn answers<'t>(&self, by: &Rc<Upstream>, answer: &Answer<'t>) -> Option<(&'t str, String)>;
    /// It told of progress that is of no call: the token is ours, and stands there as `part`.
    fn progressed(&self, by: &Rc<Upstream>, token: u64, part: &str, line: &[u8]);
    /// A call of a client is over, of a server where clients take turns.
    fn is_over(&self, by: &Rc<Upstream>);
    /// It does not answer these calls, in the order in which they were sent: `why` says how it
    /// came.
    fn lost(&self, by: &Upstream, calls: Vec<UnansweredCall>, why: Cause<'_>);
    /// A server refused a modern client's request until its user has done something elsewhere,
    /// if this error says so: then the client is asked for that. Whether it is.
    fn wants_elsewhere(
        &self,
        client: &Rc<Client>,
        request: (&str, StreamNo),
        manner: &RequestMeta,
        bond: &Bond,
        error: &str,
    ) -> bool;
}

/// Something that a server says of its own accord.
pub(crate) struct Told<'t> {
    pub(crate) method: &'t str,
    pub(crate) params: Option<&'t str>,
    /// All of it.
    pub(crate) line: &'t [u8],
    /// The call that it is about, if the way it came tells.
    pub(crate) during: Option<u64>,
}

/// What a server has answered a client.
pub(crate) struct Answer<'t> {
    pub(crate) client: &'t Rc<Client>,
    /// The server, by the name that the client used.
    pub(crate) asked: &'t Rc<Backend>,
    /// Our id of the call.
    pub(crate) ours: u64,
    /// The client's token for its progress.
    pub(crate) token: Option<&'t str>,
    pub(crate) follow: &'t Follow,
    pub(crate) outcome: Outcome<'t>,
}

/// The versions of a server's lists; each `list_changed` makes a new one.
#[derive(Debug, Default)]
struct ListVersions {
    current: Cell<u64>,
    /// The current version at the last list request.
    requested: Cell<u64>,
    /// The version of the lists that are known.
    known: Cell<u64>,
}

/// One living server.
pub(crate) struct Upstream {
    key: InstanceKey,
    wire: Rc<dyn Wire>,
    calls: RefCell<HashMap<u64, Call>>,
    ids: RefCell<Ids>,
    stage: RefCell<Stage>,
    said: mpsc::Sender<Said>,
    company: Rc<dyn UpstreamEvents>,
    /// What listens to what it says of its own accord, where it has to be asked for that.
    ears: Ears,
    /// Some of its lists may have changed.
    stale: Notify,
    list_versions: ListVersions,
    /// It is known better.
    learned: Notify,
    /// It writes messages over several lines.
    is_unframed: Cell<bool>,
    /// Lines for its log.
    strays: RefCell<Vec<u8>>,
    /// It has been told what to log.
    is_tuned: Cell<bool>,
    /// What it offers, once it has said so.
    known: RefCell<Option<Rc<Known>>>,
    /// Until then it may speak to clients of another daemon.
    strange_until: Option<Instant>,
    /// Reused for each answer.
    scratch: RefCell<Vec<u8>>,
    /// Somebody is to hear when a call is over.
    takes_turns: Cell<bool>,
    /// Somebody looks after calls that take too long.
    is_watched: Cell<bool>,
    /// One of these may be late sooner than that is looked for.
    sooner: Rc<Notify>,
    /// What has waited is not sent before then.
    held_back_until: Cell<Option<Instant>>,
    /// Bytes of copies of its calls, and how many there may be.
    kept: Rc<Cell<usize>>,
    most_kept: Cell<usize>,
    /// How long its calls wait.
    patience: Cell<Duration>,
    /// How much it has said.
    heard: activity::Activity,
    /// When a call of it last began or ended, where anybody wants to know that.
    called_at: Cell<Instant>,
    /// Who has called it and is still there.
    users: RefCell<BTreeSet<u64>>,
    /// Who did last.
    last_user: Cell<u64>,
    is_dated: Cell<bool>,
    /// A client has called it, or watches a resource of it.
    was_used: Cell<bool>,
    /// Somebody forgets what was given up.
    is_forgetting: Cell<bool>,
    /// It lives for one client and has not said what it offers: its client cannot ask it yet.
    holds_off: Cell<bool>,
    /// It lives for one client and has heard nothing of it: it offers what anybody would get.
    is_fresh: Cell<bool>,
    /// The server was found hung. Calls that it has begun may be why.
    is_hung: Cell<bool>,
    /// A task looks after calls that the server has not read.
    is_reading_watched: Cell<bool>,
}

/// How far a conversation has come.
#[derive(Debug, Clone)]
enum Stage {
    /// It has not answered `initialize` yet.
    Greeted,
    /// It can be asked.
    Open(Rc<Introduction>),
    /// It can not be asked any more.
    Closed,
}

/// A request that is not answered.
struct Call {
    caller: Caller,
    /// By which one can tell whether it was written.
    place: u64,
    sent_at: Instant,
    /// How long it may take.
    watch: Option<Rc<Watch>>,
    /// The server has asked its client something meanwhile.
    has_asked: bool,
    /// What was before.
    past: RetryState,
    /// What its client wrote, if it may be sent again.
    kept: Option<Kept>,
    /// What is told of it in the debug log, if anybody wants to know.
    log: Option<Box<CallLog>>,
}

impl Call {
    fn of(caller: Caller, place: u64) -> Self {
        let past = RetryState::default();
        let (kept, log, watch) = (None, None, None);
        Self { caller, place, sent_at: Instant::now(), watch, has_asked: false, past, kept, log }
    }
}

/// A request that is to be forwarded: a text, and pieces of it.
pub(crate) struct Request<'t> {
    /// The whole message.
    pub(crate) text: MessageText<'t>,
    /// Its id.
    pub(crate) id: &'t str,
    /// The client's token for its progress.
    pub(crate) token: Option<&'t str>,
    /// What stands in it for a name or URI, and what it is there.
    pub(crate) renamed: Option<(&'t str, String)>,
    /// What is asked, for people: its method, and what that is about.
    pub(crate) what: (&'t str, Option<&'t str>),
    /// The server, by the name that its client used.
    pub(crate) asked: Rc<Backend>,
    /// How its answer is looked at.
    pub(crate) follow: Follow,
    /// How long it may take.
    pub(crate) watch: Option<Rc<Watch>>,
    /// The text of its params.
    pub(crate) params: Option<&'t str>,
    /// Their `_meta`, if that is an object.
    pub(crate) meta: Option<&'t str>,
    /// What it says of its client, if that is modern.
    pub(crate) manner: Option<Rc<RequestMeta>>,
    /// What it says there that an equal server must not hear, and what it hears instead.
    pub(crate) hidden: Option<(&'t str, String)>,
    /// What has happened to it before.
    pub(crate) past: RetryState,
    /// It says that it is sent again.
    pub(crate) has_state: bool,
}

impl Upstream {
    /// One that has not been spoken with here; `first_id` has never been used towards it.
    pub(crate) fn new(
        key: InstanceKey,
        said: mpsc::Sender<Said>,
        first_id: u64,
        is_adopted: bool,
        wire: Rc<dyn Wire>,
        company: Rc<dyn UpstreamEvents>,
    ) -> Rc<Self> {
        // What an earlier daemon's client has done with it nobody knows.
        let is_fresh = !is_adopted && key.holder.is_client();
        Rc::new(Self {
            key,
            wire,
            calls: RefCell::default(),
            ids: RefCell::new(Ids::from(first_id)),
            stage: RefCell::new(Stage::Greeted),
            said,
            company,
            ears: Ears::default(),
            stale: Notify::new(),
            list_versions: ListVersions::default(),
            learned: Notify::new(),
            is_unframed: Cell::new(false),
            strays: RefCell::default(),
            is_tuned: Cell::new(false),
            known: RefCell::default(),
            strange_until: is_adopted.then(|| Instant::now() + ECHO),
            scratch: RefCell::default(),
            takes_turns: Cell::new(false),
            is_watched: Cell::new(false),
            sooner: Rc::default(),
            kept: Rc::default(),
            held_back_until: Cell::new(None),
            most_kept: Cell::new(0),
            patience: Cell::new(Duration::ZERO),
            heard: activity::Activity::default(),
            called_at: Cell::new(Instant::now()),
            users: RefCell::default(),
            last_user: Cell::new(0),
            is_dated: Cell::new(false),
            was_used: Cell::new(is_adopted),
            is_forgetting: Cell::new(false),
            holds_off: Cell::new(is_fresh),
            is_fresh: Cell::new(is_fresh),
            is_hung: Cell::new(false),
            is_reading_watched: Cell::new(false),
        })
    }

    /// So many bytes may be kept of calls that are not answered, and so long they wait.
    pub(crate) fn may_park(&self, park: ParkSettings) {
        self.most_kept.set(usize::try_from(park.bytes).unwrap_or(usize::MAX));
        self.patience.set(park.queue);
    }

    /// How long a call waits for it.
    pub(crate) fn patience(&self) -> Duration {
        self.patience.get()
    }

    /// Whose life it is.
    pub(crate) fn key(&self) -> &InstanceKey {
        &self.key
    }

    /// What it said of itself, while it can be asked.
    pub(crate) fn introduction(&self) -> Option<Rc<Introduction>> {
        match &*self.stage.borrow() {
            Stage::Open(introduction) => Some(introduction.clone()),
            Stage::Greeted | Stage::Closed => None,
        }
    }

    /// Whether its client cannot ask it yet.
    pub(crate) fn holds_off(&self) -> bool {
        self.holds_off.get()
    }

    /// From now on its client can; whether it could not before.
    pub(crate) fn holds_off_no_more(&self) -> bool {
        self.holds_off.replace(false)
    }

    /// Whether it has heard nothing of the client that it lives for.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_fresh.get()
    }

    /// Sends what a client says that wants no answer.
    pub(crate) fn pass(&self, message: &[u8]) {
        self.is_fresh.set(false);
        self.send(message);
    }

    /// Which kind of revision it speaks.
    pub(crate) fn era(&self) -> Era {
        self.introduction().map_or(Era::Legacy, |introduction| introduction.era())
    }

    /// How many calls are open that somebody waits for.
    pub(crate) fn open_calls(&self) -> usize {
        let calls = self.calls.borrow();
        let is_waited_for =
            |call: &&Call| call.caller.is_there() && !matches!(call.caller, Caller::Ears(_));
        calls.values().filter(is_waited_for).count()
    }

    /// Those of them that were asked under this name of its server; what is our own is asked
    /// under that of its owner.
    pub(crate) fn open_calls_of(&self, name: &ServerName) -> usize {
        let calls = self.calls.borrow();
        let is_open =
            |call: &&Call| call.caller.is_there() && !matches!(call.caller, Caller::Ears(_));
        let asked =
            |call: &Call| call.caller.asked().map_or(&self.key.server, |it| &it.name) == name;
        calls.values().filter(is_open).filter(|call| asked(call)).count()
    }

    /// How many calls are open that are not our own.
    pub(crate) fn calls_of_others(&self) -> usize {
        let is_other = |call: &&Call| {
            matches!(call.caller, Caller::Client { .. } | Caller::Parked(_) | Caller::Visitor(_))
        };
        self.calls.borrow().values().filter(is_other).count()
    }

    /// Returns true if the server has given the session a name.
    pub(crate) fn has_session(&self) -> bool {
        self.wire.session().is_some()
    }

    /// Returns true if a client has called it in this life.
    pub(crate) fn was_used(&self) -> bool {
        self.was_used.get()
    }

    /// Records that clients use it: it is not started over in another era.
    pub(crate) fn mark_used(&self) {
        self.was_used.set(true);
    }

    /// Clients of this house call it.
    pub(crate) fn is_used_by(&self, group_id: u64) {
        self.mark_used();
        if self.last_user.replace(group_id) != group_id {
            self.users.borrow_mut().insert(group_id);
        }
    }

    /// They have gone.
    pub(crate) fn forget_user(&self, group_id: u64) {
        self.users.borrow_mut().remove(&group_id);
        self.last_user.set(0);
    }

    /// Who has called it and is still there.
    pub(crate) fn users(&self) -> Vec<u64> {
        self.users.borrow().iter().copied().collect()
    }

    /// From now on it is known when it is called, or no more.
    pub(crate) fn set_dated(&self, is_dated: bool) {
        if self.is_dated.replace(is_dated) != is_dated {
            self.called_at.set(Instant::now());
        }
    }

    /// When a call of it last began or ended, if that is known.
    pub(crate) fn called_at(&self) -> Instant {
        self.called_at.get()
    }

    /// A call of it begins or ends.
    fn is_called(&self) {
        if self.is_dated.get() {
            self.called_at.set(Instant::now());
        }
    }

    /// It has lost calls, and may be dying: what waits is not sent to it before then, when
    /// somebody looks again.
    pub(crate) fn hold_back(&self, until: Instant) {
        self.held_back_until.set(Some(until));
    }

    pub(crate) fn is_held_back(&self) -> bool {
        self.held_back_until.get().is_some_and(|until| Instant::now() < until)
    }

    /// Records that the server was found hung.
    pub(crate) fn mark_hung(&self) {
        self.is_hung.set(true);
    }

    /// Returns true if the server was found hung.
    pub(crate) fn is_hung(&self) -> bool {
        self.is_hung.get()
    }

    /// What a client is shown of this, under the name that it used.
    pub(crate) fn shown_as(
        &self,
        asked: &Backend,
        client: &Client,
        known: Rc<Known>,
    ) -> Option<Rc<Known>> {
        let is_own = asked.name == self.key.server;
        let known = if is_own { known } else { known.under(&asked.name) };
        client.visible(&asked.name, known)
    }

    /// It has asked a client something: in this call, or in any of that client's.
    pub(crate) fn has_asked(&self, client: u64, during: Option<u64>) {
        for (ours, call) in self.calls.borrow_mut().iter_mut() {
            let is_meant = during.map_or(call.caller.number() == Some(client), |it| it == *ours);
            call.has_asked |= is_meant;
        }
    }

    /// Whose this call is, as far as somebody waits for it.
    pub(crate) fn whose(&self, ours: u64) -> Option<Whose> {
        self.calls.borrow().get(&ours)?.caller.whose(ours)
    }

    /// What a call said of its client, if that is modern.
    pub(crate) fn manner_of(&self, ours: u64) -> Option<Rc<RequestMeta>> {
        match &self.calls.borrow().get(&ours)?.caller {
            Caller::Client { manner, .. } => manner.clone(),
            Caller::Parked(hold) => Some(hold.manner.clone()),
            _ => None,
        }
    }

    /// In this call it wanted of the client what it cannot do, as the text of capabilities.
    pub(crate) fn lacks(&self, ours: u64, needed: &'static str) {
        match self.calls.borrow_mut().get_mut(&ours).map(|it| &mut it.caller) {
            Some(Caller::Client { across: Some(across), .. }) => across.lacks(needed),
            Some(Caller::Parked(hold)) => hold.lacks.set(Some(needed)),
            _ => {}
        }
    }

    /// Takes a call from its client, which is to answer something before it goes on: what it
    /// was, if it can be parked.
    pub(crate) fn detach_call(&self, ours: u64) -> Option<Caller> {
        let mut calls = self.calls.borrow_mut();
        let call = calls.get_mut(&ours)?;
        let can_wait = matches!(call.caller.across(), Some(Across::ToLegacy { bond: Some(_), .. }));
        call.has_asked |= can_wait;
        if can_wait {
            call.kept = None; // Whoever comes back for it gives it another id.
        }
        can_wait.then(|| std::mem::replace(&mut call.caller, Caller::Unheard))
    }

    /// From now on this call is somebody else's.
    pub(crate) fn attach(self: &Rc<Self>, ours: u64, caller: Caller) {
        let mut calls = self.calls.borrow_mut();
        let Some(call) = calls.get_mut(&ours) else { return };
        call.caller = caller;
        if let Some(watch) = &call.watch {
            watch.touch();
            drop(calls);
            self.watch_anew();
        }
    }

    /// Whether this very call waits for its client.
    pub(crate) fn is_parked(&self, hold: &Rc<PendingInput>) -> bool {
        let calls = self.calls.borrow();
        let call = calls.get(&hold.ours);
        call.is_some_and(|it| matches!(&it.caller, Caller::Parked(it) if Rc::ptr_eq(it, hold)))
    }

    /// Whether it has been told what to log, by this daemon or an earlier one.
    pub(crate) fn is_tuned(&self) -> bool {
        self.is_tuned.get()
    }

    /// It has been told.
    pub(crate) fn set_tuned(&self) {
        if !self.is_tuned.replace(true) {
            self.leave_note();
        }
    }

    /// It said that its lists have changed.
    pub(crate) fn lists_changed(&self) {
        let current = &self.list_versions.current;
        current.set(current.get() + 1);
        self.stale.notify_one();
    }

    /// Returns true if its lists may be others than those that are known.
    pub(crate) fn is_stale(&self) -> bool {
        self.known.borrow().is_none() || self.list_versions.known != self.list_versions.current
    }

    /// It has said what it offers.
    pub(crate) fn set_known(&self, known: Rc<Known>) {
        *self.known.borrow_mut() = Some(known);
        self.list_versions.known.set(self.list_versions.requested.get());
        self.learned.notify_waiters();
    }

    /// Has its lists asked for again; resolves when that is done.
    pub(crate) async fn learn_anew(&self) {
        let learned = self.learned.notified();
        self.lists_changed();
        learned.await;
    }

    /// Whether it speaks the revision without sessions.
    pub(crate) fn is_modern(&self) -> bool {
        self.era() == Era::Modern
    }

    /// Whether a tool of it that cannot be told of outside of messages is none.
    pub(crate) fn has_heads(&self) -> bool {
        self.wire.has_heads()
    }

    /// What this life of it has said that it offers.
    pub(crate) fn known(&self) -> Option<Rc<Known>> {
        self.known.borrow().clone()
    }

    /// Resolves when its lists may have changed since.
    pub(crate) async fn until_lists_change(&self) {
        self.stale.notified().await;
    }
}
