//! The gateway's thread: its runtime, what it is told by the daemon, and the handle that the
//! rest of the daemon holds.

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
use xy_protocol::control::{Explain, Explained, FoundTools, Search};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, ServerState, Wanted};
use xy_supervisor::fleet::{Member, Roster};
use xy_supervisor::instance::{Holder, InstanceHandle, InstanceKey, StateChange};
use xy_supervisor::speak::{Line, Speak};

use crate::admin::{AdminQuery, GatewayStatus, Tool, Users};
use crate::backend::Availability;
use crate::bridge::Key;
use crate::bridge::pending_input::Parked;
use crate::control::Control;
use crate::frontend::ClientSession;
use crate::http::{ListenState, ListeningSocket, TokenWatch};
use crate::limit_hits::LimitHit;
use crate::manifest::Manifests;
use crate::router::Router;
use crate::upstream::RoundTrip;
use crate::{admin, local, upstream_session};

mod coming;
mod web;

use coming::{away, progress, retries, troubles};
pub use web::HttpParts;

/// Lines that wait to be taken up; there is one per life of a server.
const LINES: usize = 1024;

/// Questions that wait to be taken up.
const QUESTIONS: usize = 64;

/// For manifests, and for the names of hosts: one that is not found for a long time must not
/// keep others waiting.
const BLOCKING_THREADS: usize = 8;

/// How long a disk may take at the end: one that hangs must not keep a daemon from ending.
const DISK_WITHIN: Duration = Duration::from_secs(2);

/// What speaks with servers, for whoever starts them.
pub fn speaker() -> (Arc<Speaker>, Lines) {
    let (lines, taken) = mpsc::channel(LINES);
    (Arc::new(Speaker { lines }), Lines(taken))
}

/// Hands servers to the gateway.
#[derive(Debug)]
pub struct Speaker {
    lines: mpsc::Sender<Line>,
}

impl Speak for Speaker {
    fn speak(&self, line: Line) {
        if let Err(problem) = self.lines.try_send(line) {
            tracing::error!(%problem, "a server cannot be spoken with");
        }
    }
}

/// What [`speaker`] hands over.
#[derive(Debug)]
pub struct Lines(mpsc::Receiver<Line>);

/// What a gateway is made of.
pub struct Parts {
    /// From [`speaker`].
    pub lines: Lines,
    /// Where local clients come in.
    pub local: std::os::unix::net::UnixListener,
    /// Where they come in from then on, should that have been lost.
    pub local_again: mpsc::Receiver<std::os::unix::net::UnixListener>,
    /// Where clients come in over HTTP, if they may.
    pub http: Option<HttpParts>,
    /// The tokens that let them in beside those of the rules.
    pub tokens: TokenWatch,
    /// How much may wait for each server, and for how long.
    pub park: ParkSettings,
    /// How many instances there may be at one time.
    pub instances_max: usize,
    /// Where manifests are kept.
    pub manifests_dir: PathBuf,
    /// What is signed with, for clients that come back to another daemon.
    pub key: String,
    /// The daemon around it.
    pub control: Arc<dyn Control>,
    /// What profiles show at first.
    pub profiles: Arc<Profiles>,
    /// All servers, as they are.
    pub roster: watch::Receiver<Arc<Roster>>,
    /// What changes of them.
    pub changes: broadcast::Receiver<StateChange>,
}

/// How a gateway ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Somebody ended the daemon.
    ForGood,
    /// Another daemon goes on.
    ForAnother,
}

/// A running gateway. Dropping it ends the thread, after a while.
#[derive(Debug)]
pub struct Gateway {
    questions: mpsc::Sender<AdminQuery>,
    listening: watch::Receiver<Option<ListenState>>,
    seen: watch::Receiver<GatewayStatus>,
    socket: ListeningSocket,
    end: Option<oneshot::Sender<End>>,
    thread: Option<JoinHandle<()>>,
}

impl Gateway {
    /// Starts the thread.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let (end, ended) = oneshot::channel();
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let (state, listening) = watch::channel(None);
        let (show, seen) = watch::channel(GatewayStatus::default());
        let runtime = runtime::Builder::new_current_thread()
            .max_blocking_threads(BLOCKING_THREADS)
            .enable_all()
            .build()?;
        let socket = ListeningSocket::default();
        let shared = socket.clone();
        let thread = std::thread::Builder::new().name("gateway".into()).spawn(move || {
            let local = LocalSet::new();
            local.block_on(&runtime, run(parts, (asked, shared), (state, show), ended));
            drop(local);
            runtime.shutdown_timeout(DISK_WITHIN);
        })?;
        let (end, thread) = (Some(end), Some(thread));
        Ok(Self { questions, listening, seen, socket, end, thread })
    }

    /// What people at the control socket can ask.
    pub fn admin(&self) -> Admin {
        Admin {
            questions: self.questions.clone(),
            listening: self.listening.clone(),
            seen: self.seen.clone(),
            socket: self.socket.clone(),
        }
    }

    /// Resolves when it is known whether clients can come in over HTTP, if they are meant to.
    pub async fn settled(&self) {
        // An error means that nobody will ever know more.
        let _ = self.listening.clone().wait_for(Option::is_some).await;
    }

    /// Ends it, and waits for that; clients are hung up on.
    pub fn end(&mut self, how: End) {
        self.socket.close();
        if let Some(end) = self.end.take() {
            let _ = end.send(how); // If nobody hears it, it has ended.
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the gateway has failed");
        }
    }
}

/// Where people ask, from any thread.
#[derive(Debug, Clone)]
pub struct Admin {
    questions: mpsc::Sender<AdminQuery>,
    listening: watch::Receiver<Option<ListenState>>,
    seen: watch::Receiver<GatewayStatus>,
    socket: ListeningSocket,
}

/// Any request to one server.
#[derive(Debug, Clone)]
pub struct RawRequest {
    /// Which.
    pub server: String,
    /// Which of its instances.
    pub holder: Holder,
    /// That instance was started for this request: it is waited for.
    pub is_started: bool,
    /// What is asked.
    pub method: String,
    /// The text of its params.
    pub params: Option<String>,
    /// The id of the answer, as it is written.
    pub id: String,
    /// How long that may take.
    pub within: Duration,
}

impl Admin {
    /// Whether clients can come in over HTTP; `None` if they are not meant to.
    pub fn listening(&self) -> Option<ListenState> {
        self.listening.borrow().clone()
    }

    /// Returns the socket that listens for HTTP, for a daemon that takes over.
    pub fn listening_socket(&self) -> &ListeningSocket {
        &self.socket
    }

    /// What could be better about how a server is configured, as its clients meet it.
    pub fn advice(&self, server: &ServerName) -> Vec<String> {
        self.seen.borrow().advice(server)
    }

    /// Returns the revision of MCP that is spoken with the second process of a server.
    pub fn protocol_of_second(&self, server: &ServerName) -> Option<String> {
        self.seen.borrow().spoken_by_second.get(server).cloned()
    }

    /// The revision of MCP that is spoken with a server, while it is.
    pub fn protocol(&self, server: &ServerName) -> Option<String> {
        self.seen.borrow().spoken.get(server).cloned()
    }

    /// What is odd about profiles, and about what clients are shown by them.
    pub fn warnings(&self) -> Vec<String> {
        self.seen.borrow().warnings.clone()
    }

    /// Which limits kept somebody out lately, and whom.
    pub fn limit_hits(&self) -> Vec<LimitHit> {
        self.seen.borrow().limit_hits.recent(Instant::now())
    }

    /// How many calls wait for a server.
    pub fn parked(&self, server: &ServerName) -> usize {
        let seen = self.seen.borrow();
        seen.waiting.get(server).map_or(0, |waiting| waiting.load(Ordering::Relaxed))
    }

    /// The tools of one server, or of all that are there.
    pub async fn tools(&self, server: Option<String>) -> Result<Vec<Tool>, CallError> {
        self.ask(|reply| AdminQuery::Tools { server, reply }).await
    }

    /// Calls a tool by the name it has outside; the result as its server wrote it.
    pub async fn call(
        &self,
        name: String,
        arguments: String,
        within: Option<Duration>,
    ) -> Result<Box<RawValue>, CallError> {
        self.ask(|reply| AdminQuery::Call { name, arguments, within, reply }).await
    }

    /// Asks one server anything; the whole answer, under the given id.
    pub async fn request(&self, ask: RawRequest) -> Result<Box<RawValue>, CallError> {
        self.ask(|reply| AdminQuery::Request { ask, reply }).await
    }

    /// Asks one instance something that it must be able to answer; `is_other` asks something
    /// else than the first time.
    pub async fn round_trip(
        &self,
        key: InstanceKey,
        is_other: bool,
        within: Duration,
    ) -> Result<RoundTrip, CallError> {
        self.ask(|reply| AdminQuery::RoundTrip { key, is_other, within, reply }).await
    }

    /// Which clients use each instance of a server.
    pub async fn users(&self, server: String) -> Result<Users, CallError> {
        self.ask(|reply| AdminQuery::Users { server, reply }).await
    }

    /// Has profiles show this from now on; answers once they do.
    pub async fn show(&self, profiles: Arc<Profiles>) -> Result<(), CallError> {
        self.ask(|reply| AdminQuery::Show { profiles, reply }).await
    }

    /// Tools by what they do.
    pub async fn search(&self, ask: Search) -> Result<FoundTools, CallError> {
        self.ask(|reply| AdminQuery::Search { ask, reply }).await
    }

    /// Whether a profile shows something, and why.
    pub async fn explain(&self, ask: Explain) -> Result<Explained, CallError> {
        self.ask(|reply| AdminQuery::Explain { ask, reply }).await
    }

    /// The gateway's numbers, as `/metrics` writes them.
    pub async fn numbers(&self) -> Result<String, CallError> {
        self.ask(|reply| AdminQuery::Numbers { reply }).await
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<Result<T, CallError>>) -> AdminQuery,
    ) -> Result<T, CallError> {
        let gone = || CallError::new(ErrorKind::Internal, "the gateway has ended");
        let (reply, answer) = oneshot::channel();
        self.questions.send(question(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

async fn run(
    parts: Parts,
    (asked, socket): (mpsc::Receiver<AdminQuery>, ListeningSocket),
    (state, seen): (watch::Sender<Option<ListenState>>, watch::Sender<GatewayStatus>),
    ended: oneshot::Receiver<End>,
) {
    let Parts {
        lines: Lines(lines),
        local,
        local_again,
        http,
        tokens,
        park,
        instances_max,
        manifests_dir,
        key,
        control,
        profiles,
        roster,
        changes,
    } = parts;
    let parked = Parked::new(Key::of(key.as_bytes()), first_parked(), &park);
    let manifests = Manifests::in_folder(manifests_dir);
    let router = Router::new(manifests, control, first_client(), seen, (parked, park));
    router.set_instances_max(instances_max);
    router.set_profiles(&profiles);
    // Before anybody is let in: lists of cold servers are there from the first question on.
    let first = roster.borrow().clone();
    router.recall(first.values().map(|member| &member.settings)).await;
    let local = match local.set_nonblocking(true).and_then(|()| UnixListener::from_std(local)) {
        Ok(local) => local,
        Err(problem) => return tracing::error!(%problem, "the MCP socket cannot be used"),
    };
    let mut parts = JoinSet::new();
    parts.spawn_local(take_lines(router.clone(), lines));
    parts.spawn_local(answer_questions(router.clone(), asked));
    parts.spawn_local(watch_servers(router.clone(), roster, changes));
    let (closing, closed) = oneshot::channel::<()>();
    let shared = (tokens, key, socket);
    let http = tokio::task::spawn_local(web::serve(http, shared, router.clone(), state, closed));
    let (leave, leaving) = watch::channel(false);
    let local = tokio::task::spawn_local(local::serve(local, local_again, router.clone(), leaving));
    if ended.await == Ok(End::ForGood) {
        leave.send_replace(true);
        let _ = local.await; // It has a limit of its own.
    }
    drop(closing);
    let _ = http.await; // It has a limit of its own.
    for client in router.clients() {
        client.close();
    }
}

/// Speaks with each server, from its first word to its last.
async fn take_lines(router: Rc<Router>, mut lines: mpsc::Receiver<Line>) {
    let mut spoken_with = JoinSet::new();
    loop {
        tokio::select! {
            Some(line) = lines.recv() => drop(spoken_with.spawn_local(upstream_session::live(router.clone(), line))),
            Some(ended) = spoken_with.join_next() => if let Err(problem) = ended {
                tracing::error!(%problem, "a conversation with a server has failed");
            },
            else => return,
        }
    }
}

async fn answer_questions(router: Rc<Router>, mut asked: mpsc::Receiver<AdminQuery>) {
    let mut answers = JoinSet::new();
    loop {
        tokio::select! {
            Some(question) = asked.recv() => {
                drop(answers.spawn_local(admin::answer(router.clone(), question)));
            }
            Some(_) = answers.join_next() => {}
            else => return,
        }
    }
}

/// Clients of one daemon and of the next must not be taken for each other: instances are
/// named by them.
fn first_client() -> u64 {
    u64::from(std::process::id()) << 32
}

/// The same for calls that wait for their clients: a state may be older than this daemon.
fn first_parked() -> u64 {
    let mut bits = [0; 8];
    match getrandom::fill(&mut bits) {
        Ok(()) => u64::from_ne_bytes(bits),
        Err(_) => first_client(),
    }
}

/// Keeps what is known of servers as it is.
async fn watch_servers(
    router: Rc<Router>,
    mut members: watch::Receiver<Arc<Roster>>,
    mut changes: broadcast::Receiver<StateChange>,
) {
    let first = members.borrow().clone();
    router.manifests.tidy(first.keys().map(ToString::to_string).collect());
    loop {
        let now = members.borrow_and_update().clone();
        router.recall(now.values().map(|member| &member.settings)).await;
        look_at(&router, &now);
        tokio::select! {
            more = members.changed() => if more.is_err() { return },
            change = changes.recv() => if matches!(change, Err(broadcast::error::RecvError::Closed)) { return },
        }
        while changes.try_recv().is_ok() {} // One look is enough for all that has happened.
    }
}

fn look_at(router: &Rc<Router>, members: &Roster) {
    for member in members.values() {
        router.server_of(&member.settings).configure(member.settings.clone());
    }
    router.set_owners(members);
    for member in members.values() {
        let server = router.server_of(&member.settings);
        let home = member.owner.as_ref().and_then(|owner| members.get(owner)).unwrap_or(member);
        server.set_progress(progress(home));
        server.set_troubles(troubles(home));
        router.set_availability(&server, standing(member));
        server.set_down(down_for_clients(member));
        if let Some((holder, why)) = second_down(member) {
            router.second_failed(&server, holder, &why);
        }
        server.give_up_hopeless(&retries(member));
        server.set_away(away(member));
        server.find_others();
        router.wake_needed(&server);
    }
    for server in router.servers() {
        let is_removed = !members.contains_key(&server.name);
        server.is_removed.set(is_removed);
        if is_removed {
            router.remove(&server);
        }
    }
    router.tell_asking();
}

/// Whether a server is there, or will be.
fn standing(member: &Member) -> Availability {
    // Those for single clients come when they are called.
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
    standing_of(shared)
}

/// The instances for one client each that are not there, and why: that is those clients'
/// trouble alone.
fn down_for_clients(member: &Member) -> HashMap<Holder, String> {
    let down = member.instances.iter().filter_map(|(holder, instance)| {
        match (holder, standing_of(instance)) {
            (Holder::Client(_), Availability::Down(why)) => Some((*holder, why)),
            _ => None,
        }
    });
    down.collect()
}

/// Returns the second process of a server that speaks both eras, if it has failed, and why.
fn second_down(member: &Member) -> Option<(Holder, String)> {
    let seconds = member.instances.iter().filter(|(holder, _)| holder.era().is_some());
    seconds.into_iter().find_map(|(holder, instance)| match standing_of(instance) {
        Availability::Down(why) if member.wanted == Wanted::Up => Some((*holder, why)),
        _ => None,
    })
}

/// Whether an instance is there, or will be once somebody uses it.
fn standing_of(instance: &InstanceHandle) -> Availability {
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
