//! One request of a client without a session: a visit.
//!
//! It is a conversation of its own, that ends when the request is answered or its client has
//! gone, and then at once: to hang up is how such a client says that it wants no answer any
//! more. Nothing of it is kept, since nobody can come back to it.
//!
//! ```text
//!  POST ── Visit ── conversation ──► the gateway
//!            └─ mailbox ◄── Letterbox ◄── what its client shall hear
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use tokio::sync::Notify;
use xy_protocol::error::{CallError, ErrorKind};

use super::counts::{Counts, Stored};
use super::guard::{Identity, TokenId};
use super::headers::Call;
use super::received::Received;
use super::refused::{Refused, Shared};
use super::response_stream::{NotTaken, ResponseStream, StreamMode, Taken};
use super::room::Room;
use super::route::Endpoint;
use crate::error_log::FailedRequest;
use crate::frontend::{
    Accepted, ClientSession, Entry, Frontend, Lifetime, Responder, Route, StreamNo,
};
use crate::modern;
use crate::param_headers::Mirror;
use crate::reply;

/// Where its only message comes in.
const STREAM: StreamNo = 1;

/// All visits.
pub(super) struct Visits {
    front: Rc<dyn Frontend>,
    counts: Rc<Counts>,
    most: Cell<usize>,
    /// What waits for their clients. It is counted, and bounded for each by itself.
    room: Rc<Room>,
    open: Rc<RefCell<Open>>,
    slow: Rc<Slow>,
    is_closing: Cell<bool>,
}

#[derive(Default)]
struct Open {
    visitors: HashMap<u64, Rc<Visitor>>,
    last_number: u64,
}

/// Those who read too slowly. They are left by somebody else than who finds out, who is in the
/// middle of telling them something.
#[derive(Default)]
struct Slow {
    numbers: RefCell<Vec<u64>>,
    found: Notify,
}

struct Visitor {
    who: u64,
    client_session: Rc<dyn ClientSession>,
    response_stream: Rc<ResponseStream>,
    /// The id of its request, as it was written.
    id: Box<str>,
    method: Box<str>,
    /// Whether that only listens.
    listens: bool,
    /// Whether the request was taken, and is answered.
    asked: Cell<bool>,
    over: Cell<bool>,
}

impl Visitor {
    /// Ends it, once.
    fn end(&self) {
        if !self.over.replace(true) {
            self.client_session.close();
        }
    }
}

impl Visits {
    pub(super) fn new(front: Rc<dyn Frontend>, counts: Rc<Counts>, most: usize) -> Self {
        Self {
            front,
            counts,
            most: Cell::new(most),
            room: Room::for_all(),
            open: Rc::default(),
            slow: Rc::default(),
            is_closing: Cell::new(false),
        }
    }

    /// Begins a visit.
    pub(super) fn open(
        &self,
        identity: &Identity<'_>,
        place: Endpoint<'_>,
        call: &Call<'_>,
        events: bool,
    ) -> Result<StatelessRequest, Refused> {
        let who = identity.who.number();
        self.check_room(identity.who)?;
        let manner = StreamMode { events, polls: false };
        let response_stream =
            Rc::new(ResponseStream::new(STREAM, None, manner, Rc::clone(&self.room)));
        response_stream.set_requests(vec![call.id.into()]);
        let number = {
            let mut open = self.open.borrow_mut();
            open.last_number += 1;
            open.last_number
        };
        let responder = StatelessResponder {
            number,
            response_stream: Rc::clone(&response_stream),
            slow: Rc::clone(&self.slow),
            counts: Rc::clone(&self.counts),
        };
        let (view, may_manage) = (place.to_view(), identity.may_manage);
        let entry = Entry {
            view,
            may_manage,
            lifetime: Lifetime::Request,
            who,
            bound: identity.profile.map(str::to_owned),
        };
        let visitor = Rc::new(Visitor {
            who,
            client_session: self.front.open(entry, Rc::new(responder))?,
            response_stream,
            id: call.id.into(),
            method: (*call.method).into(),
            listens: call.listens,
            asked: Cell::new(false),
            over: Cell::new(false),
        });
        self.open.borrow_mut().visitors.insert(number, Rc::clone(&visitor));
        self.counts.visited();
        let (open, counts) = (Rc::clone(&self.open), Rc::clone(&self.counts));
        Ok(StatelessRequest { number, visitor, open, counts })
    }

    fn check_room(&self, who: TokenId) -> Result<(), Refused> {
        if self.is_closing.get() {
            return Err(Refused::Closing);
        }
        let most = self.most.get();
        let open = &self.open.borrow().visitors;
        if open.len() >= most {
            return Err(Refused::TooManyVisits(most));
        }
        let own = open.values().filter(|visitor| visitor.who == who.number()).count();
        if !who.may_take(own, open.len(), most) {
            return Err(Refused::OverShare { what: Shared::Requests, own, most });
        }
        Ok(())
    }

    /// Waits for those who read too slowly, and leaves them.
    pub(super) async fn leave_slow(&self) {
        self.slow.found.notified().await;
        for number in self.slow.numbers.take() {
            let visitor = self.open.borrow().visitors.get(&number).cloned();
            if let Some(visitor) = visitor {
                visitor.end();
            }
        }
    }

    /// Answers those who only listen, and lets nobody else in.
    pub(super) fn end_listeners(&self) {
        self.is_closing.set(true);
        for visitor in self.all() {
            if visitor.listens {
                // It may have been answered already.
                let _ = visitor.response_stream.put_answer(&last_word(&visitor.id));
                visitor.end();
            }
        }
    }

    /// Ends those whose tokens are not there any more.
    pub(super) fn end_without(&self, is_there: impl Fn(u64) -> bool) {
        for visitor in self.all().iter().filter(|it| !is_there(it.who)) {
            let gone =
                CallError::new(ErrorKind::NotAllowed, "the token has been removed or rotated");
            let (outcome, code) = ("token-gone", reply::code(gone.kind).into());
            let (client, method) = (&visitor.client_session.logged_name(), &*visitor.method);
            FailedRequest { client, method, outcome, code, ..FailedRequest::default() }.log();
            // It may have been answered already.
            let _ = visitor.response_stream.put_answer(&reply::fault(&visitor.id, &gone));
            visitor.end();
        }
    }

    /// Ends all of them.
    pub(super) fn end_all(&self) {
        for visitor in self.all() {
            visitor
                .response_stream
                .door_closes(&visitor.client_session.logged_name(), &visitor.method);
            visitor.end();
        }
    }

    fn all(&self) -> Vec<Rc<Visitor>> {
        self.open.borrow().visitors.values().cloned().collect()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.open.borrow().visitors.len()
    }

    /// How much waits for their clients.
    pub(super) fn stored(&self) -> Stored {
        self.room.taken()
    }

    #[cfg(test)]
    pub(super) fn allow(&self, most: usize) {
        self.most.set(most);
    }
}

/// The result of a request that has listened to its end.
fn last_word(id: &str) -> Vec<u8> {
    let key = modern::SUBSCRIPTION;
    reply::result(id, &format!(r#"{{"resultType":"complete","_meta":{{"{key}":{id}}}}}"#))
}

/// A visit, as long as this is held: by whoever waits for its answer, and then by the stream of
/// its events.
pub(super) struct StatelessRequest {
    number: u64,
    visitor: Rc<Visitor>,
    open: Rc<RefCell<Open>>,
    counts: Rc<Counts>,
}

impl fmt::Debug for StatelessRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visit").field("number", &self.number).finish_non_exhaustive()
    }
}

impl StatelessRequest {
    pub(super) fn response_stream(&self) -> &Rc<ResponseStream> {
        &self.visitor.response_stream
    }

    /// The id of its request, as it was written.
    pub(super) fn id(&self) -> &str {
        &self.visitor.id
    }

    /// Which arguments of a tool are said in the head too.
    pub(super) fn mirrors(&self, tool: &str) -> Vec<Mirror> {
        self.visitor.client_session.mirrors(tool)
    }

    /// Hands over the request.
    pub(super) fn handle(&self, message: &Received) -> Accepted {
        let heard = message.tell(&*self.visitor.client_session, STREAM);
        self.visitor.asked.set(heard == Accepted::Asked);
        heard
    }
}

impl Drop for StatelessRequest {
    fn drop(&mut self) {
        self.open.borrow_mut().visitors.remove(&self.number);
        if self.visitor.asked.get() && self.visitor.response_stream.is_open() {
            self.counts.abandoned();
        }
        self.visitor.end();
    }
}

/// Puts what a visitor shall hear into its mailbox.
struct StatelessResponder {
    number: u64,
    response_stream: Rc<ResponseStream>,
    slow: Rc<Slow>,
    counts: Rc<Counts>,
}

impl Responder for StatelessResponder {
    fn put(&self, message: &[u8], to: Route) {
        match to {
            Route::Answer(_) => self.note(self.response_stream.put_answer(message)),
            Route::Related(_) => self.note(self.response_stream.put_event(message)),
            Route::Cancelled(_) => self.response_stream.cancel(),
            Route::Broadcast => {} // It has asked for one thing, and this is another.
        }
    }
}

impl StatelessResponder {
    fn note(&self, outcome: Result<Taken, NotTaken>) {
        match outcome {
            Ok(Taken::Fits) => {}
            Ok(Taken::TooSlow) => {
                self.counts.cut("slow-reader");
                self.response_stream.cancel();
                drop(self.response_stream.take_unsent()); // Its connection may take a while to end.
                self.slow.numbers.borrow_mut().push(self.number);
                self.slow.found.notify_one();
            }
            Err(NotTaken::Ended | NotTaken::NoEvents) => self.counts.lost("no-reader"),
        }
    }
}
