//! The tools, the prompt and the resource that ask in rounds, as the conformance suite wants
//! them. Only the modern era has them.

use crate::request::Request;
use crate::rounds::{self, Question};
use crate::{ask, catalog, jobs};
use xy_testkit::json::{Members, quoted};

/// The prompt that asks before it is given.
const PROMPT: &str = "test_input_required_result_prompt";

/// The resource that asks before it is read.
const RESOURCE: &str = "test://asks-first";

/// Calls a tool, if it is one of these.
pub(crate) fn call(request: &Request, name: &str) -> bool {
    match name.strip_prefix("test_input_required_result_").unwrap_or(name) {
        "elicitation" => greet(request),
        "sampling" => {
            let question = Question::model("capital_question", "What is the capital of France?");
            finish(request, &[question], None, |answers| {
                let content = answers.members("capital_question").members("content");
                content.string("text").unwrap_or_default()
            });
        }
        "list_roots" => finish(request, &[Question::roots("client_roots")], None, |answers| {
            answers.members("client_roots").raw("roots").unwrap_or("[]").to_owned()
        }),
        "request_state" | "tampered_state" => {
            let question = Question::confirm("confirm", "Please confirm");
            finish(request, &[question], Some("confirming"), |_| "state-ok".to_owned());
        }
        "multiple_inputs" => finish(request, &everything(), Some("three at once"), |answers| {
            let [who, greeting, roots] = ["user_name", "greeting", "client_roots"];
            [who, greeting, roots].map(|key| answers.raw(key).unwrap_or("null")).join(" ")
        }),
        "multi_round" => two_rounds(request),
        "capabilities" => what_it_can(request),
        "test_missing_capability" => {
            let question = [Question::model("unused", "")];
            if rounds::can_ask(request, &question)
                && (request.is_modern() || ask::answers_to(request, &question).is_some())
            {
                request.text("the client can do it");
            }
        }
        "test_streaming_elicitation" => {
            request.log("info", r#""about to ask""#);
            greet(request);
        }
        "test_tool_with_task" if request.is_modern() => then_a_task(request),
        _ => return false,
    }
    true
}

/// Whether this asks before it is done, though it is no call.
pub(crate) fn asks(method: &str, params: &Members) -> bool {
    match method {
        "prompts/get" => params.string("name").as_deref() == Some(PROMPT),
        "resources/read" => params.string("uri").as_deref() == Some(RESOURCE),
        _ => false,
    }
}

/// Answers what is no call, if it is one of these.
pub(crate) fn answer(request: &Request) -> bool {
    let asks = asks(&request.method, &request.params);
    match request.method.as_str() {
        "prompts/get" if asks => prompt(request),
        _ if asks => read(request),
        _ => {}
    }
    asks
}

/// Gives the prompt.
fn prompt(request: &Request) {
    let question = Question::text("user_context", "What context should the prompt use?", "context");
    if let Some(answers) = rounds::gather(request, &[question], None) {
        let context = answers.members("user_context").members("content").string("context");
        let text = quoted(&format!("Use this: {}", context.unwrap_or_default()));
        request.result(&format!(
            r#"{{"messages":[{{"role":"user","content":{{"type":"text","text":{text}}}}}],"x-after":1.0}}"#
        ));
    }
}

/// Reads the resource.
fn read(request: &Request) {
    let question = Question::confirm("may_read", "May it be read?");
    if let Some(answers) = rounds::gather(request, &[question], Some("reading")) {
        let text = answers.raw("may_read").unwrap_or("null");
        request.result(&catalog::contents(
            RESOURCE,
            "application/json",
            &format!(r#""text":{}"#, quoted(text)),
        ));
    }
}

fn who() -> Question {
    Question::text("user_name", "What is your name?", "name")
}

fn everything() -> [Question; 3] {
    [who(), Question::model("greeting", "Generate a greeting"), Question::roots("client_roots")]
}

fn greet(request: &Request) {
    finish(request, &[who()], None, |answers| {
        let name = answers.members("user_name").members("content").string("name");
        format!("Hello, {}!", name.unwrap_or_default())
    });
}

/// Asks, and answers with a text once everything is known.
fn finish(
    request: &Request,
    questions: &[Question],
    state: Option<&str>,
    text: impl FnOnce(&Members) -> String,
) {
    if let Some(answers) = rounds::gather(request, questions, state) {
        request.text(&text(&answers));
    }
}

/// The second question comes with what was answered to the first in its state.
fn two_rounds(request: &Request) {
    let color = Question::text("step2", "Step 2: What is your favorite color?", "color");
    let name = Question::text("step1", "Step 1: What is your name?", "name");
    if !request.is_modern() {
        if let Some(first) = rounds::gather(request, &[name], None) {
            let state = format!("named {}", first.raw("step1").unwrap_or("null"));
            finish(request, &[color], None, |answers| {
                format!("{state} {}", answers.raw("step2").unwrap_or("null"))
            });
        }
        return;
    }
    if let Some(state) = rounds::kept(request).filter(|it| it.starts_with("named ")) {
        return finish(request, &[color], Some(&state), |answers| {
            format!("{state} {}", answers.raw("step2").unwrap_or("null"))
        });
    }
    if let Some(answers) = rounds::gather(request, &[name], Some("unnamed")) {
        let state = format!("named {}", answers.raw("step1").unwrap_or("null"));
        rounds::ask(request, &[color], Some(&state));
    }
}

/// Asks only what the client can be asked.
fn what_it_can(request: &Request) {
    let mut questions = everything().to_vec();
    questions.retain(|question| question.is_for(request));
    if !request.is_modern() {
        // It cannot know who is behind a gateway: what is refused is done without.
        ask::gather(request, &questions);
        return request.text("asked what it can be asked");
    }
    finish(request, &questions, None, |_| "asked what it can be asked".to_owned());
}

/// First a round, then a task that remembers it.
fn then_a_task(request: &Request) {
    if !jobs::can_have(request) {
        return jobs::lack(request);
    }
    if let Some(answers) = rounds::gather(request, &[who()], None) {
        let name = answers.members("user_name").members("content").string("name");
        let text = format!("Hello, {}, from a task!", name.unwrap_or_default());
        jobs::begin(request, jobs::Plan::telling(&text));
    }
}
