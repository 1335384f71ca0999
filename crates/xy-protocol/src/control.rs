//! Requests of the control socket, and their answers.
//!
//! [`Request`] is a closed enum: the compiler demands a handler for each new variant. Answers may
//! gain fields, never lose them.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::error::{CallError, ErrorKind};
pub use crate::problem::{Problem, Severity};

mod answers;
mod diagnostics;
mod gateway;
mod profiles;
mod self_test;
mod tail;

pub use answers::*;
pub use diagnostics::*;
pub use gateway::*;
pub use profiles::*;
pub use self_test::*;
pub use tail::*;

/// Number of lines that `logs` shows by default.
pub const DEFAULT_TAIL: u32 = 20;

/// A request to the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Lists all servers. Answer: [`ListResult`].
    List,
    /// Reports all details of one server. Answer: [`crate::server::ServerStatus`].
    Status(ByName),
    /// Starts servers. Answer: [`StartResult`].
    Start(Select),
    /// Stops servers. Answer: [`StopResult`].
    Stop(Select),
    /// Restarts servers. Answer: [`RestartResult`].
    Restart(Select),
    /// Reads the configuration again. Answer: [`ReloadResult`].
    Reload(Reload),
    /// Adds a server without a configuration file. Answer: [`AddResult`].
    Add(Add),
    /// Stops a server and removes it. Answer: [`RemoveResult`].
    Remove(Remove),
    /// Streams lines of one server. Answer: [`SubscribeResult`], then `log`, `log_skipped`,
    /// `log_end`.
    Logs(Logs),
    /// Ends a stream of lines. Answer: [`CancelResult`].
    LogsCancel(Cancel),
    /// Returns the last lines of one server in one answer. Answer: [`TailResult`].
    Tail(Tail),
    /// Streams state changes: recent ones on request, and new ones. Answer: [`SubscribeResult`],
    /// then `event`, `event_skipped`, `event_end`.
    Events(Events),
    /// Ends a stream of events. Answer: [`CancelResult`].
    EventsCancel(Cancel),
    /// Lists the tools of one server, or of all. Answer: [`ToolList`].
    Tools(Tools),
    /// Calls a tool. Answer: its result, as its server wrote it.
    Call(Call),
    /// Sends any request to one server. Answer: its whole response, with an ID chosen by the
    /// client.
    Raw(RawRequest),
    /// Creates a token for an MCP client. Answer: [`TokenAddResult`].
    TokenAdd(TokenAdd),
    /// Lists the tokens. Answer: [`TokenList`].
    TokenList,
    /// Revokes a token. Answer: [`TokenRemoveResult`].
    TokenRemove(ByName),
    /// Replaces the secret of a token, or of the daemon's own tokens. Answer:
    /// [`TokenRotateResult`].
    TokenRotate(TokenRotate),
    /// Explains if, and why, a profile shows an item. Answer: [`ExplainResult`].
    Explain(Explain),
    /// Finds tools by what they do. Answer: [`SearchResult`].
    Search(Search),
    /// Checks everything, and repairs what is broken. Answer: [`SelfTestResult`].
    SelfTest(SelfTest),
    /// Reports everything that helps to analyse a problem. Answer: [`Diagnostics`].
    Diagnostics,
    /// Checks the configuration files. Answer: [`CheckReport`].
    Check,
    /// Reports the version of xy. Answer: [`Version`].
    Version,
    /// Reports the daemon's paths and listeners. Answer: [`Info`].
    Info,
    /// Stops all servers, then the daemon. Answer: [`ShutdownResult`].
    Shutdown,
    /// Leaves all servers to another daemon, and ends. Answer: [`HandoverResult`].
    Handover(Handover),
}

/// The names of all methods, for suggestions and documentation.
pub const METHODS: [&str; 29] = [
    "list",
    "status",
    "start",
    "stop",
    "restart",
    "reload",
    "add",
    "remove",
    "logs",
    "logs_cancel",
    "tail",
    "events",
    "events_cancel",
    "tools",
    "call",
    "request",
    "token_add",
    "token_list",
    "token_remove",
    "token_rotate",
    "explain",
    "search",
    "self_test",
    "diagnostics",
    "check",
    "version",
    "info",
    "shutdown",
    "handover",
];

impl Request {
    /// Parses a method and its params.
    pub fn parse(method: &str, params: Option<&RawValue>) -> Result<Self, CallError> {
        match method {
            "list" => no_params(params, Self::List),
            "status" => read_params(params).map(Self::Status),
            "start" => read_params(params).and_then(Select::checked).map(Self::Start),
            "stop" => read_params(params).and_then(Select::checked).map(Self::Stop),
            "restart" => read_params(params).and_then(Select::checked).map(Self::Restart),
            "reload" => read_params(params).and_then(Reload::checked).map(Self::Reload),
            "add" => read_params(params).and_then(Add::checked).map(Self::Add),
            "remove" => read_params(params).map(Self::Remove),
            "logs" => read_params(params).map(Self::Logs),
            "logs_cancel" => read_params(params).map(Self::LogsCancel),
            "tail" => read_params(params).and_then(Tail::checked).map(Self::Tail),
            "events" => read_params(params).map(Self::Events),
            "events_cancel" => read_params(params).map(Self::EventsCancel),
            "tools" => read_params(params).map(Self::Tools),
            "call" => read_params(params).and_then(Call::checked).map(Self::Call),
            "request" => read_params(params).and_then(RawRequest::checked).map(Self::Raw),
            "token_add" => read_params(params).map(Self::TokenAdd),
            "token_list" => no_params(params, Self::TokenList),
            "token_remove" => read_params(params).map(Self::TokenRemove),
            "token_rotate" => read_params(params).map(Self::TokenRotate),
            "explain" => read_params(params).map(Self::Explain),
            "search" => read_params(params).map(Self::Search),
            "self_test" => read_params(params).map(Self::SelfTest),
            "diagnostics" => no_params(params, Self::Diagnostics),
            "check" => no_params(params, Self::Check),
            "version" => no_params(params, Self::Version),
            "info" => no_params(params, Self::Info),
            "shutdown" => no_params(params, Self::Shutdown),
            "handover" => read_params(params).map(Self::Handover),
            _ => Err(CallError::new(
                ErrorKind::MethodNotFound,
                format!("there is no method `{}`", quoted(method)),
            )
            .hint(format!("the methods are {}", METHODS.join(", ")))),
        }
    }

    /// Returns the method's name on the wire.
    pub fn method(&self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Status(_) => "status",
            Self::Start(_) => "start",
            Self::Stop(_) => "stop",
            Self::Restart(_) => "restart",
            Self::Reload(_) => "reload",
            Self::Add(_) => "add",
            Self::Remove(_) => "remove",
            Self::Logs(_) => "logs",
            Self::LogsCancel(_) => "logs_cancel",
            Self::Tail(_) => "tail",
            Self::Events(_) => "events",
            Self::EventsCancel(_) => "events_cancel",
            Self::Tools(_) => "tools",
            Self::Call(_) => "call",
            Self::Raw(_) => "request",
            Self::TokenAdd(_) => "token_add",
            Self::TokenList => "token_list",
            Self::TokenRemove(_) => "token_remove",
            Self::TokenRotate(_) => "token_rotate",
            Self::Explain(_) => "explain",
            Self::Search(_) => "search",
            Self::SelfTest(_) => "self_test",
            Self::Diagnostics => "diagnostics",
            Self::Check => "check",
            Self::Version => "version",
            Self::Info => "info",
            Self::Shutdown => "shutdown",
            Self::Handover(_) => "handover",
        }
    }

    /// Returns the params on the wire.
    pub fn params(&self) -> Option<Box<RawValue>> {
        let value = match self {
            Self::List
            | Self::TokenList
            | Self::Diagnostics
            | Self::Check
            | Self::Version
            | Self::Info
            | Self::Shutdown => return None,
            Self::Events(params) if *params == Events::default() => return None,
            Self::Events(params) => to_raw_value(params),
            Self::Status(params) | Self::TokenRemove(params) => to_raw_value(params),
            Self::TokenAdd(params) => to_raw_value(params),
            Self::TokenRotate(params) => to_raw_value(params),
            Self::Explain(params) => to_raw_value(params),
            Self::Search(params) => to_raw_value(params),
            Self::Start(params) | Self::Stop(params) | Self::Restart(params) => {
                to_raw_value(params)
            }
            Self::Reload(params) => to_raw_value(params),
            Self::Add(params) => to_raw_value(params),
            Self::Remove(params) => to_raw_value(params),
            Self::Logs(params) => to_raw_value(params),
            Self::LogsCancel(params) | Self::EventsCancel(params) => to_raw_value(params),
            Self::Tail(params) => to_raw_value(params),
            Self::Tools(params) => to_raw_value(params),
            Self::Call(params) => to_raw_value(params),
            Self::Raw(params) => to_raw_value(params),
            Self::SelfTest(params) => to_raw_value(params),
            Self::Handover(params) => to_raw_value(params),
        };
        Some(value.expect("params are plain structs, which always serialise"))
    }
}

fn no_params(params: Option<&RawValue>, request: Request) -> Result<Request, CallError> {
    if is_empty(params) {
        return Ok(request);
    }
    Err(CallError::invalid_params(format!("`{}` takes no params", request.method())))
}

/// Returns true for missing params, `null`, `{}` and `[]`, with any whitespace.
fn is_empty(params: Option<&RawValue>) -> bool {
    let Some(raw) = params else { return true };
    let text: String = raw.get().chars().filter(|c| !c.is_ascii_whitespace()).take(5).collect();
    matches!(text.as_str(), "null" | "{}" | "[]")
}

fn read_params<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, CallError> {
    let text = params.filter(|_| !is_empty(params)).map_or("{}", RawValue::get);
    if !text.starts_with('{') {
        return Err(CallError::invalid_params("`params` is not an object"));
    }
    serde_json::from_str(text)
        .map_err(|cause| CallError::invalid_params("the params do not fit the method").cause(cause))
}

/// Returns foreign text for use in an error message: short, and safe to show.
pub fn quoted(text: &str) -> String {
    quoted_within(text, 64)
}

/// Returns foreign text for use in an error message, limited to `max_chars` characters.
pub fn quoted_within(text: &str, max_chars: usize) -> String {
    let mut shown = String::new();
    for character in text.chars().take(max_chars) {
        match character {
            // The text stands in no quotes, and escaping these would make JSON hard to read.
            '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    if text.chars().nth(max_chars).is_some() {
        shown.push('…');
    }
    shown
}

/// Params that name a server or a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByName {
    /// The name.
    pub name: String,
}

/// Params that select one server, or all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Select {
    /// The server.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Selects all servers.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub all: bool,
    /// Delays the answer until the servers have settled.
    #[serde(skip_serializing_if = "Clone::clone", default = "default_true")]
    pub wait: bool,
}

fn default_true() -> bool {
    true
}

impl Select {
    /// Selects the server `name`.
    pub fn one(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), all: false, wait: true }
    }

    /// Selects every server.
    pub fn all() -> Self {
        Self { name: None, all: true, wait: true }
    }

    fn checked(self) -> Result<Self, CallError> {
        if self.name.is_some() == self.all {
            return Err(CallError::invalid_params("give either `name` or `all: true`"));
        }
        Ok(self)
    }
}

/// The params of `events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// Only changes of this server; of all, if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Number of recent changes that come first, including those from before this daemon.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub history: Option<u32>,
    /// Also sends new changes.
    #[serde(skip_serializing_if = "Clone::clone", default = "default_true")]
    pub follow: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self { name: None, history: None, follow: true }
    }
}

/// The params of `reload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    /// Only this server, which restarts even if its file has not changed. A server without a file
    /// restarts with the settings it was added with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Only reports what would change.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub dry_run: bool,
}

impl Reload {
    fn checked(self) -> Result<Self, CallError> {
        if self.name.is_some() && self.dry_run {
            return Err(CallError::invalid_params("`dry_run` is for all servers, not for one"));
        }
        Ok(self)
    }
}

/// The params of `add`: a server with a `command` or a `url`. The values are checked like those of
/// a file.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// Its name.
    pub name: String,
    /// Its program; absent if it has a `url`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub args: Vec<String>,
    /// Set over the daemon's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub env: BTreeMap<String, String>,
    /// Its working directory; the daemon's own if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cwd: Option<String>,
    /// The URL of a remote server.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub url: Option<String>,
    /// Headers of every request to `url`. Values may be secrets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub headers: BTreeMap<String, String>,
    /// The transport at `url`: `http` (the default) or `sse`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub transport: Option<String>,
    /// Writes a file for the server.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub persist: bool,
    /// `always`, `on-failure` or `never`; the default of server files if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub restart_policy: Option<String>,
    /// Time to exit when asked; `5s` if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub grace: Option<String>,
    /// Time to become ready; `10s` if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ready_within: Option<String>,
}

impl Add {
    /// Returns the params if they have either a command or a URL.
    pub fn checked(self) -> Result<Self, CallError> {
        match (&self.command, &self.url) {
            (None, None) | (Some(_), Some(_)) => {
                Err(CallError::invalid_params("give either `command` or `url`"))
            }
            _ => Ok(self),
        }
    }
}

impl fmt::Debug for Add {
    /// Omits the values of headers and environment variables, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Add")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("url", &self.url.as_deref().map(|url| url.split('?').next()))
            .field("headers", &self.headers.keys())
            .field("env", &self.env.keys())
            .finish_non_exhaustive()
    }
}

/// The params of `remove`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    /// Its name.
    pub name: String,
    /// Also deletes its file, if it has one.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub persist: bool,
    /// Also deletes its logs, once it has stopped.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub purge: bool,
}

/// The params of `logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// The server.
    pub name: String,
    /// Number of recent lines; [`DEFAULT_TAIL`] if absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tail: Option<u32>,
    /// Also sends new lines.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub follow: bool,
}

/// The params of `logs_cancel` and `events_cancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// The stream's ID, from the answer that started it.
    pub subscription_id: u64,
}

/// The params of `handover`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handover {
    /// The version of the shim protocol that the other daemon speaks.
    pub shim_protocol: u32,
    /// Performs the handover. Without it the answer only says if the handover is possible; the
    /// second request shows that the client is still there.
    #[serde(default)]
    pub go: bool,
    /// Requests the listening HTTP socket along with the answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub listener: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Stream;

    fn parse(method: &str, params: &str) -> Result<Request, CallError> {
        let raw: Option<Box<RawValue>> =
            (!params.is_empty()).then(|| serde_json::from_str(params).unwrap());
        Request::parse(method, raw.as_deref())
    }

    #[test]
    fn quoted_text_is_short_and_safe_for_terminals() {
        for (text, shown) in [
            (r#"{"code":-1,"message":"no \"token\""}"#, r#"{"code":-1,"message":"no \"token\""}"#),
            ("it's in C:\\keys", "it's in C:\\keys"),
            ("\u{1b}[2J\r\n\u{202e}", r"\u{1b}[2J\r\n\u{202e}"),
        ] {
            assert_eq!(quoted(text), shown);
        }
        assert_eq!(quoted(&"é".repeat(65)), "é".repeat(64) + "…");
    }

    #[test]
    fn debug_output_has_no_secrets() {
        let add = Add {
            url: Some("https://a/b?key=s3cret".into()),
            headers: [("A".into(), "s3cret".into())].into(),
            env: [("B".into(), "s3cret".into())].into(),
            ..Add::default()
        };
        assert!(!format!("{:?}", Request::Add(add)).contains("s3cret"));
    }

    #[test]
    fn every_request_round_trips() {
        let requests = [
            Request::List,
            Request::Status(ByName { name: "a".into() }),
            Request::Start(Select::one("a")),
            Request::Stop(Select::all()),
            Request::Restart(Select { wait: false, ..Select::one("a") }),
            Request::Reload(Reload { name: None, dry_run: true }),
            Request::Add(Add {
                name: "a".into(),
                command: Some("npx".into()),
                args: vec!["-y".into()],
                env: [("A".into(), "b".into())].into(),
                cwd: Some("/srv".into()),
                persist: true,
                restart_policy: Some("always".into()),
                grace: Some("1s".into()),
                ready_within: Some("1m".into()),
                ..Add::default()
            }),
            Request::Remove(Remove { name: "a".into(), persist: true, purge: true }),
            Request::Logs(Logs { name: "a".into(), tail: Some(5), follow: true }),
            Request::LogsCancel(Cancel { subscription_id: 3 }),
            Request::Tail(Tail { name: "a".into(), lines: 5, stream: Some(Stream::Stderr) }),
            Request::Events(Events { history: Some(5), name: Some("a".into()), follow: false }),
            Request::EventsCancel(Cancel { subscription_id: 3 }),
            Request::Tools(Tools { server: Some("a".into()) }),
            Request::Call(Call {
                name: "a__b".into(),
                arguments: Some(JsonText::read("{\"n\":1.50}").unwrap()),
                timeout_ms: Some(5),
            }),
            Request::Raw(RawRequest {
                server: "a".into(),
                method: "ping".into(),
                params: Some(JsonText::read("[]").unwrap()),
                timeout_ms: None,
                id: Some(JsonText::read("\"x\"").unwrap()),
            }),
            Request::TokenAdd(TokenAdd { name: "a".into(), profile: None, manage: true }),
            Request::TokenList,
            Request::TokenRemove(ByName { name: "a".into() }),
            Request::TokenRotate(TokenRotate { name: Some("a".into()) }),
            Request::Explain(Explain {
                profile: "p".into(),
                name: "a__b".into(),
                kind: ItemKind::Prompt,
            }),
            Request::Search(Search {
                query: "read a file".into(),
                limit: Some(3),
                server: Some("a".into()),
                profile: None,
            }),
            Request::SelfTest(SelfTest { repair: false }),
            Request::Diagnostics,
            Request::Check,
            Request::Version,
            Request::Info,
            Request::Shutdown,
            Request::Handover(Handover { shim_protocol: 2, go: true, listener: true }),
        ];
        assert_eq!(requests.each_ref().map(Request::method).as_slice(), METHODS);
        let mut wire = String::new();
        for request in requests {
            let params = request.params().map(|it| it.get().to_owned()).unwrap_or_default();
            wire.push_str(&[request.method(), " ", &params, "\n"].concat());
            assert_eq!(parse(request.method(), &params).unwrap(), request);
        }
        insta::assert_snapshot!(wire, @r#"
        list 
        status {"name":"a"}
        start {"name":"a"}
        stop {"all":true}
        restart {"name":"a","wait":false}
        reload {"dry_run":true}
        add {"name":"a","command":"npx","args":["-y"],"env":{"A":"b"},"cwd":"/srv","persist":true,"restart_policy":"always","grace":"1s","ready_within":"1m"}
        remove {"name":"a","persist":true,"purge":true}
        logs {"name":"a","tail":5,"follow":true}
        logs_cancel {"subscription_id":3}
        tail {"name":"a","lines":5,"stream":"stderr"}
        events {"name":"a","history":5,"follow":false}
        events_cancel {"subscription_id":3}
        tools {"server":"a"}
        call {"name":"a__b","arguments":{"n":1.50},"timeout_ms":5}
        request {"server":"a","method":"ping","params":[],"id":"x"}
        token_add {"name":"a","manage":true}
        token_list 
        token_remove {"name":"a"}
        token_rotate {"name":"a"}
        explain {"profile":"p","name":"a__b","kind":"prompt"}
        search {"query":"read a file","limit":3,"server":"a"}
        self_test {"repair":false}
        diagnostics 
        check 
        version 
        info 
        shutdown 
        handover {"shim_protocol":2,"go":true,"listener":true}
        "#);
    }

    #[test]
    fn remote_server_round_trips() {
        let add = Request::Add(Add {
            name: "a".into(),
            url: Some("https://a/b".into()),
            headers: [("A".into(), "b".into())].into(),
            transport: Some("sse".into()),
            ..Add::default()
        });
        let params = add.params().unwrap();
        assert_eq!(
            params.get(),
            r#"{"name":"a","url":"https://a/b","headers":{"A":"b"},"transport":"sse"}"#
        );
        assert_eq!(Request::parse("add", Some(&params)).unwrap(), add);
    }

    #[test]
    fn invalid_params_are_rejected_with_the_reason() {
        let requests = [
            ("list", r#"{"name":"a"}"#),
            ("status", ""),
            ("status", r#"["a"]"#),
            ("status", r#"{"name":"a","nmae":"b"}"#),
            ("start", "{}"),
            ("start", r#"{"name":"a","all":true}"#),
            ("reload", r#"{"name":"a","dry_run":true}"#),
            ("add", r#"{"name":"a"}"#),
            ("add", r#"{"name":"a","command":"x","url":"http://a"}"#),
            ("logs", r#"{"name":"a","tail":-1}"#),
            ("tail", r#"{"name":"a","lines":1001}"#),
            ("self_test", r#"{"repair":1}"#),
            ("call", r#"{"name":"a__b","arguments":[1]}"#),
            ("request", r#"{"server":"a","method":"ping","params":7}"#),
            ("request", r#"{"server":"a","method":"ping","id":{}}"#),
            ("lst", ""),
        ];
        let errors: Vec<String> = requests
            .iter()
            .map(|(method, params)| {
                let error = parse(method, params).unwrap_err();
                format!("{method} {params} -> {} {error}", error.code())
            })
            .collect();
        insta::assert_snapshot!(errors.join("\n"), @r#"
        list {"name":"a"} -> -32602 `list` takes no params
        status  -> -32602 the params do not fit the method: missing field `name` at line 1 column 2
        status ["a"] -> -32602 `params` is not an object
        status {"name":"a","nmae":"b"} -> -32602 the params do not fit the method: unknown field `nmae`, expected `name` at line 1 column 18
        start {} -> -32602 give either `name` or `all: true`
        start {"name":"a","all":true} -> -32602 give either `name` or `all: true`
        reload {"name":"a","dry_run":true} -> -32602 `dry_run` is for all servers, not for one
        add {"name":"a"} -> -32602 give either `command` or `url`
        add {"name":"a","command":"x","url":"http://a"} -> -32602 give either `command` or `url`
        logs {"name":"a","tail":-1} -> -32602 the params do not fit the method: invalid value: integer `-1`, expected u32 at line 1 column 21
        tail {"name":"a","lines":1001} -> -32602 `lines` is 1001, and may be 1000 at most
        self_test {"repair":1} -> -32602 the params do not fit the method: invalid type: integer `1`, expected a boolean at line 1 column 11
        call {"name":"a__b","arguments":[1]} -> -32602 `arguments` is not an object
        request {"server":"a","method":"ping","params":7} -> -32602 `params` of the request is not an object
        request {"server":"a","method":"ping","id":{}} -> -32602 `id` is neither a number nor a text
        lst  -> -32601 there is no method `lst`
        "#);
    }

    #[test]
    fn empty_params_are_accepted() {
        for params in ["", "null", "{}", "[]", "{ }"] {
            assert_eq!(parse("list", params).unwrap(), Request::List);
            assert_eq!(parse("events", params).unwrap(), Request::Events(Events::default()));
            assert_eq!(parse("reload", params).unwrap(), Request::Reload(Reload::default()));
        }
        assert!(parse("list", "[{}]").is_err());
    }

    #[test]
    fn unknown_method_is_abbreviated() {
        let error = parse(&"x\u{1b}".repeat(1_000_000), "").unwrap_err();
        assert!(error.message.len() < 1000 && !error.message.contains('\u{1b}'));
    }
}
