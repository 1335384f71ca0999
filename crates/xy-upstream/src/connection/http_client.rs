//! The transport to an HTTP server: each message is a request.
//!
//! Each call is a task that posts the message and reads the response to its end, so that a slow
//! call delays no other (`call.rs`; `wire.rs` starts it). Notifications go out one after another
//! (`notify.rs`). `listen.rs` reads the server's event streams, `fetch.rs` sends single requests,
//! and `response_class.rs` classifies their responses.
//!
//! A modern server gets the subject of each message in headers too (`headers.rs`). Closing the
//! stream of a call is the only sign that cancels it.
//!
//! Calls that have waited are sent in the order of their client (`ordered_send.rs`).
//!
//! A legacy server may forget the session at any time. Then `upstream_session/http.rs` repeats the
//! handshake, and calls that the server has not accepted are sent again, once.

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
use xy_mcp::revision::MODERN;
use xy_mcp::via;
use xy_transport::budget::Reservation;

use super::Connection;

mod call;
mod call_text;
mod endpoint;
mod fetch;
mod headers;
mod listen;
mod notify;
mod ordered_send;
mod response_class;
mod send_order;
mod wire;

use call_text::CallText;
use fetch::{FetchError, OutgoingRequest, RequestSender};
use headers::ToolHeaders;
use ordered_send::SendOrders;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// Maximum time until a server accepts a notification or response.
pub const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which the response to a cancelled call is still read.
const CANCELLED_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for ending a session.
const END_SESSION_TIMEOUT: Duration = Duration::from_secs(1);

/// Errors that wait for the session task; only the first of a kind matters.
const ERROR_QUEUE: usize = 8;

/// A session or stream that lived this long resets the back-off.
pub const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Maximum number of concurrent calls to one server; more calls wait. Each has a connection, and
/// other servers need theirs.
const MAX_CONCURRENT_CALLS: usize = 256;

/// Maximum size of all incomplete responses of one server.
const MAX_PARTIAL_BYTES: usize = 128 * 1024 * 1024;

/// Maximum length of a session id; longer ones are ignored.
const MAX_SESSION_ID: usize = 4096;

/// The transport to an HTTP server.
pub struct HttpClient {
    me: Weak<Self>,
    connection: RefCell<Weak<Connection>>,
    sender: RequestSender,
    url: Uri,
    /// The URL that messages are posted to: `url`, or what a legacy SSE server announces.
    post_url: RefCell<Option<Uri>>,
    is_legacy_sse: bool,
    is_remote: bool,
    /// The headers from the server's settings.
    headers: HeaderMap,
    session: RefCell<Session>,
    /// The state of the handshake that begins a session.
    handshake: Cell<HandshakeState>,
    /// The call that probes for the modern era.
    probe: Cell<Option<u64>>,
    /// The server speaks the modern era.
    is_modern: Cell<bool>,
    /// Cache of the arguments that are mirrored into headers.
    tool_headers: ToolHeaders,
    /// Consecutive failures to connect for the event stream.
    connect_failures: Cell<u32>,
    /// The number of sessions so far; calls wait here for the next one.
    session_count: watch::Sender<u64>,
    calls: RefCell<HashMap<u64, AbortHandle>>,
    /// Signals the end of a call.
    call_finished: Notify,
    /// Calls that the server has not received.
    unsent: RefCell<HashSet<u64>>,
    /// Calls whose response has not begun.
    unanswered: RefCell<HashSet<u64>>,
    /// The order of calls that have waited, and the tasks that keep it.
    send_orders: SendOrders,
    order_tasks: RefCell<JoinSet<()>>,
    /// Tasks that post responses to the server's requests.
    answers: RefCell<JoinSet<()>>,
    /// Notifications that wait to be posted, with their turns.
    notifications: RefCell<VecDeque<(u64, Bytes)>>,
    notification_bytes: Cell<usize>,
    /// Total size of the calls that are not answered yet.
    call_bytes: Cell<usize>,
    notification_added: Notify,
    /// Signals that a turn has ended.
    turn_ended: Notify,
    /// Open turns: later messages wait for them.
    turns: RefCell<BTreeSet<u64>>,
    next_turn: Cell<u64>,
    /// Calls that hold back later messages, and their turns.
    barriers: RefCell<HashMap<u64, u64>>,
    /// Permits for concurrent calls, each of which has a connection.
    call_permits: Semaphore,
    /// Calls that need no permit, such as health checks.
    unlimited: RefCell<HashSet<u64>>,
    /// Total size of the incomplete responses.
    partial_bytes: Rc<Cell<usize>>,
    /// The server has forgotten the session, and that is not handled yet.
    is_forgotten: Cell<bool>,
    session_lost: Notify,
    errors: mpsc::Sender<SessionError>,
    is_closed: Cell<bool>,
}

/// A session with a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Session {
    /// The id that the server has assigned.
    id: Option<HeaderValue>,
    /// The negotiated revision.
    version: Option<HeaderValue>,
}

/// The state of the handshake that begins a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandshakeState {
    /// No handshake is due.
    Done,
    /// The next `initialize` begins a session.
    Due,
    /// This call is the `initialize` request.
    Call(u64),
}

/// An error that the session task has to handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionError {
    /// The server has forgotten the session.
    Forgotten,
    /// The server cannot be reached.
    Unreachable(String),
    /// The server failed, and may work the next time.
    Failing(String),
    /// The server refused the request.
    Refused(String),
    /// The server denied the request (403).
    Forbidden(String),
    /// The server cannot be used, and a retry does not help.
    Hopeless(String),
    /// The server leads back to this daemon.
    Loop,
}

impl HttpClient {
    /// Creates the transport to `endpoint`. Returns it with the receiver of its errors.
    pub async fn new(
        endpoint: &Endpoint,
    ) -> Result<(Rc<Self>, mpsc::Receiver<SessionError>), String> {
        let url: Uri = endpoint.url.parse().map_err(|problem| format!("its address: {problem}"))?;
        let sender = RequestSender::new(&url).await.map_err(|failed| failed.words())?;
        let headers = headers_of(endpoint)?;
        let (errors, error) = mpsc::channel(ERROR_QUEUE);
        let transport = Rc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            connection: RefCell::default(),
            sender,
            post_url: RefCell::new((!endpoint.is_older).then(|| url.clone())),
            url,
            is_legacy_sse: endpoint.is_older,
            is_remote: endpoint.is_remote,
            headers,
            session: RefCell::default(),
            handshake: Cell::new(HandshakeState::Done),
            probe: Cell::new(None),
            is_modern: Cell::new(false),
            tool_headers: ToolHeaders::default(),
            connect_failures: Cell::new(0),
            call_permits: Semaphore::new(MAX_CONCURRENT_CALLS),
            unlimited: RefCell::default(),
            session_count: watch::Sender::new(0),
            calls: RefCell::default(),
            call_finished: Notify::new(),
            unsent: RefCell::default(),
            unanswered: RefCell::default(),
            send_orders: SendOrders::default(),
            order_tasks: RefCell::default(),
            answers: RefCell::default(),
            notifications: RefCell::default(),
            notification_bytes: Cell::new(0),
            call_bytes: Cell::new(0),
            notification_added: Notify::new(),
            turn_ended: Notify::new(),
            turns: RefCell::default(),
            next_turn: Cell::new(0),
            barriers: RefCell::default(),
            partial_bytes: Rc::default(),
            is_forgotten: Cell::new(false),
            session_lost: Notify::new(),
            errors,
            is_closed: Cell::new(false),
        });
        Ok((transport, error))
    }

    /// Sets the connection whose messages are transported.
    pub fn set_connection(&self, connection: &Rc<Connection>) {
        *self.connection.borrow_mut() = Rc::downgrade(connection);
    }

    /// Returns true if the server runs on another machine.
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Returns true if the server speaks the older HTTP+SSE transport.
    pub fn is_legacy_sse(&self) -> bool {
        self.is_legacy_sse
    }

    /// Returns the URL for people, without secrets.
    pub fn display_url(&self) -> String {
        endpoint::shown(&self.url)
    }

    /// Returns true if a connection to the server can be opened.
    pub async fn accepts_connections(&self) -> bool {
        let (Some(host), Some(port)) = (self.url.host(), self.url.port_u16()) else {
            return false;
        };
        matches!(timeout(END_SESSION_TIMEOUT, TcpStream::connect((host, port))).await, Ok(Ok(_)))
    }

    /// Discards the session: the next `initialize` begins a new one.
    pub fn reset(&self) {
        self.session.take();
        // Notifications of the last session mean nothing in the next.
        for message in self.notifications.take() {
            self.finish_notification(&message);
        }
        self.answers.borrow_mut().abort_all();
        self.is_forgotten.set(false);
        self.is_modern.set(false);
        self.handshake.set(HandshakeState::Due);
    }

    /// Resumes a session that an earlier daemon began.
    pub fn resume(&self, id: &str) {
        self.session.borrow_mut().id = HeaderValue::from_str(id).ok();
    }

    /// Sets the negotiated revision, which ends the handshake.
    pub fn set_version(&self, version: &str) {
        self.handshake.set(HandshakeState::Done);
        self.is_modern.set(version == MODERN);
        let mut session = self.session.borrow_mut();
        session.version = HeaderValue::from_str(version).ok();
        if self.is_modern.get() {
            session.id = None; // A modern server has no sessions, whatever it sends.
        }
    }

    /// Returns true if the server speaks the modern era.
    pub fn is_modern(&self) -> bool {
        self.is_modern.get()
    }

    /// Opens the session: calls that wait for it go on.
    pub fn open_session(&self) {
        self.session_count.send_modify(|count| *count += 1);
    }

    /// Waits until the server has forgotten the session.
    pub async fn session_forgotten(&self) {
        while !self.is_forgotten.replace(false) {
            self.session_lost.notified().await;
        }
    }

    /// Waits until every call that was sent is completed.
    pub async fn all_answered(&self) {
        let is_answered = || {
            let unsent = self.unsent.borrow();
            let is_subscription =
                |call| self.connection().is_some_and(|it| it.is_subscription(call));
            self.calls.borrow().keys().all(|call| unsent.contains(call) || is_subscription(*call))
        };
        while !is_answered() {
            self.call_finished.notified().await;
        }
    }

    /// Removes a call that has ended.
    fn finish_call(&self, call: u64) {
        self.call_finished.notify_one();
        self.calls.borrow_mut().remove(&call);
        self.unsent.borrow_mut().remove(&call);
        self.unanswered.borrow_mut().remove(&call);
        self.send_orders.remove(call);
        self.unlimited.borrow_mut().remove(&call);
        let turn = self.barriers.borrow_mut().remove(&call);
        if let Some(turn) = turn {
            self.end_turn(turn);
        }
    }

    /// Aborts a call, and closes its stream.
    fn abort_call(&self, call: u64) {
        let task = self.calls.borrow_mut().remove(&call);
        if let Some(task) = task {
            task.abort();
            self.finish_call(call);
        }
    }

    /// Ends the session at the server.
    pub async fn end_session(&self) {
        if self.is_legacy_sse || self.session.borrow().id.is_none() {
            return;
        }
        let request = self.request(Method::DELETE, self.url.clone(), Bytes::new());
        // The server may be gone already.
        let _ = timeout(END_SESSION_TIMEOUT, self.sender.send(request)).await;
    }

    /// Posts one message.
    async fn post(&self, message: Bytes) -> Result<Response<Incoming>, FetchError> {
        self.sender.send(self.post_request(message)?).await
    }

    /// Posts a call, and records when it was sent.
    async fn post_call(&self, call: u64, message: Bytes) -> Result<Response<Incoming>, FetchError> {
        let mut request = self.post_request(message)?;
        let (sent, is_sent) = oneshot::channel();
        request.sent = Some(sent);
        let mut sending = pin!(self.sender.send(request));
        tokio::select! {
            biased;
            response = &mut sending => return response,
            Ok(()) = is_sent => self.send_orders.mark_sent(call),
        }
        sending.await
    }

    fn post_request(&self, message: Bytes) -> Result<OutgoingRequest, FetchError> {
        let to = self.post_url.borrow().clone();
        let no_url = || FetchError::Unconnected("it has not announced its endpoint".to_owned());
        let mut request = self.request(Method::POST, to.ok_or_else(no_url)?, message);
        self.add_message_headers(&mut request);
        Ok(request)
    }

    fn request(&self, method: Method, to: Uri, body: Bytes) -> OutgoingRequest {
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
                && !self.is_legacy_sse
            {
                headers.insert(name, value.clone());
            }
        }
        OutgoingRequest { method, to, headers, body, sent: None }
    }

    /// Returns true if this call begins a session.
    fn begins_session(&self, call: u64) -> bool {
        self.handshake.get() == HandshakeState::Call(call)
    }

    /// Returns true if this call needs no permit: part of the handshake, a subscription, or a
    /// health check.
    fn bypasses_limit(&self, call: u64) -> bool {
        let is_subscription =
            || self.connection().is_some_and(|connection| connection.is_subscription(call));
        let is_unlimited = self.unlimited.borrow().contains(&call);
        self.begins_session(call)
            || self.probe.get() == Some(call)
            || is_unlimited
            || is_subscription()
    }

    /// Stores the session id that the response to `initialize` carries.
    fn take_session(&self, call: u64, headers: &HeaderMap) {
        if !self.begins_session(call) {
            return;
        }
        let id = headers.get(SESSION).filter(|id| id.len() <= MAX_SESSION_ID);
        self.session.borrow_mut().id = id.cloned();
    }

    fn has_session(&self) -> bool {
        self.session.borrow().id.is_some()
    }

    /// Returns true if a session was negotiated and the server has not forgotten it.
    fn is_in_session(&self) -> bool {
        self.session.borrow().version.is_some()
    }

    /// Discards the session with this number, and notifies the session task once.
    fn forget_session(&self, count: u64) {
        if *self.session_count.borrow() == count && self.is_in_session() {
            self.session.take();
            if let Some(connection) = self.connection() {
                connection.reset(); // No request may be sent without a session.
            }
            self.is_forgotten.set(true);
            self.session_lost.notify_one();
        }
    }

    fn report(&self, error: SessionError) {
        // A full queue holds enough errors, but an unreachable server must not go unnoticed.
        if let Err(TrySendError::Full(SessionError::Unreachable(_))) = self.errors.try_send(error) {
            self.is_forgotten.set(true);
            self.session_lost.notify_one();
        }
    }

    fn connection(&self) -> Option<Rc<Connection>> {
        self.connection.borrow().upgrade()
    }
}

impl HttpClient {
    /// Returns the budget of an incomplete response.
    fn partial_budget(&self) -> Reservation {
        Reservation::new(&self.partial_bytes, MAX_PARTIAL_BYTES)
    }
}

impl SessionError {
    /// Returns the error for people.
    pub fn words(self) -> String {
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

impl FetchError {
    /// Returns the error for people.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Unconnected(why) => format!("it cannot be reached: {why}"),
            Self::Broken(why) => format!("the connection broke: {why}"),
            Self::Redirected(why) | Self::NoTrustStore(why) => why.clone(),
        }
    }
}

fn headers_of(endpoint: &Endpoint) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &endpoint.headers {
        let invalid = || format!("the header `{name}` cannot be sent");
        let name: HeaderName = name.parse().map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}
