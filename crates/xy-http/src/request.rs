//! Classifies a request by its head. Pure; the body is not read.

use hyper::Method;
use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::http::request::Parts;
use xy_mcp::revision;

use crate::error::HttpError;
use crate::event::EventId;
use crate::guard::{self, Identity};
use crate::headers::{self, VERSION};
use crate::route::{self, Endpoint, HttpRoute};
use crate::{HttpRules, session_id};

/// The header with the session id.
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// The kind of an HTTP request, by its path and method.
#[derive(Debug)]
pub(super) enum HttpRequestKind<'h> {
    /// `/healthz`: whether the daemon is running.
    Health,
    /// `/readyz`: whether all servers are up.
    Ready,
    /// `/metrics`.
    Metrics { identity: Identity<'h> },
    /// A CORS preflight request of a browser.
    Preflight,
    /// A message, within a session or `initialize`.
    Post {
        endpoint: Endpoint<'h>,
        identity: Identity<'h>,
        session: Option<&'h str>,
        accepts: Accepts,
    },
    /// A message of a client without a session whose head shows that. Other such messages show it
    /// only in their bodies and arrive as `Post`.
    StatelessRequest { endpoint: Endpoint<'h>, identity: Identity<'h>, accepts: Accepts },
    /// Opens a stream for messages that belong to no call.
    Listen { endpoint: Endpoint<'h>, identity: Identity<'h>, session: &'h str },
    /// Resumes a stream after one of its events.
    Resume { endpoint: Endpoint<'h>, identity: Identity<'h>, session: &'h str, after: EventId },
    /// Ends a session.
    DeleteSession { endpoint: Endpoint<'h>, identity: Identity<'h>, session: &'h str },
    /// Opens a session of the legacy transport.
    LegacySse { endpoint: Endpoint<'h>, identity: Identity<'h> },
    /// A message of the legacy transport.
    LegacyMessage { identity: Identity<'h>, session: &'h str },
}

impl<'h> HttpRequestKind<'h> {
    /// Returns the client's identity, if the request needs one.
    pub(super) fn identity(&self) -> Option<Identity<'h>> {
        match self {
            Self::Health | Self::Ready | Self::Preflight => None,
            Self::Metrics { identity }
            | Self::Post { identity, .. }
            | Self::StatelessRequest { identity, .. }
            | Self::Listen { identity, .. }
            | Self::Resume { identity, .. }
            | Self::DeleteSession { identity, .. }
            | Self::LegacySse { identity, .. }
            | Self::LegacyMessage { identity, .. } => Some(*identity),
        }
    }
}

/// The response formats that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepts {
    pub(super) json: bool,
    pub(super) events: bool,
    /// Whether `Accept` names event streams explicitly, and not only by a wildcard.
    pub(super) names_events: bool,
}

/// Classifies a request by its head, or returns why it is refused.
pub(super) fn classify<'h>(
    head: &'h Parts,
    rules: &'h HttpRules,
) -> Result<HttpRequestKind<'h>, HttpError> {
    guard::check_host(head, &rules.hosts)?;
    guard::check_origin(&head.headers, &rules.hosts)?;
    let route = route::route(head.uri.path()).ok_or(HttpError::NoSuchPath)?;
    if !route::allows_method(route, &head.method) {
        return Err(HttpError::Method { allow: route::allowed_methods(route) });
    }
    if head.method == Method::OPTIONS {
        return Ok(HttpRequestKind::Preflight); // Browsers send no token with a preflight request.
    }
    match route {
        HttpRoute::Health => Ok(HttpRequestKind::Health),
        HttpRoute::Ready => Ok(HttpRequestKind::Ready),
        HttpRoute::Metrics => {
            // The metrics name all servers.
            let identity = guard::identify(&head.headers, &rules.auth)?;
            identity.check_unrestricted().map(|()| HttpRequestKind::Metrics { identity })
        }
        HttpRoute::Mcp(endpoint) => classify_mcp(head, endpoint, rules),
        HttpRoute::LegacySse(endpoint) => classify_legacy_sse(head, endpoint, rules),
        HttpRoute::LegacyMessages => classify_legacy_message(head, rules),
    }
}

fn classify_mcp<'h>(
    head: &'h Parts,
    endpoint: Endpoint<'h>,
    rules: &'h HttpRules,
) -> Result<HttpRequestKind<'h>, HttpError> {
    let identity = guard::identify(&head.headers, &rules.auth)?;
    let endpoint = identity.authorize(endpoint)?;
    let is_stateless = head.method == Method::POST && headers::is_modern(&head.headers);
    if !is_stateless {
        // Without sessions there is nothing to listen to or to end.
        if head.method != Method::POST && headers::has_modern_version(&head.headers) {
            return Err(HttpError::Method { allow: "POST" });
        }
        check_version(&head.headers)?;
    }
    let accepts = accepts(&head.headers);
    if head.method == Method::POST {
        check_content(&head.headers, rules.body_max_bytes)?;
        if !accepts.json && !accepts.events {
            return Err(HttpError::Accept);
        }
        if is_stateless {
            return Ok(HttpRequestKind::StatelessRequest { endpoint, identity, accepts });
        }
        let session = session(&head.headers)?;
        return Ok(HttpRequestKind::Post { endpoint, identity, session, accepts });
    }
    if head.method == Method::GET && !accepts.events {
        return Err(HttpError::AcceptEvents);
    }
    let session = session(&head.headers)?.ok_or(HttpError::NoSession)?;
    if head.method == Method::DELETE {
        return Ok(HttpRequestKind::DeleteSession { endpoint, identity, session });
    }
    Ok(match last_event(&head.headers)? {
        Some(after) => HttpRequestKind::Resume { endpoint, identity, session, after },
        None => HttpRequestKind::Listen { endpoint, identity, session },
    })
}

fn classify_legacy_sse<'h>(
    head: &'h Parts,
    endpoint: Endpoint<'h>,
    rules: &'h HttpRules,
) -> Result<HttpRequestKind<'h>, HttpError> {
    let identity = guard::identify(&head.headers, &rules.auth)?;
    let endpoint = identity.authorize(endpoint)?;
    check_version(&head.headers)?;
    if !accepts(&head.headers).events {
        return Err(HttpError::AcceptEvents);
    }
    Ok(HttpRequestKind::LegacySse { endpoint, identity })
}

fn classify_legacy_message<'h>(
    head: &'h Parts,
    rules: &'h HttpRules,
) -> Result<HttpRequestKind<'h>, HttpError> {
    let identity = guard::identify(&head.headers, &rules.auth)?;
    check_version(&head.headers)?;
    check_content(&head.headers, rules.body_max_bytes)?;
    let pairs = head.uri.query().unwrap_or_default().split('&');
    let id = pairs.into_iter().find_map(|pair| pair.strip_prefix("session="));
    let id = id.ok_or(HttpError::NoLegacySession)?;
    let session = parse_session_id(id.as_bytes())?;
    Ok(HttpRequestKind::LegacyMessage { identity, session })
}

/// Returns the event id after which a stream resumes. Text that is no valid event id is refused.
fn last_event(headers: &HeaderMap) -> Result<Option<EventId>, HttpError> {
    match headers.get(LAST_EVENT) {
        None => Ok(None),
        Some(id) if id.is_empty() => Ok(None), // A client that received no event yet.
        Some(id) => EventId::parse(id.as_bytes()).map(Some).ok_or(HttpError::UnknownEvent),
    }
}

/// Checks the protocol version header. Without it, the negotiated version applies.
fn check_version(headers: &HeaderMap) -> Result<(), HttpError> {
    match headers.get(VERSION) {
        Some(version) if !revision::VERSIONS.iter().any(|known| version == known) => {
            Err(HttpError::Version(String::from_utf8_lossy(version.as_bytes()).into_owned()))
        }
        _ => Ok(()),
    }
}

fn check_content(headers: &HeaderMap, max: usize) -> Result<(), HttpError> {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    if !media_type(kind).eq_ignore_ascii_case(b"application/json") {
        return Err(HttpError::ContentType);
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    // hyper rejects a length that is not a number.
    match length.and_then(|length| length.parse::<u64>().ok()) {
        Some(length) if length > max as u64 => Err(HttpError::BodyTooLarge { max }),
        _ => Ok(()),
    }
}

/// Returns the accepted formats. Without an `Accept` header, a client accepts all of them.
fn accepts(headers: &HeaderMap) -> Accepts {
    let mut values = headers.get_all(ACCEPT).iter().peekable();
    if values.peek().is_none() {
        return Accepts { json: true, events: true, names_events: false };
    }
    let mut accepts = Accepts { json: false, events: false, names_events: false };
    for range in values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')) {
        let kind = media_type(range);
        let is = |name: &[u8]| kind.eq_ignore_ascii_case(name);
        accepts.json |= is(b"*/*") || is(b"application/*") || is(b"application/json");
        accepts.names_events |= is(b"text/event-stream");
        accepts.events |= is(b"*/*") || is(b"text/*") || accepts.names_events;
    }
    accepts
}

/// Returns a media type without its parameters.
fn media_type(range: &[u8]) -> &[u8] {
    let end = range.iter().position(|byte| *byte == b';').unwrap_or(range.len());
    range[..end].trim_ascii()
}

/// Returns the session id. An invalid id is treated as the id of an ended session.
fn session(headers: &HeaderMap) -> Result<Option<&str>, HttpError> {
    let Some(id) = headers.get(SESSION) else { return Ok(None) };
    parse_session_id(id.as_bytes()).map(Some)
}

/// Returns text that may be a session id.
fn parse_session_id(id: &[u8]) -> Result<&str, HttpError> {
    let id = Some(id).filter(|id| session_id::is_plausible(id));
    id.and_then(|id| std::str::from_utf8(id).ok()).ok_or(HttpError::UnknownSession)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::Request;

    use super::*;
    use crate::{Auth, Secret, Token};

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn rules() -> HttpRules {
        let secret = Secret::Plain("s".to_owned());
        let name = String::new();
        let token = Token { id: 1, name, secret, may_manage: true, profile: None };
        HttpRules {
            auth: Auth::Tokens(vec![token]),
            sessions_max: 1,
            streams_per_session_max: 1,
            body_max_bytes: 100,
            idle: Duration::from_secs(1),
            hosts: guard::Hosts::default(),
        }
    }

    /// Returns the classification of a valid request with `changes` to its headers. An empty value
    /// removes a header.
    fn outcome(line: &str, changes: &[(&str, &str)]) -> String {
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in [
            ("host", "localhost:1"),
            ("authorization", "Bearer s"),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-session-id", ID),
        ] {
            if !changes.iter().any(|(changed, _)| *changed == name) {
                request = request.header(name, value);
            }
        }
        for (name, value) in changes.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let head = request.body(()).unwrap().into_parts().0;
        match classify(&head, &rules()) {
            Ok(HttpRequestKind::Health) => "health".to_owned(),
            Ok(HttpRequestKind::Ready) => "ready".to_owned(),
            Ok(HttpRequestKind::Metrics { .. }) => "metrics".to_owned(),
            Ok(HttpRequestKind::Preflight) => "preflight".to_owned(),
            Ok(HttpRequestKind::Post {
                session, accepts: Accepts { json, events, .. }, ..
            }) => {
                format!("post {} {json} {events}", session.is_some())
            }
            Ok(HttpRequestKind::StatelessRequest {
                accepts: Accepts { json, events, .. }, ..
            }) => {
                format!("stateless {json} {events}")
            }
            Ok(HttpRequestKind::Listen { .. }) => "listen".to_owned(),
            Ok(HttpRequestKind::Resume { after, .. }) => format!("resume {after}"),
            Ok(HttpRequestKind::LegacySse { endpoint, .. }) => format!("older {endpoint:?}"),
            Ok(HttpRequestKind::LegacyMessage { .. }) => "message".to_owned(),
            Ok(HttpRequestKind::DeleteSession { .. }) => "end".to_owned(),
            Err(error) => format!("{} {}", error.status().as_u16(), error.reason()),
        }
    }

    #[test]
    fn headers_classify_the_request() {
        for (line, changes, expected) in [
            ("POST /mcp", &[][..], "post true true true"),
            ("POST /mcp", &[("mcp-session-id", "")], "post false true true"),
            ("POST /mcp", &[("accept", "")], "post true true true"),
            ("POST /mcp", &[("accept", "*/*")], "post true true true"),
            ("POST /mcp", &[("accept", "application/json;q=0.9")], "post true true false"),
            ("POST /mcp", &[("accept", "Text/Event-Stream")], "post true false true"),
            ("POST /mcp", &[("accept", "text/html")], "406 accept"),
            ("POST /mcp", &[("content-type", "")], "415 content-type"),
            ("POST /mcp", &[("content-type", "text/plain")], "415 content-type"),
            (
                "POST /mcp",
                &[("content-type", "application/json; charset=utf-8")],
                "post true true true",
            ),
            ("POST /mcp", &[("content-length", "100")], "post true true true"),
            ("POST /mcp", &[("content-length", "101")], "413 body-too-large"),
            ("POST /mcp", &[("mcp-session-id", "x!")], "404 unknown-session"),
            ("POST /mcp", &[("mcp-protocol-version", "2025-06-18")], "post true true true"),
            ("POST /mcp", &[("mcp-protocol-version", "2025-06-19")], "400 version"),
            ("POST /mcp", &[("mcp-protocol-version", "2026-07-27")], "400 version"),
            ("POST /mcp", &[("mcp-protocol-version", "2026-07-28")], "stateless true true"),
            ("POST /mcp", &[("mcp-protocol-version", "2027-01-01")], "stateless true true"),
            ("POST /mcp", &[("mcp-protocol-version", "v999.0.0")], "stateless true true"),
            ("POST /mcp", &[("mcp-method", "tools/list")], "stateless true true"),
            (
                "POST /mcp",
                &[("mcp-method", "x"), ("mcp-session-id", "x"), ("last-event-id", "x")],
                "stateless true true",
            ),
            ("POST /mcp", &[("mcp-method", "x"), ("accept", "text/html")], "406 accept"),
            ("POST /mcp", &[("mcp-method", "x"), ("content-type", "")], "415 content-type"),
            ("POST /mcp", &[("mcp-method", "x"), ("authorization", "")], "401 no-token"),
            ("GET /mcp", &[("mcp-protocol-version", "2026-07-28")], "405 method"),
            ("GET /mcp", &[("mcp-protocol-version", "2025-11-25")], "listen"),
            ("DELETE /mcp", &[("mcp-protocol-version", "v999.0.0")], "405 method"),
            ("DELETE /mcp", &[("mcp-protocol-version", "2025-01-01")], "400 version"),
            ("OPTIONS /mcp", &[("mcp-protocol-version", "2026-07-28")], "preflight"),
            ("GET /sse", &[("mcp-protocol-version", "2026-07-28")], "400 version"),
            ("POST /mcp", &[("authorization", "")], "401 no-token"),
            ("POST /mcp", &[("authorization", "Bearer t")], "401 wrong-token"),
            ("POST /mcp", &[("host", "evil.example")], "403 host"),
            ("POST /mcp", &[("origin", "http://evil.example")], "403 origin"),
            ("POST /mcp", &[("origin", "http://localhost:5")], "post true true true"),
            ("PUT /mcp", &[], "405 method"),
            ("GET /mcp", &[], "listen"),
            ("GET /mcp", &[("accept", "application/json")], "406 accept"),
            ("GET /mcp", &[("mcp-session-id", "")], "400 no-session"),
            (
                "GET /mcp",
                &[("last-event-id", "0000000000000001-2-3")],
                "resume 0000000000000001-2-3",
            ),
            ("GET /mcp", &[("last-event-id", "1-2-3")], "400 unknown-event"),
            ("GET /sse", &[], "older Profile(\"default\")"),
            ("GET /sse/s/a", &[], "older Server(\"a\")"),
            ("GET /sse", &[("accept", "application/json")], "406 accept"),
            ("GET /sse", &[("authorization", "")], "401 no-token"),
            ("GET /sse", &[("host", "evil.example")], "403 host"),
            ("GET /sse", &[("origin", "http://evil.example")], "403 origin"),
            ("POST /sse", &[], "405 method"),
            ("POST /messages?session=0123456789abcdef0123456789abcdef", &[], "message"),
            ("POST /messages?a=b&session=0123456789abcdef0123456789abcdef", &[], "message"),
            ("POST /messages?session=0!", &[], "404 unknown-session"),
            ("POST /messages", &[], "400 no-session"),
            ("POST /messages", &[("authorization", "")], "401 no-token"),
            ("POST /messages", &[("host", "evil.example")], "403 host"),
            ("POST /messages", &[("content-type", "")], "415 content-type"),
            ("POST /messages", &[("content-length", "101")], "413 body-too-large"),
            ("GET /messages", &[], "405 method"),
            ("DELETE /mcp/p/a", &[], "end"),
            ("DELETE /mcp/s/a", &[("mcp-session-id", "")], "400 no-session"),
            ("OPTIONS /mcp", &[("authorization", "")], "preflight"),
            ("OPTIONS /mcp", &[("origin", "http://evil.example")], "403 origin"),
            ("GET /healthz", &[("authorization", "")], "health"),
            ("GET /readyz", &[("authorization", "")], "ready"),
            ("GET /metrics", &[], "metrics"),
            ("GET /metrics", &[("authorization", "")], "401 no-token"),
            ("GET /healthz", &[("host", "evil.example")], "403 host"),
            ("POST /healthz", &[], "405 method"),
            ("GET /nothing", &[("authorization", "")], "404 no-such-path"),
        ] {
            assert_eq!(outcome(line, changes), expected, "{line} {changes:?}");
        }
    }
}
