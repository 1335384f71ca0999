//! Streamable HTTP of the modern era at `/mcp`: each request is a POST, and its answer is JSON
//! or a stream that ends with it. Whoever hangs up has cancelled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::answer::Answer;
use crate::era::{self, Era};
use crate::legacy::KNOWN;
use crate::meta::{self, Meta};
use crate::reply::{Body, Reply};
use crate::request::Request;
use crate::session::Session;
use crate::stream::{Out, Stream};
use crate::web::{Ask, Serve};
use crate::{headers, modern, streamable};
use xy_testkit::json::{Members, quoted};

/// The door of the modern era.
#[derive(Debug)]
pub(crate) struct Door {
    session: Arc<Session>,
    begun: AtomicU64,
}

/// The door of both eras: each request says which one it is of.
#[derive(Debug, Default)]
pub(crate) struct Both {
    legacy: streamable::Door,
    modern: Door,
}

impl Default for Door {
    fn default() -> Self {
        // Nothing is said that belongs to no request.
        let session = Session::new(Out::Lasting(Arc::default()));
        Self { session, begun: AtomicU64::new(0) }
    }
}

impl Serve for Both {
    fn serve(&self, ask: &Ask) -> Reply {
        let version = ask.header("mcp-protocol-version");
        let is_modern = version.is_some_and(|it| !KNOWN.contains(&it))
            || Members::of(&ask.body).is_some_and(|it| era::is_modern(&it));
        if is_modern { self.modern.serve(ask) } else { self.legacy.serve(ask) }
    }
}

impl Serve for Door {
    fn serve(&self, ask: &Ask) -> Reply {
        if ask.path != "/mcp" {
            return Reply::refusal(404, "there is only `/mcp`");
        }
        if ask.method != "POST" {
            return Reply::refusal(405, "only POST").with("Allow", "POST");
        }
        let accepts = ask.header("accept").unwrap_or_default();
        if !(accepts.contains("application/json") && accepts.contains("text/event-stream")) {
            return Reply::refusal(406, "accept both JSON and a stream of events");
        }
        self.post(ask)
    }
}

impl Door {
    fn post(&self, ask: &Ask) -> Reply {
        let message = Members::of(&ask.body).unwrap_or_default();
        let params = message.members("params");
        let params_text = message.raw("params").unwrap_or("{}").to_owned();
        let (id, method) = match (message.raw("id"), message.string("method")) {
            (Some(id), Some(method)) => (id.to_owned(), method),
            (None, Some(method)) => {
                // A cancellation means nothing here: it would name a request of anybody's.
                if method != "notifications/cancelled" {
                    self.session.notified(&method, &params, params_text);
                }
                return Reply::empty(202);
            }
            (id, None) => {
                let error = r#"{"code":-32700,"message":"this is no request"}"#;
                return refusal(id, error);
            }
        };
        let era = match admit(ask, &message, &method, &params) {
            Ok(meta) => Era::Modern(meta),
            Err(error) => return refusal(Some(&id), &error),
        };
        let key = format!("post-{}", self.begun.fetch_add(1, Ordering::Relaxed));
        let stream = Arc::new(Stream::default());
        let reader = stream.read(None);
        let (session, out) = (Arc::clone(&self.session), Out::Stream(stream));
        let body = Body::Answer(Answer::new(reader, &session, &key));
        Request { session, key, id, method, params_text, params, out, era }.begin();
        Reply::ok(body)
    }
}

/// What a request says about itself, if that agrees with its headers.
fn admit(ask: &Ask, message: &Members, method: &str, params: &Members) -> Result<Meta, String> {
    let version = ask.header("mcp-protocol-version");
    if era::begins_legacy(message) && version.is_none_or(|it| KNOWN.contains(&it)) {
        return Err(meta::unsupported(&params.string("protocolVersion").unwrap_or_default()));
    }
    let meta = Meta::of(params)?;
    headers::check_version(ask, &meta.version).map_err(|why| mismatch(&why))?;
    meta.check_version()?;
    headers::check(ask, method, params).map_err(|why| mismatch(&why))?;
    Ok(meta)
}

fn mismatch(why: &str) -> String {
    format!(r#"{{"code":-32020,"message":{}}}"#, quoted(why))
}

fn refusal(id: Option<&str>, error: &str) -> Reply {
    let body = Body::Json(modern::refusal(id, error));
    Reply { status: 400, headers: Vec::new(), body }
}
