//! Tasks that servers do for clients: whose they are, and where.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, timeout};
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::instance::InstanceKey;

use xy_mcp::envelope::Outcome;

use super::Router;
use crate::backend::Backend;
use crate::client::Client;
use crate::era::Era;
use crate::frontend::View;
use crate::modern;
use crate::names::quoted;
use crate::ownership::{Found, LONGEST_ID, MOST_TASKS, NewTask, Owner};
use crate::reply;
use crate::tasks;
use crate::upstream::{Answer, Follow, Upstream, result_of};

/// How long a server has to say how a task is doing before it is left out of a list.
const TOLD_WITHIN: Duration = Duration::from_secs(4);

/// So many tasks of one instance are listened to.
const MOST_FOLLOWED: usize = 1000;

impl Router {
    /// The server that does a client's task.
    pub(crate) fn server_of_task(
        &self,
        client: &Client,
        id: &str,
    ) -> Result<Rc<Backend>, CallError> {
        let found = self.owners.borrow().find(client.number(), id);
        match found {
            Found::At(at, asked) if client.allows_server(asked.as_str()) => {
                self.server_at(&at, &asked).ok_or_else(|| no_task(id).cause("its server is gone"))
            }
            Found::At(..) | Found::Nowhere => Err(no_task(id)),
            Found::UnansweredCall(at, asked, why) => Err(lost(id, &why, &at.server, &asked)),
            Found::Several => Err(several()),
        }
    }

    /// The server that was asked for a task under this name, if it is still the one whose
    /// instance does it.
    fn server_at(&self, at: &InstanceKey, asked: &ServerName) -> Option<Rc<Backend>> {
        let server = self.server(asked.as_str())?;
        (server.primary_or_self().name == at.server).then_some(server)
    }

    /// The server that does a task for whoever has the token of this modern client. An id says
    /// nothing of its server, so one that several servers have given out is nobody's.
    pub(crate) fn server_of_modern_task(
        &self,
        client: &Client,
        id: &str,
    ) -> Result<Rc<Backend>, CallError> {
        match self.find_modern_task(client, id) {
            Found::At(at, asked) => {
                self.server_at(&at, &asked).ok_or_else(|| no_task(id).cause("its server is gone"))
            }
            Found::Nowhere if !self.offers_tasks(client) => Err(CallError::new(
                ErrorKind::MethodNotFound,
                "there are no tasks here: no server has them",
            )),
            Found::Nowhere => Err(no_task(id)),
            Found::UnansweredCall(at, asked, why) => Err(lost(id, &why, &at.server, &asked)),
            Found::Several => Err(several()),
        }
    }

    /// Where such a task is, of the instances that this client may ask.
    fn find_modern_task(&self, client: &Client, id: &str) -> Found {
        let is_theirs = |at: &InstanceKey, asked: &ServerName| {
            client.allows_server(asked.as_str())
                && self
                    .server(at.server.as_str())
                    .is_none_or(|it| !at.holder.is_client() || it.holder(client) == at.holder)
        };
        self.owners.borrow().find_for(owner(client), id, is_theirs)
    }

    /// The instance that tells this modern client of a task, if one does. Where it is shown one
    /// server alone, that knows its tasks itself.
    pub(crate) fn place_of_task(&self, client: &Client, id: &str) -> Option<InstanceKey> {
        match &client.entry().view {
            View::Server(_) if id.len() > LONGEST_ID => None,
            View::Server(name) => {
                let server = self.server(name)?;
                let holder = server.holder(client);
                Some(InstanceKey { server: server.primary_or_self().name.clone(), holder })
            }
            View::Profile(_) | View::All => match self.find_modern_task(client, id) {
                Found::At(at, _) => self.is_followed(client, &at, id).then_some(at),
                _ => None,
            },
        }
    }

    /// Whether a client that listens to a task may still hear of it.
    fn is_followed(&self, client: &Client, at: &InstanceKey, id: &str) -> bool {
        let owners = self.owners.borrow();
        matches!(client.entry().view, View::Server(_))
            || owners.is_worked_on(at, owner(client), id)
                && owners.asked_as(at, id).is_some_and(|it| client.allows_server(it.as_str()))
    }

    /// The tasks of an instance that clients listen to.
    pub(super) fn followed_at(&self, at: &InstanceKey) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for client in self.clients() {
            let theirs = client.followed_at(at).into_iter();
            all.extend(theirs.filter(|id| self.is_followed(&client, at, id)));
        }
        while all.len() > MOST_FOLLOWED {
            all.pop_last();
        }
        all
    }

    /// Whether whoever has the token of this client may have one more task.
    pub(crate) fn has_room_for_modern_task(&self, client: &Client) -> bool {
        self.owners.borrow_mut().has_room_for(client.entry().who, Instant::now())
    }

    /// A modern server has answered a modern client with what may be a task, or tells of one.
    pub(super) fn follow_modern(&self, at: &InstanceKey, answer: &Answer<'_>) {
        let Outcome::Result(result) = answer.outcome else { return };
        let (mut owners, now) = (self.owners.borrow_mut(), Instant::now());
        match answer.follow {
            Follow::NewTask => {
                if let Some((id, life)) = tasks::created(result) {
                    let asked = &answer.asked.name;
                    let new = NewTask { id: &id, asked, life, token: None };
                    owners.begun_for(at, owner(answer.client), new, now);
                }
            }
            Follow::Task => {
                let Some((id, is_over)) = tasks::told(result) else { return };
                if let Some(life) = tasks::kept(result) {
                    owners.keeps(at, &id, life, now);
                }
                if is_over {
                    owners.ended(at, &id);
                }
            }
            Follow::Nothing | Follow::Outcome(_) | Follow::Tasks => {}
        }
    }

    /// A modern server tells how a task is doing: whoever listens to that hears it, and nobody
    /// else.
    pub(super) fn task_told(&self, by: &Rc<Upstream>, params: Option<&str>, line: &[u8]) {
        let Some((id, is_over)) = params.and_then(tasks::told) else { return by.unparsed(line) };
        let owners = self.owners.borrow();
        let owner = owners.owner_of(by.key(), &id);
        let asked = owners.asked_as(by.key(), &id).cloned();
        drop(owners);
        // What was begun under a name is told to who is shown that.
        let is_shown = |client: &Client| {
            asked.as_ref().is_none_or(|asked| client.allows_server(asked.as_str()))
        };
        let mut is_heard = false;
        for client in self.clients().into_iter().filter(|it| is_shown(it)) {
            is_heard |= client.tell_task(by.key(), (&id, owner), line, is_over);
        }
        if is_over {
            self.owners.borrow_mut().ended(by.key(), &id);
        }
        if !is_heard {
            by.unparsed(line);
        }
    }

    /// Whether any server that is shown has tasks as modern clients know them.
    pub(crate) fn offers_tasks(&self, client: &Client) -> bool {
        let servers = self.servers_of(client);
        let mut all = servers.iter().filter(|server| server.is_shown()).filter_map(said_by);
        all.any(|(result, era)| era == Era::Modern && modern::offers_tasks(&result))
    }

    /// How xy introduces itself to a modern client.
    pub(crate) fn discovery(&self, client: &Client) -> String {
        let introduction = self.introduction(client, crate::era::LATEST);
        let discovered = modern::discovered_from(&introduction);
        if self.offers_tasks(client) { modern::with_tasks(&discovered) } else { discovered }
    }

    /// Whether a client may ask this server about a task.
    pub(crate) fn check_task(
        &self,
        client: &Client,
        server: &Rc<Backend>,
        id: &str,
    ) -> Result<(), CallError> {
        let owners = self.owners.borrow();
        let (server, holder) = (server.primary_or_self().name.clone(), server.holder(client));
        let key = InstanceKey { server, holder };
        if owners.owner_of_task(&key, id) == Some(client.number()) {
            return Ok(());
        }
        match owners.find(client.number(), id) {
            Found::UnansweredCall(at, asked, why) => Err(lost(id, &why, &at.server, &asked)),
            _ => Err(no_task(id)),
        }
    }

    /// Whether a client may have one more task.
    pub(crate) fn check_room_for_task(&self, client: &Client) -> Result<(), CallError> {
        let count = self.owners.borrow_mut().tasks_now(client.number(), Instant::now());
        if count < MOST_TASKS {
            return Ok(());
        }
        let message =
            format!("{count} tasks are kept for this client, which is the most there may be");
        Err(CallError::new(ErrorKind::QueueFull, message)
            .hint("wait until some are forgotten, or give them a shorter `ttl`"))
    }

    /// All tasks of a client, as their servers tell of them now. One that is not told of in
    /// time, or is known no more, is left out.
    pub(crate) async fn list_tasks(&self, client: &Client) -> String {
        let all = self.owners.borrow().all_of(client.number());
        let mut asked = Vec::new();
        for (key, name, id) in all {
            let server = self.server_at(&key, &name).filter(|it| it.is_shown());
            let server = server.filter(|_| client.allows_server(name.as_str()));
            let upstream = server.and_then(|it| it.upstream(key.holder));
            let params = format!(r#"{{"taskId":{}}}"#, quoted(&id));
            let question = upstream.and_then(|it| it.ask("tasks/get", Some(&params)).ok());
            asked.extend(question.map(|question| (key, id, question)));
        }
        let give_up_at = Instant::now() + TOLD_WITHIN;
        let mut told: Vec<String> = Vec::new();
        for (key, id, question) in asked {
            let left = give_up_at.saturating_duration_since(Instant::now());
            if let Ok(Ok(answer)) = timeout(left, question.answer()).await
                && let Ok(task) = result_of(&answer)
            {
                if let Some((_, true)) = crate::tasks::told(task) {
                    self.owners.borrow_mut().ended(&key, &id);
                }
                told.push(task.to_owned());
            }
        }
        format!(r#"{{"tasks":[{}]}}"#, told.join(","))
    }

    /// What servers can do with tasks, all of them together; `None` if none can.
    pub(super) fn task_capabilities(&self, client: &Client) -> Option<Value> {
        let servers = self.servers_of(client).into_iter().filter(|server| server.is_shown());
        let all = servers.filter_map(|server| {
            // Those of a modern one are another thing.
            let (result, _) = said_by(&server).filter(|(_, era)| *era == Era::Legacy)?;
            let mut result: Value = serde_json::from_str(&result).ok()?;
            let tasks = result.get_mut("capabilities")?.get_mut("tasks")?.take();
            tasks.is_object().then_some(tasks)
        });
        all.reduce(both)
    }
}

/// What a server said of itself, and in which era. A living one has said so before its lists
/// are known.
fn said_by(server: &Rc<Backend>) -> Option<(String, Era)> {
    match server.all_upstreams().first().and_then(|it| it.introduction()) {
        Some(living) => Some((living.result.clone(), living.era())),
        None => server.shown().map(|it| (it.introduction.result.clone(), it.introduction.era())),
    }
}

/// Whose the tasks of a modern client are.
fn owner(client: &Client) -> Owner {
    Owner::Token(client.entry().who)
}

/// What either of two can do.
fn both(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(mut one), Value::Object(other)) => {
            for (key, theirs) in other {
                let ours = one.remove(&key).unwrap_or(Value::Null);
                one.insert(key, both(ours, theirs));
            }
            Value::Object(one)
        }
        (Value::Null | Value::Bool(false), other) => other,
        (one, _) => one,
    }
}

fn no_task(id: &str) -> CallError {
    reply::invalid(format!("Task not found: {}", shortened(id)))
}

fn several() -> CallError {
    reply::invalid("several servers have a task of this id")
        .hint("ask for it at one server alone: `/mcp/s/<server>`, or `xy connect --server`")
}

/// It has ended with its server, like this, which was asked for it under this name.
fn lost(id: &str, why: &str, owner: &ServerName, asked: &ServerName) -> CallError {
    let fault = no_task(id)
        .cause(format!("{why}, and its tasks have ended with it"))
        .hint("find out what was done before you begin it again");
    reply::under(asked, owner, &fault)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_any_server_can_do_is_offered() {
        let one = json!({ "list": {}, "requests": { "tools": { "call": {} } } });
        let other = json!({ "cancel": {}, "requests": { "tools": {}, "new": 1 } });
        let all = json!({
            "list": {}, "cancel": {}, "requests": { "tools": { "call": {} }, "new": 1 },
        });
        assert_eq!(both(one.clone(), other.clone()), all);
        assert_eq!(both(other, one), all);
    }
}
