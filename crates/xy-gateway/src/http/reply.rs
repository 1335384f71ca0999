//! What goes back to a client, as hyper wants it.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, VARY,
};
use hyper::{Response, StatusCode};

use super::connection::ConnTimers;
use super::refused::Refused;
use super::request::SESSION;
use super::session::SessionId;
use super::stream::EventStream;
use crate::param_headers::PREFIX;

pub(super) type Reply = Response<Body>;

/// The body of an answer: there already, or events as they come.
#[derive(Debug)]
pub(super) struct Body {
    content: Content,
    /// Told when this is done with.
    answers: Option<Rc<ConnTimers>>,
}

#[derive(Debug)]
enum Content {
    Whole(Bytes),
    Events(EventStream),
}

impl Body {
    fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { content: Content::Whole(bytes.into()), answers: None }
    }

    /// Tells `pulse` once all of it has been taken, or nobody wants it any more.
    pub(super) fn answers(&mut self, pulse: Rc<ConnTimers>) {
        self.answers = Some(pulse);
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(pulse) = &self.answers {
            pulse.answered();
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self { content, answers } = self.get_mut();
        match content {
            Content::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Content::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Content::Events(events) => {
                let next = events.poll_next(context);
                if events.lets_go()
                    && let Some(pulse) = answers
                {
                    pulse.leave(); // To go on with the same connection would win nothing.
                }
                next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.is_empty(),
            Content::Events(events) => events.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Events(_) => SizeHint::default(),
        }
    }
}

fn reply(status: StatusCode, kind: &'static str, body: Body) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// JSON, all of it.
pub(super) fn json(status: StatusCode, json: impl Into<Bytes>) -> Reply {
    reply(status, "application/json", Body::whole(json))
}

/// A few words, or numbers, for people and programs.
pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Reply {
    reply(status, "text/plain; charset=utf-8", Body::whole(text))
}

/// Nothing but a status.
pub(super) fn nothing(status: StatusCode) -> Reply {
    let mut reply = Response::new(Body::whole(Bytes::new()));
    *reply.status_mut() = status;
    reply
}

/// Events as they come.
pub(super) fn events(stream: EventStream) -> Reply {
    as_events(Body { content: Content::Events(stream), answers: None })
}

/// Events that are all there already.
pub(super) fn whole_events(events: Bytes) -> Reply {
    as_events(Body::whole(events))
}

fn as_events(body: Body) -> Reply {
    let mut reply = reply(StatusCode::OK, "text/event-stream", body);
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies in between would else gather events before they pass them on.
    let buffering = HeaderName::from_static("x-accel-buffering");
    headers.insert(buffering, HeaderValue::from_static("no"));
    reply
}

/// That it is not served, and why.
pub(super) fn refused(refused: &Refused) -> Reply {
    refused_with(refused, refused.body())
}

/// The same as the answer to a request that is known.
pub(super) fn refused_to(refused: &Refused, id: &str) -> Reply {
    refused_with(refused, refused.answer(id))
}

fn refused_with(refused: &Refused, body: Vec<u8>) -> Reply {
    let mut reply = json(refused.status(), body);
    if let Some((name, value)) = refused.header() {
        let name = HeaderName::from_static(name);
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    reply
}

/// Tells the client its session.
pub(super) fn set_session(reply: &mut Reply, id: &SessionId) {
    let id = HeaderValue::try_from(id.as_str()).expect("letters and digits may be in a header");
    reply.headers_mut().insert(SESSION, id);
}

/// What a browser is told before its page may ask.
pub(super) fn preflight(asked: &HeaderMap) -> Reply {
    let mut reply = nothing(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(asked));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    reply
}

/// Which headers a page may send. Those that say what arguments say are called as tools want
/// them to be.
fn allowed_headers(asked: &HeaderMap) -> HeaderValue {
    const ALWAYS: &str = "authorization, content-type, accept, mcp-session-id, \
                          mcp-protocol-version, mcp-method, mcp-name, last-event-id";
    let wanted = asked.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|it| it.to_str().ok());
    let wanted = wanted.unwrap_or_default().split(',').map(str::trim);
    let of_arguments = wanted.filter(|name| name.to_ascii_lowercase().starts_with(PREFIX));
    let all: Vec<&str> = std::iter::once(ALWAYS).chain(of_arguments).collect();
    HeaderValue::try_from(all.join(", ")).unwrap_or(HeaderValue::from_static(ALWAYS))
}

/// Lets a page of this machine read the answer.
pub(super) fn allow_page(reply: &mut Reply, origin: HeaderValue) {
    let headers = reply.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("mcp-session-id"));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
}
