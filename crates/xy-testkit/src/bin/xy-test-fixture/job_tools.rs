//! The tools that run as tasks if the client supports them, as the conformance suite specifies.
//!
//! Only the modern era has such tasks. The legacy era serves the tools that also work without.

use std::time::Duration;

use crate::jobs::{self, Plan};
use crate::request::Request;
use crate::rounds::{self, Question};
use crate::tools;
use xy_testkit::json::Members;

/// Maximum duration of `slow_compute`, in seconds.
const MAX_SECONDS: u64 = 60;

/// Duration of a second of `slow_compute` in the legacy era.
const LEGACY_SECOND: Duration = Duration::from_millis(10);

const TOOL_ERROR: &str =
    r#""result":{"isError":true,"content":[{"type":"text","text":"the job has failed"}]}"#;

const ERROR: &str = r#""error":{"code":-32603,"message":"the job fell over","data":{"n":1.0}}"#;

/// Calls a tool that also works without a task. Returns false if there is no such tool.
pub(crate) fn call_in_any_era(request: &Request, name: &str, arguments: &Members) -> bool {
    match name {
        "greet" => {
            let name = arguments.string("name").unwrap_or_default();
            request.text(&format!("Hello, {name}!"));
        }
        "slow_compute" => slow_compute(request, arguments),
        "confirm_delete" => {
            let file = arguments.string("filename").unwrap_or_default();
            let question = Question::confirm("may_delete", &format!("Delete `{file}`?"));
            ask_then_answer(request, vec![question], &format!("Asked about `{file}`."));
        }
        "multi_input" => {
            let first = Question::text("first", "The first?", "name");
            let second = Question::text("second", "The second?", "name");
            ask_then_answer(request, vec![first, second], "Asked twice.");
        }
        _ => return false,
    }
    true
}

/// Calls a tool that runs as a task. Returns false if there is no such tool.
pub(crate) fn call_as_task(request: &Request, name: &str, arguments: &Members) -> bool {
    match name {
        "failing_job" => only_as_task(request, TOOL_ERROR),
        "protocol_error_job" => only_as_task(request, ERROR),
        "maybe_task" if jobs::supports_tasks(request) => maybe_task(request, arguments),
        "only_task" => {
            let done = Plan::with_text("the task is done");
            only_as_task(request, &done.end);
        }
        _ => return false,
    }
    true
}

/// Runs for a number of seconds.
///
/// As a task, one poll counts as a second. In the legacy era, which has no such tasks, a second
/// lasts [`LEGACY_SECOND`].
fn slow_compute(request: &Request, arguments: &Members) {
    let seconds = arguments.number("seconds").unwrap_or(0).min(MAX_SECONDS);
    let text = format!("Computed {}.", arguments.raw("label").unwrap_or("nothing"));
    if seconds > 0 && jobs::supports_tasks(request) {
        return jobs::begin(request, Plan { polls: seconds, ..Plan::with_text(&text) });
    }
    let second = if request.is_modern() { Duration::from_secs(1) } else { LEGACY_SECOND };
    let seconds = u32::try_from(seconds).unwrap_or_default();
    if !tools::finish_if_cancelled(request, second * seconds) {
        request.text(&text);
    }
}

fn only_as_task(request: &Request, end: &str) {
    if !jobs::supports_tasks(request) {
        return jobs::refuse_without_tasks(request);
    }
    jobs::begin(request, Plan { polls: 2, questions: Vec::new(), end: end.to_owned() });
}

/// Asks as a task if the client supports tasks, otherwise directly.
fn ask_then_answer(request: &Request, questions: Vec<Question>, text: &str) {
    if jobs::supports_tasks(request) {
        return jobs::begin(request, Plan { questions, ..Plan::with_text(text) });
    }
    if rounds::gather(request, &questions, None).is_some() {
        request.text(text);
    }
}

fn maybe_task(request: &Request, arguments: &Members) {
    let asks = arguments.raw("asks") == Some("true");
    let fails = arguments.raw("fails") == Some("true");
    let mut plan = Plan { polls: 2, ..Plan::with_text("the task is done") };
    if asks {
        plan.questions.push(Question::text("which", "Which word?", "word"));
    }
    if fails {
        ERROR.clone_into(&mut plan.end);
    }
    jobs::begin(request, plan);
}
