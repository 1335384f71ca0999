//! The capabilities of clients, and those that a server's request requires. Pure.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::envelope::text_of;

/// The client capabilities that are declared to a shared server. Not roots, as those belong to one
/// client.
pub const SHARED: &str =
    r#"{"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}}}"#;

/// The client capabilities that are declared to a server for clients that send theirs with each
/// request and share one identity.
///
/// The server may ask for anything; the client of the call decides. A request for roots is then
/// meant for that client.
pub const STATELESS: &str =
    r#"{"roots":{},"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}}}"#;

/// Error code: the client lacks the whole capability, so the method does not exist.
const METHOD_NOT_FOUND: i64 = -32601;

/// Error code: the client lacks a part of the capability.
const INVALID_PARAMS: i64 = -32602;

/// The capabilities of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities(Value);

/// Why a client is not sent a request: a code and a message.
pub type Refusal = (i64, &'static str);

/// The parts of a server's request that determine the required capabilities.
#[derive(Debug, Default, Deserialize)]
pub struct RequiredCapabilities<'t> {
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

impl<'t> RequiredCapabilities<'t> {
    /// Reads params. All parts of unreadable ones are absent.
    pub fn read(params: Option<&'t str>) -> Self {
        params.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Returns the id of an elicitation that is completed elsewhere.
    pub fn elicitation(&self) -> Option<String> {
        self.elicitation.and_then(|id| text_of(id.get())).map(Into::into)
    }

    /// Returns true if the elicitation sends the user to a URL.
    pub fn is_url(&self) -> bool {
        self.mode.and_then(|mode| text_of(mode.get())).is_some_and(|mode| mode == "url")
    }

    /// Returns the capabilities that a client needs for this request, as JSON.
    pub fn needs(&self, method: &str) -> Option<&'static str> {
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

    /// Returns true if the request may run as a task.
    pub fn is_task(&self) -> bool {
        self.task.is_some_and(|task| task.get() != "null")
    }
}

impl Capabilities {
    /// Reads capabilities as written; unreadable ones count as none.
    pub fn read(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap_or_default())
    }

    /// Returns true if the capability at this path is present.
    pub fn has(&self, path: &[&str]) -> bool {
        let found = path.iter().try_fold(&self.0, |value, key| value.get(key));
        found.is_some_and(|it| !it.is_null() && *it != Value::Bool(false))
    }

    /// Checks that the client can be sent this request. Unknown methods are allowed: the client
    /// refuses them itself. `is_old` clients had no word for some parts.
    pub fn allow(
        &self,
        method: &str,
        wants: &RequiredCapabilities<'_>,
        is_old: bool,
    ) -> Result<(), Refusal> {
        match method {
            "roots/list" if !self.has(&["roots"]) => {
                Err((METHOD_NOT_FOUND, "the client has no roots"))
            }
            "sampling/createMessage" => self.allow_sampling(wants, is_old),
            "elicitation/create" => self.allow_elicitation(wants),
            "tasks/get" | "tasks/result" if !self.has(&["tasks"]) => {
                Err((METHOD_NOT_FOUND, "the client has no tasks"))
            }
            "tasks/cancel" if !self.has(&["tasks", "cancel"]) => {
                Err((METHOD_NOT_FOUND, "the client cannot cancel tasks"))
            }
            "tasks/list" if !self.has(&["tasks", "list"]) => {
                Err((METHOD_NOT_FOUND, "the client does not list tasks"))
            }
            _ => Ok(()),
        }
    }

    fn allow_sampling(
        &self,
        wants: &RequiredCapabilities<'_>,
        is_old: bool,
    ) -> Result<(), Refusal> {
        if !self.has(&["sampling"]) {
            return Err((METHOD_NOT_FOUND, "the client cannot do sampling"));
        }
        let is_there = |it: Option<&RawValue>| it.is_some_and(|it| it.get() != "null");
        let wants_tools = is_there(wants.tools) || is_there(wants.tool_choice);
        if wants_tools && !self.has(&["sampling", "tools"]) {
            return Err((INVALID_PARAMS, "the client cannot do sampling with `tools`"));
        }
        let context = wants.context.and_then(|it| text_of(it.get()));
        let wants_context = context.is_some_and(|it| it != "none");
        if wants_context && !is_old && !self.has(&["sampling", "context"]) {
            return Err((INVALID_PARAMS, "the client cannot do sampling with `includeContext`"));
        }
        Ok(())
    }

    fn allow_elicitation(&self, wants: &RequiredCapabilities<'_>) -> Result<(), Refusal> {
        if !self.has(&["elicitation"]) {
            return Err((METHOD_NOT_FOUND, "the client cannot do elicitation"));
        }
        let mode = wants.mode.and_then(|it| text_of(it.get()));
        let has_url = self.has(&["elicitation", "url"]);
        match mode.as_deref() {
            Some("url") if !has_url => {
                Err((INVALID_PARAMS, "the client cannot do elicitation in mode `url`"))
            }
            // Without a mode, `form` is meant.
            None | Some("form") if has_url && !self.has(&["elicitation", "form"]) => {
                Err((INVALID_PARAMS, "the client cannot do elicitation in mode `form`"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(capabilities: &str, method: &str, params: &str) -> i64 {
        let wants = RequiredCapabilities::read(Some(params));
        Capabilities::read(capabilities).allow(method, &wants, false).map_or_else(|it| it.0, |()| 0)
    }

    #[test]
    fn server_requests_need_declared_capabilities() {
        let (sample, elicit) = ("sampling/createMessage", "elicitation/create");
        for (capabilities, method, params, expected) in [
            ("{}", sample, "{}", METHOD_NOT_FOUND),
            (r#"{"sampling":{}}"#, sample, "{}", 0),
            (r#"{"sampling":null}"#, sample, "{}", METHOD_NOT_FOUND),
            (r#"{"sampling":{}}"#, sample, r#"{"tools":[]}"#, INVALID_PARAMS),
            (r#"{"sampling":{}}"#, sample, r#"{"toolChoice":{}}"#, INVALID_PARAMS),
            (r#"{"sampling":{"tools":{}}}"#, sample, r#"{"tools":[]}"#, 0),
            (r#"{"sampling":{}}"#, sample, r#"{"includeContext":"none"}"#, 0),
            (r#"{"sampling":{}}"#, sample, r#"{"includeContext":"thisServer"}"#, INVALID_PARAMS),
            (r#"{"sampling":{"context":{}}}"#, sample, r#"{"includeContext":"allServers"}"#, 0),
            ("{}", elicit, "{}", METHOD_NOT_FOUND),
            (r#"{"elicitation":{}}"#, elicit, "{}", 0),
            (r#"{"elicitation":{}}"#, elicit, r#"{"mode":"form"}"#, 0),
            (r#"{"elicitation":{}}"#, elicit, r#"{"mode":"url"}"#, INVALID_PARAMS),
            (r#"{"elicitation":{"url":{}}}"#, elicit, r#"{"mode":"url"}"#, 0),
            (r#"{"elicitation":{"url":{}}}"#, elicit, "{}", INVALID_PARAMS),
            (r#"{"elicitation":{"url":{},"form":{}}}"#, elicit, "{}", 0),
            (r#"{"elicitation":{}}"#, elicit, r#"{"mode":"later"}"#, 0),
            ("{}", "roots/list", "{}", METHOD_NOT_FOUND),
            (r#"{"roots":{}}"#, "roots/list", "{}", 0),
            (r#"{"tasks":{}}"#, "tasks/get", "{}", 0),
            (r#"{"tasks":{}}"#, "tasks/cancel", "{}", METHOD_NOT_FOUND),
            (r#"{"tasks":{"list":{}}}"#, "tasks/list", "{}", 0),
            ("{}", "vendor/ask", "{}", 0),
            ("[", "vendor/ask", "[]", 0),
            ("7", sample, "{}", METHOD_NOT_FOUND),
        ] {
            let found = code_of(capabilities, method, params);
            assert_eq!(found, expected, "{capabilities} {method} {params}");
        }
    }

    #[test]
    fn older_clients_cannot_declare_context_support() {
        let wants = RequiredCapabilities::read(Some(r#"{"includeContext":"thisServer"}"#));
        let can = Capabilities::read(r#"{"sampling":{}}"#);
        can.allow("sampling/createMessage", &wants, true).unwrap();
    }

    #[test]
    fn shared_servers_are_offered_everything_but_roots() {
        let shared = Capabilities::read(SHARED);
        let asked =
            r#"{"tools":[],"includeContext":"thisServer","mode":"url","elicitationId":"e"}"#;
        let wants = RequiredCapabilities::read(Some(asked));
        assert_eq!(wants.elicitation().as_deref(), Some("e"));
        for method in ["sampling/createMessage", "elicitation/create"] {
            shared.allow(method, &wants, false).unwrap();
        }
        shared.allow("elicitation/create", &RequiredCapabilities::default(), false).unwrap();
        assert!(!shared.has(&["roots"]) && !shared.has(&["tasks"]));
        let (Value::Object(alone), Value::Object(mut shared)) =
            (Capabilities::read(STATELESS).0, shared.0)
        else {
            panic!("they are objects");
        };
        shared.insert("roots".to_owned(), serde_json::json!({}));
        assert_eq!(alone, shared, "one that is not shared may ask for roots too");
    }
}
