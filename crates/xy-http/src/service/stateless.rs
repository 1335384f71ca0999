//! Requests of clients without a session, from the POST to the reply.

use std::rc::Rc;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::http::request::Parts;

use super::{HttpService, complete_reply};
use crate::conn_timers::ConnTimers;
use crate::error::HttpError;
use crate::frontend::Disposition;
use crate::guard::Identity;
use crate::headers::{self, InvalidRequest, ModernMessage, RequestSummary};
use crate::limits::STATELESS_STREAM_DELAY;
use crate::reply::{self, Reply};
use crate::request::Accepts;
use crate::request_body::RequestBody;
use crate::response_stream::FirstOutput;
use crate::route::Endpoint;
use crate::stateless::StatelessRequest;
use crate::stream::EventStream;

/// A request's head, and what was derived from it.
#[derive(Clone, Copy)]
pub(super) struct RequestContext<'r> {
    pub(super) head: &'r Parts,
    pub(super) identity: Identity<'r>,
    pub(super) endpoint: Endpoint<'r>,
    pub(super) accepts: Accepts,
    pub(super) timers: &'r ConnTimers,
}

impl HttpService {
    /// Handles a message. If the client disconnects first, this future is dropped, which cancels
    /// the request.
    pub(super) async fn serve_stateless(
        &self,
        context: RequestContext<'_>,
        message: RequestBody,
    ) -> Reply {
        let opened = self.open_request(&context, &message);
        drop(message); // It may be large, and the response may take long.
        let stateless_request = match opened {
            Ok(stateless_request) => stateless_request,
            Err(reply) => return reply,
        };
        let RequestContext { accepts, timers, .. } = context;
        timers.watch_for_hangup();
        if accepts.names_events {
            timers.start_stream_after(
                Rc::clone(stateless_request.response_stream()),
                STATELESS_STREAM_DELAY,
            );
        }
        let first = stateless_request.response_stream().first().await;
        timers.cancel_stream_start();
        match first {
            FirstOutput::Response(response) => reply_with_status(response, accepts),
            FirstOutput::Events => reply::events(EventStream::stateless(stateless_request)),
            FirstOutput::Nothing => reply::whole_events(Bytes::new()),
            FirstOutput::SessionEnded => {
                self.refuse(&HttpError::Closing, stateless_request.id(), &context)
            }
        }
    }

    /// Validates a message and passes it to a client session of its own. The error is the reply to
    /// a message that needs no waiting.
    fn open_request(
        &self,
        context: &RequestContext<'_>,
        message: &RequestBody,
    ) -> Result<StatelessRequest, Reply> {
        let headers = &context.head.headers;
        let call = match headers::validate(headers, message) {
            Ok(ModernMessage::Request(call)) => call,
            Ok(ModernMessage::Notification) => return Err(reply::empty(StatusCode::ACCEPTED)),
            Err(invalid) => return Err(self.invalid(invalid, context)),
        };
        let opened = self.open_stateless(context, &call);
        let stateless_request = opened.map_err(|error| self.refuse(&error, call.id, context))?;
        if let Some(tool) = call.tool() {
            let checked = call.check_param_headers(headers, &stateless_request.param_headers(tool));
            checked.map_err(|invalid| self.invalid(invalid, context))?;
        }
        match stateless_request.handle(message) {
            Disposition::ResponsePending => Ok(stateless_request),
            Disposition::NoResponse => Err(reply::empty(StatusCode::ACCEPTED)),
            Disposition::Rejected(error) => {
                let status = Some(headers::status_of(&error)).filter(|it| *it != StatusCode::OK);
                Err(reply::json(status.unwrap_or(StatusCode::BAD_REQUEST), error))
            }
        }
    }

    fn open_stateless(
        &self,
        context: &RequestContext<'_>,
        call: &RequestSummary<'_>,
    ) -> Result<StatelessRequest, HttpError> {
        let RequestContext { identity, endpoint, accepts, .. } = context;
        if call.listens && !accepts.events {
            return Err(HttpError::AcceptEvents);
        }
        self.stateless_requests.open(identity, *endpoint, call, accepts.events)
    }

    /// Refuses a message whose headers do not match its body.
    fn invalid(&self, invalid: InvalidRequest, context: &RequestContext<'_>) -> Reply {
        let status = StatusCode::BAD_REQUEST;
        self.record_refused(invalid.reason, status, context.head, context.timers);
        reply::json(status, invalid.response)
    }

    fn refuse(&self, error: &HttpError, id: &str, context: &RequestContext<'_>) -> Reply {
        self.record_error(error, context.head, context.timers);
        reply::error_response_to(error, id)
    }
}

/// Returns the reply for a response without preceding events. Some JSON-RPC errors have a status of
/// their own.
fn reply_with_status(response: Bytes, accepts: Accepts) -> Reply {
    let status = headers::status_of(&response);
    let mut reply = complete_reply(response, accepts);
    *reply.status_mut() = status;
    reply
}
