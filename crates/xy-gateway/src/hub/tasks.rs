//! Tasks that servers do for clients: whose they are, and where.

use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, timeout};
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::instance::InstanceKey;

use super::Hub;
use crate::client::Client;
use crate::names::quoted;
use crate::owners::{Found, MOST_TASKS};
use crate::say;
use crate::server::Server;
use crate::upstream::result_of;

/// How long a server has to say how a task is doing before it is left out of a list.
const TOLD_WITHIN: Duration = Duration::from_secs(4);

impl Hub {
    /// The server that does a client's task.
    pub(crate) fn server_of_task(
        &self,
        client: &Client,
        id: &str,
    ) -> Result<Rc<Server>, CallError> {
        let found = self.owners.borrow().find(client.number(), id);
        match found {
            Found::At(InstanceKey { server, .. }) => {
                self.server(server.as_str()).ok_or_else(|| no_task(id).cause("its server is gone"))
            }
            Found::Nowhere => Err(no_task(id)),
            Found::Lost(why) => Err(lost(id, &why)),
            Found::Several => Err(say::invalid("several servers have a task of this id")
                .hint("ask for it at one server alone, with `xy connect --server`")),
        }
    }

    /// Whether a client may ask this server about a task.
    pub(crate) fn check_task(
        &self,
        client: &Client,
        server: &Server,
        id: &str,
    ) -> Result<(), CallError> {
        let owners = self.owners.borrow();
        let key = InstanceKey { server: server.name.clone(), holder: server.holder(client) };
        if owners.owner_of_task(&key, id) == Some(client.number()) {
            return Ok(());
        }
        match owners.find(client.number(), id) {
            Found::Lost(why) => Err(lost(id, &why)),
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
        for (key, id) in all {
            let upstream = self.server(key.server.as_str()).and_then(|it| it.upstream(key.holder));
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
    pub(super) fn task_capabilities(&self) -> Option<Value> {
        let known = self.servers().into_iter().filter_map(|server| server.shown());
        let all = known.filter_map(|known| {
            let mut result: Value = serde_json::from_str(&known.introduction.result).ok()?;
            let tasks = result.get_mut("capabilities")?.get_mut("tasks")?.take();
            tasks.is_object().then_some(tasks)
        });
        all.reduce(both)
    }
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
    say::invalid(format!("Task not found: {}", shortened(id)))
}

fn lost(id: &str, why: &str) -> CallError {
    no_task(id)
        .cause(format!("{why}, and its tasks have ended with it"))
        .hint("find out what was done before you begin it again")
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
