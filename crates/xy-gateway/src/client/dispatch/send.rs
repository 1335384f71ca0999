//! Sends requests and notifications of clients to their servers, or queues them.

use std::rc::Rc;

use xy_http::frontend::View;
use xy_mcp::era::{Era, Introduction};
use xy_mcp::members::Members;
use xy_mcp::{modern, reply};
use xy_protocol::error::CallError;

use super::handshake::introduction_of;
use super::{Outcome, Request};
use crate::backend::{Backend, CallStatus, STOPPED};
use crate::bridge::{StateError, rounds};
use crate::call::{CallClient, CallRequest, ResponseKind};
use crate::client::{Client, RequestPhase};
use crate::upstream::Upstream;

impl Client {
    /// Returns the client's capabilities without tasks, to hide that the client supports them.
    ///
    /// At a combined endpoint, a task that xy does not record could never be found again. So when
    /// there is no room for another, the server must not create one.
    pub(super) fn without_tasks<'t>(
        &self,
        request: &Request<'t>,
        response_kind: &ResponseKind,
    ) -> Option<(&'t str, String)> {
        let request_meta = request.request_meta.as_ref()?;
        let is_combined = !matches!(self.entry.view, View::Server(_));
        if !is_combined || *response_kind != ResponseKind::Other || !request_meta.has_tasks() {
            return None;
        }
        let written = Members::read(request.params.meta()?)?.get(modern::CAPABILITIES)?;
        Some((written, modern::without_tasks(&Members::read(written)?)))
    }

    /// Returns how the response is processed. Tasks are supported only between a client and a
    /// server of the same era.
    pub(super) fn response_kind(
        &self,
        request: &Request<'_>,
        server: &Rc<Backend>,
    ) -> ResponseKind {
        let Some(request_meta) = &request.request_meta else {
            let response_kind = response_kind(request);
            let is_other = response_kind == ResponseKind::NewTask && server.is_modern_to(self);
            return if is_other { ResponseKind::Other } else { response_kind };
        };
        if request.method.starts_with("tasks/") {
            return ResponseKind::Task;
        }
        // At the endpoint of one server, the server resolves its tasks itself.
        let is_combined = !matches!(self.entry.view, View::Server(_));
        if !is_combined || request.method != "tools/call" || !request_meta.has_tasks() {
            return ResponseKind::Other;
        }
        let introduction = server.upstream(server.holder(self)).and_then(|it| it.introduction());
        let offers =
            |it: Rc<Introduction>| it.era() == Era::Modern && modern::offers_tasks(&it.result);
        if !introduction.is_some_and(offers) {
            return ResponseKind::Other;
        }
        if self.router.has_room_for_modern_task(self) {
            ResponseKind::NewTask
        } else {
            ResponseKind::Other
        }
    }

    /// Subscribes to a resource on a modern server.
    pub(super) fn watch(&self, request: &Request<'_>, server: &Rc<Backend>, uri: &str) -> Outcome {
        let (client, reply) = (self.me(), self.reply_to(request));
        let (server, uri) = (server.clone(), uri.to_owned());
        let task = tokio::task::spawn_local(async move {
            let watched = client.router.watch(&server, &*client, [uri.clone()].into()).await;
            let cannot = || {
                let name = &server.name;
                reply::invalid(format!("`{name}` does not tell of changes of this resource"))
            };
            let watched =
                watched.and_then(|it| it.uris.contains(&uri).then_some(()).ok_or_else(cannot));
            if watched.is_err() {
                client.router.unwatch(&server, &*client, &uri);
            }
            reply.answer(&client, watched.map(|()| "{}".to_owned()));
        });
        Outcome::Pending(RequestPhase::Local(task.abort_handle()))
    }

    /// Sends a request to a server. `renamed` replaces the exposed name by the server's own.
    pub(super) fn send_to_server(
        &self,
        request: &Request<'_>,
        server: &Rc<Backend>,
        renamed: Option<(&str, String)>,
    ) -> Result<Outcome, CallError> {
        if server.is_hidden() {
            return Err(server.down(STOPPED));
        }
        let response_kind = self.response_kind(request, server);
        let outgoing = CallRequest {
            text: request.text,
            id: request.id,
            token: request.params.own_token(),
            renamed,
            method_and_target: (request.method, request.params.name().or(request.params.uri())),
            meta_override: self.without_tasks(request, &response_kind),
            alias: server.alias.clone(),
            response_kind,
            timer: None,
            params: request.params_text,
            meta: request.params.meta(),
            request_meta: request.request_meta.clone(),
            retry_state: request.retry_state.clone(),
            has_state: request.params.state().is_some(),
        };
        // The server has requested input, and its successor is of the legacy era: start anew.
        if request.retry_state.rounds.count > 0
            && server.upstream(server.holder(self)).is_some()
            && !server.is_modern_to(self)
        {
            let text = rounds::without_round_params(request.text.bytes());
            let text = text.ok_or_else(|| reply::invalid("the call cannot be repeated"))?;
            let mut retry_state = request.retry_state.clone();
            retry_state.rounds.count = 0;
            self.redispatch_with(request.id, text.as_slice().into(), request.stream, retry_state);
            return Ok(Outcome::Done);
        }
        // Only a modern server issues a `requestState` of its own.
        let is_legacy = || introduction_of(server, self).is_some_and(|(_, era)| era == Era::Legacy);
        if outgoing.has_state && outgoing.request_meta.is_some() && is_legacy() {
            return Err(StateError::Unknown.call_error());
        }
        if outgoing.response_kind == ResponseKind::NewTask && outgoing.request_meta.is_none() {
            self.router.check_room_for_task(self)?;
        }
        let primary = server.primary_or_self();
        let client: Rc<dyn CallClient> = self.me();
        let status = primary.call((&client, request.stream), outgoing, server);
        match status? {
            CallStatus::Sent { upstream, upstream_id } => {
                Ok(Outcome::Pending(RequestPhase::Sent { upstream, upstream_id }))
            }
            CallStatus::Queued { ticket, for_first } => {
                if let Some(holder) = for_first {
                    self.router.request_instance_for(server, holder);
                }
                Ok(Outcome::Pending(RequestPhase::Queued { server: primary, ticket }))
            }
        }
    }

    /// Forwards a notification that xy does not handle itself.
    pub(in crate::client) fn forward_notification(&self, method: &str, text: &[u8]) {
        // Shared instances ignore what concerns a single client.
        let concerns_one = method == "notifications/roots/list_changed";
        let servers = match &self.entry.view {
            View::Server(name) if self.check_bound(name).is_err() => Vec::new(),
            View::Server(name) => self.router.server(name).into_iter().collect(),
            View::Profile(_) | View::All if concerns_one => self.router.servers_of(self),
            View::Profile(_) | View::All => Vec::new(),
        };
        let mut notified: Vec<Rc<Upstream>> = Vec::new();
        for server in servers {
            let holder = server.holder(self);
            if concerns_one && !holder.is_client() {
                continue;
            }
            let upstream = server.upstream(holder).filter(|_| !server.is_hidden());
            // A server with several names receives it once.
            let is_new = |it: &Rc<Upstream>| !notified.iter().any(|other| Rc::ptr_eq(it, other));
            if let Some(upstream) = upstream.filter(is_new) {
                upstream.pass(text);
                notified.push(upstream);
            }
        }
    }
}

/// Returns true if a request names a task.
pub(super) fn is_task_method(method: &str) -> bool {
    matches!(method, "tasks/get" | "tasks/result" | "tasks/cancel")
}

/// Returns how the response to a legacy request is processed.
fn response_kind(request: &Request<'_>) -> ResponseKind {
    match request.method {
        "tasks/get" | "tasks/cancel" => ResponseKind::Task,
        "tasks/result" => {
            ResponseKind::TaskResult(request.params.task_id().unwrap_or_default().into())
        }
        "tasks/list" => ResponseKind::TaskList,
        _ if request.params.is_task() => ResponseKind::NewTask,
        _ => ResponseKind::Other,
    }
}
