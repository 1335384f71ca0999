//! Tasks of the revisions with `initialize`: the tool `job` and the methods `tasks/*`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::modern_tasks;
use crate::request::{BAD_PARAMS, Call, Request, notification, text_result};
use crate::server::Server;
use crate::tools;
use xy_testkit::json::Members;

/// The state of one task.
#[derive(Debug)]
pub(crate) struct LegacyTask {
    status: &'static str,
    /// The result as JSON text, once the task has ended.
    result: Option<String>,
}

/// The timestamp of every task.
const NOON: &str = "2026-01-01T12:00:00Z";

fn task_json(id: &str, status: &str) -> Value {
    json!({
        "taskId": id, "status": status, "createdAt": NOON, "lastUpdatedAt": NOON, "ttl": 60_000,
        "pollInterval": 10,
    })
}

/// Executes the tool `job`: directly, or as a task if the call requests one.
pub(crate) fn job(server: &Arc<Server>, call: Call) {
    if call.knows_tasks && server.options.has("--tasks") {
        return modern_tasks::begin(server, call);
    }
    if !call.is_task {
        let request = call.request.clone();
        return server.spawn_worker(request, move |server, _| {
            if server.wait(&call.request, Duration::from_millis(call.number("ms", 0))) {
                call.text(&call.string("message"));
            }
        });
    }
    let mut state = server.state();
    let id = format!("{}-{}", server.options.name, state.legacy_tasks.len() + 1);
    state.legacy_tasks.insert(id.clone(), LegacyTask { status: "working", result: None });
    drop(state);
    call.request.result(&json!({ "task": task_json(&id, "working") }).to_string());
    // The call is answered. The worker has its own id, so that no cancellation ends it.
    let worker =
        Request { id: format!("\"job {id}\""), responder: Arc::clone(&call.request.responder) };
    server.spawn_worker(worker, move |server, worker| work(server, &worker, &call, &id));
}

fn work(server: &Arc<Server>, worker: &Request, call: &Call, id: &str) {
    let message = call.string("message");
    if let Some(token) = &call.progress_token {
        let text = xy_testkit::json::quoted(&message);
        let params = format!(r#"{{"progressToken":{token},"progress":1,"message":{text}}}"#);
        call.notify("notifications/progress", &params);
    }
    server.wait(worker, Duration::from_millis(call.number("ms", 0)));
    let related = json!({ "io.modelcontextprotocol/related-task": { "taskId": id } });
    if call.string("complain") == "unmarked" {
        call.notify("notifications/message", &tools::log_params("error", &message));
    } else if !call.string("complain").is_empty() {
        let params = json!({ "level": "error", "data": message, "_meta": related });
        call.notify("notifications/message", &params.to_string());
    }
    let mut text = message.clone();
    let method = match call.string("ask").as_str() {
        "sampling" => Some(("sampling/createMessage", tools::sampling(&message))),
        "elicitation" => Some(("elicitation/create", tools::elicitation(&message))),
        _ => None,
    };
    if let Some((method, mut params)) = method {
        change(server, call, id, "input_required", None);
        params["_meta"] = related.clone();
        let answer = server.ask(worker, method, &params.to_string()).unwrap_or_default();
        let response = answer.raw("result").or(answer.raw("error"));
        text = response.map_or_else(String::new, str::to_owned);
    }
    let mut result: Value = text_result(&text).parse().expect("it is JSON");
    result["_meta"] = related;
    change(server, call, id, "completed", Some(result.to_string()));
}

/// Changes the state of a task that has not ended, and notifies the client that created it.
fn change(server: &Server, call: &Call, id: &str, status: &'static str, result: Option<String>) {
    let mut state = server.state();
    let Some(job) = state.legacy_tasks.get_mut(id).filter(|job| job.result.is_none()) else {
        return;
    };
    *job = LegacyTask { status, result };
    drop(state);
    server.notify_change();
    call.request
        .responder
        .send(notification("notifications/tasks/status", &task_json(id, status).to_string()));
}

/// Answers a `tasks/*` request.
pub(crate) fn answer(server: &Arc<Server>, request: Request, method: &str, params: &Members) {
    if method == "tasks/list" {
        let state = server.state();
        let all: Vec<Value> =
            state.legacy_tasks.iter().map(|(id, job)| task_json(id, job.status)).collect();
        drop(state);
        return request.result(&json!({ "tasks": all, "kept": 1.5 }).to_string());
    }
    let id = params.string("taskId").unwrap_or_default();
    let Some(status) = server.state().legacy_tasks.get(&id).map(|job| job.status) else {
        return request.refuse(BAD_PARAMS, "Task not found");
    };
    match method {
        "tasks/get" => request.result(&task_json(&id, status).to_string()),
        "tasks/cancel" => {
            let mut state = server.state();
            if let Some(job) = state.legacy_tasks.get_mut(&id) {
                *job = LegacyTask { status: "cancelled", result: Some(text_result("cancelled")) };
            }
            drop(state);
            server.notify_change();
            request.result(&task_json(&id, "cancelled").to_string());
        }
        _ => {
            let waiting = request.clone();
            server.spawn_worker(waiting, move |server, _| {
                let found =
                    server.wait_for(&request, |state| state.legacy_tasks.get(&id)?.result.clone());
                if let Some(result) = found {
                    request.result(&result);
                }
            });
        }
    }
}
