//! All servers and all clients of the gateway, on its one thread.
//!
//! Nothing here waits: what takes time is a task of its own that comes back with news.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use xy_config::settings::{Isolation, ServerSettings};
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::{Holder, InstanceKey};

use crate::catalog::{self, Kind, Known};
use crate::client::Client;
use crate::control::Control;
use crate::front::{Conversation, Entry, Front, Outlet, Refusal, To, View};
use crate::http::HttpStatus;
use crate::level::Level;
use crate::manifest::Manifests;
use crate::metrics;
use crate::names;
use crate::params::Params;
use crate::say;
use crate::server::{Server, Standing};
use crate::subscriptions::{Subscriptions, Watcher};
use crate::tools;
use crate::upstream::{Company, Question, Upstream};

/// Clients at the same time, over all doors.
const MOST_CLIENTS: usize = 2000;

/// One answer to a list is at most about this long: some clients read lines of 8 MiB.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// What clients show to their models of how to use servers; more is cut off by some.
const INSTRUCTIONS_BYTES: usize = 2000;

/// An unknown name is compared with so many known ones: everybody waits meanwhile.
const MOST_COMPARED: usize = 1000;

/// How long changes of lists gather before clients are told.
const TELL_AFTER: Duration = Duration::from_millis(50);

/// The only profile there is yet.
pub(crate) const DEFAULT_PROFILE: &str = "default";

/// All servers and clients.
pub(crate) struct Hub {
    me: Weak<Self>,
    servers: RefCell<BTreeMap<ServerName, Rc<Server>>>,
    clients: RefCell<HashMap<u64, Rc<Client>>>,
    next_client: Cell<u64>,
    subscriptions: RefCell<Subscriptions>,
    /// Counts what clients could want to know: a server came or went, or is known better.
    revision: watch::Sender<u64>,
    /// Whether clients will soon be told of changed lists.
    is_telling: Cell<bool>,
    /// What servers were last told to log.
    level: Cell<Option<Level>>,
    pub(crate) manifests: Manifests,
    pub(crate) control: Arc<dyn Control>,
}

impl Hub {
    pub(crate) fn new(
        manifests: Manifests,
        control: Arc<dyn Control>,
        first_client: u64,
    ) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            servers: RefCell::default(),
            clients: RefCell::default(),
            next_client: Cell::new(first_client),
            subscriptions: RefCell::default(),
            revision: watch::Sender::new(0),
            is_telling: Cell::new(false),
            level: Cell::new(None),
            manifests,
            control,
        })
    }

    /// The server of this name.
    pub(crate) fn server(&self, name: &str) -> Option<Rc<Server>> {
        self.servers.borrow().get(name).cloned()
    }

    /// All servers, in order.
    pub(crate) fn servers(&self) -> Vec<Rc<Server>> {
        self.servers.borrow().values().cloned().collect()
    }

    /// The client of this number.
    pub(crate) fn client(&self, number: u64) -> Option<Rc<Client>> {
        self.clients.borrow().get(&number).cloned()
    }

    /// All clients.
    pub(crate) fn clients(&self) -> Vec<Rc<Client>> {
        self.clients.borrow().values().cloned().collect()
    }

    /// Hears whenever there is news.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// There is news.
    pub(crate) fn tell_news(&self) {
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// The server with these settings, with what is remembered of it if it is new here.
    pub(crate) fn server_of(&self, settings: &Arc<ServerSettings>) -> Rc<Server> {
        self.server(settings.name.as_str()).unwrap_or_else(|| {
            let server = Server::new(settings.clone(), self.manifests.read(settings));
            self.servers.borrow_mut().insert(server.name.clone(), server.clone());
            server
        })
    }

    /// A server is there no more, or not yet: its first instance may speak before anybody has
    /// told us of it. As long as it has one it is only hidden.
    pub(crate) fn remove(&self, server: &Rc<Server>) {
        if !server.has_instances() {
            self.servers.borrow_mut().remove(&server.name);
            self.subscriptions.borrow_mut().forget_server(&server.name);
        }
        self.stand(server, Standing::Down("it has been removed".to_owned()));
    }

    /// Whether a server is there has changed, or not.
    pub(crate) fn stand(&self, server: &Rc<Server>, standing: Standing) {
        if *server.standing.borrow() == standing {
            return;
        }
        *server.standing.borrow_mut() = standing.clone();
        if let Standing::Down(why) = standing {
            let fault = server.down(&why);
            for waited in server.take_all_waiting(None) {
                waited.client.failed(&waited.id, waited.stream, &fault);
            }
        }
        self.lists_changed();
        self.tell_news();
    }

    /// An instance of a server has said what it offers. What one has that lives for a single
    /// client is shown to that client alone, and remembered for all but for its resources.
    pub(crate) fn learn(&self, server: &Rc<Server>, by: &Rc<Upstream>, known: Known) -> Rc<Known> {
        let known = Rc::new(known);
        by.set_known(known.clone());
        let for_all = match by.key().holder {
            Holder::Shared => known,
            Holder::Client(_) => {
                let lists = known.lists.clone().for_everybody();
                let introduction = known.introduction.clone();
                Rc::new(Known::new(server.name.as_str(), introduction, lists))
            }
        };
        server.known.replace(Some(for_all.clone()));
        self.lists_changed();
        self.tell_news();
        for_all
    }

    /// Some lists may have changed; those who were shown others are told, a little later, so
    /// that a whole fleet that comes up is told once.
    fn lists_changed(&self) {
        if self.is_telling.replace(true) {
            return;
        }
        let hub = self.me();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(TELL_AFTER).await;
            hub.is_telling.set(false);
            for client in hub.clients() {
                hub.tell_changes(&client);
            }
        });
    }

    /// Tells a client which lists are not what it was shown.
    fn tell_changes(&self, client: &Client) {
        let mut told: Vec<&str> = Vec::new();
        for kind in Kind::ALL {
            let now = self.print(kind, client);
            if client.was_shown(kind).is_some_and(|shown| shown != now) {
                client.shows(kind, now);
                if !told.contains(&kind.changed()) {
                    told.push(kind.changed());
                    client.tell(&say::notification(kind.changed()), To::Anyone);
                }
            }
        }
    }

    /// Differs whenever a list does that a client is shown.
    pub(crate) fn print(&self, kind: Kind, client: &Client) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, server) in self.servers.borrow().iter() {
            let is_seen = match &client.entry().view {
                View::Profile(_) => true,
                View::Server(only) => only == name.as_str(),
            };
            if let Some(known) = server.shown_to(client).filter(|_| is_seen) {
                (name, known.print(kind)).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// Whether something is known of every server that a client is shown, or has been waited
    /// for long enough.
    pub(crate) fn is_known(&self, client: &Client) -> bool {
        let is_missed = |server: &Rc<Server>| server.is_shown() && !server.was_waited_for.get();
        let servers = self.servers.borrow();
        servers.values().all(|server| server.known_to(client).is_some() || !is_missed(server))
    }

    /// Somebody has waited for what is not known yet, in vain. Nobody else does: whoever
    /// comes later is told when there is more.
    pub(crate) fn give_up_waiting(&self) {
        let servers = self.servers.borrow();
        for server in servers.values().filter(|server| server.known.borrow().is_none()) {
            server.was_waited_for.set(true);
        }
    }

    /// One answer to a client that asks for a list of everything.
    pub(crate) fn list(
        &self,
        client: &Client,
        kind: Kind,
        after: Option<&str>,
    ) -> Result<String, CallError> {
        client.shows(kind, self.print(kind, client));
        let own = tools::shown(kind, client.entry().may_manage);
        let servers = self.servers.borrow();
        let known: Vec<Rc<Known>> =
            servers.values().filter_map(|server| server.shown_to(client)).collect();
        let all = own.iter().chain(known.iter().flat_map(|known| known.shown(kind)));
        let cut = catalog::cut(all, after, PAGE_BYTES)
            .ok_or_else(|| say::invalid("there is no such `cursor` any more: begin again"))?;
        let items: Vec<&str> = cut.shown.iter().map(|shown| &*shown.text).collect();
        let next = cut.next.map(|cursor| format!(r#","nextCursor":{}"#, names::quoted(&cursor)));
        let (key, next) = (kind.key(), next.unwrap_or_default());
        Ok(format!(r#"{{"{key}":[{}]{next}}}"#, items.join(",")))
    }

    /// How xy introduces itself to a client.
    pub(crate) fn introduction(&self, version: &str) -> String {
        let ours = env!("CARGO_PKG_VERSION");
        let instructions = names::quoted(&self.instructions());
        format!(
            r#"{{"protocolVersion":"{version}","capabilities":{{"tools":{{"listChanged":true}},"prompts":{{"listChanged":true}},"resources":{{"subscribe":true,"listChanged":true}},"completions":{{}},"logging":{{}}}},"serverInfo":{{"name":"xy","title":"xy","version":"{ours}"}},"instructions":{instructions}}}"#
        )
    }

    /// What servers say of how to use them, as far as there is room.
    fn instructions(&self) -> String {
        let mut all = String::from(
            "Tools and prompts of several servers: each name begins with its server's name and `__`.",
        );
        for server in self.servers() {
            let Some(known) = server.shown() else { continue };
            let Some(theirs) = known.introduction.instructions.as_deref() else { continue };
            let more = format!("\n\n{}: {}", server.name, theirs.trim());
            if !theirs.trim().is_empty() && all.len() + more.len() <= INSTRUCTIONS_BYTES {
                all.push_str(&more);
            }
        }
        all
    }

    /// There is no tool or prompt of this name.
    pub(crate) fn unknown(&self, kind: Kind, name: &str) -> CallError {
        let what = if kind == Kind::Tools { "tool" } else { "prompt" };
        let shown = xy_protocol::control::quoted(name);
        let fault = say::invalid(format!("Unknown {what}: {shown}"));
        let known: Vec<Rc<Known>> = self.servers().iter().filter_map(|it| it.shown()).collect();
        let names = known.iter().flat_map(|known| known.shown(kind)).map(|shown| &*shown.name);
        let names = names.take(MOST_COMPARED);
        if let Some(nearest) = names::nearest(name, names) {
            return fault.hint(format!("did you mean `{nearest}`?"));
        }
        match names::inside(name).and_then(|(server, _)| self.server(server)) {
            Some(server) => match &*server.standing.borrow() {
                Standing::Down(why) => {
                    fault.cause(format!("`{}` is not running: {why}", server.name))
                }
                Standing::Up => fault,
            },
            None => fault,
        }
    }

    /// The only server that has this resource.
    pub(crate) fn owner_of(&self, client: &Client, uri: &str) -> Result<Rc<Server>, CallError> {
        let has = |server: &Rc<Server>| {
            server.shown_to(client).is_some_and(|known| known.has_resource(uri))
        };
        let mut owners: Vec<Rc<Server>> = self.servers().into_iter().filter(has).collect();
        match (owners.pop(), owners.is_empty()) {
            (Some(owner), true) => Ok(owner),
            (None, _) => Err(no_resource(uri)),
            (Some(last), false) => {
                owners.push(last);
                let names: Vec<String> =
                    owners.iter().map(|it| names::uri_outside(it.name.as_str(), uri)).collect();
                Err(say::invalid("several servers have this resource")
                    .hint(format!("say which: {}", names.join(", "))))
            }
        }
    }

    /// Somebody watches a resource.
    pub(crate) fn subscribe(
        &self,
        server: &Rc<Server>,
        uri: &str,
        watcher: Watcher,
    ) -> Result<(), CallError> {
        self.subscriptions.borrow_mut().add(&server.name, uri, watcher).map_err(say::invalid)
    }

    /// Somebody watches a resource no more; whether nobody does now.
    pub(crate) fn unsubscribe(&self, server: &Rc<Server>, uri: &str, client: &Client) -> bool {
        let holder = server.holder(client);
        self.subscriptions.borrow_mut().remove(&server.name, uri, client.number(), holder)
    }

    /// An instance is wanted that lives for one client alone.
    pub(crate) fn want(&self, server: &Rc<Server>, client: &Rc<Client>) {
        let holder = server.holder(client);
        if holder == Holder::Shared || server.upstream(holder).is_some() {
            return;
        }
        let (server, number) = (server.clone(), client.number());
        let hold = self.control.hold(&server.name, number);
        tokio::task::spawn_local(async move {
            if let Err(fault) = hold.await {
                for waited in server.take_all_waiting(Some(Holder::Client(number))) {
                    waited.client.failed(&waited.id, waited.stream, &fault);
                }
            }
        });
    }

    /// An instance can be asked from now on.
    pub(crate) fn opened(&self, upstream: &Rc<Upstream>) {
        let Some(server) = self.server(upstream.key().server.as_str()) else { return };
        let holder = upstream.key().holder;
        for waited in server.take_all_waiting(Some(holder)) {
            waited.client.again(&waited.id, &waited.text, waited.stream);
        }
        match self.level.get() {
            Some(level) => tell_level(upstream, level),
            // It may still keep silent for a client of an earlier daemon.
            None if upstream.is_tuned() => tell_level(upstream, Level::USUAL),
            None => {}
        }
        for uri in self.subscriptions.borrow().of(&server.name, holder) {
            let params = format!(r#"{{"uri":{}}}"#, names::quoted(&uri));
            let_be(upstream.ask("resources/subscribe", Some(&params)));
        }
        self.tell_news();
    }

    /// Servers log what the one who wants to know most wants to know.
    pub(crate) fn tune(&self) {
        let clients = self.clients.borrow();
        let has_anybody_said = clients.values().any(|client| client.level().is_some());
        if self.level.get().is_none() && !has_anybody_said {
            return; // Servers say what they like.
        }
        // What one client does not want to know must not be kept from the others.
        let wanted = clients.values().filter(|client| client.greeted().is_some());
        let level = wanted.map(|client| client.level().unwrap_or(Level::USUAL)).min();
        drop(clients);
        let Some(level) = level else { return };
        if self.level.replace(Some(level)) == Some(level) {
            return;
        }
        for upstream in self.servers().iter().flat_map(|server| server.all_upstreams()) {
            tell_level(&upstream, level);
        }
    }

    /// A client has gone.
    pub(crate) fn left(&self, client: &Client) {
        let number = client.number();
        self.clients.borrow_mut().remove(&number);
        for (server, uri) in self.subscriptions.borrow_mut().forget(number) {
            let upstream = self.server(server.as_str()).and_then(|it| it.upstream(Holder::Shared));
            if let Some(upstream) = upstream {
                let params = format!(r#"{{"uri":{}}}"#, names::quoted(&uri));
                let_be(upstream.ask("resources/unsubscribe", Some(&params)));
            }
        }
        for server in self.servers() {
            if server.holder(client) == Holder::Client(number) {
                tokio::task::spawn_local(self.control.release(&server.name, number));
            }
        }
        self.tune();
    }

    /// A life of a server is over.
    pub(crate) fn over(&self, server: &Rc<Server>, upstream: &Rc<Upstream>) {
        server.drop_upstream(upstream);
        for client in self.clients() {
            client.unask_all(upstream);
        }
        if server.is_removed.get() {
            self.remove(server);
        }
        self.tell_news();
    }

    /// Whom a message of a server belongs to, and where they asked.
    fn addressee(&self, by: &Rc<Upstream>) -> Option<(Rc<Client>, To)> {
        if let Holder::Client(number) = by.key().holder {
            let client = self.clients.borrow().get(&number).cloned()?;
            let to = by.only_client().map_or(To::Anyone, |(_, stream)| To::During(stream));
            return Some((client, to));
        }
        by.only_client().map(|(client, stream)| (client, To::During(stream)))
    }

    fn resource_updated(&self, by: &InstanceKey, params: Option<&str>, line: &[u8]) {
        let Some(written) = Params::read(params).uri() else { return };
        let Some(uri) = xy_mcp::envelope::text_of(written) else { return };
        let watchers = self.subscriptions.borrow().watchers(&by.server, &uri, by.holder);
        for watcher in watchers {
            let Some(client) = self.client(watcher.client) else { continue };
            let mut edits = xy_mcp::edit::Edits::of(line);
            if watcher.by_outside_name {
                let outside = names::uri_outside(by.server.as_str(), &uri);
                edits.replace(written, names::quoted(&outside));
            }
            client.tell(&edits.to_vec(), To::Anyone);
        }
    }

    fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("whoever calls the hub holds it")
    }
}

impl Company for Hub {
    fn told(&self, by: &Rc<Upstream>, method: &str, params: Option<&str>, line: &[u8]) {
        match method {
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed" => by.lists_changed(),
            "notifications/resources/updated" => self.resource_updated(by.key(), params, line),
            "notifications/cancelled" => {
                if let Some(id) = Params::read(params).request_id() {
                    for client in self.clients() {
                        client.unask(by, id, line);
                    }
                }
            }
            _ => match self.addressee(by) {
                Some((client, to)) if wants(&client, method, params) => client.tell(line, to),
                Some(_) => {}
                None => by.stray(line),
            },
        }
    }

    fn asked(&self, by: &Rc<Upstream>, id: &str, method: &str, line: &[u8]) {
        let capability = match method {
            "sampling/createMessage" => "sampling",
            "elicitation/create" => "elicitation",
            "roots/list" => "roots",
            _ => "",
        };
        let refuse = |code, why: &str| by.send(&say::error(id, code, why));
        let Some((client, to)) = self.addressee(by) else {
            return refuse(
                -32603,
                "it is not clear which client this is for: several share this server",
            );
        };
        // What we do not know the client may: it says itself if not.
        if !capability.is_empty() && !client.can(capability) {
            return refuse(-32601, "the client cannot do that");
        }
        let stream = match to {
            To::During(stream) => Some(stream),
            _ => None,
        };
        if let Err(fault) = client.ask(by, id, line, stream) {
            by.send(&say::fault(id, &fault));
        }
    }
}

/// There is no resource of this URI.
pub(crate) fn no_resource(uri: &str) -> CallError {
    say::invalid(format!("Resource not found: {}", xy_protocol::control::quoted(uri)))
}

/// Whether a client wants to know something that belongs to it.
fn wants(client: &Client, method: &str, params: Option<&str>) -> bool {
    if method != "notifications/message" {
        return true;
    }
    let word = Params::read(params).level().and_then(xy_mcp::envelope::text_of);
    let level = word.and_then(|word| Level::read(&word));
    match (level, client.level()) {
        (Some(level), Some(least)) => level >= least,
        _ => true,
    }
}

/// Something was asked whose answer tells nothing, or could not be asked.
fn let_be(question: Result<Question, CallError>) {
    if let Ok(question) = question {
        question.let_be();
    }
}

fn tell_level(upstream: &Rc<Upstream>, level: Level) {
    if upstream.introduction().is_some_and(|it| it.abilities.logging) {
        let params = format!(r#"{{"level":"{level}"}}"#);
        let_be(upstream.ask("logging/setLevel", Some(&params)));
        upstream.set_tuned();
    }
}

/// What is counted of each server: its name, what it says, and the number.
type Number<'n> = (&'n str, &'n str, &'n dyn Fn(&Server) -> usize);

impl HttpStatus for Hub {
    fn is_ready(&self) -> bool {
        let is_there = |server: &Rc<Server>| {
            let is_shared = server.settings.borrow().isolation == Isolation::Shared;
            !is_shared || server.upstream(Holder::Shared).is_some()
        };
        self.servers().iter().filter(|server| server.is_shown()).all(is_there)
    }

    fn metrics(&self, out: &mut String) {
        let servers = self.servers();
        let gauge = metrics::Kind::Gauge;
        metrics::single(
            out,
            "xy_clients",
            gauge,
            "Clients of the gateway.",
            self.clients.borrow().len(),
        );
        let watched = self.subscriptions.borrow().len();
        metrics::single(
            out,
            "xy_resources_watched",
            gauge,
            "Resources that clients watch.",
            watched,
        );
        let numbers: [Number<'_>; 4] = [
            ("xy_server_up", "Whether a server can be called.", &|it| {
                usize::from(!it.all_upstreams().is_empty())
            }),
            ("xy_server_tools", "Tools of a server.", &|it| {
                it.shown().map_or(0, |known| known.lists.of(Kind::Tools).len())
            }),
            ("xy_server_calls_open", "Calls a server has not answered.", &|it| {
                it.all_upstreams().iter().map(|upstream| upstream.open_calls()).sum()
            }),
            (
                "xy_server_calls_waiting",
                "Calls that wait for a server to come up.",
                &Server::waiting,
            ),
        ];
        for (name, help, number) in numbers {
            metrics::family(out, name, gauge, help);
            for server in &servers {
                metrics::sample(out, name, &[("server", server.name.as_str())], number(server));
            }
        }
    }
}

impl Front for Hub {
    fn open(&self, entry: Entry, outlet: Rc<dyn Outlet>) -> Result<Rc<dyn Conversation>, Refusal> {
        match &entry.view {
            View::Server(name) if self.server(name).is_none() => {
                return Err(Refusal::NoServer(name.clone()));
            }
            View::Profile(name) if name != DEFAULT_PROFILE => {
                return Err(Refusal::NoProfile(name.clone()));
            }
            _ => {}
        }
        let count = self.clients.borrow().len();
        if count >= MOST_CLIENTS {
            return Err(Refusal::TooMany(count));
        }
        let number = self.next_client.replace(self.next_client.get() + 1);
        let client = Client::new(number, entry, self.me(), outlet);
        self.clients.borrow_mut().insert(number, client.clone());
        Ok(client)
    }
}
