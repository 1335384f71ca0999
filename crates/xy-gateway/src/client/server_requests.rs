//! Requests that servers make of one client, and the tasks that the client runs for them.
//!
//! xy replaces the id and the progress token of each request by an id of its own, since two servers
//! may use the same. Responses and progress get the server's values back. The id names the daemon's
//! generation, so a response to a request of an earlier daemon is dropped.

use std::collections::HashMap;
use std::rc::{Rc, Weak};

use xy_http::frontend::Route;
use xy_mcp::capabilities::RequiredCapabilities;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Message, Outcome};
use xy_mcp::params::Params;
use xy_mcp::{reply, tasks};
use xy_protocol::error::CallError;
use xy_transport::retained::Retained;
use xy_upstream::connection::Connection;

use super::Client;
use crate::call::{AnswerReceiver, CallClient};
use crate::upstream::Upstream;

/// Maximum number of open server requests of one client.
const MAX_QUESTIONS: usize = 100;

/// Maximum number of tasks that one client may run for servers.
const MAX_TASKS: usize = 100;

/// The open server requests and the tasks of one client.
#[derive(Default)]
pub(super) struct ServerRequests {
    /// Open requests, by the id that xy gave them.
    open: HashMap<u64, ServerRequest>,
    last: u64,
    /// Tasks, by the client's id.
    tasks: HashMap<String, Task>,
}

/// A request that a server makes of the client.
struct ServerRequest {
    by: Weak<Upstream>,
    /// The server's id, as JSON text.
    id: Box<str>,
    /// The server's progress token, as JSON text.
    token: Option<Box<str>>,
    purpose: Purpose,
}

/// The way in which the response is handled.
enum Purpose {
    Plain,
    /// The response may be a new task.
    MaybeTask,
    /// `tasks/list`: the server receives only its own tasks.
    TaskList,
    /// An input request of a modern server, under this key of the receiver.
    Input(Rc<dyn AnswerReceiver>, Box<str>),
}

/// A task that the client runs for a server.
struct Task {
    by: Weak<Upstream>,
    /// The id under which xy forwarded the request; progress uses it as well.
    number: u64,
    /// The server's progress token, as JSON text.
    token: Option<Box<str>>,
}

impl ServerRequests {
    pub(super) fn count(&self, counts: &mut Retained) {
        counts.add("client_questions", self.open.len());
        counts.add("client_tasks", self.tasks.len());
    }
}

fn is_same_server(by: &Weak<Upstream>, upstream: &Rc<Upstream>) -> bool {
    std::ptr::eq(by.as_ptr(), Rc::as_ptr(upstream))
}

impl Client {
    /// Forwards a server's request to the client; `line` is the whole message.
    pub(crate) fn ask(
        &self,
        by: &Rc<Upstream>,
        id: &str,
        line: &[u8],
        to: Route,
    ) -> Result<(), CallError> {
        let Ok(Message::Request { id: part, method, params }) = envelope::parse(line) else {
            return Ok(());
        };
        let mut server_requests = self.server_requests.borrow_mut();
        if server_requests.open.len() >= MAX_QUESTIONS {
            return Err(self.too_many_questions());
        }
        server_requests.last += 1;
        let number = server_requests.last;
        let written = self.router.generation.request_id(number);
        let token = Params::read(params).own_token();
        let purpose = match &*method {
            "tasks/list" => Purpose::TaskList,
            _ if RequiredCapabilities::read(params).is_task() => Purpose::MaybeTask,
            _ => Purpose::Plain,
        };
        let request = ServerRequest {
            by: Rc::downgrade(by),
            id: id.into(),
            token: token.map(Into::into),
            purpose,
        };
        server_requests.open.insert(number, request);
        drop(server_requests);
        let mut edits = Edits::of(line);
        edits.replace(part, &*written);
        if let Some(token) = token {
            edits.replace(token, &*written);
        }
        self.send(&edits.to_vec(), to);
        Ok(())
    }

    /// Asks the client for input that a modern server needs for this client's request.
    pub(super) fn ask_for_input(
        &self,
        receiver: Rc<dyn AnswerReceiver>,
        key: &str,
        (method, params): (&str, &str),
        to: Route,
    ) -> Result<(), CallError> {
        let mut server_requests = self.server_requests.borrow_mut();
        if server_requests.open.len() >= MAX_QUESTIONS {
            return Err(self.too_many_questions());
        }
        server_requests.last += 1;
        let number = server_requests.last;
        let purpose = Purpose::Input(receiver, key.into());
        let request = ServerRequest { by: Weak::new(), id: "".into(), token: None, purpose };
        server_requests.open.insert(number, request);
        drop(server_requests);
        let id = self.router.generation.request_id(number);
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.send(line.as_bytes(), to);
        Ok(())
    }

    /// Records that too many server requests are open; returns the error for the next one.
    fn too_many_questions(&self) -> CallError {
        self.limit_hit("open server requests of one client");
        reply::invalid(format!(
            "the client has {MAX_QUESTIONS} open requests of servers, the maximum"
        ))
    }

    /// Cancels the input requests whose answers this receiver gets.
    pub(super) fn cancel_input(&self, receiver: &dyn AnswerReceiver) {
        let is_it = |it: &Rc<dyn AnswerReceiver>| std::ptr::addr_eq(Rc::as_ptr(it), receiver);
        let is_of =
            |one: &ServerRequest| matches!(&one.purpose, Purpose::Input(it, _) if is_it(it));
        let why = "the request it was asked for is over";
        self.cancel_matching(is_of, why);
    }

    /// Returns true if a request of this server is open.
    pub(super) fn has_question_from(&self, server: &Connection) -> bool {
        let is_it = |it: Rc<Upstream>| std::ptr::eq(Rc::as_ptr(it.connection()), server);
        let server_requests = self.server_requests.borrow();
        server_requests.open.values().any(|one| one.by.upgrade().is_some_and(is_it))
    }

    fn cancel_matching(&self, is_meant: impl Fn(&ServerRequest) -> bool, why: &str) {
        let mut server_requests = self.server_requests.borrow_mut();
        let meant = server_requests.open.iter().filter(|(_, one)| is_meant(one));
        let mut numbers: Vec<u64> = meant.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        for number in &numbers {
            server_requests.open.remove(number);
        }
        drop(server_requests);
        for number in numbers {
            let id = self.router.generation.request_id(number);
            let message = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"{why}"}}}}"#
            );
            self.send(message.as_bytes(), Route::Broadcast);
        }
    }

    /// Returns true if the client runs this task for this server.
    pub(crate) fn does_task_for(&self, by: &Rc<Upstream>, id: &str) -> bool {
        self.server_requests.borrow().tasks.get(id).is_some_and(|task| is_same_server(&task.by, by))
    }

    /// Forwards a server's cancellation of its request.
    pub(crate) fn cancel_question(&self, by: &Rc<Upstream>, upstream_id: &str, line: &[u8]) {
        let mut server_requests = self.server_requests.borrow_mut();
        let is_it = |one: &ServerRequest| &*one.id == upstream_id && is_same_server(&one.by, by);
        let found =
            server_requests.open.iter().find(|(_, one)| is_it(one)).map(|(number, _)| *number);
        let Some(number) = found else { return };
        server_requests.open.remove(&number);
        drop(server_requests);
        let Ok(Message::Notification { params, .. }) = envelope::parse(line) else { return };
        let Some(part) = Params::read(params).request_id() else { return };
        let mut edits = Edits::of(line);
        edits.replace(part, self.router.generation.request_id(number));
        self.send(&edits.to_vec(), Route::Broadcast);
    }

    /// Cancels all requests of a server that has ended.
    pub(crate) fn cancel_all_from(&self, by: &Rc<Upstream>) {
        self.server_requests.borrow_mut().tasks.retain(|_, task| !is_same_server(&task.by, by));
        self.cancel_matching(|one| is_same_server(&one.by, by), "the server has ended");
    }

    /// Handles the client's response to a server request.
    pub(super) fn handle_response(&self, id: Option<&str>, outcome: Outcome<'_>, text: &[u8]) {
        let numbered = id.and_then(|id| Some((id, self.router.generation.request_number(id)?)));
        let Some((id, number)) = numbered else { return };
        let request = self.server_requests.borrow_mut().open.remove(&number);
        let Some(ServerRequest { by, id: upstream_id, token, purpose }) = request else { return };
        if let Purpose::Input(receiver, key) = purpose {
            return receiver.receive_answer(&key, outcome);
        }
        let Some(upstream) = by.upgrade() else { return };
        let mut edits = Edits::of(text);
        edits.replace(id, &*upstream_id);
        match (purpose, outcome) {
            (Purpose::MaybeTask, Outcome::Result(result)) => {
                if let Some((task, _)) = tasks::created_legacy(result) {
                    self.begin_task(task, Task { by, number, token });
                }
            }
            (Purpose::TaskList, Outcome::Result(result)) => {
                let own = tasks::filter_list(result, |task| self.does_task_for(&upstream, task));
                if let Some((part, new)) = own {
                    edits.replace(part, new);
                }
            }
            _ => {}
        }
        upstream.pass(&edits.to_vec());
        upstream.touch(self.number());
    }

    fn begin_task(&self, id: String, task: Task) {
        let mut server_requests = self.server_requests.borrow_mut();
        server_requests.tasks.retain(|_, task| task.by.strong_count() > 0);
        if server_requests.tasks.len() >= MAX_TASKS {
            let oldest = server_requests.tasks.iter().min_by_key(|(_, task)| task.number);
            let oldest = oldest.map(|(id, _)| id.clone()).unwrap_or_default();
            server_requests.tasks.remove(&oldest);
        }
        server_requests.tasks.insert(id, task);
    }

    /// Forwards the client's progress on a server request.
    pub(super) fn forward_progress(&self, params: &Params<'_>, text: &[u8]) {
        let Some(part) = params.token() else { return };
        let Some(number) = self.router.generation.request_number(part) else { return };
        let server_requests = self.server_requests.borrow();
        let by_task = |task: &Task| {
            let token = task.token.clone().filter(|_| task.number == number)?;
            Some((task.by.upgrade()?, token))
        };
        let found = match server_requests.open.get(&number) {
            Some(request) => request.by.upgrade().zip(request.token.clone()),
            None => server_requests.tasks.values().find_map(by_task),
        };
        drop(server_requests);
        let Some((upstream, token)) = found else { return };
        let mut edits = Edits::of(text);
        edits.replace(part, &*token);
        upstream.pass(&edits.to_vec());
        upstream.touch(self.number());
    }

    /// Forwards the client's status of a task to its server.
    pub(super) fn forward_task_status(&self, params: &Params<'_>, text: &[u8]) {
        let Some(id) = params.task_id() else { return };
        let by = self.server_requests.borrow().tasks.get(&id).and_then(|task| task.by.upgrade());
        if let Some(upstream) = by {
            upstream.pass(text);
        }
    }

    /// Answers all open server requests with an error, as the client is gone.
    pub(super) fn fail_server_requests(&self) {
        let server_requests = std::mem::take(&mut *self.server_requests.borrow_mut());
        for ServerRequest { by, id, .. } in server_requests.open.into_values() {
            if let Some(upstream) = by.upgrade() {
                upstream.send(&reply::error(&id, -32603, "the client is gone"));
            }
        }
    }
}
