//! What is done about each request: the decisions are elsewhere, here they are carried out.

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

use super::connection::ConnTimers;
use super::connections::Connections;
use super::counts::{Counts, Gauges};
use super::event;
use super::failed_tokens::FailedTokens;
use super::guard::{self, Auth, Identity, Token, TokenId};
use super::headers;
use super::limits::{BODIES_MAX, OPEN_AFTER, VISITS_MAX};
use super::persistence::Persistence;
use super::received::{self, Body, Received};
use super::record::Record;
use super::recorder::UnsentChanges;
use super::refused::Refused;
use super::reply::{self, Reply};
use super::request::{self, Accepts, HttpRequestKind};
use super::response_stream::First;
use super::route::Endpoint;
use super::session::{Session, Sessions, Transport, is_result};
use super::session_streams::Lease;
use super::stateless::Visits;
use super::stream::EventStream;
use super::{HttpRules, HttpStatus, TokenWatch};
use crate::error_log::{self, FailedRequest};
use crate::frontend::{Accepted, Frontend};
use crate::held::Held;
use crate::large::{LARGE, LargeReader};
use crate::metrics::{self, Kind};

mod attend;
mod streams;

use attend::Origin;
use streams::hear_older;

/// How much of a path is logged.
const LOGGED_PATH_MAX: usize = 200;

/// What all connections share.
pub(super) struct HttpService {
    rules: RefCell<Rc<HttpRules>>,
    /// The tokens that are always there.
    lasting: Vec<Token>,
    /// Those that come and go.
    made: RefCell<Option<TokenWatch>>,
    status: Rc<dyn HttpStatus>,
    sessions: Sessions,
    visits: Visits,
    connections: Rc<Connections>,
    counts: Rc<Counts>,
    /// What has come of bodies that are not whole, or not read.
    bodies: Rc<Cell<usize>>,
    is_closing: Cell<bool>,
    failed_tokens: RefCell<FailedTokens>,
    large: LargeReader,
}

impl HttpService {
    pub(super) fn new(
        front: Rc<dyn Frontend>,
        rules: HttpRules,
        status: Rc<dyn HttpStatus>,
        sessions: (Persistence, Vec<Record>),
    ) -> Rc<Self> {
        let counts = Rc::new(Counts::default());
        let large = front.large_reader();
        let visits = Visits::new(Rc::clone(&front), Rc::clone(&counts), VISITS_MAX);
        let sessions = Sessions::new(front, Rc::clone(&counts), rules.sessions_max, sessions);
        let lasting = match &rules.auth {
            Auth::None => Vec::new(),
            Auth::Tokens(tokens) => tokens.clone(),
        };
        let (rules, bodies) = (RefCell::new(Rc::new(rules)), Rc::default());
        let (made, connections) = (RefCell::default(), Rc::default());
        let failed_tokens = RefCell::default();
        Rc::new(Self {
            rules,
            lasting,
            made,
            status,
            sessions,
            visits,
            connections,
            counts,
            bodies,
            is_closing: Cell::new(false),
            failed_tokens,
            large,
        })
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn connections(&self) -> &Rc<Connections> {
        &self.connections
    }

    /// Notes that a limit kept somebody out.
    pub(super) fn limit_hit(&self, limit: &'static str, token: Option<u64>) {
        self.status.limit_hit(limit, token);
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(super) fn visits(&self) -> &Visits {
        &self.visits
    }

    /// What there is at this moment.
    pub(super) fn gauges(&self) -> Gauges {
        let of_sessions = self.sessions.gauges();
        let waiting = self.visits.stored();
        let mut stored = of_sessions.stored;
        stored.events += waiting.events;
        stored.bytes += waiting.bytes;
        Gauges { visits: self.visits.count(), stored, ..of_sessions }
    }

    /// The rules as they are at this moment: who was told that a token is there, or is not any
    /// more, may come right away.
    pub(super) fn rules(&self) -> Rc<HttpRules> {
        let mut made = self.made.borrow_mut();
        let changed = made.as_mut().filter(|made| made.has_changed().unwrap_or_default());
        let changed = changed.map(|made| made.borrow_and_update().clone());
        drop(made);
        if let Some(now) = changed {
            self.set_tokens(&now);
        }
        self.rules.borrow().clone()
    }

    /// Tokens come and go as these do.
    pub(super) fn follow(&self, made: TokenWatch) {
        let now = made.borrow().clone();
        self.made.replace(Some(made));
        self.set_tokens(&now);
    }

    /// Who may come in beside those who always may. Whoever came in with a token that is not
    /// there any more is ended at once.
    pub(super) fn set_tokens(&self, made: &[Token]) {
        let mut rules = HttpRules::clone(&self.rules.borrow());
        let Auth::Tokens(tokens) = &mut rules.auth else { return };
        *tokens = self.lasting.iter().chain(made).cloned().collect();
        let there: HashSet<u64> = tokens.iter().map(|token| token.id).collect();
        let now = Rc::new(rules);
        self.rules.replace(Rc::clone(&now));
        if let Auth::Tokens(tokens) = &now.auth {
            self.sessions.end_without(tokens);
        }
        self.visits.end_without(|who| there.contains(&who));
    }

    /// Answers one request.
    pub(super) async fn answer(
        self: Rc<Self>,
        request: Request<Incoming>,
        pulse: Rc<ConnTimers>,
    ) -> Result<Reply, Infallible> {
        let (head, body) = request.into_parts();
        pulse.asked(!body.is_end_stream());
        let mut body = Some(body);
        let outcome = self.serve(&head, &mut body, &pulse).await;
        if let Err(Refused::UnknownSession | Refused::SessionEnded) = outcome
            && self.is_closing.get()
        {
            // The next daemon may go on with it. Who was told of its end would not come back.
            pulse.break_off();
            return std::future::pending().await;
        }
        let mut reply = outcome.unwrap_or_else(|refused| {
            self.note_refused(&refused, &head, &pulse);
            if refused == Refused::WrongToken {
                self.log_wrong_token(head.uri.path(), &pulse);
            }
            reply::refused(&refused)
        });
        if let Some(unread) = body.filter(|body| !body.is_end_stream())
            // Who asks before it sends a body will not send it now.
            && !head.headers.contains_key(EXPECT)
        {
            pulse.discard(unread);
        }
        if let Ok(Some(origin)) = guard::check_origin(&head.headers, &self.rules().hosts) {
            reply::allow_page(&mut reply, origin.clone());
        }
        self.counts.answered(reply.status().as_u16());
        reply.body_mut().answers(pulse);
        Ok(reply)
    }

    /// Logs who sent a wrong token, and where to; never the token.
    fn log_wrong_token(&self, path: &str, pulse: &ConnTimers) {
        let peer = pulse.peer();
        let address = peer.map(|peer| peer.ip().to_canonical());
        let record = self.failed_tokens.borrow_mut().record(address, Instant::now());
        let Some(skipped) = record else { return };
        let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
        let path: String = path.chars().take(LOGGED_PATH_MAX).collect();
        tracing::warn!(peer, path, skipped, "a request over HTTP had a wrong token");
    }

    /// Does what a request asks for. Takes its body if it reads all of it.
    async fn serve(
        &self,
        head: &Parts,
        body: &mut Option<Incoming>,
        pulse: &ConnTimers,
    ) -> Result<Reply, Refused> {
        let rules = self.rules();
        let ask = request::read(head, &rules)?;
        if let Some(identity) = ask.identity() {
            self.connections.authenticate(pulse, identity.who).inspect_err(|_| {
                pulse.leave();
                self.limit_hit("HTTP connections", Some(identity.who.number()));
            })?;
        }
        match ask {
            HttpRequestKind::Health => Ok(reply::text(StatusCode::OK, "ok\n")),
            HttpRequestKind::Ready => Ok(self.ready()),
            HttpRequestKind::Metrics { .. } => Ok(self.metrics()),
            HttpRequestKind::Preflight => Ok(reply::preflight(&head.headers)),
            HttpRequestKind::Post { place, identity, session: Some(id), accepts } => {
                let session = self.sessions.find(id, &identity, place).await?;
                let body = self.collect(body, pulse).await?;
                // While a large message is read, what its client says next waits for it.
                let order = session.order();
                let turn = order.lock().await;
                let message = self.receive(body).await?;
                if headers::is_modern_body(&message) {
                    drop(turn);
                    let origin = Origin { head, identity, place, accepts, pulse };
                    return Ok(self.attend(origin, message).await);
                }
                let changes = self.sessions.keep_changes(&session, &message).await;
                let outcome = self.handle(&session, &message, accepts, changes)?;
                drop((turn, session, message));
                self.answer_to(outcome, accepts, pulse).await
            }
            HttpRequestKind::Post { place, identity, session: None, accepts } => {
                let message = self.receive(self.collect(body, pulse).await?).await?;
                if headers::is_modern_body(&message) {
                    let origin = Origin { head, identity, place, accepts, pulse };
                    return Ok(self.attend(origin, message).await);
                }
                self.initialize(&message, (&identity, place), accepts).await
            }
            HttpRequestKind::StatelessRequest { place, identity, accepts } => {
                let message = self.receive(self.collect(body, pulse).await?).await?;
                let origin = Origin { head, identity, place, accepts, pulse };
                Ok(self.attend(origin, message).await)
            }
            HttpRequestKind::Listen { place, identity, session } => {
                self.listen(&self.sessions.find(session, &identity, place).await?)
            }
            HttpRequestKind::Resume { place, identity, session, after } => {
                self.resume(&self.sessions.find(session, &identity, place).await?, after)
            }
            HttpRequestKind::Older { place, identity } => self.open_older(&identity, place),
            HttpRequestKind::Message { identity, session } => {
                let session = self.sessions.find_older(session, &identity)?;
                let body = self.collect(body, pulse).await?;
                let order = session.order();
                let _turn = order.lock().await;
                hear_older(&session, &self.receive(body).await?)
            }
            HttpRequestKind::End { place, identity, session } => {
                let session = self.sessions.find(session, &identity, place).await?;
                // Whoever ends its session wants no answers any more. To hear of its end then
                // makes Python's SDK fail, in the middle of closing.
                session.session_streams().cancel_calls();
                self.sessions.delete(&session).await;
                Ok(reply::nothing(StatusCode::NO_CONTENT))
            }
        }
    }

    fn note_refused(&self, refused: &Refused, head: &Parts, pulse: &ConnTimers) {
        self.count_refused(refused.reason(), refused.status(), head, pulse);
        if let Some(limit) = refused.limit() {
            self.limit_hit(limit, pulse.owner().map(TokenId::number));
        }
    }

    /// Counts and logs a request that is refused. Its query may be secret, so the log has only
    /// its path.
    fn count_refused(
        &self,
        reason: &'static str,
        status: StatusCode,
        head: &Parts,
        pulse: &ConnTimers,
    ) {
        self.counts.refused(reason);
        if error_log::is_on() {
            let path: String = head.uri.path().chars().take(LOGGED_PATH_MAX).collect();
            let peer = pulse.peer();
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
        pulse: &ConnTimers,
    ) -> Result<(Body, Held), Refused> {
        let mut held = Held::of(&self.bodies, BODIES_MAX);
        let most = self.rules().body_max_bytes;
        let body = received::collect(body, most, pulse, &mut held).await?;
        Ok((body, held))
    }

    /// Has a large body read on another thread. It counts as one that is not whole until then.
    async fn receive(&self, (body, held): (Body, Held)) -> Result<Received, Refused> {
        if body.len() <= LARGE {
            return Ok(Received::Small(body.into_bytes()));
        }
        let read = self.large.read(body.into_chunks()).await;
        drop(held);
        read.map(Received::Large).ok_or(Refused::Closing)
    }

    /// Whether a large body is being read.
    #[cfg(test)]
    pub(super) fn is_reading(&self) -> bool {
        !self.large.is_idle()
    }

    /// Whether no body is being collected or read.
    #[cfg(test)]
    pub(super) fn is_reading_nothing(&self) -> bool {
        self.large.is_idle() && self.bodies.get() == 0
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
        self.counts.write(&mut out, self.gauges());
        let (name, help) =
            ("xy_http_sessions_dormant", "sessions of an earlier daemon, not used yet");
        metrics::single(&mut out, name, Kind::Gauge, help, self.sessions.dormant());
        self.status.metrics(&mut out);
        reply::text(StatusCode::OK, out)
    }

    /// A message within a session: where it is answered, or the answer.
    fn handle(
        &self,
        session: &Rc<Session>,
        message: &Received,
        accepts: Accepts,
        changes: UnsentChanges,
    ) -> Result<Result<Lease, Reply>, Refused> {
        if session.is_over() {
            return Err(Refused::UnknownSession); // It ended while the body came.
        }
        self.check_room(session, message)?;
        let lease = Sessions::open_call(session, accepts.events);
        if message.is_batch() {
            lease.response_stream().set_batch();
        }
        match message {
            // A call that stays silent becomes events soon, so the text is not held for long.
            Received::Small(text) if accepts.names_events => {
                lease.response_stream().set_message(text.clone());
            }
            _ if accepts.events => lease.response_stream().set_requests(message.request_ids()),
            _ => {}
        }
        let changes = changes.send(lease.stream());
        Ok(match message.tell(session.client_session(), lease.stream()) {
            Accepted::Taken => Err(reply::nothing(StatusCode::ACCEPTED)),
            Accepted::Refused(error) => {
                changes.refuse();
                Err(reply::json(StatusCode::BAD_REQUEST, error))
            }
            Accepted::Asked => Ok(lease),
        })
    }

    /// Waits for the answer to a message. Meanwhile this holds as little as possible.
    async fn answer_to(
        &self,
        outcome: Result<Lease, Reply>,
        accepts: Accepts,
        pulse: &ConnTimers,
    ) -> Result<Reply, Refused> {
        let lease = match outcome {
            Ok(lease) => lease,
            Err(reply) => return Ok(reply),
        };
        if accepts.names_events {
            pulse.waits(Rc::clone(lease.response_stream()), OPEN_AFTER);
        }
        let first = lease.response_stream().first().await;
        pulse.waits_no_more();
        match first {
            First::Answer(answer) => Ok(whole(answer, accepts)),
            First::Events => Ok(reply::events(EventStream::new(lease))),
            First::Nothing => Ok(reply::whole_events(Bytes::new())),
            First::SessionOver => Err(Refused::SessionEnded),
        }
    }

    /// From now on sessions end because the daemon does.
    pub(super) fn closes(&self) {
        self.is_closing.set(true);
    }

    /// Only calls take room: a client must always be able to cancel one, or to answer.
    fn check_room(&self, session: &Session, message: &Received) -> Result<(), Refused> {
        let max = self.rules().streams_per_session_max;
        if session.session_streams().open() >= max
            && matches!(message.message(), Ok(Message::Request { .. }))
        {
            return Err(Refused::TooManyStreams(max));
        }
        Ok(())
    }

    /// A message without a session, which can only be the one that begins it.
    async fn initialize(
        &self,
        message: &Received,
        (identity, place): (&Identity<'_>, Endpoint<'_>),
        accepts: Accepts,
    ) -> Result<Reply, Refused> {
        match message.message() {
            Ok(Message::Request { method, .. }) if method == "initialize" => {}
            _ => return Err(Refused::NoSession),
        }
        let opening = self.sessions.open(identity, place, Transport::StreamableHttp)?;
        // Whether there is a session is known from its answer, so that must come first.
        let lease = Sessions::open_call(opening.session(), false);
        match message.tell(opening.session().client_session(), lease.stream()) {
            Accepted::Taken => return Ok(reply::nothing(StatusCode::ACCEPTED)),
            Accepted::Refused(error) => return Ok(reply::json(StatusCode::BAD_REQUEST, error)),
            Accepted::Asked => {}
        }
        let First::Answer(answer) = lease.response_stream().first().await else {
            return Err(Refused::SessionEnded);
        };
        let agreed = is_result(&answer);
        let mut reply = whole(answer, accepts);
        if agreed {
            reply::set_session(
                &mut reply,
                &opening.admit(message.text(), (identity, place)).await?,
            );
        }
        Ok(reply)
    }
}

/// An answer before which nothing was said, as the client can read it.
fn whole(answer: Bytes, accepts: Accepts) -> Reply {
    if accepts.json {
        reply::json(StatusCode::OK, answer)
    } else {
        reply::whole_events(event::framed(None, &answer).0)
    }
}
