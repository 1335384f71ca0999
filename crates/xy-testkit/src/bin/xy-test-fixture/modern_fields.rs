//! Fields that the modern era adds to each result. All other text stays unchanged.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::catalog::SERVER_INFO;
use xy_testkit::json::Members;

/// Adds the fields of the modern era to a result of `method`. Existing fields stay unchanged.
pub(crate) fn add_to_result(method: &str, result: &str) -> String {
    let mut complete = with_member(result, "resultType", r#""complete""#);
    if Members::of(result).is_some_and(|it| !it.has("resultType")) {
        for (name, value) in cache_fields(method).into_iter().flatten() {
            complete = with_member(&complete, name, value);
        }
    }
    with_meta(&complete, "io.modelcontextprotocol/serverInfo", SERVER_INFO)
}

/// Returns the cache fields for a complete result of this method: lifetime and scope.
fn cache_fields(method: &str) -> Option<[(&'static str, &'static str); 2]> {
    let (millis, scope) = match method {
        "server/discover" => ("3600000", r#""public""#),
        "tools/list" | "prompts/list" => ("60000", r#""public""#),
        "resources/list" | "resources/templates/list" => ("1000", r#""private""#),
        "resources/read" => ("0", r#""private""#),
        _ => return None,
    };
    Some([("ttlMs", millis), ("cacheScope", scope)])
}

/// Adds an entry to the `_meta` of a JSON object.
pub(crate) fn with_meta(object: &str, name: &str, value: &str) -> String {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(object).unwrap_or_default();
    let Some(meta) = members.get("_meta").map(|it| it.get()) else {
        return with_member(object, "_meta", &format!(r#"{{"{name}":{value}}}"#));
    };
    let start = meta.as_ptr().addr() - object.as_ptr().addr(); // `meta` borrows from `object`.
    let (before, after) = (&object[..start], &object[start + meta.len()..]);
    format!("{before}{}{after}", with_member(meta, name, value))
}

/// Appends a member to a JSON object. Returns the text unchanged if the member exists or the
/// text is no object.
fn with_member(object: &str, name: &str, value: &str) -> String {
    let members = Members::of(object).filter(|it| !it.has(name));
    let (Some(_), Some(end)) = (members, object.rfind('}')) else {
        return object.to_owned();
    };
    let before = object[..end].trim_end();
    let comma = if before.ends_with('{') { "" } else { "," };
    format!(r#"{before}{comma}"{name}":{value}}}"#)
}
