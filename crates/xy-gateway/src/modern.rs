//! The words of the revision without sessions: what each of its requests says of its client,
//! and what each of its results says besides. Pure.

use std::borrow::Cow;

use xy_mcp::envelope::text_of;
use xy_mcp::members::Members;

use crate::era::{MODERN, VERSIONS};
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
pub(crate) struct Manner {
    /// What the client can do, as it was written.
    pub(crate) capabilities: Box<str>,
    /// Who it is, as it was written.
    pub(crate) info: Option<Box<str>>,
    /// The least it wants to know of what the server logs meanwhile; nothing, if it says none.
    pub(crate) level: Option<Level>,
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

/// Reads what a request says of its client, from the text of its params' `_meta`. `None` if it
/// is of a revision that begins with `initialize`, which it may not be if it `must_be` modern.
pub(crate) fn read(
    method: &str,
    meta: Option<&str>,
    must_be: bool,
) -> Result<Option<Manner>, Wrong> {
    let members = meta.and_then(Members::read).unwrap_or_default();
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
    Ok(Some(Manner { capabilities: capabilities.into(), info, level }))
}

/// The revision that a request says it is of, if it says so.
pub(crate) fn version_of<'t>(meta: Option<&'t str>) -> Option<Cow<'t, str>> {
    Members::read(meta?)?.get(VERSION).and_then(text_of)
}

/// This revision is not spoken here.
pub(crate) fn unsupported(version: &str) -> Wrong {
    let message =
        format!("revision `{}` of MCP is not spoken here", xy_protocol::control::quoted(version));
    let data = format!(r#"{{"supported":[{}],"requested":{}}}"#, versions(), quoted(version));
    Wrong { data: Some(data), ..Wrong::new(UNSUPPORTED_VERSION, message) }
}

/// All revisions that are spoken here, the latest first, as they stand in a list.
pub(crate) fn versions() -> String {
    let all = std::iter::once(MODERN).chain(VERSIONS.into_iter().rev());
    let all: Vec<String> = all.map(quoted).collect();
    all.join(",")
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
    manner: &Manner,
) -> String {
    let before = before.and_then(Members::read).unwrap_or_default();
    let before = with_token(&before, token);
    let mut all = format!(r#"{{"{VERSION}":"{MODERN}","{CAPABILITIES}":{}"#, manner.capabilities);
    if let Some(info) = &manner.info {
        all.push_str(&format!(r#","{CLIENT_INFO}":{info}"#));
    }
    if let Some(level) = manner.level {
        all.push_str(&format!(r#","{LOG_LEVEL}":"{level}""#));
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
        all.push_str(&format!("{}:{value}", quoted(key)));
    }
    all.push('}');
    all
}

/// What a client of a revision with `initialize` says that it can do, as this revision has it:
/// tasks are another thing here.
pub(crate) fn capabilities_from_legacy(capabilities: &str) -> String {
    let Some(members) = Members::read(capabilities) else { return "{}".to_owned() };
    members.without(|key| key == "tasks").to_string()
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
        let manner = Manner { capabilities, info: Some(r#"{"name":"c"}"#.into()), level: None };
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
}
