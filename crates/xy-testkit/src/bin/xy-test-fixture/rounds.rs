//! Questions to the client before something is done. In the modern era they are rounds: a
//! result that asks, and the same request again, with the answers. In the legacy one they are
//! asked there and then, all at once.
//!
//! What has to be known again in the next round travels with the client, signed: a state that
//! was touched, or that belongs to another request, is refused. The signature keeps a test
//! honest and nobody out.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::ask;
use crate::request::{BAD_PARAMS, Request};
use xy_testkit::json::{Members, quoted};

/// Nobody else signs with this.
const SECRET: &str = "what only the fixture knows";

/// Something that the client is asked.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// By what its answer is found.
    pub(crate) key: &'static str,
    pub(crate) method: &'static str,
    pub(crate) params: String,
}

impl Question {
    /// Asks the user to fill in one text.
    pub(crate) fn text(key: &'static str, message: &str, field: &str) -> Self {
        let (message, field) = (quoted(message), quoted(field));
        let schema = format!(
            r#"{{"type":"object","properties":{{{field}:{{"type":"string"}}}},"required":[{field}]}}"#
        );
        let params = format!(r#"{{"message":{message},"requestedSchema":{schema}}}"#);
        Self { key, method: "elicitation/create", params }
    }

    /// Asks the user to confirm.
    pub(crate) fn confirm(key: &'static str, message: &str) -> Self {
        let message = quoted(message);
        let params = format!(
            r#"{{"message":{message},"requestedSchema":{{"type":"object","properties":{{"ok":{{"type":"boolean"}}}},"required":["ok"]}}}}"#
        );
        Self { key, method: "elicitation/create", params }
    }

    /// Asks the client's model.
    pub(crate) fn model(key: &'static str, text: &str) -> Self {
        let text = quoted(text);
        let params = format!(
            r#"{{"messages":[{{"role":"user","content":{{"type":"text","text":{text}}}}}],"maxTokens":100}}"#
        );
        Self { key, method: "sampling/createMessage", params }
    }

    /// Asks for the roots.
    pub(crate) fn roots(key: &'static str) -> Self {
        Self { key, method: "roots/list", params: "{}".to_owned() }
    }

    /// The capabilities that it takes and the client lacks, as the text of an object.
    fn lacking(&self, capabilities: &Members) -> Option<&'static str> {
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

    /// Whether the client can be asked this.
    pub(crate) fn is_for(&self, request: &Request) -> bool {
        self.lacking(&request.capabilities()).is_none()
    }
}

/// Questions as the object in which they are asked.
pub(crate) fn asked(questions: &[Question]) -> String {
    let mut text = String::new();
    for Question { key, method, params } in questions {
        let comma = if text.is_empty() { "" } else { "," };
        let key = quoted(key);
        // A string takes everything.
        let _ = write!(text, r#"{comma}{key}:{{"method":"{method}","params":{params}}}"#);
    }
    format!("{{{text}}}")
}

/// Refuses the request if it needs what the client cannot do; whether it does not.
pub(crate) fn can_ask(request: &Request, questions: &[Question]) -> bool {
    let capabilities = request.capabilities();
    let lacking = questions.iter().find_map(|question| question.lacking(&capabilities));
    if let Some(needed) = lacking {
        lacks(request, needed);
    }
    lacking.is_none()
}

/// Answers that the client lacks these capabilities, which are the text of an object.
pub(crate) fn lacks(request: &Request, needed: &str) {
    if !request.is_modern() {
        return request.cannot(&format!("the client does not support {needed}"));
    }
    request.fail(&format!(
        r#"{{"code":-32021,"message":"this takes more than the client can do","data":{{"requiredCapabilities":{needed}}}}}"#
    ));
}

/// Refuses answers and states that cannot be; whether there are none.
pub(crate) fn check(request: &Request) -> bool {
    let answers = request.params.raw("inputResponses");
    if answers.is_some_and(|it| Members::of(it).is_none()) {
        request.refuse(BAD_PARAMS, "`inputResponses` is an object");
        return false;
    }
    if request.params.has("requestState") && kept(request).is_none() {
        request.refuse(BAD_PARAMS, "this is not the state that was given");
        return false;
    }
    true
}

/// The client's answers to all of these; without, it has been asked, or refused. A `state`
/// goes to the client, and has to come back with the answers.
pub(crate) fn gather(
    request: &Request,
    questions: &[Question],
    state: Option<&str>,
) -> Option<Members> {
    if !can_ask(request, questions) {
        return None;
    }
    if !request.is_modern() {
        return ask::answers_to(request, questions);
    }
    let answers = request.params.members("inputResponses");
    for question in questions {
        let answer = answers.raw(question.key);
        if answer.is_some_and(|it| Members::of(it).is_none()) {
            request.refuse(BAD_PARAMS, &format!("`{}` is not answered so", question.key));
            return None;
        }
    }
    let is_known = state.is_none_or(|state| kept(request).as_deref() == Some(state));
    if is_known && questions.iter().all(|question| answers.has(question.key)) {
        return Some(answers);
    }
    ask(request, questions, state);
    None
}

/// Asks, and gives the client a state to bring back.
pub(crate) fn ask(request: &Request, questions: &[Question], state: Option<&str>) {
    let asked = asked(questions);
    let state = state.map(|state| {
        let signed = quoted(&format!("{state}.{}", signature(request, state)));
        format!(r#","requestState":{signed}"#)
    });
    let state = state.unwrap_or_default();
    request.result(&format!(
        r#"{{"x-first":1.0,"inputRequests":{asked},"resultType":"input_required"{state},"x-after":[1.0]}}"#
    ));
}

/// The state that came back, if it is one that we gave for this request.
pub(crate) fn kept(request: &Request) -> Option<String> {
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
