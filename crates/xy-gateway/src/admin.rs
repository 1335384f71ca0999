//! Queries of the control plane into the gateway: list tools, call one, send a raw request.
//!
//! Each call uses a client session of its own, which ends with the query.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use xy_config::settings::{Isolation, Profiles};
use xy_http::HttpStatus as _;
use xy_http::frontend::{
    ClientSession, Disposition, Entry, Frontend, Lifetime, Responder, Route, StreamNo, View,
};
use xy_mcp::edit::{Edits, quoted};
use xy_mcp::envelope::{self, Message, Outcome, text_of};
use xy_mcp::kind::Kind;
use xy_mcp::params::Params;
use xy_mcp::{era, reply, revision};
use xy_protocol::control::{
    Explain, ExplainResult, Search, SearchEntry, SearchResult, quoted as shortened,
};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::InstanceClients;
use xy_supervisor::instance::{Holder, InstanceKey};
use xy_upstream::connection::RoundTrip;
use xy_upstream::fault::ServerFault;

use crate::backend::{Availability, Backend, STOPPED};
use crate::client::dispatch::LIST_TIMEOUT;
use crate::router::{DEFAULT_HITS, FoundTool, Router};
use crate::upstream::Upstream;
use crate::visibility::Visibility;

/// An arbitrary request to one server.
#[derive(Debug, Clone)]
pub struct RawRequest {
    /// The server.
    pub server: String,
    /// The instance of the server.
    pub holder: Holder,
    /// Whether the instance was started for this request, so that the request waits for it.
    pub is_started: bool,
    /// The method.
    pub method: String,
    /// The text of the params.
    pub params: Option<String>,
    /// The id of the response, as JSON text.
    pub id: String,
    /// The timeout.
    pub within: Duration,
}

/// A query into the gateway.
#[derive(Debug)]
pub(crate) enum AdminQuery {
    /// Lists the tools of one server, or of all.
    Tools { server: Option<String>, reply: Reply<Vec<Tool>> },
    /// Calls a tool by its exposed name.
    Call { name: String, arguments: String, within: Option<Duration>, reply: Reply<Box<RawValue>> },
    /// Sends any request to one server.
    Request { ask: RawRequest, reply: Reply<Box<RawValue>> },
    /// Checks that an instance answers; `is_other` selects the other kind of probe.
    RoundTrip { key: InstanceKey, is_other: bool, within: Duration, reply: Reply<RoundTrip> },
    /// Lists the users of each instance of a server.
    Users { server: String, reply: Reply<Users> },
    /// Replaces the profiles.
    Show { profiles: Arc<Profiles>, reply: Reply<()> },
    /// Searches tools.
    Search { ask: Search, reply: Reply<SearchResult> },
    /// Explains whether and why a profile shows an item.
    Explain { ask: Explain, reply: Reply<ExplainResult> },
    /// Returns the metrics, in the format of `/metrics`.
    Metrics { reply: Reply<String> },
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, CallError>>;

/// The clients of each instance, counted by name.
pub type Users = BTreeMap<Holder, Vec<InstanceClients>>;

/// One tool.
#[derive(Debug, Clone, Serialize)]
pub struct Tool {
    /// The exposed name.
    pub name: String,
    /// The server.
    pub server: String,
    /// The definition that the server wrote.
    pub tool: Box<RawValue>,
}

/// Answers one query; the caller may leave before.
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
        AdminQuery::Metrics { reply } => {
            let mut numbers = String::new();
            router.metrics(&mut numbers);
            drop(reply.send(Ok(numbers)));
        }
    }
}

/// Returns the users of each instance of a server. A group of one-request clients counts as one.
fn users(router: &Rc<Router>, server: &str) -> Users {
    let Some(server) = router.server(server) else { return Users::new() };
    let name_of = |number: u64| -> Option<String> {
        let name = if let Some(client) = router.client(number) {
            client.name()
        } else {
            let info = router.group_info(number)?;
            Params::read(Some(&info)).name().and_then(text_of).map(Into::into)
        };
        Some(name.map(|name| shortened(&name)).unwrap_or_default())
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

/// Probes exactly this instance. Never starts one.
async fn round_trip(
    router: &Rc<Router>,
    key: &InstanceKey,
    is_other: bool,
    within: Duration,
) -> RoundTrip {
    let living = router.server(key.server.as_str()).map(|server| server.own_upstreams());
    match living.into_iter().flatten().find(|upstream| upstream.key() == key) {
        Some(upstream) => upstream.round_trip(is_other, within).await,
        None => RoundTrip::NotConnected,
    }
}

async fn tools(router: &Rc<Router>, only: Option<&str>) -> Result<Vec<Tool>, CallError> {
    if let Some(name) = only {
        find(router, name)?;
    }
    let is_meant = |server: &Rc<Backend>| only.is_none_or(|only| only == server.name.as_str());
    // Isolated instances need a client and are not started for this.
    let is_unknown = |server: &Rc<Backend>| {
        let is_shared = server.settings.borrow().isolation == Isolation::Shared;
        is_shared && server.is_shown() && server.known.borrow().is_none()
    };
    for server in router.servers().iter().filter(|it| is_meant(it) && is_unknown(it)) {
        router.request_instance_for(server, Holder::Shared);
    }
    let mut changes = router.changes();
    let _ = timeout(LIST_TIMEOUT, async {
        while router.servers().iter().filter(|it| is_meant(it)).any(is_unknown) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    })
    .await; // Servers that are unknown by then are omitted.
    let mut all = Vec::new();
    for server in router.servers().iter().filter(|it| is_meant(it)) {
        let Some(known) = server.shown() else { continue };
        let items = known.lists.of(Kind::Tools);
        for shown in known.exposed(Kind::Tools) {
            let Some(item) = items.get(shown.index) else { continue };
            let Ok(tool) = RawValue::from_string(item.raw.to_string()) else { continue };
            let (name, server) = (shown.name.to_string(), server.name.to_string());
            all.push(Tool { name, server, tool });
        }
    }
    Ok(all)
}

/// Searches tools for an operator.
fn search(router: &Rc<Router>, ask: &Search) -> SearchResult {
    let scope = ask.profile.as_deref().and_then(|profile| router.scope(profile));
    let visibility = scope.map_or(Visibility::All, Visibility::Scope);
    let (limit, server) = (ask.limit.unwrap_or(DEFAULT_HITS), ask.server.as_deref());
    let found = router.find_tools_in(&visibility, &ask.query, limit, server);
    let entry = |it: FoundTool| {
        let FoundTool { name, server, description, score } = it;
        SearchEntry { name, server, description, score }
    };
    SearchResult { tools: found.into_iter().map(entry).collect() }
}

async fn call(
    router: &Rc<Router>,
    name: &str,
    arguments: &str,
    within: Option<Duration>,
) -> Result<Box<RawValue>, CallError> {
    let params = format!(r#"{{"name":{},"arguments":{arguments}}}"#, quoted(name));
    let client = AdminClient::begin(router, View::All)?;
    let answer = client.ask("tools/call", Some(&params), within).await?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    match envelope::parse(text.as_bytes()) {
        Ok(Message::Response { outcome: Outcome::Result(result), .. }) => raw(result.to_owned()),
        Ok(Message::Response { outcome: Outcome::Error(error), .. }) => {
            Err(client.fault().unwrap_or_else(|| fault(error)))
        }
        _ => Err(unreadable(&text)),
    }
}

async fn request(router: &Rc<Router>, ask: &RawRequest) -> Result<String, CallError> {
    let server = find(router, &ask.server)?;
    if let Availability::Down(why) = &*server.availability.borrow() {
        return Err(server.down(why));
    }
    if server.is_hidden() {
        return Err(server.down(STOPPED));
    }
    let give_up_at = Instant::now() + ask.within;
    let upstream = if ask.is_started {
        wait_until_started(router, &server, ask.holder, give_up_at).await?
    } else {
        server.upstream(ask.holder).ok_or_else(|| server.not_yet())?
    };
    let under = |fault: ServerFault| fault.named(&server.name);
    let question = upstream.ask_for_admin(&ask.method, ask.params.as_deref()).map_err(under)?;
    match timeout_at(give_up_at, question.answer()).await {
        Ok(answer) => Ok(answer.map_err(under)?.into()),
        Err(_) => Err(timed_out(&ask.method, ask.within)),
    }
}

/// Waits until an instance that was started is ready.
async fn wait_until_started(
    router: &Rc<Router>,
    server: &Rc<Backend>,
    holder: Holder,
    give_up_at: Instant,
) -> Result<Rc<Upstream>, CallError> {
    let mut changes = router.changes();
    loop {
        if let Some(upstream) = server.upstream(holder) {
            return Ok(upstream);
        }
        if let Some(failure) = server.failure(holder) {
            return Err(ServerFault::InstanceFailed(failure).named(&server.name));
        }
        if !matches!(timeout_at(give_up_at, changes.changed()).await, Ok(Ok(()))) {
            return Err(server.not_yet());
        }
    }
}

/// A client session of xy itself, for one request.
struct AdminClient {
    client_session: Rc<dyn ClientSession>,
    answer: Rc<ResponseSlot>,
}

/// The stream of the request, distinct from that of the handshake.
const REQUEST_STREAM: StreamNo = 1;

/// Receives the response to one request.
#[derive(Default)]
struct ResponseSlot {
    waiting: RefCell<Option<oneshot::Sender<Vec<u8>>>>,
    /// The error, if xy itself fails the request.
    fault: RefCell<Option<CallError>>,
}

impl Responder for ResponseSlot {
    fn put(&self, message: &[u8], to: Route) {
        // Other messages may precede it: the handshake's response, progress, logs.
        if to == Route::Response(REQUEST_STREAM)
            && let Some(waiting) = self.waiting.borrow_mut().take()
        {
            let _ = waiting.send(message.to_vec()); // The caller may have left.
        }
    }

    fn report_error(&self, fault: &CallError, stream: StreamNo) {
        if stream == REQUEST_STREAM && self.waiting.borrow().is_some() {
            *self.fault.borrow_mut() = Some(fault.clone());
        }
    }
}

impl AdminClient {
    fn begin(router: &Rc<Router>, view: View) -> Result<Self, CallError> {
        let answer = Rc::new(ResponseSlot::default());
        let entry = Entry {
            view,
            may_manage: true,
            lifetime: Lifetime::Session,
            principal: 0,
            bound: None,
        };
        let client_session = router
            .open(entry, answer.clone())
            .map_err(|refusal| CallError::new(ErrorKind::ServerNotFound, refusal.to_string()))?;
        let client = Self { client_session, answer };
        let params = era::initialize_params(revision::LATEST, "{}", None);
        let hello =
            format!(r#"{{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{params}}}"#);
        let _ = client.client_session.handle(hello.as_bytes(), 0); // The response is not needed.
        Ok(client)
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
        if let Disposition::Rejected(error) =
            self.client_session.handle(text.as_bytes(), REQUEST_STREAM)
        {
            return Ok(error);
        }
        let gone = || CallError::new(ErrorKind::Internal, "the gateway has ended");
        match within {
            None => answered.await.map_err(|_| gone()),
            Some(within) => match timeout(within, answered).await {
                Ok(answer) => answer.map_err(|_| gone()),
                Err(_) => Err(timed_out(method, within)),
            },
        }
    }
}

impl AdminClient {
    /// Returns the error, if xy itself has failed the request.
    fn fault(&self) -> Option<CallError> {
        self.answer.fault.borrow().clone()
    }
}

impl Drop for AdminClient {
    fn drop(&mut self) {
        self.client_session.close(); // Cancels the open request.
    }
}

/// Replaces the id of a response.
fn with_id(answer: &str, id: &str) -> Result<Box<RawValue>, CallError> {
    let Ok(Message::Response { id: Some(upstream_id), .. }) = envelope::parse(answer.as_bytes())
    else {
        return raw(answer.to_owned());
    };
    let mut edits = Edits::of(answer.as_bytes());
    edits.replace(upstream_id, id);
    raw(String::from_utf8_lossy(&edits.to_vec()).into_owned())
}

fn find(router: &Rc<Router>, name: &str) -> Result<Rc<Backend>, CallError> {
    router.server(name).ok_or_else(|| {
        let message = format!("no server named `{}`", shortened(name));
        CallError::new(ErrorKind::ServerNotFound, message).hint("`xy list` shows all servers")
    })
}

fn timed_out(method: &str, within: Duration) -> CallError {
    CallError::new(
        ErrorKind::TimedOut,
        format!(
            "`{}` was not answered within {}",
            shortened(method),
            reply::format_duration(within)
        ),
    )
    .cause("it has been cancelled; whether the server has done it is not known")
    .hint("give it more time with `--timeout`")
}

/// Converts a JSON-RPC error of xy or of a server.
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
