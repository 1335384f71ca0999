//! One running server, as the gateway sees it: its [`Connection`], and the calls of clients that it
//! has not answered.
//!
//! A call is appended to one write buffer and stored under an upstream id. Its response goes
//! straight to the responder of the client that sent it. There is no task and no channel in
//! between.
//!
//! `forward.rs` sends calls, `in_flight.rs` attributes messages to them, `timeout.rs` and
//! `unread.rs` limit them, and `ending.rs` ends them without a response.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use xy_catalog::catalog::ServerCatalog;
use xy_config::settings::ParkSettings;
use xy_http::frontend::StreamNo;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::Outcome;
use xy_mcp::modern::RequestMeta;
use xy_mcp::tasks::CANCELLED_RETENTION;
use xy_mcp::via::Via;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::InstanceKey;
use xy_supervisor::protocol::DriverEvent;
use xy_transport::large::LargeReader;

use crate::bridge::EraTranslation;
use crate::bridge::pending_input::PendingInput;
use crate::call::{Alias, CallClient, CallTimer, ResponseKind, RetryState};
pub(crate) use xy_upstream::connection::wire::Wire;
use xy_upstream::connection::{Connection, ConnectionEvents, Delivery, Inbound};
use xy_upstream::fault::{Cause, LossReason, ServerFault};

mod admin_request;
pub(crate) mod call_log;
mod caller;
mod ending;
mod forward;
mod in_flight;
pub(crate) mod retry;
mod retry_copy;
mod timeout;
mod unread;
mod unread_bytes;

use call_log::CallLog;
pub(crate) use caller::{CallOwner, Caller};
pub(crate) use ending::{ClientCall, UnansweredCall};
use retry_copy::RetryCopy;
use unread_bytes::UnreadBytes;

/// Receiver of the events of an upstream.
pub(crate) trait UpstreamEvents {
    /// Handles something that the server has sent.
    fn on_inbound(&self, by: &Rc<Upstream>, inbound: Inbound<'_>);
    /// Returns the parser of large messages, which all servers share.
    fn large_reader(&self) -> &LargeReader;
    /// Records that the server has written a message over several lines.
    fn on_broken_framing(&self, by: &Upstream);
    /// Returns the daemons among the clients of the server, for loop detection.
    fn daemons_before(&self, upstream: &Upstream) -> Via;
    /// Handles the end of a client's call, at a server that serves its clients in turns.
    fn on_call_end(&self, by: &Upstream);
    /// Recovers calls that the server will not answer, in the order in which they were sent.
    fn on_calls_lost(&self, by: &Upstream, calls: Vec<UnansweredCall>, why: &Cause);
}

/// A server's response to a client's call.
pub(crate) struct ClientResponse<'t> {
    pub(crate) client: &'t Rc<dyn CallClient>,
    /// The server, under the name that the client used.
    pub(crate) alias: &'t Alias,
    /// The upstream id of the call.
    pub(crate) upstream_id: u64,
    /// The client's progress token.
    pub(crate) token: Option<&'t str>,
    pub(crate) response_kind: &'t ResponseKind,
    pub(crate) outcome: Outcome<'t>,
}

/// One running server.
pub(crate) struct Upstream {
    me: Weak<Self>,
    connection: Rc<Connection>,
    events: Rc<dyn UpstreamEvents>,
    calls: RefCell<HashMap<u64, PendingCall>>,
    /// Until then, messages of the server may be meant for clients of an earlier daemon.
    foreign_until: Option<Instant>,
    /// Buffer that is reused for each response.
    scratch: RefCell<Vec<u8>>,
    /// The end of each client call is reported to `events`.
    reports_finished_calls: Cell<bool>,
    tasks: RunningTasks,
    /// Signals that a call may time out before the next check of that task.
    earlier_timeout: Rc<Notify>,
    /// Total size of the retry copies, and its limit.
    retry_copy_bytes: Rc<Cell<usize>>,
    max_retry_copy_bytes: Cell<usize>,
    /// The bytes that the server has not read, by token.
    unread_bytes: RefCell<UnreadBytes>,
    /// Maximum time that a call waits for this server.
    queue_timeout: Cell<Duration>,
    usage: Usage,
    /// The server was found hung. The calls that it has begun may be the reason.
    is_hung: Cell<bool>,
    /// Calls that have waited are not sent before then: the server has lost calls and may be dying.
    hold_until: Cell<Option<Instant>>,
    /// The instance serves one client and has not listed what it offers: its client's calls wait.
    awaits_lists: Cell<bool>,
    /// The instance serves one client and has received nothing from it: its lists are those that
    /// every client would get.
    is_fresh: Cell<bool>,
}

/// The tasks of an upstream that run while there is something to watch.
#[derive(Debug, Default)]
struct RunningTasks {
    /// Watches the timeouts of calls.
    timeouts: Cell<bool>,
    /// Removes cancelled calls.
    pruning: Cell<bool>,
    /// Watches calls that the server has not read.
    reading: Cell<bool>,
}

/// How clients have used the server.
#[derive(Debug)]
struct Usage {
    /// A client has called the server or watches a resource of it.
    was_used: Cell<bool>,
    /// The groups of connected clients that have called the server.
    users: RefCell<BTreeSet<u64>>,
    /// The group that called last, so that `users` is seldom searched.
    last_user: Cell<u64>,
    /// Time at which a client's call last began or ended; only maintained if `records_calls`.
    called_at: Cell<Instant>,
    records_calls: Cell<bool>,
}

/// The recipient of the progress of a call.
pub(crate) enum ProgressRecipient {
    /// The client that requested it, the stream of its call, and its token.
    Client(Rc<dyn CallClient>, StreamNo, Box<str>),
    /// The client has requested no progress, or does not wait for the call any more.
    Nobody,
    /// The call is not pending.
    Unknown,
}

/// A call that is not answered yet.
pub(crate) struct PendingCall {
    pub(crate) caller: Caller,
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
    pub(crate) log: Option<Box<CallLog>>,
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

impl Deref for Upstream {
    type Target = Rc<Connection>;

    /// Returns the connection: an upstream is a connection that knows the clients of its calls.
    fn deref(&self) -> &Rc<Connection> {
        &self.connection
    }
}

impl ConnectionEvents for Upstream {
    fn on_inbound(&self, inbound: Inbound<'_>) {
        self.events.on_inbound(&self.me(), inbound);
    }

    fn on_request_failed(&self, upstream_id: u64, fault: &ServerFault) {
        self.fail_call(upstream_id, fault);
    }

    fn on_request_lost(
        &self,
        upstream_id: u64,
        delivery: Delivery,
        why: LossReason,
        is_final: bool,
    ) {
        self.lose_call(upstream_id, delivery, why, is_final);
    }

    fn on_broken_framing(&self) {
        self.events.on_broken_framing(self);
    }

    fn daemons_before(&self) -> Via {
        self.events.daemons_before(self)
    }
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
        let large = events.large_reader().clone();
        Rc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            connection: Connection::new(key, driver_events, first_id, wire, (me.clone(), large)),
            events,
            calls: RefCell::default(),
            foreign_until: is_adopted.then(|| Instant::now() + CANCELLED_RETENTION),
            scratch: RefCell::default(),
            reports_finished_calls: Cell::new(false),
            tasks: RunningTasks::default(),
            earlier_timeout: Rc::default(),
            retry_copy_bytes: Rc::default(),
            max_retry_copy_bytes: Cell::new(0),
            queue_timeout: Cell::new(Duration::ZERO),
            usage: Usage {
                was_used: Cell::new(is_adopted),
                users: RefCell::default(),
                last_user: Cell::new(0),
                called_at: Cell::new(Instant::now()),
                records_calls: Cell::new(false),
            },
            is_hung: Cell::new(false),
            hold_until: Cell::new(None),
            awaits_lists: Cell::new(is_fresh),
            unread_bytes: RefCell::default(),
            is_fresh: Cell::new(is_fresh),
        })
    }

    fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("a caller of the upstream holds it")
    }

    /// Returns the connection.
    pub(crate) fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }

    /// Sets how many bytes of retry copies are kept, and how long calls wait.
    pub(crate) fn set_queue_limits(&self, park: ParkSettings) {
        self.max_retry_copy_bytes.set(usize::try_from(park.bytes).unwrap_or(usize::MAX));
        self.queue_timeout.set(park.queue);
        self.connection.set_session_timeout(park.queue);
    }

    /// Returns how long a call may wait for the server.
    pub(crate) fn queue_timeout(&self) -> Duration {
        self.queue_timeout.get()
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

    /// Returns the number of pending calls with a waiting caller, except subscriptions.
    pub(crate) fn open_calls(&self) -> usize {
        self.open_requests()
    }

    /// Returns the number of pending calls that were made under this name of the server. Internal
    /// requests count under the name of its owner.
    pub(crate) fn open_calls_of(&self, name: &ServerName) -> usize {
        let is_owner = self.key().server == *name;
        let internal = if is_owner { self.internal_requests() } else { 0 };
        let has_name = |call: &&PendingCall| {
            call.caller.is_waiting()
                && call.caller.alias().map_or(is_owner, |alias| alias.name == *name)
        };
        internal + self.calls.borrow().values().filter(has_name).count()
    }

    /// Returns the number of pending calls that are not xy's own.
    pub(crate) fn external_calls(&self) -> usize {
        self.calls.borrow().values().filter(|call| call.caller.is_waiting()).count()
    }

    /// Returns true if a client has called it in this life.
    pub(crate) fn was_used(&self) -> bool {
        self.usage.was_used.get()
    }

    /// Records that clients use the server: it is not restarted in another era.
    pub(crate) fn mark_used(&self) {
        self.usage.was_used.set(true);
    }

    /// Records that clients of this group call the server.
    pub(crate) fn add_user(&self, group_id: u64) {
        self.mark_used();
        if self.usage.last_user.replace(group_id) != group_id {
            self.usage.users.borrow_mut().insert(group_id);
        }
    }

    /// Removes a client group that has disconnected.
    pub(crate) fn forget_user(&self, group_id: u64) {
        self.usage.users.borrow_mut().remove(&group_id);
        self.usage.last_user.set(0);
    }

    /// Returns the groups of connected clients that have called the server.
    pub(crate) fn users(&self) -> Vec<u64> {
        self.usage.users.borrow().iter().copied().collect()
    }

    /// Turns the recording of call times on or off.
    pub(crate) fn set_records_call_times(&self, records_calls: bool) {
        if self.usage.records_calls.replace(records_calls) != records_calls {
            self.usage.called_at.set(Instant::now());
        }
    }

    /// Returns when a client's call last began or ended, if call times are recorded.
    pub(crate) fn called_at(&self) -> Instant {
        self.usage.called_at.get()
    }

    /// Records that a client's call begins or ends.
    pub(crate) fn record_call(&self) {
        if self.usage.records_calls.get() {
            self.usage.called_at.set(Instant::now());
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
        alias: &ServerName,
        client: &dyn CallClient,
        known: Rc<ServerCatalog>,
    ) -> Option<Rc<ServerCatalog>> {
        let is_own = *alias == self.key().server;
        let known = if is_own { known } else { known.for_alias(alias) };
        client.visible(alias, known)
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

    /// Sends an edited response to its client.
    pub(crate) fn respond(
        &self,
        client: &dyn CallClient,
        id: &str,
        stream: StreamNo,
        mut edits: Edits<'_>,
    ) {
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        edits.append_to(&mut scratch);
        client.respond(id, stream, &scratch);
        scratch.shrink_to(xy_transport::scratch::READ_BYTES);
    }

    /// Records progress of a call, and returns its recipient.
    pub(crate) fn progress_recipient(&self, upstream_id: u64) -> ProgressRecipient {
        let calls = self.calls.borrow();
        let Some(call) = calls.get(&upstream_id) else { return ProgressRecipient::Unknown };
        if let Some(timer) = &call.timer {
            timer.touch();
        }
        match &call.caller {
            Caller::Client { client, stream, token: Some(token), .. } => {
                ProgressRecipient::Client(client.clone(), *stream, token.clone())
            }
            _ => ProgressRecipient::Nobody,
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
        self.set_client(upstream_id, caller.client().map(|client| client.number()));
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
}
