//! The connection to one running server: its transport, the requests that it has not answered, and
//! the requests of xy itself.
//!
//! A connection knows no client. A request of a client is a number here; who sent it is known
//! above. Everything that the server sends is passed on as an [`Inbound`], except what concerns xy
//! alone: the responses to its own requests, `ping`, and the event subscription.
//!
//! `own_request.rs` sends requests of xy, `inbound.rs` parses the server's messages, `ending.rs`
//! ends requests without a response, `wire.rs` abstracts the transport, and `handshake.rs`
//! negotiates the protocol.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use xy_catalog::catalog::ServerCatalog;
use xy_mcp::edit::append_on_one_line;
use xy_mcp::era::{Era, Introduction};
use xy_mcp::via::Via;
use xy_supervisor::instance::InstanceKey;
use xy_supervisor::protocol::DriverEvent;
use xy_transport::chunks::Chunks;
use xy_transport::large::LargeReader;
use xy_transport::pace::Pace;
use xy_transport::retained::Retained;

use crate::fault::{LossReason, ServerFault};

mod activity;
mod assembler;
mod ending;
mod event_subscription;
pub mod handshake;
pub mod http_client;
mod ids;
mod inbound;
mod own_request;
pub mod pipes;
pub mod probe;
mod response;
mod round_trip;
pub(crate) mod self_meta;
pub mod wire;
mod write_buffer;

pub use ending::Delivery;
pub use event_subscription::EventFilter;
use event_subscription::EventSubscription;
use ids::Ids;
pub use inbound::{Inbound, ServerMessage, ServerResponse, complete_request};
pub use own_request::{InternalRequest, ResponseResult};
pub use response::{code_of, result_of};
pub use round_trip::RoundTrip;
use wire::Wire;

/// Maximum number of unanswered requests of one server, far above what clients need.
pub const MAX_CALLS: usize = 10_000;

/// Warning for a server that writes messages over several lines.
pub const UNFRAMED: &str = "it writes messages over several lines, which MCP forbids on stdio: have \
    it write each on one line";

/// Maximum number of bytes that wait for a server that does not read.
pub const MAX_BUFFERED_BYTES: usize = 64 * 1024 * 1024;

/// Receiver of what happens at a connection.
pub trait ConnectionEvents {
    /// Handles something that the server has sent.
    fn on_inbound(&self, inbound: Inbound<'_>);
    /// Handles a forwarded request that failed with this error.
    fn on_request_failed(&self, upstream_id: u64, fault: &ServerFault);
    /// Handles a forwarded request whose connection broke. With `is_final`, a retry would have the
    /// same result.
    fn on_request_lost(
        &self,
        upstream_id: u64,
        delivery: Delivery,
        why: LossReason,
        is_final: bool,
    );
    /// Records that the server has written a message over several lines.
    fn on_broken_framing(&self);
    /// Returns the daemons among the clients of the server, for loop detection.
    fn daemons_before(&self) -> Via;
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

/// The connection to one running server.
pub struct Connection {
    key: InstanceKey,
    wire: Rc<dyn Wire>,
    requests: RefCell<HashMap<u64, SentRequest>>,
    ids: RefCell<Ids>,
    state: RefCell<State>,
    driver_events: mpsc::Sender<DriverEvent>,
    events: Weak<dyn ConnectionEvents>,
    /// Parses large messages. All servers share it.
    large: LargeReader,
    /// The event subscription, for servers of the modern era.
    subscription: EventSubscription,
    /// Signals that some of the server's lists may have changed.
    lists_stale: Notify,
    list_versions: ListVersions,
    /// Signals that new lists were stored.
    lists_learned: Notify,
    /// The server writes messages over several lines.
    is_unframed: Cell<bool>,
    /// Lines that wait to be written to the server's log.
    unparsed_lines: RefCell<Vec<u8>>,
    /// The log level was sent to the server.
    is_tuned: Cell<bool>,
    /// The lists of the server, once it has sent them.
    known: RefCell<Option<Rc<ServerCatalog>>>,
    /// Counts of received messages and reads.
    activity: activity::Activity,
    /// Maximum time that a request waits for a session.
    session_timeout: Cell<Duration>,
}

/// The state of a connection.
#[derive(Debug, Clone)]
enum State {
    /// The server has not answered `initialize` or `server/discover` yet.
    Handshaking,
    /// Requests can be sent.
    Open(Rc<Introduction>),
    /// Nothing more is sent.
    Closed,
}

/// A request that is not answered yet.
struct SentRequest {
    /// Offset in the output, which tells whether the request was written.
    offset: u64,
    origin: Origin,
}

/// The origin of a request.
enum Origin {
    /// A client or a user, known above. `client` is the number of the client that waits.
    Forwarded { client: Option<u64> },
    /// A forwarded request that was cancelled. The server may still answer it.
    Cancelled,
    /// A part of the gateway, which gets the whole response as written.
    Internal(oneshot::Sender<ResponseResult>),
    /// The event subscription, which is answered only when it ends.
    Subscription(oneshot::Sender<ResponseResult>),
    /// A part of the gateway that ignores the response.
    Detached,
}

impl Origin {
    /// Returns true if someone waits for the response.
    fn is_waiting(&self) -> bool {
        !matches!(self, Self::Cancelled | Self::Detached)
    }
}

impl Connection {
    /// Creates a connection in the handshake state. No id from `first_id` on was ever sent to this
    /// server.
    pub fn new(
        key: InstanceKey,
        driver_events: mpsc::Sender<DriverEvent>,
        first_id: u64,
        wire: Rc<dyn Wire>,
        (events, large): (Weak<dyn ConnectionEvents>, LargeReader),
    ) -> Rc<Self> {
        Rc::new(Self {
            key,
            wire,
            requests: RefCell::default(),
            ids: RefCell::new(Ids::from(first_id)),
            state: RefCell::new(State::Handshaking),
            driver_events,
            events,
            large,
            subscription: EventSubscription::default(),
            lists_stale: Notify::new(),
            list_versions: ListVersions::default(),
            lists_learned: Notify::new(),
            is_unframed: Cell::new(false),
            unparsed_lines: RefCell::default(),
            is_tuned: Cell::new(false),
            known: RefCell::default(),
            activity: activity::Activity::default(),
            session_timeout: Cell::new(Duration::ZERO),
        })
    }

    /// Returns the key of the instance.
    pub fn key(&self) -> &InstanceKey {
        &self.key
    }

    /// Returns the transport.
    pub fn wire(&self) -> &dyn Wire {
        &*self.wire
    }

    /// Sets how long a request waits for a session.
    pub fn set_session_timeout(&self, timeout: Duration) {
        self.session_timeout.set(timeout);
    }

    /// Returns the pace at which large messages are moved.
    pub fn pace(&self) -> &Pace {
        self.large.pace()
    }

    /// Calls the receiver of events, if it still exists.
    fn emit<R>(&self, call: impl FnOnce(&dyn ConnectionEvents) -> R) -> Option<R> {
        self.events.upgrade().map(|events| call(&*events))
    }

    fn daemons_before(&self) -> Via {
        self.emit(|events| events.daemons_before()).unwrap_or_default()
    }

    /// Returns what the server said of itself, while requests can be sent.
    pub fn introduction(&self) -> Option<Rc<Introduction>> {
        match &*self.state.borrow() {
            State::Open(introduction) => Some(introduction.clone()),
            State::Handshaking | State::Closed => None,
        }
    }

    /// Returns the era of the protocol that the server speaks.
    pub fn era(&self) -> Era {
        self.introduction().map_or(Era::Legacy, |introduction| introduction.era())
    }

    /// Returns true if the server speaks the modern era, which has no sessions.
    pub fn is_modern(&self) -> bool {
        self.era() == Era::Modern
    }

    /// Returns true if the handshake comes before any request.
    fn needs_handshake(&self) -> bool {
        matches!(*self.state.borrow(), State::Handshaking)
    }

    /// Returns true if the server has given the session a name.
    pub fn has_session(&self) -> bool {
        self.wire.session().is_some()
    }

    /// Queues a forwarded request, which `write` appends with the id `upstream_id`. Returns its
    /// offset, which later tells whether it was written. [`Connection::flush`] sends it.
    pub fn forward(
        &self,
        upstream_id: u64,
        client: Option<u64>,
        write: &mut dyn FnMut(&mut Chunks),
    ) -> u64 {
        let offset = self.wire.put(Some(upstream_id), write);
        let request = SentRequest { offset, origin: Origin::Forwarded { client } };
        self.requests.borrow_mut().insert(upstream_id, request);
        offset
    }

    /// Sends what was queued.
    pub fn flush(&self) {
        self.wire.flush(self.requests.borrow().len() == 1 + self.subscription.count());
    }

    /// Sends a notification or a response. Drops it if the server is closed or does not read.
    pub fn send(&self, message: &[u8]) {
        if matches!(*self.state.borrow(), State::Closed) || self.wire.waiting() > MAX_BUFFERED_BYTES
        {
            return;
        }
        self.wire.put(None, &mut |out| append_on_one_line(out.tail(), message));
        self.wire.flush(false);
    }

    /// Checks that the server can be sent another request.
    pub fn check_room(&self) -> Result<(), ServerFault> {
        if matches!(*self.state.borrow(), State::Closed) {
            return Err(ServerFault::Closed);
        }
        if self.requests.borrow().len() >= MAX_CALLS {
            // Cancelled requests must not keep out those that someone waits for.
            self.requests.borrow_mut().retain(|_, request| request.origin.is_waiting());
        }
        if self.requests.borrow().len() >= MAX_CALLS {
            return Err(ServerFault::TooManyOpen(MAX_CALLS));
        }
        if self.wire.waiting() > MAX_BUFFERED_BYTES {
            return Err(ServerFault::NotReading);
        }
        Ok(())
    }

    /// Sets the client that waits for a forwarded request.
    pub fn set_client(&self, upstream_id: u64, client: Option<u64>) {
        if let Some(request) = self.requests.borrow_mut().get_mut(&upstream_id)
            && let Origin::Forwarded { client: it } = &mut request.origin
        {
            *it = client;
        }
    }

    /// Returns the number of the client that waits for a forwarded request.
    fn client_of(&self, upstream_id: u64) -> Option<u64> {
        match self.requests.borrow().get(&upstream_id)?.origin {
            Origin::Forwarded { client } => client,
            _ => None,
        }
    }

    /// Returns the number of requests with a waiting sender, except subscriptions.
    pub fn open_requests(&self) -> usize {
        let is_open = |it: &&SentRequest| {
            it.origin.is_waiting() && !matches!(it.origin, Origin::Subscription(_))
        };
        self.requests.borrow().values().filter(is_open).count()
    }

    /// Returns the number of requests of xy itself that wait for a response, except subscriptions.
    pub fn internal_requests(&self) -> usize {
        let is_internal = |it: &&SentRequest| matches!(it.origin, Origin::Internal(_));
        self.requests.borrow().values().filter(is_internal).count()
    }

    /// Adds the retained entries of this connection to `counts`.
    pub fn count(&self, counts: &mut Retained) {
        let requests = self.requests.borrow();
        let is_open = |it: &&SentRequest| !matches!(it.origin, Origin::Cancelled);
        counts.add("calls", requests.values().filter(is_open).count());
        counts.add("log_bytes", self.unparsed_lines.borrow().len());
        counts.add("wire", self.wire.retained());
        self.subscription.add_retained(counts);
    }

    /// Returns true if this daemon or an earlier one has sent the server a log level.
    pub fn is_tuned(&self) -> bool {
        self.is_tuned.get()
    }

    /// Records that a log level was sent.
    pub fn set_tuned(&self) {
        if !self.is_tuned.replace(true) {
            self.save_note();
        }
    }

    /// Records that the server's lists have changed.
    pub fn lists_changed(&self) {
        let current = &self.list_versions.current;
        current.set(current.get() + 1);
        self.lists_stale.notify_one();
    }

    /// Returns true if the stored lists may be outdated.
    pub fn is_stale(&self) -> bool {
        self.known.borrow().is_none() || self.list_versions.known != self.list_versions.current
    }

    /// Stores what the server offers.
    pub fn set_known(&self, known: Rc<ServerCatalog>) {
        *self.known.borrow_mut() = Some(known);
        self.list_versions.known.set(self.list_versions.requested.get());
        self.lists_learned.notify_waiters();
    }

    /// Requests the lists again, and waits until the new ones are stored.
    pub(crate) async fn refresh_lists(&self) {
        let lists_learned = self.lists_learned.notified();
        self.lists_changed();
        lists_learned.await;
    }

    /// Returns true if arguments are mirrored into HTTP headers; tools that cannot be mirrored are
    /// hidden.
    pub fn mirrors_params(&self) -> bool {
        self.wire.mirrors_params()
    }

    /// Returns what this instance offers, once it has listed it.
    pub fn known(&self) -> Option<Rc<ServerCatalog>> {
        self.known.borrow().clone()
    }

    /// Waits until the server's lists may have changed.
    pub async fn lists_changed_again(&self) {
        self.lists_stale.notified().await;
    }
}
