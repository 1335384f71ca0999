//! The tools that are tasks if they may be, as the conformance suite wants them. Only the
//! modern era has such tasks; in the legacy one there are those that need not be any.

use std::time::Duration;

use crate::jobs::{self, Plan};
use crate::request::Request;
use crate::rounds::{self, Question};
use crate::tools;
use xy_testkit::json::Members;

/// Nobody waits longer for a tool that is no task.
const MOST_SECONDS: u64 = 60;

const MOMENT: Duration = Duration::from_millis(10);

const TOOL_ERROR: &str =
    r#""result":{"isError":true,"content":[{"type":"text","text":"the job has failed"}]}"#;

const ERROR: &str = r#""error":{"code":-32603,"message":"the job fell over","data":{"n":1.0}}"#;

/// Calls a tool that need not be a task, if it is one of these.
pub(crate) fn plain(request: &Request, name: &str, arguments: &Members) -> bool {
    match name {
        "greet" => {
            let name = arguments.string("name").unwrap_or_default();
            request.text(&format!("Hello, {name}!"));
        }
        "slow_compute" => slow_compute(request, arguments),
        "confirm_delete" => {
            let file = arguments.string("filename").unwrap_or_default();
            let question = Question::confirm("may_delete", &format!("Delete `{file}`?"));
            asking(request, vec![question], &format!("Asked about `{file}`."));
        }
        "multi_input" => {
            let first = Question::text("first", "The first?", "name");
            let second = Question::text("second", "The second?", "name");
            asking(request, vec![first, second], "Asked twice.");
        }
        _ => return false,
    }
    true
}

/// Calls one that is a task, if it is one of these.
pub(crate) fn call(request: &Request, name: &str, arguments: &Members) -> bool {
    match name {
        "failing_job" => only_as_task(request, TOOL_ERROR),
        "protocol_error_job" => only_as_task(request, ERROR),
        "maybe_task" if jobs::can_have(request) => maybe_task(request, arguments),
        "only_task" => {
            let done = Plan::telling("the task is done");
            only_as_task(request, &done.end);
        }
        _ => return false,
    }
    true
}

/// A second is a look, if it is a task, and a moment where there are no tasks: nobody can wait
/// for it otherwise than by waiting.
fn slow_compute(request: &Request, arguments: &Members) {
    let seconds = arguments.number("seconds").unwrap_or(0).min(MOST_SECONDS);
    let text = format!("Computed {}.", arguments.raw("label").unwrap_or("nothing"));
    if seconds > 0 && jobs::can_have(request) {
        return jobs::begin(request, Plan { looks: seconds, ..Plan::telling(&text) });
    }
    let second = if request.is_modern() { Duration::from_secs(1) } else { MOMENT };
    let seconds = u32::try_from(seconds).unwrap_or_default();
    if !tools::is_cancelled_within(request, second * seconds) {
        request.text(&text);
    }
}

fn only_as_task(request: &Request, end: &str) {
    if !jobs::can_have(request) {
        return jobs::lack(request);
    }
    jobs::begin(request, Plan { looks: 2, questions: Vec::new(), end: end.to_owned() });
}

/// Asks as a task, or in rounds.
fn asking(request: &Request, questions: Vec<Question>, text: &str) {
    if jobs::can_have(request) {
        return jobs::begin(request, Plan { questions, ..Plan::telling(text) });
    }
    if rounds::gather(request, &questions, None).is_some() {
        request.text(text);
    }
}

fn maybe_task(request: &Request, arguments: &Members) {
    let asks = arguments.raw("asks") == Some("true");
    let fails = arguments.raw("fails") == Some("true");
    let mut plan = Plan { looks: 2, ..Plan::telling("the task is done") };
    if asks {
        plan.questions.push(Question::text("which", "Which word?", "word"));
    }
    if fails {
        ERROR.clone_into(&mut plan.end);
    }
    jobs::begin(request, plan);
}
