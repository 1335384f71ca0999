//! Checks that the headers of a modern request agree with its body.

use crate::http_server::HttpRequest;
use serde_json::Value;
use xy_testkit::json::Members;

/// The tool whose arguments are mirrored into headers.
pub(crate) const MIRRORED_TOOL: &str = "in_headers";

/// The path of each mirrored argument, and its header. Must match the tool's schema in
/// `extra_entries.rs`.
const MIRRORED_ARGUMENTS: [(&[&str], &str); 4] = [
    (&["region"], "mcp-param-region"),
    (&["count"], "mcp-param-count"),
    (&["loud"], "mcp-param-loud"),
    (&["deep", "where"], "mcp-param-deep-where"),
];

const BASE64: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Checks `MCP-Protocol-Version` against the version in the body.
pub(crate) fn check_version(request: &HttpRequest, version: &str) -> Result<(), String> {
    check_equal("MCP-Protocol-Version", request.header("mcp-protocol-version"), version)
}

/// Checks all other headers against the body.
pub(crate) fn check(request: &HttpRequest, method: &str, params: &Members) -> Result<(), String> {
    check_equal("Mcp-Method", request.header("mcp-method"), method)?;
    let name = match method {
        "tools/call" | "prompts/get" => params.string("name"),
        "resources/read" => params.string("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => params.string("taskId"),
        _ => None,
    };
    if let Some(name) = &name {
        let header = request.header("mcp-name").map(decoded).transpose()?;
        check_equal("Mcp-Name", header.as_deref(), name)?;
    }
    if method == "tools/call" && name.as_deref() == Some(MIRRORED_TOOL) {
        let arguments = params.members("arguments");
        for (path, header) in MIRRORED_ARGUMENTS {
            check_argument(&arguments, path, header, request.header(header))?;
        }
    }
    Ok(())
}

fn check_equal(name: &str, header: Option<&str>, body: &str) -> Result<(), String> {
    match header {
        Some(header) if header == body => Ok(()),
        Some(header) => Err(format!("`{name}` is `{header}`, but the body has `{body}`")),
        None => Err(format!("there is no `{name}`, but the body has `{body}`")),
    }
}

fn check_argument(
    arguments: &Members,
    path: &[&str],
    name: &str,
    header: Option<&str>,
) -> Result<(), String> {
    let (last, above) = path.split_last().expect("no path is empty");
    let holder = above.iter().fold(arguments.clone(), |holder, step| holder.members(step));
    let value: Value = serde_json::from_str(holder.raw(last).unwrap_or("null")).unwrap_or_default();
    let header = header.map(decoded).transpose()?;
    let is_same = match (&value, header.as_deref()) {
        (Value::Null, None) => true,
        (Value::String(text), Some(header)) => text == header,
        (Value::Bool(is_so), Some(header)) => is_so.to_string() == header,
        // A header `42` matches a body with 42.0.
        (Value::Number(number), Some(header)) => number.as_f64() == header.parse().ok(),
        _ => false,
    };
    if is_same { Ok(()) } else { Err(format!("`{name}` is {header:?}, but the body has {value}")) }
}

/// Decodes a header value, which may be Base64 in `=?base64?…?=`.
fn decoded(header: &str) -> Result<String, String> {
    let Some(encoded) = header.strip_prefix("=?base64?").and_then(|it| it.strip_suffix("?="))
    else {
        return Ok(header.to_owned());
    };
    let text = base64(encoded).and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| format!("`{header}` is no Base64"))
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0, 0);
    for digit in digits.chars() {
        bits = (bits << 6) | BASE64.find(digit)?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count).ok()?);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}
