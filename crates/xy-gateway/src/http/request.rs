//! What a request asks for, from its head alone. Pure; nothing of its body is read yet.

use hyper::Method;
use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::http::request::Parts;

use super::HttpRules;
use super::event::EventId;
use super::guard::{self, Identity};
use super::headers::{self, VERSION};
use super::refused::Refused;
use super::route::{self, Endpoint, Route};
use super::session_id;
use crate::era;

/// The header that says which session it is.
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// What a request asks for.
#[derive(Debug)]
pub(super) enum HttpRequestKind<'h> {
    /// Whether there is anybody.
    Health,
    /// Whether everything is up.
    Ready,
    /// Numbers.
    Metrics { identity: Identity<'h> },
    /// A browser that wants to know whether its page may ask.
    Preflight,
    /// A message.
    Post { place: Endpoint<'h>, identity: Identity<'h>, session: Option<&'h str>, accepts: Accepts },
    /// A message of a client without a session, by its head; others show it in their body.
    StatelessRequest { place: Endpoint<'h>, identity: Identity<'h>, accepts: Accepts },
    /// To hear what belongs to no call.
    Listen { place: Endpoint<'h>, identity: Identity<'h>, session: &'h str },
    /// To go on hearing a stream, after an event of it.
    Resume { place: Endpoint<'h>, identity: Identity<'h>, session: &'h str, after: EventId },
    /// The end of a session.
    End { place: Endpoint<'h>, identity: Identity<'h>, session: &'h str },
    /// A session over the older transport.
    Older { place: Endpoint<'h>, identity: Identity<'h> },
    /// A message over the older transport.
    Message { identity: Identity<'h>, session: &'h str },
}

impl<'h> HttpRequestKind<'h> {
    /// Who asks, if it has shown that.
    pub(super) fn identity(&self) -> Option<Identity<'h>> {
        match self {
            Self::Health | Self::Ready | Self::Preflight => None,
            Self::Metrics { identity }
            | Self::Post { identity, .. }
            | Self::StatelessRequest { identity, .. }
            | Self::Listen { identity, .. }
            | Self::Resume { identity, .. }
            | Self::End { identity, .. }
            | Self::Older { identity, .. }
            | Self::Message { identity, .. } => Some(*identity),
        }
    }
}

/// What a client can read as an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepts {
    pub(super) json: bool,
    pub(super) events: bool,
    /// Whether it says so of events by name, and not only that it reads everything.
    pub(super) names_events: bool,
}

/// What the head of a request asks for, or why it is not served.
pub(super) fn read<'h>(
    head: &'h Parts,
    rules: &'h HttpRules,
) -> Result<HttpRequestKind<'h>, Refused> {
    guard::check_host(head, &rules.hosts)?;
    guard::check_origin(&head.headers, &rules.hosts)?;
    let route = route::route(head.uri.path()).ok_or(Refused::NoSuchPath)?;
    if !route::answers(route, &head.method) {
        return Err(Refused::Method { allow: route::allowed(route) });
    }
    if head.method == Method::OPTIONS {
        return Ok(HttpRequestKind::Preflight); // A browser shows no token when it asks whether it may.
    }
    match route {
        Route::Health => Ok(HttpRequestKind::Health),
        Route::Ready => Ok(HttpRequestKind::Ready),
        Route::Metrics => {
            // They name all servers.
            let identity = guard::identify(&head.headers, &rules.auth)?;
            identity.is_free().map(|()| HttpRequestKind::Metrics { identity })
        }
        Route::Mcp(place) => read_mcp(head, place, rules),
        Route::Older(place) => read_older(head, place, rules),
        Route::Messages => read_message(head, rules),
    }
}

fn read_mcp<'h>(
    head: &'h Parts,
    place: Endpoint<'h>,
    rules: &'h HttpRules,
) -> Result<HttpRequestKind<'h>, Refused> {
    let identity = guard::identify(&head.headers, &rules.auth)?;
    let place = identity.led_to(place)?;
    let is_visit = head.method == Method::POST && headers::is_modern(&head.headers);
    if !is_visit {
        // Without sessions there is nothing to listen to, and nothing to end.
        if head.method != Method::POST && headers::has_modern_version(&head.headers) {
            return Err(Refused::Method { allow: "POST" });
        }
        check_version(&head.headers)?;
    }
    let accepts = accepts(&head.headers);
    if head.method == Method::POST {
        check_content(&head.headers, rules.body_max_bytes)?;
        if !accepts.json && !accepts.events {
            return Err(Refused::Accept);
        }
        if is_visit {
            return Ok(HttpRequestKind::StatelessRequest { place, identity, accepts });
        }
        let session = session(&head.headers)?;
        return Ok(HttpRequestKind::Post { place, identity, session, accepts });
    }
    if head.method == Method::GET && !accepts.events {
        return Err(Refused::AcceptEvents);
    }
    let session = session(&head.headers)?.ok_or(Refused::NoSession)?;
    if head.method == Method::DELETE {
        return Ok(HttpRequestKind::End { place, identity, session });
    }
    Ok(match last_event(&head.headers)? {
        Some(after) => HttpRequestKind::Resume { place, identity, session, after },
        None => HttpRequestKind::Listen { place, identity, session },
    })
}

fn read_older<'h>(
    head: &'h Parts,
    place: Endpoint<'h>,
    rules: &'h HttpRules,
) -> Result<HttpRequestKind<'h>, Refused> {
    let identity = guard::identify(&head.headers, &rules.auth)?;
    let place = identity.led_to(place)?;
    check_version(&head.headers)?;
    if !accepts(&head.headers).events {
        return Err(Refused::AcceptEvents);
    }
    Ok(HttpRequestKind::Older { place, identity })
}

fn read_message<'h>(head: &'h Parts, rules: &'h HttpRules) -> Result<HttpRequestKind<'h>, Refused> {
    let identity = guard::identify(&head.headers, &rules.auth)?;
    check_version(&head.headers)?;
    check_content(&head.headers, rules.body_max_bytes)?;
    let pairs = head.uri.query().unwrap_or_default().split('&');
    let id = pairs.into_iter().find_map(|pair| pair.strip_prefix("session="));
    let id = id.ok_or(Refused::NoOlderSession)?;
    let session = plausible(id.as_bytes())?;
    Ok(HttpRequestKind::Message { identity, session })
}

/// After which event a stream shall go on. What cannot be a name of ours was never sent.
fn last_event(headers: &HeaderMap) -> Result<Option<EventId>, Refused> {
    match headers.get(LAST_EVENT) {
        None => Ok(None),
        Some(id) if id.is_empty() => Ok(None), // So says a client that has heard of none.
        Some(id) => EventId::parse(id.as_bytes()).map(Some).ok_or(Refused::UnknownEvent),
    }
}

/// Without the header it is what was agreed on.
fn check_version(headers: &HeaderMap) -> Result<(), Refused> {
    match headers.get(VERSION) {
        Some(version) if !era::VERSIONS.iter().any(|known| version == known) => {
            Err(Refused::Version(String::from_utf8_lossy(version.as_bytes()).into_owned()))
        }
        _ => Ok(()),
    }
}

fn check_content(headers: &HeaderMap, max: usize) -> Result<(), Refused> {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    if !media_type(kind).eq_ignore_ascii_case(b"application/json") {
        return Err(Refused::ContentType);
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    // What is no number is not let through by hyper.
    match length.and_then(|length| length.parse::<u64>().ok()) {
        Some(length) if length > max as u64 => Err(Refused::BodyTooLarge { max }),
        _ => Ok(()),
    }
}

/// What can be read; everything, if nothing is said.
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

/// A media type without its parameters.
fn media_type(range: &[u8]) -> &[u8] {
    let end = range.iter().position(|byte| *byte == b';').unwrap_or(range.len());
    range[..end].trim_ascii()
}

/// Which session it is. What cannot be an id of ours is like one that has ended.
fn session(headers: &HeaderMap) -> Result<Option<&str>, Refused> {
    let Some(id) = headers.get(SESSION) else { return Ok(None) };
    plausible(id.as_bytes()).map(Some)
}

/// Text that may be the id of a session. Other text never is one.
fn plausible(id: &[u8]) -> Result<&str, Refused> {
    let id = Some(id).filter(|id| session_id::is_plausible(id));
    id.and_then(|id| std::str::from_utf8(id).ok()).ok_or(Refused::UnknownSession)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::Request;

    use super::*;
    use crate::http::{Auth, Secret, Token};

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

    /// What becomes of an honest request once `changes` are made to its headers; an empty
    /// value takes one away.
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
        match read(&head, &rules()) {
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
                format!("visit {json} {events}")
            }
            Ok(HttpRequestKind::Listen { .. }) => "listen".to_owned(),
            Ok(HttpRequestKind::Resume { after, .. }) => format!("resume {after}"),
            Ok(HttpRequestKind::Older { place, .. }) => format!("older {place:?}"),
            Ok(HttpRequestKind::Message { .. }) => "message".to_owned(),
            Ok(HttpRequestKind::End { .. }) => "end".to_owned(),
            Err(refused) => format!("{} {}", refused.status().as_u16(), refused.reason()),
        }
    }

    #[test]
    fn the_head_decides_what_is_asked() {
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
            ("POST /mcp", &[("mcp-protocol-version", "2026-07-28")], "visit true true"),
            ("POST /mcp", &[("mcp-protocol-version", "2027-01-01")], "visit true true"),
            ("POST /mcp", &[("mcp-protocol-version", "v999.0.0")], "visit true true"),
            ("POST /mcp", &[("mcp-method", "tools/list")], "visit true true"),
            (
                "POST /mcp",
                &[("mcp-method", "x"), ("mcp-session-id", "x"), ("last-event-id", "x")],
                "visit true true",
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
