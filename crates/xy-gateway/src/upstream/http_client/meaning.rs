//! What the head of an answer means. Pure.

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, RETRY_AFTER, WWW_AUTHENTICATE};
use xy_protocol::control::quoted_within;
use xy_protocol::error::{CallError, ErrorKind};

/// How many characters of a challenge are shown.
const SHOWN_OF_CHALLENGE: usize = 200;

/// Shorter values of headers are no secrets: to hide them would hide words.
const SHORTEST_SECRET: usize = 4;

/// What an answer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meaning {
    /// One message, or several in an array.
    Message,
    /// Messages as they come.
    Events,
    /// It was taken, and there is nothing to say.
    Taken,
    /// The server does not know the session any more, and has done nothing.
    Forgotten,
    /// It was not done.
    Refused(Refusal),
    /// The server could not do it, and nobody knows how far it came.
    Failed(StatusCode),
    /// It is no answer at all, but this.
    Strange(String),
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// 401, so nothing else will be done either. Holds the challenge; after `explained`, the
    /// reason to show.
    Unauthorized(String),
    /// Whoever asks may not do this.
    Forbidden,
    /// Too many ask; perhaps it says when to ask again.
    TooMany(Option<String>),
    /// Anything else.
    Other(StatusCode),
}

/// What an answer means to one who asked within a session, or not.
pub(super) fn meaning(status: StatusCode, headers: &HeaderMap, has_session: bool) -> Meaning {
    match status.as_u16() {
        200..=299 => content(status, headers),
        401 => Meaning::Refused(Refusal::Unauthorized(challenge(headers))),
        403 => Meaning::Refused(Refusal::Forbidden),
        404 if has_session => Meaning::Forgotten,
        429 => Meaning::Refused(Refusal::TooMany(retry_after(headers))),
        400..=499 => Meaning::Refused(Refusal::Other(status)),
        500..=599 => Meaning::Failed(status),
        _ => Meaning::Strange(format!("it answered {status}")),
    }
}

fn content(status: StatusCode, headers: &HeaderMap) -> Meaning {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if kind.eq_ignore_ascii_case(b"application/json") {
        Meaning::Message
    } else if kind.eq_ignore_ascii_case(b"text/event-stream") {
        Meaning::Events
    } else if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) || kind.is_empty() {
        Meaning::Taken
    } else {
        let kind = xy_protocol::control::quoted(&String::from_utf8_lossy(kind));
        Meaning::Strange(format!("it answered with `{kind}`, which is no answer of an MCP server"))
    }
}

/// Returns what a server that answered 401 wants, in its own words.
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
        // Most are a scheme and the secret itself.
        let secret = value.split_once(' ').map_or(value, |(_, secret)| secret);
        for hidden in [value, secret.trim()].into_iter().filter(|it| it.len() >= SHORTEST_SECRET) {
            shown = shown.replace(hidden, "…");
        }
    }
    quoted_within(&shown, SHOWN_OF_CHALLENGE)
}

fn retry_after(headers: &HeaderMap) -> Option<String> {
    let after = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let is_number = !after.is_empty() && after.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| format!("{after} s"))
}

impl Refusal {
    /// Explains a 401 to people: what the server wants, and what of that was `sent`, the headers
    /// of its settings.
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

    /// The same for people.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Unauthorized(why) => format!("it answered 401 Unauthorized: {why}"),
            Self::Forbidden => "it answered 403 Forbidden".to_owned(),
            Self::TooMany(_) => "it answered 429 Too Many Requests".to_owned(),
            Self::Other(status) => format!("it answered {status}"),
        }
    }

    /// What is said of a call that was refused like this.
    pub(super) fn fault(&self, server: &str) -> CallError {
        let kind = match self {
            Self::Unauthorized(_) | Self::Forbidden => ErrorKind::NotAllowed,
            Self::TooMany(_) => ErrorKind::QueueFull,
            Self::Other(_) => ErrorKind::Internal,
        };
        let fault =
            CallError::new(kind, format!("not done: `{server}` refused it")).cause(self.words());
        match self {
            Self::Unauthorized(_) => {
                fault.hint(format!("check `headers` in the settings of `{server}`"))
            }
            Self::Forbidden => fault,
            Self::TooMany(Some(after)) => fault.hint(format!("try again in {after}")),
            Self::TooMany(None) => fault.hint("try again later"),
            Self::Other(_) => fault.hint(format!("check the address of `{server}`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, header: Option<(&'static str, &str)>) -> Meaning {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(name, value.parse().unwrap());
        }
        meaning(StatusCode::from_u16(status).unwrap(), &headers, true)
    }

    #[test]
    fn a_good_answer_is_told_by_its_type() {
        let of = |kind| read(200, Some(("content-type", kind)));
        assert_eq!(of("application/json"), Meaning::Message);
        assert_eq!(of("Application/JSON; charset=utf-8"), Meaning::Message);
        assert_eq!(of("text/event-stream;charset=utf-8"), Meaning::Events);
        assert!(matches!(of("text/html"), Meaning::Strange(why) if why.contains("text/html")));
        assert_eq!(read(202, None), Meaning::Taken);
        assert_eq!(read(202, Some(("content-type", "text/plain"))), Meaning::Taken);
        assert_eq!(read(200, None), Meaning::Taken);
    }

    #[test]
    fn a_refusal_is_not_a_failure() {
        assert_eq!(read(404, None), Meaning::Forgotten);
        let without = meaning(StatusCode::NOT_FOUND, &HeaderMap::new(), false);
        assert_eq!(without, Meaning::Refused(Refusal::Other(StatusCode::NOT_FOUND)));
        let challenge = "Bearer realm=\"x\"";
        assert_eq!(
            read(401, Some(("www-authenticate", challenge))),
            Meaning::Refused(Refusal::Unauthorized(challenge.to_owned()))
        );
        assert_eq!(
            read(429, Some(("retry-after", "7"))),
            Meaning::Refused(Refusal::TooMany(Some("7 s".to_owned())))
        );
        assert_eq!(read(503, None), Meaning::Failed(StatusCode::SERVICE_UNAVAILABLE));
        assert!(matches!(read(303, None), Meaning::Strange(_)));
    }

    #[test]
    fn people_are_told_what_to_do() {
        let told = |refusal: Refusal| {
            let fault = refusal.fault("a");
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
    fn a_challenge_is_told_without_the_secrets_that_were_sent() {
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
        assert!(long.chars().count() < 2 * SHOWN_OF_CHALLENGE, "{long}");
    }
}
