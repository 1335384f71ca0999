//! The vocabulary of the modern revision: what requests say of their client, what results carry,
//! and the translation to and from legacy revisions. Pure.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::edit::{Edits, quoted};
use crate::envelope::{Outcome, text_of};
use crate::level::Level;
use crate::members::Members;
use crate::revision::MODERN;

/// Key of `_meta` in a request: the protocol revision.
pub const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// Key of `_meta` in a request: the client's capabilities.
pub const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// Key of `_meta` in a request: the client's name and version.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// Key of `_meta` in a request: the minimum level of log messages.
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// A key of `_meta` in a result.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// A key of `_meta` in a notification of a subscription.
pub const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// The tasks extension, by which results can be fetched later.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";

/// The capabilities of a client that knows tasks and nothing else.
pub const TASKS_CAPABILITIES: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// Method that asks a server who it is.
pub const DISCOVER: &str = "server/discover";
/// Method that opens a stream of events.
pub const LISTEN: &str = "subscriptions/listen";

/// Error code: the headers contradict the body.
pub const HEADER_MISMATCH: i64 = -32020;
/// Error code: the client lacks a capability that the request needs.
pub const MISSING_CAPABILITY: i64 = -32021;
/// Error code: the revision is not supported.
pub const UNSUPPORTED_VERSION: i64 = -32022;

const INVALID_PARAMS: i64 = -32602;

/// The client metadata of a modern request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestMeta {
    /// The client's capabilities, as written.
    pub capabilities: Box<str>,
    /// The client's info, as written.
    pub info: Option<Box<str>>,
    /// The minimum level of log messages that the client wants meanwhile; `None` for no messages.
    pub level: Option<Level>,
}

impl RequestMeta {
    /// Returns true if the client knows tasks.
    pub fn has_tasks(&self) -> bool {
        has_tasks(&self.capabilities)
    }
}

/// The error for an invalid request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// The JSON-RPC error code.
    pub code: i64,
    /// The text for people.
    pub message: String,
    /// The `data` for programs, as JSON.
    pub data: Option<String>,
}

impl RequestError {
    /// Creates an error without `data`.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Returns the error as a response to request `id`.
    pub fn line(&self, id: &str) -> Vec<u8> {
        let data = self.data.as_ref().map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
        let (code, message) = (self.code, quoted(&self.message));
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}{data}}}}}"#
        )
        .into_bytes()
    }
}

/// Returns the error for a modern client whose server required the capability `needed`, which the
/// client lacks, and then failed with this outcome. The outcome is included.
pub fn missing_capability_error(needed: &str, outcome: Outcome<'_>) -> Option<RequestError> {
    let (word, said) = match outcome {
        Outcome::Error(error) => ("error", error),
        Outcome::Result(result) => {
            memchr::memmem::find(result.as_bytes(), b"isError")?; // Very few results contain it.
            (Members::read(result)?.get("isError") == Some("true")).then_some(("result", result))?
        }
    };
    let message = "the server required a capability that the client lacks, and failed";
    let data = format!(r#"{{"requiredCapabilities":{needed},"{word}":{said}}}"#);
    Some(RequestError { data: Some(data), ..RequestError::new(MISSING_CAPABILITY, message) })
}

/// Reads what a request says of its client from its `_meta`. Returns `None` for a legacy request,
/// unless it `must_be` modern.
pub fn read(
    method: &str,
    meta: Option<&str>,
    must_be: bool,
) -> Result<Option<RequestMeta>, RequestError> {
    let is_ours =
        |meta: &&str| memchr::memmem::find(meta.as_bytes(), b"modelcontextprotocol").is_some();
    let members = meta.filter(is_ours).and_then(Members::read).unwrap_or_default();
    let version = members.get(VERSION);
    let is_modern = must_be || matches!(method, DISCOVER | LISTEN) || version.is_some();
    if !is_modern || (method == "initialize" && !must_be) {
        return Ok(None);
    }
    let text = version.and_then(text_of);
    let Some(version) = text else { return Err(missing(VERSION, "the revision, as a text")) };
    if version != MODERN {
        return Err(unsupported(&version));
    }
    let capabilities = members.get(CAPABILITIES).filter(|it| it.starts_with('{'));
    let capabilities = capabilities
        .ok_or_else(|| missing(CAPABILITIES, "what the client can do, as an object"))?;
    let level = match members.get(LOG_LEVEL) {
        None => None,
        Some(written) => {
            let level = text_of(written).and_then(|word| Level::parse(&word));
            let words = Level::words();
            let wrong = || {
                RequestError::new(INVALID_PARAMS, format!("`{LOG_LEVEL}` is not one of {words}"))
            };
            Some(level.ok_or_else(wrong)?)
        }
    };
    let info = members.get(CLIENT_INFO).map(Into::into);
    Ok(Some(RequestMeta { capabilities: capabilities.into(), info, level }))
}

/// Returns the revision that a request names, if it does.
pub fn version_of(meta: Option<&str>) -> Option<Cow<'_, str>> {
    Members::read(meta?)?.get(VERSION).and_then(text_of)
}

/// Returns the error for an unsupported revision.
pub(crate) fn unsupported(version: &str) -> RequestError {
    let message =
        format!("revision `{}` of MCP is not supported", xy_protocol::control::quoted(version));
    let data = format!(r#"{{"supported":[{}],"requested":{}}}"#, versions(), quoted(version));
    RequestError { data: Some(data), ..RequestError::new(UNSUPPORTED_VERSION, message) }
}

/// Returns all supported revisions as the elements of a JSON list.
pub(crate) fn versions() -> String {
    quoted(MODERN)
}

fn missing(key: &str, what: &str) -> RequestError {
    RequestError::new(INVALID_PARAMS, format!("`_meta` has no `{key}`: {what}"))
}

/// Returns `_meta` for a legacy server, without the keys of the modern revision. `token` replaces
/// the progress token.
pub fn meta_for_legacy(meta: &str, token: Option<&str>) -> Option<String> {
    let is_ours = |key: &str| [VERSION, CAPABILITIES, CLIENT_INFO, LOG_LEVEL].contains(&key);
    let members = Members::read(meta)?.without(is_ours);
    Some(with_token(&members, token))
}

/// Returns `_meta` for a modern server: the members `before`, with another progress token, and
/// `request_meta`.
pub fn meta_for_modern(
    before: Option<&str>,
    token: Option<&str>,
    request_meta: &RequestMeta,
) -> String {
    let before = before.and_then(Members::read).unwrap_or_default();
    let before = with_token(&before, token);
    let mut all =
        format!(r#"{{"{VERSION}":"{MODERN}","{CAPABILITIES}":{}"#, request_meta.capabilities);
    if let Some(info) = &request_meta.info {
        let _ = write!(all, r#","{CLIENT_INFO}":{info}"#); // Writing to a string cannot fail.
    }
    if let Some(level) = request_meta.level {
        let _ = write!(all, r#","{LOG_LEVEL}":"{level}""#);
    }
    if before.len() > 2 {
        all.push(',');
    }
    all.push_str(&before[1..]);
    all
}

fn with_token(members: &Members<'_>, token: Option<&str>) -> String {
    let mut all = String::from("{");
    for (key, value) in members.iter() {
        if all.len() > 1 {
            all.push(',');
        }
        let value = if key == "progressToken" { token.unwrap_or(value) } else { value };
        let _ = write!(all, "{}:{value}", quoted(key)); // Writing to a string cannot fail.
    }
    all.push('}');
    all
}

/// Returns the capabilities of a legacy client for a modern server. Tasks are dropped, as they
/// differ between the revisions.
pub fn capabilities_from_legacy(capabilities: &str) -> String {
    let Some(members) = Members::read(capabilities) else { return "{}".to_owned() };
    without_tasks(&members.without(|key| key == "tasks"))
}

/// Returns the `serverInfo` in a result of `server/discover`.
pub(crate) fn server_info(result: &str) -> Option<&str> {
    let members = Members::read(result)?;
    let meta = members.get("_meta").and_then(Members::read);
    meta.and_then(|meta| meta.get(SERVER_INFO)).or_else(|| members.get("serverInfo"))
}

/// Returns true if results of the method say how long they may be cached.
fn is_cacheable(method: &str) -> bool {
    let is_list = crate::kind::Kind::listed_by(method).is_some();
    is_list || matches!(method, "resources/read" | DISCOVER)
}

/// Returns the edits that complete a legacy server's result for a modern client: slices and their
/// replacements.
pub fn completed<'t>(result: &'t str, method: &str, info: Option<&str>) -> Vec<(&'t str, String)> {
    let Some(members) = Members::read(result) else { return Vec::new() };
    let mut changed = Vec::new();
    let mut added: Vec<String> = Vec::new();
    let mut add = |key: &str, value: &str| {
        if members.get(key).is_none() {
            added.push(format!(r#""{key}":{value}"#));
        }
    };
    add("resultType", r#""complete""#);
    // Legacy servers know no other kinds, so their value means nothing.
    let kind = members.get("resultType").filter(|it| *it != r#""complete""#);
    changed.extend(kind.map(|kind| (kind, r#""complete""#.to_owned())));
    if is_cacheable(method) {
        add("ttlMs", "0");
        add("cacheScope", r#""private""#);
    }
    let info = info.map(|info| format!(r#"{{"{SERVER_INFO}":{info}"#));
    match (members.get("_meta"), info) {
        (None, Some(info)) => add("_meta", &format!("{info}}}")),
        (Some(meta), Some(info)) => {
            let inside = Members::read(meta);
            if let Some(inside) = inside.filter(|it| it.get(SERVER_INFO).is_none()) {
                let comma = if inside.is_empty() { "" } else { "," };
                changed.push((&meta[..1], format!("{info}{comma}")));
            }
        }
        (_, None) => {}
    }
    if !added.is_empty() {
        let comma = if members.is_empty() { "" } else { "," };
        changed.push((&result[..1], format!("{{{}{comma}", added.join(","))));
    }
    changed
}

/// Completes a result of xy itself for a modern client. `info` is its server, if not xy.
pub fn complete_own(result: &str, method: &str, info: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let xy_info = format!(r#"{{"name":"xy","title":"xy","version":"{version}"}}"#);
    let mut edits = Edits::of(result.as_bytes());
    for (part, new) in completed(result, method, Some(info.unwrap_or(&xy_info))) {
        edits.replace(part, new);
    }
    String::from_utf8_lossy(&edits.to_vec()).into_owned()
}

/// Returns the code of an error as written, and its replacement for a modern client, if there is
/// one.
pub fn code_from_legacy(error: &str) -> Option<(&str, &'static str)> {
    let code = Members::read(error)?.get("code")?;
    match code {
        "-32002" => Some((code, "-32602")),
        "-32042" => Some((code, "-32603")), // The client could not be sent the server's request.
        _ => None,
    }
}

/// Returns a legacy server's introduction as a result of `server/discover`. Its tasks are dropped,
/// as they differ between the revisions.
pub fn discovered_from(introduction: &str) -> String {
    let members = Members::read(introduction).unwrap_or_default();
    let capabilities = members.get("capabilities").and_then(Members::read).unwrap_or_default();
    let capabilities = capabilities.without(|key| key == "tasks");
    let instructions = members.get("instructions").filter(|it| it.starts_with('"'));
    let instructions = instructions.map(|it| format!(r#","instructions":{it}"#));
    let info = members.get("serverInfo").filter(|it| it.starts_with('{'));
    let meta = info.map(|info| format!(r#","_meta":{{"{SERVER_INFO}":{info}}}"#));
    format!(
        r#"{{"resultType":"complete","supportedVersions":[{}],"capabilities":{capabilities}{},"ttlMs":0,"cacheScope":"private"{}}}"#,
        versions(),
        instructions.unwrap_or_default(),
        meta.unwrap_or_default()
    )
}

/// Returns a modern server's introduction as a result of `initialize`.
pub fn introduced_from(name: &str, discovered: &str, version: &str) -> String {
    let members = Members::read(discovered).unwrap_or_default();
    let capabilities = members.get("capabilities").and_then(Members::read).unwrap_or_default();
    let info = server_info(discovered).map(str::to_owned);
    let info =
        info.unwrap_or_else(|| format!(r#"{{"name":{},"version":"unknown"}}"#, quoted(name)));
    let instructions = members.get("instructions").filter(|it| it.starts_with('"'));
    let instructions = instructions.map(|it| format!(r#","instructions":{it}"#));
    format!(
        r#"{{"protocolVersion":"{version}","capabilities":{},"serverInfo":{info}{}}}"#,
        without_tasks(&capabilities),
        instructions.unwrap_or_default()
    )
}

/// Returns true if capabilities, as written, include the tasks extension.
pub(crate) fn has_tasks(capabilities: &str) -> bool {
    // The cheap check for most capabilities.
    memchr::memmem::find(capabilities.as_bytes(), TASKS.as_bytes()).is_some()
        && Members::read(capabilities)
            .and_then(|members| Members::read(members.get("extensions")?))
            .is_some_and(|extensions| extensions.get(TASKS).is_some_and(|it| it.starts_with('{')))
}

/// Returns true if a result of `server/discover` offers the tasks extension.
pub fn offers_tasks(discovered: &str) -> bool {
    let members = Members::read(discovered);
    members.is_some_and(|it| it.get("capabilities").is_some_and(has_tasks))
}

/// Adds the tasks extension to xy's own result of `server/discover`.
pub fn with_tasks(discovered: &str) -> String {
    let capabilities = Members::read(discovered).and_then(|it| it.get("capabilities"));
    let Some(before) = capabilities.filter(|it| it.starts_with('{')) else {
        return discovered.to_owned();
    };
    let comma = if before == "{}" { "" } else { "," };
    let mut edits = Edits::of(discovered.as_bytes());
    edits.replace(
        &before[..1],
        format!("{}{comma}", &TASKS_CAPABILITIES[..TASKS_CAPABILITIES.len() - 1]),
    );
    String::from_utf8_lossy(&edits.to_vec()).into_owned()
}

/// Returns the error for a request about tasks that does not declare the extension.
pub fn missing_tasks_error() -> RequestError {
    let message = format!("the request does not declare the extension `{TASKS}`");
    let data = format!(r#"{{"requiredCapabilities":{TASKS_CAPABILITIES}}}"#);
    RequestError { data: Some(data), ..RequestError::new(MISSING_CAPABILITY, message) }
}

/// Returns capabilities without the tasks extension, which both sides would have to know.
pub fn without_tasks(capabilities: &Members<'_>) -> String {
    let extensions = capabilities.get("extensions").and_then(Members::read);
    let Some(extensions) = extensions else { return capabilities.to_string() };
    let rest = extensions.without(|key| key == TASKS);
    let others = capabilities.clone().without(|key| key == "extensions").to_string();
    if rest.is_empty() {
        return others;
    }
    let comma = if others.len() > 2 { "," } else { "" };
    format!(r#"{{"extensions":{rest}{comma}{}"#, &others[1..])
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots" : {}},"io.modelcontextprotocol/logLevel":"error","progressToken":"p","x":1.50}"#;

    #[test]
    fn modern_meta_is_recognized() {
        let read = |method, meta| read(method, meta, false);
        assert_eq!(read("tools/list", None), Ok(None));
        assert_eq!(read("tools/list", Some(r#"{"progressToken":1}"#)), Ok(None));
        assert_eq!(read("initialize", Some(META)), Ok(None));
        let request_meta = read("tools/list", Some(META)).unwrap().unwrap();
        assert_eq!(&*request_meta.capabilities, r#"{"roots" : {}}"#);
        assert_eq!((request_meta.info, request_meta.level), (None, Level::parse("error")));
    }

    #[test]
    fn invalid_modern_meta_is_an_error() {
        let code = |meta: &str| read(DISCOVER, Some(meta), true).unwrap_err().code;
        assert_eq!(code("{}"), INVALID_PARAMS);
        assert_eq!(code(&META.replace("2026-07-28", "2025-11-25")), UNSUPPORTED_VERSION);
        assert_eq!(code(&META.replace(r#"{"roots" : {}}"#, "7")), INVALID_PARAMS);
        assert_eq!(code(&META.replace("error", "loud")), INVALID_PARAMS);
        assert!(read("tools/list", None, true).is_err());
        let wrong = unsupported("1900-01-01");
        let line = String::from_utf8(wrong.line("7")).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["error"]["data"]["requested"], "1900-01-01");
        assert_eq!(line["error"]["data"]["supported"][0], MODERN);
    }

    #[test]
    fn modern_meta_is_removed_for_legacy_servers() {
        let meta = meta_for_legacy(META, Some("9")).unwrap();
        assert_eq!(meta, r#"{"progressToken":9,"x":1.50}"#);
    }

    #[test]
    fn modern_meta_is_added_for_modern_servers() {
        let capabilities = capabilities_from_legacy(r#"{"roots":{},"tasks":{"list":{}}}"#).into();
        let request_meta =
            RequestMeta { capabilities, info: Some(r#"{"name":"c"}"#.into()), level: None };
        let expected = |more: &str| {
            format!(
                r#"{{"{VERSION}":"{MODERN}","{CAPABILITIES}":{{"roots":{{}}}},"{CLIENT_INFO}":{{"name":"c"}}{more}}}"#
            )
        };
        assert_eq!(meta_for_modern(None, None, &request_meta), expected(""));
        let before = r#"{"progressToken":"p","x":1.50}"#;
        let after = meta_for_modern(Some(before), Some("9"), &request_meta);
        assert_eq!(after, expected(r#","progressToken":9,"x":1.50"#));
    }
    #[test]
    fn legacy_result_gets_only_missing_modern_members() {
        let complete = |result: &str, method| {
            let mut edits = Edits::of(result.as_bytes());
            for (part, new) in completed(result, method, Some(r#"{"name":"s"}"#)) {
                edits.replace(part, new);
            }
            String::from_utf8(edits.to_vec()).unwrap()
        };
        let meta = r#""_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}"#;
        assert_eq!(
            complete(r#"{ "x" : 1.50 }"#, "tools/call"),
            format!(r#"{{"resultType":"complete",{meta}}}, "x" : 1.50 }}"#)
        );
        assert_eq!(
            complete(r#"{"tools":[],"ttlMs":7,"_meta":{"a":1}}"#, "tools/list"),
            format!(
                r#"{{"resultType":"complete","cacheScope":"private","tools":[],"ttlMs":7,{meta},"a":1}}}}"#
            )
        );
        assert_eq!(complete("{}", "x"), format!(r#"{{"resultType":"complete",{meta}}}}}"#));
        let whole = format!(r#"{{"resultType":"complete",{meta}}}}}"#);
        assert_eq!(complete(&whole, "tools/call"), whole);
        let odd = whole.replace("complete", "input_required");
        assert_eq!(complete(&odd, "tools/call"), whole, "it knows no such thing");
        assert_eq!(complete("7", "x"), "7");
    }

    #[test]
    fn introduction_is_translated_between_eras() {
        let legacy = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"x":1.0},"tasks":{}},"serverInfo":{"name":"s"},"instructions":"do"}"#;
        let modern = discovered_from(legacy);
        let read: Value = serde_json::from_str(&modern).unwrap();
        assert_eq!(read["capabilities"], serde_json::json!({"tools": {"x": 1.0}}));
        assert_eq!((&read["instructions"], &read["ttlMs"]), (&"do".into(), &0.into()));
        assert_eq!(server_info(&modern), Some(r#"{"name":"s"}"#));
        let back = introduced_from("s", &modern, "2025-06-18");
        assert_eq!(
            back,
            r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"x":1.0}},"serverInfo":{"name":"s"},"instructions":"do"}"#
        );
        let tasks = r#"{"capabilities":{"extensions":{"io.modelcontextprotocol/tasks":{},"y":{}},"tools":{}}}"#;
        let back = introduced_from("s", tasks, "2025-06-18");
        assert!(back.contains(r#"{"extensions":{"y":{}},"tools":{}}"#), "{back}");
        assert!(back.contains(r#""serverInfo":{"name":"s","version":"unknown"}"#), "{back}");
    }

    #[test]
    fn tasks_extension_is_declared_and_offered() {
        assert!(has_tasks(TASKS_CAPABILITIES));
        let odd =
            [r#"{"extensions":{"x":"TASKS"}}"#, r#"{"TASKS":{}}"#, r#"{"extensions":["TASKS"]}"#];
        for odd in odd.iter().chain(&[r#"{"extensions":{"TASKS":7}}"#, "{}", "7", ""]) {
            assert!(!has_tasks(&odd.replace("TASKS", TASKS)), "{odd}");
        }
        for before in [r#"{"capabilities":{"a":1.50},"x":1}"#, r#"{"capabilities":{}}"#] {
            let after = with_tasks(before);
            assert!(offers_tasks(&after) && !offers_tasks(before), "{after}");
            let after: Value = serde_json::from_str(&after).unwrap();
            assert_eq!(after["capabilities"]["extensions"], serde_json::json!({ TASKS: {} }));
        }
        let wrong = missing_tasks_error();
        let data: Value = serde_json::from_str(&wrong.data.unwrap()).unwrap();
        assert!(has_tasks(&data["requiredCapabilities"].to_string()));
    }
}
