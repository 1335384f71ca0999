//! Tasks as an extension of the modern era: a call that is answered with a task if the client
//! knows what that is, and with what the tool says if not.
//!
//! As in the legacy era a task takes looks, not time.

use std::collections::BTreeMap;

use crate::request::{BAD_PARAMS, NO_METHOD, Request};
use crate::rounds::{self, Question};
use xy_testkit::json::{Members, quoted};

/// What the extension is called.
const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// More tasks than any test begins.
const MOST_JOBS: usize = 1000;

/// The tasks of the process.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    all: BTreeMap<String, Job>,
    begun: u64,
}

/// What becomes of a task.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// After so many looks it is done.
    pub(crate) looks: u64,
    /// What it asks before.
    pub(crate) questions: Vec<Question>,
    /// How it ends: a member with its value, `"result":{…}` or `"error":{…}`.
    pub(crate) end: String,
}

impl Plan {
    /// One that ends with a text as its result.
    pub(crate) fn telling(text: &str) -> Self {
        let text = quoted(text);
        let end = format!(r#""result":{{"content":[{{"type":"text","text":{text}}}],"x-r":1.0}}"#);
        Self { looks: 1, questions: Vec::new(), end }
    }
}

#[derive(Debug, Clone)]
struct Job {
    id: String,
    looks: u64,
    plan: Plan,
    /// How it is over, if it is.
    over: Option<&'static str>,
    /// What was answered to its questions.
    told: Vec<String>,
}

impl Job {
    fn status(&self) -> &'static str {
        match self.over {
            Some(over) => over,
            None if self.plan.questions.is_empty() => "working",
            None => "input_required",
        }
    }

    /// What there is to say of it; with `more`, also what it asks or how it ended.
    fn text(&self, more: &str) -> String {
        let Self { looks, .. } = self;
        let (id, status) = (quoted(&self.id), self.status());
        format!(
            r#"{{"x-looks":{looks}.0,"taskId":{id},"status":"{status}","statusMessage":"\u00fcber {looks}","createdAt":"2026-07-28T00:00:00Z","lastUpdatedAt":"2026-07-28T00:00:01Z","ttlMs":600000,"pollIntervalMs":100{more}}}"#
        )
    }

    fn details(&self) -> String {
        match self.status() {
            "input_required" => {
                let asked = rounds::asked(&self.plan.questions);
                self.text(&format!(r#","inputRequests":{asked}"#))
            }
            "completed" | "failed" => {
                let told = self.told.join(",");
                let told = if told.is_empty() { told } else { format!(r#","x-told":[{told}]"#) };
                self.text(&format!(",{}{told}", self.plan.end))
            }
            _ => self.text(""),
        }
    }

    /// Somebody looks: it may be over now.
    fn look(&mut self) {
        self.looks += 1;
        if self.status() == "working" && self.looks >= self.plan.looks {
            let failed = self.plan.end.starts_with(r#""error""#);
            self.over = Some(if failed { "failed" } else { "completed" });
        }
    }

    fn take(&mut self, answers: &Members) {
        let told = &mut self.told;
        self.plan.questions.retain(|question| match answers.raw(question.key) {
            Some(answer) => {
                told.push(answer.to_owned());
                false
            }
            None => true,
        });
    }
}

/// Whether the client knows what a task is.
pub(crate) fn can_have(request: &Request) -> bool {
    request.is_modern() && request.capabilities().members("extensions").has(EXTENSION)
}

/// Answers that it takes a client which does.
pub(crate) fn lack(request: &Request) {
    rounds::lacks(request, &format!(r#"{{"extensions":{{"{EXTENSION}":{{}}}}}}"#));
}

/// Begins a task, and answers with it.
pub(crate) fn begin(request: &Request, plan: Plan) {
    if !rounds::can_ask(request, &plan.questions) {
        return;
    }
    let mut state = request.session.state();
    if state.jobs.all.len() >= MOST_JOBS {
        drop(state);
        return request.refuse(-32603, "too many tasks");
    }
    state.jobs.begun += 1;
    let id = format!("job-{}", state.jobs.begun);
    let job = Job { id: id.clone(), looks: 0, plan, over: None, told: Vec::new() };
    // It works before it asks.
    let begun = Job { plan: Plan::telling(""), ..job.clone() };
    let text = begun.text(r#","resultType":"task","_meta":{"example.com/begun":true}"#);
    state.jobs.all.insert(id, job);
    drop(state);
    request.result(&text);
}

/// Answers what is asked about tasks.
pub(crate) fn answer(request: &Request) {
    if !matches!(request.method.as_str(), "tasks/get" | "tasks/update" | "tasks/cancel") {
        return request.refuse(NO_METHOD, &format!("no method `{}`", request.method));
    }
    if !can_have(request) {
        return lack(request);
    }
    let id = request.params.string("taskId").unwrap_or_default();
    let mut state = request.session.state();
    let Some(job) = state.jobs.all.get_mut(&id) else {
        drop(state);
        return request.refuse(BAD_PARAMS, &format!("no task `{id}`"));
    };
    let text = match request.method.as_str() {
        "tasks/get" => {
            job.look();
            job.details()
        }
        "tasks/update" => {
            job.take(&request.params.members("inputResponses"));
            "{}".to_owned()
        }
        _ => {
            job.over = job.over.or(Some("cancelled"));
            "{}".to_owned()
        }
    };
    drop(state);
    request.result(&text);
}
