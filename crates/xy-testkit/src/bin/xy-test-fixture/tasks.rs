//! Tasks as in 2025-11-25: a call is answered with a task at once, and with its result later.
//!
//! A task ends with its second poll, or when the client requests its result. Its state does not
//! depend on time, so tests are deterministic.

use std::collections::BTreeMap;

use crate::request::{BAD_PARAMS, Request};
use xy_testkit::json::{Members, quoted};

/// Maximum number of tasks in a session.
const MAX_TASKS: usize = 1000;

/// Number of polls after which a task ends.
const POLLS_UNTIL_DONE: u32 = 2;

/// The tasks of one session.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    all: BTreeMap<String, Task>,
    created: u64,
}

#[derive(Debug, Clone)]
struct Task {
    id: String,
    ttl: String,
    status: &'static str,
    polls: u32,
    /// The arguments of the call.
    arguments: Members,
}

impl Task {
    fn text(&self) -> String {
        let Self { id, ttl, status, polls, .. } = self;
        // Unknown fields, to detect a gateway that drops them.
        format!(
            r#"{{"x-looks":{polls}.0,"taskId":{id},"status":"{status}","statusMessage":"\u00fcber {polls}","createdAt":"2025-11-25T00:00:00Z","lastUpdatedAt":"2025-11-25T00:00:01Z","ttl":{ttl},"pollInterval":1e2}}"#,
            id = quoted(id),
        )
    }

    fn is_over(&self) -> bool {
        matches!(self.status, "completed" | "failed" | "cancelled")
    }

    /// Ends the task with the outcome that its arguments select.
    fn end(&mut self) {
        let fails = self.arguments.raw("fails") == Some("true");
        self.status = if fails { "failed" } else { "completed" };
    }
}

/// Starts a task and answers with it.
pub(crate) fn begin(request: &Request) {
    let mut state = request.session.state();
    if state.tasks.all.len() >= MAX_TASKS {
        drop(state);
        return request.refuse(-32603, "too many tasks");
    }
    state.tasks.created += 1;
    let id = format!("task-{}", state.tasks.created);
    let ttl = request.params.members("task").raw("ttl").unwrap_or("null").to_owned();
    let arguments = request.params.members("arguments");
    let task = Task { id: id.clone(), ttl, status: "working", polls: 0, arguments };
    let text = task.text();
    state.tasks.all.insert(id, task);
    drop(state);
    request.notify("notifications/tasks/status", &text);
    request.result(&format!(r#"{{"task":{text},"_meta":{{"example.com/begun":true}}}}"#));
}

/// Answers a `tasks/…` request.
pub(crate) fn answer(request: &Request) {
    if request.method == "tasks/list" {
        let state = request.session.state();
        let all: Vec<String> = state.tasks.all.values().map(Task::text).collect();
        drop(state);
        return request.result(&format!(
            r#"{{"tasks":[{}],"x-count":{}.0}}"#,
            all.join(","),
            all.len()
        ));
    }
    let id = request.params.string("taskId").unwrap_or_default();
    let mut state = request.session.state();
    let Some(task) = state.tasks.all.get_mut(&id) else {
        drop(state);
        return request.refuse(BAD_PARAMS, &format!("no task `{id}`"));
    };
    let was_over = task.is_over();
    match request.method.as_str() {
        "tasks/get" => poll(task),
        "tasks/cancel" if was_over => {
            drop(state);
            return request.refuse(BAD_PARAMS, "the task is over");
        }
        "tasks/cancel" => task.status = "cancelled",
        "tasks/result" => {}
        other => {
            let why = format!("no method `{other}`");
            drop(state);
            return request.refuse(crate::request::NO_METHOD, &why);
        }
    }
    let task = task.clone();
    drop(state);
    if request.method == "tasks/result" {
        return result(request, task);
    }
    if task.is_over() && !was_over {
        request.notify("notifications/tasks/status", &task.text());
    }
    request.result(&task.text());
}

fn poll(task: &mut Task) {
    task.polls += 1;
    if task.polls >= POLLS_UNTIL_DONE && !task.is_over() {
        task.end();
    }
}

/// Answers with the result of the call. Ends the task first if it is still in progress.
fn result(request: &Request, mut task: Task) {
    let related = format!(
        r#""_meta":{{"io.modelcontextprotocol/related-task":{{"taskId":{}}}}}"#,
        quoted(&task.id)
    );
    if !task.is_over() {
        let answer = (task.arguments.raw("asks") == Some("true")).then(|| {
            task.status = "input_required";
            request.notify("notifications/tasks/status", &task.text());
            let schema = r#"{"type":"object","properties":{"word":{"type":"string"}}}"#;
            let params =
                format!(r#"{{"message":"Which word?","requestedSchema":{schema},{related}}}"#);
            request.ask("elicitation/create", &params)
        });
        task.end();
        request.notify("notifications/tasks/status", &task.text());
        let mut state = request.session.state();
        state.tasks.all.insert(task.id.clone(), task.clone());
        drop(state);
        if let Some(answer) = answer.flatten() {
            let told = quoted(answer.raw("result").or(answer.raw("error")).unwrap_or("null"));
            return request
                .result(&format!(r#"{{"content":[{{"type":"text","text":{told}}}],{related}}}"#));
        }
    }
    match task.status {
        "completed" => request.result(&format!(
            r#"{{{related},"content":[{{"type":"text","text":"the task is done"}}],"structuredContent":{{"big":12345678901234567890,"one":1.0}}}}"#
        )),
        "failed" => request.fail(r#"{"code":-32001,"message":"the task has failed","data":{"why":"it was told to","n":1e3}}"#),
        _ => request.refuse(BAD_PARAMS, "the task was cancelled"),
    }
}
