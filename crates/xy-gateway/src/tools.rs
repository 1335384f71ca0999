//! xy's own tools, for clients that may manage servers. Each has a file in `tools/`.
//!
//! They are front ends like all others: what they do is asked of the daemon, in the words of
//! its control plane. No server can have a tool of such a name, as theirs have `__` in them.
//!
//! What could not be done is a result that says so, for the model to read; an error of the
//! protocol would never reach it.

use std::rc::Rc;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::CallError;

use crate::catalog::{Kind, Shown};
use crate::control::Asker;
use crate::reply;
use crate::router::Router;

mod add_server;
mod get_diagnostics;
mod list_servers;
mod reload_server;
mod remove_server;
mod report;
mod restart_server;
mod self_test;
mod server_logs;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    Add,
    Remove,
    Reload,
    List,
    Restart,
    Logs,
    SelfTest,
    Diagnostics,
}

impl Own {
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

    /// What clients are told of it, but for its name.
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
        router: &Rc<Router>,
        by: Asker,
        arguments: &str,
    ) -> Result<Value, CallError> {
        match self {
            Self::Add => add_server::call(router, by, read(arguments)?).await,
            Self::Remove => remove_server::call(router, by, read(arguments)?).await,
            Self::Reload => reload_server::call(router, by, read(arguments)?).await,
            Self::List => list_servers::call(router, read(arguments)?).await,
            Self::Restart => restart_server::call(router, by, read(arguments)?).await,
            Self::Logs => server_logs::call(router, read(arguments)?).await,
            Self::SelfTest => self_test::call(router, by, read(arguments)?).await,
            Self::Diagnostics => get_diagnostics::call(router, read(arguments)?).await,
        }
    }
}

/// Whether xy itself has a tool of this name.
pub(crate) fn is_own(name: &str) -> bool {
    Own::named(name).is_some()
}

/// Whether any tool of xy's own has a name like this.
pub(crate) fn is_any_own(fits: impl Fn(&str) -> bool) -> bool {
    Own::ALL.into_iter().any(|own| fits(own.name()))
}

/// The tools of xy's own that a client is shown who may manage servers, or not.
pub(crate) fn shown(kind: Kind, may_manage: bool) -> Vec<Shown> {
    static ALL: LazyLock<Vec<Shown>> = LazyLock::new(|| Own::ALL.map(as_shown).into());
    if kind == Kind::Tools && may_manage { ALL.clone() } else { Vec::new() }
}

/// Does what a tool of xy's own does, asked for by a client; the result as that gets it.
pub(crate) async fn call(
    router: &Rc<Router>,
    by: Asker,
    name: &str,
    arguments: &str,
) -> Result<String, CallError> {
    let own = Own::named(name)
        .ok_or_else(|| reply::invalid(format!("Unknown tool: {}", shortened(name))))?;
    Ok(match own.call(router, by, arguments).await {
        Ok(value) => done(&value),
        Err(fault) => failed(&fault),
    })
}

fn as_shown(own: Own) -> Shown {
    let mut definition = own.definition();
    definition["name"] = own.name().into();
    Shown {
        name: own.name().into(),
        text: definition.to_string().into(),
        place: 0,
        is_listed: true,
    }
}

/// The arguments of a tool of ours, if they are an object; none are an empty one. What is no
/// object never gets to where one is read, which would take a list for the fields in their order.
pub(crate) fn given(arguments: Option<&str>) -> Result<&str, CallError> {
    match arguments {
        None | Some("null") => Ok("{}"),
        Some(object) if object.starts_with('{') => Ok(object),
        Some(_) => Err(reply::invalid("`arguments` is not an object")
            .hint("give each by its name, as the tool's `inputSchema` says")),
    }
}

/// Reads the arguments of a tool of ours.
pub(crate) fn read<'a, A: Deserialize<'a>>(arguments: &'a str) -> Result<A, CallError> {
    serde_json::from_str(arguments)
        .map_err(|cause| reply::invalid("the arguments do not fit the tool").cause(cause))
}

/// An argument that need not be given: one that is `null` is not.
fn or_default<'a, D, T>(argument: D) -> Result<T, D::Error>
where
    D: Deserializer<'a>,
    T: Deserialize<'a> + Default,
{
    Option::deserialize(argument).map(Option::unwrap_or_default)
}

pub(crate) fn done(value: &Value) -> String {
    let text = value.to_string();
    json!({ "content": [{ "type": "text", "text": text }], "structuredContent": value }).to_string()
}

pub(crate) fn failed(fault: &CallError) -> String {
    let text = for_people(fault);
    json!({ "content": [{ "type": "text", "text": text }], "isError": true }).to_string()
}

/// What did not happen, why, and what to do next; what is wrong with the settings before it.
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

/// The schema of an object with these properties.
pub(crate) fn object(properties: Value, required: &[&str]) -> Value {
    let mut schema = json!({ "type": "object", "required": required });
    schema["properties"] = properties;
    schema["additionalProperties"] = false.into();
    schema
}

/// The schema of one server's name.
fn name_schema() -> Value {
    json!({ "type": "string", "description": "The server's name" })
}

#[cfg(test)]
mod tests {
    use xy_protocol::error::ErrorKind;

    use super::*;

    #[test]
    fn only_who_may_manage_is_shown_them_and_only_among_tools() {
        let names = |kind, may_manage| -> Vec<String> {
            shown(kind, may_manage).iter().map(|shown| shown.name.to_string()).collect()
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
        // No profile gives their names to others.
        let mut reserved: Vec<&str> = xy_config::profile::OWN_TOOLS.to_vec();
        reserved.retain(|name| !crate::client::dispatch::find::is_one(name));
        assert_eq!(reserved, all);
        assert!(!is_own("a__add_server") && !is_own(""));
    }

    #[test]
    fn each_says_what_it_takes_what_it_gives_and_what_it_does_to_the_world() {
        for shown in shown(Kind::Tools, true) {
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
    fn arguments_that_do_not_fit_are_told_why() {
        type Asked = add_server::Asked;
        let told = |arguments| match read::<Asked>(arguments) {
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
    fn arguments_are_an_object_or_nothing() {
        for (arguments, taken) in
            [(None, "{}"), (Some("null"), "{}"), (Some(r#"{"a":1}"#), r#"{"a":1}"#)]
        {
            assert_eq!(given(arguments).unwrap(), taken);
        }
        for arguments in [r#"["a","/bin/x",[]]"#, "[]", "7", "true", r#""{}""#] {
            let fault = given(Some(arguments)).unwrap_err();
            assert_eq!(fault.kind, ErrorKind::InvalidParams);
            assert_eq!(fault.to_string(), "`arguments` is not an object");
        }
    }

    #[test]
    fn what_is_null_is_not_given() {
        let all = ["command", "args", "env", "cwd", "url", "headers", "transport", "persist"];
        for name in all {
            let with = format!(r#"{{"name":"a","{name}":null}}"#);
            let (with, without) =
                (read::<add_server::Asked>(&with), read::<add_server::Asked>(r#"{"name":"a"}"#));
            assert_eq!(with.unwrap(), without.unwrap(), "{name}");
        }
        read::<remove_server::Asked>(r#"{"name":"a","persist":null}"#).unwrap();
        read::<self_test::Asked>(r#"{"repair":null}"#).unwrap();
        read::<server_logs::Asked>(r#"{"name":"a","lines":null,"stream":null}"#).unwrap();
        assert!(read::<add_server::Asked>(r#"{"name":null}"#).is_err(), "it has to be given");
    }

    #[test]
    fn a_failure_is_a_result_for_people() {
        let fault = CallError::new(ErrorKind::AlreadyRunning, "server `a` was not added")
            .cause("there is one")
            .hint("choose another name");
        let result: Value = serde_json::from_str(&failed(&fault)).unwrap();
        assert_eq!(result["isError"], true);
        let text = "server `a` was not added\ncause: there is one\nhint: choose another name";
        assert_eq!(result["content"][0]["text"], text);
        let result: Value = serde_json::from_str(&done(&json!({ "a": 1 }))).unwrap();
        assert_eq!(result["content"][0]["text"], r#"{"a":1}"#);
        assert_eq!(result["structuredContent"], json!({ "a": 1 }));
    }
}
