//! HTTP replies.

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
use xy_mcp::param_headers::PREFIX;

use crate::conn_timers::ConnTimers;
use crate::error::HttpError;
use crate::request::SESSION;
use crate::session::SessionId;
use crate::stream::EventStream;

pub(super) type Reply = Response<Body>;

/// The body of a reply: complete, or an event stream.
#[derive(Debug)]
pub(super) struct Body {
    content: Content,
    /// Informed when the body is dropped.
    timers: Option<Rc<ConnTimers>>,
}

#[derive(Debug)]
enum Content {
    Whole(Bytes),
    Events(EventStream),
}

impl Body {
    fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { content: Content::Whole(bytes.into()), timers: None }
    }

    /// Informs `timers` once the body was sent or is no longer needed.
    pub(super) fn set_timers(&mut self, timers: Rc<ConnTimers>) {
        self.timers = Some(timers);
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(timers) = &self.timers {
            timers.finish_response();
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
        let Self { content, timers } = self.get_mut();
        match content {
            Content::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Content::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Content::Events(events) => {
                let next = events.poll_next(context);
                if events.is_released()
                    && let Some(timers) = timers
                {
                    // Continuing on this connection would gain nothing.
                    timers.close_after_response();
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

/// Returns a complete JSON reply.
pub(super) fn json(status: StatusCode, json: impl Into<Bytes>) -> Reply {
    reply(status, "application/json", Body::whole(json))
}

/// Returns a plain text reply.
pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Reply {
    reply(status, "text/plain; charset=utf-8", Body::whole(text))
}

/// Returns a reply without a body.
pub(super) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Body::whole(Bytes::new()));
    *reply.status_mut() = status;
    reply
}

/// Returns an event stream.
pub(super) fn events(stream: EventStream) -> Reply {
    as_events(Body { content: Content::Events(stream), timers: None })
}

/// Returns a complete list of events.
pub(super) fn whole_events(events: Bytes) -> Reply {
    as_events(Body::whole(events))
}

fn as_events(body: Body) -> Reply {
    let mut reply = reply(StatusCode::OK, "text/event-stream", body);
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Stops proxies from buffering events.
    let buffering = HeaderName::from_static("x-accel-buffering");
    headers.insert(buffering, HeaderValue::from_static("no"));
    reply
}

/// Returns the reply for a refused request.
pub(super) fn error_response(error: &HttpError) -> Reply {
    error_with_body(error, error.body())
}

/// Returns the reply for a refused request whose JSON-RPC id is known.
pub(super) fn error_response_to(error: &HttpError, id: &str) -> Reply {
    error_with_body(error, error.response(id))
}

fn error_with_body(error: &HttpError, body: Vec<u8>) -> Reply {
    let mut reply = json(error.status(), body);
    if let Some((name, value)) = error.header() {
        let name = HeaderName::from_static(name);
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    reply
}

/// Sets the session id header.
pub(super) fn set_session(reply: &mut Reply, id: &SessionId) {
    let id = HeaderValue::try_from(id.as_str()).expect("letters and digits may be in a header");
    reply.headers_mut().insert(SESSION, id);
}

/// Returns the reply to a CORS preflight request.
pub(super) fn preflight(request: &HeaderMap) -> Reply {
    let mut reply = empty(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(request));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    reply
}

/// Returns the headers that a page may send. The names of parameter headers depend on the tools, so
/// all requested ones with their prefix are allowed.
fn allowed_headers(request: &HeaderMap) -> HeaderValue {
    const ALWAYS: &str = "authorization, content-type, accept, mcp-session-id, \
                          mcp-protocol-version, mcp-method, mcp-name, last-event-id";
    let wanted = request.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|it| it.to_str().ok());
    let wanted = wanted.unwrap_or_default().split(',').map(str::trim);
    let of_arguments = wanted.filter(|name| name.to_ascii_lowercase().starts_with(PREFIX));
    let all: Vec<&str> = std::iter::once(ALWAYS).chain(of_arguments).collect();
    HeaderValue::try_from(all.join(", ")).unwrap_or(HeaderValue::from_static(ALWAYS))
}

/// Allows the page that sent the request to read the reply.
pub(super) fn allow_page(reply: &mut Reply, origin: HeaderValue) {
    let headers = reply.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("mcp-session-id"));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
}
