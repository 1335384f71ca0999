//! A request of a client without a session, from its POST to its answer.

use std::rc::Rc;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::http::request::Parts;

use super::{HttpService, whole};
use crate::frontend::Accepted;
use crate::http::connection::ConnTimers;
use crate::http::guard::Identity;
use crate::http::headers::{self, Call, Posted, Unfit};
use crate::http::limits::OPEN_VISIT_AFTER;
use crate::http::received::Received;
use crate::http::refused::Refused;
use crate::http::reply::{self, Reply};
use crate::http::request::Accepts;
use crate::http::response_stream::First;
use crate::http::route::Endpoint;
use crate::http::stateless::StatelessRequest;
use crate::http::stream::EventStream;

/// Where a message came from, and what of it is known by its head.
#[derive(Clone, Copy)]
pub(super) struct Origin<'r> {
    pub(super) head: &'r Parts,
    pub(super) identity: Identity<'r>,
    pub(super) place: Endpoint<'r>,
    pub(super) accepts: Accepts,
    pub(super) pulse: &'r ConnTimers,
}

impl HttpService {
    /// Attends to a message. If the client goes before it is answered, so does this, and with it
    /// the visit.
    pub(super) async fn attend(&self, origin: Origin<'_>, message: Received) -> Reply {
        let begun = self.begin(&origin, &message);
        drop(message); // It may be large, and its answer far.
        let stateless_request = match begun {
            Ok(stateless_request) => stateless_request,
            Err(reply) => return reply,
        };
        let Origin { accepts, pulse, .. } = origin;
        pulse.heeds_hanging_up();
        if accepts.names_events {
            pulse.waits(Rc::clone(stateless_request.response_stream()), OPEN_VISIT_AFTER);
        }
        let first = stateless_request.response_stream().first().await;
        pulse.waits_no_more();
        match first {
            First::Answer(answer) => answered(answer, accepts),
            First::Events => reply::events(EventStream::of_visit(stateless_request)),
            First::Nothing => reply::whole_events(Bytes::new()),
            First::SessionOver => self.refuse(&Refused::Closing, stateless_request.id(), &origin),
        }
    }

    /// Gives a message to a conversation of its own, if it is as it should be. What is to be
    /// answered at once is an error.
    fn begin(&self, origin: &Origin<'_>, message: &Received) -> Result<StatelessRequest, Reply> {
        let headers = &origin.head.headers;
        let call = match headers::read(headers, message) {
            Ok(Posted::Request(call)) => call,
            Ok(Posted::Notification) => return Err(reply::nothing(StatusCode::ACCEPTED)),
            Err(unfit) => return Err(self.unfit(unfit, origin)),
        };
        let opened = self.open_visit(origin, &call);
        let stateless_request = opened.map_err(|refused| self.refuse(&refused, call.id, origin))?;
        if let Some(tool) = call.tool() {
            let checked = call.check_mirrors(headers, &stateless_request.mirrors(tool));
            checked.map_err(|unfit| self.unfit(unfit, origin))?;
        }
        match stateless_request.handle(message) {
            Accepted::Asked => Ok(stateless_request),
            Accepted::Taken => Err(reply::nothing(StatusCode::ACCEPTED)),
            Accepted::Refused(error) => {
                let status = Some(headers::status_of(&error)).filter(|it| *it != StatusCode::OK);
                Err(reply::json(status.unwrap_or(StatusCode::BAD_REQUEST), error))
            }
        }
    }

    fn open_visit(
        &self,
        origin: &Origin<'_>,
        call: &Call<'_>,
    ) -> Result<StatelessRequest, Refused> {
        let Origin { identity, place, accepts, .. } = origin;
        if call.listens && !accepts.events {
            return Err(Refused::AcceptEvents);
        }
        self.visits.open(identity, *place, call, accepts.events)
    }

    /// The head of a message does not fit its body.
    fn unfit(&self, unfit: Unfit, origin: &Origin<'_>) -> Reply {
        let status = StatusCode::BAD_REQUEST;
        self.count_refused(unfit.reason, status, origin.head, origin.pulse);
        reply::json(status, unfit.answer)
    }

    fn refuse(&self, refused: &Refused, id: &str, origin: &Origin<'_>) -> Reply {
        self.note_refused(refused, origin.head, origin.pulse);
        reply::refused_to(refused, id)
    }
}

/// An answer before which nothing was said. Some errors have a status of their own.
fn answered(answer: Bytes, accepts: Accepts) -> Reply {
    let status = headers::status_of(&answer);
    let mut reply = whole(answer, accepts);
    *reply.status_mut() = status;
    reply
}
