//! Lookup of tasks that servers run for clients.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, timeout};
use xy_http::frontend::View;
use xy_mcp::edit::quoted;
use xy_mcp::envelope::Outcome;
use xy_mcp::era::Era;
use xy_mcp::{modern, reply, tasks};
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::instance::InstanceKey;
use xy_upstream::connection::result_of;

use super::{RoutedClient, Router};
use crate::backend::Backend;
use crate::call::{CallClient, ResponseKind};
use crate::limit_hits;
use crate::ownership::{MAX_ID_BYTES, MAX_TASKS, NewTask, Owner, TaskLookup};
use crate::upstream::{ClientResponse, Upstream};

/// How long a server may take to report a task before a list omits it.
const TASK_TIMEOUT: Duration = Duration::from_secs(4);

/// Maximum number of followed tasks of one instance.
const MAX_FOLLOWED_TASKS: usize = 1000;

impl Router {
    /// Returns the server that runs a client's task.
    pub(crate) fn server_of_task(
        &self,
        client: &dyn RoutedClient,
        id: &str,
    ) -> Result<Rc<Backend>, CallError> {
        let found = self.ownership.borrow().find(client.number(), id);
        match found {
            TaskLookup::At(at, alias) if client.allows_server(alias.as_str()) => self
                .server_at(&at, &alias)
                .ok_or_else(|| unknown_task(id).cause("its server is gone")),
            TaskLookup::At(..) | TaskLookup::NotFound => Err(unknown_task(id)),
            TaskLookup::Lost(alias, why) => Err(lost_task(id, &why.named(&alias))),
            TaskLookup::Ambiguous => Err(ambiguous_task()),
        }
    }

    /// Returns the server of this alias, if the alias still belongs to the instance's server.
    fn server_at(&self, at: &InstanceKey, alias: &ServerName) -> Option<Rc<Backend>> {
        let server = self.server(alias.as_str())?;
        (server.primary_or_self().name == at.server).then_some(server)
    }

    /// Returns the server that runs a task of this modern client's token. An id that several
    /// servers have issued is ambiguous.
    pub(crate) fn server_of_modern_task(
        &self,
        client: &dyn RoutedClient,
        id: &str,
    ) -> Result<Rc<Backend>, CallError> {
        match self.find_modern_task(client, id) {
            TaskLookup::At(at, alias) => self
                .server_at(&at, &alias)
                .ok_or_else(|| unknown_task(id).cause("its server is gone")),
            TaskLookup::NotFound if !self.offers_tasks(client) => {
                Err(CallError::new(ErrorKind::MethodNotFound, "no server supports tasks"))
            }
            TaskLookup::NotFound => Err(unknown_task(id)),
            TaskLookup::Lost(alias, why) => Err(lost_task(id, &why.named(&alias))),
            TaskLookup::Ambiguous => Err(ambiguous_task()),
        }
    }

    /// Looks up a modern task among the instances that this client may use.
    fn find_modern_task(&self, client: &dyn RoutedClient, id: &str) -> TaskLookup {
        let is_visible = |at: &InstanceKey, alias: &ServerName| {
            client.allows_server(alias.as_str())
                && self
                    .server(at.server.as_str())
                    .is_none_or(|it| !at.holder.is_client() || it.holder(client) == at.holder)
        };
        self.ownership.borrow().find_for(owner(client), id, is_visible)
    }

    /// Returns the instance that reports a task to this modern client. At the endpoint of one
    /// server, the server knows its tasks itself.
    pub(crate) fn instance_of_task(
        &self,
        client: &dyn RoutedClient,
        id: &str,
    ) -> Option<InstanceKey> {
        match &client.entry().view {
            View::Server(_) if id.len() > MAX_ID_BYTES => None,
            View::Server(name) => {
                let server = self.server(name)?;
                let holder = server.holder(client);
                Some(InstanceKey { server: server.primary_or_self().name.clone(), holder })
            }
            View::Profile(_) | View::All => match self.find_modern_task(client, id) {
                TaskLookup::At(at, _) => self.is_followed(client, &at, id).then_some(at),
                _ => None,
            },
        }
    }

    /// Returns true if a client that follows a task may still receive its status.
    fn is_followed(&self, client: &dyn RoutedClient, at: &InstanceKey, id: &str) -> bool {
        let ownership = self.ownership.borrow();
        matches!(client.entry().view, View::Server(_))
            || ownership.is_worked_on(at, owner(client), id)
                && ownership.alias(at, id).is_some_and(|it| client.allows_server(it.as_str()))
    }

    /// Returns the tasks of an instance that clients follow.
    pub(super) fn followed_tasks(&self, at: &InstanceKey) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for client in self.clients() {
            let followed = client.followed_tasks(at).into_iter();
            all.extend(followed.filter(|id| self.is_followed(&*client, at, id)));
        }
        while all.len() > MAX_FOLLOWED_TASKS {
            all.pop_last();
        }
        all
    }

    /// Returns true if this client's token may have one more task.
    pub(crate) fn has_room_for_modern_task(&self, client: &dyn RoutedClient) -> bool {
        let principal = client.entry().principal;
        let has_room = self.ownership.borrow_mut().has_room_for(principal, Instant::now());
        if !has_room {
            client.limit_hit(limit_hits::TASKS);
        }
        has_room
    }

    /// Tracks tasks in a modern server's response to a modern client.
    pub(super) fn track_modern_task(&self, at: &InstanceKey, answer: &ClientResponse<'_>) {
        let Outcome::Result(result) = answer.outcome else { return };
        let (mut ownership, now) = (self.ownership.borrow_mut(), Instant::now());
        match answer.response_kind {
            ResponseKind::NewTask => {
                if let Some((id, life)) = tasks::created_modern(result) {
                    let alias = &answer.alias.name;
                    let new = NewTask { id: &id, alias, life, token: None };
                    ownership.add_task_for(at, owner(&**answer.client), new, now);
                }
            }
            ResponseKind::Task => {
                let Some((id, is_over)) = tasks::status(result) else { return };
                if let Some(life) = tasks::time_to_live(result) {
                    ownership.set_lifetime(at, &id, life, now);
                }
                if is_over {
                    ownership.end_task(at, &id);
                }
            }
            ResponseKind::Other | ResponseKind::TaskResult(_) | ResponseKind::TaskList => {}
        }
    }

    /// Forwards the status of a modern task to the clients that follow it.
    pub(super) fn forward_task(&self, by: &Rc<Upstream>, params: Option<&str>, line: &[u8]) {
        let Some((id, is_over)) = params.and_then(tasks::status) else { return by.unparsed(line) };
        let ownership = self.ownership.borrow();
        let owner = ownership.owner_of(by.key(), &id);
        let alias = ownership.alias(by.key(), &id).cloned();
        drop(ownership);
        // A task is visible to the clients that see the alias it began under.
        let is_shown = |client: &dyn RoutedClient| {
            alias.as_ref().is_none_or(|alias| client.allows_server(alias.as_str()))
        };
        let mut was_sent = false;
        for client in self.clients().into_iter().filter(|it| is_shown(&**it)) {
            was_sent |= client.notify_task(by.key(), (&id, owner), line, is_over);
        }
        if is_over {
            self.ownership.borrow_mut().end_task(by.key(), &id);
        }
        if !was_sent {
            by.unparsed(line);
        }
    }

    /// Returns true if any visible server supports modern tasks.
    pub(crate) fn offers_tasks(&self, client: &dyn RoutedClient) -> bool {
        let servers = self.servers_of(client);
        let mut all = servers.iter().filter(|server| server.is_shown()).filter_map(introduction_of);
        all.any(|(result, era)| era == Era::Modern && modern::offers_tasks(&result))
    }

    /// Returns the introduction of xy to a modern client.
    pub(crate) fn discovery(&self, client: &dyn RoutedClient) -> String {
        let introduction = self.introduction(client, xy_mcp::revision::LATEST);
        let discovered = modern::discovered_from(&introduction);
        if self.offers_tasks(client) { modern::with_tasks(&discovered) } else { discovered }
    }

    /// Checks that a client may ask this server about a task.
    pub(crate) fn check_task(
        &self,
        client: &dyn RoutedClient,
        server: &Rc<Backend>,
        id: &str,
    ) -> Result<(), CallError> {
        let ownership = self.ownership.borrow();
        let (server, holder) = (server.primary_or_self().name.clone(), server.holder(client));
        let key = InstanceKey { server, holder };
        if ownership.owner_of_task(&key, id) == Some(client.number()) {
            return Ok(());
        }
        match ownership.find(client.number(), id) {
            TaskLookup::Lost(alias, why) => Err(lost_task(id, &why.named(&alias))),
            _ => Err(unknown_task(id)),
        }
    }

    /// Checks that a client may have one more task.
    pub(crate) fn check_room_for_task(&self, client: &dyn RoutedClient) -> Result<(), CallError> {
        let count = self.ownership.borrow_mut().task_count(client.number(), Instant::now());
        if count < MAX_TASKS {
            return Ok(());
        }
        client.limit_hit(limit_hits::TASKS);
        let message = format!("the client has {count} tasks, the maximum");
        Err(CallError::new(ErrorKind::QueueFull, message)
            .hint("wait until some expire, or give them a shorter `ttl`"))
    }

    /// Lists the tasks of a client, as their servers report them now. Tasks without a timely report
    /// are omitted.
    pub(crate) async fn list_tasks(&self, client: &dyn RoutedClient) -> String {
        let all = self.ownership.borrow().all_of(client.number());
        let mut requests = Vec::new();
        for (key, name, id) in all {
            let server = self.server_at(&key, &name).filter(|it| it.is_shown());
            let server = server.filter(|_| client.allows_server(name.as_str()));
            let upstream = server.and_then(|it| it.upstream(key.holder));
            let params = format!(r#"{{"taskId":{}}}"#, quoted(&id));
            let question = upstream.and_then(|it| it.ask("tasks/get", Some(&params)).ok());
            requests.extend(question.map(|question| (key, id, question)));
        }
        let give_up_at = Instant::now() + TASK_TIMEOUT;
        let mut tasks: Vec<String> = Vec::new();
        for (key, id, question) in requests {
            let left = give_up_at.saturating_duration_since(Instant::now());
            if let Ok(Ok(answer)) = timeout(left, question.answer()).await
                && let Ok(task) = result_of(&answer)
            {
                if let Some((_, true)) = xy_mcp::tasks::status(task) {
                    self.ownership.borrow_mut().end_task(&key, &id);
                }
                tasks.push(task.to_owned());
            }
        }
        format!(r#"{{"tasks":[{}]}}"#, tasks.join(","))
    }

    /// Returns the combined task capabilities of legacy servers; `None` if there are none.
    pub(super) fn task_capabilities(&self, client: &dyn RoutedClient) -> Option<Value> {
        let servers = self.servers_of(client).into_iter().filter(|server| server.is_shown());
        let all = servers.filter_map(|server| {
            // Modern tasks are unrelated.
            let (result, _) = introduction_of(&server).filter(|(_, era)| *era == Era::Legacy)?;
            let mut result: Value = serde_json::from_str(&result).ok()?;
            let tasks = result.get_mut("capabilities")?.get_mut("tasks")?.take();
            tasks.is_object().then_some(tasks)
        });
        all.reduce(merge_capabilities)
    }
}

/// Returns the introduction of a server and its era. A running server has one before its lists are
/// known.
fn introduction_of(server: &Rc<Backend>) -> Option<(String, Era)> {
    match server.all_upstreams().first().and_then(|it| it.introduction()) {
        Some(living) => Some((living.result.clone(), living.era())),
        None => server.shown().map(|it| (it.introduction.result.clone(), it.introduction.era())),
    }
}

/// Returns the owner of a modern client's tasks.
fn owner(client: &dyn CallClient) -> Owner {
    Owner::Token(client.entry().principal)
}

/// Merges two capability objects: the result supports what either does.
fn merge_capabilities(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(mut one), Value::Object(other)) => {
            for (key, value) in other {
                let existing = one.remove(&key).unwrap_or(Value::Null);
                one.insert(key, merge_capabilities(existing, value));
            }
            Value::Object(one)
        }
        (Value::Null | Value::Bool(false), other) => other,
        (one, _) => one,
    }
}

fn unknown_task(id: &str) -> CallError {
    reply::invalid(format!("Task not found: {}", shortened(id)))
}

fn ambiguous_task() -> CallError {
    reply::invalid("several servers have a task of this id")
        .hint("ask for it at one server alone: `/mcp/s/<server>`, or `xy connect --server`")
}

/// Returns the error for a task that has ended with its server.
fn lost_task(id: &str, why: &str) -> CallError {
    unknown_task(id)
        .cause(format!("{why}, and its tasks have ended with it"))
        .hint("find out what was done before you begin it again")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn capabilities_of_any_server_are_offered() {
        let one = json!({ "list": {}, "requests": { "tools": { "call": {} } } });
        let other = json!({ "cancel": {}, "requests": { "tools": {}, "new": 1 } });
        let all = json!({
            "list": {}, "cancel": {}, "requests": { "tools": { "call": {} }, "new": 1 },
        });
        assert_eq!(merge_capabilities(one.clone(), other.clone()), all);
        assert_eq!(merge_capabilities(other, one), all);
    }
}
