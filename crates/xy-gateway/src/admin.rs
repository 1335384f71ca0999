//! What people ask through the daemon: the tools there are, one call, one raw request.
//!
//! Whoever asks is a client like any other, for as long as the question lasts.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use xy_config::settings::{Isolation, Profiles};
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Message, Outcome, text_of};
use xy_protocol::control::{
    Explain, Explained, FoundEntry, FoundTools, Search, quoted as shortened,
};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{InstanceClients, ServerName};
use xy_supervisor::instance::{Holder, InstanceKey};

use crate::backend::{ADVICE, Availability, Backend, STOPPED, instance_failed};
use crate::catalog::Kind;
use crate::client::Visibility;
use crate::client::dispatch::PATIENCE;
use crate::era;
use crate::frontend::{
    Accepted, ClientSession, Entry, Frontend, Lifetime, Responder, Route, StreamNo, View,
};
use crate::gateway::RawRequest;
use crate::http::HttpStatus as _;
use crate::limit_hits::LimitHits;
use crate::names::quoted;
use crate::params::Params;
use crate::reply;
use crate::router::{DEFAULT_HITS, FoundTool, Router};
use crate::upstream::{RoundTrip, UNFRAMED, Upstream};

/// What is to be shown of servers, as it is.
#[derive(Debug, Default)]
pub(crate) struct GatewayStatus {
    /// The servers whose clients take turns.
    pub(crate) asking: BTreeSet<ServerName>,
    /// The servers that write messages over several lines.
    pub(crate) unframed: BTreeSet<ServerName>,
    /// The revision that is spoken with each.
    pub(crate) spoken: BTreeMap<ServerName, String>,
    /// The revision that is spoken with the second process of each, if it has one.
    pub(crate) spoken_by_second: BTreeMap<ServerName, String>,
    /// How many calls wait for each.
    pub(crate) waiting: BTreeMap<ServerName, Arc<AtomicUsize>>,
    /// What is odd about profiles, and about what clients are shown by them.
    pub(crate) warnings: Vec<String>,
    /// Which limits kept somebody out lately.
    pub(crate) limit_hits: LimitHits,
}

impl GatewayStatus {
    /// How the configuration of a server, or the server itself, could be better.
    pub(crate) fn advice(&self, server: &ServerName) -> Vec<String> {
        let asks = self.asking.contains(server).then(|| {
            format!("it asks its clients questions, so they are served one at a time: {ADVICE}")
        });
        let unframed = self.unframed.contains(server).then(|| UNFRAMED.to_owned());
        asks.into_iter().chain(unframed).collect()
    }
}

/// What can be asked.
#[derive(Debug)]
pub(crate) enum AdminQuery {
    /// The tools of one server, or of all.
    Tools { server: Option<String>, reply: Reply<Vec<Tool>> },
    /// One call of a tool, by its name outside.
    Call { name: String, arguments: String, within: Option<Duration>, reply: Reply<Box<RawValue>> },
    /// Any request to one server.
    Request { ask: RawRequest, reply: Reply<Box<RawValue>> },
    /// Whether one instance answers; `is_other` asks it another question.
    RoundTrip { key: InstanceKey, is_other: bool, within: Duration, reply: Reply<RoundTrip> },
    /// Who uses which instance of a server.
    Users { server: String, reply: Reply<Users> },
    /// What profiles show from now on.
    Show { profiles: Arc<Profiles>, reply: Reply<()> },
    /// Tools by what they do.
    Search { ask: Search, reply: Reply<FoundTools> },
    /// Whether a profile shows something, and why.
    Explain { ask: Explain, reply: Reply<Explained> },
    /// The gateway's numbers, as `/metrics` writes them.
    Numbers { reply: Reply<String> },
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, CallError>>;

/// Which clients use each instance: how many call themselves the same.
pub type Users = BTreeMap<Holder, Vec<InstanceClients>>;

/// One tool.
#[derive(Debug, Clone, Serialize)]
pub struct Tool {
    /// What it is called outside.
    pub name: String,
    /// Whose it is.
    pub server: String,
    /// What its server wrote of it.
    pub tool: Box<RawValue>,
}

/// Answers one question; the asker may leave.
pub(crate) async fn answer(router: Rc<Router>, question: AdminQuery) {
    match question {
        AdminQuery::Tools { server, reply } => {
            drop(reply.send(tools(&router, server.as_deref()).await));
        }
        AdminQuery::Call { name, arguments, within, mut reply } => {
            let calling = call(&router, &name, &arguments, within);
            tokio::select! {
                called = calling => drop(reply.send(called)),
                () = reply.closed() => {}
            }
        }
        AdminQuery::Request { ask, mut reply } => {
            let asking = request(&router, &ask);
            tokio::select! {
                answered = asking => drop(reply.send(answered.and_then(|it| with_id(&it, &ask.id)))),
                () = reply.closed() => {}
            }
        }
        AdminQuery::RoundTrip { key, is_other, within, reply } => {
            drop(reply.send(Ok(round_trip(&router, &key, is_other, within).await)));
        }
        AdminQuery::Users { server, reply } => drop(reply.send(Ok(users(&router, &server)))),
        AdminQuery::Show { profiles, reply } => {
            router.set_profiles(&profiles);
            drop(reply.send(Ok(())));
        }
        AdminQuery::Search { ask, reply } => drop(reply.send(Ok(search(&router, &ask)))),
        AdminQuery::Explain { ask, reply } => drop(reply.send(router.explain(&ask))),
        AdminQuery::Numbers { reply } => {
            let mut numbers = String::new();
            router.metrics(&mut numbers);
            drop(reply.send(Ok(numbers)));
        }
    }
}

/// Who uses which instance of a server. Those who do not stay are one, if the door cannot tell
/// them apart.
fn users(router: &Rc<Router>, server: &str) -> Users {
    let Some(server) = router.server(server) else { return Users::new() };
    let name_of = |number: u64| -> Option<String> {
        let info = match router.client(number) {
            Some(client) => client.greeted().and_then(|it| it.info),
            None => Some(router.info_of_house(number)?),
        };
        let name = info.as_deref().and_then(|info| Params::read(Some(info)).name());
        Some(name.and_then(text_of).map(|name| shortened(&name)).unwrap_or_default())
    };
    let of_one = |upstream: &Rc<Upstream>| {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for name in upstream.users().into_iter().filter_map(name_of) {
            *counts.entry(name).or_default() += 1;
        }
        let clients = counts.into_iter().map(|(name, count)| InstanceClients { name, count });
        (upstream.key().holder, clients.collect::<Vec<_>>())
    };
    let mut users = Users::new();
    for upstream in server.all_upstreams() {
        let (holder, clients) = of_one(&upstream);
        // Two sessions with one HTTP server are one instance.
        let is_session = holder.era().is_some() && !server.may_split();
        users.entry(if is_session { Holder::Shared } else { holder }).or_default().extend(clients);
    }
    users
}

/// Asks the very instance, and no other: nobody is started for it.
async fn round_trip(
    router: &Rc<Router>,
    key: &InstanceKey,
    is_other: bool,
    within: Duration,
) -> RoundTrip {
    let living = router.server(key.server.as_str()).map(|server| server.own_upstreams());
    match living.into_iter().flatten().find(|upstream| upstream.key() == key) {
        Some(upstream) => upstream.round_trip(is_other, within).await,
        None => RoundTrip::Nobody,
    }
}

async fn tools(router: &Rc<Router>, only: Option<&str>) -> Result<Vec<Tool>, CallError> {
    if let Some(name) = only {
        find(router, name)?;
    }
    let is_meant = |server: &Rc<Backend>| only.is_none_or(|only| only == server.name.as_str());
    // Those for one client alone are not there for us to be waited for.
    let is_unknown = |server: &Rc<Backend>| {
        let is_shared = server.settings.borrow().isolation == Isolation::Shared;
        is_shared && server.is_shown() && server.known.borrow().is_none()
    };
    for server in router.servers().iter().filter(|it| is_meant(it) && is_unknown(it)) {
        router.want_for(server, Holder::Shared);
    }
    let mut news = router.news();
    let _ = timeout(PATIENCE, async {
        while router.servers().iter().filter(|it| is_meant(it)).any(is_unknown) {
            if news.changed().await.is_err() {
                return;
            }
        }
    })
    .await; // What is not known by then is not shown.
    let mut all = Vec::new();
    for server in router.servers().iter().filter(|it| is_meant(it)) {
        let Some(known) = server.shown() else { continue };
        let items = known.lists.of(Kind::Tools);
        for shown in known.shown(Kind::Tools) {
            let Some(item) = items.get(shown.place) else { continue };
            let Ok(tool) = RawValue::from_string(item.raw.to_string()) else { continue };
            let (name, server) = (shown.name.to_string(), server.name.to_string());
            all.push(Tool { name, server, tool });
        }
    }
    Ok(all)
}

/// Tools by what they do, for who may see all of them.
fn search(router: &Rc<Router>, ask: &Search) -> FoundTools {
    let scope = ask.profile.as_deref().and_then(|profile| router.scope(profile));
    let visibility = scope.map_or(Visibility::All, Visibility::Scope);
    let (limit, server) = (ask.limit.unwrap_or(DEFAULT_HITS), ask.server.as_deref());
    let found = router.find_through(&visibility, &ask.query, limit, server);
    let entry = |it: FoundTool| {
        let FoundTool { name, server, description, score } = it;
        FoundEntry { name, server, description, score }
    };
    FoundTools { tools: found.into_iter().map(entry).collect() }
}

async fn call(
    router: &Rc<Router>,
    name: &str,
    arguments: &str,
    within: Option<Duration>,
) -> Result<Box<RawValue>, CallError> {
    let params = format!(r#"{{"name":{},"arguments":{arguments}}}"#, quoted(name));
    let visit = Visit::begin(router, View::All)?;
    let answer = visit.ask("tools/call", Some(&params), within).await?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    match envelope::parse(text.as_bytes()) {
        Ok(Message::Answer { outcome: Outcome::Result(result), .. }) => raw(result.to_owned()),
        Ok(Message::Answer { outcome: Outcome::Error(error), .. }) => {
            Err(visit.fault().unwrap_or_else(|| fault(error)))
        }
        _ => Err(unreadable(&text)),
    }
}

async fn request(router: &Rc<Router>, ask: &RawRequest) -> Result<String, CallError> {
    let server = find(router, &ask.server)?;
    if let Availability::Down(why) = &*server.standing.borrow() {
        return Err(server.down(why));
    }
    if server.is_hidden() {
        return Err(server.down(STOPPED));
    }
    let give_up_at = Instant::now() + ask.within;
    let upstream = if ask.is_started {
        started(router, &server, ask.holder, give_up_at).await?
    } else {
        server.upstream(ask.holder).ok_or_else(|| server.not_yet())?
    };
    let under = |fault| reply::under(&server.name, &upstream.key().server, &fault);
    let question = upstream.ask_any(&ask.method, ask.params.as_deref()).map_err(under)?;
    match timeout_at(give_up_at, question.answer()).await {
        Ok(answer) => Ok(answer.map_err(under)?.into()),
        Err(_) => Err(too_late(&ask.method, ask.within)),
    }
}

/// Waits until an instance that was started can be asked.
async fn started(
    router: &Rc<Router>,
    server: &Rc<Backend>,
    holder: Holder,
    give_up_at: Instant,
) -> Result<Rc<Upstream>, CallError> {
    let mut news = router.news();
    loop {
        if let Some(upstream) = server.upstream(holder) {
            return Ok(upstream);
        }
        if let Some(trouble) = server.trouble(holder) {
            return Err(instance_failed(&server.name, &trouble));
        }
        if !matches!(timeout_at(give_up_at, news.changed()).await, Ok(Ok(()))) {
            return Err(server.not_yet());
        }
    }
}

/// A client of our own, for one question.
struct Visit {
    client_session: Rc<dyn ClientSession>,
    answer: Rc<OneAnswer>,
}

/// The stream of the question, which is not that of the greeting.
const QUESTION: StreamNo = 1;

/// Hears the answer to one request.
#[derive(Default)]
struct OneAnswer {
    waiting: RefCell<Option<oneshot::Sender<Vec<u8>>>>,
    /// Why there is none, if xy itself says so.
    fault: RefCell<Option<CallError>>,
}

impl Responder for OneAnswer {
    fn put(&self, message: &[u8], to: Route) {
        // Much else may be said before it: the answer to the greeting, progress, logs.
        if to == Route::Answer(QUESTION)
            && let Some(waiting) = self.waiting.borrow_mut().take()
        {
            let _ = waiting.send(message.to_vec()); // Whoever asked may have left.
        }
    }

    fn fails(&self, fault: &CallError, stream: StreamNo) {
        if stream == QUESTION && self.waiting.borrow().is_some() {
            *self.fault.borrow_mut() = Some(fault.clone());
        }
    }
}

impl Visit {
    fn begin(router: &Rc<Router>, view: View) -> Result<Self, CallError> {
        let answer = Rc::new(OneAnswer::default());
        let entry =
            Entry { view, may_manage: true, lifetime: Lifetime::Session, who: 0, bound: None };
        let client_session = router
            .open(entry, answer.clone())
            .map_err(|refusal| CallError::new(ErrorKind::ServerNotFound, refusal.to_string()))?;
        let visit = Self { client_session, answer };
        let greeting = era::greeting(era::LATEST, "{}", None);
        let hello = format!(
            r#"{{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{greeting}}}"#
        );
        let _ = visit.client_session.handle(hello.as_bytes(), 0); // Its answer tells us nothing.
        Ok(visit)
    }

    async fn ask(
        &self,
        method: &str,
        params: Option<&str>,
        within: Option<Duration>,
    ) -> Result<Vec<u8>, CallError> {
        let (waiting, answered) = oneshot::channel();
        *self.answer.waiting.borrow_mut() = Some(waiting);
        let params = params.map(|params| format!(r#","params":{params}"#)).unwrap_or_default();
        let method_text = quoted(method);
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":{method_text}{params}}}"#);
        if let Accepted::Refused(error) = self.client_session.handle(text.as_bytes(), QUESTION) {
            return Ok(error);
        }
        let gone = || CallError::new(ErrorKind::Internal, "the gateway has ended");
        match within {
            None => answered.await.map_err(|_| gone()),
            Some(within) => match timeout(within, answered).await {
                Ok(answer) => answer.map_err(|_| gone()),
                Err(_) => Err(too_late(method, within)),
            },
        }
    }
}

impl Visit {
    /// Why there is no answer, if xy itself said so.
    fn fault(&self) -> Option<CallError> {
        self.answer.fault.borrow().clone()
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.client_session.close(); // What is still asked is cancelled.
    }
}

/// A whole answer under another id.
fn with_id(answer: &str, id: &str) -> Result<Box<RawValue>, CallError> {
    let Ok(Message::Answer { id: Some(ours), .. }) = envelope::parse(answer.as_bytes()) else {
        return raw(answer.to_owned());
    };
    let mut edits = Edits::of(answer.as_bytes());
    edits.replace(ours, id);
    raw(String::from_utf8_lossy(&edits.to_vec()).into_owned())
}

fn find(router: &Rc<Router>, name: &str) -> Result<Rc<Backend>, CallError> {
    router.server(name).ok_or_else(|| {
        let message = format!("no server named `{}`", shortened(name));
        CallError::new(ErrorKind::ServerNotFound, message).hint("`xy list` shows all servers")
    })
}

fn too_late(method: &str, within: Duration) -> CallError {
    CallError::new(
        ErrorKind::TimedOut,
        format!("`{}` was not answered within {}", shortened(method), reply::time(within)),
    )
    .cause("it has been cancelled; whether the server has done it is not known")
    .hint("give it more time with `--timeout`")
}

/// A JSON-RPC error as one of ours, of whichever side.
fn fault(error: &str) -> CallError {
    #[derive(serde::Deserialize)]
    struct Wire {
        #[serde(default)]
        code: i64,
        #[serde(default)]
        message: String,
    }
    let Ok(Wire { code, message }) = serde_json::from_str(error) else { return unreadable(error) };
    let kind = i32::try_from(code).map_or(ErrorKind::Internal, ErrorKind::from_code);
    CallError::new(kind, message)
}

fn raw(text: String) -> Result<Box<RawValue>, CallError> {
    RawValue::from_string(text).map_err(|problem| unreadable(&problem.to_string()))
}

fn unreadable(what: &str) -> CallError {
    CallError::new(ErrorKind::Internal, "the answer could not be read").cause(shortened(what))
}
