//! `subscriptions/listen` requests of a modern client, each open until the client cancels it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde::Deserialize;
use tokio::task::{AbortHandle, JoinSet};
use xy_catalog::names;
use xy_http::frontend::{Route, StreamNo, View};
use xy_mcp::edit::{Edits, quoted};
use xy_mcp::envelope::{self, Message};
use xy_mcp::kind::Kind;
use xy_mcp::members::Members;
use xy_mcp::modern::{self, SUBSCRIPTION};
use xy_mcp::reply;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::instance::InstanceKey;
use xy_transport::budget::TokenReservation;
use xy_upstream::connection::EventFilter;

use super::dispatch::Outcome;
use super::request::Request;
use super::{Client, RequestPhase};
use crate::backend::Backend;
use crate::call::CallClient;
use crate::ownership::Owner;
use crate::router::ListVersion;

/// Maximum number of open listen requests of one client.
const MAX_LISTENS: usize = 100;

/// Maximum number of resources, and of tasks, in one listen request.
const MAX_WATCHED: usize = 1000;

/// Maximum number of notifications held back until the request is acknowledged; each is stored
/// once.
const MAX_PENDING: usize = 2 * MAX_WATCHED + LISTS.len();

/// Open listen requests, by request id.
pub(super) type ListenRequests = BTreeMap<Box<str>, ListenRequest>;

/// One open listen request.
pub(super) struct ListenRequest {
    stream: StreamNo,
    kinds: BTreeSet<&'static str>,
    /// The watched resources, including those that their server has not confirmed yet.
    watched: Vec<WatchedResource>,
    /// The followed tasks, including those that their server has not confirmed yet.
    followed: BTreeSet<(InstanceKey, String)>,
    /// The task that asks the servers for confirmation; aborted with the request.
    asking: Option<AbortHandle>,
    /// Notifications held back until the acknowledgement; `None` after it.
    pending: Option<PendingNotifications>,
}

/// Notifications to send later.
struct PendingNotifications {
    lines: Vec<Vec<u8>>,
    /// The bytes, within the client's share of a limit.
    held: TokenReservation,
}

impl PendingNotifications {
    /// Adds a notification, unless it is a duplicate or exceeds a limit.
    fn add(&mut self, line: Vec<u8>) {
        let bytes: usize = self.lines.iter().map(Vec::len).sum();
        if self.lines.len() >= MAX_PENDING || self.lines.contains(&line) {
            return;
        }
        if self.held.resize(bytes + line.len()) {
            self.lines.push(line);
        } else {
            self.held.resize(bytes);
        }
    }
}

impl ListenRequest {
    /// Returns the instances whose tasks are followed.
    fn followed_instances(&self) -> BTreeSet<InstanceKey> {
        self.followed.iter().map(|(at, _)| at.clone()).collect()
    }
}

impl Drop for ListenRequest {
    fn drop(&mut self) {
        if let Some(asking) = &self.asking {
            asking.abort();
        }
    }
}

/// A watched resource.
#[derive(Clone)]
struct WatchedResource {
    server: Rc<Backend>,
    /// The URI on the server.
    uri: String,
    /// The URI as the client wrote it.
    written: String,
    by_exposed_uri: bool,
}

/// The `notifications` parameter of the request.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Filter {
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
    resource_subscriptions: Vec<String>,
    task_ids: Vec<String>,
}

/// Members of the filter and of the acknowledgement, with their lists.
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
    /// Opens a listen request. The first notification acknowledges what will be sent, once the
    /// servers have confirmed which resources can be watched.
    pub(super) fn listen(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        let filter = request.params.notifications().unwrap_or("null");
        if !filter.starts_with('{') && filter != "null" {
            return Err(reply::invalid("`notifications` is not an object"));
        }
        let filter: Option<Filter> = serde_json::from_str(filter).map_err(|problem| {
            reply::invalid(format!("`notifications` cannot be read: {problem}"))
        })?;
        let filter = filter.ok_or_else(|| reply::invalid("`notifications` is missing"))?;
        let most = filter.resource_subscriptions.len().max(filter.task_ids.len());
        if self.listen_requests.borrow().len() >= MAX_LISTENS || most > MAX_WATCHED {
            self.limit_hit("subscriptions of one client");
            let message = format!(
                "too many subscriptions: the limit is {MAX_LISTENS} requests, with {MAX_WATCHED} \
                 resources and tasks each"
            );
            return Err(CallError::new(ErrorKind::QueueFull, message));
        }
        let knows_tasks =
            request.request_meta.as_ref().is_some_and(|request_meta| request_meta.has_tasks());
        if !filter.task_ids.is_empty() && !knows_tasks {
            return Ok(Outcome::Error(modern::missing_tasks_error()));
        }
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| filter.wants(*kind)).collect();
        for kind in &kinds {
            self.set_list_version(
                *kind,
                ListVersion::Fingerprint(self.router.fingerprint(*kind, self)),
            );
        }
        let names = LISTS.into_iter().filter(|(_, kind)| kinds.contains(kind));
        let accepted: Vec<&'static str> = names.map(|(name, _)| name).collect();
        let kinds = kinds.iter().map(|kind| kind.changed_method()).collect();
        let found = filter.resource_subscriptions.iter().filter_map(|uri| self.find_resource(uri));
        let watched: Vec<WatchedResource> = found
            .filter(|one| self.subscribe(&one.server, &one.uri, one.by_exposed_uri).is_ok())
            .collect();
        let tasks = filter.task_ids.into_iter();
        let followed: BTreeSet<(InstanceKey, String)> =
            tasks.filter_map(|id| Some((self.router.instance_of_task(self, &id)?, id))).collect();
        let (client, id) = (self.me(), request.id.to_owned());
        let (all, tasks) = (watched.clone(), followed.clone());
        let stream = request.stream;
        let pending = Some(PendingNotifications { lines: Vec::new(), held: self.byte_budget() });
        let listen = ListenRequest { stream, kinds, watched, followed, asking: None, pending };
        self.listen_requests.borrow_mut().insert(request.id.into(), listen);
        if all.is_empty() && tasks.is_empty() {
            client.acknowledge(&id, &accepted, &EventFilter::default());
            return Ok(Outcome::Pending(RequestPhase::Listening));
        }
        let asking = tokio::task::spawn_local(async move {
            let confirmed = client.watch_all(&id, all, tasks).await;
            client.acknowledge(&id, &accepted, &confirmed);
        });
        if let Some(listen) = self.listen_requests.borrow_mut().get_mut(request.id) {
            listen.asking = Some(asking.abort_handle());
        }
        Ok(Outcome::Pending(RequestPhase::Listening))
    }

    /// Finds the server of a resource.
    fn find_resource(&self, uri: &str) -> Option<WatchedResource> {
        let watched = |server: Rc<Backend>, original: &str, by_exposed_uri| {
            let (uri, written) = (original.to_owned(), uri.to_owned());
            Some(WatchedResource { server, uri, written, by_exposed_uri })
        };
        if let View::Server(name) = &self.entry.view {
            return watched(self.router.server(name)?, uri, false);
        }
        match names::split_exposed_uri(uri) {
            Some((server, original)) => {
                let server = self.router.server_for(self, server)?;
                let is_shown = self.may_see(Kind::Resources, &server.name, original);
                watched(server, original, true).filter(|_| is_shown)
            }
            None => watched(self.router.owner_of(self, uri).ok()?, uri, false),
        }
    }

    /// Subscribes at the servers; returns the confirmed resources, as the client wrote them, and
    /// tasks.
    async fn watch_all(
        self: &Rc<Self>,
        id: &str,
        all: Vec<WatchedResource>,
        tasks: BTreeSet<(InstanceKey, String)>,
    ) -> EventFilter {
        // A process with several names is asked once.
        let primary = |server: &Rc<Backend>| server.primary_or_self().name.clone();
        let mut servers: BTreeMap<ServerName, (Rc<Backend>, BTreeSet<String>)> = BTreeMap::new();
        for one in &all {
            let of = servers.entry(primary(&one.server));
            of.or_insert_with(|| (one.server.clone(), BTreeSet::new())).1.insert(one.uri.clone());
        }
        for (at, _) in &tasks {
            if let Some(server) = self.router.server(at.server.as_str()) {
                servers.entry(at.server.clone()).or_insert_with(|| (server, BTreeSet::new()));
            }
        }
        let mut queries = JoinSet::new();
        for (name, (server, uris)) in servers {
            let client = self.clone();
            queries.spawn_local(async move {
                let watched = client.router.watch(&server, &*client, uris).await;
                (name, watched.unwrap_or_default())
            });
        }
        let mut accepted: BTreeMap<ServerName, Rc<EventFilter>> = BTreeMap::new();
        while let Some(Ok((name, filter))) = queries.join_next().await {
            accepted.insert(name, filter);
        }
        let is_watched = |one: &WatchedResource| {
            accepted.get(&primary(&one.server)).is_some_and(|filter| filter.uris.contains(&one.uri))
        };
        let (watched, refused): (Vec<WatchedResource>, Vec<WatchedResource>) =
            all.into_iter().partition(is_watched);
        let is_followed = |(at, id): &(InstanceKey, String)| {
            accepted.get(&at.server).is_some_and(|filter| filter.tasks.contains(id))
        };
        let followed: BTreeSet<_> = tasks.into_iter().filter(is_followed).collect();
        if let Some(listen) = self.listen_requests.borrow_mut().get_mut(id) {
            listen.watched.clone_from(&watched);
            listen.followed.retain(is_followed);
        }
        for one in &refused {
            self.unwatch(one);
        }
        let uris = watched.into_iter().map(|one| one.written).collect();
        EventFilter { uris, tasks: followed.into_iter().map(|(_, id)| id).collect() }
    }

    /// Sends the acknowledgement of a listen request, and then the notifications held back.
    fn acknowledge(&self, id: &str, lists: &[&str], confirmed: &EventFilter) {
        let Some(stream) = self.listen_requests.borrow().get(id).map(|listen| listen.stream) else {
            return; // The client has cancelled it.
        };
        let mut accepted: Vec<String> =
            lists.iter().map(|name| format!(r#""{name}":true"#)).collect();
        for (name, all) in
            [("resourceSubscriptions", &confirmed.uris), ("taskIds", &confirmed.tasks)]
        {
            if !all.is_empty() {
                let all: Vec<String> = all.iter().map(|it| quoted(it)).collect();
                accepted.push(format!(r#""{name}":[{}]"#, all.join(",")));
            }
        }
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"{SUBSCRIPTION}":{id}}},"notifications":{{{}}}}}}}"#,
            accepted.join(",")
        );
        self.send(line.as_bytes(), Route::Related(stream));
        let mut listen_requests = self.listen_requests.borrow_mut();
        let pending = listen_requests.get_mut(id).and_then(|listen| listen.pending.take());
        drop(listen_requests);
        for line in pending.into_iter().flat_map(|pending| pending.lines) {
            self.send(&line, Route::Related(stream));
        }
    }

    /// Sends a notification on a listen request, or holds it back until the acknowledgement.
    fn notify_listener(&self, listen: &mut ListenRequest, line: Vec<u8>) {
        match &mut listen.pending {
            None => self.send(&line, Route::Related(listen.stream)),
            Some(pending) => pending.add(line),
        }
    }

    /// Notifies the client that a list has changed.
    pub(crate) fn notify_list_changed(&self, changed: &str) {
        self.forward_list_changed(changed, &reply::notification(changed));
    }

    /// Forwards a server's notification that a list has changed; `line` is the whole message.
    pub(crate) fn forward_list_changed(&self, changed: &str, line: &[u8]) {
        self.send(&without_subscription(line), Route::Broadcast);
        for (id, listen) in self.listen_requests.borrow_mut().iter_mut() {
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
            self.notify_listener(listen, line);
        }
    }

    /// Notifies the client that a resource has changed; `line` names it as the client does.
    pub(crate) fn notify_updated(&self, server: &Backend, uri: &str, line: &[u8]) {
        self.send(&without_subscription(line), Route::Broadcast);
        for (id, listen) in self.listen_requests.borrow_mut().iter_mut() {
            let is_it = |one: &WatchedResource| {
                one.server.name == server.name && crate::subscriptions::covers(&one.uri, uri)
            };
            if listen.watched.iter().any(is_it) {
                self.notify_listener(listen, with_subscription(line, id));
            }
        }
    }

    /// Sends the status of a task to each listen request that follows it. Returns true if any does.
    /// A finished task is followed no longer.
    pub(crate) fn notify_task(
        &self,
        at: &InstanceKey,
        (id, owner): (&str, Option<Owner>),
        line: &[u8],
        is_over: bool,
    ) -> bool {
        let may_see = matches!(self.entry.view, View::Server(_))
            || owner == Some(Owner::Token(self.entry.principal));
        let key = (at.clone(), id.to_owned());
        let mut was_sent = false;
        for (subscription, listen) in self.listen_requests.borrow_mut().iter_mut() {
            if may_see && listen.followed.contains(&key) {
                self.notify_listener(listen, with_subscription(line, subscription));
                was_sent = true;
                if is_over {
                    listen.followed.remove(&key);
                }
            }
        }
        was_sent
    }

    /// Returns the tasks of an instance that the client follows.
    pub(crate) fn followed_tasks(&self, at: &InstanceKey) -> Vec<String> {
        let listen_requests = self.listen_requests.borrow();
        let all = listen_requests.values().flat_map(|listen| &listen.followed);
        all.filter(|(it, _)| it == at).map(|(_, id)| id.clone()).collect()
    }

    /// Removes all listen requests; returns the instances whose tasks they followed.
    pub(super) fn end_all_listens(&self) -> BTreeSet<InstanceKey> {
        let listen_requests = self.listen_requests.take();
        listen_requests.values().flat_map(ListenRequest::followed_instances).collect()
    }

    /// Ends the listen request with this id.
    pub(super) fn end_listen(&self, id: &str) {
        let Some(mut listen) = self.listen_requests.borrow_mut().remove(id) else { return };
        self.router.update_followed_tasks(listen.followed_instances());
        for one in std::mem::take(&mut listen.watched) {
            self.unwatch(&one);
        }
    }

    fn unwatch(&self, one: &WatchedResource) {
        let is_same = |it: &WatchedResource| it.server.name == one.server.name && it.uri == one.uri;
        let listen_requests = self.listen_requests.borrow();
        let is_wanted = listen_requests.values().any(|listen| listen.watched.iter().any(is_same));
        drop(listen_requests);
        let key = (one.server.name.clone(), one.uri.clone());
        if !is_wanted && !self.legacy_subscriptions.borrow().contains(&key) {
            self.router.unwatch(&one.server, self, &one.uri);
        }
    }
}

/// Adds a subscription id to a notification.
fn with_subscription(line: &[u8], id: &str) -> Vec<u8> {
    with_meta(line, |rest| {
        let comma = if rest.len() > 2 { "," } else { "" };
        format!(r#"{{"{SUBSCRIPTION}":{id}{comma}{}"#, &rest[1..])
    })
}

/// Removes subscription ids from a notification; one without any stays as it is.
fn without_subscription(line: &[u8]) -> Vec<u8> {
    match memchr::memmem::find(line, b"subscriptionId") {
        Some(_) => with_meta(line, ToOwned::to_owned),
        None => line.to_vec(),
    }
}

/// Rewrites the `_meta` of a notification. `meta` maps the old value without subscription id.
fn with_meta(line: &[u8], meta: impl FnOnce(&str) -> String) -> Vec<u8> {
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
