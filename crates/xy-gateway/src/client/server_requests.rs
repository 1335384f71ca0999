//! What servers ask one client, and the tasks that it has begun for them.
//!
//! A question goes to the client under an id of ours, and its token for progress is that id
//! too: two servers may use the same. Both come back as the server wrote them. The id names the
//! daemon's generation: an answer to a question of an earlier daemon is dropped.

use std::collections::HashMap;
use std::rc::{Rc, Weak};

use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Message, Outcome};
use xy_protocol::error::CallError;

use super::Client;
use crate::bridge::rounds::Round;
use crate::capabilities::Wants;
use crate::frontend::Route;
use crate::params::Params;
use crate::reply;
use crate::retained::Retained;
use crate::tasks;
use crate::upstream::Upstream;

/// How many questions of servers one client may have open.
const MOST_ASKED: usize = 100;

/// How many tasks one client may do for servers.
const MOST_TASKS: usize = 100;

/// What a client is asked, and does for servers.
#[derive(Default)]
pub(super) struct Questions {
    /// By the id it is asked under.
    asked: HashMap<u64, Asked>,
    last: u64,
    /// By what the client calls them.
    tasks: HashMap<String, Task>,
}

/// Something that a server asks a client.
struct Asked {
    by: Weak<Upstream>,
    /// The server's own id, as it was written.
    id: Box<str>,
    /// Its token for the progress of that, as it was written.
    token: Option<Box<str>>,
    kind: Kind,
}

/// What is asked.
enum Kind {
    Plain,
    /// It may be done as a task.
    AsTask,
    /// The tasks that the client does, of which a server hears its own.
    Tasks,
    /// What a modern server wants to know under this key, before it does something.
    InRound(Rc<Round>, Box<str>),
}

/// Something that a client does for a server, for a longer time.
struct Task {
    by: Weak<Upstream>,
    /// What it was asked under, which is what its progress is told under too.
    number: u64,
    /// What its progress is told under to the server.
    token: Option<Box<str>>,
}

impl Questions {
    pub(super) fn count(&self, census: &mut Retained) {
        census.add("client_questions", self.asked.len());
        census.add("client_tasks", self.tasks.len());
    }
}

fn is(by: &Weak<Upstream>, upstream: &Rc<Upstream>) -> bool {
    std::ptr::eq(by.as_ptr(), Rc::as_ptr(upstream))
}

impl Client {
    /// A server asks it something; `line` is all of it.
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
        let mut questions = self.questions.borrow_mut();
        if questions.asked.len() >= MOST_ASKED {
            return Err(reply::invalid(format!(
                "the client has {MOST_ASKED} questions open, which is the most there may be"
            )));
        }
        questions.last += 1;
        let number = questions.last;
        let written = self.router.generation.request_id(number);
        let token = Params::read(params).own_token();
        let kind = match &*method {
            "tasks/list" => Kind::Tasks,
            _ if Wants::read(params).is_task() => Kind::AsTask,
            _ => Kind::Plain,
        };
        let asked =
            Asked { by: Rc::downgrade(by), id: id.into(), token: token.map(Into::into), kind };
        questions.asked.insert(number, asked);
        drop(questions);
        let mut edits = Edits::of(line);
        edits.replace(part, &*written);
        if let Some(token) = token {
            edits.replace(token, &*written);
        }
        self.tell(&edits.to_vec(), to);
        Ok(())
    }

    /// A modern server wants to know something, before it does what this client asked.
    pub(crate) fn ask_for_round(
        &self,
        round: &Rc<Round>,
        key: &str,
        method: &str,
        params: &str,
        to: Route,
    ) -> Result<(), CallError> {
        let mut questions = self.questions.borrow_mut();
        if questions.asked.len() >= MOST_ASKED {
            return Err(reply::invalid(format!(
                "the client has {MOST_ASKED} questions open, which is the most there may be"
            )));
        }
        questions.last += 1;
        let number = questions.last;
        let kind = Kind::InRound(round.clone(), key.into());
        let asked = Asked { by: Weak::new(), id: "".into(), token: None, kind };
        questions.asked.insert(number, asked);
        drop(questions);
        let id = self.router.generation.request_id(number);
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.tell(line.as_bytes(), to);
        Ok(())
    }

    /// Nobody wants to know what is asked in this round any more.
    pub(crate) fn unask_round(&self, round: &Rc<Round>) {
        let is_of =
            |one: &Asked| matches!(&one.kind, Kind::InRound(it, _) if Rc::ptr_eq(it, round));
        let why = "the request it was asked for is over";
        self.unask_those(is_of, why);
    }

    fn unask_those(&self, is_meant: impl Fn(&Asked) -> bool, why: &str) {
        let mut questions = self.questions.borrow_mut();
        let meant = questions.asked.iter().filter(|(_, one)| is_meant(one));
        let mut numbers: Vec<u64> = meant.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        for number in &numbers {
            questions.asked.remove(number);
        }
        drop(questions);
        for number in numbers {
            let id = self.router.generation.request_id(number);
            let message = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"{why}"}}}}"#
            );
            self.tell(message.as_bytes(), Route::Broadcast);
        }
    }

    /// Whether it has a question of this server open.
    pub(crate) fn is_asked_by(&self, upstream: &Rc<Upstream>) -> bool {
        self.questions.borrow().asked.values().any(|one| is(&one.by, upstream))
    }

    /// Whether it does this task for this server.
    pub(crate) fn does_task(&self, by: &Rc<Upstream>, id: &str) -> bool {
        self.questions.borrow().tasks.get(id).is_some_and(|task| is(&task.by, by))
    }

    /// A server takes back what it asked.
    pub(crate) fn unask(&self, by: &Rc<Upstream>, theirs: &str, line: &[u8]) {
        let mut questions = self.questions.borrow_mut();
        let is_it = |one: &Asked| &*one.id == theirs && is(&one.by, by);
        let found = questions.asked.iter().find(|(_, one)| is_it(one)).map(|(number, _)| *number);
        let Some(number) = found else { return };
        questions.asked.remove(&number);
        drop(questions);
        let Ok(Message::Notification { params, .. }) = envelope::parse(line) else { return };
        let Some(part) = Params::read(params).request_id() else { return };
        let mut edits = Edits::of(line);
        edits.replace(part, self.router.generation.request_id(number));
        self.tell(&edits.to_vec(), Route::Broadcast);
    }

    /// A server is gone, and what it asked is of no use any more.
    pub(crate) fn unask_all(&self, by: &Rc<Upstream>) {
        self.questions.borrow_mut().tasks.retain(|_, task| !is(&task.by, by));
        self.unask_those(|one| is(&one.by, by), "the server has ended");
    }

    /// It answers what a server asked.
    pub(super) fn hear_answer(&self, id: Option<&str>, outcome: Outcome<'_>, text: &[u8]) {
        let numbered = id.and_then(|id| Some((id, self.router.generation.number_of(id)?)));
        let Some((id, number)) = numbered else { return };
        let asked = self.questions.borrow_mut().asked.remove(&number);
        let Some(Asked { by, id: theirs, token, kind }) = asked else { return };
        if let Kind::InRound(round, key) = kind {
            return round.answered(&key, outcome);
        }
        let Some(upstream) = by.upgrade() else { return };
        let mut edits = Edits::of(text);
        edits.replace(id, &*theirs);
        match (kind, outcome) {
            (Kind::AsTask, Outcome::Result(result)) => {
                if let Some((task, _)) = tasks::begun(result) {
                    self.begin_task(task, Task { by, number, token });
                }
            }
            (Kind::Tasks, Outcome::Result(result)) => {
                let own = tasks::only(result, |task| self.does_task(&upstream, task));
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
        let mut questions = self.questions.borrow_mut();
        questions.tasks.retain(|_, task| task.by.strong_count() > 0);
        if questions.tasks.len() >= MOST_TASKS {
            let oldest = questions.tasks.iter().min_by_key(|(_, task)| task.number);
            let oldest = oldest.map(|(id, _)| id.clone()).unwrap_or_default();
            questions.tasks.remove(&oldest);
        }
        questions.tasks.insert(id, task);
    }

    /// It tells how far it is with what a server asked.
    pub(super) fn progressed(&self, params: &Params<'_>, text: &[u8]) {
        let Some(part) = params.token() else { return };
        let Some(number) = self.router.generation.number_of(part) else { return };
        let questions = self.questions.borrow();
        let by_task = |task: &Task| {
            let token = task.token.clone().filter(|_| task.number == number)?;
            Some((task.by.upgrade()?, token))
        };
        let found = match questions.asked.get(&number) {
            Some(asked) => asked.by.upgrade().zip(asked.token.clone()),
            None => questions.tasks.values().find_map(by_task),
        };
        drop(questions);
        let Some((upstream, token)) = found else { return };
        let mut edits = Edits::of(text);
        edits.replace(part, &*token);
        upstream.pass(&edits.to_vec());
        upstream.touch(self.number());
    }

    /// It tells how a task is doing that it does for a server.
    pub(super) fn task_changed(&self, params: &Params<'_>, text: &[u8]) {
        let Some(id) = params.task_id() else { return };
        let by = self.questions.borrow().tasks.get(&id).and_then(|task| task.by.upgrade());
        if let Some(upstream) = by {
            upstream.pass(text);
        }
    }

    /// It is gone: whoever asked it something is told.
    pub(super) fn answer_no_more(&self) {
        let questions = std::mem::take(&mut *self.questions.borrow_mut());
        for Asked { by, id, .. } in questions.asked.into_values() {
            if let Some(upstream) = by.upgrade() {
                upstream.send(&reply::error(&id, -32603, "the client is gone"));
            }
        }
    }
}
