//! Streamable HTTP of the modern era at `/mcp`.
//!
//! Each request is a POST. Its response is JSON, or a stream that ends with the response. A
//! client that disconnects early cancels the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::era::{self, Era};
use crate::http_server::{HttpHandler, HttpRequest};
use crate::legacy::LEGACY_VERSIONS;
use crate::meta::{self, Meta};
use crate::modern_response::ModernResponse;
use crate::reply::{Body, Reply};
use crate::request::Request;
use crate::session::Session;
use crate::stream::{MessageSink, Stream};
use crate::{headers, modern, streamable};
use xy_testkit::json::{Members, quoted};

/// The handler of the modern era.
#[derive(Debug)]
pub(crate) struct Handler {
    session: Arc<Session>,
    next_key: AtomicU64,
}

/// The handler of both eras. Each request selects its era.
#[derive(Debug, Default)]
pub(crate) struct BothErasHandler {
    legacy: streamable::Handler,
    modern: Handler,
}

impl BothErasHandler {
    /// Creates a handler whose legacy era has no sessions.
    pub(crate) fn without_sessions() -> Self {
        Self { legacy: streamable::Handler::without_sessions(), ..Self::default() }
    }
}

impl Default for Handler {
    fn default() -> Self {
        // The modern era has no messages outside of requests.
        let session = Session::new(MessageSink::Persistent(Arc::default()));
        Self { session, next_key: AtomicU64::new(0) }
    }
}

impl HttpHandler for BothErasHandler {
    fn handle(&self, request: &HttpRequest) -> Reply {
        let version = request.header("mcp-protocol-version");
        let is_modern = version.is_some_and(|it| !LEGACY_VERSIONS.contains(&it))
            || Members::of(&request.body).is_some_and(|it| era::is_modern(&it));
        if is_modern { self.modern.handle(request) } else { self.legacy.handle(request) }
    }
}

impl HttpHandler for Handler {
    fn handle(&self, request: &HttpRequest) -> Reply {
        if request.path != "/mcp" {
            return Reply::refusal(404, "there is only `/mcp`");
        }
        if request.method != "POST" {
            return Reply::refusal(405, "only POST").with_header("Allow", "POST");
        }
        let accepts = request.header("accept").unwrap_or_default();
        if !(accepts.contains("application/json") && accepts.contains("text/event-stream")) {
            return Reply::refusal(406, "accept both JSON and a stream of events");
        }
        self.post(request)
    }
}

impl Handler {
    fn post(&self, request: &HttpRequest) -> Reply {
        let message = Members::of(&request.body).unwrap_or_default();
        let params = message.members("params");
        let params_text = message.raw("params").unwrap_or("{}").to_owned();
        let (id, method) = match (message.raw("id"), message.string("method")) {
            (Some(id), Some(method)) => (id.to_owned(), method),
            (None, Some(method)) => {
                // Ids of different clients may be equal, so a cancellation by id is ignored.
                if method != "notifications/cancelled" {
                    self.session.handle_notification(&method, &params, params_text);
                }
                return Reply::empty(202);
            }
            (id, None) => {
                let error = r#"{"code":-32700,"message":"this is no request"}"#;
                return refusal(id, error);
            }
        };
        let era = match admit(request, &message, &method, &params) {
            Ok(meta) => Era::Modern(meta),
            Err(error) => return refusal(Some(&id), &error),
        };
        let key = format!("post-{}", self.next_key.fetch_add(1, Ordering::Relaxed));
        let stream = Arc::new(Stream::default());
        let reader = stream.read(None);
        let (session, out) = (Arc::clone(&self.session), MessageSink::Stream(stream));
        let body = Body::ModernResponse(ModernResponse::new(reader, &session, &key));
        Request { session, key, id, method, params_text, params, out, era }.begin();
        Reply::ok(body)
    }
}

/// Returns the metadata of a request if its headers agree with its body, otherwise an error.
fn admit(
    request: &HttpRequest,
    message: &Members,
    method: &str,
    params: &Members,
) -> Result<Meta, String> {
    let version = request.header("mcp-protocol-version");
    if era::begins_legacy(message) && version.is_none_or(|it| LEGACY_VERSIONS.contains(&it)) {
        return Err(meta::unsupported(&params.string("protocolVersion").unwrap_or_default()));
    }
    let meta = Meta::parse(params)?;
    headers::check_version(request, &meta.version).map_err(|why| mismatch(&why))?;
    meta.check_version()?;
    headers::check(request, method, params).map_err(|why| mismatch(&why))?;
    Ok(meta)
}

fn mismatch(why: &str) -> String {
    format!(r#"{{"code":-32020,"message":{}}}"#, quoted(why))
}

fn refusal(id: Option<&str>, error: &str) -> Reply {
    let body = Body::Json(modern::refusal(id, error));
    Reply { status: 400, headers: Vec::new(), body }
}
