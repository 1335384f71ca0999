//! What a client said that it can do, and what a server's question wants of it. Pure.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use xy_mcp::envelope::text_of;

/// What a shared server is told that its clients can do. Not roots: they are one client's.
pub(crate) const SHARED: &str =
    r#"{"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}}}"#;

/// What a server is told that lives for clients who say with each request what they can do,
/// and whom the door cannot tell apart: all that they may be asked. Whose call it is decides
/// whether they are, so that a question for roots is for that client's.
pub(crate) const ALONE: &str =
    r#"{"roots":{},"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}}}"#;

/// A capability that is not there at all: to the server there is no such method.
const NO_METHOD: i64 = -32601;

/// A part of one that is not there.
const NOT_SO: i64 = -32602;

/// What a client can do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Capabilities(Value);

/// Why a client is not asked: a code, and a sentence.
pub(crate) type Refusal = (i64, &'static str);

/// The parts of a question that say what it wants of a client.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Wants<'t> {
    #[serde(borrow, default)]
    mode: Option<&'t RawValue>,
    #[serde(borrow, default)]
    tools: Option<&'t RawValue>,
    #[serde(borrow, default, rename = "toolChoice")]
    tool_choice: Option<&'t RawValue>,
    #[serde(borrow, default, rename = "includeContext")]
    context: Option<&'t RawValue>,
    #[serde(borrow, default, rename = "elicitationId")]
    elicitation: Option<&'t RawValue>,
    #[serde(borrow, default)]
    task: Option<&'t RawValue>,
}

impl<'t> Wants<'t> {
    /// Of what cannot be read, all are absent.
    pub(crate) fn read(params: Option<&'t str>) -> Self {
        params.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// The id of what is to be done elsewhere.
    pub(crate) fn elicitation(&self) -> Option<String> {
        self.elicitation.and_then(|id| text_of(id.get())).map(Into::into)
    }

    /// Whether its user is to go elsewhere.
    pub(crate) fn is_url(&self) -> bool {
        self.mode.and_then(|mode| text_of(mode.get())).is_some_and(|mode| mode == "url")
    }

    /// What a client has to be able to do to be asked this, as the text of its capabilities.
    pub(crate) fn needs(&self, method: &str) -> Option<&'static str> {
        let is_there = |it: Option<&RawValue>| it.is_some_and(|it| it.get() != "null");
        match method {
            "roots/list" => Some(r#"{"roots":{}}"#),
            "elicitation/create" if self.is_url() => Some(r#"{"elicitation":{"url":{}}}"#),
            "elicitation/create" => Some(r#"{"elicitation":{"form":{}}}"#),
            "sampling/createMessage" if is_there(self.tools) || is_there(self.tool_choice) => {
                Some(r#"{"sampling":{"tools":{}}}"#)
            }
            "sampling/createMessage" => Some(r#"{"sampling":{}}"#),
            _ => None,
        }
    }

    /// Whether it may be done as a task.
    pub(crate) fn is_task(&self) -> bool {
        self.task.is_some_and(|task| task.get() != "null")
    }
}

impl Capabilities {
    /// As they are written; what cannot be read is none.
    pub(crate) fn read(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap_or_default())
    }

    /// Whether it can do what these keys lead to.
    pub(crate) fn has(&self, path: &[&str]) -> bool {
        let found = path.iter().try_fold(&self.0, |value, key| value.get(key));
        found.is_some_and(|it| !it.is_null() && *it != Value::Bool(false))
    }

    /// Whether it can be asked this. What we do not know it may: it says itself if not.
    /// `is_old` clients had no word for some parts of it.
    pub(crate) fn allow(
        &self,
        method: &str,
        wants: &Wants<'_>,
        is_old: bool,
    ) -> Result<(), Refusal> {
        match method {
            "roots/list" if !self.has(&["roots"]) => Err((NO_METHOD, "the client has no roots")),
            "sampling/createMessage" => self.allow_sampling(wants, is_old),
            "elicitation/create" => self.allow_elicitation(wants),
            "tasks/get" | "tasks/result" if !self.has(&["tasks"]) => {
                Err((NO_METHOD, "the client has no tasks"))
            }
            "tasks/cancel" if !self.has(&["tasks", "cancel"]) => {
                Err((NO_METHOD, "the client cannot cancel tasks"))
            }
            "tasks/list" if !self.has(&["tasks", "list"]) => {
                Err((NO_METHOD, "the client does not list tasks"))
            }
            _ => Ok(()),
        }
    }

    fn allow_sampling(&self, wants: &Wants<'_>, is_old: bool) -> Result<(), Refusal> {
        if !self.has(&["sampling"]) {
            return Err((NO_METHOD, "the client cannot do sampling"));
        }
        let is_there = |it: Option<&RawValue>| it.is_some_and(|it| it.get() != "null");
        let wants_tools = is_there(wants.tools) || is_there(wants.tool_choice);
        if wants_tools && !self.has(&["sampling", "tools"]) {
            return Err((NOT_SO, "the client cannot do sampling with `tools`"));
        }
        let context = wants.context.and_then(|it| text_of(it.get()));
        let wants_context = context.is_some_and(|it| it != "none");
        if wants_context && !is_old && !self.has(&["sampling", "context"]) {
            return Err((NOT_SO, "the client cannot do sampling with `includeContext`"));
        }
        Ok(())
    }

    fn allow_elicitation(&self, wants: &Wants<'_>) -> Result<(), Refusal> {
        if !self.has(&["elicitation"]) {
            return Err((NO_METHOD, "the client cannot do elicitation"));
        }
        let mode = wants.mode.and_then(|it| text_of(it.get()));
        let has_url = self.has(&["elicitation", "url"]);
        match mode.as_deref() {
            Some("url") if !has_url => {
                Err((NOT_SO, "the client cannot do elicitation in mode `url`"))
            }
            // Whoever names no mode means this one.
            None | Some("form") if has_url && !self.has(&["elicitation", "form"]) => {
                Err((NOT_SO, "the client cannot do elicitation in mode `form`"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(capabilities: &str, method: &str, params: &str) -> i64 {
        let wants = Wants::read(Some(params));
        Capabilities::read(capabilities).allow(method, &wants, false).map_or_else(|it| it.0, |()| 0)
    }

    #[test]
    fn a_client_is_asked_what_it_said_that_it_can_do() {
        let (sample, elicit) = ("sampling/createMessage", "elicitation/create");
        for (capabilities, method, params, expected) in [
            ("{}", sample, "{}", NO_METHOD),
            (r#"{"sampling":{}}"#, sample, "{}", 0),
            (r#"{"sampling":null}"#, sample, "{}", NO_METHOD),
            (r#"{"sampling":{}}"#, sample, r#"{"tools":[]}"#, NOT_SO),
            (r#"{"sampling":{}}"#, sample, r#"{"toolChoice":{}}"#, NOT_SO),
            (r#"{"sampling":{"tools":{}}}"#, sample, r#"{"tools":[]}"#, 0),
            (r#"{"sampling":{}}"#, sample, r#"{"includeContext":"none"}"#, 0),
            (r#"{"sampling":{}}"#, sample, r#"{"includeContext":"thisServer"}"#, NOT_SO),
            (r#"{"sampling":{"context":{}}}"#, sample, r#"{"includeContext":"allServers"}"#, 0),
            ("{}", elicit, "{}", NO_METHOD),
            (r#"{"elicitation":{}}"#, elicit, "{}", 0),
            (r#"{"elicitation":{}}"#, elicit, r#"{"mode":"form"}"#, 0),
            (r#"{"elicitation":{}}"#, elicit, r#"{"mode":"url"}"#, NOT_SO),
            (r#"{"elicitation":{"url":{}}}"#, elicit, r#"{"mode":"url"}"#, 0),
            (r#"{"elicitation":{"url":{}}}"#, elicit, "{}", NOT_SO),
            (r#"{"elicitation":{"url":{},"form":{}}}"#, elicit, "{}", 0),
            (r#"{"elicitation":{}}"#, elicit, r#"{"mode":"later"}"#, 0),
            ("{}", "roots/list", "{}", NO_METHOD),
            (r#"{"roots":{}}"#, "roots/list", "{}", 0),
            (r#"{"tasks":{}}"#, "tasks/get", "{}", 0),
            (r#"{"tasks":{}}"#, "tasks/cancel", "{}", NO_METHOD),
            (r#"{"tasks":{"list":{}}}"#, "tasks/list", "{}", 0),
            ("{}", "vendor/ask", "{}", 0),
            ("[", "vendor/ask", "[]", 0),
            ("7", sample, "{}", NO_METHOD),
        ] {
            let found = verdict(capabilities, method, params);
            assert_eq!(found, expected, "{capabilities} {method} {params}");
        }
    }

    #[test]
    fn older_clients_had_no_word_for_context() {
        let wants = Wants::read(Some(r#"{"includeContext":"thisServer"}"#));
        let can = Capabilities::read(r#"{"sampling":{}}"#);
        can.allow("sampling/createMessage", &wants, true).unwrap();
    }

    #[test]
    fn what_shared_servers_are_told_is_everything_but_roots() {
        let told = Capabilities::read(SHARED);
        let asked =
            r#"{"tools":[],"includeContext":"thisServer","mode":"url","elicitationId":"e"}"#;
        let wants = Wants::read(Some(asked));
        assert_eq!(wants.elicitation().as_deref(), Some("e"));
        for method in ["sampling/createMessage", "elicitation/create"] {
            told.allow(method, &wants, false).unwrap();
        }
        told.allow("elicitation/create", &Wants::default(), false).unwrap();
        assert!(!told.has(&["roots"]) && !told.has(&["tasks"]));
        let (Value::Object(alone), Value::Object(mut shared)) =
            (Capabilities::read(ALONE).0, told.0)
        else {
            panic!("they are objects");
        };
        shared.insert("roots".to_owned(), serde_json::json!({}));
        assert_eq!(alone, shared, "one that is not shared may ask for roots too");
    }
}
