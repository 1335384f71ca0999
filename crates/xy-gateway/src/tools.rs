//! The tools of xy itself, for clients that may manage servers. Each has a file in `tools/`.
//!
//! All of them call the daemon's control plane. Their names cannot collide with those of servers'
//! tools, which contain `__`.
//!
//! A failure is an error result, which the model can read, unlike a protocol error.

use std::rc::Rc;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use xy_catalog::catalog::ExposedItem;
use xy_mcp::kind::Kind;
use xy_mcp::reply;
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::CallError;

use tokio::sync::watch;

use crate::backend::Backend;
use crate::control::{Control, Requester};

mod add_server;
mod get_diagnostics;
mod list_servers;
mod reload_server;
mod remove_server;
mod report;
mod restart_server;
pub(crate) mod search;
mod self_test;
mod server_logs;

/// The servers, as xy's own tools see them.
pub(crate) trait Servers {
    /// Returns the daemon's control plane.
    fn control(&self) -> &dyn Control;
    /// Returns the server of this name.
    fn server(&self, name: &str) -> Option<Rc<Backend>>;
    /// Subscribes to changes of servers.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// A tool of xy itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnTool {
    Add,
    Remove,
    Reload,
    List,
    Restart,
    Logs,
    SelfTest,
    Diagnostics,
}

impl OwnTool {
    const ALL: [Self; 8] = [
        Self::Add,
        Self::Remove,
        Self::Reload,
        Self::List,
        Self::Restart,
        Self::Logs,
        Self::SelfTest,
        Self::Diagnostics,
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|own| own.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Add => "add_server",
            Self::Remove => "remove_server",
            Self::Reload => "reload_server",
            Self::List => "list_servers",
            Self::Restart => "restart_server",
            Self::Logs => "server_logs",
            Self::SelfTest => "self_test",
            Self::Diagnostics => "get_diagnostics",
        }
    }

    /// Returns the tool's definition without its name.
    fn definition(self) -> Value {
        match self {
            Self::Add => add_server::definition(),
            Self::Remove => remove_server::definition(),
            Self::Reload => reload_server::definition(),
            Self::List => list_servers::definition(),
            Self::Restart => restart_server::definition(),
            Self::Logs => server_logs::definition(),
            Self::SelfTest => self_test::definition(),
            Self::Diagnostics => get_diagnostics::definition(),
        }
    }

    async fn call(
        self,
        servers: &dyn Servers,
        by: Requester,
        arguments: &str,
    ) -> Result<Value, CallError> {
        match self {
            Self::Add => add_server::call(servers, by, parse(arguments)?).await,
            Self::Remove => remove_server::call(servers, by, parse(arguments)?).await,
            Self::Reload => reload_server::call(servers, by, parse(arguments)?).await,
            Self::List => list_servers::call(servers, parse(arguments)?).await,
            Self::Restart => restart_server::call(servers, by, parse(arguments)?).await,
            Self::Logs => server_logs::call(servers, parse(arguments)?).await,
            Self::SelfTest => self_test::call(servers, by, parse(arguments)?).await,
            Self::Diagnostics => get_diagnostics::call(servers, parse(arguments)?).await,
        }
    }
}

/// Returns true if xy itself has a tool of this name.
pub(crate) fn is_own(name: &str) -> bool {
    OwnTool::named(name).is_some()
}

/// Returns the names of xy's own tools.
pub(crate) fn own_names() -> [&'static str; OwnTool::ALL.len()] {
    OwnTool::ALL.map(OwnTool::name)
}

/// Returns the tools of xy itself for a client with or without the right to manage servers.
pub(crate) fn exposed(kind: Kind, may_manage: bool) -> Vec<ExposedItem> {
    static ALL: LazyLock<Vec<ExposedItem>> = LazyLock::new(|| OwnTool::ALL.map(as_shown).into());
    if kind == Kind::Tools && may_manage { ALL.clone() } else { Vec::new() }
}

/// Calls a tool of xy itself for a client; returns the result for that client.
pub(crate) async fn call(
    servers: &dyn Servers,
    by: Requester,
    name: &str,
    arguments: &str,
) -> Result<String, CallError> {
    let own = OwnTool::named(name)
        .ok_or_else(|| reply::invalid(format!("Unknown tool: {}", shortened(name))))?;
    Ok(match own.call(servers, by, arguments).await {
        Ok(value) => success_result(&value),
        Err(fault) => error_result(&fault),
    })
}

fn as_shown(own: OwnTool) -> ExposedItem {
    let mut definition = own.definition();
    definition["name"] = own.name().into();
    ExposedItem {
        name: own.name().into(),
        text: definition.to_string().into(),
        index: 0,
        is_listed: true,
    }
}

/// Returns the arguments of a tool, which must be an object; missing ones are empty. Without this
/// check, a list would be read as the fields in their order.
pub(crate) fn arguments_object(arguments: Option<&str>) -> Result<&str, CallError> {
    match arguments {
        None | Some("null") => Ok("{}"),
        Some(object_schema) if object_schema.starts_with('{') => Ok(object_schema),
        Some(_) => Err(reply::invalid("`arguments` is not an object")
            .hint("pass arguments by name, as in the `inputSchema` of the tool")),
    }
}

/// Parses the arguments of a tool.
pub(crate) fn parse<'a, A: Deserialize<'a>>(arguments: &'a str) -> Result<A, CallError> {
    serde_json::from_str(arguments).map_err(|cause| {
        reply::invalid("the arguments do not match the `inputSchema` of the tool").cause(cause)
    })
}

/// Deserializes an optional argument: `null` counts as missing.
fn or_default<'a, D, T>(argument: D) -> Result<T, D::Error>
where
    D: Deserializer<'a>,
    T: Deserialize<'a> + Default,
{
    Option::deserialize(argument).map(Option::unwrap_or_default)
}

pub(crate) fn success_result(value: &Value) -> String {
    let text = value.to_string();
    json!({ "content": [{ "type": "text", "text": text }], "structuredContent": value }).to_string()
}

pub(crate) fn error_result(fault: &CallError) -> String {
    let text = for_people(fault);
    json!({ "content": [{ "type": "text", "text": text }], "isError": true }).to_string()
}

/// Formats an error with cause and hint, after the problems in settings.
fn for_people(fault: &CallError) -> String {
    let mut text: String = fault.problems.iter().map(|it| it.rendered.clone() + "\n").collect();
    text += &fault.message;
    for (label, words) in [("cause", &fault.cause), ("hint", &fault.hint)] {
        if let Some(words) = words {
            text.extend(["\n", label, ": ", words]);
        }
    }
    text
}

/// Returns the schema of an object with these properties.
pub(crate) fn object_schema(properties: Value, required: &[&str]) -> Value {
    let mut schema = json!({ "type": "object", "required": required });
    schema["properties"] = properties;
    schema["additionalProperties"] = false.into();
    schema
}

/// Returns the schema of a server's name.
fn name_schema() -> Value {
    json!({ "type": "string", "description": "The server's name" })
}

#[cfg(test)]
mod tests {
    use xy_protocol::error::ErrorKind;

    use super::*;

    #[test]
    fn own_tools_are_listed_only_for_managing_clients() {
        let names = |kind, may_manage| -> Vec<String> {
            exposed(kind, may_manage).iter().map(|shown| shown.name.to_string()).collect()
        };
        let all = [
            "add_server",
            "remove_server",
            "reload_server",
            "list_servers",
            "restart_server",
            "server_logs",
            "self_test",
            "get_diagnostics",
        ];
        assert_eq!(names(Kind::Tools, true), all);
        assert!(names(Kind::Tools, false).is_empty() && names(Kind::Prompts, true).is_empty());
        assert!(all.iter().all(|name| is_own(name)));
        // No profile may use their names for other tools.
        let mut reserved: Vec<&str> = xy_config::profile::OWN_TOOLS.to_vec();
        reserved.retain(|name| !search::is_search_tool(name));
        assert_eq!(reserved, all);
        assert!(!is_own("a__add_server") && !is_own(""));
    }

    #[test]
    fn own_tools_have_schemas_and_annotations() {
        for shown in exposed(Kind::Tools, true) {
            let tool: Value = serde_json::from_str(&shown.text).unwrap();
            assert_eq!(tool["name"], *shown.name);
            for text in ["title", "description"] {
                assert!(tool[text].as_str().is_some_and(|it| !it.is_empty()), "{text}: {tool:#}");
            }
            for schema in ["inputSchema", "outputSchema"] {
                assert_eq!(tool[schema]["type"], "object", "{tool:#}");
                let required = tool[schema]["required"].as_array().unwrap();
                let known = tool[schema]["properties"].as_object().unwrap();
                assert!(required.iter().all(|it| known.contains_key(it.as_str().unwrap())));
            }
            let reads_only = tool["annotations"]["readOnlyHint"] == true;
            let only_look = ["list_servers", "server_logs", "get_diagnostics"];
            assert_eq!(reads_only, only_look.contains(&&*shown.name), "{tool:#}");
            let destroys = tool["annotations"]["destructiveHint"] == true;
            let ends = ["add_server", "remove_server", "reload_server", "restart_server"];
            assert_eq!(destroys, ends.contains(&&*shown.name) || *shown.name == *"self_test");
        }
    }

    #[test]
    fn invalid_arguments_are_explained() {
        type Arguments = add_server::Arguments;
        let told = |arguments| match parse::<Arguments>(arguments) {
            Ok(_) => panic!("{arguments} was taken"),
            Err(fault) => fault.to_string(),
        };
        for (arguments, why) in [
            ("{}", "missing field `name`"),
            (r#"{"name":"a","command":7}"#, "expected a string"),
            (r#"{"name":"a","command":"x","args":"y"}"#, "expected a sequence"),
            (r#"{"name":"a","command":"x","env":{"A":1}}"#, "expected a string"),
            (r#"{"name":"a","command":"x","shell":true}"#, "unknown field `shell`"),
        ] {
            assert!(told(arguments).contains(why), "{arguments}: {}", told(arguments));
        }
    }

    #[test]
    fn arguments_are_an_object_or_absent() {
        for (arguments, taken) in
            [(None, "{}"), (Some("null"), "{}"), (Some(r#"{"a":1}"#), r#"{"a":1}"#)]
        {
            assert_eq!(arguments_object(arguments).unwrap(), taken);
        }
        for arguments in [r#"["a","/bin/x",[]]"#, "[]", "7", "true", r#""{}""#] {
            let fault = arguments_object(Some(arguments)).unwrap_err();
            assert_eq!(fault.kind, ErrorKind::InvalidParams);
            assert_eq!(fault.to_string(), "`arguments` is not an object");
        }
    }

    #[test]
    fn null_argument_counts_as_absent() {
        let all = ["command", "args", "env", "cwd", "url", "headers", "transport", "persist"];
        for name in all {
            let with = format!(r#"{{"name":"a","{name}":null}}"#);
            let (with, without) = (
                parse::<add_server::Arguments>(&with),
                parse::<add_server::Arguments>(r#"{"name":"a"}"#),
            );
            assert_eq!(with.unwrap(), without.unwrap(), "{name}");
        }
        parse::<remove_server::Arguments>(r#"{"name":"a","persist":null}"#).unwrap();
        parse::<self_test::Arguments>(r#"{"repair":null}"#).unwrap();
        parse::<server_logs::Arguments>(r#"{"name":"a","lines":null,"stream":null}"#).unwrap();
        assert!(parse::<add_server::Arguments>(r#"{"name":null}"#).is_err(), "it has to be given");
    }

    #[test]
    fn failure_is_a_readable_result() {
        let fault = CallError::new(ErrorKind::AlreadyRunning, "server `a` was not added")
            .cause("there is one")
            .hint("choose another name");
        let result: Value = serde_json::from_str(&error_result(&fault)).unwrap();
        assert_eq!(result["isError"], true);
        let text = "server `a` was not added\ncause: there is one\nhint: choose another name";
        assert_eq!(result["content"][0]["text"], text);
        let result: Value = serde_json::from_str(&success_result(&json!({ "a": 1 }))).unwrap();
        assert_eq!(result["content"][0]["text"], r#"{"a":1}"#);
        assert_eq!(result["structuredContent"], json!({ "a": 1 }));
    }
}
