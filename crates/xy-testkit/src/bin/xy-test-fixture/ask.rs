//! One question in the middle of a tool, in either era: to the client there and then, or as a
//! round. The tool does the same with the answer.

use crate::request::Request;
use crate::rounds::{self, Question};
use xy_testkit::json::Members;

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
