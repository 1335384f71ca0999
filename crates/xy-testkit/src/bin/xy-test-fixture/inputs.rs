//! The tools, the prompt and the resource that need client input, as the conformance suite
//! specifies them.
//!
//! The suite of the modern era uses them. Almost all work in both eras.

use crate::request::Request;
use crate::rounds::{self, Question};
use crate::{catalog, client_request, jobs};
use xy_testkit::json::{Members, quoted};

/// The prompt that needs client input.
const PROMPT: &str = "test_input_required_result_prompt";

/// The resource that needs client input.
const RESOURCE: &str = "test://asks-first";

/// Calls a tool of this module. Returns false if it has no such tool.
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
        "multiple_inputs" => finish(request, &all_questions(), Some("three at once"), |answers| {
            let [who, greeting, roots] = ["user_name", "greeting", "client_roots"];
            [who, greeting, roots].map(|key| answers.raw(key).unwrap_or("null")).join(" ")
        }),
        "multi_round" => two_rounds(request),
        "capabilities" => ask_supported(request),
        "test_missing_capability" => {
            let question = [Question::model("unused", "")];
            if rounds::check_capabilities(request, &question)
                && (request.is_modern() || client_request::answers_to(request, &question).is_some())
            {
                request.text("the client can do it");
            }
        }
        "test_streaming_elicitation" => {
            request.log("info", r#""about to ask""#);
            greet(request);
        }
        "test_tool_with_task" if request.is_modern() => ask_then_start_task(request),
        _ => return false,
    }
    true
}

/// Returns true if a prompt or resource request needs client input.
pub(crate) fn needs_input(method: &str, params: &Members) -> bool {
    match method {
        "prompts/get" => params.string("name").as_deref() == Some(PROMPT),
        "resources/read" => params.string("uri").as_deref() == Some(RESOURCE),
        _ => false,
    }
}

/// Answers a prompt or resource request of this module. Returns false for any other request.
pub(crate) fn answer(request: &Request) -> bool {
    let needs_input = needs_input(&request.method, &request.params);
    match request.method.as_str() {
        "prompts/get" if needs_input => prompt(request),
        _ if needs_input => read(request),
        _ => {}
    }
    needs_input
}

/// Answers `prompts/get`.
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

/// Answers `resources/read`.
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

fn name_question() -> Question {
    Question::text("user_name", "What is your name?", "name")
}

fn all_questions() -> [Question; 3] {
    [
        name_question(),
        Question::model("greeting", "Generate a greeting"),
        Question::roots("client_roots"),
    ]
}

fn greet(request: &Request) {
    finish(request, &[name_question()], None, |answers| {
        let name = answers.members("user_name").members("content").string("name");
        format!("Hello, {}!", name.unwrap_or_default())
    });
}

/// Asks the client, and answers with a text once it has answered all questions.
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

/// Asks two questions in a row. The request state carries the first answer to the second round.
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
    if let Some(state) = rounds::returned_state(request).filter(|it| it.starts_with("named ")) {
        return finish(request, &[color], Some(&state), |answers| {
            format!("{state} {}", answers.raw("step2").unwrap_or("null"))
        });
    }
    if let Some(answers) = rounds::gather(request, &[name], Some("unnamed")) {
        let state = format!("named {}", answers.raw("step1").unwrap_or("null"));
        rounds::ask(request, &[color], Some(&state));
    }
}

/// Asks only the questions that the client supports.
fn ask_supported(request: &Request) {
    let mut questions = all_questions().to_vec();
    questions.retain(|question| question.is_supported_by(request));
    if !request.is_modern() {
        // A gateway may declare more than its client supports, so refusals are ignored.
        client_request::gather(request, &questions);
        return request.text("asked what it can be asked");
    }
    finish(request, &questions, None, |_| "asked what it can be asked".to_owned());
}

/// Asks for a name, then starts a task whose result contains it.
fn ask_then_start_task(request: &Request) {
    if !jobs::supports_tasks(request) {
        return jobs::refuse_without_tasks(request);
    }
    if let Some(answers) = rounds::gather(request, &[name_question()], None) {
        let name = answers.members("user_name").members("content").string("name");
        let text = format!("Hello, {}, from a task!", name.unwrap_or_default());
        jobs::begin(request, jobs::Plan::with_text(&text));
    }
}
