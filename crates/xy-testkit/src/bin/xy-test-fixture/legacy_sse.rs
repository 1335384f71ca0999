//! HTTP+SSE transport of 2024-11-05.
//!
//! `GET /sse` opens a stream, whose first event names the endpoint for POST requests. All
//! responses are sent on the stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::http_server::{HttpHandler, HttpRequest};
use crate::legacy::{self, MessageKind};
use crate::reply::{Body, EventFormat, Reply};
use crate::session::Session;
use crate::stream::{MessageSink, Stream};

/// Maximum number of sessions. Sessions are never removed, because the transport has no message
/// that ends one.
const MAX_SESSIONS: usize = 2000;

/// The HTTP+SSE handler, with its sessions by number.
#[derive(Debug, Default)]
pub(crate) struct Handler {
    sessions: Mutex<BTreeMap<usize, Arc<Session>>>,
}

impl HttpHandler for Handler {
    fn handle(&self, request: &HttpRequest) -> Reply {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        match (request.method.as_str(), path) {
            ("GET", "/sse") => self.create_session(),
            ("POST", "/messages") => self.post(query, request),
            ("GET" | "POST", "/sse" | "/messages") => Reply::refusal(405, "the other method"),
            _ => Reply::refusal(404, "there is only `/sse`"),
        }
    }
}

impl Handler {
    fn sessions(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create_session(&self) -> Reply {
        let mut sessions = self.sessions();
        let number = sessions.len();
        if number >= MAX_SESSIONS {
            return Reply::refusal(503, "too many sessions");
        }
        let stream = Arc::new(Stream::default());
        sessions.insert(number, Session::new(MessageSink::Persistent(Arc::clone(&stream))));
        let event_format =
            EventFormat::LegacySse { endpoint: format!("/messages?session={number}") };
        Reply::ok(Body::Events { reader: stream.read(None), event_format })
    }

    fn post(&self, query: &str, request: &HttpRequest) -> Reply {
        let number = query.strip_prefix("session=").and_then(|it| it.parse().ok());
        let session = number.and_then(|number: usize| self.sessions().get(&number).cloned());
        let Some(session) = session else {
            return Reply::refusal(404, "there is no such session");
        };
        match legacy::handle_message(&session, &request.body, &session.general) {
            MessageKind::Request | MessageKind::Other => Reply::empty(202),
            MessageKind::Invalid => Reply::refusal(400, "this is no message"),
        }
    }
}
