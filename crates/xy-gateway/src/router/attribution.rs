//! Attribution of servers' messages to clients.
//!
//! A message that names a task or an elicitation is for its owner. Any other message is for the
//! only client with calls in flight. A message without a clear recipient is logged or rejected.

use std::rc::Rc;

use tokio::time::Instant;
use xy_catalog::names;
use xy_http::frontend::Route;
use xy_mcp::capabilities::{Capabilities, RequiredCapabilities};
use xy_mcp::edit::{self, Edits};
use xy_mcp::kind::Kind;
use xy_mcp::level::Level;
use xy_mcp::modern::RequestMeta;
use xy_mcp::params::Params;
use xy_mcp::tasks::{self, Related};
use xy_mcp::{envelope, reply};
use xy_supervisor::instance::{Holder, InstanceKey};
use xy_upstream::connection::ServerMessage;

use super::{RoutedClient, Router};
use crate::bridge::pending_input::PendingInput;
use crate::upstream::{CallOwner, Upstream, UpstreamEvents};

/// The recipient of a server's message.
enum Recipient {
    /// A client, the route to it, and the related call, if known.
    Client(Rc<dyn RoutedClient>, Route, Option<u64>),
    /// A pending input, which its client will resume.
    PendingInput(Rc<PendingInput>),
}

impl Recipient {
    /// Returns the upstream id of the related call, if known.
    fn call(&self) -> Option<u64> {
        match self {
            Self::Client(_, _, upstream_id) => *upstream_id,
            Self::PendingInput(pending) => Some(pending.upstream_id),
        }
    }
}

impl Router {
    /// Returns the owner of a call as recipient, unless its client is gone.
    fn recipient_of(&self, owner: CallOwner) -> Option<Recipient> {
        Some(match owner {
            CallOwner::Client(client, stream, upstream_id) => Recipient::Client(
                self.client(client.number())?,
                Route::Related(stream),
                Some(upstream_id),
            ),
            CallOwner::PendingInput(pending) => Recipient::PendingInput(pending),
        })
    }

    /// Returns the recipient of a server's message. `related_call` is the call whose stream carried
    /// the message, if any.
    fn recipient(
        &self,
        by: &Rc<Upstream>,
        params: Option<&str>,
        related_call: Option<u64>,
    ) -> Option<Recipient> {
        let about = related_call.map(|upstream_id| self.recipient_of(by.owner_of(upstream_id)?));
        if let Some(number) = self.sole_client(by) {
            return about.flatten().or_else(|| self.recipient_for(by, number));
        }
        if let Some(about) = about {
            // A message on the stream of one call is about that call.
            return about;
        }
        match tasks::related(params) {
            Some(Related::Task(id)) => self.owner_of_task(by, &id),
            Some(Related::Unreadable) => None,
            None => {
                let recipient = self.recipient_of(by.only_client()?)?;
                let number = match &recipient {
                    Recipient::Client(client, ..) => client.number(),
                    Recipient::PendingInput(pending) => pending.client,
                };
                let (ownership, now) = (self.ownership.borrow(), Instant::now());
                (!ownership.has_tasks_of_others(by.key(), number, now)).then_some(recipient)
            }
        }
    }

    /// Returns the only client of an isolated instance.
    fn sole_client(&self, by: &Upstream) -> Option<u64> {
        match by.key().holder {
            Holder::Client(number) if self.is_group(number) => None,
            Holder::Client(number) => Some(number),
            Holder::Shared | Holder::Era(_) => None,
        }
    }

    /// Returns a client as recipient, routed to its latest call at this server.
    fn recipient_for(&self, by: &Rc<Upstream>, number: u64) -> Option<Recipient> {
        let client = self.client(number)?;
        let latest = by.latest_of(number).and_then(|owner| self.recipient_of(owner));
        latest.or(Some(Recipient::Client(client, Route::Broadcast, None)))
    }

    /// Returns the owner of a task.
    fn owner_of_task(&self, by: &Rc<Upstream>, id: &str) -> Option<Recipient> {
        if let Some(number) = self.sole_client(by) {
            return self.recipient_for(by, number);
        }
        let owner = self.ownership.borrow().owner_of_task(by.key(), id)?;
        self.recipient_for(by, owner)
    }

    /// Returns the owner of a completed elicitation.
    fn owner_of_elicitation(&self, by: &Rc<Upstream>, params: Option<&str>) -> Option<Recipient> {
        let id = RequiredCapabilities::read(params).elicitation()?;
        let owner = self.ownership.borrow_mut().complete_elicitation(by.key(), &id);
        self.recipient_for(by, self.sole_client(by).or(owner)?)
    }

    /// Returns the recipient of a task's status.
    fn task_recipient(
        &self,
        by: &Rc<Upstream>,
        params: Option<&str>,
        related_call: Option<u64>,
    ) -> Option<Recipient> {
        let (id, is_over) = tasks::status(params?)?;
        let is_known = self.ownership.borrow().knows_task(by.key(), &id);
        let recipient = if is_known {
            self.owner_of_task(by, &id)
        } else {
            // A status may precede the response to the call that begins the task.
            self.recipient(by, None, related_call).filter(|recipient| match recipient {
                Recipient::Client(client, ..) => {
                    related_call.is_some() || by.begins_task(&**client)
                }
                Recipient::PendingInput(_) => false,
            })
        };
        if is_over {
            self.ownership.borrow_mut().end_task(by.key(), &id);
        }
        recipient
    }

    /// Returns the client to which a server's request goes.
    fn question_recipient(
        &self,
        by: &Rc<Upstream>,
        method: &str,
        params: Option<&str>,
        related_call: Option<u64>,
    ) -> QuestionRecipient {
        if !method.starts_with("tasks/") {
            let found = self.recipient(by, params, related_call).ok_or((
                -32603,
                "it is not clear which client this is for: several share this server",
            ))?;
            let call = found.call();
            if call != related_call && call.is_some_and(|call| !by.is_clear(call)) {
                return Err((-32603, "it is not clear in which call this is: several are open"));
            }
            return Ok(found);
        }
        let only = self.sole_client(by);
        let clients = match only {
            Some(number) => self.client(number).into_iter().collect(),
            None => self.clients(),
        };
        let id = Params::read(params).task_id();
        let found = match (method, id, only) {
            ("tasks/list", _, Some(_)) => clients.into_iter().next(),
            ("tasks/list", _, None) => {
                return Err((-32601, "several clients share this server: none lists its tasks"));
            }
            (_, Some(id), _) => clients.into_iter().find(|it| it.does_task_for(by, &id)),
            (_, None, _) => None,
        };
        let client = found.ok_or((-32602, "Task not found"))?;
        self.recipient_for(by, client.number()).ok_or((-32602, "Task not found"))
    }

    /// Records that a shared server makes requests: from now on it serves one client at a time.
    fn record_question(&self, by: &Rc<Upstream>) {
        let Some(server) = self.server(by.key().server.as_str()) else { return };
        if !server.mark_asks(by) {
            return;
        }
        self.remember(&server);
        self.publish_asking();
    }

    fn notify_resource_updated(&self, by: &InstanceKey, params: Option<&str>, line: &[u8]) {
        let Some(written) = Params::read(params).uri() else { return };
        let Some(uri) = envelope::text_of(written) else { return };
        let Some(primary) = self.server(by.server.as_str()) else { return };
        // Each subscriber is notified under the alias that it used.
        for server in self.aliases_of(&primary) {
            let subscribers =
                self.subscriptions.borrow().subscribers(&server.name, &uri, by.holder);
            for subscriber in subscribers {
                let Some(client) = self.client(subscriber.client) else { continue };
                if !client.may_see(Kind::Resources, &server.name, &uri) {
                    continue; // A profile may hide it by now, or it is below a watched resource.
                }
                let mut edits = Edits::of(line);
                if subscriber.by_exposed_uri {
                    let exposed = names::exposed_uri(server.name.as_str(), &uri);
                    edits.replace(written, edit::quoted(&exposed));
                }
                client.notify_updated(&server, &uri, &edits.to_vec());
            }
        }
    }

    /// Parks the call of a modern client, which cannot be asked during a call.
    fn ask_modern_client(
        &self,
        by: &Rc<Upstream>,
        (id, upstream_id): (&str, u64),
        request_meta: &RequestMeta,
        request: &ServerMessage<'_>,
    ) -> Result<(), (i64, &'static str)> {
        check_question(request_meta, request)
            .inspect_err(|_| record_missing_capability(by, upstream_id, request))?;
        self.park(by, upstream_id, (id, request.method, request.params))
    }
}

/// Records that the modern client lacks a capability, in case the call fails for it.
fn record_missing_capability(by: &Upstream, upstream_id: u64, request: &ServerMessage<'_>) {
    if let Some(needed) = RequiredCapabilities::read(request.params).needs(request.method) {
        by.set_missing_capability(upstream_id, needed);
    }
}

/// Checks that a modern client supports this request.
fn check_question(
    request_meta: &RequestMeta,
    request: &ServerMessage<'_>,
) -> Result<(), (i64, &'static str)> {
    if !matches!(request.method, "elicitation/create" | "sampling/createMessage" | "roots/list") {
        return Err((-32601, "the client does not support this request"));
    }
    let wants = RequiredCapabilities::read(request.params);
    Capabilities::read(&request_meta.capabilities).allow(request.method, &wants, false)
}

/// The client to ask, or the error code and message for the server.
type QuestionRecipient = Result<Recipient, (i64, &'static str)>;

impl Router {
    /// Handles a notification of a server.
    pub(super) fn on_notification(&self, by: &Rc<Upstream>, message: &ServerMessage<'_>) {
        let ServerMessage { method, params, line, related_call } = *message;
        let recipient = match method {
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed" => {
                self.forward_list_changed(by, method, line);
                return by.lists_changed();
            }
            "notifications/resources/updated" => {
                return self.notify_resource_updated(by.key(), params, line);
            }
            "notifications/cancelled" => {
                if let Some(id) = Params::read(params).request_id() {
                    for client in self.clients() {
                        client.cancel_question(by, id, line);
                    }
                    self.pending_inputs.cancel_question(by, id);
                }
                return;
            }
            "notifications/tasks/status" => self.task_recipient(by, params, related_call),
            "notifications/tasks" if by.is_modern() => {
                return self.forward_task(by, params, line);
            }
            "notifications/elicitation/complete" => self.owner_of_elicitation(by, params),
            _ => self.recipient(by, params, related_call),
        };
        match recipient {
            Some(Recipient::Client(client, to, upstream_id)) => {
                let request_meta =
                    upstream_id.and_then(|upstream_id| by.request_meta_of(upstream_id));
                if accepts_notification(&*client, request_meta.as_deref(), method, params) {
                    send_to_client(by, &*client, to, line);
                }
            }
            // Between two rounds no request can carry it.
            Some(Recipient::PendingInput(_)) => {}
            None => by.unparsed(line),
        }
    }

    /// Handles a request of a server; `id` is the server's own id of it.
    pub(super) fn on_request(&self, by: &Rc<Upstream>, id: &str, request: &ServerMessage<'_>) {
        let ServerMessage { method, params, line, related_call } = *request;
        if related_call.is_none() {
            self.record_question(by);
        }
        let refuse = |(code, why): (i64, &str)| by.send(&reply::error(id, code, why));
        let (client, to, upstream_id) =
            match self.question_recipient(by, method, params, related_call) {
                Ok(Recipient::Client(client, to, upstream_id)) => (client, to, upstream_id),
                Ok(Recipient::PendingInput(pending)) => {
                    let can = check_question(&pending.request_meta, request);
                    let result = can
                        .inspect_err(|_| {
                            record_missing_capability(by, pending.upstream_id, request);
                        })
                        .and_then(|()| {
                            let too_many = (-32603, "too many requests to the client are open");
                            pending.ask(id, method, params).then_some(()).ok_or(too_many)
                        });
                    return result.unwrap_or_else(refuse);
                }
                Err(refusal) => return refuse(refusal),
            };
        let request_meta =
            upstream_id.and_then(|upstream_id| by.request_meta_of(upstream_id)).zip(upstream_id);
        if let Some((request_meta, upstream_id)) = request_meta {
            by.touch(client.number());
            let result = self.ask_modern_client(by, (id, upstream_id), &request_meta, request);
            return result.unwrap_or_else(refuse);
        }
        let wants = RequiredCapabilities::read(params);
        if let Err(refusal) = client.allows(method, &wants) {
            return refuse(refusal);
        }
        if let Some(elicitation) = wants.elicitation() {
            self.ownership.borrow_mut().add_elicitation(by.key(), client.number(), &elicitation);
        }
        by.touch(client.number());
        match client.ask(by, id, line, to) {
            // An answer may depend on the client's queued calls.
            Ok(()) => {
                by.record_server_request(client.number(), related_call);
                self.on_call_end(by);
            }
            Err(fault) => by.send(&reply::fault(id, &fault)),
        }
    }

    /// Handles progress that belongs to no pending call. `token` is the upstream id, and `part` is
    /// that token as written in `line`.
    pub(super) fn on_unrelated_progress(
        &self,
        by: &Rc<Upstream>,
        token: u64,
        part: &str,
        line: &[u8],
    ) {
        let ownership = self.ownership.borrow();
        let found = ownership.by_token(by.key(), token).map(|(it, token)| (it, token.to_owned()));
        drop(ownership);
        let Some((number, token)) = found else { return };
        if let Some(Recipient::Client(client, to, _)) = self.recipient_for(by, number) {
            let mut edits = Edits::of(line);
            edits.replace(part, token);
            send_to_client(by, &*client, to, &edits.to_vec());
        }
    }
}

/// Sends a server's message to a client.
fn send_to_client(by: &Rc<Upstream>, client: &dyn RoutedClient, to: Route, line: &[u8]) {
    client.send(line, to);
    by.touch(client.number());
}

/// Returns true if a client accepts this notification.
fn accepts_notification(
    client: &dyn RoutedClient,
    request_meta: Option<&RequestMeta>,
    method: &str,
    params: Option<&str>,
) -> bool {
    if method != "notifications/message" {
        return request_meta.is_none() || method != "notifications/elicitation/complete";
    }
    let word = Params::read(params).level().and_then(envelope::text_of);
    let level = word.and_then(|word| Level::parse(&word));
    let least = match request_meta {
        Some(RequestMeta { level: None, .. }) => return false, // The client has not requested logs.
        Some(request_meta) => request_meta.level,
        None => client.level(),
    };
    match (level, least) {
        (Some(level), Some(least)) => level >= least,
        _ => true,
    }
}
