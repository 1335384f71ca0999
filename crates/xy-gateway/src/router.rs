//! The routing state of the gateway: all servers and all clients, on its one thread.
//!
//! No method blocks. Slow work runs in a task of its own, which notifies the router of changes.
//!
//! - `lists.rs` answers lists, and `search.rs` and `explain.rs` questions about tools.
//! - `changes.rs` notifies clients of changed lists.
//! - `members.rs` adds and removes servers, `sharing.rs` handles aliases of one process.
//! - `inbound.rs` decides what each message of a server means, and `attribution.rs` finds the client
//!   that it is for.
//! - `tasks.rs` finds the owners and the servers of tasks.
//! - `pending_input.rs` parks calls that wait for input of their clients.
//! - `client_group.rs` groups clients that the listener cannot tell apart.
//! - `recovery.rs` decides what happens to unanswered calls.
//! - `idle.rs` stops and wakes instances.
//! - `watching.rs` manages resource and task subscriptions at servers.
//! - `routed_client.rs` is the client as the router sees it.
//! - `loops.rs` tracks the daemons before and behind the servers.
//! - `status.rs` and `retained.rs` write metrics.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use xy_catalog::catalog::ServerCatalog;
use xy_catalog::scope::Scope;
use xy_config::settings::ParkSettings;
use xy_http::frontend::{Entry, Refusal, View};
use xy_http::generation::Generation;
use xy_mcp::era::Era;
use xy_mcp::level::Level;
use xy_mcp::via::Daemons;
use xy_mcp::{edit, reply};
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;
use xy_search::Index;
use xy_supervisor::instance::Holder;
use xy_transport::budget::{Reservation, SharedBudget};
use xy_transport::large::LargeReader;
use xy_transport::share::TokenUse;
use xy_upstream::connection::InternalRequest;
use xy_upstream::fault::LossReason;

use crate::backend::{Availability, Backend, QueueBudget};
use crate::bridge::pending_input::PendingInputs;

use crate::control::Control;
use crate::gateway_status::GatewayStatus;
use crate::manifest::Manifests;
use crate::ownership::Ownership;
use crate::subscriptions::{Subscriber, Subscriptions};
use crate::tools::Servers;
use crate::upstream::Upstream;
use crate::visibility::Visibility;

mod attribution;
mod changes;
mod client_group;
mod explain;
mod idle;
mod inbound;
mod lists;
mod loops;
mod members;
mod pending_input;
mod profiles;
mod recovery;
mod retained;
mod routed_client;
mod search;
mod shares;
mod sharing;
mod status;
mod tasks;
mod watching;

pub(crate) use lists::unknown_resource;
pub(crate) use routed_client::{ListVersion, RoutedClient};
pub(crate) use search::{DEFAULT_HITS, FoundTool};

/// Maximum number of clients, over all listeners.
const MAX_CLIENTS: usize = 2000;

/// How long the client of an isolated instance waits for the instance's first lists. Lists that
/// precede the client's first request contain nothing of that client's own.
pub(crate) const FIRST_LISTS_TIMEOUT: Duration = Duration::from_secs(2);

/// All servers and clients.
pub(crate) struct Router {
    me: Weak<Self>,
    this_daemon: Daemons,
    /// Parses large messages of servers.
    large: LargeReader,
    servers: RefCell<BTreeMap<ServerName, Rc<Backend>>>,
    clients: RefCell<HashMap<u64, Rc<dyn RoutedClient>>>,
    /// Number of clients in memory.
    clients_alive: Rc<Cell<usize>>,
    next_client: Cell<u64>,
    pub(crate) generation: Generation,
    subscriptions: RefCell<Subscriptions>,
    /// The owners of the ids that servers have issued.
    ownership: RefCell<Ownership>,
    /// Counts changes that clients may wait for: servers that come, go, or become known.
    revision: watch::Sender<u64>,
    /// Set while a notification of changed lists is scheduled.
    is_notify_scheduled: Cell<bool>,
    /// The log level that servers were last set to.
    level: Cell<Option<Level>>,
    /// The most detailed log level that a modern client has requested.
    modern_level: Cell<Option<Level>>,
    /// Calls that wait for modern clients to come back.
    pub(crate) pending_inputs: PendingInputs,
    /// Set while a task sweeps expired pending inputs.
    is_sweeping: Cell<bool>,
    /// The budget of stored requests that may have to be sent again.
    pub(crate) stored_requests: Rc<SharedBudget>,
    /// Groups of clients that the listener cannot tell apart.
    groups: RefCell<HashMap<GroupKey, ClientGroup>>,
    /// Maximum number of instances at a time.
    instances_max: Cell<usize>,
    /// The status shown to operators.
    status: watch::Sender<GatewayStatus>,
    /// The limits and the size of the call queues.
    pub(crate) queue_budget: Rc<QueueBudget>,
    pub(crate) manifests: Manifests,
    pub(crate) control: Arc<dyn Control>,
    /// The rules of the profiles, by name.
    scopes: RefCell<BTreeMap<String, Rc<Scope>>>,
    /// The search index over all tools, and the source of each of its layers.
    index: RefCell<Index>,
    indexed: RefCell<BTreeMap<search::Layer, Option<Rc<ServerCatalog>>>>,
    /// Warnings about profile lines that match nothing, as logged.
    unmatched_lines: RefCell<BTreeSet<String>>,
    /// Warnings about clients that see more tools than they support, by profile and client name.
    limit_warnings: RefCell<BTreeMap<(String, String), String>>,
}

/// A client that may connect.
pub(crate) struct Admission {
    pub(crate) number: u64,
    pub(crate) entry: Entry,
    pub(crate) visibility: Visibility,
    pub(crate) token: TokenUse,
}

/// The token and the `clientInfo` of one-request clients.
type GroupKey = (u64, Box<str>);

/// A group of clients that the listener cannot tell apart.
struct ClientGroup {
    number: u64,
    /// The token of the group.
    token: u64,
    /// Number of open clients.
    open: usize,
    /// When the last client left.
    left_at: Instant,
    /// Set while a task waits to close the group.
    is_closing: bool,
}

impl Router {
    pub(crate) fn new(
        manifests: Manifests,
        control: Arc<dyn Control>,
        first_client: u64,
        status: watch::Sender<GatewayStatus>,
        (pending_inputs, park): (PendingInputs, ParkSettings),
    ) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            this_daemon: Daemons::one(&loops::new_id()),
            large: LargeReader::default(),
            servers: RefCell::default(),
            clients: RefCell::default(),
            clients_alive: Rc::default(),
            next_client: Cell::new(first_client),
            generation: Generation::draw(),
            subscriptions: RefCell::default(),
            ownership: RefCell::default(),
            revision: watch::Sender::new(0),
            is_notify_scheduled: Cell::new(false),
            level: Cell::new(None),
            modern_level: Cell::new(None),
            pending_inputs,
            is_sweeping: Cell::new(false),
            stored_requests: SharedBudget::new(
                usize::try_from(park.held_bytes).unwrap_or(usize::MAX),
            ),
            groups: RefCell::default(),
            instances_max: Cell::new(usize::MAX),
            status,
            queue_budget: QueueBudget::new(park),
            manifests,
            control,
            scopes: RefCell::default(),
            index: RefCell::default(),
            indexed: RefCell::default(),
            unmatched_lines: RefCell::default(),
            limit_warnings: RefCell::default(),
        })
    }

    /// Returns the server of this name.
    pub(crate) fn server(&self, name: &str) -> Option<Rc<Backend>> {
        self.servers.borrow().get(name).cloned()
    }

    /// Returns all servers, ordered by name.
    pub(crate) fn servers(&self) -> Vec<Rc<Backend>> {
        self.servers.borrow().values().cloned().collect()
    }

    /// Returns the server of this name, if the client sees any part of it.
    pub(crate) fn server_for(&self, client: &dyn RoutedClient, name: &str) -> Option<Rc<Backend>> {
        self.server(name).filter(|_| client.allows_server(name))
    }

    /// Returns all servers of which the client sees any part, ordered by name.
    pub(crate) fn servers_of(&self, client: &dyn RoutedClient) -> Vec<Rc<Backend>> {
        let servers = self.servers.borrow();
        servers.values().filter(|it| client.allows_server(it.name.as_str())).cloned().collect()
    }

    /// Counts one more client in memory, until the returned value is dropped.
    pub(crate) fn count_client(&self) -> Reservation {
        let mut one = Reservation::new(&self.clients_alive, usize::MAX);
        one.resize(1);
        one
    }

    /// Checks that a client may connect as `entry` says.
    pub(crate) fn admit_client(&self, entry: Entry) -> Result<Admission, Refusal> {
        match &entry.view {
            View::Server(name) if self.server(name).is_none() => {
                return Err(Refusal::NoServer(name.clone()));
            }
            View::Server(name) => {
                let bound = entry.bound.iter();
                bound.into_iter().try_for_each(|profile| self.check_bound(profile, name))?;
            }
            View::Profile(_) | View::All => {}
        }
        let visibility = self.visibility_of(&entry.view)?;
        let token = TokenUse { id: entry.principal };
        let principal = profiles::identity_in(entry.principal, &entry.view);
        let entry = Entry { principal, ..entry };
        let count = self.clients.borrow().len();
        if count >= MAX_CLIENTS {
            return Err(Refusal::TooMany(count));
        }
        Ok(Admission { number: self.new_number(), entry, visibility, token })
    }

    /// Adds a client, which leaves with [`Router::on_client_closed`].
    pub(crate) fn add_client(&self, client: Rc<dyn RoutedClient>) {
        self.clients.borrow_mut().insert(client.number(), client);
    }

    /// Returns the reader of large messages.
    pub(crate) fn large_reader(&self) -> LargeReader {
        self.large.clone()
    }

    /// Returns the client of this number.
    pub(crate) fn client(&self, number: u64) -> Option<Rc<dyn RoutedClient>> {
        self.clients.borrow().get(&number).cloned()
    }

    /// Returns all clients.
    pub(crate) fn clients(&self) -> Vec<Rc<dyn RoutedClient>> {
        self.clients.borrow().values().cloned().collect()
    }

    /// Subscribes to changes of the router.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Notifies all waiting tasks of a change.
    pub(crate) fn notify_change(&self) {
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// Publishes which servers make requests of their clients.
    pub(crate) fn publish_asking(&self) {
        let servers = self.servers();
        let asking: BTreeSet<ServerName> =
            servers.iter().filter(|it| it.asks()).map(|it| it.name.clone()).collect();
        self.update_status(|status| &mut status.asking, asking);
    }

    /// Sets one part of the published status, if it differs.
    fn update_status<T: PartialEq>(&self, part: impl Fn(&mut GatewayStatus) -> &mut T, now: T) {
        self.status.send_if_modified(|status| {
            let part = part(status);
            let is_new = *part != now;
            *part = now;
            is_new
        });
    }

    /// Publishes the protocol revision of each server.
    pub(crate) fn publish_protocol_versions(&self) {
        let version = |server: &Rc<Backend>| {
            let all = server.all_upstreams().into_iter().filter(|_| !server.is_hidden());
            let upstream = all.min_by_key(|it| it.key().clone())?;
            Some((server.name.clone(), upstream.introduction()?.version.clone()))
        };
        let spoken: BTreeMap<ServerName, String> =
            self.servers().iter().filter_map(version).collect();
        self.update_status(|status| &mut status.protocol_versions, spoken);
        let second = |server: &Rc<Backend>| {
            let all = server.own_upstreams().into_iter();
            let upstream = all.filter(|_| server.may_split()).max_by_key(|it| it.key().clone())?;
            upstream.key().holder.era()?;
            Some((server.name.clone(), upstream.introduction()?.version.clone()))
        };
        let spoken = self.servers().iter().filter_map(second).collect();
        self.update_status(|status| &mut status.second_protocol_versions, spoken);
    }

    /// Sets the availability of a server. A server that goes down fails its queued calls.
    pub(crate) fn set_availability(&self, server: &Rc<Backend>, availability: Availability) {
        if *server.availability.borrow() == availability {
            return;
        }
        *server.availability.borrow_mut() = availability.clone();
        if let Availability::Down(why) = availability {
            let fault = server.down_fault(&why);
            for waited in server.take_all_waiting(None) {
                waited.fail(&fault);
            }
        }
        self.lists_changed();
        self.notify_change();
    }

    /// Records what an instance offers; returns the part that is for all clients.
    ///
    /// The lists of an isolated instance are for its client alone. Until the client's first
    /// request, all but its resources are what every client would get. Later additions may result
    /// from a login, and stay private.
    pub(crate) fn learn(
        &self,
        server: &Rc<Backend>,
        by: &Rc<Upstream>,
        known: ServerCatalog,
    ) -> Option<Rc<ServerCatalog>> {
        let known = Rc::new(known);
        by.set_known(known.clone());
        let for_all = match by.key().holder {
            Holder::Shared => Some(known),
            Holder::Client(_) if by.is_fresh() => {
                let lists = known.lists.clone().without_private();
                let introduction = known.introduction.clone();
                Some(Rc::new(ServerCatalog::new(server.name.as_str(), introduction, lists)))
            }
            Holder::Client(_) | Holder::Era(_) => None,
        };
        if let Some(for_all) = &for_all {
            self.set_known(server, for_all);
        }
        self.admit(server, by);
        self.lists_changed();
        self.notify_change();
        for_all
    }

    /// Sets what a server offers to all clients.
    fn set_known(&self, server: &Rc<Backend>, for_all: &Rc<ServerCatalog>) {
        server.set_reported(for_all);
        server.known.replace(Some(for_all.clone()));
        for other in self.servers().iter().filter(|it| it.primary().is_some()) {
            if server.is_primary_of(other) {
                other.known.replace(Some(for_all.for_alias(&other.name)));
            }
        }
    }

    /// Writes the manifest of a server, if anything is known of it.
    pub(crate) fn remember(&self, server: &Backend) {
        let known = server.known.borrow().clone();
        if let Some(known) = known {
            let (router, settings) = (self.me(), server.settings.borrow().clone());
            let traits = server.traits();
            tokio::task::spawn_local(async move {
                router.manifests.remember(&settings, &known, traits).await;
            });
        }
    }

    /// Returns the era of the client of an instance, if the client exists.
    pub(crate) fn era_of(&self, number: u64) -> Option<Era> {
        let client = self.client(number).map(|client| client.era());
        client.or_else(|| self.is_group(number).then_some(Era::Modern))
    }

    /// Releases the client of an isolated instance, whose first lists have come or timed out.
    fn admit(&self, server: &Rc<Backend>, upstream: &Rc<Upstream>) {
        if upstream.stop_awaiting_lists() {
            server.release_for(upstream.key().holder);
            self.notify_change();
        }
    }

    /// Records a subscription to a resource.
    pub(crate) fn subscribe(
        &self,
        server: &Rc<Backend>,
        uri: &str,
        subscriber: Subscriber,
    ) -> Result<(), CallError> {
        self.subscriptions.borrow_mut().add(&server.name, uri, subscriber).map_err(reply::invalid)
    }

    /// Removes a subscription; returns true if no other is left under any alias.
    pub(crate) fn unsubscribe(
        &self,
        server: &Rc<Backend>,
        uri: &str,
        client: &dyn RoutedClient,
    ) -> bool {
        self.subscriptions.borrow_mut().remove(&server.name, uri, client.number());
        !self.is_watched(&server.primary_or_self(), server.holder(client), uri)
    }

    /// Prepares an instance that has completed its handshake: releases queued calls, restores log
    /// level and subscriptions.
    pub(crate) fn on_instance_ready(&self, upstream: &Rc<Upstream>) {
        let Some(server) = self.server(upstream.key().server.as_str()) else { return };
        let holder = upstream.key().holder;
        server.mark_available(holder);
        if holder.era().is_some() {
            server.allow_second();
        }
        server.release_for(holder);
        if upstream.awaits_lists() {
            let (router, server, upstream) = (self.me(), server.clone(), Rc::downgrade(upstream));
            tokio::task::spawn_local(async move {
                tokio::time::sleep(FIRST_LISTS_TIMEOUT).await;
                if let Some(upstream) = upstream.upgrade() {
                    router.admit(&server, &upstream);
                }
            });
        }
        match self.level.get() {
            Some(level) => send_log_level(upstream, level),
            // An earlier daemon may have reduced its log level.
            None if upstream.is_tuned() => send_log_level(upstream, Level::DEFAULT),
            None => {}
        }
        self.restore_subscriptions(&server, upstream);
        self.notify_change();
    }

    /// Subscribes an instance to everything that clients watch there.
    fn restore_subscriptions(&self, server: &Rc<Backend>, upstream: &Rc<Upstream>) {
        let watched = self.watched(server, upstream.key().holder);
        if upstream.is_modern() {
            // The subscription takes effect even if the future is dropped.
            return drop(upstream.listen_to(watched));
        }
        for uri in watched.uris {
            let params = format!(r#"{{"uri":{}}}"#, edit::quoted(&uri));
            detach(upstream.ask("resources/subscribe", Some(&params)));
        }
    }

    /// Sets the servers' log level to the most detailed one that any client requests.
    pub(crate) fn update_log_level(&self) {
        let clients = self.clients.borrow();
        let modern = self.modern_level.get();
        let has_client_level =
            modern.is_some() || clients.values().any(|client| client.level().is_some());
        if self.level.get().is_none() && !has_client_level {
            return; // No client has set a level: servers log what they like.
        }
        // A client that has set no level gets the default, whatever the others set.
        let wanted = clients.values().filter(|client| client.has_handshake());
        let wanted = wanted.map(|client| client.level().unwrap_or(Level::DEFAULT));
        let level = wanted.chain(modern).min();
        drop(clients);
        let Some(level) = level else { return };
        if self.level.replace(Some(level)) == Some(level) {
            return;
        }
        for upstream in self.servers().iter().flat_map(|server| server.own_upstreams()) {
            send_log_level(&upstream, level);
        }
    }

    /// Removes a client and all its state.
    pub(crate) fn on_client_closed(&self, client: &dyn RoutedClient) {
        let number = client.number();
        self.clients.borrow_mut().remove(&number);
        // One-request clients rarely have subscriptions: skip the search.
        let watched = client.has_watched().then(|| self.subscriptions.borrow_mut().forget(number));
        for it in watched.into_iter().flatten() {
            let Some(server) = self.server(it.server.as_str()) else { continue };
            let (primary, holder) = (server.primary_or_self(), server.holder(client));
            if !self.is_watched(&primary, holder, &it.uri) {
                self.unsubscribe_instance(&primary, holder, &it.uri);
            }
        }
        self.ownership.borrow_mut().remove_client(number, Instant::now());
        if !client.has_session() {
            return self.leave_group(client);
        }
        self.abandon_pending_inputs(client);
        for server in self.servers() {
            server.forget_user(number);
            if server.holder(client) == Holder::Client(number) && server.owner().is_none() {
                tokio::task::spawn_local(self.control.release(&server.name, number));
            }
        }
        self.update_log_level();
    }

    /// Removes an ended instance and all its state.
    pub(crate) fn on_instance_end(
        &self,
        server: &Rc<Backend>,
        upstream: &Rc<Upstream>,
        why: &LossReason,
    ) {
        server.drop_upstream(upstream);
        self.drop_instance_state(upstream, why);
        if server.is_removed.get() {
            self.remove(server);
        }
        self.publish_protocol_versions();
        self.notify_change();
    }

    /// Drops the state of a server that lost its session: its requests and tasks are void.
    pub(crate) fn on_session_reset(&self, upstream: &Rc<Upstream>) {
        let why = LossReason::Other("it has forgotten the session".into());
        self.drop_instance_state(upstream, &why);
    }

    fn drop_instance_state(&self, upstream: &Rc<Upstream>, why: &LossReason) {
        self.ownership.borrow_mut().lose_instance(upstream.key(), why);
        for client in self.clients() {
            client.cancel_all_from(upstream);
        }
    }

    /// Returns a number that no client has or had.
    fn new_number(&self) -> u64 {
        self.next_client.replace(self.next_client.get() + 1)
    }

    pub(crate) fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("a caller of the router holds it")
    }
}

impl Servers for Router {
    fn control(&self) -> &dyn Control {
        &*self.control
    }

    fn server(&self, name: &str) -> Option<Rc<Backend>> {
        Self::server(self, name)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        Self::changes(self)
    }
}

/// Detaches a request whose response is of no interest, if it could be sent.
fn detach(question: Result<InternalRequest, CallError>) {
    if let Ok(question) = question {
        question.detach();
    }
}

fn send_log_level(upstream: &Rc<Upstream>, level: Level) {
    if upstream.is_modern() {
        return; // Modern requests carry the level.
    }
    if upstream.introduction().is_some_and(|it| it.abilities.logging) {
        let params = format!(r#"{{"level":"{level}"}}"#);
        let request = upstream.ask("logging/setLevel", Some(&params));
        if let Ok(request) = &request {
            request.set_barrier(); // Later calls expect their messages at this level.
        }
        detach(request);
        upstream.set_tuned();
    }
}
