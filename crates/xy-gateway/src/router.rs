//! All servers and all clients of the gateway, on its one thread.
//!
//! Nothing here waits: what takes time is a task of its own that comes back with news.
//! `lists.rs` answers what there is, `loops.rs` knows which daemons are behind servers, `changes.rs` tells of what is not as it was, `members.rs` has
//! servers come and go, `attribution.rs` decides whom a server's words are for,
//! `tasks.rs` finds tasks, `pending_input.rs` keeps calls for clients that come back, `client_group.rs` those
//! who cannot be told apart, `idle.rs` wakes who sleeps, `watching.rs` what is to be heard of, `status.rs` counts.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use xy_config::settings::ParkSettings;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;
use xy_search::Index;
use xy_supervisor::instance::Holder;

use crate::admin::GatewayStatus;
use crate::backend::{Availability, Backend, Lot};
use crate::bridge::pending_input::Parked;
use crate::catalog::Known;
use crate::client::Client;
use crate::control::Control;
use crate::era::Era;
use crate::frontend::{ClientSession, Entry, Frontend, Refusal, Responder, View};
use crate::generation::Generation;
use crate::held::Held;
use crate::large::LargeReader;
use crate::level::Level;
use crate::manifest::Manifests;
use crate::names;
use crate::ownership::Owners;
use crate::reply;
use crate::scope::Scope;
use crate::subscriptions::{Subscriptions, Watcher};
use crate::upstream::{Question, Upstream};
use crate::via::Daemons;

mod attribution;
mod changes;
mod client_group;
mod explain;
mod idle;
mod lists;
mod loops;
mod members;
mod pending_input;
mod profiles;
mod recovery;
mod retained;
mod search;
mod shares;
mod sharing;
mod status;
mod tasks;
mod watching;

pub(crate) use shares::{LOCAL, TokenUse};

pub(crate) use lists::no_resource;
pub(crate) use search::{DEFAULT_HITS, FoundTool};

/// Clients at the same time, over all doors.
const MOST_CLIENTS: usize = 2000;

/// So long the client of an instance of its own waits until that has said what it offers. What
/// one says that was asked something before that is nobody else's.
pub(crate) const LISTS_FIRST: Duration = Duration::from_secs(2);

/// All servers and clients.
pub(crate) struct Router {
    me: Weak<Self>,
    this_daemon: Daemons,
    /// Parses the large messages of servers.
    large: LargeReader,
    servers: RefCell<BTreeMap<ServerName, Rc<Backend>>>,
    clients: RefCell<HashMap<u64, Rc<Client>>>,
    /// How many are in memory.
    clients_alive: Rc<Cell<usize>>,
    next_client: Cell<u64>,
    pub(crate) generation: Generation,
    subscriptions: RefCell<Subscriptions>,
    /// Whose the ids are that servers give out.
    owners: RefCell<Owners>,
    /// Counts what clients could want to know: a server came or went, or is known better.
    revision: watch::Sender<u64>,
    /// Whether clients will soon be told of changed lists.
    is_telling: Cell<bool>,
    /// What servers were last told to log.
    level: Cell<Option<Level>>,
    /// The most that any modern client wanted to know of that.
    modern_level: Cell<Option<Level>>,
    /// Calls that wait for modern clients to come back.
    pub(crate) parked: Parked,
    /// Whether somebody looks after those that do not.
    is_sweeping: Cell<bool>,
    /// What is kept of requests that may have to be sent again.
    kept: Rc<Cell<usize>>,
    /// Who shares instances since the door cannot tell them apart, by what it knows of them.
    groups: RefCell<HashMap<HouseKey, ClientGroup>>,
    /// How many instances there may be at one time.
    instances_max: Cell<usize>,
    /// What is to be shown of servers.
    seen: watch::Sender<GatewayStatus>,
    /// How much may wait for servers, and how much does.
    pub(crate) lot: Rc<Lot>,
    pub(crate) manifests: Manifests,
    pub(crate) control: Arc<dyn Control>,
    /// What profiles show, by name.
    scopes: RefCell<BTreeMap<String, Rc<Scope>>>,
    /// All tools, to be searched, and what each of its layers is made of.
    index: RefCell<Index>,
    indexed: RefCell<BTreeMap<search::Layer, Option<Rc<Known>>>>,
    /// The lines of them that are about nothing, as they were told.
    idle_lines: RefCell<BTreeSet<String>>,
    /// Who was shown more than it can take: by which profile, what it calls itself.
    crowded: RefCell<BTreeMap<(String, String), String>>,
}

/// What a door knows of a client that stays for one request: its token, and what it says who
/// it is.
type HouseKey = (u64, Box<str>);

/// Clients that a door cannot tell apart.
struct ClientGroup {
    number: u64,
    /// Their token.
    token: u64,
    /// How many there are now.
    open: usize,
    /// When the last of them left.
    left_at: Instant,
    /// Whether somebody looks whether they stay away.
    is_closing: bool,
}

impl Router {
    pub(crate) fn new(
        manifests: Manifests,
        control: Arc<dyn Control>,
        first_client: u64,
        seen: watch::Sender<GatewayStatus>,
        (parked, park): (Parked, ParkSettings),
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
            owners: RefCell::default(),
            revision: watch::Sender::new(0),
            is_telling: Cell::new(false),
            level: Cell::new(None),
            modern_level: Cell::new(None),
            parked,
            is_sweeping: Cell::new(false),
            kept: Rc::default(),
            groups: RefCell::default(),
            instances_max: Cell::new(usize::MAX),
            seen,
            lot: Lot::new(park),
            manifests,
            control,
            scopes: RefCell::default(),
            index: RefCell::default(),
            indexed: RefCell::default(),
            idle_lines: RefCell::default(),
            crowded: RefCell::default(),
        })
    }

    /// The server of this name.
    pub(crate) fn server(&self, name: &str) -> Option<Rc<Backend>> {
        self.servers.borrow().get(name).cloned()
    }

    /// All servers, in order.
    pub(crate) fn servers(&self) -> Vec<Rc<Backend>> {
        self.servers.borrow().values().cloned().collect()
    }

    /// The server of this name, if a client is shown anything of it.
    pub(crate) fn server_for(&self, client: &Client, name: &str) -> Option<Rc<Backend>> {
        self.server(name).filter(|_| client.allows_server(name))
    }

    /// All servers that a client is shown anything of, in order.
    pub(crate) fn servers_of(&self, client: &Client) -> Vec<Rc<Backend>> {
        let servers = self.servers.borrow();
        servers.values().filter(|it| client.allows_server(it.name.as_str())).cloned().collect()
    }

    /// What counts one more client, as long as that is in memory.
    pub(crate) fn counts_client(&self) -> Held {
        let mut one = Held::of(&self.clients_alive, usize::MAX);
        one.holds(1);
        one
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

    /// Lets it be known which servers ask questions.
    pub(crate) fn tell_asking(&self) {
        let servers = self.servers();
        let asking: BTreeSet<ServerName> =
            servers.iter().filter(|it| it.asks()).map(|it| it.name.clone()).collect();
        self.tell_seen(|seen| &mut seen.asking, asking);
    }

    /// Lets something be known, if it is not yet.
    fn tell_seen<T: PartialEq>(&self, part: impl Fn(&mut GatewayStatus) -> &mut T, now: T) {
        self.seen.send_if_modified(|seen| {
            let part = part(seen);
            let is_new = *part != now;
            *part = now;
            is_new
        });
    }

    /// Lets it be known which revision is spoken with each server.
    pub(crate) fn tell_spoken(&self) {
        let version = |server: &Rc<Backend>| {
            let all = server.all_upstreams().into_iter().filter(|_| !server.is_hidden());
            let upstream = all.min_by_key(|it| it.key().clone())?;
            Some((server.name.clone(), upstream.introduction()?.version.clone()))
        };
        let spoken: BTreeMap<ServerName, String> =
            self.servers().iter().filter_map(version).collect();
        self.tell_seen(|seen| &mut seen.spoken, spoken);
        let second = |server: &Rc<Backend>| {
            let all = server.own_upstreams().into_iter();
            let upstream = all.filter(|_| server.may_split()).max_by_key(|it| it.key().clone())?;
            upstream.key().holder.era()?;
            Some((server.name.clone(), upstream.introduction()?.version.clone()))
        };
        let spoken = self.servers().iter().filter_map(second).collect();
        self.tell_seen(|seen| &mut seen.spoken_by_second, spoken);
    }

    /// Whether a server is there has changed, or not.
    pub(crate) fn set_availability(&self, server: &Rc<Backend>, standing: Availability) {
        if *server.standing.borrow() == standing {
            return;
        }
        *server.standing.borrow_mut() = standing.clone();
        if let Availability::Down(why) = standing {
            let fault = server.down(&why);
            for waited in server.take_all_waiting(None) {
                server.give_up(&waited, &fault);
            }
        }
        self.lists_changed();
        self.tell_news();
    }

    /// An instance of a server has said what it offers; what of that is for everybody to know.
    ///
    /// What one has that lives for a single client is shown to that client alone. Before it has
    /// heard anything of that, it offers what everybody would get, but for resources; from then
    /// on what it adds may come of a login, and is nobody else's.
    pub(crate) fn learn(
        &self,
        server: &Rc<Backend>,
        by: &Rc<Upstream>,
        known: Known,
    ) -> Option<Rc<Known>> {
        let known = Rc::new(known);
        by.set_known(known.clone());
        let for_all = match by.key().holder {
            Holder::Shared => Some(known),
            Holder::Client(_) if by.is_fresh() => {
                let lists = known.lists.clone().for_everybody();
                let introduction = known.introduction.clone();
                Some(Rc::new(Known::new(server.name.as_str(), introduction, lists)))
            }
            Holder::Client(_) | Holder::Era(_) => None,
        };
        if let Some(for_all) = &for_all {
            self.know(server, for_all);
        }
        self.admit(server, by);
        self.lists_changed();
        self.tell_news();
        for_all
    }

    /// This is what a server offers to everybody.
    fn know(&self, server: &Rc<Backend>, for_all: &Rc<Known>) {
        server.has_said(for_all);
        server.known.replace(Some(for_all.clone()));
        for other in self.servers().iter().filter(|it| it.home().is_some()) {
            if server.is_home_of(other) {
                other.known.replace(Some(for_all.under(&other.name)));
            }
        }
    }

    /// Writes what is remembered of a server, if anything is known of it.
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

    /// Returns the era in which the client of an instance speaks, if it is there.
    pub(crate) fn era_of(&self, number: u64) -> Option<Era> {
        let client = self.client(number).map(|client| client.era());
        client.or_else(|| self.is_house(number).then_some(Era::Modern))
    }

    /// An instance for one client has said what it offers, or takes too long to: its client may
    /// ask it from now on.
    fn admit(&self, server: &Rc<Backend>, upstream: &Rc<Upstream>) {
        if upstream.holds_off_no_more() {
            server.release_for(upstream.key().holder);
            self.tell_news();
        }
    }

    /// Somebody watches a resource.
    pub(crate) fn subscribe(
        &self,
        server: &Rc<Backend>,
        uri: &str,
        watcher: Watcher,
    ) -> Result<(), CallError> {
        self.subscriptions.borrow_mut().add(&server.name, uri, watcher).map_err(reply::invalid)
    }

    /// Somebody watches a resource no more; whether nobody does now, under whichever name.
    pub(crate) fn unsubscribe(&self, server: &Rc<Backend>, uri: &str, client: &Client) -> bool {
        self.subscriptions.borrow_mut().remove(&server.name, uri, client.number());
        !self.is_watched(&server.primary_or_self(), server.holder(client), uri)
    }

    /// An instance can be asked from now on.
    pub(crate) fn opened(&self, upstream: &Rc<Upstream>) {
        let Some(server) = self.server(upstream.key().server.as_str()) else { return };
        let holder = upstream.key().holder;
        server.has_come(holder);
        server.release_for(holder);
        if upstream.holds_off() {
            let (router, server, upstream) = (self.me(), server.clone(), Rc::downgrade(upstream));
            tokio::task::spawn_local(async move {
                tokio::time::sleep(LISTS_FIRST).await;
                if let Some(upstream) = upstream.upgrade() {
                    router.admit(&server, &upstream);
                }
            });
        }
        match self.level.get() {
            Some(level) => tell_level(upstream, level),
            // It may still keep silent for a client of an earlier daemon.
            None if upstream.is_tuned() => tell_level(upstream, Level::USUAL),
            None => {}
        }
        self.restore_watched(&server, upstream);
        self.tell_news();
    }

    /// Has an instance tell of everything that is watched there.
    fn restore_watched(&self, server: &Rc<Backend>, upstream: &Rc<Upstream>) {
        let watched = self.watched(server, upstream.key().holder);
        if upstream.is_modern() {
            // The wish stands, whoever waits for it.
            return drop(upstream.listen_to(watched));
        }
        for uri in watched.uris {
            let params = format!(r#"{{"uri":{}}}"#, names::quoted(&uri));
            detach(upstream.ask("resources/subscribe", Some(&params)));
        }
    }

    /// Servers log what the one who wants to know most wants to know.
    pub(crate) fn tune(&self) {
        let clients = self.clients.borrow();
        let modern = self.modern_level.get();
        let has_anybody_said =
            modern.is_some() || clients.values().any(|client| client.level().is_some());
        if self.level.get().is_none() && !has_anybody_said {
            return; // Servers say what they like.
        }
        // What one client does not want to know must not be kept from the others.
        let wanted = clients.values().filter(|client| client.greeted().is_some());
        let wanted = wanted.map(|client| client.level().unwrap_or(Level::USUAL));
        let level = wanted.chain(modern).min();
        drop(clients);
        let Some(level) = level else { return };
        if self.level.replace(Some(level)) == Some(level) {
            return;
        }
        for upstream in self.servers().iter().flat_map(|server| server.own_upstreams()) {
            tell_level(&upstream, level);
        }
    }

    /// A client has gone.
    pub(crate) fn left(&self, client: &Client) {
        let number = client.number();
        self.clients.borrow_mut().remove(&number);
        // Some clients stay for one request: nobody looks for what they cannot have left.
        let watched = client.has_watched().then(|| self.subscriptions.borrow_mut().forget(number));
        for it in watched.into_iter().flatten() {
            let Some(server) = self.server(it.server.as_str()) else { continue };
            let (home, holder) = (server.primary_or_self(), server.holder(client));
            if !self.is_watched(&home, holder, &it.uri) {
                self.unwatched(&home, holder, &it.uri);
            }
        }
        self.owners.borrow_mut().left(number, Instant::now());
        if !client.stays() {
            return self.left_house(client);
        }
        self.give_up_parked(client);
        for server in self.servers() {
            server.forget_user(number);
            if server.holder(client) == Holder::Client(number) && server.owner().is_none() {
                tokio::task::spawn_local(self.control.release(&server.name, number));
            }
        }
        self.tune();
    }

    /// A life of a server is over, like this.
    pub(crate) fn over(&self, server: &Rc<Backend>, upstream: &Rc<Upstream>, why: &str) {
        server.drop_upstream(upstream);
        self.forgotten_by(upstream, why);
        if server.is_removed.get() {
            self.remove(server);
        }
        self.tell_spoken();
        self.tell_news();
    }

    /// A server is greeted again: what it has asked and begun before is of no use any more.
    pub(crate) fn begun_anew(&self, upstream: &Rc<Upstream>) {
        self.forgotten_by(upstream, "it has forgotten the session");
    }

    fn forgotten_by(&self, upstream: &Rc<Upstream>, why: &str) {
        self.owners.borrow_mut().lost(upstream.key(), why);
        for client in self.clients() {
            client.unask_all(upstream);
        }
    }

    /// A number that no client has, or had.
    fn new_number(&self) -> u64 {
        self.next_client.replace(self.next_client.get() + 1)
    }

    fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("whoever calls the hub holds it")
    }
}

/// Something was asked whose answer tells nothing, or could not be asked.
fn detach(question: Result<Question, CallError>) {
    if let Ok(question) = question {
        question.detach();
    }
}

fn tell_level(upstream: &Rc<Upstream>, level: Level) {
    if upstream.is_modern() {
        return; // Each request says it.
    }
    if upstream.introduction().is_some_and(|it| it.abilities.logging) {
        let params = format!(r#"{{"level":"{level}"}}"#);
        let asked = upstream.ask("logging/setLevel", Some(&params));
        if let Ok(asked) = &asked {
            asked.comes_first(); // Whoever calls next wants its messages at that level.
        }
        detach(asked);
        upstream.set_tuned();
    }
}

impl Frontend for Router {
    fn open(
        &self,
        entry: Entry,
        responder: Rc<dyn Responder>,
    ) -> Result<Rc<dyn ClientSession>, Refusal> {
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
        let visibility = self.lens_of(&entry.view)?;
        let token = TokenUse { id: entry.who };
        let who = profiles::who_at(entry.who, &entry.view);
        let entry = Entry { who, ..entry };
        let count = self.clients.borrow().len();
        if count >= MOST_CLIENTS {
            return Err(Refusal::TooMany(count));
        }
        let number = self.new_number();
        let client = Client::new(number, (entry, visibility, token), self.me(), responder);
        self.clients.borrow_mut().insert(number, client.clone());
        Ok(client)
    }

    fn profiles(&self) -> Vec<String> {
        self.profile_names().into_iter().collect()
    }

    fn large_reader(&self) -> LargeReader {
        self.large.clone()
    }
}
