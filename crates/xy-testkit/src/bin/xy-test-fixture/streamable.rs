//! Streamable HTTP of the legacy era at `/mcp`.
//!
//! Each client has a session. A session has one stream per request, and one for messages that
//! belong to no request. Without sessions, all clients share one, and nothing names it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::http_server::{HttpHandler, HttpRequest};
use crate::legacy::{self, LEGACY_VERSIONS, MessageKind};
use crate::reply::{Body, EventFormat, Reply};
use crate::request::takes_time;
use crate::session::Session;
use crate::stream::{MessageSink, Stream};
use xy_testkit::json::Members;

/// Maximum number of open sessions.
const MAX_SESSIONS: usize = 2000;

/// Maximum number of streams in one session. A further stream replaces the oldest.
const MAX_STREAMS: usize = 1000;

/// The handler of legacy Streamable HTTP, with its sessions by id.
#[derive(Debug, Default)]
pub(crate) struct Handler {
    sessions: Mutex<Sessions>,
    /// The session of all clients, if clients have none of their own.
    shared: Option<Arc<HttpSession>>,
}

#[derive(Debug, Default)]
struct Sessions {
    by_id: BTreeMap<String, Arc<HttpSession>>,
    created: u64,
}

/// A session and its streams by number. Stream 0 is for messages that belong to no request.
#[derive(Debug)]
struct HttpSession {
    session: Arc<Session>,
    streams: Mutex<BTreeMap<u64, Arc<Stream>>>,
}

impl HttpHandler for Handler {
    fn handle(&self, request: &HttpRequest) -> Reply {
        if request.path != "/mcp" {
            return Reply::refusal(404, "there is only `/mcp`");
        }
        let version = request.header("mcp-protocol-version");
        if version.is_some_and(|it| !LEGACY_VERSIONS.contains(&it)) {
            return Reply::refusal(400, "this revision is not known here");
        }
        match request.method.as_str() {
            "POST" => self.post(request),
            "GET" | "DELETE" if self.shared.is_some() => {
                Reply::refusal(405, "there are no sessions")
            }
            "GET" => self.with_session(request, |http_session| get(http_session, request)),
            "DELETE" => self.with_session(request, |_| {
                let id = request.header("mcp-session-id").unwrap_or_default();
                self.lock().by_id.remove(id);
                Reply::empty(200)
            }),
            _ => {
                Reply::refusal(405, "POST, GET or DELETE").with_header("Allow", "GET, POST, DELETE")
            }
        }
    }
}

impl Handler {
    /// Creates a handler without sessions.
    pub(crate) fn without_sessions() -> Self {
        Self { shared: Some(HttpSession::new()), ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `then` with the session that the request names, or refuses the request.
    fn with_session(
        &self,
        request: &HttpRequest,
        then: impl FnOnce(&Arc<HttpSession>) -> Reply,
    ) -> Reply {
        if let Some(shared) = &self.shared {
            return then(shared);
        }
        let Some(id) = request.header("mcp-session-id") else {
            return Reply::refusal(400, "in which session?");
        };
        let http_session = self.lock().by_id.get(id).cloned();
        match http_session {
            Some(http_session) => then(&http_session),
            None => Reply::refusal(404, "there is no such session"),
        }
    }

    fn post(&self, request: &HttpRequest) -> Reply {
        let accepts = request.header("accept").unwrap_or_default();
        if !(accepts.contains("application/json") && accepts.contains("text/event-stream")) {
            return Reply::refusal(406, "accept both JSON and a stream of events");
        }
        let Some(message) = Members::of(&request.body) else {
            return Reply::refusal(400, "this is no message");
        };
        if self.shared.is_some() || message.string("method").as_deref() != Some("initialize") {
            return self.with_session(request, |http_session| {
                http_session.handle_message(&message, request)
            });
        }
        match self.create_session() {
            Some((id, http_session)) => {
                http_session.handle_message(&message, request).with_header("Mcp-Session-Id", &id)
            }
            None => Reply::refusal(503, "too many sessions"),
        }
    }

    fn create_session(&self) -> Option<(String, Arc<HttpSession>)> {
        let mut sessions = self.lock();
        if sessions.by_id.len() >= MAX_SESSIONS {
            return None;
        }
        sessions.created += 1;
        let id = format!("session-{}-{}", std::process::id(), sessions.created);
        let http_session = HttpSession::new();
        sessions.by_id.insert(id.clone(), Arc::clone(&http_session));
        Some((id, http_session))
    }
}

impl HttpSession {
    fn new() -> Arc<Self> {
        let general = Arc::new(Stream::default());
        let session = Session::new(MessageSink::Persistent(Arc::clone(&general)));
        let streams = Mutex::new([(0, general)].into());
        Arc::new(Self { session, streams })
    }

    fn streams(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle_message(&self, message: &Members, request: &HttpRequest) -> Reply {
        let stream = Arc::new(Stream::default());
        let out = MessageSink::Stream(Arc::clone(&stream));
        let method = message.string("method").unwrap_or_default();
        let is_call = takes_time(&method, &message.members("params"));
        match legacy::handle_message(&self.session, &request.body, &out) {
            MessageKind::Other => return Reply::empty(202),
            MessageKind::Invalid => return Reply::refusal(400, "this is no message"),
            MessageKind::Request => {}
        }
        // A request that cannot send notifications is answered as JSON.
        if !is_call && let Some(json) = stream.only_message() {
            return Reply::ok(Body::Json(json));
        }
        let mut streams = self.streams();
        let number = streams.last_key_value().map_or(0, |(number, _)| *number) + 1;
        if streams.len() >= MAX_STREAMS {
            let oldest = streams.keys().copied().find(|number| *number != 0);
            oldest.and_then(|number| streams.remove(&number));
        }
        streams.insert(number, Arc::clone(&stream));
        drop(streams);
        // Clients of older revisions reject an event with empty data.
        let has_priming_event =
            self.session.state().version == LEGACY_VERSIONS[LEGACY_VERSIONS.len() - 1];
        let event_format = EventFormat::Resumable { stream: number, has_priming_event };
        Reply::ok(Body::Events { reader: stream.read(None), event_format })
    }
}

/// Returns the stream of unrelated messages, or resumes any stream after `Last-Event-ID`.
fn get(http_session: &Arc<HttpSession>, request: &HttpRequest) -> Reply {
    let (number, last) = match request.header("last-event-id") {
        None => (0, None),
        Some(id) => {
            let parts = id.split_once('-').and_then(|(stream, event)| {
                Some((stream.parse().ok()?, event.parse::<usize>().ok()?))
            });
            let Some((stream, event)) = parts else {
                return Reply::refusal(400, "there was no such event");
            };
            (stream, Some(event))
        }
    };
    let stream = http_session.streams().get(&number).cloned();
    let Some(stream) = stream else {
        return Reply::refusal(400, "there was no such event");
    };
    let event_format = EventFormat::Resumable { stream: number, has_priming_event: false };
    Reply::ok(Body::Events { reader: stream.read(last), event_format })
}
