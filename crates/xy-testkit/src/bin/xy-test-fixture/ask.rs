//! One question in the middle of a tool, in either era: to the client there and then, or as a
//! round. The tool does the same with the answer. Then several at once, in the legacy era.

use crate::request::Request;
use crate::rounds::{self, Question};
use xy_testkit::json::{Members, quoted};

/// By what the answer is found in a round: it needs care in a header or a path.
const KEY: &str = "the \u{e9}/1.0 \"one\"";

/// What is kept between the rounds, in a spelling that somebody might want to improve.
const STATE: &str = r#"{"n":1.0,"é":"\u00e9\/"}"#;

/// The client's answer, with the `result` or the `error` as it came; without one, the request
/// has been answered.
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
        request.failed(&format!("the client does not support {capability}"));
        return None;
    }
    let answer = request.ask(method, params);
    if answer.is_none() {
        request.failed("the client did not answer");
    }
    answer
}

/// A legacy client's answers to all of these, by their keys; without, the request has been
/// answered.
pub(crate) fn answers_to(request: &Request, questions: &[Question]) -> Option<Members> {
    let answers = gather(request, questions);
    if questions.iter().all(|question| answers.has(question.key)) {
        return Some(answers);
    }
    request.cannot("the client did not answer everything");
    None
}

/// A legacy client's answers, by their keys: those that are no errors.
pub(crate) fn gather(request: &Request, questions: &[Question]) -> Members {
    let asked: Vec<_> = questions.iter().map(|it| (it.method, it.params.as_str())).collect();
    let answers = request.ask_all(&asked);
    let given = questions.iter().zip(&answers).filter_map(|(question, answer)| {
        Some(format!("{}:{}", quoted(question.key), answer.as_ref()?.raw("result")?))
    });
    let given = given.collect::<Vec<_>>().join(",");
    Members::of(&format!("{{{given}}}")).unwrap_or_default()
}
