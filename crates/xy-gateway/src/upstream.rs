//! One running server, as the gateway sees it: its transport, its pending calls, and what its
//! messages mean.
//!
//! A call is appended to one write buffer and stored under an upstream id. Its response goes
//! straight to the responder of the client that sent it. There is no task and no channel in
//! between.
//!
//! `outbound.rs` sends messages, `inbound.rs` handles those of the server, `wire.rs` abstracts the
//! transport, and `handshake.rs` negotiates the protocol.

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
use xy_supervisor::protocol::DriverEvent;

use crate::backend::{Backend, RetryState};
use crate::bridge::pending_input::PendingInput;
use crate::bridge::{EraTranslation, StateBinding};
use crate::catalog::Known;
use crate::client::Client;
use crate::era::{Era, Introduction};
use crate::frontend::StreamNo;
use crate::large::LargeReader;
use crate::message_text::MessageText;
use crate::modern::RequestMeta;
use crate::tasks::CANCELLED_RETENTION;
use crate::via::Via;

mod activity;
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
mod outbound;
pub(crate) mod pipes;
pub(crate) mod probe;
mod response;
pub(crate) mod retry;
mod retry_copy;
mod round_trip;
pub(crate) mod self_meta;
mod timeout;
mod unread;
pub(crate) mod wire;
mod write_buffer;

use call_log::CallLog;
pub(crate) use caller::{CallOwner, Caller, InternalRequest, ResponseKind};
pub(crate) use ending::{Cause, UnansweredCall};
pub(crate) use event_subscription::EventFilter;
use event_subscription::EventSubscription;
use ids::Ids;
pub(crate) use response::result_of;
use retry_copy::RetryCopy;
pub use round_trip::RoundTrip;
pub(crate) use timeout::CallTimer;
use wire::Wire;

/// Receiver of the events of an upstream.
pub(crate) trait UpstreamEvents {
    /// Handles a notification of the server.
    fn on_notification(&self, by: &Rc<Upstream>, message: &ServerMessage<'_>);
    /// Handles a request of the server; `id` is the server's own id of it.
    fn on_request(&self, by: &Rc<Upstream>, id: &str, request: &ServerMessage<'_>);
    /// Returns the parser of large messages, which all servers share.
    fn large_reader(&self) -> &LargeReader;
    /// Records that the server has written a message over several lines.
    fn on_broken_framing(&self, by: &Upstream);
    /// Returns the daemons among the clients of the server, for loop detection.
    fn daemons_before(&self, upstream: &Upstream) -> Via;
    /// Handles a response to a client that is an error, or whose kind needs attention. Returns a
    /// part of the response and its replacement, if one is needed.
    fn on_response<'t>(
        &self,
        by: &Rc<Upstream>,
        answer: &ClientResponse<'t>,
    ) -> Option<(&'t str, String)>;
    /// Handles progress that belongs to no pending call. `token` is the upstream id, and `part` is
    /// the same token as written in `line`.
    fn on_progress(&self, by: &Rc<Upstream>, token: u64, part: &str, line: &[u8]);
    /// Handles the end of a client's call, at a server that serves its clients in turns.
    fn on_call_end(&self, by: &Rc<Upstream>);
    /// Recovers calls that the server will not answer, in the order in which they were sent.
    fn on_calls_lost(&self, by: &Upstream, calls: Vec<UnansweredCall>, why: Cause<'_>);
    /// Asks the client for URL elicitation, if `error` says that the server requires it. Returns
    /// true if the client is asked.
    fn on_url_elicitation_error(
        &self,
        client: &Rc<Client>,
        request: (&str, StreamNo),
        request_meta: &RequestMeta,
        binding: &StateBinding,
        error: &str,
    ) -> bool;
}

/// A notification or request of a server.
pub(crate) struct ServerMessage<'t> {
    pub(crate) method: &'t str,
    pub(crate) params: Option<&'t str>,
    /// The whole message.
    pub(crate) line: &'t [u8],
    /// The upstream id of the call that the message belongs to, if the transport tells.
    pub(crate) related_call: Option<u64>,
}

/// A server's response to a client's call.
pub(crate) struct ClientResponse<'t> {
    pub(crate) client: &'t Rc<Client>,
    /// The server, under the name that the client used.
    pub(crate) alias: &'t Rc<Backend>,
    /// The upstream id of the call.
    pub(crate) upstream_id: u64,
    /// The client's progress token.
    pub(crate) token: Option<&'t str>,
    pub(crate) response_kind: &'t ResponseKind,
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

/// One running server.
pub(crate) struct Upstream {
    key: InstanceKey,
    wire: Rc<dyn Wire>,
    calls: RefCell<HashMap<u64, PendingCall>>,
    ids: RefCell<Ids>,
    state: RefCell<State>,
    driver_events: mpsc::Sender<DriverEvent>,
    events: Rc<dyn UpstreamEvents>,
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
    known: RefCell<Option<Rc<Known>>>,
    /// Until then, messages of the server may be meant for clients of an earlier daemon.
    foreign_until: Option<Instant>,
    /// Buffer that is reused for each response.
    scratch: RefCell<Vec<u8>>,
    /// The end of each client call is reported to `events`.
    reports_finished_calls: Cell<bool>,
    /// A task watches the timeouts of calls.
    is_watched: Cell<bool>,
    /// Signals that a call may time out before the next check of that task.
    earlier_timeout: Rc<Notify>,
    /// Calls that have waited are not sent before then.
    hold_until: Cell<Option<Instant>>,
    /// Total size of the retry copies, and its limit.
    retry_copy_bytes: Rc<Cell<usize>>,
    max_retry_copy_bytes: Cell<usize>,
    /// Maximum time that a call waits for this server.
    queue_timeout: Cell<Duration>,
    /// Counts of received messages and reads.
    activity: activity::Activity,
    /// Time at which a client's call last began or ended; only maintained if `records_call_times`.
    called_at: Cell<Instant>,
    /// The groups of connected clients that have called the server.
    users: RefCell<BTreeSet<u64>>,
    /// The group that called last, so that `users` is seldom searched.
    last_user: Cell<u64>,
    records_call_times: Cell<bool>,
    /// A client has called the server or watches a resource of it.
    was_used: Cell<bool>,
    /// A task removes cancelled calls.
    is_pruning: Cell<bool>,
    /// The instance serves one client and has not listed what it offers: its client's calls wait.
    awaits_lists: Cell<bool>,
    /// The instance serves one client and has received nothing from it: its lists are those that
    /// every client would get.
    is_fresh: Cell<bool>,
    /// The server was found hung. The calls that it has begun may be the reason.
    is_hung: Cell<bool>,
    /// A task watches calls that the server has not read.
    is_reading_watched: Cell<bool>,
}

/// The state of the connection.
#[derive(Debug, Clone)]
enum State {
    /// The server has not answered `initialize` or `server/discover` yet.
    Handshaking,
    /// Requests can be sent.
    Open(Rc<Introduction>),
    /// Nothing more is sent.
    Closed,
}

/// A call that is not answered yet.
struct PendingCall {
    caller: Caller,
    /// Offset in the output, which tells whether the call was written.
    offset: u64,
    sent_at: Instant,
    /// The timeouts of the call.
    timer: Option<Rc<CallTimer>>,
    /// The server has sent its client a request during the call.
    has_server_request: bool,
    /// The history of the call.
    retry_state: RetryState,
    /// The text that the client wrote, if the call may be sent again.
    retry_copy: Option<RetryCopy>,
    /// The entry for the debug log, if that is enabled.
    log: Option<Box<CallLog>>,
}

impl PendingCall {
    fn new(caller: Caller, offset: u64) -> Self {
        let retry_state = RetryState::default();
        let (retry_copy, log, timer) = (None, None, None);
        Self {
            caller,
            offset,
            sent_at: Instant::now(),
            timer,
            has_server_request: false,
            retry_state,
            retry_copy,
            log,
        }
    }
}

/// A client's request that is to be forwarded: its text, and slices of it.
pub(crate) struct Request<'t> {
    /// The whole message.
    pub(crate) text: MessageText<'t>,
    /// The client's id of the request.
    pub(crate) id: &'t str,
    /// The client's progress token.
    pub(crate) token: Option<&'t str>,
    /// The slice that holds a name or URI, and its replacement for this server.
    pub(crate) renamed: Option<(&'t str, String)>,
    /// The method and its target (a name or URI), for messages to people.
    pub(crate) method_and_target: (&'t str, Option<&'t str>),
    /// The server, under the name that the client used.
    pub(crate) alias: Rc<Backend>,
    /// The way in which the response is inspected.
    pub(crate) response_kind: ResponseKind,
    /// The timeouts of the call.
    pub(crate) timer: Option<Rc<CallTimer>>,
    /// The text of the params.
    pub(crate) params: Option<&'t str>,
    /// The `_meta` of the params, if it is an object.
    pub(crate) meta: Option<&'t str>,
    /// The client metadata of a modern request.
    #[expect(clippy::struct_field_names, reason = "the type has this name")]
    pub(crate) request_meta: Option<Rc<RequestMeta>>,
    /// The slice of `_meta` that a server of the same era must not see, and its replacement.
    pub(crate) meta_override: Option<(&'t str, String)>,
    /// The history of the request.
    pub(crate) retry_state: RetryState,
    /// The request carries a `requestState`: it repeats an earlier one.
    pub(crate) has_state: bool,
}

impl Upstream {
    /// Creates an upstream in the handshake state. No id from `first_id` on was ever sent to this
    /// server.
    pub(crate) fn new(
        key: InstanceKey,
        driver_events: mpsc::Sender<DriverEvent>,
        first_id: u64,
        is_adopted: bool,
        wire: Rc<dyn Wire>,
        events: Rc<dyn UpstreamEvents>,
    ) -> Rc<Self> {
        // Clients of an earlier daemon may have used the server.
        let is_fresh = !is_adopted && key.holder.is_client();
        Rc::new(Self {
            key,
            wire,
            calls: RefCell::default(),
            ids: RefCell::new(Ids::from(first_id)),
            state: RefCell::new(State::Handshaking),
            driver_events,
            events,
            subscription: EventSubscription::default(),
            lists_stale: Notify::new(),
            list_versions: ListVersions::default(),
            lists_learned: Notify::new(),
            is_unframed: Cell::new(false),
            unparsed_lines: RefCell::default(),
            is_tuned: Cell::new(false),
            known: RefCell::default(),
            foreign_until: is_adopted.then(|| Instant::now() + CANCELLED_RETENTION),
            scratch: RefCell::default(),
            reports_finished_calls: Cell::new(false),
            is_watched: Cell::new(false),
            earlier_timeout: Rc::default(),
            retry_copy_bytes: Rc::default(),
            hold_until: Cell::new(None),
            max_retry_copy_bytes: Cell::new(0),
            queue_timeout: Cell::new(Duration::ZERO),
            activity: activity::Activity::default(),
            called_at: Cell::new(Instant::now()),
            users: RefCell::default(),
            last_user: Cell::new(0),
            records_call_times: Cell::new(false),
            was_used: Cell::new(is_adopted),
            is_pruning: Cell::new(false),
            awaits_lists: Cell::new(is_fresh),
            is_fresh: Cell::new(is_fresh),
            is_hung: Cell::new(false),
            is_reading_watched: Cell::new(false),
        })
    }

    /// Sets how many bytes of retry copies are kept, and how long calls wait.
    pub(crate) fn set_queue_limits(&self, park: ParkSettings) {
        self.max_retry_copy_bytes.set(usize::try_from(park.bytes).unwrap_or(usize::MAX));
        self.queue_timeout.set(park.queue);
    }

    /// Returns how long a call may wait for the server.
    pub(crate) fn queue_timeout(&self) -> Duration {
        self.queue_timeout.get()
    }

    /// Returns the key of the instance.
    pub(crate) fn key(&self) -> &InstanceKey {
        &self.key
    }

    /// Returns what the server said of itself, while requests can be sent.
    pub(crate) fn introduction(&self) -> Option<Rc<Introduction>> {
        match &*self.state.borrow() {
            State::Open(introduction) => Some(introduction.clone()),
            State::Handshaking | State::Closed => None,
        }
    }

    /// Returns true if its client's calls wait for the first lists.
    pub(crate) fn awaits_lists(&self) -> bool {
        self.awaits_lists.get()
    }

    /// Lets its client's calls go from now on. Returns true if they waited before.
    pub(crate) fn stop_awaiting_lists(&self) -> bool {
        self.awaits_lists.replace(false)
    }

    /// Returns true if the instance has received nothing from the one client that it serves.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_fresh.get()
    }

    /// Forwards a client's notification or response.
    pub(crate) fn pass(&self, message: &[u8]) {
        self.is_fresh.set(false);
        self.send(message);
    }

    /// Returns the era of the protocol that the server speaks.
    pub(crate) fn era(&self) -> Era {
        self.introduction().map_or(Era::Legacy, |introduction| introduction.era())
    }

    /// Returns the number of pending calls with a waiting caller, except subscriptions.
    pub(crate) fn open_calls(&self) -> usize {
        let calls = self.calls.borrow();
        let is_waited_for = |call: &&PendingCall| {
            call.caller.is_waiting() && !matches!(call.caller, Caller::Subscription(_))
        };
        calls.values().filter(is_waited_for).count()
    }

    /// Returns the number of pending calls that were made under this name of the server. Internal
    /// requests count under the name of its owner.
    pub(crate) fn open_calls_of(&self, name: &ServerName) -> usize {
        let calls = self.calls.borrow();
        let is_open = |call: &&PendingCall| {
            call.caller.is_waiting() && !matches!(call.caller, Caller::Subscription(_))
        };
        let has_name = |call: &PendingCall| {
            call.caller.alias().map_or(&self.key.server, |it| &it.name) == name
        };
        calls.values().filter(is_open).filter(|call| has_name(call)).count()
    }

    /// Returns the number of pending calls that are not xy's own.
    pub(crate) fn external_calls(&self) -> usize {
        let is_other = |call: &&PendingCall| {
            matches!(
                call.caller,
                Caller::Client { .. } | Caller::PendingInput(_) | Caller::Admin(_)
            )
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

    /// Records that clients use the server: it is not restarted in another era.
    pub(crate) fn mark_used(&self) {
        self.was_used.set(true);
    }

    /// Records that clients of this group call the server.
    pub(crate) fn add_user(&self, group_id: u64) {
        self.mark_used();
        if self.last_user.replace(group_id) != group_id {
            self.users.borrow_mut().insert(group_id);
        }
    }

    /// Removes a client group that has disconnected.
    pub(crate) fn forget_user(&self, group_id: u64) {
        self.users.borrow_mut().remove(&group_id);
        self.last_user.set(0);
    }

    /// Returns the groups of connected clients that have called the server.
    pub(crate) fn users(&self) -> Vec<u64> {
        self.users.borrow().iter().copied().collect()
    }

    /// Turns the recording of call times on or off.
    pub(crate) fn set_records_call_times(&self, records_call_times: bool) {
        if self.records_call_times.replace(records_call_times) != records_call_times {
            self.called_at.set(Instant::now());
        }
    }

    /// Returns when a client's call last began or ended, if call times are recorded.
    pub(crate) fn called_at(&self) -> Instant {
        self.called_at.get()
    }

    /// Records that a client's call begins or ends.
    fn record_call(&self) {
        if self.records_call_times.get() {
            self.called_at.set(Instant::now());
        }
    }

    /// Holds back queued calls until then: the server has lost calls and may be dying.
    pub(crate) fn hold_back(&self, until: Instant) {
        self.hold_until.set(Some(until));
    }

    pub(crate) fn is_held_back(&self) -> bool {
        self.hold_until.get().is_some_and(|until| Instant::now() < until)
    }

    /// Records that the server was found hung.
    pub(crate) fn mark_hung(&self) {
        self.is_hung.set(true);
    }

    /// Returns true if the server was found hung.
    pub(crate) fn is_hung(&self) -> bool {
        self.is_hung.get()
    }

    /// Returns what a client may see of `known`, under the name that it used.
    pub(crate) fn shown_as(
        &self,
        alias: &Backend,
        client: &Client,
        known: Rc<Known>,
    ) -> Option<Rc<Known>> {
        let is_own = alias.name == self.key.server;
        let known = if is_own { known } else { known.for_alias(&alias.name) };
        client.visible(&alias.name, known)
    }

    /// Records that the server has sent a client a request, during this call or during any call of
    /// that client.
    pub(crate) fn record_server_request(&self, client: u64, related_call: Option<u64>) {
        for (upstream_id, call) in self.calls.borrow_mut().iter_mut() {
            let is_meant =
                related_call.map_or(call.caller.number() == Some(client), |it| it == *upstream_id);
            call.has_server_request |= is_meant;
        }
    }

    /// Returns the owner of a call, if a client waits for the response.
    pub(crate) fn owner_of(&self, upstream_id: u64) -> Option<CallOwner> {
        self.calls.borrow().get(&upstream_id)?.caller.owner(upstream_id)
    }

    /// Returns what a call said of its client, if that is modern.
    pub(crate) fn request_meta_of(&self, upstream_id: u64) -> Option<Rc<RequestMeta>> {
        match &self.calls.borrow().get(&upstream_id)?.caller {
            Caller::Client { request_meta, .. } => request_meta.clone(),
            Caller::PendingInput(pending) => Some(pending.request_meta.clone()),
            _ => None,
        }
    }

    /// Records that the server required a capability that the client of this call lacks. `needed`
    /// is the JSON text of that capability.
    pub(crate) fn set_missing_capability(&self, upstream_id: u64, needed: &'static str) {
        match self.calls.borrow_mut().get_mut(&upstream_id).map(|it| &mut it.caller) {
            Some(Caller::Client { translation: Some(translation), .. }) => {
                translation.record_missing(needed);
            }
            Some(Caller::PendingInput(pending)) => pending.missing.set(Some(needed)),
            _ => {}
        }
    }

    /// Detaches a call until its client supplies input. Returns its caller, or `None` if the call
    /// cannot wait for input.
    pub(crate) fn detach_call(&self, upstream_id: u64) -> Option<Caller> {
        let mut calls = self.calls.borrow_mut();
        let call = calls.get_mut(&upstream_id)?;
        let can_wait = matches!(
            call.caller.translation(),
            Some(EraTranslation::ToLegacy { binding: Some(_), .. })
        );
        call.has_server_request |= can_wait;
        if can_wait {
            call.retry_copy = None; // The client's next request has another id.
        }
        can_wait.then(|| std::mem::replace(&mut call.caller, Caller::Detached))
    }

    /// Assigns a call to another caller.
    pub(crate) fn attach(self: &Rc<Self>, upstream_id: u64, caller: Caller) {
        let mut calls = self.calls.borrow_mut();
        let Some(call) = calls.get_mut(&upstream_id) else { return };
        call.caller = caller;
        if let Some(timer) = &call.timer {
            timer.touch();
            drop(calls);
            self.rewatch_timeouts();
        }
    }

    /// Returns true if exactly this call waits for input of its client.
    pub(crate) fn awaits_input(&self, pending: &Rc<PendingInput>) -> bool {
        let calls = self.calls.borrow();
        let call = calls.get(&pending.upstream_id);
        call.is_some_and(
            |it| matches!(&it.caller, Caller::PendingInput(it) if Rc::ptr_eq(it, pending)),
        )
    }

    /// Returns true if this daemon or an earlier one has sent the server a log level.
    pub(crate) fn is_tuned(&self) -> bool {
        self.is_tuned.get()
    }

    /// Records that a log level was sent.
    pub(crate) fn set_tuned(&self) {
        if !self.is_tuned.replace(true) {
            self.save_note();
        }
    }

    /// Records that the server's lists have changed.
    pub(crate) fn lists_changed(&self) {
        let current = &self.list_versions.current;
        current.set(current.get() + 1);
        self.lists_stale.notify_one();
    }

    /// Returns true if the stored lists may be outdated.
    pub(crate) fn is_stale(&self) -> bool {
        self.known.borrow().is_none() || self.list_versions.known != self.list_versions.current
    }

    /// Stores what the server offers.
    pub(crate) fn set_known(&self, known: Rc<Known>) {
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

    /// Returns true if the server speaks the modern era, which has no sessions.
    pub(crate) fn is_modern(&self) -> bool {
        self.era() == Era::Modern
    }

    /// Returns true if arguments are mirrored into HTTP headers; tools that cannot be mirrored are
    /// hidden.
    pub(crate) fn mirrors_params(&self) -> bool {
        self.wire.mirrors_params()
    }

    /// Returns what this instance offers, once it has listed it.
    pub(crate) fn known(&self) -> Option<Rc<Known>> {
        self.known.borrow().clone()
    }

    /// Waits until the server's lists may have changed.
    pub(crate) async fn lists_changed_again(&self) {
        self.lists_stale.notified().await;
    }
}
