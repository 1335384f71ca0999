//! Tasks as an extension of the modern era. A call is answered with a task if the client
//! supports the extension, otherwise with the result of the tool.
//!
//! As in the legacy era, progress depends on the number of polls and not on time.

use std::collections::BTreeMap;

use crate::request::{BAD_PARAMS, NO_METHOD, Request};
use crate::rounds::{self, Question};
use xy_testkit::json::{Members, quoted};

/// The key of the extension in the client's capabilities.
const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Maximum number of tasks.
const MAX_JOBS: usize = 1000;

/// The tasks of the process.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    all: BTreeMap<String, Job>,
    created: u64,
}

/// The course of a task.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Number of polls after which the task ends.
    pub(crate) polls: u64,
    /// Questions that the client must answer before the task ends.
    pub(crate) questions: Vec<Question>,
    /// The outcome as a JSON member: `"result":{…}` or `"error":{…}`.
    pub(crate) end: String,
}

impl Plan {
    /// Returns a plan for a task that ends with a text at the first poll.
    pub(crate) fn with_text(text: &str) -> Self {
        let text = quoted(text);
        let end = format!(r#""result":{{"content":[{{"type":"text","text":{text}}}],"x-r":1.0}}"#);
        Self { polls: 1, questions: Vec::new(), end }
    }
}

#[derive(Debug, Clone)]
struct Job {
    id: String,
    polls: u64,
    plan: Plan,
    /// The final status, once the task has ended.
    final_status: Option<&'static str>,
    /// The client's answers, in the order of the questions.
    answers: Vec<String>,
}

impl Job {
    fn status(&self) -> &'static str {
        match self.final_status {
            Some(final_status) => final_status,
            None if self.plan.questions.is_empty() => "working",
            None => "input_required",
        }
    }

    /// Returns the task as JSON. `more` is the text of further members, after a comma.
    fn text(&self, more: &str) -> String {
        let Self { polls, .. } = self;
        let (id, status) = (quoted(&self.id), self.status());
        format!(
            r#"{{"x-looks":{polls}.0,"taskId":{id},"status":"{status}","statusMessage":"\u00fcber {polls}","createdAt":"2026-07-28T00:00:00Z","lastUpdatedAt":"2026-07-28T00:00:01Z","ttlMs":600000,"pollIntervalMs":100{more}}}"#
        )
    }

    fn details(&self) -> String {
        match self.status() {
            "input_required" => {
                let asked = rounds::input_requests(&self.plan.questions);
                self.text(&format!(r#","inputRequests":{asked}"#))
            }
            "completed" | "failed" => {
                let answers = self.answers.join(",");
                let answers =
                    if answers.is_empty() { answers } else { format!(r#","x-told":[{answers}]"#) };
                self.text(&format!(",{}{answers}", self.plan.end))
            }
            _ => self.text(""),
        }
    }

    /// Counts a poll, and ends the task if it was the last one needed.
    fn poll(&mut self) {
        self.polls += 1;
        if self.status() == "working" && self.polls >= self.plan.polls {
            let failed = self.plan.end.starts_with(r#""error""#);
            self.final_status = Some(if failed { "failed" } else { "completed" });
        }
    }

    fn record_answers(&mut self, answers: &Members) {
        let given = &mut self.answers;
        self.plan.questions.retain(|question| match answers.raw(question.key) {
            Some(answer) => {
                given.push(answer.to_owned());
                false
            }
            None => true,
        });
    }
}

/// Returns true if the client supports tasks.
pub(crate) fn supports_tasks(request: &Request) -> bool {
    request.is_modern() && request.capabilities().members("extensions").has(EXTENSION)
}

/// Refuses a request because the client does not support tasks.
pub(crate) fn refuse_without_tasks(request: &Request) {
    rounds::refuse_for_capabilities(
        request,
        &format!(r#"{{"extensions":{{"{EXTENSION}":{{}}}}}}"#),
    );
}

/// Starts a task, and answers with it.
pub(crate) fn begin(request: &Request, plan: Plan) {
    if !rounds::check_capabilities(request, &plan.questions) {
        return;
    }
    let mut state = request.session.state();
    if state.jobs.all.len() >= MAX_JOBS {
        drop(state);
        return request.refuse(-32603, "too many tasks");
    }
    state.jobs.created += 1;
    let id = format!("job-{}", state.jobs.created);
    let job = Job { id: id.clone(), polls: 0, plan, final_status: None, answers: Vec::new() };
    // The response shows the task at work, before it asks its questions.
    let shown = Job { plan: Plan::with_text(""), ..job.clone() };
    let text = shown.text(r#","resultType":"task","_meta":{"example.com/begun":true}"#);
    state.jobs.all.insert(id, job);
    drop(state);
    request.result(&text);
}

/// Answers a `tasks/…` request.
pub(crate) fn answer(request: &Request) {
    if !matches!(request.method.as_str(), "tasks/get" | "tasks/update" | "tasks/cancel") {
        return request.refuse(NO_METHOD, &format!("no method `{}`", request.method));
    }
    if !supports_tasks(request) {
        return refuse_without_tasks(request);
    }
    let id = request.params.string("taskId").unwrap_or_default();
    let mut state = request.session.state();
    let Some(job) = state.jobs.all.get_mut(&id) else {
        drop(state);
        return request.refuse(BAD_PARAMS, &format!("no task `{id}`"));
    };
    let text = match request.method.as_str() {
        "tasks/get" => {
            job.poll();
            job.details()
        }
        "tasks/update" => {
            job.record_answers(&request.params.members("inputResponses"));
            "{}".to_owned()
        }
        _ => {
            job.final_status = job.final_status.or(Some("cancelled"));
            "{}".to_owned()
        }
    };
    drop(state);
    request.result(&text);
}
