//! Requests to the client during a tool call.
//!
//! [`answer_to`] hides the era: it sends a request in the legacy era and takes a round in the
//! modern one. The other functions send several requests at once, in the legacy era only.

use crate::request::Request;
use crate::rounds::{self, Question};
use xy_testkit::json::{Members, quoted};

/// The key of a question in a round. Its characters need escaping in headers and paths.
const KEY: &str = "the \u{e9}/1.0 \"one\"";

/// The state between rounds, as JSON text that reserialization would change.
const STATE: &str = r#"{"n":1.0,"é":"\u00e9\/"}"#;

/// Returns the client's response, with the unchanged text of its `result` or `error`. Returns
/// `None` if the request has been answered instead.
pub(crate) fn answer_to(request: &Request, method: &'static str, params: &str) -> Option<Members> {
    if request.is_modern() {
        let question = Question { key: KEY, method, params: params.to_owned() };
        let answers = rounds::gather(request, &[question], Some(STATE))?;
        return Members::of(&format!(r#"{{"result":{}}}"#, answers.raw(KEY)?));
    }
    let capability = match method {
        "sampling/createMessage" => "sampling",
        "roots/list" => "roots",
        _ => "elicitation",
    };
    if !request.capabilities().has(capability) {
        request.tool_error(&format!("the client does not support {capability}"));
        return None;
    }
    let answer = request.ask(method, params);
    if answer.is_none() {
        request.tool_error("the client did not answer");
    }
    answer
}

/// Returns a legacy client's results for all questions, by key. Returns `None` if one is missing;
/// the request has then been refused.
pub(crate) fn answers_to(request: &Request, questions: &[Question]) -> Option<Members> {
    let answers = gather(request, questions);
    if questions.iter().all(|question| answers.has(question.key)) {
        return Some(answers);
    }
    request.refuse_operation("the client did not answer everything");
    None
}

/// Returns a legacy client's results, by key. Questions that failed are left out.
pub(crate) fn gather(request: &Request, questions: &[Question]) -> Members {
    let asked: Vec<_> = questions.iter().map(|it| (it.method, it.params.as_str())).collect();
    let answers = request.ask_all(&asked);
    let given = questions.iter().zip(&answers).filter_map(|(question, answer)| {
        Some(format!("{}:{}", quoted(question.key), answer.as_ref()?.raw("result")?))
    });
    let given = given.collect::<Vec<_>>().join(",");
    Members::of(&format!("{{{given}}}")).unwrap_or_default()
}
