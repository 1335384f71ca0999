//! An HTTP session: a client session and its streams.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use xy_mcp::revision;

use crate::counters::{Counters, Gauges};
use crate::error::{HttpError, SharedResource};
use crate::event::EventId;
use crate::frontend::{ClientSession, Entry, Frontend, Lifetime, View};
use crate::guard::{Digest, Identity, Token, TokenId};
use crate::limits::SHUTDOWN_RETRY_MS;
use crate::persistence::Persistence;
use crate::record::{self, Change, Record};
use crate::recorder::{Recorder, UnsentChanges};
use crate::request_body::RequestBody;
use crate::response_stream::StreamMode;
use crate::route::Endpoint;
use crate::session_streams::{ResumedStream, SessionStreams};
use crate::storage_budget::StorageBudget;
use crate::store::SAVE_TIMEOUT;

mod lease;
mod pending;
mod restore;

pub(super) use lease::Lease;
pub(super) use pending::PendingSession;
use restore::{Dormant, EarlierStreams};
pub(super) use restore::{EarlierStream, is_result};

/// A session that is idle for this long may end to make room for a new one.
const EVICTABLE_AFTER: Duration = Duration::from_secs(60);

/// Maximum time between two sweeps, whatever the idle timeout: they also drop expired events.
const MAX_SWEEP_INTERVAL: Duration = Duration::from_secs(60);

type ById = RefCell<HashMap<SessionId, Rc<Session>>>;

/// The id with which a client continues its session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct SessionId(Rc<str>);

impl SessionId {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for SessionId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(…)") // A reader of a log with the id could take over the session.
    }
}

/// The transport of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// Streamable HTTP, with any number of streams.
    StreamableHttp,
    /// The legacy HTTP+SSE transport: all messages use one stream, and the session ends with it.
    LegacySse,
}

/// One client's session.
pub(super) struct Session {
    /// Set when the session is registered.
    id: OnceCell<SessionId>,
    recorder: Rc<Recorder>,
    transport: Transport,
    registry: Weak<ById>,
    view: View,
    token_id: TokenId,
    /// The digest of the token's secret.
    owner: Option<Digest>,
    earlier: RefCell<EarlierStreams>,
    client: Rc<dyn ClientSession>,
    streams: Rc<SessionStreams>,
    /// Locked while a message is parsed and handled, so that messages keep their order.
    order: Rc<Mutex<()>>,
    used_at: Cell<Instant>,
    is_closed: Cell<bool>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("view", &self.view).finish_non_exhaustive()
    }
}

impl Session {
    /// Returns what the stream of an event was, if it began in an earlier daemon.
    pub(super) fn earlier_stream(&self, after: EventId) -> Option<EarlierStream> {
        self.earlier.borrow().find(after)
    }

    pub(super) fn client_session(&self) -> &dyn ClientSession {
        &*self.client
    }

    pub(super) fn session_streams(&self) -> &SessionStreams {
        &self.streams
    }

    /// Returns the lock that keeps messages in order: it is held while a message is parsed and
    /// handled.
    pub(super) fn order(&self) -> Rc<Mutex<()>> {
        Rc::clone(&self.order)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Returns true if the client reconnects to a stream that closes before its response.
    pub(super) fn polls(&self) -> bool {
        self.client.version().is_some_and(revision::has_polling)
    }

    /// Handles the end of a stream's connection.
    pub(super) fn handle_lost_stream(&self) {
        self.touch();
        if self.transport == Transport::LegacySse {
            self.remove();
            self.end();
        }
    }

    /// Records that the session was used.
    pub(super) fn touch(&self) {
        self.used_at.set(Instant::now());
    }

    /// Returns when the session has been idle for too long; `None` while a stream is open.
    fn expires_at(&self, idle: Duration) -> Option<Instant> {
        if self.streams.open() > 0 {
            return None;
        }
        self.used_at.get().checked_add(idle) // A time that no clock can hold means never.
    }

    fn belongs_to(&self, identity: &Identity<'_>, endpoint: Endpoint<'_>) -> bool {
        self.transport == Transport::StreamableHttp
            && self.token_id == identity.token_id
            && endpoint.matches(&self.view)
    }

    /// Removes the session from the registry, so that no request finds it.
    fn remove(&self) {
        if let (Some(registry), Some(id)) = (self.registry.upgrade(), self.id.get()) {
            registry.borrow_mut().remove(id);
        }
    }

    /// Ends the session, once.
    fn end(&self) {
        if !self.is_closed.replace(true) {
            self.client.close();
            self.streams.end();
        }
    }
}

/// All sessions.
pub(super) struct Sessions {
    by_id: Rc<ById>,
    /// The tokens of sessions whose `initialize` is not answered yet.
    pending: RefCell<Vec<TokenId>>,
    /// The storage for events of all sessions.
    storage: Rc<StorageBudget>,
    frontend: Rc<dyn Frontend>,
    counters: Rc<Counters>,
    max: usize,
    persistence: Persistence,
    /// Sessions of an earlier daemon that were not used yet.
    dormant: RefCell<HashMap<u128, Rc<Dormant>>>,
    /// The valid tokens, by id and digest; `None` until they are set.
    valid_owners: RefCell<Option<HashSet<(u64, Digest)>>>,
}

impl Sessions {
    /// Creates the sessions; `records` are those of an earlier daemon.
    pub(super) fn new(
        frontend: Rc<dyn Frontend>,
        counters: Rc<Counters>,
        max: usize,
        (persistence, records): (Persistence, Vec<Record>),
    ) -> Self {
        let dormant = records.into_iter().map(|it| (it.session, Dormant::new(it))).collect();
        Self {
            by_id: Rc::default(),
            pending: RefCell::default(),
            valid_owners: RefCell::default(),
            storage: StorageBudget::for_all(),
            frontend,
            counters,
            max,
            persistence,
            dormant: RefCell::new(dormant),
        }
    }

    /// Checks that a token may have one more session. Ends an idle one if necessary.
    fn check_capacity(&self, token_id: TokenId) -> Result<(), HttpError> {
        let count = |is_counted: &dyn Fn(TokenId) -> bool| {
            let by_id = self.by_id.borrow();
            by_id.values().filter(|session| is_counted(session.token_id)).count()
                + self.pending.borrow().iter().filter(|token_id| is_counted(**token_id)).count()
        };
        if count(&|_| true) >= self.max && !self.evict_idle(|_| true) {
            return Err(HttpError::TooManySessions(self.max));
        }
        let (own, max) = (count(&|it| it == token_id), self.max);
        if !token_id.may_take(own, count(&|_| true), max) && !self.evict_idle(|it| it == token_id) {
            return Err(HttpError::OverShare { what: SharedResource::Sessions, own, max });
        }
        Ok(())
    }

    /// Ends the session that has been idle longest, if that is long enough: many clients leave
    /// without ending theirs. Returns true if one ended.
    fn evict_idle(&self, may_end: impl Fn(TokenId) -> bool) -> bool {
        let mut all: Vec<Rc<Session>> = self.by_id.borrow().values().cloned().collect();
        all.retain(|session| may_end(session.token_id));
        let idle =
            all.iter().filter_map(|session| Some((session.expires_at(EVICTABLE_AFTER)?, session)));
        let Some((since, longest_idle)) = idle.min_by_key(|(since, _)| *since) else {
            return false;
        };
        if since > Instant::now() {
            return false;
        }
        self.end(longest_idle);
        true
    }

    /// Opens a session, which no request finds before it is [registered](PendingSession::register).
    pub(super) fn open(
        &self,
        identity: &Identity<'_>,
        endpoint: Endpoint<'_>,
        transport: Transport,
    ) -> Result<PendingSession<'_>, HttpError> {
        self.check_capacity(identity.token_id)?;
        let storage = StorageBudget::for_session(&self.storage);
        let recorder = Recorder::new(Rc::clone(&self.persistence.store), self.random_tag()?);
        let recorder = Rc::new(recorder);
        let counters = Rc::clone(&self.counters);
        let session_streams = Rc::new(SessionStreams::new(Rc::clone(&recorder), storage, counters));
        let (view, may_manage, token_id) =
            (endpoint.to_view(), identity.may_manage, identity.token_id.number());
        let entry = Entry {
            view,
            may_manage,
            lifetime: if transport == Transport::LegacySse {
                Lifetime::LegacyOnly
            } else {
                Lifetime::Session
            },
            principal: token_id,
            bound: identity.profile.map(str::to_owned),
        };
        let client_session = self.frontend.open(entry, Rc::clone(&session_streams) as _)?;
        let session = Rc::new(Session {
            id: OnceCell::new(),
            recorder,
            transport,
            registry: Rc::downgrade(&self.by_id),
            view: endpoint.to_view(),
            token_id: identity.token_id,
            owner: identity.owner(),
            earlier: RefCell::default(),
            client: client_session,
            streams: session_streams,
            order: Rc::default(),
            used_at: Cell::new(Instant::now()),
            is_closed: Cell::new(false),
        });
        self.pending.borrow_mut().push(identity.token_id);
        Ok(PendingSession { session, sessions: self, is_registered: false })
    }

    /// Returns the session with this id, if it has this identity and endpoint. Restores a session
    /// of an earlier daemon.
    pub(super) async fn find(
        &self,
        id: &str,
        identity: &Identity<'_>,
        endpoint: Endpoint<'_>,
    ) -> Result<Rc<Session>, HttpError> {
        let session = self.by_id.borrow().get(id).cloned();
        match session {
            Some(session) if session.belongs_to(identity, endpoint) => {
                session.touch();
                Ok(session)
            }
            Some(_) => Err(HttpError::UnknownSession),
            None => self.restore(id, identity, endpoint).await,
        }
    }

    /// Returns the session of the legacy transport with this id, if it has this identity.
    pub(super) fn find_legacy(
        &self,
        id: &str,
        identity: &Identity<'_>,
    ) -> Result<Rc<Session>, HttpError> {
        let sessions = self.by_id.borrow();
        let is_it = |session: &&Rc<Session>| {
            session.transport == Transport::LegacySse && session.token_id == identity.token_id
        };
        sessions.get(id).filter(is_it).cloned().ok_or(HttpError::UnknownSession)
    }

    /// Ends a session, and removes its record.
    pub(super) fn end(&self, session: &Session) {
        session.remove();
        session.end();
        if let Some(number) = session.recorder.take_session() {
            self.forget(number);
        }
    }

    /// Ends a session at its client's request. Returns once the record is removed, so that no later
    /// daemon restores the session.
    pub(super) async fn delete(&self, session: &Session) {
        session.remove();
        session.end();
        if let Some(number) = session.recorder.take_session() {
            self.persistence.store.save(Change::End(number)).await;
        }
    }

    /// Records the changes in a message before the client gets a response. They are reverted if no
    /// server receives them or if they are refused.
    pub(super) async fn save_changes(
        &self,
        session: &Session,
        message: &RequestBody,
    ) -> UnsentChanges {
        let mut unsent = UnsentChanges::new(Rc::clone(&session.recorder));
        let Some(number) = session.recorder.session() else { return unsent };
        let deadline = Instant::now() + SAVE_TIMEOUT; // For all changes of a batch together.
        for requested in record::changes_of(number, message) {
            let change = requested.change.clone();
            if matches!(change, Change::Initialized(_)) {
                self.persistence.store.save_soon(change);
                continue;
            }
            unsent.push(requested);
            if Instant::now() < deadline {
                self.persistence.store.save(change).await;
            } else {
                self.persistence.store.save_soon(change);
            }
        }
        unsent
    }

    /// Ends the sessions whose token was removed or has a new secret.
    pub(super) fn end_without(&self, tokens: &[Token]) {
        let there: HashSet<(u64, Digest)> =
            tokens.iter().map(|token| (token.id, token.secret.digest())).collect();
        *self.valid_owners.borrow_mut() = Some(there.clone());
        let all: Vec<Rc<Session>> = self.by_id.borrow().values().cloned().collect();
        for session in all.iter().filter(|it| !self.is_owner_valid(it)) {
            self.end(session);
        }
        let owners: HashSet<String> =
            there.iter().map(|(_, owner)| record::owner_text(owner)).collect();
        self.forget_dormant(|record, _| {
            record.owner.as_ref().is_some_and(|owner| owners.contains(owner))
        });
    }

    /// Returns true unless the token of a session was rotated or removed.
    fn is_owner_valid(&self, session: &Session) -> bool {
        let valid = self.valid_owners.borrow();
        valid.as_ref().is_none_or(|valid| {
            session.owner.is_some_and(|owner| valid.contains(&(session.token_id.number(), owner)))
        })
    }

    /// Ends sessions that have been idle for too long. Returns when to look again.
    pub(super) fn sweep(&self, idle: Duration) -> Instant {
        let now = Instant::now();
        let mut next = now + idle.min(MAX_SWEEP_INTERVAL);
        let mut expired = Vec::new();
        for session in self.by_id.borrow().values() {
            session.streams.sweep(now);
            match session.expires_at(idle) {
                Some(at) if at <= now => expired.push(Rc::clone(session)),
                Some(at) => next = next.min(at),
                None => {}
            }
        }
        for session in expired {
            self.counters.count_closed("idle-session");
            self.end(&session);
        }
        self.forget_dormant(|_, since| since.checked_add(idle).is_none_or(|at| at > now));
        next
    }

    /// Ends all listening streams. Also ends streams of the legacy transport without open calls.
    pub(super) fn end_listeners(&self) {
        for session in self.by_id.borrow().values() {
            session.streams.end_listeners(SHUTDOWN_RETRY_MS);
            if !session.client.is_busy() {
                session.streams.end_legacy_stream();
            }
        }
    }

    /// Writes all pending changes to disk.
    pub(super) async fn close(&self) {
        self.persistence.store.close().await;
    }

    /// Ends all sessions in this daemon. The next daemon may restore them.
    pub(super) fn end_all(&self) {
        let all = std::mem::take(&mut *self.by_id.borrow_mut());
        for session in all.values() {
            session.end();
        }
    }

    pub(super) fn gauges(&self) -> Gauges {
        let sessions = self.by_id.borrow();
        let streams = sessions.values().map(|session| session.streams.open()).sum();
        let disconnected = sessions.values().map(|session| session.streams.disconnected()).sum();
        let undelivered = sessions.values().map(|session| session.streams.undelivered()).sum();
        let stored = self.storage.used();
        Gauges {
            sessions: sessions.len(),
            streams,
            disconnected,
            undelivered,
            stored,
            ..Gauges::default()
        }
    }

    /// Returns how many sessions of an earlier daemon were not used yet.
    pub(super) fn dormant(&self) -> usize {
        self.dormant.borrow().len()
    }

    /// Returns the number of sessions that are not registered yet.
    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.pending.borrow().len()
    }

    /// Opens the stream of a call.
    pub(super) fn open_call(session: &Rc<Session>, events: bool) -> Lease {
        let mode = StreamMode { events, polls: events && session.polls() };
        let response_stream = session.streams.open_call(mode);
        Lease::new(Rc::clone(session), response_stream, 0)
    }

    /// Opens a listening stream.
    pub(super) fn open_listener(session: &Rc<Session>) -> Lease {
        let response_stream = session.streams.open_listener(session.polls());
        Lease::new(Rc::clone(session), response_stream, 0)
    }

    /// Opens the stream of a legacy session.
    pub(super) fn open_legacy_stream(session: &Rc<Session>) -> Lease {
        let response_stream = session.streams.open_legacy_stream();
        Lease::new(Rc::clone(session), response_stream, 0)
    }

    /// Returns a tag that tells the events of a session from those of others. It is not secret.
    fn random_tag(&self) -> Result<u64, HttpError> {
        let mut salt = [0; 4];
        getrandom::fill(&mut salt).map_err(|cause| HttpError::NoRandomness(cause.to_string()))?;
        Ok(self.persistence.generation.event_tag(u32::from_ne_bytes(salt)))
    }

    /// Resumes a stream after one of its events, unless more than `max` streams are open. Returns
    /// `None` if nothing more follows.
    pub(super) fn resume_stream(
        session: &Rc<Session>,
        after: EventId,
        max: usize,
    ) -> Result<Option<Lease>, HttpError> {
        Ok(match session.streams.resume_stream(after, max)? {
            ResumedStream::Complete => None,
            ResumedStream::Open(response_stream, connection) => {
                Some(Lease::new(Rc::clone(session), response_stream, connection))
            }
        })
    }
}
