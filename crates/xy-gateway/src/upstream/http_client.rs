//! A server that listens somewhere: every message is a request over HTTP.
//!
//! Each call is a task that posts it and hears its answer to the end, so that a slow one
//! delays nobody (`call.rs`; `sending.rs` begins it). What wants no answer goes out one after another (`notify.rs`).
//! `listen.rs` hears what belongs to no call, `fetch.rs` sends single requests, `meaning.rs`
//! says what their answers mean.
//!
//! One of the revision without sessions is told in the head of each request what that is about
//! (`heads.rs`). Closing the stream of a call is all it hears when that is given up.
//!
//! What has waited goes in the order of its client (`ordered_send.rs`).
//!
//! A server of the others may forget the session at any time: then it is greeted again, by whoever leads
//! this life (`upstream_session/http_client.rs`), and calls that it has not taken are sent again, once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Response, Uri};
use tokio::net::TcpStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use xy_config::settings::Endpoint;

use super::Upstream;
use crate::era::MODERN;
use crate::held::Held;
use crate::via;

mod call;
mod endpoint;
mod fetch;
mod heads;
mod listen;
mod meaning;
mod notify;
mod ordered_send;
mod send_order;
mod sending;

use fetch::{Ask, Failed, Fetch};
use heads::Heads;
use ordered_send::Rows;
use sending::Body;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// How long a server may take to take what wants no answer.
pub(crate) const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// The answer to a call that was given up is read for so long.
const GIVEN_UP_FOR: Duration = Duration::from_secs(10);

/// How long the end of a session may take.
const END_WITHIN: Duration = Duration::from_secs(1);

/// News for whoever leads this life; only the first of a kind matters.
const TROUBLES: usize = 8;

/// A session or a stream that has lived for so long was a good one.
pub(crate) const GOOD_AFTER: Duration = Duration::from_secs(5);

/// Calls under way with one server; more wait. Each has a connection, and others need theirs.
const MOST_AT_ONCE: usize = 256;

/// What may be read of answers that are not whole, of one server.
const MOST_READING: usize = 128 * 1024 * 1024;

/// Longer ids of sessions are not kept.
const LONGEST_SESSION: usize = 4096;

/// The way to a server that listens.
pub(crate) struct Web {
    me: Weak<Self>,
    upstream: RefCell<Weak<Upstream>>,
    fetch: Fetch,
    place: Uri,
    /// Where messages are posted to: the same, or where an older server says.
    post_to: RefCell<Option<Uri>>,
    is_older: bool,
    is_remote: bool,
    /// What its settings want to be sent with everything.
    headers: HeaderMap,
    session: RefCell<Session>,
    /// The call whose answer begins a session.
    greeting: Cell<Greeting>,
    /// The call that asks whether there are sessions at all.
    probe: Cell<Option<u64>>,
    /// Whether the revision without sessions is spoken.
    is_modern: Cell<bool>,
    /// What heads of calls are made of.
    heads: Heads,
    /// How often in a row nobody could be listened to.
    misses: Cell<u32>,
    /// How many sessions there have been; calls wait here for the next.
    sessions: watch::Sender<u64>,
    calls: RefCell<HashMap<u64, AbortHandle>>,
    /// A call is over.
    over: Notify,
    /// Calls of which nobody has taken anything.
    unsent: RefCell<HashSet<u64>>,
    /// Calls of whose answers nothing was heard.
    unheard: RefCell<HashSet<u64>>,
    /// Calls that have waited, which go in their order, and what leads them.
    rows: Rows,
    leaders: RefCell<JoinSet<()>>,
    /// Answers to the server's questions that are on their way.
    answers: RefCell<JoinSet<()>>,
    /// What wants no answer, and waits for its turn.
    untold: RefCell<VecDeque<(u64, Bytes)>>,
    untold_bytes: Cell<usize>,
    /// Of calls that are not answered yet.
    unsent_bytes: Cell<usize>,
    tell: Notify,
    /// Something has been told.
    told: Notify,
    /// What is still to come before what is put later.
    turns: RefCell<BTreeSet<u64>>,
    next_turn: Cell<u64>,
    /// Calls that come first, and their turns.
    first: RefCell<HashMap<u64, u64>>,
    /// For calls that are under way: each has a connection.
    room: Semaphore,
    /// Calls that need none: those that are to tell whether the server answers.
    beside: RefCell<HashSet<u64>>,
    /// What has been read of answers that are not whole.
    reading: Rc<Cell<usize>>,
    /// The server has forgotten the session, and that is new.
    is_forgotten: Cell<bool>,
    forgot: Notify,
    troubles: mpsc::Sender<Trouble>,
    is_closed: Cell<bool>,
}

/// What is agreed on with a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Session {
    /// As the server called it.
    id: Option<HeaderValue>,
    /// The revision that was agreed on.
    version: Option<HeaderValue>,
}

/// Whether a session is being begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Greeting {
    /// No.
    Done,
    /// The next `initialize` begins one.
    Due,
    /// This call does.
    Call(u64),
}

/// Something that whoever leads a life has to do something about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The server has forgotten the session.
    Forgotten,
    /// There is no connection to it.
    Unreachable(String),
    /// It could not do what it was asked, for once.
    Failing(String),
    /// It has refused what it was asked.
    Refused(String),
    /// It does not let us do what it was asked.
    Forbidden(String),
    /// It does not let us in.
    Hopeless(String),
    /// It leads back to this daemon.
    Loop,
}

impl Web {
    /// The way to `endpoint`, and what is heard of it.
    pub(crate) async fn to(
        endpoint: &Endpoint,
    ) -> Result<(Rc<Self>, mpsc::Receiver<Trouble>), String> {
        let place: Uri =
            endpoint.url.parse().map_err(|problem| format!("its address: {problem}"))?;
        let fetch = Fetch::to(&place).await.map_err(|failed| failed.words())?;
        let headers = headers_of(endpoint)?;
        let (troubles, trouble) = mpsc::channel(TROUBLES);
        let web = Rc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            upstream: RefCell::default(),
            fetch,
            post_to: RefCell::new((!endpoint.is_older).then(|| place.clone())),
            place,
            is_older: endpoint.is_older,
            is_remote: endpoint.is_remote,
            headers,
            session: RefCell::default(),
            greeting: Cell::new(Greeting::Done),
            probe: Cell::new(None),
            is_modern: Cell::new(false),
            heads: Heads::default(),
            misses: Cell::new(0),
            room: Semaphore::new(MOST_AT_ONCE),
            beside: RefCell::default(),
            sessions: watch::Sender::new(0),
            calls: RefCell::default(),
            over: Notify::new(),
            unsent: RefCell::default(),
            unheard: RefCell::default(),
            rows: Rows::default(),
            leaders: RefCell::default(),
            answers: RefCell::default(),
            untold: RefCell::default(),
            untold_bytes: Cell::new(0),
            unsent_bytes: Cell::new(0),
            tell: Notify::new(),
            told: Notify::new(),
            turns: RefCell::default(),
            next_turn: Cell::new(0),
            first: RefCell::default(),
            reading: Rc::default(),
            is_forgotten: Cell::new(false),
            forgot: Notify::new(),
            troubles,
            is_closed: Cell::new(false),
        });
        Ok((web, trouble))
    }

    /// Whose words it carries.
    pub(crate) fn speak_for(&self, upstream: &Rc<Upstream>) {
        *self.upstream.borrow_mut() = Rc::downgrade(upstream);
    }

    /// Whether it lives somewhere else.
    pub(crate) fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Whether it speaks the older pair of HTTP and events.
    pub(crate) fn is_older(&self) -> bool {
        self.is_older
    }

    /// Where it is, for people.
    pub(crate) fn shown(&self) -> String {
        endpoint::shown(&self.place)
    }

    /// Whether anybody takes a connection there.
    pub(crate) async fn listens(&self) -> bool {
        let (Some(host), Some(port)) = (self.place.host(), self.place.port_u16()) else {
            return false;
        };
        matches!(timeout(END_WITHIN, TcpStream::connect((host, port))).await, Ok(Ok(_)))
    }

    /// There is no session any more: the next greeting begins one.
    pub(crate) fn begin_anew(&self) {
        self.session.take();
        // What was to be told within the last one means nothing in the next.
        for message in self.untold.take() {
            self.is_told(&message);
        }
        self.answers.borrow_mut().abort_all();
        self.is_forgotten.set(false);
        self.is_modern.set(false);
        self.greeting.set(Greeting::Due);
    }

    /// A session that an earlier daemon began.
    pub(crate) fn resume(&self, id: &str) {
        self.session.borrow_mut().id = HeaderValue::from_str(id).ok();
    }

    /// The server has answered to a greeting: this revision is spoken from now on.
    pub(crate) fn agree(&self, version: &str) {
        self.greeting.set(Greeting::Done);
        self.is_modern.set(version == MODERN);
        let mut session = self.session.borrow_mut();
        session.version = HeaderValue::from_str(version).ok();
        if self.is_modern.get() {
            session.id = None; // It knows none, whatever it says.
        }
    }

    /// Whether the revision without sessions is spoken.
    pub(crate) fn is_modern(&self) -> bool {
        self.is_modern.get()
    }

    /// The server can be asked: what waits for that goes on.
    pub(crate) fn open(&self) {
        self.sessions.send_modify(|count| *count += 1);
    }

    /// Resolves when the server has forgotten the session.
    pub(crate) async fn until_forgotten(&self) {
        while !self.is_forgotten.replace(false) {
            self.forgot.notified().await;
        }
    }

    /// Resolves when everything that was sent has its answer, or is known to get none.
    pub(crate) async fn until_answered(&self) {
        let is_answered = || {
            let unsent = self.unsent.borrow();
            let is_ear = |call| self.upstream().is_some_and(|it| it.is_ear(call));
            self.calls.borrow().keys().all(|call| unsent.contains(call) || is_ear(*call))
        };
        while !is_answered() {
            self.over.notified().await;
        }
    }

    /// A call is over, however it ended.
    fn call_is_over(&self, call: u64) {
        self.over.notify_one();
        self.calls.borrow_mut().remove(&call);
        self.unsent.borrow_mut().remove(&call);
        self.unheard.borrow_mut().remove(&call);
        self.rows.leave(call);
        self.beside.borrow_mut().remove(&call);
        let turn = self.first.borrow_mut().remove(&call);
        if let Some(turn) = turn {
            self.end_turn(turn);
        }
    }

    /// Ends a call, and closes its stream.
    fn end_call(&self, call: u64) {
        let task = self.calls.borrow_mut().remove(&call);
        if let Some(task) = task {
            task.abort();
            self.call_is_over(call);
        }
    }

    /// Ends the session, as far as the server wants to know.
    pub(crate) async fn end(&self) {
        if self.is_older || self.session.borrow().id.is_none() {
            return;
        }
        let ask = self.ask(Method::DELETE, self.place.clone(), Bytes::new());
        let _ = timeout(END_WITHIN, self.fetch.send(ask)).await; // It may be gone already.
    }

    /// Sends one message.
    async fn post(&self, message: Bytes) -> Result<Response<Incoming>, Failed> {
        self.fetch.send(self.posted(message)?).await
    }

    /// The same of a call, of which it is told when it was sent.
    async fn post_call(&self, call: u64, message: Bytes) -> Result<Response<Incoming>, Failed> {
        let mut ask = self.posted(message)?;
        let (sent, is_sent) = oneshot::channel();
        ask.sent = Some(sent);
        let mut sending = pin!(self.fetch.send(ask));
        tokio::select! {
            biased;
            response = &mut sending => return response,
            Ok(()) = is_sent => self.rows.sent(call),
        }
        sending.await
    }

    fn posted(&self, message: Bytes) -> Result<Ask, Failed> {
        let to = self.post_to.borrow().clone();
        let no_place = || Failed::Unconnected("it has not said where it listens".to_owned());
        let mut ask = self.ask(Method::POST, to.ok_or_else(no_place)?, message);
        self.add_heads(&mut ask);
        Ok(ask)
    }

    fn ask(&self, method: Method, to: Uri, body: Bytes) -> Ask {
        let mut headers = self.headers.clone();
        if !body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let accept = match method {
            Method::GET => "text/event-stream",
            _ => "application/json, text/event-stream",
        };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let session = self.session.borrow();
        for (name, value) in [(SESSION, &session.id), (VERSION, &session.version)] {
            if let Some(value) = value
                && !self.is_older
            {
                headers.insert(name, value.clone());
            }
        }
        Ask { method, to, headers, body, sent: None }
    }

    /// Whether this call begins a session.
    fn is_greeted_by(&self, call: u64) -> bool {
        self.greeting.get() == Greeting::Call(call)
    }

    /// Whether this call is one that nobody may keep waiting: a first word, one that lasts, or
    /// one that is to tell whether the server answers.
    fn needs_no_room(&self, call: u64) -> bool {
        let is_ear = || self.upstream().is_some_and(|upstream| upstream.is_ear(call));
        let is_beside = self.beside.borrow().contains(&call);
        self.is_greeted_by(call) || self.probe.get() == Some(call) || is_beside || is_ear()
    }

    /// The answer to a greeting may name the session.
    fn take_session(&self, call: u64, headers: &HeaderMap) {
        if !self.is_greeted_by(call) {
            return;
        }
        let id = headers.get(SESSION).filter(|id| id.len() <= LONGEST_SESSION);
        self.session.borrow_mut().id = id.cloned();
    }

    fn has_session(&self) -> bool {
        self.session.borrow().id.is_some()
    }

    /// Whether there is an agreement, and it has not been forgotten.
    fn is_in_session(&self) -> bool {
        self.session.borrow().version.is_some()
    }

    /// The server has forgotten the session that was the `count`th; whoever leads is told once.
    fn forgotten(&self, count: u64) {
        if *self.sessions.borrow() == count && self.is_in_session() {
            self.session.take();
            if let Some(upstream) = self.upstream() {
                upstream.begin_anew(); // Nobody may be asked without a session.
            }
            self.is_forgotten.set(true);
            self.forgot.notify_one();
        }
    }

    fn trouble(&self, trouble: Trouble) {
        // More of it makes it no worse; but that there is nobody must not get lost over others.
        if let Err(TrySendError::Full(Trouble::Unreachable(_))) = self.troubles.try_send(trouble) {
            self.is_forgotten.set(true);
            self.forgot.notify_one();
        }
    }

    fn upstream(&self) -> Option<Rc<Upstream>> {
        self.upstream.borrow().upgrade()
    }
}

impl Web {
    /// What is held of an answer that is not whole.
    fn reading(&self) -> Held {
        Held::of(&self.reading, MOST_READING)
    }
}

impl Trouble {
    /// The same for people.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Forgotten => "it has forgotten the session".to_owned(),
            Self::Loop => via::REASON.to_owned(),
            Self::Unreachable(why)
            | Self::Failing(why)
            | Self::Refused(why)
            | Self::Forbidden(why)
            | Self::Hopeless(why) => why,
        }
    }
}

impl Failed {
    /// The same for people.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Unconnected(why) => format!("it cannot be reached: {why}"),
            Self::Broken(why) => format!("the connection broke: {why}"),
            Self::LedAway(why) | Self::NoTrust(why) => why.clone(),
        }
    }
}

fn headers_of(endpoint: &Endpoint) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &endpoint.headers {
        let unfit = || format!("the header `{name}` cannot be sent");
        let name: HeaderName = name.parse().map_err(|_| unfit())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| unfit())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}
