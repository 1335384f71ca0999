//! The HTTP service: carries out requests. Other modules make the decisions. A message continues in
//! `client/dispatch.rs`.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::convert::Infallible;
use std::rc::Rc;

use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::EXPECT;
use hyper::http::request::Parts;
use hyper::{Request, StatusCode};
use tokio::time::Instant;
use xy_mcp::envelope::Message;
use xy_transport::error_log::{self, FailedRequest};
use xy_transport::large::{LARGE_THRESHOLD, LargeReader};
use xy_transport::metrics::{self, Kind};

use crate::body_budget::{BodyBudget, BodyReservation};
use crate::conn_timers::ConnTimers;
use crate::connections::Connections;
use crate::counters::{Counters, Gauges};
use crate::error::HttpError;
use crate::failed_tokens::FailedTokens;
use crate::frontend::{Disposition, Frontend};
use crate::guard::{self, Auth, Identity, Token, TokenId};
use crate::limits::{STATELESS_REQUESTS_MAX, STREAM_DELAY};
use crate::persistence::Persistence;
use crate::record::Record;
use crate::recorder::UnsentChanges;
use crate::reply::{self, Reply};
use crate::request::{self, Accepts, HttpRequestKind};
use crate::request_body::{self, CollectedBody, RequestBody};
use crate::response_stream::FirstOutput;
use crate::route::Endpoint;
use crate::session::{Lease, Session, Sessions, Transport, is_result};
use crate::stateless::StatelessRequests;
use crate::stream::EventStream;
use crate::{HttpRules, HttpStatus, TokenWatch, event, headers};

mod stateless;
mod streams;

use stateless::RequestContext;
use streams::handle_legacy_message;

/// Maximum number of characters of a path in the log.
const LOGGED_PATH_MAX: usize = 200;

/// The state that all connections share.
pub(super) struct HttpService {
    rules: RefCell<Rc<HttpRules>>,
    /// The tokens of the configuration.
    static_tokens: Vec<Token>,
    /// The tokens that users add and remove at run time.
    dynamic_tokens: RefCell<Option<TokenWatch>>,
    status: Rc<dyn HttpStatus>,
    sessions: Sessions,
    stateless_requests: StatelessRequests,
    connections: Rc<Connections>,
    counters: Rc<Counters>,
    /// The bytes in bodies that are not complete, or not parsed yet.
    bodies: Rc<BodyBudget>,
    is_closing: Cell<bool>,
    failed_tokens: RefCell<FailedTokens>,
    large: LargeReader,
}

impl HttpService {
    pub(super) fn new(
        frontend: Rc<dyn Frontend>,
        rules: HttpRules,
        status: Rc<dyn HttpStatus>,
        sessions: (Persistence, Vec<Record>),
    ) -> Rc<Self> {
        let counters = Rc::new(Counters::default());
        let large = frontend.large_reader();
        let stateless_requests = StatelessRequests::new(
            Rc::clone(&frontend),
            Rc::clone(&counters),
            STATELESS_REQUESTS_MAX,
        );
        let sessions = Sessions::new(frontend, Rc::clone(&counters), rules.sessions_max, sessions);
        let static_tokens = match &rules.auth {
            Auth::None => Vec::new(),
            Auth::Tokens(tokens) => tokens.clone(),
        };
        let (rules, bodies) = (RefCell::new(Rc::new(rules)), Rc::default());
        let (dynamic_tokens, connections) = (RefCell::default(), Rc::default());
        let failed_tokens = RefCell::default();
        Rc::new(Self {
            rules,
            static_tokens,
            dynamic_tokens,
            status,
            sessions,
            stateless_requests,
            connections,
            counters,
            bodies,
            is_closing: Cell::new(false),
            failed_tokens,
            large,
        })
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn connections(&self) -> &Rc<Connections> {
        &self.connections
    }

    /// Records that a limit refused a client.
    pub(super) fn limit_hit(&self, limit: &'static str, token: Option<u64>) {
        self.status.limit_hit(limit, token);
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(super) fn stateless_requests(&self) -> &StatelessRequests {
        &self.stateless_requests
    }

    /// Returns the current numbers for `/metrics`.
    pub(super) fn gauges(&self) -> Gauges {
        let of_sessions = self.sessions.gauges();
        let waiting = self.stateless_requests.stored();
        let mut stored = of_sessions.stored;
        stored.events += waiting.events;
        stored.bytes += waiting.bytes;
        Gauges { stateless_requests: self.stateless_requests.count(), stored, ..of_sessions }
    }

    /// Returns the rules with the current tokens. A user may use a token as soon as its command
    /// returns, so each call looks for changes.
    pub(super) fn rules(&self) -> Rc<HttpRules> {
        let mut dynamic_tokens = self.dynamic_tokens.borrow_mut();
        let changed = dynamic_tokens
            .as_mut()
            .filter(|dynamic_tokens| dynamic_tokens.has_changed().unwrap_or_default());
        let changed = changed.map(|dynamic_tokens| dynamic_tokens.borrow_and_update().clone());
        drop(dynamic_tokens);
        if let Some(now) = changed {
            self.set_tokens(&now);
        }
        self.rules.borrow().clone()
    }

    /// Uses these dynamic tokens from now on.
    pub(super) fn follow_tokens(&self, dynamic_tokens: TokenWatch) {
        let now = dynamic_tokens.borrow().clone();
        self.dynamic_tokens.replace(Some(dynamic_tokens));
        self.set_tokens(&now);
    }

    /// Replaces the dynamic tokens. Ends every session and request whose token is gone.
    pub(super) fn set_tokens(&self, dynamic_tokens: &[Token]) {
        let mut rules = HttpRules::clone(&self.rules.borrow());
        let Auth::Tokens(tokens) = &mut rules.auth else { return };
        *tokens = self.static_tokens.iter().chain(dynamic_tokens).cloned().collect();
        let there: HashSet<u64> = tokens.iter().map(|token| token.id).collect();
        let now = Rc::new(rules);
        self.rules.replace(Rc::clone(&now));
        if let Auth::Tokens(tokens) = &now.auth {
            self.sessions.end_without(tokens);
        }
        self.stateless_requests.end_without(|token_id| there.contains(&token_id));
    }

    /// Answers one request.
    pub(super) async fn respond(
        self: Rc<Self>,
        request: Request<Incoming>,
        timers: Rc<ConnTimers>,
    ) -> Result<Reply, Infallible> {
        let (head, body) = request.into_parts();
        timers.start_request(!body.is_end_stream());
        let mut body = Some(body);
        let outcome = self.serve(&head, &mut body, &timers).await;
        if let Err(HttpError::UnknownSession | HttpError::SessionEnded) = outcome
            && self.is_closing.get()
        {
            // The next daemon may restore the session. A client that receives an error would not
            // retry.
            timers.abort();
            return std::future::pending().await;
        }
        let mut reply = outcome.unwrap_or_else(|error| {
            self.record_error(&error, &head, &timers);
            if error == HttpError::WrongToken {
                self.log_wrong_token(head.uri.path(), &timers);
            }
            reply::error_response(&error)
        });
        if let Some(unread) = body.filter(|body| !body.is_end_stream())
            // A client that waits for `100 Continue` does not send the body after an error.
            && !head.headers.contains_key(EXPECT)
        {
            timers.discard(unread);
        }
        if let Ok(Some(origin)) = guard::check_origin(&head.headers, &self.rules().hosts) {
            reply::allow_page(&mut reply, origin.clone());
        }
        self.counters.count_response(reply.status().as_u16());
        reply.body_mut().set_timers(timers);
        Ok(reply)
    }

    /// Logs the address and the path of a request with a wrong token, never the token itself.
    fn log_wrong_token(&self, path: &str, timers: &ConnTimers) {
        let peer = timers.peer();
        let address = peer.map(|peer| peer.ip().to_canonical());
        let record = self.failed_tokens.borrow_mut().record(address, Instant::now());
        let Some(skipped) = record else { return };
        let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
        let path: String = path.chars().take(LOGGED_PATH_MAX).collect();
        tracing::warn!(peer, path, skipped, "rejected an HTTP request with a wrong token");
    }

    /// Handles a request. Takes `body` if it reads all of it.
    async fn serve(
        &self,
        head: &Parts,
        body: &mut Option<Incoming>,
        timers: &ConnTimers,
    ) -> Result<Reply, HttpError> {
        let rules = self.rules();
        let kind = request::classify(head, &rules)?;
        if let Some(identity) = kind.identity() {
            self.connections.authenticate(timers, identity.token_id).inspect_err(|_| {
                timers.close_after_response();
                self.limit_hit("HTTP connections", Some(identity.token_id.number()));
            })?;
        }
        match kind {
            HttpRequestKind::Health => Ok(reply::text(StatusCode::OK, "ok\n")),
            HttpRequestKind::Ready => Ok(self.ready()),
            HttpRequestKind::Metrics { .. } => Ok(self.metrics()),
            HttpRequestKind::Preflight => Ok(reply::preflight(&head.headers)),
            HttpRequestKind::Post { endpoint, identity, session: Some(id), accepts } => {
                let session = self.sessions.find(id, &identity, endpoint).await?;
                let body = self.collect(body, identity.token_id, timers).await?;
                // Until a large message is parsed, later messages of the session wait, which keeps
                // their order.
                let order = session.order();
                let turn = order.lock().await;
                let message = self.receive(body).await?;
                if headers::is_modern_body(&message) {
                    drop(turn);
                    let context = RequestContext { head, identity, endpoint, accepts, timers };
                    return Ok(self.serve_stateless(context, message).await);
                }
                let changes = self.sessions.save_changes(&session, &message).await;
                let outcome = self.handle(&session, &message, accepts, changes)?;
                drop((turn, session, message));
                self.await_response(outcome, accepts, timers).await
            }
            HttpRequestKind::Post { endpoint, identity, session: None, accepts } => {
                let message =
                    self.receive(self.collect(body, identity.token_id, timers).await?).await?;
                if headers::is_modern_body(&message) {
                    let context = RequestContext { head, identity, endpoint, accepts, timers };
                    return Ok(self.serve_stateless(context, message).await);
                }
                self.initialize(&message, (&identity, endpoint), accepts).await
            }
            HttpRequestKind::StatelessRequest { endpoint, identity, accepts } => {
                let message =
                    self.receive(self.collect(body, identity.token_id, timers).await?).await?;
                let context = RequestContext { head, identity, endpoint, accepts, timers };
                Ok(self.serve_stateless(context, message).await)
            }
            HttpRequestKind::Listen { endpoint, identity, session } => {
                self.listen(&self.sessions.find(session, &identity, endpoint).await?)
            }
            HttpRequestKind::Resume { endpoint, identity, session, after } => {
                self.resume(&self.sessions.find(session, &identity, endpoint).await?, after)
            }
            HttpRequestKind::LegacySse { endpoint, identity } => {
                self.open_legacy(&identity, endpoint)
            }
            HttpRequestKind::LegacyMessage { identity, session } => {
                let session = self.sessions.find_legacy(session, &identity)?;
                let body = self.collect(body, identity.token_id, timers).await?;
                let order = session.order();
                let _turn = order.lock().await;
                handle_legacy_message(&session, &self.receive(body).await?)
            }
            HttpRequestKind::DeleteSession { endpoint, identity, session } => {
                let session = self.sessions.find(session, &identity, endpoint).await?;
                // The client wants no more responses. An error for an open call would make the
                // Python SDK fail while it closes.
                session.session_streams().cancel_calls();
                self.sessions.delete(&session).await;
                Ok(reply::empty(StatusCode::NO_CONTENT))
            }
        }
    }

    fn record_error(&self, error: &HttpError, head: &Parts, timers: &ConnTimers) {
        self.record_refused(error.reason(), error.status(), head, timers);
        if let Some(limit) = error.limit() {
            self.limit_hit(limit, timers.owner().map(TokenId::number));
        }
    }

    /// Counts and logs a refused request. Logs only the path: the query may hold secrets.
    fn record_refused(
        &self,
        reason: &'static str,
        status: StatusCode,
        head: &Parts,
        timers: &ConnTimers,
    ) {
        self.counters.count_refused(reason);
        if error_log::is_on() {
            let path: String = head.uri.path().chars().take(LOGGED_PATH_MAX).collect();
            let peer = timers.peer();
            FailedRequest {
                client: &peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string()),
                method: &format!("{} {path}", head.method),
                outcome: reason,
                code: status.as_u16().into(),
                ..FailedRequest::default()
            }
            .log();
        }
    }

    async fn collect(
        &self,
        body: &mut Option<Incoming>,
        token_id: TokenId,
        timers: &ConnTimers,
    ) -> Result<(CollectedBody, BodyReservation), HttpError> {
        let mut held = self.bodies.reserve(token_id);
        let max = self.rules().body_max_bytes;
        let body = request_body::collect(body, max, self.large.pace(), &mut held).await?;
        timers.finish_body();
        Ok((body, held))
    }

    /// Parses a large body on another thread. Until then it counts as an incomplete body.
    async fn receive(
        &self,
        (body, held): (CollectedBody, BodyReservation),
    ) -> Result<RequestBody, HttpError> {
        if body.len() <= LARGE_THRESHOLD {
            self.large.pace().record_small();
            return Ok(RequestBody::Small(body.into_bytes()));
        }
        let read = self.large.read(body.into_chunks()).await;
        drop(held);
        read.map(RequestBody::Large).ok_or(HttpError::Closing)
    }

    /// Returns true if a large body is being parsed.
    #[cfg(test)]
    pub(super) fn is_reading(&self) -> bool {
        !self.large.is_idle()
    }

    /// Returns true if no body is being received or parsed.
    #[cfg(test)]
    pub(super) fn is_reading_nothing(&self) -> bool {
        self.large.is_idle() && self.bodies.used() == 0
    }

    #[cfg(test)]
    pub(super) fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    fn ready(&self) -> Reply {
        if self.status.is_ready() {
            reply::text(StatusCode::OK, "ready\n")
        } else {
            reply::text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
        }
    }

    fn metrics(&self) -> Reply {
        let mut out = String::new();
        self.counters.write(&mut out, self.gauges());
        let (name, help) =
            ("xy_http_sessions_dormant", "sessions of an earlier daemon, not used yet");
        metrics::single(&mut out, name, Kind::Gauge, help, self.sessions.dormant());
        self.status.metrics(&mut out);
        reply::text(StatusCode::OK, out)
    }

    /// Passes a message to its session. Returns the stream of its response, or the reply if no
    /// response follows.
    fn handle(
        &self,
        session: &Rc<Session>,
        message: &RequestBody,
        accepts: Accepts,
        changes: UnsentChanges,
    ) -> Result<Result<Lease, Reply>, HttpError> {
        if session.is_closed() {
            return Err(HttpError::UnknownSession); // It ended while the body arrived.
        }
        self.check_capacity(session, message)?;
        let lease = Sessions::open_call(session, accepts.events);
        if message.is_batch() {
            lease.response_stream().set_batch();
        }
        match message {
            // A reply without a response soon becomes an event stream, so this text is not kept for
            // long.
            RequestBody::Small(text) if accepts.names_events => {
                lease.response_stream().set_message(text.clone());
            }
            _ if accepts.events => lease.response_stream().set_requests(message.requests()),
            _ => {}
        }
        let changes = changes.send(lease.stream());
        Ok(match message.deliver(session.client_session(), lease.stream()) {
            Disposition::NoResponse => Err(reply::empty(StatusCode::ACCEPTED)),
            Disposition::Rejected(error) => {
                changes.refuse();
                Err(reply::json(StatusCode::BAD_REQUEST, error))
            }
            Disposition::ResponsePending => Ok(lease),
        })
    }

    /// Waits for the response to a message. Long waits are common, so this holds little memory.
    async fn await_response(
        &self,
        outcome: Result<Lease, Reply>,
        accepts: Accepts,
        timers: &ConnTimers,
    ) -> Result<Reply, HttpError> {
        let lease = match outcome {
            Ok(lease) => lease,
            Err(reply) => return Ok(reply),
        };
        if accepts.names_events {
            timers.start_stream_after(Rc::clone(lease.response_stream()), STREAM_DELAY);
        }
        let first = lease.response_stream().first().await;
        timers.cancel_stream_start();
        match first {
            FirstOutput::Response(response) => Ok(complete_reply(response, accepts)),
            FirstOutput::Events => Ok(reply::events(EventStream::new(lease))),
            FirstOutput::Nothing => Ok(reply::whole_events(Bytes::new())),
            FirstOutput::SessionEnded => Err(HttpError::SessionEnded),
        }
    }

    /// Marks that the daemon stops: sessions that end now may continue in the next daemon.
    pub(super) fn begin_shutdown(&self) {
        self.is_closing.set(true);
    }

    /// Checks the limit on open streams. It applies to requests only: a client must always be able
    /// to cancel one, and to respond.
    fn check_capacity(&self, session: &Session, message: &RequestBody) -> Result<(), HttpError> {
        let max = self.rules().streams_per_session_max;
        if session.session_streams().open() >= max
            && matches!(message.message(), Ok(Message::Request { .. }))
        {
            return Err(HttpError::TooManyStreams(max));
        }
        Ok(())
    }

    /// Handles a message without a session id, which must be `initialize`.
    async fn initialize(
        &self,
        message: &RequestBody,
        (identity, endpoint): (&Identity<'_>, Endpoint<'_>),
        accepts: Accepts,
    ) -> Result<Reply, HttpError> {
        match message.message() {
            Ok(Message::Request { method, .. }) if method == "initialize" => {}
            _ => return Err(HttpError::NoSession),
        }
        let pending = self.sessions.open(identity, endpoint, Transport::StreamableHttp)?;
        // The reply carries the session id, and only the response shows whether there is a session.
        // So no event may precede it.
        let lease = Sessions::open_call(pending.session(), false);
        match message.deliver(pending.session().client_session(), lease.stream()) {
            Disposition::NoResponse => return Ok(reply::empty(StatusCode::ACCEPTED)),
            Disposition::Rejected(error) => return Ok(reply::json(StatusCode::BAD_REQUEST, error)),
            Disposition::ResponsePending => {}
        }
        let FirstOutput::Response(response) = lease.response_stream().first().await else {
            return Err(HttpError::SessionEnded);
        };
        let agreed = is_result(&response);
        let mut reply = complete_reply(response, accepts);
        if agreed {
            reply::set_session(
                &mut reply,
                &pending.register(message.text(), (identity, endpoint)).await?,
            );
        }
        Ok(reply)
    }
}

/// Returns the reply for a response without preceding events, in a format that the client accepts.
fn complete_reply(response: Bytes, accepts: Accepts) -> Reply {
    if accepts.json {
        reply::json(StatusCode::OK, response)
    } else {
        reply::whole_events(event::encode(None, &response).0)
    }
}
