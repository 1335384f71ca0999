//! What a modern client wants to be told of: its `subscriptions/listen` requests, each open
//! until it has heard enough.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde::Deserialize;
use tokio::task::{AbortHandle, JoinSet};
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Message};
use xy_mcp::members::Members;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::instance::InstanceKey;

use super::dispatch::{Outcome, Request};
use super::{Client, Open, Shown};
use crate::backend::Backend;
use crate::catalog::Kind;
use crate::frontend::{Route, StreamNo, View};
use crate::held::Held;
use crate::modern::{self, SUBSCRIPTION};
use crate::names::{self, quoted};
use crate::ownership::Owner;
use crate::reply;
use crate::upstream::Wanted;

/// How many such requests one client may have open.
const MOST: usize = 100;

/// How many resources one of them may name, and how many tasks.
const MOST_URIS: usize = 1000;

/// What is kept for one that does not know yet what it will be told: each thing once.
const MOST_UNTOLD: usize = 2 * MOST_URIS + LISTS.len();

/// By what the client calls them.
pub(super) type Listens = BTreeMap<Box<str>, Listen>;

/// What one request wants to be told.
pub(super) struct Listen {
    stream: StreamNo,
    kinds: BTreeSet<&'static str>,
    /// Also what its server has not said yet whether it can be.
    watched: Vec<Watched>,
    /// Tasks, the same.
    followed: BTreeSet<(InstanceKey, String)>,
    /// What finds that out; it ends with this.
    asking: Option<AbortHandle>,
    /// What it is told once it knows what it will be told; `None` once it does.
    untold: Option<Untold>,
}

/// What somebody is to be told later.
struct Untold {
    lines: Vec<Vec<u8>>,
    /// There is a bound for all of them.
    held: Held,
}

impl Untold {
    /// Keeps one more, unless it has been said, or there is no room for it.
    fn add(&mut self, line: Vec<u8>) {
        let bytes: usize = self.lines.iter().map(Vec::len).sum();
        if self.lines.len() >= MOST_UNTOLD || self.lines.contains(&line) {
            return;
        }
        if self.held.holds(bytes + line.len()) {
            self.lines.push(line);
        } else {
            self.held.holds(bytes);
        }
    }
}

impl Listen {
    /// Whose tasks it listens to.
    fn followed_where(&self) -> BTreeSet<InstanceKey> {
        self.followed.iter().map(|(at, _)| at.clone()).collect()
    }
}

impl Drop for Listen {
    fn drop(&mut self) {
        if let Some(asking) = &self.asking {
            asking.abort();
        }
    }
}

/// A resource that is watched.
#[derive(Clone)]
struct Watched {
    server: Rc<Backend>,
    /// What the server calls it.
    uri: String,
    /// As the client wrote it.
    written: String,
    by_outside_name: bool,
}

/// What is asked for, as it stands in the request.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Filter {
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
    resource_subscriptions: Vec<String>,
    task_ids: Vec<String>,
}

/// What a client may ask for, and what it is then told.
const LISTS: [(&str, Kind); 3] = [
    ("toolsListChanged", Kind::Tools),
    ("promptsListChanged", Kind::Prompts),
    ("resourcesListChanged", Kind::Resources),
];

impl Filter {
    fn wants(&self, kind: Kind) -> bool {
        match kind {
            Kind::Tools => self.tools_list_changed,
            Kind::Prompts => self.prompts_list_changed,
            Kind::Resources | Kind::Templates => self.resources_list_changed,
        }
    }
}

impl Client {
    /// Tells what the client asks for, from now on. The first word is what that will be, once
    /// the servers have said which resources can be watched.
    pub(super) fn listen(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        let filter = request.params.notifications().unwrap_or("null");
        if !filter.starts_with('{') && filter != "null" {
            return Err(reply::invalid("`notifications` is not an object"));
        }
        let filter: Option<Filter> = serde_json::from_str(filter).map_err(|problem| {
            reply::invalid(format!("`notifications` cannot be read: {problem}"))
        })?;
        let filter = filter.ok_or_else(|| reply::invalid("`notifications` says what to tell"))?;
        let most = filter.resource_subscriptions.len().max(filter.task_ids.len());
        if self.listens.borrow().len() >= MOST || most > MOST_URIS {
            let message = format!(
                "a client may listen {MOST} times, to {MOST_URIS} resources and tasks each"
            );
            return Err(CallError::new(ErrorKind::QueueFull, message));
        }
        let knows_tasks = request.manner.as_ref().is_some_and(|manner| manner.has_tasks());
        if !filter.task_ids.is_empty() && !knows_tasks {
            return Ok(Outcome::Error(modern::knows_no_tasks()));
        }
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| filter.wants(*kind)).collect();
        for kind in &kinds {
            self.shows(*kind, Shown::Print(self.router.print(*kind, self)));
        }
        let names = LISTS.into_iter().filter(|(_, kind)| kinds.contains(kind));
        let accepted: Vec<&'static str> = names.map(|(name, _)| name).collect();
        let kinds = kinds.iter().map(|kind| kind.changed()).collect();
        let found = filter.resource_subscriptions.iter().filter_map(|uri| self.find(uri));
        let watched: Vec<Watched> = found
            .filter(|one| self.subscribe(&one.server, &one.uri, one.by_outside_name).is_ok())
            .collect();
        let tasks = filter.task_ids.into_iter();
        let followed: BTreeSet<(InstanceKey, String)> =
            tasks.filter_map(|id| Some((self.router.place_of_task(self, &id)?, id))).collect();
        let (client, id) = (self.me(), request.id.to_owned());
        let (all, tasks) = (watched.clone(), followed.clone());
        let stream = request.stream;
        let untold = Some(Untold { lines: Vec::new(), held: self.hold_bytes() });
        let listen = Listen { stream, kinds, watched, followed, asking: None, untold };
        self.listens.borrow_mut().insert(request.id.into(), listen);
        if all.is_empty() && tasks.is_empty() {
            client.acknowledge(&id, &accepted, &Wanted::default());
            return Ok(Outcome::Under(Open::Listening));
        }
        let asking = tokio::task::spawn_local(async move {
            let heard = client.watch_all(&id, all, tasks).await;
            client.acknowledge(&id, &accepted, &heard);
        });
        if let Some(listen) = self.listens.borrow_mut().get_mut(request.id) {
            listen.asking = Some(asking.abort_handle());
        }
        Ok(Outcome::Under(Open::Listening))
    }

    /// Whose a resource is.
    fn find(&self, uri: &str) -> Option<Watched> {
        let watched = |server: Rc<Backend>, inside: &str, by_outside_name| {
            let (uri, written) = (inside.to_owned(), uri.to_owned());
            Some(Watched { server, uri, written, by_outside_name })
        };
        if let View::Server(name) = &self.entry.view {
            return watched(self.router.server(name)?, uri, false);
        }
        match names::uri_inside(uri) {
            Some((server, inside)) => {
                let server = self.router.server_for(self, server)?;
                let is_shown = self.may_see(Kind::Resources, &server.name, inside);
                watched(server, inside, true).filter(|_| is_shown)
            }
            None => watched(self.router.owner_of(self, uri).ok()?, uri, false),
        }
    }

    /// Has all of these watched, as far as their servers can; answers which are, as the client
    /// wrote them.
    async fn watch_all(
        self: &Rc<Self>,
        id: &str,
        all: Vec<Watched>,
        tasks: BTreeSet<(InstanceKey, String)>,
    ) -> Wanted {
        // A process that has several names is asked once.
        let home = |server: &Rc<Backend>| server.primary_or_self().name.clone();
        let mut servers: BTreeMap<ServerName, (Rc<Backend>, BTreeSet<String>)> = BTreeMap::new();
        for one in &all {
            let of = servers.entry(home(&one.server));
            of.or_insert_with(|| (one.server.clone(), BTreeSet::new())).1.insert(one.uri.clone());
        }
        for (at, _) in &tasks {
            if let Some(server) = self.router.server(at.server.as_str()) {
                servers.entry(at.server.clone()).or_insert_with(|| (server, BTreeSet::new()));
            }
        }
        let mut asked = JoinSet::new();
        for (name, (server, uris)) in servers {
            let client = self.clone();
            asked.spawn_local(async move {
                let watched = client.router.watch(&server, &client, uris).await;
                (name, watched.unwrap_or_default())
            });
        }
        let mut accepted: BTreeMap<ServerName, Rc<Wanted>> = BTreeMap::new();
        while let Some(Ok((name, heard))) = asked.join_next().await {
            accepted.insert(name, heard);
        }
        let is_watched = |one: &Watched| {
            accepted.get(&home(&one.server)).is_some_and(|heard| heard.uris.contains(&one.uri))
        };
        let (watched, refused): (Vec<Watched>, Vec<Watched>) =
            all.into_iter().partition(is_watched);
        let is_followed = |(at, id): &(InstanceKey, String)| {
            accepted.get(&at.server).is_some_and(|heard| heard.tasks.contains(id))
        };
        let followed: BTreeSet<_> = tasks.into_iter().filter(is_followed).collect();
        if let Some(listen) = self.listens.borrow_mut().get_mut(id) {
            listen.watched.clone_from(&watched);
            listen.followed.retain(is_followed);
        }
        for one in &refused {
            self.unwatch(one);
        }
        let uris = watched.into_iter().map(|one| one.written).collect();
        Wanted { uris, tasks: followed.into_iter().map(|(_, id)| id).collect() }
    }

    /// The first word to who listens: what it will be told.
    fn acknowledge(&self, id: &str, lists: &[&str], heard: &Wanted) {
        let Some(stream) = self.listens.borrow().get(id).map(|listen| listen.stream) else {
            return; // It has heard enough already.
        };
        let mut accepted: Vec<String> =
            lists.iter().map(|name| format!(r#""{name}":true"#)).collect();
        for (name, all) in [("resourceSubscriptions", &heard.uris), ("taskIds", &heard.tasks)] {
            if !all.is_empty() {
                let all: Vec<String> = all.iter().map(|it| quoted(it)).collect();
                accepted.push(format!(r#""{name}":[{}]"#, all.join(",")));
            }
        }
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"{SUBSCRIPTION}":{id}}},"notifications":{{{}}}}}}}"#,
            accepted.join(",")
        );
        self.tell(line.as_bytes(), Route::Related(stream));
        let mut listens = self.listens.borrow_mut();
        let untold = listens.get_mut(id).and_then(|listen| listen.untold.take());
        drop(listens);
        for line in untold.into_iter().flat_map(|untold| untold.lines) {
            self.tell(&line, Route::Related(stream));
        }
    }

    /// Tells who listens, once it has been told what it will hear.
    fn tell_listener(&self, listen: &mut Listen, line: Vec<u8>) {
        match &mut listen.untold {
            None => self.tell(&line, Route::Related(listen.stream)),
            Some(untold) => untold.add(line),
        }
    }

    /// A list has changed.
    pub(crate) fn tell_changed(&self, changed: &str) {
        self.pass_changed(changed, &reply::notification(changed));
    }

    /// Passes on what a server says of a list that has changed; `line` is all of it.
    pub(crate) fn pass_changed(&self, changed: &str, line: &[u8]) {
        self.tell(&without_subscription(line), Route::Broadcast);
        for (id, listen) in self.listens.borrow_mut().iter_mut() {
            if !listen.kinds.contains(changed) {
                continue;
            }
            let has_params =
                matches!(envelope::parse(line), Ok(Message::Notification { params: Some(_), .. }));
            let line = if has_params {
                with_subscription(line, id)
            } else {
                let line = format!(
                    r#"{{"jsonrpc":"2.0","method":"{changed}","params":{{"_meta":{{"{SUBSCRIPTION}":{id}}}}}}}"#
                );
                line.into_bytes()
            };
            self.tell_listener(listen, line);
        }
    }

    /// A resource has changed that it watches; `line` says so in the words it knows.
    pub(crate) fn tell_updated(&self, server: &Backend, uri: &str, line: &[u8]) {
        self.tell(&without_subscription(line), Route::Broadcast);
        for (id, listen) in self.listens.borrow_mut().iter_mut() {
            let is_it = |one: &Watched| {
                one.server.name == server.name && crate::subscriptions::covers(&one.uri, uri)
            };
            if listen.watched.iter().any(is_it) {
                self.tell_listener(listen, with_subscription(line, id));
            }
        }
    }

    /// An instance tells how a task is doing, and whose that is. Whether it listens to that;
    /// of one that is over there is nothing more to hear.
    pub(crate) fn tell_task(
        &self,
        at: &InstanceKey,
        (id, owner): (&str, Option<Owner>),
        line: &[u8],
        is_over: bool,
    ) -> bool {
        let is_theirs = matches!(self.entry.view, View::Server(_))
            || owner == Some(Owner::Token(self.entry.who));
        let key = (at.clone(), id.to_owned());
        let mut is_told = false;
        for (subscription, listen) in self.listens.borrow_mut().iter_mut() {
            if is_theirs && listen.followed.contains(&key) {
                self.tell_listener(listen, with_subscription(line, subscription));
                is_told = true;
                if is_over {
                    listen.followed.remove(&key);
                }
            }
        }
        is_told
    }

    /// The tasks of an instance that it listens to.
    pub(crate) fn followed_at(&self, at: &InstanceKey) -> Vec<String> {
        let listens = self.listens.borrow();
        let all = listens.values().flat_map(|listen| &listen.followed);
        all.filter(|(it, _)| it == at).map(|(_, id)| id.clone()).collect()
    }

    /// It has heard enough of everything.
    pub(super) fn hears_no_more(&self) -> BTreeSet<InstanceKey> {
        let listens = self.listens.take();
        listens.values().flat_map(Listen::followed_where).collect()
    }

    /// It has heard enough of what it listened to under this id.
    pub(super) fn listens_no_more(&self, id: &str) {
        let Some(mut listen) = self.listens.borrow_mut().remove(id) else { return };
        self.router.follows_no_more(listen.followed_where());
        for one in std::mem::take(&mut listen.watched) {
            self.unwatch(&one);
        }
    }

    fn unwatch(&self, one: &Watched) {
        let is_same = |it: &Watched| it.server.name == one.server.name && it.uri == one.uri;
        let listens = self.listens.borrow();
        let is_wanted = listens.values().any(|listen| listen.watched.iter().any(is_same));
        drop(listens);
        let key = (one.server.name.clone(), one.uri.clone());
        if !is_wanted && !self.subscribed.borrow().contains(&key) {
            self.router.unwatch(&one.server, self, &one.uri);
        }
    }
}

/// What is told to who listens under this id.
fn with_subscription(line: &[u8], id: &str) -> Vec<u8> {
    edited(line, |rest| {
        let comma = if rest.len() > 2 { "," } else { "" };
        format!(r#"{{"{SUBSCRIPTION}":{id}{comma}{}"#, &rest[1..])
    })
}

/// What is told to who does not know such ids: what has none stays as it is written.
fn without_subscription(line: &[u8]) -> Vec<u8> {
    match memchr::memmem::find(line, b"subscriptionId") {
        Some(_) => edited(line, ToOwned::to_owned),
        None => line.to_vec(),
    }
}

/// A notification with another `_meta`, made from what it is without a subscription of ours.
fn edited(line: &[u8], meta: impl FnOnce(&str) -> String) -> Vec<u8> {
    let Ok(Message::Notification { params: Some(params), .. }) = envelope::parse(line) else {
        return line.to_vec();
    };
    let Some(members) = Members::read(params) else { return line.to_vec() };
    let before = members.get("_meta").and_then(Members::read).unwrap_or_default();
    let after = meta(&before.without(|key| key == SUBSCRIPTION).to_string());
    let rest = members.without(|key| key == "_meta").to_string();
    let mut edits = Edits::of(line);
    if after == "{}" {
        edits.replace(params, rest);
    } else {
        let comma = if rest.len() > 2 { "," } else { "" };
        edits.replace(params, format!(r#"{{"_meta":{after}{comma}{}"#, &rest[1..]));
    }
    edits.to_vec()
}
