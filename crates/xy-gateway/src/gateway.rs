//! The gateway's thread and runtime, and the handle for the rest of the daemon.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::net::UnixListener;
use tokio::runtime;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;
use xy_config::settings::{Isolation, ParkSettings, Profiles};
use xy_http::{ListenState, ListeningSocket, TokenWatch};
use xy_mcp::era::Era;
use xy_protocol::control::{Explain, ExplainResult, Search, SearchResult};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, ServerState, Wanted};
use xy_supervisor::fleet::{Member, Roster};
use xy_supervisor::instance::{Holder, InstanceHandle, InstanceKey, StateChange};
use xy_supervisor::protocol::{Connection, ProtocolDriver};
use xy_upstream::connection::RoundTrip;

use crate::admin::{self, AdminQuery, RawRequest, Tool, Users};
use crate::backend::{Availability, SecondDown};
use crate::bridge::Key;
use crate::bridge::pending_input::PendingInputs;
use crate::control::Control;
use crate::gateway_status::GatewayStatus;
use crate::limit_hits::LimitHit;
use crate::manifest::Manifests;
use crate::router::Router;
use crate::{local, upstream_session};

mod http_listener;
mod instance_status;

pub use http_listener::HttpParts;
use instance_status::{
    failure_reporters, progress_reporters, retry_times, sleeping_holders, start_failed,
};

/// Maximum number of server connections that wait to be served. Each life of a server has one.
const MAX_WAITING_CONNECTIONS: usize = 1024;

/// Maximum number of queries that wait to be answered.
const MAX_WAITING_QUERIES: usize = 64;

/// Maximum number of blocking threads, which read manifests and resolve host names. A slow lookup
/// must not delay others.
const MAX_BLOCKING_THREADS: usize = 8;

/// How long blocking threads may take at the end: a disk that hangs must not keep the daemon
/// running.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the protocol driver for the supervisor, and the connections that it passes on.
pub fn driver() -> (Arc<GatewayDriver>, Connections) {
    let (connections, taken) = mpsc::channel(MAX_WAITING_CONNECTIONS);
    (Arc::new(GatewayDriver { connections }), Connections(taken))
}

/// Passes server connections to the gateway.
#[derive(Debug)]
pub struct GatewayDriver {
    connections: mpsc::Sender<Connection>,
}

impl ProtocolDriver for GatewayDriver {
    fn drive(&self, connection: Connection) {
        if let Err(problem) = self.connections.try_send(connection) {
            tracing::error!(%problem, "could not pass a server connection to the gateway");
        }
    }
}

/// The receiver of connections from a [`GatewayDriver`].
#[derive(Debug)]
pub struct Connections(mpsc::Receiver<Connection>);

/// The parts of a gateway.
pub struct Parts {
    /// The connections from [`driver`].
    pub connections: Connections,
    /// The listening socket for local clients.
    pub local: std::os::unix::net::UnixListener,
    /// Listening sockets that replace `local` if its file was lost.
    pub replacement_local: mpsc::Receiver<std::os::unix::net::UnixListener>,
    /// The settings of the HTTP listener, if it is enabled.
    pub http: Option<HttpParts>,
    /// The tokens that users add and remove at run time.
    pub tokens: TokenWatch,
    /// How many calls may wait for each server, and for how long.
    pub park: ParkSettings,
    /// Maximum number of instances.
    pub instances_max: usize,
    /// The folder with the manifests.
    pub manifests_dir: PathBuf,
    /// The secret that signs state for clients that return to another daemon.
    pub state_key: String,
    /// The control plane of the daemon.
    pub control: Arc<dyn Control>,
    /// The initial profiles.
    pub profiles: Arc<Profiles>,
    /// All servers, as they are now.
    pub roster: watch::Receiver<Arc<Roster>>,
    /// Changes of server states.
    pub changes: broadcast::Receiver<StateChange>,
}

/// How a gateway ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// The daemon stops.
    Stop,
    /// Another daemon continues.
    HandOver,
}

/// A running gateway. Dropping it ends its thread eventually.
#[derive(Debug)]
pub struct Gateway {
    queries: mpsc::Sender<AdminQuery>,
    listening: watch::Receiver<Option<ListenState>>,
    status: watch::Receiver<GatewayStatus>,
    socket: ListeningSocket,
    end: Option<oneshot::Sender<Shutdown>>,
    thread: Option<JoinHandle<()>>,
}

impl Gateway {
    /// Starts the gateway's thread.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let (end, ended) = oneshot::channel();
        let (queries, waiting_queries) = mpsc::channel(MAX_WAITING_QUERIES);
        let (state, listening) = watch::channel(None);
        let (status_sender, status) = watch::channel(GatewayStatus::default());
        let runtime = runtime::Builder::new_current_thread()
            .max_blocking_threads(MAX_BLOCKING_THREADS)
            .enable_all()
            .build()?;
        let socket = ListeningSocket::default();
        let shared = socket.clone();
        let thread = std::thread::Builder::new().name("gateway".into()).spawn(move || {
            let local = LocalSet::new();
            local.block_on(
                &runtime,
                run(parts, (waiting_queries, shared), (state, status_sender), ended),
            );
            drop(local);
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        })?;
        let (end, thread) = (Some(end), Some(thread));
        Ok(Self { queries, listening, status, socket, end, thread })
    }

    /// Returns a handle for control-plane queries.
    pub fn admin(&self) -> Admin {
        Admin {
            queries: self.queries.clone(),
            listening: self.listening.clone(),
            status: self.status.clone(),
            socket: self.socket.clone(),
        }
    }

    /// Waits until the HTTP listener is bound or has failed, if it is enabled.
    pub async fn wait_until_bound(&self) {
        // After an error, no state will ever be reported.
        let _ = self.listening.clone().wait_for(Option::is_some).await;
    }

    /// Ends the gateway and waits for its thread. Disconnects all clients.
    pub fn shut_down(&mut self, how: Shutdown) {
        self.socket.close();
        if let Some(end) = self.end.take() {
            let _ = end.send(how); // If there is no receiver, the gateway has ended.
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the gateway failed");
        }
    }
}

/// A handle for control-plane queries from any thread.
#[derive(Debug, Clone)]
pub struct Admin {
    queries: mpsc::Sender<AdminQuery>,
    listening: watch::Receiver<Option<ListenState>>,
    status: watch::Receiver<GatewayStatus>,
    socket: ListeningSocket,
}

impl Admin {
    /// Returns the state of the HTTP listener; `None` if it is disabled.
    pub fn listening(&self) -> Option<ListenState> {
        self.listening.borrow().clone()
    }

    /// Returns the socket that listens for HTTP, for a daemon that takes over.
    pub fn listening_socket(&self) -> &ListeningSocket {
        &self.socket
    }

    /// Returns hints on how a server's configuration could be improved, from what its clients meet.
    pub fn advice(&self, server: &ServerName) -> Vec<String> {
        self.status.borrow().advice(server)
    }

    /// Returns the MCP revision negotiated with the second process of a server.
    pub fn protocol_of_second(&self, server: &ServerName) -> Option<String> {
        self.status.borrow().second_protocol_versions.get(server).cloned()
    }

    /// Returns the MCP revision negotiated with a server, while it is connected.
    pub fn protocol(&self, server: &ServerName) -> Option<String> {
        self.status.borrow().protocol_versions.get(server).cloned()
    }

    /// Returns the warnings about profiles, and about what they show to clients.
    pub fn warnings(&self) -> Vec<String> {
        self.status.borrow().warnings.clone()
    }

    /// Returns the limits that recently refused a client, and which client.
    pub fn limit_hits(&self) -> Vec<LimitHit> {
        self.status.borrow().limit_hits.recent(Instant::now())
    }

    /// Returns the number of calls that wait for a server.
    pub fn waiting_calls(&self, server: &ServerName) -> usize {
        let status = self.status.borrow();
        status.waiting.get(server).map_or(0, |waiting| waiting.load(Ordering::Relaxed))
    }

    /// Returns the tools of one server, or of all available ones.
    pub async fn tools(&self, server: Option<String>) -> Result<Vec<Tool>, CallError> {
        self.send_query(|reply| AdminQuery::Tools { server, reply }).await
    }

    /// Calls a tool by its prefixed name. Returns the result as its server wrote it.
    pub async fn call(
        &self,
        name: String,
        arguments: String,
        within: Option<Duration>,
    ) -> Result<Box<RawValue>, CallError> {
        self.send_query(|reply| AdminQuery::Call { name, arguments, within, reply }).await
    }

    /// Sends any request to one server. Returns the complete response, under the given id.
    pub async fn request(&self, ask: RawRequest) -> Result<Box<RawValue>, CallError> {
        self.send_query(|reply| AdminQuery::Request { ask, reply }).await
    }

    /// Sends one instance a request that it must be able to answer. `is_other` selects a different
    /// request than the first time.
    pub async fn round_trip(
        &self,
        key: InstanceKey,
        is_other: bool,
        within: Duration,
    ) -> Result<RoundTrip, CallError> {
        self.send_query(|reply| AdminQuery::RoundTrip { key, is_other, within, reply }).await
    }

    /// Returns the clients of each instance of a server.
    pub async fn users(&self, server: String) -> Result<Users, CallError> {
        self.send_query(|reply| AdminQuery::Users { server, reply }).await
    }

    /// Replaces the profiles. Returns once they are in effect.
    pub async fn set_profiles(&self, profiles: Arc<Profiles>) -> Result<(), CallError> {
        self.send_query(|reply| AdminQuery::Show { profiles, reply }).await
    }

    /// Searches tools by what they do.
    pub async fn search(&self, ask: Search) -> Result<SearchResult, CallError> {
        self.send_query(|reply| AdminQuery::Search { ask, reply }).await
    }

    /// Explains whether a profile shows an item, and why.
    pub async fn explain(&self, ask: Explain) -> Result<ExplainResult, CallError> {
        self.send_query(|reply| AdminQuery::Explain { ask, reply }).await
    }

    /// Returns the gateway's metrics in the format of `/metrics`.
    pub async fn metrics(&self) -> Result<String, CallError> {
        self.send_query(|reply| AdminQuery::Metrics { reply }).await
    }

    async fn send_query<T>(
        &self,
        query: impl FnOnce(oneshot::Sender<Result<T, CallError>>) -> AdminQuery,
    ) -> Result<T, CallError> {
        let ended_error = || CallError::new(ErrorKind::Internal, "the gateway has ended");
        let (reply, answer) = oneshot::channel();
        self.queries.send(query(reply)).await.map_err(|_| ended_error())?;
        answer.await.map_err(|_| ended_error())?
    }
}

async fn run(
    parts: Parts,
    (waiting_queries, socket): (mpsc::Receiver<AdminQuery>, ListeningSocket),
    (state, status): (watch::Sender<Option<ListenState>>, watch::Sender<GatewayStatus>),
    ended: oneshot::Receiver<Shutdown>,
) {
    let Parts {
        connections: Connections(connections),
        local,
        replacement_local,
        http,
        tokens,
        park,
        instances_max,
        manifests_dir,
        state_key,
        control,
        profiles,
        roster,
        changes,
    } = parts;
    let pending_inputs =
        PendingInputs::new(Key::of(state_key.as_bytes()), first_pending_id(), &park);
    let manifests = Manifests::in_folder(manifests_dir);
    let router = Router::new(manifests, control, first_client_id(), status, (pending_inputs, park));
    router.set_instances_max(instances_max);
    router.set_profiles(&profiles);
    // Before the first client connects: the lists of stopped servers are available from the first
    // request on.
    let first = roster.borrow().clone();
    router.restore_servers(first.values().map(|member| &member.settings)).await;
    let local = match local.set_nonblocking(true).and_then(|()| UnixListener::from_std(local)) {
        Ok(local) => local,
        Err(problem) => return tracing::error!(%problem, "the MCP socket cannot be used"),
    };
    let mut parts = JoinSet::new();
    parts.spawn_local(run_connections(router.clone(), connections));
    parts.spawn_local(answer_queries(router.clone(), waiting_queries));
    parts.spawn_local(watch_servers(router.clone(), roster, changes));
    let (closing, closed) = oneshot::channel::<()>();
    let shared = (tokens, state_key, socket);
    let http =
        tokio::task::spawn_local(http_listener::serve(http, shared, router.clone(), state, closed));
    let (stop, stopping) = watch::channel(false);
    let local =
        tokio::task::spawn_local(local::serve(local, replacement_local, router.clone(), stopping));
    if ended.await == Ok(Shutdown::Stop) {
        stop.send_replace(true);
        let _ = local.await; // This has a timeout of its own.
    }
    drop(closing);
    let _ = http.await; // This has a timeout of its own.
    for client in router.clients() {
        client.close();
    }
}

/// Runs the session of each server connection.
async fn run_connections(router: Rc<Router>, mut connections: mpsc::Receiver<Connection>) {
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            Some(connection) = connections.recv() => drop(sessions.spawn_local(upstream_session::run(router.clone(), connection))),
            Some(ended) = sessions.join_next() => if let Err(problem) = ended {
                tracing::error!(%problem, "the session of a server failed");
            },
            else => return,
        }
    }
}

async fn answer_queries(router: Rc<Router>, mut waiting_queries: mpsc::Receiver<AdminQuery>) {
    let mut answers = JoinSet::new();
    loop {
        tokio::select! {
            Some(query) = waiting_queries.recv() => {
                drop(answers.spawn_local(admin::answer(router.clone(), query)));
            }
            Some(_) = answers.join_next() => {}
            else => return,
        }
    }
}

/// Returns the first client id. Instances are named after clients, so the ids of two daemons must
/// differ.
fn first_client_id() -> u64 {
    u64::from(std::process::id()) << 32
}

/// Returns the first id of calls that await client input. Their ids must differ too, as a client
/// may return state from an earlier daemon.
fn first_pending_id() -> u64 {
    let mut bits = [0; 8];
    match getrandom::fill(&mut bits) {
        Ok(()) => u64::from_ne_bytes(bits),
        Err(_) => first_client_id(),
    }
}

/// Keeps the router informed about all servers.
async fn watch_servers(
    router: Rc<Router>,
    mut members: watch::Receiver<Arc<Roster>>,
    mut changes: broadcast::Receiver<StateChange>,
) {
    let first = members.borrow().clone();
    router.manifests.tidy(first.keys().map(ToString::to_string).collect());
    loop {
        let now = members.borrow_and_update().clone();
        router.restore_servers(now.values().map(|member| &member.settings)).await;
        apply_roster(&router, &now);
        tokio::select! {
            more = members.changed() => if more.is_err() { return },
            change = changes.recv() => if matches!(change, Err(broadcast::error::RecvError::Closed)) { return },
        }
        while changes.try_recv().is_ok() {} // The roster covers all changes so far.
    }
}

fn apply_roster(router: &Rc<Router>, members: &Roster) {
    for member in members.values() {
        router.ensure_server(&member.settings).configure(member.settings.clone());
    }
    router.set_owners(members);
    for member in members.values() {
        let server = router.ensure_server(&member.settings);
        let primary = member.owner.as_ref().and_then(|owner| members.get(owner)).unwrap_or(member);
        server.set_progress_reporters(progress_reporters(primary));
        server.set_failure_reporters(failure_reporters(primary));
        router.set_availability(&server, availability(member));
        server.set_down(down_for_clients(member));
        server.set_second_era(second_era(member));
        if let Some(down) = second_down(member) {
            router.second_failed(&server, &down);
        }
        server.fail_hopeless(&retry_times(member));
        server.set_asleep(sleeping_holders(member));
        server.reroute_waiting();
        router.wake_needed(&server);
    }
    for server in router.servers() {
        let is_removed = !members.contains_key(&server.name);
        server.is_removed.set(is_removed);
        if is_removed {
            router.remove(&server);
        }
    }
    router.publish_asking();
}

/// Returns whether a server is available.
fn availability(member: &Member) -> Availability {
    // Instances for single clients start when they are called.
    let shared = match member.settings.isolation {
        Isolation::Shared => member.instances.values().next(),
        Isolation::Client => None,
    };
    let Some(shared) = shared else {
        return match member.wanted {
            Wanted::Up => Availability::Up,
            Wanted::Down => Availability::Down("it was stopped".to_owned()),
        };
    };
    instance_availability(shared)
}

/// Returns the instances for single clients that are down, and why. Other clients are not affected.
fn down_for_clients(member: &Member) -> HashMap<Holder, String> {
    let down = member.instances.iter().filter_map(|(holder, instance)| {
        match (holder, instance_availability(instance)) {
            (Holder::Client(_), Availability::Down(why)) => Some((*holder, why)),
            _ => None,
        }
    });
    down.collect()
}

/// Returns the era of the second process of a server, if it runs or starts with the shared one.
fn second_era(member: &Member) -> Option<Era> {
    member.instances.iter().find_map(|(holder, instance)| {
        let is_idle = matches!(instance.now().state(), ServerState::Asleep | ServerState::Failed);
        holder.era().filter(|_| !is_idle)
    })
}

/// Returns the second process of a server that supports both eras, if it is down.
fn second_down(member: &Member) -> Option<SecondDown> {
    let is_second = |holder: &Holder| member.wanted == Wanted::Up && holder.era().is_some();
    let mut seconds = member.instances.iter().filter(|(holder, _)| is_second(holder));
    seconds.find_map(|(holder, instance)| {
        let (holder, is_retried) = (*holder, start_failed(instance));
        let why = match instance_availability(instance) {
            Availability::Down(why) => why,
            Availability::Up if is_retried => instance.now().life.reason.to_string(),
            Availability::Up => return None,
        };
        Some(SecondDown { holder, why, is_retried })
    })
}

/// Returns whether an instance is available, or will be once it is used.
fn instance_availability(instance: &InstanceHandle) -> Availability {
    let now = instance.now();
    match now.state() {
        ServerState::Starting
        | ServerState::Running
        | ServerState::Restarting
        | ServerState::Asleep => Availability::Up,
        ServerState::Stopping if now.life.wanted == Wanted::Up => Availability::Up,
        ServerState::Stopped | ServerState::Failed | ServerState::Stopping => {
            Availability::Down(now.life.reason.to_string())
        }
    }
}
