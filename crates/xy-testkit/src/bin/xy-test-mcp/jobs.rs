//! Tasks: the tool `job`, and what can be asked about one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::answer::{Asked, BAD_PARAMS, Call, notification, text_result};
use crate::errands;
use crate::server::Server;
use crate::tools;
use xy_testkit::json::Members;

/// One task.
#[derive(Debug)]
pub(crate) struct Job {
    status: &'static str,
    /// The text of its result, at its end.
    result: Option<String>,
}

/// When everything here was done.
const NOON: &str = "2026-01-01T12:00:00Z";

fn told(id: &str, status: &str) -> Value {
    json!({
        "taskId": id, "status": status, "createdAt": NOON, "lastUpdatedAt": NOON, "ttl": 60_000,
        "pollInterval": 10,
    })
}

/// Takes its time: at once, or as a task if that is asked for.
pub(crate) fn job(server: &Arc<Server>, call: Call) {
    if call.knows_tasks && server.plan.has("--tasks") {
        return errands::begin(server, call);
    }
    if !call.is_task {
        let asked = call.asked.clone();
        return server.work(asked, move |server, _| {
            if server.wait(&call.asked, Duration::from_millis(call.number("ms", 0))) {
                call.text(&call.string("message"));
            }
        });
    }
    let mut state = server.state();
    let id = format!("{}-{}", server.plan.name, state.jobs.len() + 1);
    state.jobs.insert(id.clone(), Job { status: "working", result: None });
    drop(state);
    call.asked.result(&json!({ "task": told(&id, "working") }).to_string());
    // The call is answered: what is worked on has an id of its own, so that nothing ends it.
    let worker = Asked { id: format!("\"job {id}\""), outlet: Arc::clone(&call.asked.outlet) };
    server.work(worker, move |server, worker| work(server, &worker, &call, &id));
}

fn work(server: &Arc<Server>, worker: &Asked, call: &Call, id: &str) {
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
        let said = answer.raw("result").or(answer.raw("error"));
        text = said.map_or_else(String::new, str::to_owned);
    }
    let mut result: Value = text_result(&text).parse().expect("it is JSON");
    result["_meta"] = related;
    change(server, call, id, "completed", Some(result.to_string()));
}

/// A task is another now, unless it has ended; whoever began it is told.
fn change(server: &Server, call: &Call, id: &str, status: &'static str, result: Option<String>) {
    let mut state = server.state();
    let Some(job) = state.jobs.get_mut(id).filter(|job| job.result.is_none()) else { return };
    *job = Job { status, result };
    drop(state);
    server.tell_change();
    call.asked
        .outlet
        .say(notification("notifications/tasks/status", &told(id, status).to_string()));
}

/// Answers what is asked about tasks.
pub(crate) fn answer(server: &Arc<Server>, asked: Asked, method: &str, params: &Members) {
    if method == "tasks/list" {
        let state = server.state();
        let all: Vec<Value> = state.jobs.iter().map(|(id, job)| told(id, job.status)).collect();
        drop(state);
        return asked.result(&json!({ "tasks": all, "kept": 1.5 }).to_string());
    }
    let id = params.string("taskId").unwrap_or_default();
    let Some(status) = server.state().jobs.get(&id).map(|job| job.status) else {
        return asked.refuse(BAD_PARAMS, "Task not found");
    };
    match method {
        "tasks/get" => asked.result(&told(&id, status).to_string()),
        "tasks/cancel" => {
            let mut state = server.state();
            if let Some(job) = state.jobs.get_mut(&id) {
                *job = Job { status: "cancelled", result: Some(text_result("cancelled")) };
            }
            drop(state);
            server.tell_change();
            asked.result(&told(&id, "cancelled").to_string());
        }
        _ => {
            let waiting = asked.clone();
            server.work(waiting, move |server, _| {
                let found = server.wait_for(&asked, |state| state.jobs.get(&id)?.result.clone());
                if let Some(result) = found {
                    asked.result(&result);
                }
            });
        }
    }
}
