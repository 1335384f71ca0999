//! What every result has besides in the modern era. The rest of it stays the text it was.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::catalog::SERVER_INFO;
use xy_testkit::json::Members;

/// A result of this method, with all that a modern one has. What it has already stays.
pub(crate) fn result(method: &str, result: &str) -> String {
    let mut dressed = with_member(result, "resultType", r#""complete""#);
    if Members::of(result).is_some_and(|it| !it.has("resultType")) {
        for (name, value) in kept(method).into_iter().flatten() {
            dressed = with_member(&dressed, name, value);
        }
    }
    with_meta(&dressed, "io.modelcontextprotocol/serverInfo", SERVER_INFO)
}

/// How long and by whom a complete result of this method may be kept.
fn kept(method: &str) -> Option<[(&'static str, &'static str); 2]> {
    let (millis, scope) = match method {
        "server/discover" => ("3600000", r#""public""#),
        "tools/list" | "prompts/list" => ("60000", r#""public""#),
        "resources/list" | "resources/templates/list" => ("1000", r#""private""#),
        "resources/read" => ("0", r#""private""#),
        _ => return None,
    };
    Some([("ttlMs", millis), ("cacheScope", scope)])
}

/// An object with one more entry in its `_meta`.
pub(crate) fn with_meta(object: &str, name: &str, value: &str) -> String {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(object).unwrap_or_default();
    let Some(meta) = members.get("_meta").map(|it| it.get()) else {
        return with_member(object, "_meta", &format!(r#"{{"{name}":{value}}}"#));
    };
    let start = meta.as_ptr().addr() - object.as_ptr().addr(); // It is a part of the text.
    let (before, after) = (&object[..start], &object[start + meta.len()..]);
    format!("{before}{}{after}", with_member(meta, name, value))
}

/// An object with one more member at its end, unless it is there already; what is no object
/// stays as it is.
fn with_member(object: &str, name: &str, value: &str) -> String {
    let members = Members::of(object).filter(|it| !it.has(name));
    let (Some(_), Some(end)) = (members, object.rfind('}')) else {
        return object.to_owned();
    };
    let before = object[..end].trim_end();
    let comma = if before.ends_with('{') { "" } else { "," };
    format!(r#"{before}{comma}"{name}":{value}}}"#)
}
