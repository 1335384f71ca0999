//! A request of a client without a session, from its POST to its answer.

use std::rc::Rc;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::http::request::Parts;

use super::{Door, whole};
use crate::front::Heard;
use crate::http::ask::Accepts;
use crate::http::connection::Pulse;
use crate::http::guard::Guest;
use crate::http::heads::{self, Call, Posted, Unfit};
use crate::http::limits::OPEN_VISIT_AFTER;
use crate::http::mailbox::First;
use crate::http::received::Received;
use crate::http::refused::Refused;
use crate::http::reply::{self, Reply};
use crate::http::route::Place;
use crate::http::stream::EventStream;
use crate::http::visit::Visit;

/// Where a message came from, and what of it is known by its head.
#[derive(Clone, Copy)]
pub(super) struct Origin<'r> {
    pub(super) head: &'r Parts,
    pub(super) guest: Guest<'r>,
    pub(super) place: Place<'r>,
    pub(super) accepts: Accepts,
    pub(super) pulse: &'r Pulse,
}

impl Door {
    /// Attends to a message. If the client goes before it is answered, so does this, and with it
    /// the visit.
    pub(super) async fn attend(&self, origin: Origin<'_>, message: Received) -> Reply {
        let begun = self.begin(&origin, &message);
        drop(message); // It may be large, and its answer far.
        let visit = match begun {
            Ok(visit) => visit,
            Err(reply) => return reply,
        };
        let Origin { accepts, pulse, .. } = origin;
        pulse.heeds_hanging_up();
        if accepts.names_events {
            pulse.waits(Rc::clone(visit.mailbox()), OPEN_VISIT_AFTER);
        }
        let first = visit.mailbox().first().await;
        pulse.waits_no_more();
        match first {
            First::Answer(answer) => answered(answer, accepts),
            First::Events => reply::events(EventStream::of_visit(visit)),
            First::Nothing => reply::whole_events(Bytes::new()),
            First::SessionOver => self.refuse(&Refused::Closing, visit.id(), &origin),
        }
    }

    /// Gives a message to a conversation of its own, if it is as it should be. What is to be
    /// answered at once is an error.
    fn begin(&self, origin: &Origin<'_>, message: &Received) -> Result<Visit, Reply> {
        let headers = &origin.head.headers;
        let call = match heads::read(headers, message) {
            Ok(Posted::Request(call)) => call,
            Ok(Posted::Notification) => return Err(reply::nothing(StatusCode::ACCEPTED)),
            Err(unfit) => return Err(self.unfit(unfit, origin)),
        };
        let opened = self.open_visit(origin, &call);
        let visit = opened.map_err(|refused| self.refuse(&refused, call.id, origin))?;
        if let Some(tool) = call.tool() {
            let checked = call.check_mirrors(headers, &visit.mirrors(tool));
            checked.map_err(|unfit| self.unfit(unfit, origin))?;
        }
        match visit.hear(message) {
            Heard::Asked => Ok(visit),
            Heard::Taken => Err(reply::nothing(StatusCode::ACCEPTED)),
            Heard::Refused(error) => {
                let status = Some(heads::status_of(&error)).filter(|it| *it != StatusCode::OK);
                Err(reply::json(status.unwrap_or(StatusCode::BAD_REQUEST), error))
            }
        }
    }

    fn open_visit(&self, origin: &Origin<'_>, call: &Call<'_>) -> Result<Visit, Refused> {
        let Origin { guest, place, accepts, .. } = origin;
        if call.listens && !accepts.events {
            return Err(Refused::AcceptEvents);
        }
        self.visits.open(guest, *place, call, accepts.events)
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
    let status = heads::status_of(&answer);
    let mut reply = whole(answer, accepts);
    *reply.status_mut() = status;
    reply
}
