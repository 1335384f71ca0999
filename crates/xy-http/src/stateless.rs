//! Requests of clients without a session.
//!
//! Each request has a client session of its own. It ends when the request is answered, or when the
//! client disconnects: that is how such a client cancels a request. No events are kept, since the
//! client cannot resume.
//!
//! ```text
//!  POST ── StatelessRequest ── client session ──► the gateway
//!            └─ ResponseStream ◄── StatelessResponder ◄── messages to the client
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use tokio::sync::Notify;
use xy_mcp::param_headers::ParamHeader;
use xy_mcp::{modern, reply};
use xy_protocol::error::{CallError, ErrorKind};
use xy_transport::error_log::FailedRequest;

use crate::counters::{Counters, StorageUse};
use crate::error::{HttpError, SharedResource};
use crate::frontend::{
    ClientSession, Disposition, Entry, Frontend, Lifetime, Responder, Route, StreamNo,
};
use crate::guard::{Identity, TokenId};
use crate::headers::RequestSummary;
use crate::request_body::{RequestBody, StreamedRequest};
use crate::response_stream::{PutError, PutOutcome, ResponseStream, StreamMode};
use crate::route::Endpoint;
use crate::storage_budget::StorageBudget;

/// The number of the request's only stream.
const STREAM: StreamNo = 1;

/// All open requests of clients without a session.
pub(super) struct StatelessRequests {
    frontend: Rc<dyn Frontend>,
    counters: Rc<Counters>,
    max: Cell<usize>,
    /// The storage for responses. It is only counted: each stream has a limit of its own.
    storage: Rc<StorageBudget>,
    open: Rc<RefCell<OpenRequests>>,
    slow: Rc<SlowRequests>,
    is_closing: Cell<bool>,
}

#[derive(Default)]
struct OpenRequests {
    requests: HashMap<u64, Rc<OpenRequest>>,
    last_number: u64,
}

/// Clients that read too slowly. Another task closes them, as the one that notices is in the middle
/// of sending to them.
#[derive(Default)]
struct SlowRequests {
    numbers: RefCell<Vec<u64>>,
    found: Notify,
}

struct OpenRequest {
    token_id: u64,
    client_session: Rc<dyn ClientSession>,
    response_stream: Rc<ResponseStream>,
    /// The id of the request, as the client wrote it.
    id: Box<str>,
    method: Box<str>,
    /// Whether the request only listens for messages.
    listens: bool,
    /// Whether the request was accepted, so that a response follows.
    is_accepted: Cell<bool>,
    is_closed: Cell<bool>,
}

impl OpenRequest {
    /// Ends the client session, once.
    fn end(&self) {
        if !self.is_closed.replace(true) {
            self.client_session.close();
        }
    }
}

impl StatelessRequests {
    pub(super) fn new(frontend: Rc<dyn Frontend>, counters: Rc<Counters>, max: usize) -> Self {
        Self {
            frontend,
            counters,
            max: Cell::new(max),
            storage: StorageBudget::for_all(),
            open: Rc::default(),
            slow: Rc::default(),
            is_closing: Cell::new(false),
        }
    }

    /// Opens a request.
    pub(super) fn open(
        &self,
        identity: &Identity<'_>,
        endpoint: Endpoint<'_>,
        call: &RequestSummary<'_>,
        events: bool,
    ) -> Result<StatelessRequest, HttpError> {
        let token_id = identity.token_id.number();
        self.check_capacity(identity.token_id)?;
        let mode = StreamMode { events, polls: false };
        let response_stream =
            Rc::new(ResponseStream::new(STREAM, None, mode, Rc::clone(&self.storage)));
        let (id, method) = (call.id.into(), (&*call.method).into());
        response_stream.set_requests(vec![StreamedRequest { id, method }]);
        let number = {
            let mut open = self.open.borrow_mut();
            open.last_number += 1;
            open.last_number
        };
        let responder = StatelessResponder {
            number,
            response_stream: Rc::clone(&response_stream),
            slow: Rc::clone(&self.slow),
            counters: Rc::clone(&self.counters),
        };
        let (view, may_manage) = (endpoint.to_view(), identity.may_manage);
        let entry = Entry {
            view,
            may_manage,
            lifetime: Lifetime::Request,
            principal: token_id,
            bound: identity.profile.map(str::to_owned),
        };
        let request = Rc::new(OpenRequest {
            token_id,
            client_session: self.frontend.open(entry, Rc::new(responder))?,
            response_stream,
            id: call.id.into(),
            method: (*call.method).into(),
            listens: call.listens,
            is_accepted: Cell::new(false),
            is_closed: Cell::new(false),
        });
        self.open.borrow_mut().requests.insert(number, Rc::clone(&request));
        self.counters.count_stateless_request();
        let (open, counters) = (Rc::clone(&self.open), Rc::clone(&self.counters));
        Ok(StatelessRequest { number, request, open, counters })
    }

    fn check_capacity(&self, token_id: TokenId) -> Result<(), HttpError> {
        if self.is_closing.get() {
            return Err(HttpError::Closing);
        }
        let max = self.max.get();
        let open = &self.open.borrow().requests;
        if open.len() >= max {
            return Err(HttpError::TooManyStatelessRequests(max));
        }
        let own = open.values().filter(|request| request.token_id == token_id.number()).count();
        if !token_id.may_take(own, open.len(), max) {
            return Err(HttpError::OverShare { what: SharedResource::Requests, own, max });
        }
        Ok(())
    }

    /// Waits for clients that read too slowly, and closes them.
    pub(super) async fn close_slow(&self) {
        self.slow.found.notified().await;
        for number in self.slow.numbers.take() {
            let request = self.open.borrow().requests.get(&number).cloned();
            if let Some(request) = request {
                request.end();
            }
        }
    }

    /// Completes all listening requests, and refuses new requests.
    pub(super) fn end_listeners(&self) {
        self.is_closing.set(true);
        for request in self.all() {
            if request.listens {
                // It may have a response already.
                let _ = request.response_stream.put_response(&listen_result(&request.id));
                request.end();
            }
        }
    }

    /// Ends the requests whose tokens were removed.
    pub(super) fn end_without(&self, is_there: impl Fn(u64) -> bool) {
        for request in self.all().iter().filter(|it| !is_there(it.token_id)) {
            let gone =
                CallError::new(ErrorKind::NotAllowed, "the token has been removed or rotated");
            let (outcome, code) = ("token-gone", reply::code(gone.kind).into());
            let (client, method) = (&request.client_session.logged_name(), &*request.method);
            let id = &*request.id;
            FailedRequest { client, id, method, outcome, code, ..FailedRequest::default() }.log();
            // It may have a response already.
            let _ = request.response_stream.put_response(&reply::fault(&request.id, &gone));
            request.end();
        }
    }

    /// Ends all requests.
    pub(super) fn end_all(&self) {
        for request in self.all() {
            request.response_stream.end_for_shutdown(&request.client_session.logged_name());
            request.end();
        }
    }

    fn all(&self) -> Vec<Rc<OpenRequest>> {
        self.open.borrow().requests.values().cloned().collect()
    }

    /// Returns the number of open requests.
    pub(super) fn count(&self) -> usize {
        self.open.borrow().requests.len()
    }

    /// Returns the storage that responses use.
    pub(super) fn stored(&self) -> StorageUse {
        self.storage.used()
    }

    #[cfg(test)]
    pub(super) fn set_max(&self, max: usize) {
        self.max.set(max);
    }
}

/// Returns the result of a listening request.
fn listen_result(id: &str) -> Vec<u8> {
    let key = modern::SUBSCRIPTION;
    reply::result(id, &format!(r#"{{"resultType":"complete","_meta":{{"{key}":{id}}}}}"#))
}

/// An open request. Dropping it ends the request: first the handler holds it, then the event stream
/// of the reply.
pub(super) struct StatelessRequest {
    number: u64,
    request: Rc<OpenRequest>,
    open: Rc<RefCell<OpenRequests>>,
    counters: Rc<Counters>,
}

impl fmt::Debug for StatelessRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatelessRequest").field("number", &self.number).finish_non_exhaustive()
    }
}

impl StatelessRequest {
    pub(super) fn response_stream(&self) -> &Rc<ResponseStream> {
        &self.request.response_stream
    }

    /// Returns the id of the request, as the client wrote it.
    pub(super) fn id(&self) -> &str {
        &self.request.id
    }

    /// Returns the arguments that a tool mirrors into HTTP headers.
    pub(super) fn param_headers(&self, tool: &str) -> Vec<ParamHeader> {
        self.request.client_session.param_headers(tool)
    }

    /// Passes the request to the client session.
    pub(super) fn handle(&self, message: &RequestBody) -> Disposition {
        let accepted = message.deliver(&*self.request.client_session, STREAM);
        self.request.is_accepted.set(accepted == Disposition::ResponsePending);
        accepted
    }
}

impl Drop for StatelessRequest {
    fn drop(&mut self) {
        self.open.borrow_mut().requests.remove(&self.number);
        if self.request.is_accepted.get() && self.request.response_stream.is_open() {
            self.counters.count_abandoned();
        }
        self.request.end();
    }
}

/// Sends messages for the client to its response stream.
struct StatelessResponder {
    number: u64,
    response_stream: Rc<ResponseStream>,
    slow: Rc<SlowRequests>,
    counters: Rc<Counters>,
}

impl Responder for StatelessResponder {
    fn put(&self, message: &[u8], to: Route) {
        match to {
            Route::Response(_) => self.handle_outcome(self.response_stream.put_response(message)),
            Route::Related(_) => self.handle_outcome(self.response_stream.put_event(message)),
            Route::Cancelled(_) => self.response_stream.cancel(),
            Route::Broadcast => {} // The client asked for one response and listens to nothing else.
        }
    }
}

impl StatelessResponder {
    fn handle_outcome(&self, outcome: Result<PutOutcome, PutError>) {
        match outcome {
            Ok(PutOutcome::Queued) => {}
            Ok(PutOutcome::TooSlow) => {
                self.counters.count_closed("slow-reader");
                self.response_stream.cancel();
                drop(self.response_stream.take_unsent()); // Its connection may take a while to end.
                self.slow.numbers.borrow_mut().push(self.number);
                self.slow.found.notify_one();
            }
            Err(PutError::Ended | PutError::NoEvents) => self.counters.count_lost("no-reader"),
        }
    }
}
