//! What each request of a client means: answered here, or sent on, and to whom.
//!
//! `dispatch/handshake.rs` has the first words, `dispatch/lists.rs` what is answered from what is known of all
//! servers, and `dispatch/send.rs` sends the rest on.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use xy_mcp::envelope::{Message, text_of};
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::{CallError, ErrorKind};

use super::error_log::method_word;
use super::{Client, Open, OpenRequest};
use crate::backend::{Backend, RetryState, STOPPED, outcome_unknown};
use crate::bridge::rounds::Round;
use crate::catalog::Kind;
use crate::era::Era;
use crate::frontend::{StreamNo, View};
use crate::level::Level;
use crate::message_text::MessageText;
use crate::modern::{self, DISCOVER, LISTEN, RequestMeta, Wrong};
use crate::names::{self, quoted};
use crate::params::{Params, Reference};
use crate::reply;
use crate::router::no_resource;
use crate::tools;
use crate::upstream::call_log::CallLog;
use crate::via;

pub(crate) mod find;
mod handshake;
mod lists;
mod scoped;
mod send;

use handshake::said;
use send::is_of_task;

/// How long an answer waits for servers of which nothing is known yet.
pub(crate) const PATIENCE: Duration = Duration::from_secs(4);

/// One request, and the pieces of it.
pub(super) struct Request<'t> {
    pub(super) text: MessageText<'t>,
    pub(super) id: &'t str,
    pub(super) method: &'t str,
    pub(super) params: Params<'t>,
    /// The text of these.
    pub(super) params_text: Option<&'t str>,
    /// What it says of its client, if that is modern.
    pub(super) manner: Option<Rc<RequestMeta>>,
    pub(super) stream: StreamNo,
    /// What has happened to it before.
    pub(super) past: RetryState,
}

/// What came of looking at a request.
pub(super) enum Outcome {
    /// This is the result.
    Result(String),
    /// This is the whole line of an answer.
    Line(Vec<u8>),
    /// This is the error.
    Error(Wrong),
    /// It is on its way.
    Under(Open),
    /// It has been dealt with.
    Done,
}

/// Where the answer to a request goes, in the words of its client's era.
#[derive(Clone)]
pub(super) struct Reply {
    pub(super) id: Box<str>,
    pub(super) stream: StreamNo,
    /// Its method, if its client is modern, and who answers, if that is not xy.
    modern: Option<(Box<str>, Option<String>)>,
    /// Another daemon is told which daemons are behind this answer.
    tells_daemons: bool,
}

impl Reply {
    /// The answer with this result, as a line.
    fn line(&self, client: &Client, result: &str) -> Vec<u8> {
        let mut result = Cow::Borrowed(result);
        if self.tells_daemons {
            let is_gateway = !matches!(client.entry.view, View::Server(_));
            let behind = client.router.daemons_behind(client);
            result = Cow::Owned(via::marked(&result, &behind, is_gateway));
        }
        let result = &*result;
        match &self.modern {
            None => reply::result(&self.id, result),
            Some((method, info)) => {
                reply::result(&self.id, &modern::completed_own(result, method, info.as_deref()))
            }
        }
    }

    pub(super) fn answer(&self, client: &Client, outcome: Result<String, CallError>) {
        match outcome {
            Ok(result) => client.answered(&self.id, self.stream, &self.line(client, &result)),
            Err(fault) => client.failed(&self.id, self.stream, &fault),
        }
    }
}

impl Client {
    /// Takes a request; it is answered now or later.
    pub(super) fn request(&self, request: &Request<'_>) {
        let (id, stream) = (request.id, request.stream);
        match self.look_at(request) {
            Ok(Outcome::Result(result)) => {
                self.put_answer(&self.reply_to(request).line(self, &result), stream);
            }
            Ok(Outcome::Line(line)) => self.put_answer(&line, stream),
            Ok(Outcome::Error(wrong)) => {
                self.log_failed(request, "refused", wrong.code);
                self.put_answer(&wrong.line(id), stream);
            }
            Ok(Outcome::Done) => {}
            Ok(Outcome::Under(at)) => {
                let method = method_word(request.method);
                self.open.borrow_mut().insert(id.into(), OpenRequest { at, stream, method });
            }
            Err(fault) => {
                let is_unknown = request.past.was_written;
                let fault = if is_unknown { outcome_unknown(&fault, None) } else { fault };
                let code = reply::code(fault.kind).into();
                self.log_failed(request, &format!("{:?}", fault.kind), code);
                self.put_answer(&reply::fault(id, &fault), stream);
            }
        }
    }

    fn reply_to(&self, request: &Request<'_>) -> Reply {
        let modern = request.manner.as_ref().map(|_| (request.method.into(), self.served_by()));
        let is_told = matches!(request.method, "initialize" | DISCOVER)
            || Kind::listed_by(request.method).is_some();
        let tells_daemons = is_told && self.is_daemon();
        Reply { id: request.id.into(), stream: request.stream, modern, tells_daemons }
    }

    /// Who the server is that alone is shown to it, as that wrote it.
    fn served_by(&self) -> Option<String> {
        let View::Server(name) = &self.entry.view else { return None };
        let server = self.router.server(name)?;
        let living = server.upstream(server.holder(self)).and_then(|it| it.introduction());
        match living {
            Some(living) => living.info.clone(),
            None => server.known_to(self)?.introduction.info.clone(),
        }
    }

    /// Dispatches a request again.
    pub(crate) fn again(&self, id: &str, text: &[u8], stream: StreamNo) {
        self.again_after(id, text.into(), stream, RetryState::default());
    }

    /// Dispatches a request again to which `past` has happened.
    pub(crate) fn again_after(
        &self,
        id: &str,
        text: MessageText<'_>,
        stream: StreamNo,
        past: RetryState,
    ) {
        if self.is_closed.get() {
            return;
        }
        self.open.borrow_mut().remove(id);
        if let Ok(Message::Request { id, method, params }) = text.message() {
            // It was a request before.
            let params = (params, text.checked_params(params));
            let _ = self.hear_request(text, id, &method, params, stream, past);
        }
    }

    /// Its request waits for what its server wants to know.
    pub(crate) fn waits_for_answers(&self, id: &str, round: Rc<Round>, stream: StreamNo) {
        self.is_at(id, Open::Asked(round), stream);
    }

    /// What is different about requests that say everything by themselves.
    fn look_at_modern(
        &self,
        request: &Request<'_>,
        manner: &RequestMeta,
    ) -> Result<Option<Outcome>, CallError> {
        match request.method {
            DISCOVER => return Ok(Some(self.discover(request))),
            LISTEN => {
                self.check_lens()?;
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
        if let Some(level) = manner.level {
            self.router.wants_level(level);
        }
        let Some(state) = request.params.state() else { return Ok(None) };
        // What waits for its client may be hidden from it by now.
        if self.is_still_shown(request) { self.take_up(request, state) } else { Ok(None) }
    }

    fn look_at(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        if let Some(verdict) = self.look_at_finding(request) {
            return verdict;
        }
        if let Some(manner) = &request.manner
            && let Some(verdict) = self.look_at_modern(request, manner)?
        {
            return Ok(verdict);
        }
        match request.method {
            "initialize" => return self.greet(request),
            "ping" => return Ok(Outcome::Result("{}".to_owned())),
            "logging/setLevel" => return self.set_level(request),
            _ => {}
        }
        match &self.entry.view {
            View::Server(name) => self.look_at_plain(request, &name.clone()),
            View::Profile(_) | View::All => self.look_at_shared(request),
        }
    }

    /// For one server, with nothing between.
    fn look_at_plain(&self, request: &Request<'_>, name: &str) -> Result<Outcome, CallError> {
        self.check_bound(name)?;
        let server = self.router.server(name).ok_or_else(|| gone(name))?;
        if let Some(kind) = Kind::listed_by(request.method) {
            self.shows(kind, self.router.shown_plainly(kind, self, &server));
        }
        let holder = server.holder(self);
        let living = server.upstream(holder);
        // The tools by which another xy is managed are not passed on, not even in a list.
        let is_gateway =
            living.as_ref().and_then(|it| it.introduction()).is_some_and(|it| it.is_gateway);
        if let Some(kind) = Kind::listed_by(request.method)
            && request.params.cursor().is_none()
            && (living.is_none() || (is_gateway && kind == Kind::Tools))
            // Of what lives for one client, resources are not remembered for others.
            && (!holder.is_client() || kind != Kind::Resources)
            && let Some(known) = server.shown_to(self)
        {
            let items: Vec<&str> = known.lists.of(kind).iter().map(|item| &*item.raw).collect();
            return Ok(Outcome::Result(format!(r#"{{"{}":[{}]}}"#, kind.key(), items.join(","))));
        }
        if server.is_hidden() {
            return Err(server.down(STOPPED));
        }
        // What a modern client knows of a task is all that it takes to ask about it; an older
        // server's tasks are another thing.
        if request.manner.is_some() && request.method.starts_with("tasks/") {
            if said(&server, self).is_some_and(|(_, era)| era == Era::Legacy) {
                return Err(no_method(request.method));
            }
        } else if is_of_task(request.method) {
            let id = request.params.task_id();
            self.router.check_task(self, &server, id.as_deref().unwrap_or_default())?;
        }
        let uri = request.params.uri().and_then(text_of);
        self.pass(request, &server, uri.as_deref(), None)
    }

    /// For all servers behind one door.
    fn look_at_shared(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        if let Some(kind) = Kind::listed_by(request.method) {
            return self.list(request, kind);
        }
        self.check_lens()?;
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
            method if request.manner.is_some() && method.starts_with("tasks/") => {
                self.by_task(request)
            }
            // They are all on one page.
            "tasks/list" if request.params.cursor().is_some() => {
                Err(reply::invalid("there is no such `cursor`"))
            }
            "tasks/list" => Ok(self.list_tasks(request)),
            method if is_of_task(method) => {
                let id = request.params.task_id();
                let server = self.router.server_of_task(self, id.as_deref().unwrap_or_default())?;
                self.send_on(request, &server, None)
            }
            method => Err(no_method(method)),
        }
    }

    /// What a modern client asks about a task goes to the server that does it.
    fn by_task(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        if !matches!(request.method, "tasks/get" | "tasks/update" | "tasks/cancel") {
            return Err(no_method(request.method));
        }
        let id =
            request.params.task_id().ok_or_else(|| reply::invalid("`taskId` is not a text"))?;
        let server = self.router.server_of_modern_task(self, &id);
        let is_declared = request.manner.as_ref().is_some_and(|it| it.has_tasks());
        match server {
            Err(fault) if fault.kind == ErrorKind::MethodNotFound => Err(fault),
            _ if !is_declared => Ok(Outcome::Error(modern::knows_no_tasks())),
            server => self.send_on(request, &server?, None),
        }
    }

    fn by_name(
        &self,
        request: &Request<'_>,
        kind: Kind,
        written: Option<&str>,
    ) -> Result<Outcome, CallError> {
        let outside =
            written.and_then(text_of).ok_or_else(|| reply::invalid("`name` is not a text"))?;
        if kind == Kind::Tools && self.may_call_own(&outside) {
            return self.own_tool(request, &outside);
        }
        let (server, inside) = self
            .resolve(kind, &outside)
            .ok_or_else(|| self.router.unknown(self, kind, &outside))?;
        self.send_on(request, &server, written.map(|written| (written, quoted(&inside))))
    }

    fn by_uri(&self, request: &Request<'_>, written: Option<&str>) -> Result<Outcome, CallError> {
        let uri = written.and_then(text_of).ok_or_else(|| reply::invalid("`uri` is not a text"))?;
        if let Some((server, inside)) = names::uri_inside(&uri) {
            let server = self.router.server_for(self, server).ok_or_else(|| no_resource(&uri))?;
            if !self.may_see(Kind::Resources, &server.name, inside) {
                return Err(no_resource(&uri));
            }
            return self.pass(
                request,
                &server,
                Some(inside),
                written.map(|it| (it, quoted(inside))),
            );
        }
        let server = self.router.owner_of(self, &uri)?;
        self.pass(request, &server, Some(&uri), None)
    }

    /// Sends a request about a resource on, and remembers who watches what. Of several who
    /// watch, the server only hears the last one leave.
    fn pass(
        &self,
        request: &Request<'_>,
        server: &Rc<Backend>,
        uri: Option<&str>,
        renamed: Option<(&str, String)>,
    ) -> Result<Outcome, CallError> {
        if let ("resources/unsubscribe", Some(uri)) = (request.method, uri) {
            self.subscribed.borrow_mut().remove(&(server.name.clone(), uri.to_owned()));
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
                self.subscribed.borrow_mut().insert((server.name.clone(), uri.to_owned()));
                if server.is_modern_to(self) {
                    return Ok(self.watch(request, server, uri));
                }
                let verdict = self.send_on(request, server, renamed);
                if verdict.is_err() {
                    self.router.unsubscribe(server, uri, self);
                }
                verdict
            }
            ("resources/unsubscribe", Some(uri)) if server.is_modern_to(self) => {
                self.router.unwatch(server, self, uri);
                Ok(Outcome::Result("{}".to_owned()))
            }
            // Its next life does not know of it.
            ("resources/unsubscribe", Some(uri)) if server.is_away(server.holder(self)) => {
                self.router.unsubscribe(server, uri, self);
                Ok(Outcome::Result("{}".to_owned()))
            }
            ("resources/unsubscribe", Some(uri)) if !self.router.unsubscribe(server, uri, self) => {
                Ok(Outcome::Result("{}".to_owned()))
            }
            _ => self.send_on(request, server, renamed),
        }
    }

    fn set_level(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        if let View::Server(name) = &self.entry.view
            && self.router.server(name).is_some_and(|server| !has_logging(&server, self))
        {
            return Err(no_method(request.method));
        }
        let word = request.params.level().and_then(text_of);
        let level = word
            .and_then(|word| Level::read(&word))
            .ok_or_else(|| reply::invalid(format!("`level` is not one of {}", Level::words())))?;
        self.level.set(Some(level));
        self.router.tune();
        Ok(Outcome::Result("{}".to_owned()))
    }

    fn own_tool(&self, request: &Request<'_>, name: &str) -> Result<Outcome, CallError> {
        if !self.entry.may_manage {
            return Err(CallError::new(
                ErrorKind::NotAllowed,
                format!("`{name}` manages servers, which this listener does not allow"),
            )
            .hint("use `xy connect`, or a token that has the right"));
        }
        let arguments = tools::given(request.params.arguments())?.to_owned();
        let (client, name, reply) = (self.me(), name.to_owned(), self.reply_to(request));
        let log = CallLog::of_own(&client, &name);
        let task = tokio::task::spawn_local(async move {
            let result = tools::call(&client.router, client.asker(), &name, &arguments).await;
            if let Some(log) = log {
                log.ended(if result.is_ok() { "answered" } else { "refused" });
            }
            reply.answer(&client, result);
        });
        Ok(Outcome::Under(Open::Here(task.abort_handle())))
    }
}

fn gone(name: &str) -> CallError {
    CallError::new(ErrorKind::ServerNotFound, format!("no server named `{}`", shortened(name)))
        .cause("it has been removed")
}

/// Returns true if a server can be told what to log, as far as that is known.
fn has_logging(server: &Rc<Backend>, client: &Client) -> bool {
    let living = server.upstream(server.holder(client)).and_then(|it| it.introduction());
    let known = || server.shown_to(client).map(|known| known.introduction.abilities);
    living.map(|it| it.abilities).or_else(known).is_none_or(|it| it.logging)
}

/// Returns the error for an unknown method.
fn no_method(method: &str) -> CallError {
    let message = format!("there is no method `{}`", shortened(method));
    CallError::new(ErrorKind::MethodNotFound, message)
}
