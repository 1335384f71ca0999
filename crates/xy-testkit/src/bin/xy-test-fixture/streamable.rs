//! Streamable HTTP at `/mcp`: a session each, a stream for each request, and one for the rest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::legacy::{self, Heard, KNOWN};
use crate::reply::{Body, Reply, Style};
use crate::request::takes_time;
use crate::session::Session;
use crate::stream::{Out, Stream};
use crate::web::{Ask, Serve};
use xy_testkit::json::Members;

/// More sessions than any test leaves open.
const MOST_SESSIONS: usize = 2000;

/// More streams than any test has in one session; the oldest is forgotten.
const MOST_STREAMS: usize = 1000;

/// The sessions by their ids.
#[derive(Debug, Default)]
pub(crate) struct Door {
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    sessions: BTreeMap<String, Arc<Visit>>,
    begun: u64,
}

/// A session, and its streams by their numbers; 0 is the one for what belongs to no request.
#[derive(Debug)]
struct Visit {
    session: Arc<Session>,
    streams: Mutex<BTreeMap<u64, Arc<Stream>>>,
}

impl Serve for Door {
    fn serve(&self, ask: &Ask) -> Reply {
        if ask.path != "/mcp" {
            return Reply::refusal(404, "there is only `/mcp`");
        }
        let version = ask.header("mcp-protocol-version");
        if version.is_some_and(|it| !KNOWN.contains(&it)) {
            return Reply::refusal(400, "this revision is not known here");
        }
        match ask.method.as_str() {
            "POST" => self.post(ask),
            "GET" => self.found(ask, |visit| get(visit, ask)),
            "DELETE" => self.found(ask, |_| {
                let id = ask.header("mcp-session-id").unwrap_or_default();
                self.all().sessions.remove(id);
                Reply::empty(200)
            }),
            _ => Reply::refusal(405, "POST, GET or DELETE").with("Allow", "GET, POST, DELETE"),
        }
    }
}

impl Door {
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the session that is asked for.
    fn found(&self, ask: &Ask, then: impl FnOnce(&Arc<Visit>) -> Reply) -> Reply {
        let Some(id) = ask.header("mcp-session-id") else {
            return Reply::refusal(400, "in which session?");
        };
        let visit = self.all().sessions.get(id).cloned();
        match visit {
            Some(visit) => then(&visit),
            None => Reply::refusal(404, "there is no such session"),
        }
    }

    fn post(&self, ask: &Ask) -> Reply {
        let accepts = ask.header("accept").unwrap_or_default();
        if !(accepts.contains("application/json") && accepts.contains("text/event-stream")) {
            return Reply::refusal(406, "accept both JSON and a stream of events");
        }
        let Some(message) = Members::of(&ask.body) else {
            return Reply::refusal(400, "this is no message");
        };
        if message.string("method").as_deref() != Some("initialize") {
            return self.found(ask, |visit| visit.hear(&message, ask));
        }
        match self.begin() {
            Some((id, visit)) => visit.hear(&message, ask).with("Mcp-Session-Id", &id),
            None => Reply::refusal(503, "too many sessions"),
        }
    }

    fn begin(&self) -> Option<(String, Arc<Visit>)> {
        let mut all = self.all();
        if all.sessions.len() >= MOST_SESSIONS {
            return None;
        }
        all.begun += 1;
        let id = format!("session-{}-{}", std::process::id(), all.begun);
        let general = Arc::new(Stream::default());
        let session = Session::new(Out::Lasting(Arc::clone(&general)));
        let streams = Mutex::new([(0, general)].into());
        let visit = Arc::new(Visit { session, streams });
        all.sessions.insert(id.clone(), Arc::clone(&visit));
        Some((id, visit))
    }
}

impl Visit {
    fn streams(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, message: &Members, ask: &Ask) -> Reply {
        let stream = Arc::new(Stream::default());
        let out = Out::Stream(Arc::clone(&stream));
        let method = message.string("method").unwrap_or_default();
        let is_call = takes_time(&method, &message.members("params"));
        match legacy::hear(&self.session, &ask.body, &out) {
            Heard::Other => return Reply::empty(202),
            Heard::Nothing => return Reply::refusal(400, "this is no message"),
            Heard::Request => {}
        }
        // What says nothing but its answer is answered as JSON.
        if !is_call && let Some(json) = stream.only_message() {
            return Reply::ok(Body::Json(json));
        }
        let mut streams = self.streams();
        let number = streams.last_key_value().map_or(0, |(number, _)| *number) + 1;
        if streams.len() >= MOST_STREAMS {
            let oldest = streams.keys().copied().find(|number| *number != 0);
            oldest.and_then(|number| streams.remove(&number));
        }
        streams.insert(number, Arc::clone(&stream));
        drop(streams);
        // Older clients take an event without a message for a broken one.
        let is_primed = self.session.state().version == KNOWN[KNOWN.len() - 1];
        let style = Style::Resumable { stream: number, is_primed };
        Reply::ok(Body::Events { reader: stream.read(None), style })
    }
}

/// The stream for what belongs to no request, or what came after an event of any stream.
fn get(visit: &Arc<Visit>, ask: &Ask) -> Reply {
    let (number, last) = match ask.header("last-event-id") {
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
    let stream = visit.streams().get(&number).cloned();
    let Some(stream) = stream else {
        return Reply::refusal(400, "there was no such event");
    };
    let style = Style::Resumable { stream: number, is_primed: false };
    Reply::ok(Body::Events { reader: stream.read(last), style })
}
