//! Method dispatch of client requests.
//!
//! - `dispatch/handshake.rs` answers `initialize` and `server/discover`.
//! - `dispatch/lists.rs` answers lists from what is known of all servers.
//! - `dispatch/find.rs` implements the search tools.
//! - `dispatch/send.rs` sends all other requests to their servers.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use xy_catalog::names;
use xy_http::frontend::{StreamNo, View};
use xy_mcp::edit::quoted;
use xy_mcp::envelope::{Message, text_of};
use xy_mcp::era::Era;
use xy_mcp::kind::Kind;
use xy_mcp::level::Level;
use xy_mcp::modern::{self, DISCOVER, LISTEN, RequestError, RequestMeta};
use xy_mcp::params::Reference;
use xy_mcp::{reply, via};
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::{CallError, ErrorKind};
use xy_transport::message_text::MessageText;

use super::error_log::RequestLog;
use super::request::Request;
use super::{Client, OpenRequest, RequestPhase};
use crate::backend::{Backend, STOPPED};
use crate::call::{CallClient, RetryState, outcome_unknown};
use crate::router::unknown_resource;
use crate::tools;
use crate::upstream::call_log::CallLog;

pub(crate) mod find;
mod handshake;
mod lists;
mod scoped;
mod send;

use handshake::introduction_of;
use send::is_task_method;

/// How long a list waits for servers that are not known yet.
pub(crate) const LIST_TIMEOUT: Duration = Duration::from_secs(4);

/// The result of dispatching a request.
pub(super) enum Outcome {
    /// The result, as JSON text.
    Result(String),
    /// The complete response line.
    Response(Vec<u8>),
    /// An error.
    Error(RequestError),
    /// The request stays open in this phase.
    Pending(RequestPhase),
    /// The request needs no further handling.
    Done,
}

/// The target and format of a response.
#[derive(Clone)]
pub(super) struct Reply {
    pub(super) id: Box<str>,
    pub(super) stream: StreamNo,
    /// The method and the server's `serverInfo`, if the client is modern.
    modern: Option<(Box<str>, Option<String>)>,
    /// Set if the response names the daemons behind xy, as the client is another daemon.
    names_daemons: bool,
}

impl Reply {
    /// Returns the response line for `result`.
    fn line(&self, client: &Client, result: &str) -> Vec<u8> {
        let mut result = Cow::Borrowed(result);
        if self.names_daemons {
            let is_gateway = !matches!(client.entry.view, View::Server(_));
            let behind = client.router.daemons_behind(client);
            result = Cow::Owned(via::marked(&result, &behind, is_gateway));
        }
        let result = &*result;
        match &self.modern {
            None => reply::result(&self.id, result),
            Some((method, info)) => {
                reply::result(&self.id, &modern::complete_own(result, method, info.as_deref()))
            }
        }
    }

    pub(super) fn answer(&self, client: &Client, outcome: Result<String, CallError>) {
        match outcome {
            Ok(result) => client.respond(&self.id, self.stream, &self.line(client, &result)),
            Err(fault) => client.respond_error(&self.id, self.stream, &fault),
        }
    }
}

impl Client {
    /// Dispatches a request and sends its response, now or later.
    pub(super) fn request(&self, request: &Request<'_>) {
        let (id, stream) = (request.id, request.stream);
        match self.dispatch(request) {
            Ok(Outcome::Result(result)) => {
                self.send_response(&self.reply_to(request).line(self, &result), stream);
            }
            Ok(Outcome::Response(line)) => self.send_response(&line, stream),
            Ok(Outcome::Error(error)) => {
                self.log_failed(request, "refused", error.code);
                self.send_response(&error.line(id), stream);
            }
            Ok(Outcome::Done) => {}
            Ok(Outcome::Pending(phase)) => {
                let before = self.open.borrow_mut().remove(id).and_then(|it| it.log);
                let log = before.or_else(|| RequestLog::begin(request));
                self.open.borrow_mut().insert(id.into(), OpenRequest { phase, stream, log });
            }
            Err(fault) => {
                let is_unknown = request.retry_state.was_written;
                let fault = if is_unknown { outcome_unknown(&fault, None) } else { fault };
                let code = reply::code(fault.kind).into();
                self.log_failed(request, &format!("{:?}", fault.kind), code);
                self.send_response(&reply::fault(id, &fault), stream);
            }
        }
    }

    fn reply_to(&self, request: &Request<'_>) -> Reply {
        let modern =
            request.request_meta.as_ref().map(|_| (request.method.into(), self.server_info()));
        let describes_server = matches!(request.method, "initialize" | DISCOVER)
            || Kind::listed_by(request.method).is_some();
        let names_daemons = describes_server && self.is_daemon();
        Reply { id: request.id.into(), stream: request.stream, modern, names_daemons }
    }

    /// Returns the `serverInfo` of the server whose endpoint the client uses, as JSON text.
    fn server_info(&self) -> Option<String> {
        let View::Server(name) = &self.entry.view else { return None };
        let server = self.router.server(name)?;
        let living = server.upstream(server.holder(self)).and_then(|it| it.introduction());
        match living {
            Some(living) => living.info.clone(),
            None => server.known_to(self)?.introduction.info.clone(),
        }
    }

    /// Dispatches a request again, without retry history.
    pub(crate) fn redispatch(&self, id: &str, text: &[u8], stream: StreamNo) {
        self.redispatch_with(id, text.into(), stream, RetryState::default());
    }

    /// Dispatches a request again with its retry history.
    pub(super) fn redispatch_with(
        &self,
        id: &str,
        text: MessageText<'_>,
        stream: StreamNo,
        retry_state: RetryState,
    ) {
        if self.is_closed.get() {
            return;
        }
        self.open.borrow_mut().remove(id);
        if let Ok(Message::Request { id, method, params }) = text.message() {
            // The text was a valid request before.
            let params = (params, text.checked_params(params));
            let _ = self.handle_request(text, id, &method, params, stream, retry_state);
        }
    }

    /// Dispatches what differs for modern requests; returns `None` for the common methods.
    fn dispatch_modern(
        &self,
        request: &Request<'_>,
        request_meta: &RequestMeta,
    ) -> Result<Option<Outcome>, CallError> {
        match request.method {
            DISCOVER => return Ok(Some(self.discover(request))),
            LISTEN => {
                self.check_profile()?;
                if let View::Server(name) = &self.entry.view {
                    self.check_bound(name)?;
                }
                return self.listen(request).map(Some);
            }
            "initialize"
            | "ping"
            | "logging/setLevel"
            | "resources/subscribe"
            | "resources/unsubscribe" => return Err(no_method(request.method)),
            _ => {}
        }
        if let Some(level) = request_meta.level {
            self.router.raise_log_level(level);
        }
        let Some(state) = request.params.state() else { return Ok(None) };
        // A profile may hide by now what waits for the client.
        if self.is_still_shown(request) { self.resume(request, state) } else { Ok(None) }
    }

    fn dispatch(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        if let Some(outcome) = self.dispatch_search(request) {
            return outcome;
        }
        if let Some(request_meta) = &request.request_meta
            && let Some(outcome) = self.dispatch_modern(request, request_meta)?
        {
            return Ok(outcome);
        }
        match request.method {
            "initialize" => return self.initialize(request),
            "ping" => return Ok(Outcome::Result("{}".to_owned())),
            "logging/setLevel" => return self.set_level(request),
            _ => {}
        }
        match &self.entry.view {
            View::Server(name) => self.dispatch_to_server(request, &name.clone()),
            View::Profile(_) | View::All => self.dispatch_to_all(request),
        }
    }

    /// Dispatches a request at the endpoint of one server.
    fn dispatch_to_server(&self, request: &Request<'_>, name: &str) -> Result<Outcome, CallError> {
        self.check_bound(name)?;
        let server = self.router.server(name).ok_or_else(|| server_removed(name))?;
        if let Some(kind) = Kind::listed_by(request.method) {
            self.set_list_version(kind, self.router.plain_list_version(kind, self, &server));
        }
        let holder = server.holder(self);
        let living = server.upstream(holder);
        // Answer the list of another xy from what is known, to hide its management tools.
        let is_gateway =
            living.as_ref().and_then(|it| it.introduction()).is_some_and(|it| it.is_gateway);
        if let Some(kind) = Kind::listed_by(request.method)
            && request.params.cursor().is_none()
            && (living.is_none() || (is_gateway && kind == Kind::Tools))
            // The resources of an isolated instance are not remembered for other clients.
            && (!holder.is_client() || kind != Kind::Resources)
            && let Some(known) = server.shown_to(self)
        {
            let items: Vec<&str> = known.lists.of(kind).iter().map(|item| &*item.raw).collect();
            return Ok(Outcome::Result(format!(r#"{{"{}":[{}]}}"#, kind.key(), items.join(","))));
        }
        if server.is_hidden() {
            return Err(server.down(STOPPED));
        }
        // A modern task needs only its id, and is unrelated to the tasks of legacy servers.
        if request.request_meta.is_some() && request.method.starts_with("tasks/") {
            if introduction_of(&server, self).is_some_and(|(_, era)| era == Era::Legacy) {
                return Err(no_method(request.method));
            }
        } else if is_task_method(request.method) {
            let id = request.params.task_id();
            self.router.check_task(self, &server, id.as_deref().unwrap_or_default())?;
        }
        let uri = request.params.uri().and_then(text_of);
        self.forward_resource_request(request, &server, uri.as_deref(), None)
    }

    /// Dispatches a request at an endpoint that combines all servers.
    fn dispatch_to_all(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        if let Some(kind) = Kind::listed_by(request.method) {
            return self.list(request, kind);
        }
        self.check_profile()?;
        match request.method {
            "tools/call" => self.by_name(request, Kind::Tools, request.params.name()),
            "prompts/get" => self.by_name(request, Kind::Prompts, request.params.name()),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
                self.by_uri(request, request.params.uri())
            }
            "completion/complete" => match request.params.reference() {
                Some(Reference::Name(name)) => self.by_name(request, Kind::Prompts, Some(name)),
                Some(Reference::Uri(uri)) => self.by_uri(request, Some(uri)),
                None => Err(reply::invalid("`ref` names neither a prompt nor a template")),
            },
            method if request.request_meta.is_some() && method.starts_with("tasks/") => {
                self.by_task(request)
            }
            // All tasks fit on the first page.
            "tasks/list" if request.params.cursor().is_some() => {
                Err(reply::invalid("there is no such `cursor`"))
            }
            "tasks/list" => Ok(self.list_tasks(request)),
            method if is_task_method(method) => {
                let id = request.params.task_id();
                let server = self.router.server_of_task(self, id.as_deref().unwrap_or_default())?;
                self.send_to_server(request, &server, None)
            }
            method => Err(no_method(method)),
        }
    }

    /// Sends a modern request about a task to the server that runs it.
    fn by_task(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        if !matches!(request.method, "tasks/get" | "tasks/update" | "tasks/cancel") {
            return Err(no_method(request.method));
        }
        let id =
            request.params.task_id().ok_or_else(|| reply::invalid("`taskId` is not a string"))?;
        let server = self.router.server_of_modern_task(self, &id);
        let is_declared = request.request_meta.as_ref().is_some_and(|it| it.has_tasks());
        match server {
            Err(fault) if fault.kind == ErrorKind::MethodNotFound => Err(fault),
            _ if !is_declared => Ok(Outcome::Error(modern::missing_tasks_error())),
            server => self.send_to_server(request, &server?, None),
        }
    }

    fn by_name(
        &self,
        request: &Request<'_>,
        kind: Kind,
        written: Option<&str>,
    ) -> Result<Outcome, CallError> {
        let exposed =
            written.and_then(text_of).ok_or_else(|| reply::invalid("`name` is not a string"))?;
        if kind == Kind::Tools && self.may_call_own(&exposed) {
            return self.call_own_tool(request, &exposed);
        }
        let (server, original) = self
            .resolve(kind, &exposed)
            .ok_or_else(|| self.router.unknown_name(self, kind, &exposed))?;
        self.send_to_server(request, &server, written.map(|written| (written, quoted(&original))))
    }

    fn by_uri(&self, request: &Request<'_>, written: Option<&str>) -> Result<Outcome, CallError> {
        let uri =
            written.and_then(text_of).ok_or_else(|| reply::invalid("`uri` is not a string"))?;
        if let Some((server, original)) = names::split_exposed_uri(&uri) {
            let server =
                self.router.server_for(self, server).ok_or_else(|| unknown_resource(&uri))?;
            if !self.may_see(Kind::Resources, &server.name, original) {
                return Err(unknown_resource(&uri));
            }
            return self.forward_resource_request(
                request,
                &server,
                Some(original),
                written.map(|it| (it, quoted(original))),
            );
        }
        let server = self.router.owner_of(self, &uri)?;
        self.forward_resource_request(request, &server, Some(&uri), None)
    }

    /// Forwards a request about a resource and maintains the subscriptions. A server receives
    /// `resources/unsubscribe` only when its last subscriber leaves.
    fn forward_resource_request(
        &self,
        request: &Request<'_>,
        server: &Rc<Backend>,
        uri: Option<&str>,
        renamed: Option<(&str, String)>,
    ) -> Result<Outcome, CallError> {
        if let ("resources/unsubscribe", Some(uri)) = (request.method, uri) {
            self.legacy_subscriptions.borrow_mut().remove(&(server.name.clone(), uri.to_owned()));
            if server.is_hidden() {
                self.router.unsubscribe(server, uri, self);
            }
        }
        if server.is_hidden() {
            return Err(server.down(STOPPED));
        }
        match (request.method, uri) {
            ("resources/subscribe", Some(uri)) => {
                self.subscribe(server, uri, renamed.is_some())?;
                self.legacy_subscriptions
                    .borrow_mut()
                    .insert((server.name.clone(), uri.to_owned()));
                if server.is_modern_to(self) {
                    return Ok(self.watch(request, server, uri));
                }
                let outcome = self.send_to_server(request, server, renamed);
                if outcome.is_err() {
                    self.router.unsubscribe(server, uri, self);
                }
                outcome
            }
            ("resources/unsubscribe", Some(uri)) if server.is_modern_to(self) => {
                self.router.unwatch(server, self, uri);
                Ok(Outcome::Result("{}".to_owned()))
            }
            // The next life does not know the subscription.
            ("resources/unsubscribe", Some(uri)) if server.is_asleep(server.holder(self)) => {
                self.router.unsubscribe(server, uri, self);
                Ok(Outcome::Result("{}".to_owned()))
            }
            ("resources/unsubscribe", Some(uri)) if !self.router.unsubscribe(server, uri, self) => {
                Ok(Outcome::Result("{}".to_owned()))
            }
            _ => self.send_to_server(request, server, renamed),
        }
    }

    fn set_level(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        if let View::Server(name) = &self.entry.view
            && let Some(server) = self.router.server(name)
            && !has_logging(&server, self)
        {
            self.check_bound(name)?;
            // A living process refuses it in its own words.
            return if server.is_modern_to(self) || !is_living(&server, self) {
                Err(no_method(request.method))
            } else {
                self.send_to_server(request, &server, None)
            };
        }
        let word = request.params.level().and_then(text_of);
        let level = word
            .and_then(|word| Level::parse(&word))
            .ok_or_else(|| reply::invalid(format!("`level` is not one of {}", Level::words())))?;
        self.level.set(Some(level));
        self.router.update_log_level();
        Ok(Outcome::Result("{}".to_owned()))
    }

    fn call_own_tool(&self, request: &Request<'_>, name: &str) -> Result<Outcome, CallError> {
        if !self.entry.may_manage {
            return Err(CallError::new(
                ErrorKind::NotAllowed,
                format!("`{name}` manages servers, which this listener does not allow"),
            )
            .hint("use `xy connect`, or a token that has the right"));
        }
        let arguments = tools::arguments_object(request.params.arguments())?.to_owned();
        let (client, name, reply) = (self.me(), name.to_owned(), self.reply_to(request));
        let log = CallLog::of_own(&*client, &name);
        let task = tokio::task::spawn_local(async move {
            let result = tools::call(&*client.router, client.requester(), &name, &arguments).await;
            if let Some(log) = log {
                log.ended(if result.is_ok() { "answered" } else { "refused" });
            }
            reply.answer(&client, result);
        });
        Ok(Outcome::Pending(RequestPhase::Local(task.abort_handle())))
    }
}

fn server_removed(name: &str) -> CallError {
    CallError::new(ErrorKind::ServerNotFound, format!("no server named `{}`", shortened(name)))
        .cause("it has been removed")
}

/// Returns true if a server supports `logging/setLevel`, or is not known yet.
fn has_logging(server: &Rc<Backend>, client: &Client) -> bool {
    let living = server.upstream(server.holder(client)).and_then(|it| it.introduction());
    let known = || server.shown_to(client).map(|known| known.introduction.abilities);
    living.map(|it| it.abilities).or_else(known).is_none_or(|it| it.logging)
}

/// Returns true if a process accepts requests of the client now.
fn is_living(server: &Rc<Backend>, client: &Client) -> bool {
    server.upstream(server.holder(client)).is_some_and(|it| it.introduction().is_some())
}

/// Returns the error for an unknown method.
fn no_method(method: &str) -> CallError {
    let message = format!("there is no method `{}`", shortened(method));
    CallError::new(ErrorKind::MethodNotFound, message)
}
