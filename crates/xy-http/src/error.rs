//! The errors of the HTTP listener: status, headers and message. Pure.

use std::fmt;

use hyper::StatusCode;
use xy_mcp::reply;
use xy_mcp::revision::VERSIONS;

use crate::frontend::Refusal;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HttpError {
    #[error(
        "no such path: use `/mcp`, `/mcp/p/<profile>`, `/mcp/s/<server>`, the same with \
         `/sse` for HTTP+SSE clients (2024-11-05), `/healthz`, `/readyz` or `/metrics`"
    )]
    NoSuchPath,
    #[error("method not allowed: use one of {allow}")]
    Method { allow: &'static str },
    #[error(
        "the `Host` header `{0}` does not name this machine: use `localhost` or the address that \
         xy listens on, or add the name to `gateway {{ hosts … }}` in xy.kdl"
    )]
    Host(String),
    #[error("pages from `{0}` may not use xy, only pages from this machine")]
    Origin(String),
    #[error(
        "a token is required: send `Authorization: Bearer <token>` with the token that \
         `xy info --token` prints"
    )]
    NoToken,
    #[error("wrong token: `xy info --token` prints the right one")]
    WrongToken,
    #[error("this token is for the profile `{0}` only: use `/mcp` or `/mcp/p/{0}`")]
    WrongProfile(String),
    #[error("the body must be JSON: send `Content-Type: application/json`")]
    ContentType,
    #[error(
        "the response is JSON or an event stream: send `Accept: application/json, text/event-stream`"
    )]
    Accept,
    #[error("the response is an event stream: send `Accept: text/event-stream`")]
    AcceptEvents,
    #[error("the body is larger than {max} bytes, which is the maximum")]
    BodyTooLarge { max: usize },
    #[error("the body ended before it was complete")]
    BodyBroken,
    #[error("protocol version `{0}` is not supported, only {known}", known = VERSIONS.join(", "))]
    Version(String),
    #[error(
        "the `Mcp-Session-Id` header is missing: begin with an `initialize` request, and send \
         the id from its response with every further request"
    )]
    NoSession,
    #[error("no such session, or it has ended: begin a new one with `initialize`")]
    UnknownSession,
    #[error("the session ended before the response: begin a new one with `initialize`")]
    SessionEnded,
    #[error(
        "the address has no `session`: open `/sse`, and post to the address in its first event"
    )]
    NoLegacySession,
    #[error("`Last-Event-ID` names no event of this session: leave it out to receive new messages")]
    UnknownEvent,
    #[error(
        "the stream of this `Last-Event-ID` is no longer stored: leave it out to receive new \
         messages; its earlier messages, and the response to its call, are lost"
    )]
    EventExpired,
    #[error(
        "this `Last-Event-ID` belongs to a call that began before xy was restarted, and xy has \
         no record of it: its outcome is unknown; check whether the call was executed before \
         repeating it"
    )]
    UnknownEarlierCall,
    #[error("{0} sessions are open, which is the maximum: try again later")]
    TooManySessions(usize),
    #[error("{0} calls and streams of this session are open, which is the maximum")]
    TooManyStreams(usize),
    #[error("{0} requests are open, which is the maximum: try again later")]
    TooManyStatelessRequests(usize),
    #[error(
        "xy is shutting down: new requests are refused, and open ones get no response; try again \
         later"
    )]
    Closing,
    #[error("too many connections are open: close some, or try again later")]
    TooManyConnections,
    #[error(
        "this token has {own} of the {max} {what} that all tokens share: end some, or try again \
         later"
    )]
    OverShare { what: SharedResource, own: usize, max: usize },
    #[error("too many large requests arrive at the same time: try again later")]
    TooManyBodies,
    #[error("could not generate a session id: {0}")]
    NoRandomness(String),
    #[error(transparent)]
    Frontend(#[from] Refusal),
}

/// A resource of which each token has a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedResource {
    Sessions,
    Requests,
    Connections,
    BodyBytes,
}

impl fmt::Display for SharedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sessions => "sessions",
            Self::Requests => "requests at one time",
            Self::Connections => "connections",
            Self::BodyBytes => "bytes of incomplete requests",
        })
    }
}

impl HttpError {
    pub(super) fn status(&self) -> StatusCode {
        use HttpError as E;
        match self {
            E::NoSuchPath
            | E::UnknownSession
            | E::SessionEnded
            | E::Frontend(Refusal::NoServer(_) | Refusal::NoProfile(_)) => StatusCode::NOT_FOUND,
            E::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            E::Host(_)
            | E::Origin(_)
            | E::WrongProfile(_)
            | E::Frontend(Refusal::Outside { .. }) => StatusCode::FORBIDDEN,
            E::NoToken | E::WrongToken => StatusCode::UNAUTHORIZED,
            E::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            E::Accept | E::AcceptEvents => StatusCode::NOT_ACCEPTABLE,
            E::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            E::BodyBroken
            | E::Version(_)
            | E::NoSession
            | E::NoLegacySession
            | E::UnknownEvent
            | E::UnknownEarlierCall => StatusCode::BAD_REQUEST,
            E::EventExpired => StatusCode::GONE,
            E::TooManyStreams(_) | E::OverShare { .. } => StatusCode::TOO_MANY_REQUESTS,
            E::TooManySessions(_)
            | E::TooManyStatelessRequests(_)
            | E::TooManyBodies
            | E::TooManyConnections
            | E::Closing
            | E::NoRandomness(_)
            | E::Frontend(Refusal::TooMany(_)) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the reason for the metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NoSuchPath => "no-such-path",
            Self::Method { .. } => "method",
            Self::Host(_) => "host",
            Self::Origin(_) => "origin",
            Self::NoToken => "no-token",
            Self::WrongToken => "wrong-token",
            Self::WrongProfile(_) | Self::Frontend(Refusal::Outside { .. }) => "wrong-profile",
            Self::ContentType => "content-type",
            Self::Accept | Self::AcceptEvents => "accept",
            Self::BodyTooLarge { .. } => "body-too-large",
            Self::BodyBroken => "body-broken",
            Self::Version(_) => "version",
            Self::NoSession | Self::NoLegacySession => "no-session",
            Self::UnknownEvent => "unknown-event",
            Self::UnknownEarlierCall => "unknown-earlier-call",
            Self::EventExpired => "event-expired",
            Self::UnknownSession => "unknown-session",
            Self::SessionEnded => "session-ended",
            Self::TooManySessions(_) | Self::Frontend(Refusal::TooMany(_)) => "too-many-sessions",
            Self::OverShare { what: SharedResource::Sessions, .. } => "share-of-sessions",
            Self::OverShare { what: SharedResource::Requests, .. } => "share-of-requests",
            Self::OverShare { what: SharedResource::Connections, .. } => "share-of-connections",
            Self::OverShare { what: SharedResource::BodyBytes, .. } => "share-of-bodies",
            Self::TooManyStreams(_) => "too-many-streams",
            Self::TooManyStatelessRequests(_) => "too-many-requests",
            Self::Closing => "closing",
            Self::TooManyBodies => "too-many-bodies",
            Self::TooManyConnections => "too-many-connections",
            Self::NoRandomness(_) => "no-randomness",
            Self::Frontend(Refusal::NoServer(_)) => "no-server",
            Self::Frontend(Refusal::NoProfile(_)) => "no-profile",
        }
    }

    /// Returns the name of the exceeded limit, for users. The limit on connections is reported
    /// where it is hit, as a refused connection has no owner.
    pub(super) fn limit(&self) -> Option<&'static str> {
        match self {
            Self::TooManySessions(_) | Self::OverShare { what: SharedResource::Sessions, .. } => {
                Some("HTTP sessions")
            }
            Self::TooManyStreams(_) => Some("calls and streams of one HTTP session"),
            Self::TooManyStatelessRequests(_)
            | Self::OverShare { what: SharedResource::Requests, .. } => {
                Some("HTTP requests without a session")
            }
            Self::TooManyBodies | Self::OverShare { what: SharedResource::BodyBytes, .. } => {
                Some("large HTTP requests")
            }
            Self::Frontend(Refusal::TooMany(_)) => Some("clients"),
            _ => None,
        }
    }

    /// Returns the header that belongs to the error.
    pub(super) fn header(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Method { allow } => Some(("allow", allow)),
            Self::NoToken => Some(("www-authenticate", "Bearer realm=\"xy\"")),
            Self::WrongToken => {
                Some(("www-authenticate", "Bearer realm=\"xy\", error=\"invalid_token\""))
            }
            _ if self.status() == StatusCode::SERVICE_UNAVAILABLE => Some(("retry-after", "5")),
            _ if self.status() == StatusCode::TOO_MANY_REQUESTS => Some(("retry-after", "1")),
            _ => None,
        }
    }

    /// Returns the body of the reply, for a request without a known id.
    pub(super) fn body(&self) -> Vec<u8> {
        self.response("null")
    }

    /// Returns the JSON-RPC error response to the request with this id.
    pub(super) fn response(&self, id: &str) -> Vec<u8> {
        reply::error(id, self.code(), &self.to_string())
    }

    /// Returns the JSON-RPC error code: one for sessions, one for limits, and one for the rest.
    fn code(&self) -> i64 {
        match self.status() {
            StatusCode::NOT_FOUND if !matches!(self, Self::NoSuchPath) => -32001,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => -32000,
            _ => -32600,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_error_is_a_json_rpc_error_with_a_hint() {
        let body: serde_json::Value = serde_json::from_slice(&HttpError::NoToken.body()).unwrap();
        assert_eq!(body["jsonrpc"], "2.0");
        assert_eq!(body["id"], serde_json::Value::Null);
        assert_eq!(body["error"]["code"], -32600);
        assert!(body["error"]["message"].as_str().unwrap().contains("`xy info --token`"));
    }

    #[test]
    fn quoted_client_text_cannot_break_the_response() {
        let body = HttpError::Host("a\"}\nb".to_owned()).body();
        assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
    }

    #[test]
    fn each_error_has_its_status_and_header() {
        for (error, status, header) in [
            (HttpError::NoSuchPath, 404, None),
            (HttpError::Method { allow: "GET" }, 405, Some(("allow", "GET"))),
            (HttpError::Host(String::new()), 403, None),
            (HttpError::NoToken, 401, Some(("www-authenticate", "Bearer realm=\"xy\""))),
            (HttpError::ContentType, 415, None),
            (HttpError::Accept, 406, None),
            (HttpError::BodyTooLarge { max: 1 }, 413, None),
            (HttpError::NoSession, 400, None),
            (HttpError::UnknownSession, 404, None),
            (HttpError::NoLegacySession, 400, None),
            (HttpError::UnknownEvent, 400, None),
            (HttpError::EventExpired, 410, None),
            (HttpError::TooManySessions(1), 503, Some(("retry-after", "5"))),
            (HttpError::TooManyBodies, 503, Some(("retry-after", "5"))),
            (HttpError::TooManyStatelessRequests(1), 503, Some(("retry-after", "5"))),
            (HttpError::Closing, 503, Some(("retry-after", "5"))),
            (HttpError::TooManyConnections, 503, Some(("retry-after", "5"))),
            (
                HttpError::OverShare { what: SharedResource::Sessions, own: 3, max: 4 },
                429,
                Some(("retry-after", "1")),
            ),
            (HttpError::TooManyStreams(1), 429, Some(("retry-after", "1"))),
            (HttpError::Frontend(Refusal::NoServer(String::new())), 404, None),
            (HttpError::Frontend(Refusal::TooMany(1)), 503, Some(("retry-after", "5"))),
        ] {
            assert_eq!((error.status().as_u16(), error.header()), (status, header), "{error}");
        }
    }
}
