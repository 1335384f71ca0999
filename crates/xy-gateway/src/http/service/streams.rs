//! Streams of a session that a client opens or resumes, and the older transport, which is one.

use std::rc::Rc;

use hyper::StatusCode;
use hyper::body::Bytes;
use xy_mcp::envelope::{self, Message};

use super::super::event::{self, EventId};
use super::super::guard::Identity;
use super::super::received::Received;
use super::super::refused::Refused;
use super::super::reply::{self, Reply};
use super::super::route::Endpoint;
use super::super::session::{Earlier, Session, Sessions, Transport};
use super::super::session_streams::Lease;
use super::super::stream::EventStream;
use super::HttpService;
use crate::error_log::FailedRequest;
use crate::frontend::{Accepted, Responder as _, Route};

/// The answer to a call of an earlier daemon.
const OUTCOME_UNKNOWN_CODE: i64 = -32010;
const OUTCOME_UNKNOWN: &str = "outcome unknown: xy was restarted before there was an answer; \
                               check what was done before calling again";

/// The notification for a client whose stream began with an earlier daemon.
const MAY_HAVE_MISSED: &str = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"warning","logger":"xy","data":"xy was restarted: events of this stream may be missing"}}"#;

impl HttpService {
    pub(super) fn listen(&self, session: &Rc<Session>) -> Result<Reply, Refused> {
        Ok(reply::events(EventStream::new(self.open_listener(session)?)))
    }

    fn open_listener(&self, session: &Rc<Session>) -> Result<Lease, Refused> {
        let max = self.rules().streams_per_session_max;
        if session.session_streams().open() >= max {
            return Err(Refused::TooManyStreams(max));
        }
        Ok(Sessions::open_listener(session))
    }

    /// Goes on with a stream. That there is nothing more to hear is a status by which clients
    /// of event streams know not to come back.
    pub(super) fn resume(&self, session: &Rc<Session>, after: EventId) -> Result<Reply, Refused> {
        match session.earlier(after) {
            Some(Earlier::Call(requests)) if requests.is_empty() => {
                return Ok(reply::nothing(StatusCode::NO_CONTENT));
            }
            Some(Earlier::Call(requests)) => {
                let client = &session.client_session().logged_name();
                let lost = requests.iter().flat_map(|request| {
                    let (outcome, code) = ("outcome-unknown", OUTCOME_UNKNOWN_CODE);
                    FailedRequest { client, outcome, code, ..FailedRequest::default() }.log();
                    let lost = crate::reply::error(request, code, OUTCOME_UNKNOWN);
                    event::framed(None, &lost).0
                });
                return Ok(reply::whole_events(lost.collect::<Bytes>()));
            }
            Some(Earlier::UnknownCall) => return Err(Refused::UnknownEarlierCall),
            Some(Earlier::Listener) => {
                let lease = self.open_listener(session)?;
                lease
                    .response_stream()
                    .say_first(&event::framed(None, MAY_HAVE_MISSED.as_bytes()).0);
                return Ok(reply::events(EventStream::new(lease)));
            }
            None => {}
        }
        let lease = Sessions::take_up(session, after, self.rules().streams_per_session_max)?;
        Ok(match lease {
            Some(lease) => reply::events(EventStream::new(lease)),
            None => reply::nothing(StatusCode::NO_CONTENT),
        })
    }

    /// A session over the older transport, which ends with this very answer.
    pub(super) fn open_older(
        &self,
        identity: &Identity<'_>,
        place: Endpoint<'_>,
    ) -> Result<Reply, Refused> {
        let opening = self.sessions.open(identity, place, Transport::LegacySse)?;
        let lease = Sessions::open_only(opening.session());
        let id = opening.admit_older()?;
        let uri = format!("/messages?session={}", id.as_str());
        lease.response_stream().say_first(&event::endpoint(&uri));
        Ok(reply::events(EventStream::new(lease)))
    }
}

/// A message over the older transport: what is said about it is said on the stream.
pub(super) fn hear_older(session: &Session, message: &Received) -> Result<Reply, Refused> {
    if session.is_over() {
        return Err(Refused::UnknownSession); // It ended while the body came.
    }
    match message.tell(session.client_session(), 0) {
        Accepted::Taken | Accepted::Asked => {}
        // Whoever waits for an answer waits for it there.
        Accepted::Refused(error) if names_request(&error) => {
            session.session_streams().put(&error, Route::Answer(0));
        }
        Accepted::Refused(error) => return Ok(reply::json(StatusCode::BAD_REQUEST, error)),
    }
    Ok(reply::nothing(StatusCode::ACCEPTED))
}

/// Returns true if an error names the request that it answers.
fn names_request(error: &[u8]) -> bool {
    matches!(envelope::parse(error), Ok(Message::Answer { id: Some(id), .. }) if id != "null")
}
