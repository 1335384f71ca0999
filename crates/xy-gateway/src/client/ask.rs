//! What each request of a client means: answered here, or sent on, and to whom.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Message, text_of};
use xy_mcp::members::Members;
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::{CallError, ErrorKind};

use super::{Client, Greeted, Open};
use xy_supervisor::instance::Holder;

use crate::bridge::rounds::{self, Round, Rounds};
use crate::bridge::{Unfit, hold};
use crate::catalog::Kind;
use crate::era::{self, Era, Introduction};
use crate::front::{StreamNo, View};
use crate::hub::no_resource;
use crate::level::Level;
use crate::modern::{self, DISCOVER, LISTEN, Manner};
use crate::names::{self, quoted};
use crate::params::{Params, Reference};
use crate::say;
use crate::server::{Past, Server, Went, outcome_unknown};
use crate::tools;
use crate::upstream::{self, Follow};

/// How long an answer waits for servers of which nothing is known yet.
pub(crate) const PATIENCE: Duration = Duration::from_secs(4);

/// What the first answer to a client is when nothing is known of its server.
const ANYTHING: &str = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"completions":{},"logging":{}}"#;

/// One request, and the pieces of it.
pub(super) struct Request<'t> {
    pub(super) text: &'t [u8],
    pub(super) id: &'t str,
    pub(super) method: &'t str,
    pub(super) params: Params<'t>,
    /// The text of these.
    pub(super) params_text: Option<&'t str>,
    /// What it says of its client, if that is modern.
    pub(super) manner: Option<Rc<Manner>>,
    pub(super) stream: StreamNo,
    /// What has happened to it before.
    pub(super) past: Past,
}

/// What came of looking at a request.
pub(super) enum Verdict {
    /// This is the result.
    Result(String),
    /// This is the whole line of an answer.
    Line(Vec<u8>),
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
}

impl Reply {
    /// The answer with this result, as a line.
    fn line(&self, result: &str) -> Vec<u8> {
        match &self.modern {
            None => say::result(&self.id, result),
            Some((method, info)) => {
                say::result(&self.id, &modern::completed_own(result, method, info.as_deref()))
            }
        }
    }

    pub(super) fn answer(&self, client: &Client, outcome: Result<String, CallError>) {
        match outcome {
            Ok(result) => client.answered(&self.id, self.stream, &self.line(&result)),
            Err(fault) => client.failed(&self.id, self.stream, &fault),
        }
    }
}

impl Client {
    /// Takes a request; it is answered now or later.
    pub(super) fn request(&self, request: &Request<'_>) {
        let (id, stream) = (request.id, request.stream);
        match self.look_at(request) {
            Ok(Verdict::Result(result)) => {
                self.put_answer(&self.reply_to(request).line(&result), stream);
            }
            Ok(Verdict::Line(line)) => self.put_answer(&line, stream),
            Ok(Verdict::Done) => {}
            Ok(Verdict::Under(open)) => {
                self.open.borrow_mut().insert(id.into(), (open, stream));
            }
            Err(fault) if request.past.was_written => {
                self.put_answer(&say::fault(id, &outcome_unknown(&fault, None)), stream);
            }
            Err(fault) => self.put_answer(&say::fault(id, &fault), stream),
        }
    }

    fn reply_to(&self, request: &Request<'_>) -> Reply {
        let modern = request.manner.as_ref().map(|_| (request.method.into(), self.served_by()));
        Reply { id: request.id.into(), stream: request.stream, modern }
    }

    /// Who the server is that alone is shown to it, as that wrote it.
    fn served_by(&self) -> Option<String> {
        let View::Server(name) = &self.entry.view else { return None };
        let server = self.hub.server(name)?;
        let living = server.upstream(server.holder(self)).and_then(|it| it.introduction());
        match living {
            Some(living) => living.info.clone(),
            None => server.known_to(self)?.introduction.info.clone(),
        }
    }

    /// A request is looked at again.
    pub(crate) fn again(&self, id: &str, text: &[u8], stream: StreamNo) {
        self.again_after(id, text, stream, Past::default());
    }

    /// The same, of one that is sent again with what its server wanted to know.
    pub(crate) fn again_in_round(&self, id: &str, text: &[u8], stream: StreamNo, rounds: Rounds) {
        self.again_after(id, text, stream, Past { rounds, ..Past::default() });
    }

    /// The same, of one to which this has happened before.
    pub(crate) fn again_after(&self, id: &str, text: &[u8], stream: StreamNo, past: Past) {
        if self.is_closed.get() {
            return;
        }
        self.open.borrow_mut().remove(id);
        if let Ok(Message::Request { id, method, params }) = envelope::parse(text) {
            // It was a request before.
            let _ = self.hear_request(text, id, &method, params, stream, past);
        }
    }

    /// Its request waits for what its server wants to know.
    pub(crate) fn waits_for_answers(&self, id: &str, round: Rc<Round>, stream: StreamNo) {
        self.open.borrow_mut().insert(id.into(), (Open::Asked(round), stream));
    }

    /// What is different about requests that say everything by themselves.
    fn look_at_modern(
        &self,
        request: &Request<'_>,
        manner: &Manner,
    ) -> Result<Option<Verdict>, CallError> {
        match request.method {
            DISCOVER => return Ok(Some(self.discover(request))),
            LISTEN => return self.listen(request).map(Some),
            "initialize"
            | "ping"
            | "logging/setLevel"
            | "resources/subscribe"
            | "resources/unsubscribe" => return Err(no_method(request.method)),
            _ => {}
        }
        if let Some(level) = manner.level {
            self.hub.wants_level(level);
        }
        match request.params.state() {
            Some(state) => self.take_up(request, state),
            None => Ok(None),
        }
    }

    fn look_at(&self, request: &Request<'_>) -> Result<Verdict, CallError> {
        if let Some(manner) = &request.manner
            && let Some(verdict) = self.look_at_modern(request, manner)?
        {
            return Ok(verdict);
        }
        match request.method {
            "initialize" => return Ok(self.greet(request)),
            "ping" => return Ok(Verdict::Result("{}".to_owned())),
            "logging/setLevel" => return self.set_level(request),
            _ => {}
        }
        match &self.entry.view {
            View::Server(name) => self.look_at_plain(request, &name.clone()),
            View::Profile(_) => self.look_at_shared(request),
        }
    }

    /// For one server, with nothing between.
    fn look_at_plain(&self, request: &Request<'_>, name: &str) -> Result<Verdict, CallError> {
        let server = self.hub.server(name).ok_or_else(|| gone(name))?;
        if let Some(kind) = Kind::listed_by(request.method) {
            self.shows(kind, self.hub.shown_plainly(kind, self, &server));
        }
        let holder = server.holder(self);
        if let Some(kind) = Kind::listed_by(request.method)
            && request.params.cursor().is_none()
            && server.upstream(holder).is_none()
            // Of what lives for one client, resources are not remembered for others.
            && (holder == Holder::Shared || kind != Kind::Resources)
            && let Some(known) = server.shown_to(self)
        {
            let items: Vec<&str> = known.lists.of(kind).iter().map(|item| &*item.raw).collect();
            return Ok(Verdict::Result(format!(r#"{{"{}":[{}]}}"#, kind.key(), items.join(","))));
        }
        // What a modern client knows of a task is all that it takes to ask about it; an older
        // server's tasks are another thing.
        if request.manner.is_some() && request.method.starts_with("tasks/") {
            if said(&server, self).is_some_and(|(_, era)| era == Era::Legacy) {
                return Err(no_method(request.method));
            }
        } else if is_of_task(request.method) {
            let id = request.params.task_id();
            self.hub.check_task(self, &server, id.as_deref().unwrap_or_default())?;
        }
        let uri = request.params.uri().and_then(text_of);
        self.pass(request, &server, uri.as_deref(), None)
    }

    /// For all servers behind one door.
    fn look_at_shared(&self, request: &Request<'_>) -> Result<Verdict, CallError> {
        if let Some(kind) = Kind::listed_by(request.method) {
            return self.list(request, kind);
        }
        match request.method {
            "tools/call" => self.by_name(request, Kind::Tools, request.params.name()),
            "prompts/get" => self.by_name(request, Kind::Prompts, request.params.name()),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
                self.by_uri(request, request.params.uri())
            }
            "completion/complete" => match request.params.reference() {
                Some(Reference::Name(name)) => self.by_name(request, Kind::Prompts, Some(name)),
                Some(Reference::Uri(uri)) => self.by_uri(request, Some(uri)),
                None => Err(say::invalid("`ref` names neither a prompt nor a template")),
            },
            method if request.manner.is_some() && method.starts_with("tasks/") => {
                self.by_task(request)
            }
            // They are all on one page.
            "tasks/list" if request.params.cursor().is_some() => {
                Err(say::invalid("there is no such `cursor`"))
            }
            "tasks/list" => Ok(self.list_tasks(request)),
            method if is_of_task(method) => {
                let id = request.params.task_id();
                let server = self.hub.server_of_task(self, id.as_deref().unwrap_or_default())?;
                self.send_on(request, &server, None)
            }
            method => Err(no_method(method)),
        }
    }

    /// What a modern client asks about a task goes to the server that does it.
    fn by_task(&self, request: &Request<'_>) -> Result<Verdict, CallError> {
        if !matches!(request.method, "tasks/get" | "tasks/update" | "tasks/cancel") {
            return Err(no_method(request.method));
        }
        let id = request.params.task_id().ok_or_else(|| say::invalid("`taskId` is not a text"))?;
        let server = self.hub.server_of_modern_task(self, &id);
        let is_declared = request.manner.as_ref().is_some_and(|it| it.has_tasks());
        match server {
            Err(fault) if fault.kind == ErrorKind::MethodNotFound => Err(fault),
            _ if !is_declared => Ok(Verdict::Line(modern::knows_no_tasks().line(request.id))),
            server => self.send_on(request, &server?, None),
        }
    }

    fn by_name(
        &self,
        request: &Request<'_>,
        kind: Kind,
        written: Option<&str>,
    ) -> Result<Verdict, CallError> {
        let outside =
            written.and_then(text_of).ok_or_else(|| say::invalid("`name` is not a text"))?;
        let Some((server, rest)) = names::inside(&outside) else {
            if kind == Kind::Tools && tools::is_own(&outside) {
                return self.own_tool(request, &outside);
            }
            return Err(self.hub.unknown(kind, &outside));
        };
        let server = self.hub.server(server).ok_or_else(|| self.hub.unknown(kind, &outside))?;
        let inside = match server.known_to(self) {
            Some(known) => known.inside(kind, &outside).map(str::to_owned),
            None => Some(rest.to_owned()), // It says itself whether it has that.
        };
        let inside = inside.ok_or_else(|| self.hub.unknown(kind, &outside))?;
        self.send_on(request, &server, written.map(|written| (written, quoted(&inside))))
    }

    fn by_uri(&self, request: &Request<'_>, written: Option<&str>) -> Result<Verdict, CallError> {
        let uri = written.and_then(text_of).ok_or_else(|| say::invalid("`uri` is not a text"))?;
        if let Some((server, inside)) = names::uri_inside(&uri) {
            let server = self.hub.server(server).ok_or_else(|| no_resource(&uri))?;
            return self.pass(
                request,
                &server,
                Some(inside),
                written.map(|it| (it, quoted(inside))),
            );
        }
        let server = self.hub.owner_of(self, &uri)?;
        self.pass(request, &server, Some(&uri), None)
    }

    /// Sends a request about a resource on, and remembers who watches what. Of several who
    /// watch, the server only hears the last one leave.
    fn pass(
        &self,
        request: &Request<'_>,
        server: &Rc<Server>,
        uri: Option<&str>,
        renamed: Option<(&str, String)>,
    ) -> Result<Verdict, CallError> {
        if let ("resources/unsubscribe", Some(uri)) = (request.method, uri) {
            self.subscribed.borrow_mut().remove(&(server.name.clone(), uri.to_owned()));
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
                    self.hub.unsubscribe(server, uri, self);
                }
                verdict
            }
            ("resources/unsubscribe", Some(uri)) if server.is_modern_to(self) => {
                self.hub.unwatch(server, self, uri);
                Ok(Verdict::Result("{}".to_owned()))
            }
            ("resources/unsubscribe", Some(uri)) if !self.hub.unsubscribe(server, uri, self) => {
                Ok(Verdict::Result("{}".to_owned()))
            }
            _ => self.send_on(request, server, renamed),
        }
    }

    /// Behind one door for all servers a task that is not remembered could never be asked for
    /// again. So where there is no room for one, the server does not hear that the client
    /// knows tasks.
    fn hidden<'t>(&self, request: &Request<'t>, follow: &Follow) -> Option<(&'t str, String)> {
        let manner = request.manner.as_ref()?;
        let is_one_door = matches!(self.entry.view, View::Profile(_));
        if !is_one_door || *follow != Follow::Nothing || !manner.has_tasks() {
            return None;
        }
        let written = Members::read(request.params.meta()?)?.get(modern::CAPABILITIES)?;
        Some((written, modern::without_tasks(&Members::read(written)?)))
    }

    /// How the answer to a request is to be looked at. Tasks are passed between equals only.
    fn follow(&self, request: &Request<'_>, server: &Rc<Server>) -> Follow {
        let Some(manner) = &request.manner else {
            let follow = follow(request);
            let is_other = follow == Follow::NewTask && server.is_modern_to(self);
            return if is_other { Follow::Nothing } else { follow };
        };
        if request.method.starts_with("tasks/") {
            return Follow::Task;
        }
        // To one server alone its tasks are its own affair.
        let is_one_door = matches!(self.entry.view, View::Profile(_));
        if !is_one_door || request.method != "tools/call" || !manner.has_tasks() {
            return Follow::Nothing;
        }
        let said = server.upstream(server.holder(self)).and_then(|it| it.introduction());
        let offers =
            |it: Rc<Introduction>| it.era() == Era::Modern && modern::offers_tasks(&it.result);
        if !said.is_some_and(offers) {
            return Follow::Nothing;
        }
        if self.hub.has_room_for_modern_task(self) { Follow::NewTask } else { Follow::Nothing }
    }

    /// Has a resource watched at a modern server.
    fn watch(&self, request: &Request<'_>, server: &Rc<Server>, uri: &str) -> Verdict {
        let (client, reply) = (self.me(), self.reply_to(request));
        let (server, uri) = (server.clone(), uri.to_owned());
        let task = tokio::task::spawn_local(async move {
            let watched = client.hub.watch(&server, &client, [uri.clone()].into()).await;
            let cannot = || {
                let name = &server.name;
                say::invalid(format!("`{name}` does not tell of changes of this resource"))
            };
            let watched =
                watched.and_then(|it| it.uris.contains(&uri).then_some(()).ok_or_else(cannot));
            if watched.is_err() {
                client.hub.unwatch(&server, &client, &uri);
            }
            reply.answer(&client, watched.map(|()| "{}".to_owned()));
        });
        Verdict::Under(Open::Here(task.abort_handle()))
    }

    fn send_on(
        &self,
        request: &Request<'_>,
        server: &Rc<Server>,
        renamed: Option<(&str, String)>,
    ) -> Result<Verdict, CallError> {
        let follow = self.follow(request, server);
        let outgoing = upstream::Request {
            text: request.text,
            id: request.id,
            token: request.params.own_token(),
            renamed,
            what: (request.method, request.params.name().or(request.params.uri())),
            hidden: self.hidden(request, &follow),
            follow,
            watch: None,
            params: request.params_text,
            meta: request.params.meta(),
            manner: request.manner.clone(),
            past: request.past.clone(),
            has_state: request.params.state().is_some(),
        };
        // The server wanted to know more, and its successor is one that asks otherwise.
        if request.past.rounds.count > 0
            && server.upstream(server.holder(self)).is_some()
            && !server.is_modern_to(self)
        {
            let text = rounds::as_at_first(request.text);
            let text = text.ok_or_else(|| say::invalid("the call cannot be made again"))?;
            let mut past = request.past.clone();
            past.rounds.count = 0;
            self.again_after(request.id, &text, request.stream, past);
            return Ok(Verdict::Done);
        }
        // Only a modern server gives out states of its own.
        let is_legacy = || said(server, self).is_some_and(|(_, era)| era == Era::Legacy);
        if outgoing.has_state && outgoing.manner.is_some() && is_legacy() {
            return Err(hold::refused(Unfit::NotOurs));
        }
        if outgoing.follow == Follow::NewTask && outgoing.manner.is_none() {
            self.hub.check_room_for_task(self)?;
        }
        match server.call(&self.me(), outgoing, request.stream)? {
            Went::Sent(open) => Ok(Verdict::Under(open)),
            Went::Waits { open, is_first } => {
                if is_first {
                    self.hub.want(server, &self.me());
                }
                Ok(Verdict::Under(open))
            }
        }
    }

    fn set_level(&self, request: &Request<'_>) -> Result<Verdict, CallError> {
        let word = request.params.level().and_then(text_of);
        let level = word
            .and_then(|word| Level::read(&word))
            .ok_or_else(|| say::invalid(format!("`level` is not one of {}", Level::words())))?;
        self.level.set(Some(level));
        self.hub.tune();
        Ok(Verdict::Result("{}".to_owned()))
    }

    /// The first request: who is there, and in which revision they speak.
    fn greet(&self, request: &Request<'_>) -> Verdict {
        let version = era::offered(&request.params.version().unwrap_or_default());
        let capabilities = request.params.capabilities().unwrap_or("{}").into();
        let info = request.params.info().map(Into::into);
        *self.greeted.borrow_mut() = Some(Greeted { version, capabilities, info });
        self.hub.tune();
        match &self.entry.view {
            View::Profile(_) => Verdict::Result(self.hub.introduction(version)),
            View::Server(name) => self.greet_for(&name.clone(), version, request),
        }
    }

    fn greet_for(&self, name: &str, version: &'static str, request: &Request<'_>) -> Verdict {
        let Some(server) = self.hub.server(name) else {
            return Verdict::Result(anything(name, version));
        };
        self.hub.want(&server, &self.me());
        if let Some(result) = introduced(&server, self, version) {
            return Verdict::Result(result);
        }
        let (name, named) = (name.to_owned(), name.to_owned());
        self.later(
            request,
            move |client| match introduced(&server, client, version) {
                Some(result) => Some(Ok(result)),
                None => (!server.is_shown()).then(|| Ok(anything(&name, version))),
            },
            move |_| Ok(anything(&named, version)),
        )
    }

    /// Who is there, for a client that says everything by itself.
    fn discover(&self, request: &Request<'_>) -> Verdict {
        let View::Server(name) = &self.entry.view else {
            return Verdict::Result(self.hub.discovery());
        };
        let name = name.clone();
        let Some(server) = self.hub.server(&name) else {
            return Verdict::Result(modern::discovered_from(&anything(&name, era::LATEST)));
        };
        self.hub.want(&server, &self.me());
        let unknown = move || modern::discovered_from(&anything(&name, era::LATEST));
        let (when_down, at_last) = (unknown.clone(), unknown);
        let discovered = move |client: &Client| {
            said(&server, client).map_or_else(
                || (!server.is_shown()).then(&when_down),
                |(result, era)| match era {
                    Era::Modern => Some(result),
                    Era::Legacy => Some(modern::discovered_from(&result)),
                },
            )
        };
        match discovered(self) {
            Some(result) => Verdict::Result(result),
            None => self.later(request, move |it| discovered(it).map(Ok), move |_| Ok(at_last())),
        }
    }

    fn list(&self, request: &Request<'_>, kind: Kind) -> Result<Verdict, CallError> {
        let after = match request.params.cursor() {
            Some(cursor) => {
                Some(text_of(cursor).ok_or_else(|| say::invalid("`cursor` is not a text"))?)
            }
            None => None,
        };
        for server in self.hub.servers() {
            if server.known_to(self).is_none() {
                self.hub.want(&server, &self.me());
            }
        }
        if self.hub.is_known(self) {
            return self.hub.list(self, kind, after.as_deref()).map(Verdict::Result);
        }
        let after = after.map(std::borrow::Cow::into_owned);
        let answer =
            Rc::new(move |client: &Client| client.hub.list(client, kind, after.as_deref()));
        let at_last = answer.clone();
        Ok(self.later(
            request,
            move |client| client.hub.is_known(client).then(|| answer(client)),
            move |client| {
                client.hub.give_up_waiting();
                at_last(client)
            },
        ))
    }

    /// Answers when something is known, or after a while with what there is.
    fn later(
        &self,
        request: &Request<'_>,
        is_known: impl Fn(&Self) -> Option<Result<String, CallError>> + 'static,
        at_last: impl FnOnce(&Self) -> Result<String, CallError> + 'static,
    ) -> Verdict {
        let (client, mut news) = (self.me(), self.hub.news());
        let reply = self.reply_to(request);
        let give_up_at = Instant::now() + PATIENCE;
        let task = tokio::task::spawn_local(async move {
            let answer = loop {
                if let Some(answer) = is_known(&client) {
                    break answer;
                }
                let more = tokio::time::timeout_at(give_up_at, news.changed()).await;
                if !matches!(more, Ok(Ok(()))) {
                    break at_last(&client);
                }
            };
            reply.answer(&client, answer);
        });
        Verdict::Under(Open::Here(task.abort_handle()))
    }

    /// The tasks of this client, of all servers.
    fn list_tasks(&self, request: &Request<'_>) -> Verdict {
        let (client, id, stream) = (self.me(), request.id.to_owned(), request.stream);
        let task = tokio::task::spawn_local(async move {
            let result = client.hub.list_tasks(&client).await;
            client.answered(&id, stream, &say::result(&id, &result));
        });
        Verdict::Under(Open::Here(task.abort_handle()))
    }

    fn own_tool(&self, request: &Request<'_>, name: &str) -> Result<Verdict, CallError> {
        if !self.entry.may_manage {
            return Err(CallError::new(
                ErrorKind::NotAllowed,
                format!("`{name}` manages servers, which this door does not allow"),
            )
            .hint("use `xy connect`, or a token that has the right"));
        }
        let arguments = request.params.arguments().unwrap_or("{}").to_owned();
        let (client, name, reply) = (self.me(), name.to_owned(), self.reply_to(request));
        let task = tokio::task::spawn_local(async move {
            let result = tools::call(&client.hub, &name, &arguments).await;
            reply.answer(&client, result);
        });
        Ok(Verdict::Under(Open::Here(task.abort_handle())))
    }

    /// A notification of the client's that is not for us.
    pub(super) fn pass_notification(&self, method: &str, text: &[u8]) {
        // What is shared does not hear what concerns one client alone.
        let concerns_one = method == "notifications/roots/list_changed";
        let servers = match &self.entry.view {
            View::Server(name) => self.hub.server(name).into_iter().collect(),
            View::Profile(_) if concerns_one => self.hub.servers(),
            View::Profile(_) => Vec::new(),
        };
        for server in servers {
            let holder = server.holder(self);
            if concerns_one && holder == Holder::Shared {
                continue;
            }
            if let Some(upstream) = server.upstream(holder) {
                upstream.send(text);
            }
        }
    }
}

/// Whether a request names a task.
fn is_of_task(method: &str) -> bool {
    matches!(method, "tasks/get" | "tasks/result" | "tasks/cancel")
}

/// How the answer to a request is to be looked at.
fn follow(request: &Request<'_>) -> Follow {
    match request.method {
        "tasks/get" | "tasks/cancel" => Follow::Task,
        "tasks/result" => Follow::Outcome(request.params.task_id().unwrap_or_default().into()),
        "tasks/list" => Follow::Tasks,
        _ if request.params.is_task() => Follow::NewTask,
        _ => Follow::Nothing,
    }
}

fn gone(name: &str) -> CallError {
    CallError::new(ErrorKind::ServerNotFound, format!("no server named `{}`", shortened(name)))
        .cause("it has been removed")
}

/// There is no such method.
fn no_method(method: &str) -> CallError {
    let message = format!("there is no method `{}`", shortened(method));
    CallError::new(ErrorKind::MethodNotFound, message)
}

/// What a server said of itself, and in which era, if it is known.
fn said(server: &Rc<Server>, client: &Client) -> Option<(String, Era)> {
    let living = server.upstream(server.holder(client)).and_then(|it| it.introduction());
    if let Some(living) = living {
        return Some((living.result.clone(), living.era()));
    }
    let known = server.shown_to(client)?;
    Some((known.introduction.result.clone(), known.introduction.era()))
}

/// What a server said of itself, for a client of this revision.
fn introduced(server: &Rc<Server>, client: &Client, version: &'static str) -> Option<String> {
    let (result, era) = said(server, client)?;
    if era == Era::Modern {
        return Some(modern::introduced_from(server.name.as_str(), &result, version));
    }
    let Some(written) = Params::read(Some(&result)).version_as_written() else {
        return Some(result);
    };
    let mut edits = Edits::of(result.as_bytes());
    edits.replace(written, quoted(version));
    Some(String::from_utf8_lossy(&edits.to_vec()).into_owned())
}

/// What is said of a server of which nothing is known yet.
fn anything(name: &str, version: &str) -> String {
    let name = quoted(name);
    format!(
        r#"{{"protocolVersion":"{version}","capabilities":{ANYTHING},"serverInfo":{{"name":{name},"version":"unknown"}}}}"#
    )
}
