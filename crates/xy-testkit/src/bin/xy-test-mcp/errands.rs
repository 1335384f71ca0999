//! Tasks of the revision without sessions: the tool `job`, if the client knows them, and what
//! can be asked about one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::json::Members;

use crate::answer::{Asked, BAD_PARAMS, Call, text_result};
use crate::eras;
use crate::server::Server;
use crate::tools;

/// The extension.
pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";

/// When everything here was done.
const NOON: &str = "2026-01-01T12:00:00Z";

/// One task.
#[derive(Debug, Clone)]
pub(crate) struct Errand {
    status: &'static str,
    /// What was asked in it, and what was answered.
    question: Option<String>,
    answer: Option<String>,
    result: Option<Value>,
}

impl Errand {
    /// All that there is to tell of it.
    fn told(&self, id: &str) -> Value {
        let mut told = json!({
            "taskId": id, "status": self.status, "createdAt": NOON, "lastUpdatedAt": NOON,
            "ttlMs": 60_000, "pollIntervalMs": 10,
        });
        if let Some(message) = self.question.as_ref().filter(|_| self.status == "input_required") {
            let params: Value = tools::elicitation(message);
            told["inputRequests"] =
                json!({ "name": { "method": "elicitation/create", "params": params } });
        }
        if let Some(result) = &self.result {
            told["result"] = result.clone();
        }
        told
    }
}

/// Begins a task, which takes its time, and asks something if it shall.
pub(crate) fn begin(server: &Arc<Server>, call: Call) {
    let mut state = server.state();
    let id = format!("{}-{}", server.plan.name, state.errands.len() + 1);
    let errand = Errand { status: "working", question: None, answer: None, result: None };
    let mut told = errand.told(&id);
    told["resultType"] = json!("task");
    state.errands.insert(id.clone(), errand);
    drop(state);
    call.asked.result(&told.to_string());
    // The call is answered: what is worked on has an id of its own, so that nothing ends it.
    let worker = Asked { id: format!("\"errand {id}\""), outlet: Arc::clone(&call.asked.outlet) };
    server.work(worker, move |server, worker| work(server, &worker, &call, &id));
}

fn work(server: &Arc<Server>, worker: &Asked, call: &Call, id: &str) {
    let mut text = call.string("message");
    server.wait(worker, Duration::from_millis(call.number("ms", 0)));
    if !call.string("ask").is_empty() {
        change(server, worker, id, |errand| {
            (errand.status, errand.question) = ("input_required", Some(text.clone()));
        });
        let answer = server.wait_for(worker, |state| state.errands.get(id)?.answer.clone());
        text = answer.unwrap_or_default();
    }
    change(server, worker, id, |errand| {
        let result: Value = text_result(&text).parse().expect("it is JSON");
        (errand.status, errand.result) = ("completed", Some(result));
    });
}

/// A task is another now, unless it has ended; whoever listens to it is told.
fn change(server: &Server, asked: &Asked, id: &str, change: impl FnOnce(&mut Errand)) {
    let mut state = server.state();
    let is_open = |it: &&mut Errand| matches!(it.status, "working" | "input_required");
    let Some(errand) = state.errands.get_mut(id).filter(is_open) else { return };
    change(errand);
    let told = errand.told(id);
    drop(state);
    server.tell_change();
    eras::tell_of_task(server, asked, id, &told);
}

/// Answers what is asked about tasks.
pub(crate) fn answer(server: &Arc<Server>, asked: &Asked, method: &str, params: &Members) {
    if !knows_tasks(params) {
        let can = json!({ "extensions": { TASKS: {} } });
        let error = json!({
            "code": -32021, "message": "Missing required client capability",
            "data": { "requiredCapabilities": can },
        });
        return asked.refuse_with(&error.to_string());
    }
    let id = params.string("taskId").unwrap_or_default();
    let Some(errand) = server.state().errands.get(&id).cloned() else {
        return asked.refuse(BAD_PARAMS, "Task not found");
    };
    let mut result = json!({});
    match method {
        "tasks/get" => result = errand.told(&id),
        "tasks/update" => {
            let answers = params.members("inputResponses");
            change(server, asked, &id, |errand| {
                errand.status = "working";
                errand.answer = answers.raw("name").map(str::to_owned);
            });
        }
        _ => change(server, asked, &id, |errand| errand.status = "cancelled"),
    }
    result["resultType"] = json!("complete");
    asked.result(&result.to_string());
}

/// Whether a request says that its client knows tasks.
pub(crate) fn knows_tasks(params: &Members) -> bool {
    let can = params.members("_meta").members("io.modelcontextprotocol/clientCapabilities");
    can.members("extensions").has(TASKS)
}
