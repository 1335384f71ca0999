//! The state of one client session: its open requests, subscriptions and identity.
//!
//! - `client/inbound.rs` parses the client's messages.
//! - `client/dispatch.rs` decides what each request means.
//! - `client/server_requests.rs` holds the requests that servers make of the client.
//! - `client/listen.rs` holds the client's `subscriptions/listen` requests.
//!
//! Each request may be of either era, whatever the era of earlier requests.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use tokio::task::AbortHandle;
use xy_http::frontend::{ClientSession, Disposition, Entry, Responder, Route, StreamNo, View};
use xy_mcp::capabilities::Capabilities;
use xy_mcp::era::Era;
use xy_mcp::kind::Kind;
use xy_mcp::level::Level;
use xy_mcp::modern::RequestMeta;
use xy_mcp::param_headers::{self, ParamHeader};
use xy_mcp::via::Via;
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;
use xy_transport::budget::Reservation;
use xy_transport::large::LargeMessage;
use xy_transport::retained::Retained;
use xy_transport::share::{LOCAL, TokenUse};

use crate::backend::Backend;
use crate::call::{AnswerReceiver, CallClient};
use crate::control::Requester;
use crate::router::{Admission, ListVersion, Router};
use crate::subscriptions::Subscriber;
use crate::upstream::Upstream;
use crate::visibility::Visibility;

mod call_client;
pub(crate) mod dispatch;
mod error_log;
mod frontend;
mod inbound;
mod listen;
mod pending_input;
mod request;
mod routed_client;
mod server_requests;
mod visibility;

use error_log::RequestLog;
use listen::ListenRequests;
use server_requests::ServerRequests;

/// Maximum number of open requests of one client.
const MAX_OPEN_REQUESTS: usize = 1000;

/// One client.
pub(crate) struct Client {
    number: u64,
    group_id: Cell<u64>,
    entry: Entry,
    /// The token that the client authenticated with over HTTP.
    token: TokenUse,
    /// The part of all servers that the client sees.
    visibility: RefCell<Visibility>,
    router: Rc<Router>,
    responder: Rc<dyn Responder>,
    me: Weak<Self>,
    handshake: RefCell<Option<Handshake>>,
    /// The daemons on the client's path, if the client is another xy.
    via: RefCell<Option<Via>>,
    /// The client metadata of the latest modern request.
    request_meta: RefCell<Option<Rc<RequestMeta>>>,
    /// The era of the latest request.
    era: Cell<Era>,
    open: RefCell<HashMap<Box<str>, OpenRequest>>,
    /// Number of outstanding responses for each stream that carries several requests.
    batches: RefCell<HashMap<StreamNo, usize>>,
    /// The requests of servers that the client has not answered, by the id that xy gave them.
    server_requests: RefCell<ServerRequests>,
    /// The `subscriptions/listen` requests of the client.
    listen_requests: RefCell<ListenRequests>,
    level: Cell<Option<Level>>,
    /// The version of each list that the client knows.
    list_versions: [Cell<ListVersion>; 4],
    /// Set once the client has subscribed to a resource.
    has_watched: Cell<bool>,
    span: tracing::Span,
    /// The resources that the client has subscribed to with `resources/subscribe`.
    legacy_subscriptions: RefCell<BTreeSet<(ServerName, String)>>,
    is_closed: Cell<bool>,
    /// Counts the client for as long as it is in memory.
    _counted: Reservation,
}

/// The result of the `initialize` handshake with a client.
#[derive(Debug, Clone)]
pub(crate) struct Handshake {
    pub(crate) version: &'static str,
    /// The client's capabilities, as JSON text.
    pub capabilities: Box<str>,
    /// The client's `clientInfo`, as JSON text.
    pub(crate) info: Option<Box<str>>,
}

/// A request without a response.
struct OpenRequest {
    phase: RequestPhase,
    stream: StreamNo,
    /// The entry for the debug log, if that is enabled.
    log: Option<Box<RequestLog>>,
}

/// The phase of an open request.
pub(crate) enum RequestPhase {
    /// Sent to a server.
    Sent { upstream: Rc<Upstream>, upstream_id: u64 },
    /// Queued for a server.
    Queued { server: Rc<Backend>, ticket: u64 },
    /// Answered by a task of xy itself.
    Local(AbortHandle),
    /// Waits for input of the client that its server has requested.
    AwaitingInput(Rc<dyn AnswerReceiver>),
    /// An open `subscriptions/listen` request.
    Listening,
}

impl Client {
    pub(crate) fn new(
        Admission { number, entry, visibility, token }: Admission,
        router: Rc<Router>,
        responder: Rc<dyn Responder>,
    ) -> Rc<Self> {
        let counted = router.count_client();
        Rc::new_cyclic(|me| Self {
            number,
            group_id: Cell::new(number),
            entry,
            token,
            visibility: RefCell::new(visibility),
            router,
            responder,
            me: me.clone(),
            handshake: RefCell::default(),
            via: RefCell::default(),
            request_meta: RefCell::default(),
            era: Cell::new(Era::Legacy),
            open: RefCell::default(),
            batches: RefCell::default(),
            server_requests: RefCell::default(),
            listen_requests: RefCell::default(),
            level: Cell::new(None),
            list_versions: Default::default(),
            has_watched: Cell::new(false),
            span: tracing::debug_span!("session", client = number),
            legacy_subscriptions: RefCell::default(),
            is_closed: Cell::new(false),
            _counted: counted,
        })
    }

    /// Adds the number of retained objects to `counts`.
    pub(crate) fn count(&self, counts: &mut Retained) {
        counts.add("client_requests", self.open.borrow().len());
        counts.add("client_batches", self.batches.borrow().len());
        counts.add("client_listens", self.listen_requests.borrow().len());
        counts.add("client_subscriptions", self.legacy_subscriptions.borrow().len());
        self.server_requests.borrow().count(counts);
    }

    /// Returns the client's identity for the daemon's journal.
    pub(crate) fn requester(&self) -> Requester {
        let client = self.name().map(|name| shortened(&name));
        Requester { client, token: (self.token.id != LOCAL).then_some(self.token.id) }
    }

    /// Returns the daemons on the client's path, if the client is another xy.
    pub(crate) fn via(&self) -> Option<Via> {
        self.via.borrow().clone()
    }

    /// Returns true if the client is another xy, which is offered no management tools.
    pub(crate) fn is_daemon(&self) -> bool {
        self.via.borrow().is_some()
    }

    /// Returns true if the client's requests lead back to the daemon that sends them.
    fn is_in_loop(&self) -> bool {
        self.via().is_some_and(|via| self.router.is_loop(self, &via))
    }

    /// Returns the minimum log level that the client has set, if it has.
    pub(crate) fn level(&self) -> Option<Level> {
        self.level.get()
    }

    /// Records the protocol revision that the client's server speaks.
    fn set_version(&self, version: &'static str) {
        if let Some(handshake) = &mut *self.handshake.borrow_mut() {
            handshake.version = version;
        }
    }

    /// Returns the client's capabilities as JSON text: from the handshake, otherwise from the
    /// latest request.
    pub(crate) fn declared_capabilities(&self) -> Option<Box<str>> {
        let handshake = self.handshake.borrow().as_ref().map(|it| it.capabilities.clone());
        handshake.or_else(|| self.request_meta.borrow().as_ref().map(|it| it.capabilities.clone()))
    }

    /// Adds the client to a group that the listener cannot tell apart.
    pub(crate) fn set_group_id(&self, group_id: u64) {
        self.group_id.set(group_id);
    }

    /// Records a subscription of the client to a resource.
    fn subscribe(
        &self,
        server: &Rc<Backend>,
        uri: &str,
        by_exposed_uri: bool,
    ) -> Result<(), CallError> {
        self.has_watched.set(true);
        let holder = server.primary_or_self().holder_of_call(self, self.era());
        let (client, group_id) = (self.number, self.group_id());
        let (token, era) = (self.token, holder.era());
        let subscriber = Subscriber { client, token, group_id, era, by_exposed_uri };
        let added = self.router.subscribe(server, uri, subscriber);
        added.inspect_err(|_| self.limit_hit("subscribed resources"))
    }

    /// Returns true if the client has ever subscribed to a resource.
    pub(crate) fn has_watched(&self) -> bool {
        self.has_watched.get()
    }

    /// Returns the version of a list that the client knows.
    pub(crate) fn list_version(&self, kind: Kind) -> ListVersion {
        self.list_versions[kind.index()].get()
    }

    /// Records the version of a list that the client knows.
    pub(crate) fn set_list_version(&self, kind: Kind, version: ListVersion) {
        self.list_versions[kind.index()].set(version);
    }

    /// Returns the capabilities from the handshake.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let handshake = self.handshake.borrow();
        handshake
            .as_ref()
            .map_or_else(Capabilities::default, |it| Capabilities::read(&it.capabilities))
    }

    /// Returns the number of open requests.
    pub(crate) fn open_requests(&self) -> usize {
        self.open.borrow().len()
    }

    /// Sends the response to a request of `stream`.
    fn send_response(&self, line: &[u8], stream: StreamNo) {
        let is_last = self.count_response(stream);
        self.send(line, if is_last { Route::Response(stream) } else { Route::Related(stream) });
    }

    /// Counts a response on `stream`; returns true if it is the last one.
    fn count_response(&self, stream: StreamNo) -> bool {
        let mut batches = self.batches.borrow_mut();
        let Some(left) = batches.get_mut(&stream) else { return true };
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            batches.remove(&stream);
        }
        is_last
    }

    /// Sets the phase of request `id`, which becomes open if it was not.
    pub(crate) fn set_phase(&self, id: &str, phase: RequestPhase, stream: StreamNo) {
        let mut all = self.open.borrow_mut();
        let log = all.get_mut(id).and_then(|it| it.log.take());
        all.insert(id.into(), OpenRequest { phase, stream, log });
    }

    fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("a caller of a client holds it")
    }
}

impl ClientSession for Client {
    fn handle(&self, message: &[u8], stream: StreamNo) -> Disposition {
        if self.is_closed.get() {
            return Disposition::NoResponse;
        }
        self.handle_text(message.into(), stream)
    }

    fn handle_large(&self, message: &Arc<LargeMessage>, stream: StreamNo) -> Disposition {
        if self.is_closed.get() {
            return Disposition::NoResponse;
        }
        self.handle_text(message.into(), stream)
    }

    fn version(&self) -> Option<&'static str> {
        self.handshake.borrow().as_ref().map(|handshake| handshake.version)
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
        let mut open: Vec<RequestPhase> = open.into_values().map(|it| it.phase).collect();
        // Abandon queued requests first: abandoning a sent one may dispatch the next in the queue.
        open.sort_by_key(|open| !matches!(open, RequestPhase::Queued { .. }));
        for open in open {
            Self::abandon(open, "the client is gone");
        }
        let followed = self.end_all_listens();
        self.fail_server_requests();
        self.router.on_client_closed(self);
        self.router.update_followed_tasks(followed);
    }

    fn param_headers(&self, tool: &str) -> Vec<ParamHeader> {
        let found = match &self.entry.view {
            View::Server(name) => self.router.server(name).map(|server| (server, tool.to_owned())),
            View::Profile(_) | View::All => self.resolve(Kind::Tools, tool),
        };
        let Some((server, original)) = found else { return Vec::new() };
        let Some(known) = server.known_to(self) else { return Vec::new() };
        let mut tools = known.lists.of(Kind::Tools).iter();
        let tool = tools.find(|item| *item.name == *original);
        // Hide malformed `x-mcp-header` marks: no client could follow them.
        tool.and_then(|tool| param_headers::of_tool(&tool.raw).ok()).unwrap_or_default()
    }
}
