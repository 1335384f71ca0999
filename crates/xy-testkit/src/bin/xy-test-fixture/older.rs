//! HTTP+SSE of 2024-11-05: `GET /sse` is a stream that first names the place to post to;
//! everything is answered on the stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::legacy::{self, Heard};
use crate::reply::{Body, Reply, Style};
use crate::session::Session;
use crate::stream::{Out, Stream};
use crate::web::{Ask, Serve};

/// More sessions than any test begins. One lasts as long as the process: nothing tells that
/// it is over.
const MOST_SESSIONS: usize = 2000;

/// The sessions by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Door {
    sessions: Mutex<BTreeMap<usize, Arc<Session>>>,
}

impl Serve for Door {
    fn serve(&self, ask: &Ask) -> Reply {
        let (path, query) = ask.path.split_once('?').unwrap_or((&ask.path, ""));
        match (ask.method.as_str(), path) {
            ("GET", "/sse") => self.begin(),
            ("POST", "/messages") => self.post(query, ask),
            ("GET" | "POST", "/sse" | "/messages") => Reply::refusal(405, "the other method"),
            _ => Reply::refusal(404, "there is only `/sse`"),
        }
    }
}

impl Door {
    fn sessions(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Reply {
        let mut sessions = self.sessions();
        let number = sessions.len();
        if number >= MOST_SESSIONS {
            return Reply::refusal(503, "too many sessions");
        }
        let stream = Arc::new(Stream::default());
        sessions.insert(number, Session::new(Out::Lasting(Arc::clone(&stream))));
        let style = Style::Older { endpoint: format!("/messages?session={number}") };
        Reply::ok(Body::Events { reader: stream.read(None), style })
    }

    fn post(&self, query: &str, ask: &Ask) -> Reply {
        let number = query.strip_prefix("session=").and_then(|it| it.parse().ok());
        let session = number.and_then(|number: usize| self.sessions().get(&number).cloned());
        let Some(session) = session else {
            return Reply::refusal(404, "there is no such session");
        };
        match legacy::hear(&session, &ask.body, &session.general) {
            Heard::Request | Heard::Other => Reply::empty(202),
            Heard::Nothing => Reply::refusal(400, "this is no message"),
        }
    }
}
