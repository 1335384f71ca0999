//! Tasks of the revision without `initialize`: the tool `job`, if the client supports tasks, and
//! the methods `tasks/*`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::json::Members;

use crate::eras;
use crate::request::{BAD_PARAMS, Call, Request, text_result};
use crate::server::Server;
use crate::tools;

/// The name of the extension.
pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";

/// The timestamp of every task.
const NOON: &str = "2026-01-01T12:00:00Z";

/// The state of one task.
#[derive(Debug, Clone)]
pub(crate) struct ModernTask {
    status: &'static str,
    /// The message of its elicitation; `answer` is the response of the client.
    question: Option<String>,
    answer: Option<String>,
    result: Option<Value>,
}

impl ModernTask {
    /// Returns the task as the protocol represents it.
    fn to_json(&self, id: &str) -> Value {
        let mut task = json!({
            "taskId": id, "status": self.status, "createdAt": NOON, "lastUpdatedAt": NOON,
            "ttlMs": 60_000, "pollIntervalMs": 10,
        });
        if let Some(message) = self.question.as_ref().filter(|_| self.status == "input_required") {
            let params: Value = tools::elicitation(message);
            task["inputRequests"] =
                json!({ "name": { "method": "elicitation/create", "params": params } });
        }
        if let Some(result) = &self.result {
            task["result"] = result.clone();
        }
        task
    }
}

/// Starts a task, which waits `ms` milliseconds, and elicits input if the call has `ask`.
pub(crate) fn begin(server: &Arc<Server>, call: Call) {
    let mut state = server.state();
    let id = format!("{}-{}", server.options.name, state.modern_tasks.len() + 1);
    let created = ModernTask { status: "working", question: None, answer: None, result: None };
    let mut task = created.to_json(&id);
    task["resultType"] = json!("task");
    state.modern_tasks.insert(id.clone(), created);
    drop(state);
    call.request.result(&task.to_string());
    // The call is answered. The worker has its own id, so that no cancellation ends it.
    let worker =
        Request { id: format!("\"errand {id}\""), responder: Arc::clone(&call.request.responder) };
    server.spawn_worker(worker, move |server, worker| work(server, &worker, &call, &id));
}

fn work(server: &Arc<Server>, worker: &Request, call: &Call, id: &str) {
    let mut text = call.string("message");
    server.wait(worker, Duration::from_millis(call.number("ms", 0)));
    if !call.string("ask").is_empty() {
        change(server, worker, id, |task| {
            (task.status, task.question) = ("input_required", Some(text.clone()));
        });
        let answer = server.wait_for(worker, |state| state.modern_tasks.get(id)?.answer.clone());
        text = answer.unwrap_or_default();
    }
    change(server, worker, id, |task| {
        let result: Value = text_result(&text).parse().expect("it is JSON");
        (task.status, task.result) = ("completed", Some(result));
    });
}

/// Changes a task that has not ended, and notifies the clients that listen to it.
fn change(server: &Server, request: &Request, id: &str, change: impl FnOnce(&mut ModernTask)) {
    let mut state = server.state();
    let is_open = |it: &&mut ModernTask| matches!(it.status, "working" | "input_required");
    let Some(task) = state.modern_tasks.get_mut(id).filter(is_open) else { return };
    change(task);
    let task = task.to_json(id);
    drop(state);
    server.notify_change();
    eras::notify_task_listeners(server, request, id, &task);
}

/// Answers a `tasks/*` request.
pub(crate) fn answer(server: &Arc<Server>, request: &Request, method: &str, params: &Members) {
    if !knows_tasks(params) {
        let can = json!({ "extensions": { TASKS: {} } });
        let error = json!({
            "code": -32021, "message": "Missing required client capability",
            "data": { "requiredCapabilities": can },
        });
        return request.refuse_with(&error.to_string());
    }
    let id = params.string("taskId").unwrap_or_default();
    let Some(task) = server.state().modern_tasks.get(&id).cloned() else {
        return request.refuse(BAD_PARAMS, "Task not found");
    };
    let mut result = json!({});
    match method {
        "tasks/get" => result = task.to_json(&id),
        "tasks/update" => {
            let answers = params.members("inputResponses");
            change(server, request, &id, |task| {
                task.status = "working";
                task.answer = answers.raw("name").map(str::to_owned);
            });
        }
        _ => change(server, request, &id, |task| task.status = "cancelled"),
    }
    result["resultType"] = json!("complete");
    request.result(&result.to_string());
}

/// Returns true if the client of a request declares support for tasks.
pub(crate) fn knows_tasks(params: &Members) -> bool {
    let can = params.members("_meta").members("io.modelcontextprotocol/clientCapabilities");
    can.members("extensions").has(TASKS)
}
