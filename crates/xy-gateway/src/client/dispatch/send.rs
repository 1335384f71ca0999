//! Sends a request on to its server, or has it wait, and notifications too.

use std::rc::Rc;

use xy_mcp::members::Members;
use xy_protocol::error::CallError;

use super::handshake::said;
use super::{Outcome, Request};
use crate::backend::{Backend, STOPPED, Went};
use crate::bridge::{Unfit, pending_input, rounds};
use crate::client::{Client, Open};
use crate::era::{Era, Introduction};
use crate::frontend::View;
use crate::modern;
use crate::reply;
use crate::upstream::{self, Follow, Upstream};

impl Client {
    /// Behind one door for all servers a task that is not remembered could never be asked for
    /// again. So where there is no room for one, the server does not hear that the client
    /// knows tasks.
    pub(super) fn hidden<'t>(
        &self,
        request: &Request<'t>,
        follow: &Follow,
    ) -> Option<(&'t str, String)> {
        let manner = request.manner.as_ref()?;
        let is_one_door = !matches!(self.entry.view, View::Server(_));
        if !is_one_door || *follow != Follow::Nothing || !manner.has_tasks() {
            return None;
        }
        let written = Members::read(request.params.meta()?)?.get(modern::CAPABILITIES)?;
        Some((written, modern::without_tasks(&Members::read(written)?)))
    }

    /// How the answer to a request is to be looked at. Tasks are passed between equals only.
    pub(super) fn follow(&self, request: &Request<'_>, server: &Rc<Backend>) -> Follow {
        let Some(manner) = &request.manner else {
            let follow = follow(request);
            let is_other = follow == Follow::NewTask && server.is_modern_to(self);
            return if is_other { Follow::Nothing } else { follow };
        };
        if request.method.starts_with("tasks/") {
            return Follow::Task;
        }
        // To one server alone its tasks are its own affair.
        let is_one_door = !matches!(self.entry.view, View::Server(_));
        if !is_one_door || request.method != "tools/call" || !manner.has_tasks() {
            return Follow::Nothing;
        }
        let said = server.upstream(server.holder(self)).and_then(|it| it.introduction());
        let offers =
            |it: Rc<Introduction>| it.era() == Era::Modern && modern::offers_tasks(&it.result);
        if !said.is_some_and(offers) {
            return Follow::Nothing;
        }
        if self.router.has_room_for_modern_task(self) { Follow::NewTask } else { Follow::Nothing }
    }

    /// Has a resource watched at a modern server.
    pub(super) fn watch(&self, request: &Request<'_>, server: &Rc<Backend>, uri: &str) -> Outcome {
        let (client, reply) = (self.me(), self.reply_to(request));
        let (server, uri) = (server.clone(), uri.to_owned());
        let task = tokio::task::spawn_local(async move {
            let watched = client.router.watch(&server, &client, [uri.clone()].into()).await;
            let cannot = || {
                let name = &server.name;
                reply::invalid(format!("`{name}` does not tell of changes of this resource"))
            };
            let watched =
                watched.and_then(|it| it.uris.contains(&uri).then_some(()).ok_or_else(cannot));
            if watched.is_err() {
                client.router.unwatch(&server, &client, &uri);
            }
            reply.answer(&client, watched.map(|()| "{}".to_owned()));
        });
        Outcome::Under(Open::Here(task.abort_handle()))
    }

    /// Sends a request on to a server, by the name that it is asked under.
    pub(super) fn send_on(
        &self,
        request: &Request<'_>,
        server: &Rc<Backend>,
        renamed: Option<(&str, String)>,
    ) -> Result<Outcome, CallError> {
        if server.is_hidden() {
            return Err(server.down(STOPPED));
        }
        let follow = self.follow(request, server);
        let outgoing = upstream::Request {
            text: request.text,
            id: request.id,
            token: request.params.own_token(),
            renamed,
            what: (request.method, request.params.name().or(request.params.uri())),
            hidden: self.hidden(request, &follow),
            asked: server.clone(),
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
            let text = rounds::as_at_first(request.text.bytes());
            let text = text.ok_or_else(|| reply::invalid("the call cannot be made again"))?;
            let mut past = request.past.clone();
            past.rounds.count = 0;
            self.again_after(request.id, text.as_slice().into(), request.stream, past);
            return Ok(Outcome::Done);
        }
        // Only a modern server gives out states of its own.
        let is_legacy = || said(server, self).is_some_and(|(_, era)| era == Era::Legacy);
        if outgoing.has_state && outgoing.manner.is_some() && is_legacy() {
            return Err(pending_input::refused(Unfit::NotOurs));
        }
        if outgoing.follow == Follow::NewTask && outgoing.manner.is_none() {
            self.router.check_room_for_task(self)?;
        }
        let home = server.primary_or_self();
        let went = home.call(&self.me(), outgoing, request.stream);
        match went.map_err(|fault| reply::under(&server.name, &home.name, &fault))? {
            Went::Sent(open) => Ok(Outcome::Under(open)),
            Went::Waits { open, for_first } => {
                if let Some(holder) = for_first {
                    self.router.want_for(server, holder);
                }
                Ok(Outcome::Under(open))
            }
        }
    }

    /// A notification of the client's that is not for us.
    pub(in crate::client) fn pass_notification(&self, method: &str, text: &[u8]) {
        // What is shared does not hear what concerns one client alone.
        let concerns_one = method == "notifications/roots/list_changed";
        let servers = match &self.entry.view {
            View::Server(name) if self.check_bound(name).is_err() => Vec::new(),
            View::Server(name) => self.router.server(name).into_iter().collect(),
            View::Profile(_) | View::All if concerns_one => self.router.servers_of(self),
            View::Profile(_) | View::All => Vec::new(),
        };
        let mut told: Vec<Rc<Upstream>> = Vec::new();
        for server in servers {
            let holder = server.holder(self);
            if concerns_one && !holder.is_client() {
                continue;
            }
            let upstream = server.upstream(holder).filter(|_| !server.is_hidden());
            // One with several names hears it once.
            let is_new = |it: &Rc<Upstream>| !told.iter().any(|other| Rc::ptr_eq(it, other));
            if let Some(upstream) = upstream.filter(is_new) {
                upstream.pass(text);
                told.push(upstream);
            }
        }
    }
}

/// Whether a request names a task.
pub(super) fn is_of_task(method: &str) -> bool {
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
