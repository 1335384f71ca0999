//! One server, as clients see it: its availability, its lists, and its instances.
//!
//! A server that shares the process of another has no instances of its own. It answers through its
//! primary, and each request remembers the name that its client used (`router/sharing.rs`).
//!
//! `backend/queue.rs` holds the calls that wait, `backend/exclusive.rs` serializes clients, and
//! `backend/sleep.rs` knows which instances sleep.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use xy_catalog::catalog::ServerCatalog;
use xy_config::profile::OWN_TOOLS;
use xy_config::settings::ServerSettings;
use xy_http::frontend::StreamNo;
use xy_mcp::envelope::text_of;
use xy_mcp::era::Era;
use xy_mcp::kind::Kind;
use xy_protocol::control::quoted;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::instance::Holder;
use xy_transport::retained::Retained;
use xy_upstream::connection::Connection;
use xy_upstream::fault::ServerFault;

use crate::bridge;
use crate::call::{Alias, CallClient, CallRequest, CallTimer, Counts};
use crate::manifest::StoredState;
use crate::upstream::{Caller, Upstream};

mod era_routing;
mod exclusive;
mod protocol_hint;
mod queue;
mod queue_budget;
mod sleep;

pub(crate) use era_routing::SecondDown;
pub(crate) use protocol_hint::ProtocolHint;
pub(crate) use queue::{CallToQueue, QueuedCall};
pub(crate) use queue_budget::QueueBudget;
pub(crate) use sleep::{FailureReporter, ProgressReporter};

/// The reason for a name that a user has stopped.
pub(crate) const STOPPED: &str = "it was stopped";

/// The availability of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Availability {
    /// It runs, or starts without user action.
    Up,
    /// It is down, for this reason. Its lists are hidden.
    Down(String),
}

/// One server.
pub(crate) struct Backend {
    pub(crate) name: ServerName,
    pub(crate) settings: RefCell<Arc<ServerSettings>>,
    pub(crate) availability: RefCell<Availability>,
    /// The lists of a running instance, or the stored ones.
    pub(crate) known: RefCell<Option<Rc<ServerCatalog>>>,
    /// The server is no longer configured.
    pub(crate) is_removed: Cell<bool>,
    /// The remembered eras, which decide the handshake.
    pub(crate) hint: RefCell<ProtocolHint>,
    /// A client has waited for its lists, in vain.
    pub(crate) was_waited_for: Cell<bool>,
    /// It sends requests to its clients: those who share it are served in turns.
    asks: Cell<bool>,
    /// The client whose queued calls are being sent right now.
    releasing_client: Cell<Option<u64>>,
    /// Number of calls that were sent ahead of others in this turn.
    urgent_calls: Cell<usize>,
    upstreams: RefCell<HashMap<Holder, Rc<Upstream>>>,
    /// The failed instances that serve one client each, and the reasons.
    down: RefCell<HashMap<Holder, String>>,
    sleep: sleep::Sleep,
    /// The server whose instances answer for this one, if it is another.
    owner: RefCell<Option<ServerName>>,
    /// That server, if it exists.
    primary: RefCell<Weak<Self>>,
    /// The name is down, though the process may run for other names.
    is_hidden: Cell<bool>,
    /// The waiting calls, ordered by ticket.
    waiting: RefCell<VecDeque<QueuedCall>>,
    waiting_bytes: Cell<u64>,
    /// Queued calls are being sent right now; they overtake no others.
    is_releasing: Cell<bool>,
    /// The limits and counts of waiting calls, shared by all servers.
    queue_budget: Rc<QueueBudget>,
    /// The name, and the counters of the calls that were made under it.
    pub(crate) alias: Rc<Alias>,
    /// The lists of an instance of this very configuration, as learned by this daemon.
    reported: RefCell<Option<Rc<ServerCatalog>>>,
    /// The era of the latest call, if the server speaks both.
    last_called: Cell<Option<Era>>,
    /// The era of the shared process as stored on disk.
    remembered_era: Cell<Option<Era>>,
    /// The second process could not be started since the shared one began.
    is_second_refused: Cell<bool>,
    /// The era of the second process, if the supervisor runs one or will.
    second_era: Cell<Option<Era>>,
}

/// The status of a call after dispatch.
pub(crate) enum CallStatus {
    /// It was sent to the server.
    Sent { upstream: Rc<Upstream>, upstream_id: u64 },
    /// It waits for an instance, which may have to be started if the call is the first to wait for
    /// it.
    Queued { ticket: u64, for_first: Option<Holder> },
}

impl Backend {
    pub(crate) fn new(
        settings: Arc<ServerSettings>,
        remembered: Option<StoredState>,
        queue_budget: Rc<QueueBudget>,
    ) -> Rc<Self> {
        let asks = remembered.as_ref().is_some_and(|it| it.asks);
        let eras = remembered.as_ref().map(|it| it.eras).unwrap_or_default();
        let last_called = remembered.as_ref().and_then(|it| it.last_called);
        let introductions =
            remembered.as_ref().map(|it| it.introductions.clone()).unwrap_or_default();
        let known = remembered.map(|it| {
            Rc::new(ServerCatalog::new(settings.name.as_str(), it.introduction, it.lists))
        });
        Rc::new(Self {
            name: settings.name.clone(),
            alias: Rc::new(Alias::new(settings.name.clone())),
            hint: RefCell::new(ProtocolHint::new(settings.clone(), eras, introductions)),
            settings: RefCell::new(settings),
            availability: RefCell::new(Availability::Up),
            known: RefCell::new(known),
            is_removed: Cell::new(false),
            was_waited_for: Cell::new(false),
            asks: Cell::new(asks),
            releasing_client: Cell::new(None),
            urgent_calls: Cell::new(0),
            upstreams: RefCell::default(),
            down: RefCell::default(),
            sleep: sleep::Sleep::default(),
            owner: RefCell::default(),
            primary: RefCell::default(),
            is_hidden: Cell::new(false),
            waiting: RefCell::default(),
            waiting_bytes: Cell::new(0),
            is_releasing: Cell::new(false),
            queue_budget,
            reported: RefCell::default(),
            last_called: Cell::new(last_called),
            remembered_era: Cell::new(last_called),
            is_second_refused: Cell::new(false),
            second_era: Cell::default(),
        })
    }

    /// Returns the counters of the calls that were made under this name.
    pub(crate) fn counts(&self) -> &Counts {
        &self.alias.counts
    }

    /// Returns true if the lists are shown.
    pub(crate) fn is_shown(&self) -> bool {
        *self.availability.borrow() == Availability::Up && !self.is_hidden.get()
    }

    /// Returns true if the name is down by itself.
    pub(crate) fn is_hidden(&self) -> bool {
        self.is_hidden.get()
    }

    /// Returns the server whose instances answer for this one, if it is another.
    pub(crate) fn owner(&self) -> Option<ServerName> {
        self.owner.borrow().clone()
    }

    /// Returns true if `owner` or `is_hidden` changes.
    pub(crate) fn owner_changes(&self, owner: Option<&ServerName>, is_hidden: bool) -> bool {
        (self.owner.borrow().as_ref(), self.is_hidden()) != (owner, is_hidden)
    }

    /// Sets the server whose instances answer for this one, and whether the name is down.
    pub(crate) fn set_owner(&self, owner: Option<ServerName>, is_hidden: bool) {
        self.owner.replace(owner);
        self.is_hidden.set(is_hidden);
    }

    /// Returns the server whose instances answer for this one, if it is another and exists.
    pub(crate) fn primary(&self) -> Option<Rc<Self>> {
        self.primary.borrow().upgrade()
    }

    /// Returns the server whose instances answer for this one, which may be this one itself.
    pub(crate) fn primary_or_self(self: &Rc<Self>) -> Rc<Self> {
        self.primary().unwrap_or_else(|| self.clone())
    }

    /// Sets the server whose instances answer for this one; `None` for its own.
    pub(crate) fn set_primary(&self, primary: Option<&Rc<Self>>) {
        self.primary.replace(primary.map_or_else(Weak::new, Rc::downgrade));
    }

    /// Returns true if calls of `alias` go to this server.
    pub(crate) fn is_primary_of(&self, alias: &Self) -> bool {
        match alias.primary() {
            Some(primary) => std::ptr::eq(Rc::as_ptr(&primary), self),
            None => std::ptr::eq(alias, self),
        }
    }

    /// Returns the lists that all clients see, unless they are hidden.
    pub(crate) fn shown(&self) -> Option<Rc<ServerCatalog>> {
        self.known.borrow().clone().filter(|_| self.is_shown())
    }

    /// Returns the lists as one client may see them. Its own instance takes precedence.
    pub(crate) fn known_to(&self, client: &dyn CallClient) -> Option<Rc<ServerCatalog>> {
        client.visible(&self.name, self.known_at(self.holder(client))?)
    }

    /// Returns the lists of this instance, or else those of the server.
    fn known_at(&self, holder: Holder) -> Option<Rc<ServerCatalog>> {
        let living = match self.primary() {
            Some(primary) => primary.living_known(holder).map(|known| known.for_alias(&self.name)),
            None => self.living_known(holder),
        };
        living.or_else(|| self.known.borrow().clone())
    }

    fn living_known(&self, holder: Holder) -> Option<Rc<ServerCatalog>> {
        self.upstreams.borrow().get(&holder).and_then(|it| it.known())
    }

    /// Returns true if an instance of this client group alone has listed what it offers.
    pub(crate) fn is_alone_with(&self, group_id: u64) -> bool {
        let living = |it: &Self| it.living_known(Holder::Client(group_id)).is_some();
        self.primary().map_or_else(|| living(self), |primary| living(&primary))
    }

    /// Returns true if the client's own instance offers other tools than all clients see.
    pub(crate) fn has_own_tools(&self, client: &dyn CallClient) -> bool {
        let holder = self.holder(client);
        if !holder.is_client() {
            return false;
        }
        let known =
            self.primary().map_or_else(|| self.living_known(holder), |it| it.living_known(holder));
        let print = |known: &Rc<ServerCatalog>| known.fingerprint(Kind::Tools);
        known.is_some_and(|own| self.known.borrow().as_ref().map(print) != Some(print(&own)))
    }

    /// Returns the lists as one client may see them, unless they are hidden.
    pub(crate) fn shown_to(&self, client: &dyn CallClient) -> Option<Rc<ServerCatalog>> {
        self.known_to(client).filter(|_| self.is_shown())
    }

    /// Returns the instance of a holder, if it accepts requests.
    pub(crate) fn upstream(&self, holder: Holder) -> Option<Rc<Upstream>> {
        if let Some(primary) = self.primary() {
            return primary.upstream(holder);
        }
        let found = self.upstreams.borrow().get(&holder).cloned();
        found.filter(|upstream| upstream.introduction().is_some() && !upstream.awaits_lists())
    }

    /// Returns the upstream of this connection, if it still exists.
    pub(crate) fn upstream_over(&self, connection: &Rc<Connection>) -> Option<Rc<Upstream>> {
        let found = self.upstreams.borrow().get(&connection.key().holder).cloned();
        found.filter(|upstream| Rc::ptr_eq(upstream.connection(), connection))
    }

    /// Returns true if a client's calls go to a modern instance, as far as that is known.
    pub(crate) fn is_modern_to(&self, client: &dyn CallClient) -> bool {
        self.upstream(self.holder(client)).is_some_and(|upstream| upstream.is_modern())
    }

    /// Returns all instances that answer for this server and accept requests.
    pub(crate) fn all_upstreams(&self) -> Vec<Rc<Upstream>> {
        self.primary().map_or_else(|| self.own_upstreams(), |primary| primary.own_upstreams())
    }

    /// Returns the holders of all instances, including those that are about to start.
    pub(crate) fn holders(&self) -> HashSet<Holder> {
        self.upstreams.borrow().keys().copied().chain(self.holders_to_come()).collect()
    }

    /// Returns the server's own instances that accept requests.
    pub(crate) fn own_upstreams(&self) -> Vec<Rc<Upstream>> {
        let all = self.upstreams.borrow();
        all.values().filter(|upstream| upstream.introduction().is_some()).cloned().collect()
    }

    /// Removes a client group that has disconnected.
    pub(crate) fn forget_user(&self, group_id: u64) {
        for upstream in self.upstreams.borrow().values() {
            upstream.forget_user(group_id);
        }
    }

    /// Adds the retained entries of this server to `counts`.
    pub(crate) fn count(&self, counts: &mut Retained) {
        counts.add("instances", self.upstreams.borrow().len());
        counts.add("instances_down", self.down.borrow().len());
        counts.add("instances_asleep", self.sleep.count());
        counts.add("calls_waiting", self.waiting.borrow().len());
        let bytes = usize::try_from(self.waiting_bytes.get()).unwrap_or(usize::MAX);
        counts.add("calls_waiting_bytes", bytes);
        for upstream in self.upstreams.borrow().values() {
            upstream.count(counts);
        }
    }

    /// Returns true if the server has an instance.
    pub(crate) fn has_instances(&self) -> bool {
        !self.upstreams.borrow().is_empty()
    }

    /// Adds an instance.
    pub(crate) fn add(&self, upstream: &Rc<Upstream>) {
        if self.asks.get() {
            upstream.report_finished_calls();
        }
        upstream.set_queue_limits(self.queue_budget.park);
        upstream.set_records_call_times(self.may_sleep(upstream.key().holder));
        if upstream.key().holder == Holder::Shared {
            self.allow_second();
        }
        self.upstreams.borrow_mut().insert(upstream.key().holder, upstream.clone());
    }

    /// Sets the settings. Another program starts without the assumption that it sends requests to
    /// clients.
    pub(crate) fn configure(&self, settings: Arc<ServerSettings>) {
        let before = self.settings.replace(settings);
        self.rules_may_have_changed(&before);
        if before.kind != self.settings.borrow().kind {
            self.asks.set(false);
            self.reported.take();
        }
    }

    /// Stores the lists of an instance.
    pub(crate) fn set_reported(&self, known: &Rc<ServerCatalog>) {
        *self.reported.borrow_mut() = Some(known.clone());
    }

    /// Discards the lists, which must not be shown.
    pub(crate) fn forget_lists(&self) {
        self.reported.take();
        self.known.take();
    }

    /// Returns the lists that an instance reported last to this daemon.
    pub(crate) fn reported(&self) -> Option<Rc<ServerCatalog>> {
        self.reported.borrow().clone()
    }

    /// Removes the upstream of a life that has ended, unless that of a later life has replaced it.
    pub(crate) fn drop_upstream(&self, upstream: &Rc<Upstream>) {
        let mut all = self.upstreams.borrow_mut();
        if all.get(&upstream.key().holder).is_some_and(|it| Rc::ptr_eq(it, upstream)) {
            all.remove(&upstream.key().holder);
        }
    }

    /// Sends a client's request, or queues it. `alias` is the server under the name that the client
    /// used.
    pub(crate) fn call(
        self: &Rc<Self>,
        (client, stream): (&Rc<dyn CallClient>, StreamNo),
        mut request: CallRequest<'_>,
        alias: &Rc<Self>,
    ) -> Result<CallStatus, CallError> {
        let era = if request.request_meta.is_some() { Era::Modern } else { Era::Legacy };
        // Lists need no process of the client's era.
        let holder = match Kind::listed_by(request.method_and_target.0) {
            Some(_) => self.holder(&**client),
            None => self.holder_of_call(&**client, era),
        };
        request.retry_state.ticket = Some(self.ticket(&request.retry_state));
        if let Some(upstream) = self.upstream(holder) {
            let is_modern = request.request_meta.is_some();
            if !request.response_kind.is_of_task()
                && self.must_wait(client, is_modern, &request.retry_state, &upstream)
            {
                return self.enqueue_request((client, stream), (alias, holder), &request);
            }
            let upstream_id = self.send(client, &upstream, request, stream)?;
            return Ok(CallStatus::Sent { upstream, upstream_id });
        }
        if let Some(why) = alias.no_successor(holder) {
            return Err(alias.down_for(holder, &why).named(&alias.name));
        }
        self.enqueue_request((client, stream), (alias, holder), &request)
    }

    /// Returns the timer of a request, which started when it was first sent.
    fn timer(&self, request: &CallRequest<'_>) -> Option<Rc<CallTimer>> {
        if let Some(timer) = &request.retry_state.rounds.timer {
            timer.touch();
            return Some(timer.clone());
        }
        CallTimer::begin(self.settings.borrow().rules.calls, || {
            let (method, about) = request.method_and_target;
            let about = about.and_then(text_of).map(|it| format!(" {}", quoted(&it)));
            let name = &request.alias.name;
            format!("`{}{}` of `{name}`", quoted(method), about.unwrap_or_default())
        })
    }

    fn send(
        &self,
        client: &Rc<dyn CallClient>,
        upstream: &Rc<Upstream>,
        mut request: CallRequest<'_>,
        stream: StreamNo,
    ) -> Result<u64, CallError> {
        request.timer = self.timer(&request);
        let is_watched = request.timer.is_some();
        let (was_sent, was_watched) =
            (request.retry_state.was_sent, request.retry_state.rounds.timer.is_some());
        self.check_not_management_tool(upstream, &request)?;
        let translation = bridge::translation_for(&**client, &request, upstream.era())?;
        let alias = request.alias.clone();
        let caller = Caller::Client {
            client: client.clone(),
            alias: alias.clone(),
            id: request.id.into(),
            stream,
            token: request.token.map(Into::into),
            response_kind: request.response_kind.clone(),
            request_meta: request.request_meta.clone(),
            translation,
        };
        let upstream_id =
            upstream.forward(request, caller).map_err(|fault| fault.named(&alias.name))?;
        upstream.add_user(client.group_id());
        if self.is_new_era(upstream) {
            client.remember(&self.name);
        }
        upstream.watch_reading();
        if was_sent {
            alias.count_again();
        }
        match is_watched {
            true if was_watched => upstream.rewatch_timeouts(),
            true => upstream.watch_timeouts(),
            false => {}
        }
        Ok(upstream_id)
    }

    /// Refuses the management tools of another xy: permission to call tools here does not include
    /// managing servers there. The tools that the other xy lists for this daemon are not affected.
    fn check_not_management_tool(
        &self,
        upstream: &Upstream,
        request: &CallRequest<'_>,
    ) -> Result<(), CallError> {
        let is_gateway = upstream.introduction().is_some_and(|it| it.is_gateway);
        if !is_gateway || request.method_and_target.0 != "tools/call" {
            return Ok(());
        }
        let written = request.renamed.as_ref().map(|(_, inside)| inside.as_str());
        let name = written.or(request.method_and_target.1).and_then(text_of).unwrap_or_default();
        let known = upstream.known().or_else(|| self.known.borrow().clone());
        let is_listed = |known: Rc<ServerCatalog>| {
            known.lists.of(Kind::Tools).iter().any(|tool| *tool.name == *name)
        };
        if OWN_TOOLS.contains(&&*name) || !known.is_none_or(is_listed) {
            let (name, server) = (quoted(&name), &request.alias.name);
            return Err(CallError::new(
                ErrorKind::NotAllowed,
                format!("`{name}` is not called through another daemon"),
            )
            .cause(format!("`{server}` is another xy, and this is one of its management tools"))
            .hint("ask that daemon itself, with its own `xy` or token"));
        }
        Ok(())
    }

    fn enqueue_request(
        self: &Rc<Self>,
        (client, stream): (&Rc<dyn CallClient>, StreamNo),
        (alias, holder): (&Rc<Self>, Holder),
        request: &CallRequest<'_>,
    ) -> Result<CallStatus, CallError> {
        self.check_room(&**client, request.text.len()) // Checked before the text is copied.
            .inspect_err(|_| client.limit_hit("calls that wait for a server"))
            .map_err(|fault| fault.named(&alias.name))?;
        let call = CallToQueue {
            client: client.clone(),
            alias: alias.clone(),
            holder,
            id: request.id.into(),
            text: request.text.store(),
            stream,
            is_modern: request.request_meta.is_some(),
            retry_state: request.retry_state.clone(),
        };
        let (ticket, is_first) = self.enqueue(call);
        Ok(CallStatus::Queued { ticket, for_first: is_first.then_some(holder) })
    }

    /// Returns the error for calls to a server that is down.
    pub(crate) fn down(&self, why: &str) -> CallError {
        self.down_fault(why).named(&self.name)
    }

    /// Returns the reason why a server that is down does not answer.
    pub(crate) fn down_fault(&self, why: &str) -> ServerFault {
        ServerFault::Down { why: why.to_owned(), is_removed: self.is_removed.get() }
    }

    /// Returns why the instance of one holder does not answer.
    pub(crate) fn down_for(&self, holder: Holder, why: &str) -> ServerFault {
        match (holder, self.primary().map_or_else(|| self.failure(holder), |it| it.failure(holder)))
        {
            (Holder::Client(_), Some(failure)) => ServerFault::InstanceFailed(failure),
            _ => self.down_fault(why),
        }
    }

    /// Returns the error for calls to a server that is about to start by itself.
    pub(crate) fn not_yet(&self) -> CallError {
        ServerFault::Starting.named(&self.name)
    }
}
