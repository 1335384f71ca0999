//! Streams that a client opens or resumes in a session, and the legacy HTTP+SSE transport.

use std::rc::Rc;

use hyper::StatusCode;
use hyper::body::Bytes;
use xy_mcp::envelope::{self, Message};
use xy_transport::error_log::FailedRequest;

use super::HttpService;
use crate::error::HttpError;
use crate::event::{self, EventId};
use crate::frontend::{Disposition, Responder as _, Route};
use crate::guard::Identity;
use crate::reply::{self, Reply};
use crate::request_body::RequestBody;
use crate::route::Endpoint;
use crate::session::{EarlierStream, Lease, Session, Sessions, Transport};
use crate::stream::EventStream;

/// The JSON-RPC error code for a call that an earlier daemon did not answer.
const OUTCOME_UNKNOWN_CODE: i64 = -32010;
const OUTCOME_UNKNOWN: &str = "outcome unknown: xy was restarted before the response; \
                               check whether the call was executed before repeating it";

/// The notification for a client whose stream began in an earlier daemon.
const MAY_HAVE_MISSED: &str = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"warning","logger":"xy","data":"xy was restarted: events of this stream may be missing"}}"#;

impl HttpService {
    pub(crate) fn listen(&self, session: &Rc<Session>) -> Result<Reply, HttpError> {
        Ok(reply::events(EventStream::new(self.open_listener(session)?)))
    }

    fn open_listener(&self, session: &Rc<Session>) -> Result<Lease, HttpError> {
        let max = self.rules().streams_per_session_max;
        if session.session_streams().open() >= max {
            return Err(HttpError::TooManyStreams(max));
        }
        Ok(Sessions::open_listener(session))
    }

    /// Resumes a stream after an event. Status 204 tells an event stream client that nothing
    /// follows and that it must not reconnect.
    pub(super) fn resume(&self, session: &Rc<Session>, after: EventId) -> Result<Reply, HttpError> {
        match session.earlier_stream(after) {
            Some(EarlierStream::Call(requests)) if requests.is_empty() => {
                return Ok(reply::empty(StatusCode::NO_CONTENT));
            }
            Some(EarlierStream::Call(requests)) => {
                let client = &session.client_session().logged_name();
                let lost = requests.iter().flat_map(|request| {
                    // The session's record has no methods.
                    let (outcome, code) = ("outcome-unknown", OUTCOME_UNKNOWN_CODE);
                    FailedRequest {
                        client,
                        id: request,
                        outcome,
                        code,
                        ..FailedRequest::default()
                    }
                    .log();
                    let lost = xy_mcp::reply::error(request, code, OUTCOME_UNKNOWN);
                    event::encode(None, &lost).0
                });
                return Ok(reply::whole_events(lost.collect::<Bytes>()));
            }
            Some(EarlierStream::UnknownCall) => return Err(HttpError::UnknownEarlierCall),
            Some(EarlierStream::Listener) => {
                let lease = self.open_listener(session)?;
                lease
                    .response_stream()
                    .send_first(&event::encode(None, MAY_HAVE_MISSED.as_bytes()).0);
                return Ok(reply::events(EventStream::new(lease)));
            }
            None => {}
        }
        let lease = Sessions::resume_stream(session, after, self.rules().streams_per_session_max)?;
        Ok(match lease {
            Some(lease) => reply::events(EventStream::new(lease)),
            None => reply::empty(StatusCode::NO_CONTENT),
        })
    }

    /// Opens a session of the legacy transport. The session ends with this reply's stream.
    pub(super) fn open_legacy(
        &self,
        identity: &Identity<'_>,
        endpoint: Endpoint<'_>,
    ) -> Result<Reply, HttpError> {
        let pending = self.sessions.open(identity, endpoint, Transport::LegacySse)?;
        let lease = Sessions::open_legacy_stream(pending.session());
        let id = pending.register_legacy()?;
        let uri = format!("/messages?session={}", id.as_str());
        lease.response_stream().send_first(&event::endpoint_event(&uri));
        Ok(reply::events(EventStream::new(lease)))
    }
}

/// Handles a message of the legacy transport. Its response is sent on the session's stream.
pub(super) fn handle_legacy_message(
    session: &Session,
    message: &RequestBody,
) -> Result<Reply, HttpError> {
    if session.is_closed() {
        return Err(HttpError::UnknownSession); // It ended while the body arrived.
    }
    match message.deliver(session.client_session(), 0) {
        Disposition::NoResponse | Disposition::ResponsePending => {}
        // A client that waits for a response expects it on the stream.
        Disposition::Rejected(error) if names_request(&error) => {
            session.session_streams().put(&error, Route::Response(0));
        }
        Disposition::Rejected(error) => return Ok(reply::json(StatusCode::BAD_REQUEST, error)),
    }
    Ok(reply::empty(StatusCode::ACCEPTED))
}

/// Returns true if an error names the request that it answers.
fn names_request(error: &[u8]) -> bool {
    matches!(envelope::parse(error), Ok(Message::Response { id: Some(id), .. }) if id != "null")
}
