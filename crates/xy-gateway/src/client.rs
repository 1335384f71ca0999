//! One client's conversation: what it has said, what it waits for, what it is told.
//!
//! `client/inbound.rs` reads what it says, `client/dispatch.rs` decides what each of its requests means, `client/server_requests.rs` keeps what
//! servers ask it, `client/listen.rs` what it wants to be told of. A request may be of either
//! era, whatever those before it were.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use tokio::task::AbortHandle;
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;

use crate::backend::Backend;
use crate::bridge::rounds::Round;
use crate::capabilities::{self, Capabilities, Wants};
use crate::catalog::Kind;
use crate::control::Asker;
use crate::era::{self, Era};
use crate::frontend::{Accepted, ClientSession, Entry, Lifetime, Responder, Route, StreamNo, View};
use crate::held::Held;
use crate::http::HttpStatus as _;
use crate::large::LargeMessage;
use crate::level::Level;
use crate::modern::{self, RequestMeta};
use crate::param_headers::{self, Mirror};
use crate::reply;
use crate::retained::Retained;
use crate::router::{LOCAL, Router, TokenUse};
use crate::subscriptions::Watcher;
use crate::upstream::Upstream;
use crate::via::Via;

pub(crate) mod dispatch;
mod error_log;
mod inbound;
mod listen;
mod pending_input;
mod server_requests;
mod visibility;

use listen::Listens;
use server_requests::Questions;
pub(crate) use visibility::Visibility;

/// Requests that one client may have open.
const MOST_OPEN: usize = 1000;

/// What a client calls its requests and their progress is short.
pub(crate) const LONGEST_ID: usize = 1024;

/// Messages that one batch may hold.
pub(crate) const MOST_IN_BATCH: usize = 100;

/// One client.
pub(crate) struct Client {
    number: u64,
    group_id: Cell<u64>,
    entry: Entry,
    /// The token that it came in with over HTTP.
    token: TokenUse,
    /// What of all servers it is shown.
    visibility: RefCell<Visibility>,
    router: Rc<Router>,
    responder: Rc<dyn Responder>,
    me: Weak<Self>,
    greeted: RefCell<Option<Greeted>>,
    /// The daemons that ask, if it is another xy.
    via: RefCell<Option<Via>>,
    /// What its latest request said of it, if that was modern.
    manner: RefCell<Option<Rc<RequestMeta>>>,
    /// The era of its latest request.
    era: Cell<Era>,
    open: RefCell<HashMap<Box<str>, OpenRequest>>,
    /// How many answers are still to come on a stream that holds several requests.
    batches: RefCell<HashMap<StreamNo, usize>>,
    /// What servers ask it, by the id it is asked under.
    questions: RefCell<Questions>,
    /// What it wants to be told of.
    listens: RefCell<Listens>,
    level: Cell<Option<Level>>,
    /// What tells the lists it was shown from others.
    shown: [Cell<Shown>; 4],
    /// It has watched a resource.
    has_watched: Cell<bool>,
    /// What it has subscribed to in the words of the older era.
    subscribed: RefCell<BTreeSet<(ServerName, String)>>,
    is_closed: Cell<bool>,
    /// It is counted as long as it is in memory.
    _counted: Held,
}

/// Clients of one person, as far as a door can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Principal {
    /// This client alone.
    Alone(u64),
    /// All that come with one request each and this token.
    Token(u64),
}

/// What a client was last shown of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Nothing: it has not asked.
    #[default]
    Nothing,
    /// What its server has itself, which we did not know yet.
    Unseen,
    /// The one that this tells from others.
    Print(u64),
}

/// What a client said of itself.
#[derive(Debug, Clone)]
pub(crate) struct Greeted {
    pub(crate) version: &'static str,
    /// What it can do, as it was written.
    pub(crate) capabilities: Box<str>,
    /// Who it is, as it was written.
    pub(crate) info: Option<Box<str>>,
}

/// A request that is not answered yet.
struct OpenRequest {
    at: Open,
    stream: StreamNo,
    /// For the log; empty if it is unusual.
    method: &'static str,
}

/// Where a request of a client is.
pub(crate) enum Open {
    /// With a server.
    Sent { upstream: Rc<Upstream>, ours: u64 },
    /// Waiting for a server.
    Waiting { server: Rc<Backend>, ticket: u64 },
    /// Being answered by ourselves.
    Here(AbortHandle),
    /// Its server wants to know something of the client first.
    Asked(Rc<Round>),
    /// It is told of what changes, until it has heard enough.
    Listening,
}

impl Client {
    pub(crate) fn new(
        number: u64,
        (entry, visibility, token): (Entry, Visibility, TokenUse),
        router: Rc<Router>,
        responder: Rc<dyn Responder>,
    ) -> Rc<Self> {
        let counted = router.counts_client();
        Rc::new_cyclic(|me| Self {
            number,
            group_id: Cell::new(number),
            entry,
            token,
            visibility: RefCell::new(visibility),
            router,
            responder,
            me: me.clone(),
            greeted: RefCell::default(),
            via: RefCell::default(),
            manner: RefCell::default(),
            era: Cell::new(Era::Legacy),
            open: RefCell::default(),
            batches: RefCell::default(),
            questions: RefCell::default(),
            listens: RefCell::default(),
            level: Cell::new(None),
            shown: Default::default(),
            has_watched: Cell::new(false),
            subscribed: RefCell::default(),
            is_closed: Cell::new(false),
            _counted: counted,
        })
    }

    /// No other client has, or had, the same.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// How much is kept for it.
    pub(crate) fn count(&self, census: &mut Retained) {
        census.add("client_requests", self.open.borrow().len());
        census.add("client_batches", self.batches.borrow().len());
        census.add("client_listens", self.listens.borrow().len());
        census.add("client_subscriptions", self.subscribed.borrow().len());
        self.questions.borrow().count(census);
    }

    /// The token that it came in with.
    pub(crate) fn token(&self) -> TokenUse {
        self.token
    }

    /// Notes that a limit kept it out.
    pub(crate) fn limit_hit(&self, limit: &'static str) {
        self.router.limit_hit(limit, Some(self.token.id));
    }

    /// Who it is, for the daemon's journal.
    pub(crate) fn asker(&self) -> Asker {
        let client = self.called().map(|name| shortened(&name));
        Asker { client, token: (self.token.id != LOCAL).then_some(self.token.id) }
    }

    /// Returns the daemons that ask, if it is another xy.
    pub(crate) fn via(&self) -> Option<Via> {
        self.via.borrow().clone()
    }

    /// Returns true if it is another xy: it is offered no tools of xy's own.
    pub(crate) fn is_daemon(&self) -> bool {
        self.via.borrow().is_some()
    }

    /// Returns true if its requests lead back to the daemon that sends them.
    fn is_in_loop(&self) -> bool {
        self.via().is_some_and(|via| self.router.is_loop(self, &via))
    }

    /// What it is shown.
    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The least that it wants to know; everything, if it has not said.
    pub(crate) fn level(&self) -> Option<Level> {
        self.level.get()
    }

    /// What it said of itself, if it has.
    pub(crate) fn greeted(&self) -> Option<Greeted> {
        self.greeted.borrow().clone()
    }

    /// Notes the revision that its server speaks with it.
    fn agree(&self, version: &'static str) {
        if let Some(greeted) = &mut *self.greeted.borrow_mut() {
            greeted.version = version;
        }
    }

    /// What it said that it can do, as it was written: when it was greeted, or else with its
    /// latest request.
    pub(crate) fn declared(&self) -> Option<Box<str>> {
        let greeted = self.greeted.borrow().as_ref().map(|it| it.capabilities.clone());
        greeted.or_else(|| self.manner.borrow().as_ref().map(|it| it.capabilities.clone()))
    }

    /// Writes what is remembered of a server.
    pub(crate) fn remember(&self, server: &Backend) {
        self.router.remember(server);
    }

    /// Returns true if it has declared that a server may ask it something.
    pub(crate) fn can_be_asked(&self) -> bool {
        let declared = self.declared();
        let capabilities = Capabilities::read(declared.as_deref().unwrap_or("{}"));
        ["elicitation", "sampling", "roots"].iter().any(|it| capabilities.has(&[it]))
    }

    /// Returns the era of its latest request.
    pub(crate) fn era(&self) -> Era {
        self.era.get()
    }

    /// Whether it has asked anything in the revision without sessions.
    pub(crate) fn is_modern(&self) -> bool {
        self.manner.borrow().is_some()
    }

    /// Whether it is there for longer than one request.
    pub(crate) fn stays(&self) -> bool {
        self.entry.lifetime != Lifetime::Request
    }

    /// Who has the same as its token, if that is all that the door knows of it; else nobody.
    pub(crate) fn principal(&self) -> Principal {
        match self.entry.lifetime {
            Lifetime::Session | Lifetime::LegacyOnly => Principal::Alone(self.number),
            Lifetime::Request => Principal::Token(self.entry.who),
        }
    }

    /// Whose instance it shares with others, where clients do not share one: its own, or that
    /// of all whom the door cannot tell apart.
    pub(crate) fn group_id(&self) -> u64 {
        self.group_id.get()
    }

    /// It is among those whom the door cannot tell apart.
    pub(crate) fn joins(&self, group_id: u64) {
        self.group_id.set(group_id);
    }

    /// It watches a resource from now on.
    fn subscribe(
        &self,
        server: &Rc<Backend>,
        uri: &str,
        by_outside_name: bool,
    ) -> Result<(), CallError> {
        self.has_watched.set(true);
        let holder = server.primary_or_self().holder_of_call(self, self.era());
        let (client, at) = (self.number, self.group_id());
        let watcher = Watcher { client, at, era: holder.era(), by_outside_name };
        self.router.subscribe(server, uri, watcher)
    }

    /// Whether it has ever watched a resource.
    pub(crate) fn has_watched(&self) -> bool {
        self.has_watched.get()
    }

    /// What a modern server is told of it, if it is not modern itself.
    pub(crate) fn as_modern(&self) -> RequestMeta {
        let greeted = self.greeted.borrow();
        let (capabilities, info) = match &*greeted {
            Some(it) => (modern::capabilities_from_legacy(&it.capabilities), it.info.clone()),
            None => ("{}".to_owned(), None),
        };
        let level = Some(self.level.get().unwrap_or(Level::USUAL));
        RequestMeta { capabilities: capabilities.into(), info, level }
    }

    /// Whether a server may ask it this; if not, a code and a sentence.
    pub(crate) fn allows(
        &self,
        method: &str,
        wants: &Wants<'_>,
    ) -> Result<(), capabilities::Refusal> {
        let is_old = self.greeted.borrow().as_ref().is_none_or(|it| it.version != era::LATEST);
        self.capabilities().allow(method, wants, is_old)
    }

    /// For what is kept of its requests; there is a bound for all clients.
    pub(crate) fn hold_bytes(&self) -> Held {
        self.router.hold_bytes()
    }

    /// What it was last shown of a list.
    pub(crate) fn was_shown(&self, kind: Kind) -> Shown {
        self.shown[kind.index()].get()
    }

    /// It is shown a list, or told that it is another now.
    pub(crate) fn shows(&self, kind: Kind, shown: Shown) {
        self.shown[kind.index()].set(shown);
    }

    /// What it said that it can do.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let greeted = self.greeted.borrow();
        greeted
            .as_ref()
            .map_or_else(Capabilities::default, |it| Capabilities::read(&it.capabilities))
    }

    /// How many of its requests are open.
    pub(crate) fn open_requests(&self) -> usize {
        self.open.borrow().len()
    }

    /// Its request `id` has been answered with this line.
    pub(crate) fn answered(&self, id: &str, stream: StreamNo, line: &[u8]) {
        self.open.borrow_mut().remove(id);
        self.put_answer(line, stream);
    }

    /// Answers a request of this stream.
    fn put_answer(&self, line: &[u8], stream: StreamNo) {
        let is_last = self.is_last_of(stream);
        self.tell(line, if is_last { Route::Answer(stream) } else { Route::Related(stream) });
    }

    /// One request less is open on this stream; whether nothing more is to be said there.
    fn is_last_of(&self, stream: StreamNo) -> bool {
        let mut batches = self.batches.borrow_mut();
        let Some(left) = batches.get_mut(&stream) else { return true };
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            batches.remove(&stream);
        }
        is_last
    }

    /// Its request `id` is there now.
    pub(crate) fn is_at(&self, id: &str, open: Open, stream: StreamNo) {
        let mut all = self.open.borrow_mut();
        let method = all.get(id).map_or("", |it| it.method);
        all.insert(id.into(), OpenRequest { at: open, stream, method });
    }

    /// Whether its request `id` is to be answered.
    pub(crate) fn waits_for(&self, id: &str) -> bool {
        !self.is_closed.get() && self.open.borrow().contains_key(id)
    }

    /// Its request `id` is answered by somebody else, or never.
    pub(crate) fn forget(&self, id: &str) {
        self.open.borrow_mut().remove(id);
    }

    /// Its request `id` cannot be done.
    pub(crate) fn failed(&self, id: &str, stream: StreamNo, fault: &CallError) {
        self.log_error(id, fault);
        if !self.is_closed.get() {
            self.responder.fails(fault, stream);
        }
        self.answered(id, stream, &reply::fault(id, fault));
    }

    /// It is told something. What belongs to no request is for clients that were greeted: the
    /// others have to ask for it.
    pub(crate) fn tell(&self, message: &[u8], to: Route) {
        let is_asked_for = to != Route::Broadcast || self.greeted.borrow().is_some();
        if is_asked_for && !self.is_closed.get() {
            self.responder.put(message, to);
        }
    }

    fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("whoever calls a client holds it")
    }
}

impl ClientSession for Client {
    fn handle(&self, message: &[u8], stream: StreamNo) -> Accepted {
        if self.is_closed.get() {
            return Accepted::Taken;
        }
        self.hear_text(message.into(), stream)
    }

    fn handle_large(&self, message: &Arc<LargeMessage>, stream: StreamNo) -> Accepted {
        if self.is_closed.get() {
            return Accepted::Taken;
        }
        self.hear_text(message.into(), stream)
    }

    fn version(&self) -> Option<&'static str> {
        self.greeted.borrow().as_ref().map(|greeted| greeted.version)
    }

    fn is_busy(&self) -> bool {
        self.open_requests() > 0
    }

    fn logged_name(&self) -> String {
        Self::logged_name(self)
    }

    fn close(&self) {
        if self.is_closed.replace(true) {
            return;
        }
        let open = std::mem::take(&mut *self.open.borrow_mut());
        let mut open: Vec<Open> = open.into_values().map(|it| it.at).collect();
        // First what waits: its turn may come when the rest is given up.
        open.sort_by_key(|open| !matches!(open, Open::Waiting { .. }));
        for open in open {
            Self::give_up(open, "the client is gone");
        }
        let followed = self.hears_no_more();
        self.answer_no_more();
        self.router.left(self);
        self.router.follows_no_more(followed);
    }

    fn mirrors(&self, tool: &str) -> Vec<Mirror> {
        let found = match &self.entry.view {
            View::Server(name) => self.router.server(name).map(|server| (server, tool.to_owned())),
            View::Profile(_) | View::All => self.resolve(Kind::Tools, tool),
        };
        let Some((server, inside)) = found else { return Vec::new() };
        let Some(known) = server.known_to(self) else { return Vec::new() };
        let mut tools = known.lists.of(Kind::Tools).iter();
        let tool = tools.find(|item| *item.name == *inside);
        // By marks that cannot be followed no client may go.
        tool.and_then(|tool| param_headers::of_tool(&tool.raw).ok()).unwrap_or_default()
    }
}
