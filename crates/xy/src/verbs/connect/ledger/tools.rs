//! The tools that may be called twice, according to the daemon's last list. If the client has not
//! asked for it, the bridge asks the next daemon before it replays a call.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;
use xy_mcp::members::Members;
use xy_mcp::modern::{CAPABILITIES, CLIENT_INFO, VERSION};
use xy_mcp::repeat::Repeatable;

use super::open::RequestKind;

/// Maximum number of remembered tools; calls to others are not repeated.
const MAX_TOOLS: usize = 10_000;

/// Maximum length of a remembered name.
const MAX_NAME: usize = 256;

/// The names of tools that are read-only or idempotent.
#[derive(Debug, Default)]
pub(super) struct RepeatableTools {
    names: HashSet<String>,
    /// True if the list is known, and no change of it has been reported.
    is_listed: bool,
}

impl RepeatableTools {
    /// Adds a page of the list. The first page replaces all known tools.
    pub(super) fn learn(&mut self, result: &str, is_first_page: bool) {
        #[derive(Deserialize)]
        struct Page {
            #[serde(default)]
            tools: Vec<Tool>,
        }
        #[derive(Deserialize)]
        struct Tool {
            #[serde(default)]
            name: Value,
            #[serde(default)]
            annotations: Value,
        }
        if is_first_page {
            self.forget();
            self.is_listed = true;
        }
        let Ok(page) = serde_json::from_str::<Page>(result) else { return };
        let is_repeatable = |tool: &Tool| Repeatable::hinted(&tool.annotations).is_some();
        let (repeatable, others): (Vec<_>, Vec<_>) =
            page.tools.into_iter().partition(is_repeatable);
        for name in repeatable.iter().filter_map(|tool| tool.name.as_str()) {
            if self.names.len() < MAX_TOOLS && name.len() <= MAX_NAME {
                self.names.insert(name.to_owned());
            }
        }
        // If several tools have the same name, all must be repeatable.
        for name in others.iter().filter_map(|tool| tool.name.as_str()) {
            self.names.remove(name);
        }
    }

    /// Removes all tools, as the list has changed.
    pub(super) fn forget(&mut self) {
        self.names.clear();
        self.is_listed = false;
    }

    /// Classifies a call with these params.
    pub(super) fn kind_of_call(&self, params: Option<&str>) -> RequestKind {
        #[derive(Deserialize)]
        struct Call {
            name: String,
            task: Option<Value>,
            #[serde(rename = "requestState")]
            state: Option<Value>,
            #[serde(rename = "inputResponses")]
            responses: Option<Value>,
        }
        if self.is_listed && self.names.is_empty() {
            return RequestKind::Once;
        }
        let call = params.and_then(|params| serde_json::from_str::<Call>(params).ok());
        let is_plain =
            |call: &Call| call.task.is_none() && call.state.is_none() && call.responses.is_none();
        match call.filter(is_plain) {
            Some(_) if !self.is_listed => RequestKind::UncheckedCall,
            Some(call) if self.names.contains(&call.name) => RequestKind::RepeatableCall,
            _ => RequestKind::Once,
        }
    }
}

/// Returns the bridge's request for the tools, as a line. `params` are those of a client's call: a
/// client without a handshake identifies itself there.
pub(super) fn list_request(id: &str, params: Option<&str>) -> String {
    let params = params.and_then(Members::read).unwrap_or_default();
    let meta = params.get("_meta").and_then(Members::read).unwrap_or_default();
    let client = meta.without(|key| ![VERSION, CLIENT_INFO, CAPABILITIES].contains(&key));
    let params = if client.is_empty() {
        String::new()
    } else {
        format!(r#","params":{{"_meta":{client}}}"#)
    };
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"{params}}}"#) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    impl RepeatableTools {
        fn may_repeat(&self, params: Option<&str>) -> bool {
            self.kind_of_call(params) == RequestKind::RepeatableCall
        }
    }

    fn call(name: &str) -> String {
        format!(r#"{{"name":"{name}","arguments":{{"x":[1]}}}}"#)
    }

    #[test]
    fn only_plain_calls_of_marked_tools_are_repeatable() {
        let mut tools = RepeatableTools::default();
        tools.learn(
            r#"{"tools":[
                {"name":"read","annotations":{"readOnlyHint":true}},
                {"name":"set","annotations":{"readOnlyHint":false,"idempotentHint":true}},
                {"name":"add","annotations":{"readOnlyHint":"true"}},
                {"name":"plain"},{"name":7},
                {"name":"twice"},{"name":"twice","annotations":{"readOnlyHint":true}}]}"#,
            true,
        );
        let repeated = ["read", "set", "add", "plain", "twice", "unknown"];
        let repeated = repeated.map(|name| tools.may_repeat(Some(&call(name))));
        assert_eq!(repeated, [true, true, false, false, false, false]);
        for more in [r#""task":{}"#, r#""requestState":"x""#, r#""inputResponses":{}"#] {
            assert!(!tools.may_repeat(Some(&format!(r#"{{"name":"read",{more}}}"#))), "{more}");
        }
        assert!(!tools.may_repeat(None));
    }

    #[test]
    fn first_page_replaces_and_others_add() {
        let page = |name: &str| {
            format!(r#"{{"tools":[{{"name":"{name}","annotations":{{"readOnlyHint":true}}}}]}}"#)
        };
        let mut tools = RepeatableTools::default();
        tools.learn(&page("a"), true);
        tools.learn(&page("b"), false);
        assert!(tools.may_repeat(Some(&call("a"))) && tools.may_repeat(Some(&call("b"))));
        tools.learn(&page("c"), true);
        assert!(!tools.may_repeat(Some(&call("a"))) && tools.may_repeat(Some(&call("c"))));
        tools.learn("7", true);
        assert!(!tools.may_repeat(Some(&call("c"))));
    }

    #[test]
    fn number_of_tools_is_bounded() {
        let mut tools = RepeatableTools::default();
        let hint = r#""annotations":{"readOnlyHint":true}"#;
        let many: Vec<String> =
            (0..=MAX_TOOLS).map(|it| format!(r#"{{"name":"t{it}",{hint}}}"#)).collect();
        tools.learn(&format!(r#"{{"tools":[{}]}}"#, many.join(",")), true);
        assert_eq!(tools.names.len(), MAX_TOOLS);
    }
}
