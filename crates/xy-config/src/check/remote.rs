//! Parses the fields of remote servers: `url` and `headers`.
//!
//! Header values and URL queries may be secrets, so no problem quotes them.

use std::collections::BTreeMap;

use super::read::{Reader, Spanned};
use super::words::{Word, word};
use crate::raw::{RawNode, Value};
use crate::references::{self, Holder};
use crate::report::{Problem, quote};

const HEADER: Word = word("a header", r#"Authorization "Bearer …""#);

/// Maximum length of a URL.
const MAX_URL_BYTES: usize = 8 * 1024;

/// Maximum length of a header value; most servers accept less in total.
const MAX_VALUE_BYTES: usize = 16 * 1024;

/// Maximum number of headers.
const MAX_HEADERS: usize = 64;

/// Headers of the HTTP transport, which xy sets itself.
const RESERVED_HEADERS: [&str; 14] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Reads `url`: the HTTP endpoint of a server.
pub(super) fn url(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<Spanned<String>> {
    let url = reader.filled_text(node, word)?;
    if let Some(reference) = references::find(&url.value) {
        let message =
            format!("`url` contains {}: xy does not expand variables", quote(reference.written));
        let problem = Problem::error(&url.at, message);
        reader.report(problem.suggest("write the value itself"));
        return None;
    }
    match whole_url(&url.value) {
        Ok(whole) => Some(url.map(|_| whole)),
        Err((message, instead)) => {
            reader.report(Problem::error(&url.at, message).suggest(instead));
            None
        }
    }
}

/// Returns the URL with a path, or the error and the correction.
fn whole_url(url: &str) -> Result<String, (&'static str, &'static str)> {
    let schemes = ["http://", "https://"].into_iter();
    let mut starts = schemes.filter_map(|it| Some((it, url.get(..it.len())?)));
    let Some((scheme, _)) = starts.find(|(it, start)| it.eq_ignore_ascii_case(start)) else {
        let right = "use a URL that starts with `https://` or `http://` and names a host";
        return Err(("`url` is not the URL of a server", right));
    };
    if url.len() > MAX_URL_BYTES {
        return Err(("`url` is too long", "a URL has at most 8 KiB"));
    }
    let is_odd = |c: char| !c.is_ascii_graphic() || "\"<>\\^`{|}".contains(c);
    if url.contains(is_odd) {
        return Err((
            "`url` contains an invalid character",
            "encode spaces and similar characters as `%20`, and other host names as `xn--…`",
        ));
    }
    if url.contains('#') {
        return Err((
            "`url` has a fragment",
            "remove the `#` and everything after it: it is not sent",
        ));
    }
    let rest = &url[scheme.len()..];
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err((
            "`url` contains a user name or a password",
            "send them in a header: `headers { Authorization \"Basic …\" }`",
        ));
    }
    if !is_host_and_port(authority) {
        let right = "use a URL such as `https://example.com/mcp` or `http://127.0.0.1:8421/mcp`";
        return Err(("`url` does not name a host", right));
    }
    let slash = if path.starts_with('/') { "" } else { "/" };
    Ok(format!("{scheme}{authority}{slash}{path}"))
}

fn is_host_and_port(authority: &str) -> bool {
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => {
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return false;
            }
            match rest.strip_prefix(':') {
                None if rest.is_empty() => return true,
                None => return false,
                Some(port) => ("[…]", Some(port)),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    !host.is_empty()
        && (host == "[…]" || !host.contains(['[', ']', '%']))
        && port.is_none_or(|it| is_number(it) && it.parse::<u16>().is_ok_and(|it| it > 0))
}

/// Reads `headers`: the headers of every request.
pub(super) fn headers(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
) -> BTreeMap<String, String> {
    let Some(children) = reader.block(node, word) else { return BTreeMap::new() };
    let mut headers = BTreeMap::new();
    let mut names = BTreeMap::new();
    for header in children {
        if let Some(problem) = bad_name(reader, header) {
            reader.report(problem);
            continue;
        }
        // Header names are case-insensitive.
        if let Some(first) = names.insert(header.name.to_ascii_lowercase(), header.name_span) {
            let message = format!("the header {} is given twice", quote(&header.name));
            let problem = reader.error(header.name_span, message).label("given again here");
            reader.report(problem.related(&reader.at(first), "first given here"));
            continue;
        }
        if let Some(value) = header_value(reader, header) {
            headers.insert(header.name.clone(), value);
        }
    }
    if headers.len() > MAX_HEADERS {
        let message = format!("there are {} headers", headers.len());
        let problem = reader.error(node.name_span, message);
        reader.report(problem.suggest(format!("use at most {MAX_HEADERS}")));
    }
    headers
}

fn bad_name(reader: &Reader<'_>, header: &RawNode) -> Option<Problem> {
    let name = header.name.as_str();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(is_allowed) {
        // The name is not quoted, since a value may be in its place.
        let problem = reader.error(header.name_span, "this is not a header name");
        return Some(problem.suggest("write a name of letters, digits and `-`, then its value"));
    }
    let lower = name.to_ascii_lowercase();
    if RESERVED_HEADERS.contains(&lower.as_str()) || lower.starts_with("mcp-") {
        let message = format!("the header {} is reserved for xy", quote(name));
        let problem = reader.error(header.name_span, message);
        return Some(problem.suggest("remove it: it is part of the HTTP transport"));
    }
    None
}

fn header_value(reader: &mut Reader<'_>, header: &RawNode) -> Option<String> {
    let value = reader.value(header, HEADER)?;
    let name = quote(&header.name);
    let is_allowed = |c: char| c == ' ' || c == '\t' || c.is_ascii_graphic();
    let (message, instead) = match &value.value {
        Value::Text(text) if text.is_empty() => {
            (format!("the header {name} is empty"), "give it a value, or remove it")
        }
        Value::Text(text) if text.len() > MAX_VALUE_BYTES => {
            (format!("the header {name} is too long"), "a value has at most 16 KiB")
        }
        Value::Text(text) if !text.chars().all(is_allowed) => (
            format!("the header {name} contains a character that cannot be sent"),
            "use one line of ASCII without control characters",
        ),
        Value::Text(text) if text.trim() != text => (
            format!("the header {name} begins or ends with a space"),
            "remove the space: it would not be sent",
        ),
        Value::Text(text) => {
            let at = reader.at(value.span);
            reader.warn_of_reference(text, &at, Holder::Header);
            return Some(text.clone());
        }
        _ => (format!("the header {name} must be text"), "put it in quotes"),
    };
    reader.report(reader.error(value.span, message).suggest(instead));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_a_host_and_a_path() {
        let good = [
            ("https://example.com/mcp", "https://example.com/mcp"),
            ("http://127.0.0.1:8421/mcp", "http://127.0.0.1:8421/mcp"),
            ("HTTPS://Example.com", "https://Example.com/"),
            ("https://a.b?key=1", "https://a.b/?key=1"),
            ("http://[::1]:80/x?y=z@w", "http://[::1]:80/x?y=z@w"),
            ("http://[::1]", "http://[::1]/"),
            ("http://localhost:65535/%20", "http://localhost:65535/%20"),
        ];
        for (written, whole) in good {
            assert_eq!(whole_url(written).as_deref(), Ok(whole), "{written}");
        }
        let bad = [
            "",
            "example.com",
            "ftp://a/b",
            "http:/a",
            "http://",
            "http:///x",
            "https://?x",
            "http://a:b/",
            "http://a:0/",
            "http://a:65536/",
            "http://a:/",
            "http://a:+1/",
            "http://[::1/",
            "http://[x]/",
            "http://[::1]x/",
            "http://u:p@a/",
            "http://u@a/",
            "http://a/#x",
            "http://a/ b",
            "http://a/\n",
            "http://é/",
            "http://a/\"",
            "htt",
            "http://a%41/",
            "http://a:1:2/",
        ];
        for written in bad {
            assert!(whole_url(written).is_err(), "{written}");
        }
        assert!(whole_url(&format!("http://a/{}", "x".repeat(MAX_URL_BYTES))).is_err());
    }
}
