//! The classification of HTTP responses by their status and headers. Pure.

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, RETRY_AFTER, WWW_AUTHENTICATE};
use xy_protocol::control::quoted_within;

use crate::fault::{RefusalKind, ServerFault};

/// Maximum number of characters of a challenge that are shown.
const MAX_SHOWN_CHALLENGE: usize = 200;

/// Minimum length of a secret. Shorter header values are no secrets, and masking them would mask
/// ordinary words.
const MIN_SECRET_LENGTH: usize = 4;

/// The meaning of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResponseClass {
    /// One message, or a batch.
    Message,
    /// An event stream of messages.
    Events,
    /// The message was accepted, and there is nothing to return.
    Accepted,
    /// The server does not know the session, and has done nothing.
    SessionUnknown,
    /// The request was not done.
    Refused(Refusal),
    /// The server failed, and the outcome is unknown.
    Failed(StatusCode),
    /// No valid response, for this reason.
    Invalid(String),
}

/// The reason why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// 401: later requests will be refused too. Holds the challenge, or after `explained` the
    /// reason to show.
    Unauthorized(String),
    /// 403.
    Forbidden,
    /// 429, with the delay until the next attempt if the server says one.
    TooMany(Option<String>),
    /// Any other status.
    Other(StatusCode),
}

/// Classifies a response to a request within a session, or without one.
pub(super) fn classify(
    status: StatusCode,
    headers: &HeaderMap,
    has_session: bool,
) -> ResponseClass {
    match status.as_u16() {
        200..=299 => content(status, headers),
        401 => ResponseClass::Refused(Refusal::Unauthorized(challenge(headers))),
        403 => ResponseClass::Refused(Refusal::Forbidden),
        404 if has_session => ResponseClass::SessionUnknown,
        429 => ResponseClass::Refused(Refusal::TooMany(retry_after(headers))),
        400..=499 => ResponseClass::Refused(Refusal::Other(status)),
        500..=599 => ResponseClass::Failed(status),
        _ => ResponseClass::Invalid(format!("it answered {status}")),
    }
}

fn content(status: StatusCode, headers: &HeaderMap) -> ResponseClass {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if kind.eq_ignore_ascii_case(b"application/json") {
        ResponseClass::Message
    } else if kind.eq_ignore_ascii_case(b"text/event-stream") {
        ResponseClass::Events
    } else if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) || kind.is_empty() {
        ResponseClass::Accepted
    } else {
        let kind = xy_protocol::control::quoted(&String::from_utf8_lossy(kind));
        ResponseClass::Invalid(format!("it answered with `{kind}`, which is not an MCP response"))
    }
}

/// Returns the challenge of a server that answered 401.
fn challenge(headers: &HeaderMap) -> String {
    let all = headers.get_all(WWW_AUTHENTICATE).iter();
    let all: Vec<_> = all.map(|one| String::from_utf8_lossy(one.as_bytes())).collect();
    all.join(", ")
}

/// Returns a challenge for people, without any secret of the headers that were sent.
fn without_secrets(challenge: &str, sent: &HeaderMap) -> String {
    let mut shown = challenge.to_owned();
    for value in sent.values().map(|value| String::from_utf8_lossy(value.as_bytes())) {
        let value = &*value;
        // Most values are a scheme and the secret itself.
        let secret = value.split_once(' ').map_or(value, |(_, secret)| secret);
        for hidden in [value, secret.trim()].into_iter().filter(|it| it.len() >= MIN_SECRET_LENGTH)
        {
            shown = shown.replace(hidden, "…");
        }
    }
    quoted_within(&shown, MAX_SHOWN_CHALLENGE)
}

fn retry_after(headers: &HeaderMap) -> Option<String> {
    let after = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let is_number = !after.is_empty() && after.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| format!("{after} s"))
}

impl Refusal {
    /// Explains a 401 to people: what the server wants, and what was `sent` of it, the headers from
    /// its settings.
    pub(super) fn explained(self, sent: &HeaderMap) -> Self {
        let Self::Unauthorized(challenge) = self else { return self };
        let missing = if sent.contains_key(AUTHORIZATION) {
            "the `Authorization` in its `headers` was refused"
        } else {
            "no `Authorization` is in its `headers`"
        };
        let wants = match without_secrets(&challenge, sent) {
            none if none.is_empty() => String::new(),
            wants => format!("it wants `{wants}`, and "),
        };
        Self::Unauthorized(format!("{wants}{missing}"))
    }

    /// Returns the refusal for people.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Unauthorized(why) => format!("it answered 401 Unauthorized: {why}"),
            Self::Forbidden => "it answered 403 Forbidden".to_owned(),
            Self::TooMany(_) => "it answered 429 Too Many Requests".to_owned(),
            Self::Other(status) => format!("it answered {status}"),
        }
    }

    /// Returns the error of a call that was refused.
    pub(super) fn fault(&self) -> ServerFault {
        let kind = match self {
            Self::Unauthorized(_) => RefusalKind::Unauthorized,
            Self::Forbidden => RefusalKind::Forbidden,
            Self::TooMany(after) => RefusalKind::TooMany(after.clone()),
            Self::Other(_) => RefusalKind::Other,
        };
        ServerFault::Refused(kind, self.words())
    }
}

#[cfg(test)]
mod tests {
    use xy_protocol::server::ServerName;

    use super::*;

    fn read(status: u16, header: Option<(&'static str, &str)>) -> ResponseClass {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(name, value.parse().unwrap());
        }
        classify(StatusCode::from_u16(status).unwrap(), &headers, true)
    }

    #[test]
    fn successful_response_is_classified_by_content_type() {
        let of = |kind| read(200, Some(("content-type", kind)));
        assert_eq!(of("application/json"), ResponseClass::Message);
        assert_eq!(of("Application/JSON; charset=utf-8"), ResponseClass::Message);
        assert_eq!(of("text/event-stream;charset=utf-8"), ResponseClass::Events);
        assert!(
            matches!(of("text/html"), ResponseClass::Invalid(why) if why.contains("text/html"))
        );
        assert_eq!(read(202, None), ResponseClass::Accepted);
        assert_eq!(read(202, Some(("content-type", "text/plain"))), ResponseClass::Accepted);
        assert_eq!(read(200, None), ResponseClass::Accepted);
    }

    #[test]
    fn refusals_differ_from_failures() {
        assert_eq!(read(404, None), ResponseClass::SessionUnknown);
        let without = classify(StatusCode::NOT_FOUND, &HeaderMap::new(), false);
        assert_eq!(without, ResponseClass::Refused(Refusal::Other(StatusCode::NOT_FOUND)));
        let challenge = "Bearer realm=\"x\"";
        assert_eq!(
            read(401, Some(("www-authenticate", challenge))),
            ResponseClass::Refused(Refusal::Unauthorized(challenge.to_owned()))
        );
        assert_eq!(
            read(429, Some(("retry-after", "7"))),
            ResponseClass::Refused(Refusal::TooMany(Some("7 s".to_owned())))
        );
        assert_eq!(read(503, None), ResponseClass::Failed(StatusCode::SERVICE_UNAVAILABLE));
        assert!(matches!(read(303, None), ResponseClass::Invalid(_)));
    }

    #[test]
    fn refusals_have_hints() {
        let told = |refusal: Refusal| {
            let fault = refusal.fault().named(&ServerName::new("a").unwrap());
            format!("{fault}; {}", fault.hint.as_deref().unwrap_or_default())
        };
        assert_eq!(
            told(Refusal::Unauthorized(String::new()).explained(&HeaderMap::new())),
            "not done: `a` refused it: it answered 401 Unauthorized: no `Authorization` is in its `headers`; check `headers` in the settings of `a`"
        );
        assert_eq!(
            told(Refusal::TooMany(Some("7 s".to_owned()))),
            "not done: `a` refused it: it answered 429 Too Many Requests; try again in 7 s"
        );
    }

    #[test]
    fn challenge_is_shown_without_secrets() {
        let mut sent = HeaderMap::new();
        sent.insert(AUTHORIZATION, "Bearer s3cret".parse().unwrap());
        sent.insert("x-api-key", "k3y-of-mine".parse().unwrap());
        sent.insert("x-flag", "a".parse().unwrap());
        for (challenge, shown) in [
            ("", "the `Authorization` in its `headers` was refused"),
            (
                r#"Bearer error="invalid_token""#,
                r#"it wants `Bearer error="invalid_token"`, and the `Authorization` in its `headers` was refused"#,
            ),
            (
                "Bearer s3cret k3y-of-mine a s3cret",
                "it wants `… … a …`, and the `Authorization` in its `headers` was refused",
            ),
        ] {
            let told = Refusal::Unauthorized(challenge.to_owned()).explained(&sent);
            assert_eq!(told, Refusal::Unauthorized(shown.to_owned()));
        }
        let long = Refusal::Unauthorized("x".repeat(10_000)).explained(&sent).words();
        assert!(long.chars().count() < 2 * MAX_SHOWN_CHALLENGE, "{long}");
    }
}
