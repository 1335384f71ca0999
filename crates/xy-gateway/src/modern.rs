//! The words of the revision without sessions: what each of its requests says of its client,
//! and what each of its results says besides. Pure.

use std::borrow::Cow;
use std::fmt::Write as _;

use xy_mcp::edit::Edits;
use xy_mcp::envelope::{Outcome, text_of};
use xy_mcp::members::Members;

use crate::era::MODERN;
use crate::level::Level;
use crate::names::quoted;

/// Keys of `_meta` in a request.
pub(crate) const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub(crate) const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub(crate) const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// A key of `_meta` in a result.
pub(crate) const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// A key of `_meta` in what is told to a listener.
pub(crate) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// The extension by which results can be fetched later.
pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";

/// What somebody can do who can fetch results later, and nothing else.
pub(crate) const CAN_TASKS: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// What only this revision asks.
pub(crate) const DISCOVER: &str = "server/discover";
pub(crate) const LISTEN: &str = "subscriptions/listen";

/// The head of a request is not what its body says.
pub(crate) const HEADER_MISMATCH: i64 = -32020;
/// A client cannot do what a request needs.
pub(crate) const MISSING_CAPABILITY: i64 = -32021;
/// A revision that is not spoken here.
pub(crate) const UNSUPPORTED_VERSION: i64 = -32022;

const INVALID_PARAMS: i64 = -32602;

/// What a request says of its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestMeta {
    /// What the client can do, as it was written.
    pub(crate) capabilities: Box<str>,
    /// Who it is, as it was written.
    pub(crate) info: Option<Box<str>>,
    /// The least it wants to know of what the server logs meanwhile; nothing, if it says none.
    pub(crate) level: Option<Level>,
}

impl RequestMeta {
    /// Whether the client knows tasks.
    pub(crate) fn has_tasks(&self) -> bool {
        has_tasks(&self.capabilities)
    }
}

/// Why a request cannot be taken as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) code: i64,
    pub(crate) message: String,
    /// More for programs, as JSON.
    pub(crate) data: Option<String>,
}

impl Wrong {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// As the answer to request `id`.
    pub(crate) fn line(&self, id: &str) -> Vec<u8> {
        let data = self.data.as_ref().map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
        let (code, message) = (self.code, quoted(&self.message));
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}{data}}}}}"#
        )
        .into_bytes()
    }
}

/// What a modern client is told if a server has wanted of it what it cannot do (`needed`, as
/// the text of capabilities) and then failed, as this outcome says. That goes with it.
pub(crate) fn failed_without(needed: &str, outcome: Outcome<'_>) -> Option<Wrong> {
    let (word, said) = match outcome {
        Outcome::Error(error) => ("error", error),
        Outcome::Result(result) => {
            memchr::memmem::find(result.as_bytes(), b"isError")?; // Hardly any result has it.
            (Members::read(result)?.get("isError") == Some("true")).then_some(("result", result))?
        }
    };
    let message = "the server wanted of the client what it cannot do, and failed without";
    let data = format!(r#"{{"requiredCapabilities":{needed},"{word}":{said}}}"#);
    Some(Wrong { data: Some(data), ..Wrong::new(MISSING_CAPABILITY, message) })
}

/// Reads what a request says of its client, from the text of its params' `_meta`. `None` if it
/// is of a revision that begins with `initialize`, which it may not be if it `must_be` modern.
pub(crate) fn read(
    method: &str,
    meta: Option<&str>,
    must_be: bool,
) -> Result<Option<RequestMeta>, Wrong> {
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
            let level = text_of(written).and_then(|word| Level::read(&word));
            let words = Level::words();
            let wrong =
                || Wrong::new(INVALID_PARAMS, format!("`{LOG_LEVEL}` is not one of {words}"));
            Some(level.ok_or_else(wrong)?)
        }
    };
    let info = members.get(CLIENT_INFO).map(Into::into);
    Ok(Some(RequestMeta { capabilities: capabilities.into(), info, level }))
}

/// The revision that a request says it is of, if it says so.
pub(crate) fn version_of(meta: Option<&str>) -> Option<Cow<'_, str>> {
    Members::read(meta?)?.get(VERSION).and_then(text_of)
}

/// This revision is not spoken here.
pub(crate) fn unsupported(version: &str) -> Wrong {
    let message =
        format!("revision `{}` of MCP is not spoken here", xy_protocol::control::quoted(version));
    let data = format!(r#"{{"supported":[{}],"requested":{}}}"#, versions(), quoted(version));
    Wrong { data: Some(data), ..Wrong::new(UNSUPPORTED_VERSION, message) }
}

/// All revisions that a request may say it is of, as they stand in a list.
pub(crate) fn versions() -> String {
    quoted(MODERN)
}

fn missing(key: &str, what: &str) -> Wrong {
    Wrong::new(INVALID_PARAMS, format!("`_meta` has no `{key}`: {what}"))
}

/// The same `_meta` for a server that begins with `initialize`: without what only this revision
/// says. `token` replaces that for progress.
pub(crate) fn meta_for_legacy(meta: &str, token: Option<&str>) -> Option<String> {
    let is_ours = |key: &str| [VERSION, CAPABILITIES, CLIENT_INFO, LOG_LEVEL].contains(&key);
    let members = Members::read(meta)?.without(is_ours);
    Some(with_token(&members, token))
}

/// The `_meta` of a request by which it says all that this revision wants: what was there
/// before, if anything, and `manner`.
pub(crate) fn meta_for_modern(
    before: Option<&str>,
    token: Option<&str>,
    manner: &RequestMeta,
) -> String {
    let before = before.and_then(Members::read).unwrap_or_default();
    let before = with_token(&before, token);
    let mut all = format!(r#"{{"{VERSION}":"{MODERN}","{CAPABILITIES}":{}"#, manner.capabilities);
    if let Some(info) = &manner.info {
        let _ = write!(all, r#","{CLIENT_INFO}":{info}"#); // A string takes everything.
    }
    if let Some(level) = manner.level {
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
        let _ = write!(all, "{}:{value}", quoted(key)); // A string takes everything.
    }
    all.push('}');
    all
}

/// What a client of a revision with `initialize` says that it can do, as this revision has it:
/// tasks are another thing here.
pub(crate) fn capabilities_from_legacy(capabilities: &str) -> String {
    let Some(members) = Members::read(capabilities) else { return "{}".to_owned() };
    without_tasks(&members.without(|key| key == "tasks"))
}

/// Who the server is that answered `backend/discover` like this.
pub(crate) fn server_info(result: &str) -> Option<&str> {
    let members = Members::read(result)?;
    let meta = members.get("_meta").and_then(Members::read);
    meta.and_then(|meta| meta.get(SERVER_INFO)).or_else(|| members.get("serverInfo"))
}

/// Whether results of a method say for how long they hold.
fn is_cacheable(method: &str) -> bool {
    let is_list = crate::catalog::Kind::listed_by(method).is_some();
    is_list || matches!(method, "resources/read" | DISCOVER)
}

/// What is to be changed of an older server's result, so that a client of this revision can
/// read it: a part of it, and what stands there then.
pub(crate) fn completed<'t>(
    result: &'t str,
    method: &str,
    info: Option<&str>,
) -> Vec<(&'t str, String)> {
    let Some(members) = Members::read(result) else { return Vec::new() };
    let mut changed = Vec::new();
    let mut added: Vec<String> = Vec::new();
    let mut add = |key: &str, value: &str| {
        if members.get(key).is_none() {
            added.push(format!(r#""{key}":{value}"#));
        }
    };
    add("resultType", r#""complete""#);
    // An older server knows no other kinds: what it calls so is its own affair.
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

/// A result of our own for a client of this revision; `info` is whose it is, if not xy's.
pub(crate) fn completed_own(result: &str, method: &str, info: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let ours = format!(r#"{{"name":"xy","title":"xy","version":"{version}"}}"#);
    let mut edits = Edits::of(result.as_bytes());
    for (part, new) in completed(result, method, Some(info.unwrap_or(&ours))) {
        edits.replace(part, new);
    }
    String::from_utf8_lossy(&edits.to_vec()).into_owned()
}

/// The code of an error, as it is written, and what it is for a client of this revision, if
/// that is another.
pub(crate) fn code_from_legacy(error: &str) -> Option<(&str, &'static str)> {
    let code = Members::read(error)?.get("code")?;
    match code {
        "-32002" => Some((code, "-32602")),
        "-32042" => Some((code, "-32603")), // It could not be asked for what the server wants.
        _ => None,
    }
}

/// How a server that was greeted with `initialize` introduces itself to a client that does not
/// know that. Its tasks are another thing than those of this revision.
pub(crate) fn discovered_from(introduction: &str) -> String {
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

/// How a server of this revision introduces itself to a client that begins with `initialize`.
pub(crate) fn introduced_from(name: &str, discovered: &str, version: &str) -> String {
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

/// Whether capabilities, as they are written, have the extension of tasks.
pub(crate) fn has_tasks(capabilities: &str) -> bool {
    // Most have not.
    memchr::memmem::find(capabilities.as_bytes(), TASKS.as_bytes()).is_some()
        && Members::read(capabilities)
            .and_then(|members| Members::read(members.get("extensions")?))
            .is_some_and(|extensions| extensions.get(TASKS).is_some_and(|it| it.starts_with('{')))
}

/// Whether a server that answered `backend/discover` like this has it.
pub(crate) fn offers_tasks(discovered: &str) -> bool {
    let members = Members::read(discovered);
    members.is_some_and(|it| it.get("capabilities").is_some_and(has_tasks))
}

/// Our own answer to `backend/discover`, which offers no extension, with that of tasks.
pub(crate) fn with_tasks(discovered: &str) -> String {
    let capabilities = Members::read(discovered).and_then(|it| it.get("capabilities"));
    let Some(before) = capabilities.filter(|it| it.starts_with('{')) else {
        return discovered.to_owned();
    };
    let comma = if before == "{}" { "" } else { "," };
    let mut edits = Edits::of(discovered.as_bytes());
    edits.replace(&before[..1], format!("{}{comma}", &CAN_TASKS[..CAN_TASKS.len() - 1]));
    String::from_utf8_lossy(&edits.to_vec()).into_owned()
}

/// What is told to who asks about tasks and has not said that it knows them.
pub(crate) fn knows_no_tasks() -> Wrong {
    let message = format!("the request does not declare the extension `{TASKS}`");
    let data = format!(r#"{{"requiredCapabilities":{CAN_TASKS}}}"#);
    Wrong { data: Some(data), ..Wrong::new(MISSING_CAPABILITY, message) }
}

/// Capabilities without the extension that both sides would have to know.
pub(crate) fn without_tasks(capabilities: &Members<'_>) -> String {
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
    fn a_request_says_by_itself_which_revision_it_is_of() {
        let read = |method, meta| read(method, meta, false);
        assert_eq!(read("tools/list", None), Ok(None));
        assert_eq!(read("tools/list", Some(r#"{"progressToken":1}"#)), Ok(None));
        assert_eq!(read("initialize", Some(META)), Ok(None));
        let manner = read("tools/list", Some(META)).unwrap().unwrap();
        assert_eq!(&*manner.capabilities, r#"{"roots" : {}}"#);
        assert_eq!((manner.info, manner.level), (None, Level::read("error")));
    }

    #[test]
    fn what_is_missing_or_wrong_is_said() {
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
    fn what_only_this_revision_says_does_not_reach_an_older_server() {
        let meta = meta_for_legacy(META, Some("9")).unwrap();
        assert_eq!(meta, r#"{"progressToken":9,"x":1.50}"#);
    }

    #[test]
    fn what_this_revision_wants_is_added() {
        let capabilities = capabilities_from_legacy(r#"{"roots":{},"tasks":{"list":{}}}"#).into();
        let manner =
            RequestMeta { capabilities, info: Some(r#"{"name":"c"}"#.into()), level: None };
        let expected = |more: &str| {
            format!(
                r#"{{"{VERSION}":"{MODERN}","{CAPABILITIES}":{{"roots":{{}}}},"{CLIENT_INFO}":{{"name":"c"}}{more}}}"#
            )
        };
        assert_eq!(meta_for_modern(None, None, &manner), expected(""));
        let before = r#"{"progressToken":"p","x":1.50}"#;
        let after = meta_for_modern(Some(before), Some("9"), &manner);
        assert_eq!(after, expected(r#","progressToken":9,"x":1.50"#));
    }
    #[test]
    fn a_result_of_an_older_server_gets_what_it_lacks_and_nothing_else() {
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
    fn each_server_is_introduced_in_the_words_of_the_client() {
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
    fn tasks_are_an_extension_that_is_declared_and_offered() {
        assert!(has_tasks(CAN_TASKS));
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
        let wrong = knows_no_tasks();
        let data: Value = serde_json::from_str(&wrong.data.unwrap()).unwrap();
        assert!(has_tasks(&data["requiredCapabilities"].to_string()));
    }
}
