//! Everything the door itself says no to: the status, and the words for a person. Pure.

use std::fmt;

use hyper::StatusCode;

use crate::era::VERSIONS;
use crate::frontend::Refusal;
use crate::reply;

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error(
        "there is nothing here: try `/mcp`, `/mcp/p/<profile>`, `/mcp/s/<server>`, the same with \
         `/sse` for clients of 2024, `/healthz`, `/readyz` or `/metrics`"
    )]
    NoSuchPath,
    #[error("this method is not answered here, only {allow}")]
    Method { allow: &'static str },
    #[error(
        "the `Host` header says `{0}`, which is no name of this machine: use `localhost` or the \
         address that xy listens on, or write the name into `gateway {{ hosts … }}` of xy.kdl"
    )]
    Host(String),
    #[error("pages from `{0}` may not talk to xy, only pages from this machine")]
    Origin(String),
    #[error(
        "a token is needed: send `Authorization: Bearer <token>`, with what `xy info --token` \
         prints"
    )]
    NoToken,
    #[error("this is not the token: `xy info --token` prints it")]
    WrongToken,
    #[error("this token is for the profile `{0}` only: use `/mcp` or `/mcp/p/{0}`")]
    OtherView(String),
    #[error("the body must be JSON: send `Content-Type: application/json`")]
    ContentType,
    #[error(
        "the answer is JSON or an event stream: send `Accept: application/json, text/event-stream`"
    )]
    Accept,
    #[error("what is sent here is an event stream: send `Accept: text/event-stream`")]
    AcceptEvents,
    #[error("the body is larger than {max} bytes, which is the most there may be")]
    BodyTooLarge { max: usize },
    #[error("the body ended before it was whole")]
    BodyBroken,
    #[error("the protocol's version `{0}` is not spoken here, only {known}", known = VERSIONS.join(", "))]
    Version(String),
    #[error(
        "there is no `Mcp-Session-Id` header: begin with an `initialize` request, and send the \
         id from its answer with everything else"
    )]
    NoSession,
    #[error("there is no such session here, or it has ended: begin a new one with `initialize`")]
    UnknownSession,
    #[error("the session ended before there was an answer: begin a new one with `initialize`")]
    SessionEnded,
    #[error(
        "there is no `session` in the address: open `/sse`, and post to the address that its \
         first event names"
    )]
    NoOlderSession,
    #[error(
        "`Last-Event-ID` is of no event that this session was sent: leave it out to hear what is \
         new"
    )]
    UnknownEvent,
    #[error(
        "the stream of this `Last-Event-ID` is not kept any more: leave it out to hear what is \
         new; what was said there, and the answer to its call, is lost"
    )]
    EventGone,
    #[error(
        "this `Last-Event-ID` is of a call that began before xy was restarted, and xy has no \
         record of it: its outcome is unknown; check what was done before calling again"
    )]
    UnknownEarlierCall,
    #[error("{0} sessions are open, which is the most there may be: try again later")]
    TooManySessions(usize),
    #[error("{0} calls and streams of this session are open, which is the most there may be")]
    TooManyStreams(usize),
    #[error("{0} requests are under way, which is the most there may be: try again later")]
    TooManyVisits(usize),
    #[error(
        "xy is being ended: nobody is let in any more, and what was under way has no answer; try \
         again later"
    )]
    Closing,
    #[error("too many connections are open: close some, or try again later")]
    TooManyConnections,
    #[error(
        "this token has {own} of the {most} {what} that there may be, and the rest is for others: \
         end some, or try again later"
    )]
    OverShare { what: Shared, own: usize, most: usize },
    #[error("too many large requests are coming in at the same time: try again later")]
    TooManyBodies,
    #[error("could not generate a session id: {0}")]
    NoRandomness(String),
    #[error(transparent)]
    Frontend(#[from] Refusal),
}

/// Something of which one token has a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shared {
    Sessions,
    Requests,
    Connections,
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sessions => "sessions",
            Self::Requests => "requests at one time",
            Self::Connections => "connections",
        })
    }
}

impl Refused {
    pub(super) fn status(&self) -> StatusCode {
        use Refused as R;
        match self {
            R::NoSuchPath
            | R::UnknownSession
            | R::SessionEnded
            | R::Frontend(Refusal::NoServer(_) | Refusal::NoProfile(_)) => StatusCode::NOT_FOUND,
            R::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            R::Host(_) | R::Origin(_) | R::OtherView(_) | R::Frontend(Refusal::Outside { .. }) => {
                StatusCode::FORBIDDEN
            }
            R::NoToken | R::WrongToken => StatusCode::UNAUTHORIZED,
            R::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            R::Accept | R::AcceptEvents => StatusCode::NOT_ACCEPTABLE,
            R::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            R::BodyBroken
            | R::Version(_)
            | R::NoSession
            | R::NoOlderSession
            | R::UnknownEvent
            | R::UnknownEarlierCall => StatusCode::BAD_REQUEST,
            R::EventGone => StatusCode::GONE,
            R::TooManyStreams(_) | R::OverShare { .. } => StatusCode::TOO_MANY_REQUESTS,
            R::TooManySessions(_)
            | R::TooManyVisits(_)
            | R::TooManyBodies
            | R::TooManyConnections
            | R::Closing
            | R::NoRandomness(_)
            | R::Frontend(Refusal::TooMany(_)) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The word for it among the metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NoSuchPath => "no-such-path",
            Self::Method { .. } => "method",
            Self::Host(_) => "host",
            Self::Origin(_) => "origin",
            Self::NoToken => "no-token",
            Self::WrongToken => "wrong-token",
            Self::OtherView(_) | Self::Frontend(Refusal::Outside { .. }) => "other-view",
            Self::ContentType => "content-type",
            Self::Accept | Self::AcceptEvents => "accept",
            Self::BodyTooLarge { .. } => "body-too-large",
            Self::BodyBroken => "body-broken",
            Self::Version(_) => "version",
            Self::NoSession | Self::NoOlderSession => "no-session",
            Self::UnknownEvent => "unknown-event",
            Self::UnknownEarlierCall => "unknown-earlier-call",
            Self::EventGone => "event-gone",
            Self::UnknownSession => "unknown-session",
            Self::SessionEnded => "session-ended",
            Self::TooManySessions(_) | Self::Frontend(Refusal::TooMany(_)) => "too-many-sessions",
            Self::OverShare { what: Shared::Sessions, .. } => "share-of-sessions",
            Self::OverShare { what: Shared::Requests, .. } => "share-of-requests",
            Self::OverShare { what: Shared::Connections, .. } => "share-of-connections",
            Self::TooManyStreams(_) => "too-many-streams",
            Self::TooManyVisits(_) => "too-many-requests",
            Self::Closing => "closing",
            Self::TooManyBodies => "too-many-bodies",
            Self::TooManyConnections => "too-many-connections",
            Self::NoRandomness(_) => "no-randomness",
            Self::Frontend(Refusal::NoServer(_)) => "no-server",
            Self::Frontend(Refusal::NoProfile(_)) => "no-profile",
        }
    }

    /// Which limit it is about, for people. The limit on connections is told of where it is hit:
    /// a connection that is refused has no owner.
    pub(super) fn limit(&self) -> Option<&'static str> {
        match self {
            Self::TooManySessions(_) | Self::OverShare { what: Shared::Sessions, .. } => {
                Some("HTTP sessions")
            }
            Self::TooManyStreams(_) => Some("calls and streams of one HTTP session"),
            Self::TooManyVisits(_) | Self::OverShare { what: Shared::Requests, .. } => {
                Some("HTTP requests without a session")
            }
            Self::TooManyBodies => Some("large HTTP requests"),
            Self::Frontend(Refusal::TooMany(_)) => Some("clients"),
            _ => None,
        }
    }

    /// A header that belongs to it.
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

    /// What a person or a client reads.
    pub(super) fn body(&self) -> Vec<u8> {
        self.answer("null")
    }

    /// The same as the answer to a request that is known.
    pub(super) fn answer(&self, id: &str) -> Vec<u8> {
        reply::error(id, self.code(), &self.to_string())
    }

    /// The code of JSON-RPC: of those it leaves to us, one for sessions and one for limits.
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
    fn a_refusal_is_a_json_rpc_error_with_words_for_a_person() {
        let body: serde_json::Value = serde_json::from_slice(&Refused::NoToken.body()).unwrap();
        assert_eq!(body["jsonrpc"], "2.0");
        assert_eq!(body["id"], serde_json::Value::Null);
        assert_eq!(body["error"]["code"], -32600);
        assert!(body["error"]["message"].as_str().unwrap().contains("`xy info --token`"));
    }

    #[test]
    fn what_a_client_sent_is_quoted_and_cannot_break_the_answer() {
        let body = Refused::Host("a\"}\nb".to_owned()).body();
        assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
    }

    #[test]
    fn each_refusal_has_its_status_and_header() {
        for (refused, status, header) in [
            (Refused::NoSuchPath, 404, None),
            (Refused::Method { allow: "GET" }, 405, Some(("allow", "GET"))),
            (Refused::Host(String::new()), 403, None),
            (Refused::NoToken, 401, Some(("www-authenticate", "Bearer realm=\"xy\""))),
            (Refused::ContentType, 415, None),
            (Refused::Accept, 406, None),
            (Refused::BodyTooLarge { max: 1 }, 413, None),
            (Refused::NoSession, 400, None),
            (Refused::UnknownSession, 404, None),
            (Refused::NoOlderSession, 400, None),
            (Refused::UnknownEvent, 400, None),
            (Refused::EventGone, 410, None),
            (Refused::TooManySessions(1), 503, Some(("retry-after", "5"))),
            (Refused::TooManyBodies, 503, Some(("retry-after", "5"))),
            (Refused::TooManyVisits(1), 503, Some(("retry-after", "5"))),
            (Refused::Closing, 503, Some(("retry-after", "5"))),
            (Refused::TooManyConnections, 503, Some(("retry-after", "5"))),
            (
                Refused::OverShare { what: Shared::Sessions, own: 3, most: 4 },
                429,
                Some(("retry-after", "1")),
            ),
            (Refused::TooManyStreams(1), 429, Some(("retry-after", "1"))),
            (Refused::Frontend(Refusal::NoServer(String::new())), 404, None),
            (Refused::Frontend(Refusal::TooMany(1)), 503, Some(("retry-after", "5"))),
        ] {
            assert_eq!(
                (refused.status().as_u16(), refused.header()),
                (status, header),
                "{refused}"
            );
        }
    }
}
