//! Client input that a request needs before it completes.
//!
//! In the modern era, input takes a round: an `input_required` result, then the same request
//! again, with the answers. In the legacy era, the server sends all questions as requests.
//!
//! State between rounds is kept by the client and signed. The server refuses a state that was
//! changed or belongs to another request. The signature detects errors in tests; it is not
//! secure.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::client_request;
use crate::request::{BAD_PARAMS, Request};
use xy_testkit::json::{Members, quoted};

/// The key of the signature.
const SECRET: &str = "what only the fixture knows";

/// A question to the client.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// The key of the question and of its answer.
    pub(crate) key: &'static str,
    pub(crate) method: &'static str,
    pub(crate) params: String,
}

impl Question {
    /// Returns a question that asks the user for one text.
    pub(crate) fn text(key: &'static str, message: &str, field: &str) -> Self {
        let (message, field) = (quoted(message), quoted(field));
        let schema = format!(
            r#"{{"type":"object","properties":{{{field}:{{"type":"string"}}}},"required":[{field}]}}"#
        );
        let params = format!(r#"{{"message":{message},"requestedSchema":{schema}}}"#);
        Self { key, method: "elicitation/create", params }
    }

    /// Returns a question that asks the user for a confirmation.
    pub(crate) fn confirm(key: &'static str, message: &str) -> Self {
        let message = quoted(message);
        let params = format!(
            r#"{{"message":{message},"requestedSchema":{{"type":"object","properties":{{"ok":{{"type":"boolean"}}}},"required":["ok"]}}}}"#
        );
        Self { key, method: "elicitation/create", params }
    }

    /// Returns a question to the client's model.
    pub(crate) fn model(key: &'static str, text: &str) -> Self {
        let text = quoted(text);
        let params = format!(
            r#"{{"messages":[{{"role":"user","content":{{"type":"text","text":{text}}}}}],"maxTokens":100}}"#
        );
        Self { key, method: "sampling/createMessage", params }
    }

    /// Returns a question for the client's roots.
    pub(crate) fn roots(key: &'static str) -> Self {
        Self { key, method: "roots/list", params: "{}".to_owned() }
    }

    /// Returns the required capability as a JSON object if the client does not have it.
    fn missing_capability(&self, capabilities: &Members) -> Option<&'static str> {
        let (name, needed) = match self.method {
            "sampling/createMessage" => ("sampling", r#"{"sampling":{}}"#),
            "roots/list" => ("roots", r#"{"roots":{}}"#),
            _ if Members::of(&self.params).is_some_and(|it| it.has("url")) => {
                let has_url = capabilities.members("elicitation").has("url");
                return (!has_url).then_some(r#"{"elicitation":{"url":{}}}"#);
            }
            _ => ("elicitation", r#"{"elicitation":{}}"#),
        };
        (!capabilities.has(name)).then_some(needed)
    }

    /// Returns true if the client has the capability for the question.
    pub(crate) fn is_supported_by(&self, request: &Request) -> bool {
        self.missing_capability(&request.capabilities()).is_none()
    }
}

/// Returns questions as the JSON object `inputRequests`.
pub(crate) fn input_requests(questions: &[Question]) -> String {
    let mut text = String::new();
    for Question { key, method, params } in questions {
        let comma = if text.is_empty() { "" } else { "," };
        let key = quoted(key);
        // Writing to a string never fails.
        let _ = write!(text, r#"{comma}{key}:{{"method":"{method}","params":{params}}}"#);
    }
    format!("{{{text}}}")
}

/// Checks that the client has the capabilities for all questions. If not, refuses the request
/// and returns false.
pub(crate) fn check_capabilities(request: &Request, questions: &[Question]) -> bool {
    let capabilities = request.capabilities();
    let missing_capability =
        questions.iter().find_map(|question| question.missing_capability(&capabilities));
    if let Some(needed) = missing_capability {
        refuse_for_capabilities(request, needed);
    }
    missing_capability.is_none()
}

/// Refuses a request because the client lacks capabilities. `needed` is a JSON object.
pub(crate) fn refuse_for_capabilities(request: &Request, needed: &str) {
    if !request.is_modern() {
        return request.refuse_operation(&format!("the client does not support {needed}"));
    }
    request.fail(&format!(
        r#"{{"code":-32021,"message":"this takes more than the client can do","data":{{"requiredCapabilities":{needed}}}}}"#
    ));
}

/// Checks the form of `inputResponses` and the signature of `requestState`. If one is invalid,
/// refuses the request and returns false.
pub(crate) fn validate_input(request: &Request) -> bool {
    let answers = request.params.raw("inputResponses");
    if answers.is_some_and(|it| Members::of(it).is_none()) {
        request.refuse(BAD_PARAMS, "`inputResponses` is an object");
        return false;
    }
    if request.params.has("requestState") && returned_state(request).is_none() {
        request.refuse(BAD_PARAMS, "this is not the state that was given");
        return false;
    }
    true
}

/// Returns the client's answers to all questions. Returns `None` if the request has been
/// answered instead: with the questions or with a refusal.
///
/// The client receives `state` with the questions and must return it with the answers.
pub(crate) fn gather(
    request: &Request,
    questions: &[Question],
    state: Option<&str>,
) -> Option<Members> {
    if !check_capabilities(request, questions) {
        return None;
    }
    if !request.is_modern() {
        return client_request::answers_to(request, questions);
    }
    let answers = request.params.members("inputResponses");
    for question in questions {
        let answer = answers.raw(question.key);
        if answer.is_some_and(|it| Members::of(it).is_none()) {
            request.refuse(BAD_PARAMS, &format!("`{}` is not answered so", question.key));
            return None;
        }
    }
    let is_known = state.is_none_or(|state| returned_state(request).as_deref() == Some(state));
    if is_known && questions.iter().all(|question| answers.has(question.key)) {
        return Some(answers);
    }
    ask(request, questions, state);
    None
}

/// Answers with questions, and with a state that the client must return.
pub(crate) fn ask(request: &Request, questions: &[Question], state: Option<&str>) {
    let asked = input_requests(questions);
    let state = state.map(|state| {
        let signed = quoted(&format!("{state}.{}", signature(request, state)));
        format!(r#","requestState":{signed}"#)
    });
    let state = state.unwrap_or_default();
    request.result(&format!(
        r#"{{"x-first":1.0,"inputRequests":{asked},"resultType":"input_required"{state},"x-after":[1.0]}}"#
    ));
}

/// Returns the request's state if its signature is valid for this request.
pub(crate) fn returned_state(request: &Request) -> Option<String> {
    let signed = request.params.string("requestState")?;
    let (state, signature_text) = signed.rsplit_once('.')?;
    (signature(request, state) == signature_text).then(|| state.to_owned())
}

fn signature(request: &Request, state: &str) -> String {
    let mut hasher = DefaultHasher::new();
    let name = request.params.string("name").or_else(|| request.params.string("uri"));
    (SECRET, &request.method, name, state).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
