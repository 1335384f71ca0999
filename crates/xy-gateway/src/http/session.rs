//! A client's session over HTTP: a conversation, and the streams that belong to it.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::counts::{Counts, Gauges};
use super::event::EventId;
use super::guard::{Digest, Identity, Token, TokenId};
use super::limits::RETRY_CLOSING_MS;
use super::persistence::Persistence;
use super::received::Received;
use super::record::{self, Change, Record};
use super::recorder::{Recorder, UnsentChanges};
use super::refused::{Refused, Shared};
use super::response_stream::StreamMode;
use super::room::Room;
use super::route::Endpoint;
use super::session_streams::{Lease, SessionStreams, TakenUp};
use super::store::KEEP_WITHIN;
use crate::era;
use crate::frontend::{ClientSession, Entry, Frontend, Lifetime, View};

mod opening;
mod restore;

pub(super) use opening::Opening;
use restore::{Dormant, EarlierStreams};
pub(super) use restore::{Earlier, is_result};

/// A session that is idle for so long makes room for others when there is none.
const FORSAKEN_AFTER: Duration = Duration::from_secs(60);

/// However long a session may be idle, this often one looks, also at what is too old to be
/// held for a stream.
const SWEEP_AT_LEAST_EVERY: Duration = Duration::from_secs(60);

type ById = RefCell<HashMap<SessionId, Rc<Session>>>;

/// What a client shows to go on with its session.
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
        f.write_str("SessionId(…)") // Whoever reads it in a log could go on with the session.
    }
}

/// Which transport a session is spoken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// Streamable HTTP: streams come and go.
    StreamableHttp,
    /// The older pair: everything is said on one stream, and ends with it.
    LegacySse,
}

/// One client's session.
pub(super) struct Session {
    /// Known once it is admitted.
    id: OnceCell<SessionId>,
    recorder: Rc<Recorder>,
    way: Transport,
    among: Weak<ById>,
    view: View,
    who: TokenId,
    /// The digest of its token's secret.
    owner: Option<Digest>,
    earlier: RefCell<EarlierStreams>,
    client: Rc<dyn ClientSession>,
    streams: Rc<SessionStreams>,
    /// Held while a message is read and heard, so that messages keep their order.
    order: Rc<Mutex<()>>,
    used_at: Cell<Instant>,
    over: Cell<bool>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("view", &self.view).finish_non_exhaustive()
    }
}

impl Session {
    /// Returns what the stream of an event was, if an earlier daemon had it.
    pub(super) fn earlier(&self, after: EventId) -> Option<Earlier> {
        self.earlier.borrow().find(after)
    }

    pub(super) fn client_session(&self) -> &dyn ClientSession {
        &*self.client
    }

    pub(super) fn session_streams(&self) -> &SessionStreams {
        &self.streams
    }

    /// Held while a message is read and heard: what its client says next waits.
    pub(super) fn order(&self) -> Rc<Mutex<()>> {
        Rc::clone(&self.order)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Whether its client comes back to a stream that is closed before its answer.
    pub(super) fn polls(&self) -> bool {
        self.client.version().is_some_and(era::has_polling)
    }

    /// A stream of it has lost its connection.
    pub(super) fn lost_stream(&self) {
        self.touch();
        if self.way == Transport::LegacySse {
            self.remove();
            self.end();
        }
    }

    /// It was used just now.
    pub(super) fn touch(&self) {
        self.used_at.set(Instant::now());
    }

    /// When it has been idle for too long; `None` while something is open.
    fn expires_at(&self, idle: Duration) -> Option<Instant> {
        if self.streams.open() > 0 {
            return None;
        }
        self.used_at.get().checked_add(idle) // What no clock can hold is never.
    }

    fn belongs_to(&self, identity: &Identity<'_>, place: Endpoint<'_>) -> bool {
        self.way == Transport::StreamableHttp && self.who == identity.who && place.is(&self.view)
    }

    /// Makes sure that it is not found any more.
    fn remove(&self) {
        if let (Some(among), Some(id)) = (self.among.upgrade(), self.id.get()) {
            among.borrow_mut().remove(id);
        }
    }

    /// Ends it, once.
    fn end(&self) {
        if !self.over.replace(true) {
            self.client.close();
            self.streams.end();
        }
    }
}

/// All sessions.
pub(super) struct Sessions {
    by_id: Rc<ById>,
    /// Sessions that have begun and whose `initialize` is not answered yet.
    opening: RefCell<Vec<TokenId>>,
    /// What all of them hold for their clients.
    room: Rc<Room>,
    front: Rc<dyn Frontend>,
    counts: Rc<Counts>,
    max: usize,
    persistence: Persistence,
    /// Those of an earlier daemon that were not used yet.
    dormant: RefCell<HashMap<u128, Rc<Dormant>>>,
    /// The tokens that let clients in, by id and digest; `None` until they are told.
    valid_owners: RefCell<Option<HashSet<(u64, Digest)>>>,
}

impl Sessions {
    /// Makes the sessions of a door; `left` are those of an earlier daemon.
    pub(super) fn new(
        front: Rc<dyn Frontend>,
        counts: Rc<Counts>,
        max: usize,
        (persistence, left): (Persistence, Vec<Record>),
    ) -> Self {
        let dormant = left.into_iter().map(|it| (it.session, Dormant::new(it))).collect();
        Self {
            by_id: Rc::default(),
            opening: RefCell::default(),
            valid_owners: RefCell::default(),
            room: Room::for_all(),
            front,
            counts,
            max,
            persistence,
            dormant: RefCell::new(dormant),
        }
    }

    /// Checks that there is room for one more session of a token.
    fn check_room(&self, who: TokenId) -> Result<(), Refused> {
        let count = |is_counted: &dyn Fn(TokenId) -> bool| {
            let by_id = self.by_id.borrow();
            by_id.values().filter(|session| is_counted(session.who)).count()
                + self.opening.borrow().iter().filter(|who| is_counted(**who)).count()
        };
        if count(&|_| true) >= self.max && !self.make_room(|_| true) {
            return Err(Refused::TooManySessions(self.max));
        }
        let (own, most) = (count(&|it| it == who), self.max);
        if !who.may_take(own, count(&|_| true), most) && !self.make_room(|it| it == who) {
            return Err(Refused::OverShare { what: Shared::Sessions, own, most });
        }
        Ok(())
    }

    /// Ends the session that has been idle for longest, if that is long enough: many clients
    /// go without a word. Whether there was one.
    fn make_room(&self, may_go: impl Fn(TokenId) -> bool) -> bool {
        let mut all: Vec<Rc<Session>> = self.by_id.borrow().values().cloned().collect();
        all.retain(|session| may_go(session.who));
        let idle =
            all.iter().filter_map(|session| Some((session.expires_at(FORSAKEN_AFTER)?, session)));
        let Some((since, forsaken)) = idle.min_by_key(|(since, _)| *since) else { return false };
        if since > Instant::now() {
            return false;
        }
        self.end(forsaken);
        true
    }

    /// Begins a session, which is not to be found before it is [admitted](Opening::admit).
    pub(super) fn open(
        &self,
        identity: &Identity<'_>,
        place: Endpoint<'_>,
        way: Transport,
    ) -> Result<Opening<'_>, Refused> {
        self.check_room(identity.who)?;
        let room = Room::for_session(&self.room);
        let recorder = Recorder::new(Rc::clone(&self.persistence.store), self.random_tag()?);
        let recorder = Rc::new(recorder);
        let counts = Rc::clone(&self.counts);
        let session_streams = Rc::new(SessionStreams::new(Rc::clone(&recorder), room, counts));
        let (view, may_manage, who) = (place.to_view(), identity.may_manage, identity.who.number());
        let entry = Entry {
            view,
            may_manage,
            lifetime: if way == Transport::LegacySse {
                Lifetime::LegacyOnly
            } else {
                Lifetime::Session
            },
            who,
            bound: identity.profile.map(str::to_owned),
        };
        let client_session = self.front.open(entry, Rc::clone(&session_streams) as _)?;
        let session = Rc::new(Session {
            id: OnceCell::new(),
            recorder,
            way,
            among: Rc::downgrade(&self.by_id),
            view: place.to_view(),
            who: identity.who,
            owner: identity.owner(),
            earlier: RefCell::default(),
            client: client_session,
            streams: session_streams,
            order: Rc::default(),
            used_at: Cell::new(Instant::now()),
            over: Cell::new(false),
        });
        self.opening.borrow_mut().push(identity.who);
        Ok(Opening { session, sessions: self, admitted: false })
    }

    /// Returns the session with this id, if it is this guest's and was begun at this place. One
    /// of an earlier daemon is restored.
    pub(super) async fn find(
        &self,
        id: &str,
        identity: &Identity<'_>,
        place: Endpoint<'_>,
    ) -> Result<Rc<Session>, Refused> {
        let session = self.by_id.borrow().get(id).cloned();
        match session {
            Some(session) if session.belongs_to(identity, place) => {
                session.touch();
                Ok(session)
            }
            Some(_) => Err(Refused::UnknownSession),
            None => self.restore(id, identity, place).await,
        }
    }

    /// The session with this id that is spoken over the older pair, if it is this guest's.
    pub(super) fn find_older(
        &self,
        id: &str,
        identity: &Identity<'_>,
    ) -> Result<Rc<Session>, Refused> {
        let sessions = self.by_id.borrow();
        let is_it = |session: &&Rc<Session>| {
            session.way == Transport::LegacySse && session.who == identity.who
        };
        sessions.get(id).filter(is_it).cloned().ok_or(Refused::UnknownSession)
    }

    /// Ends a session, for the next daemon too.
    pub(super) fn end(&self, session: &Session) {
        session.remove();
        session.end();
        if let Some(number) = session.recorder.take_session() {
            self.forget(number);
        }
    }

    /// Ends a session as its client wishes. Returns once the next daemon will not know it.
    pub(super) async fn delete(&self, session: &Session) {
        session.remove();
        session.end();
        if let Some(number) = session.recorder.take_session() {
            self.persistence.store.keep(Change::End(number)).await;
        }
    }

    /// Records what a message of a client changes, before the client is answered. Changes that
    /// no server gets to see, or that are refused, are taken back.
    pub(super) async fn keep_changes(
        &self,
        session: &Session,
        message: &Received,
    ) -> UnsentChanges {
        let mut unsent = UnsentChanges::new(Rc::clone(&session.recorder));
        let Some(number) = session.recorder.session() else { return unsent };
        let patient_until = Instant::now() + KEEP_WITHIN; // For all changes of a batch together.
        for requested in record::changes_of(number, message) {
            let change = requested.change.clone();
            if matches!(change, Change::Initialized(_)) {
                self.persistence.store.keep_soon(change);
                continue;
            }
            unsent.push(requested);
            if Instant::now() < patient_until {
                self.persistence.store.keep(change).await;
            } else {
                self.persistence.store.keep_soon(change);
            }
        }
        unsent
    }

    /// Ends those whose tokens are not there any more, or have other secrets now.
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
            session.owner.is_some_and(|owner| valid.contains(&(session.who.number(), owner)))
        })
    }

    /// Ends what has been idle for too long, and says when to look again.
    pub(super) fn sweep(&self, idle: Duration) -> Instant {
        let now = Instant::now();
        let mut next = now + idle.min(SWEEP_AT_LEAST_EVERY);
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
            self.counts.cut("idle-session");
            self.end(&session);
        }
        self.forget_dormant(|_, since| since.checked_add(idle).is_none_or(|at| at > now));
        next
    }

    /// Ends all streams that only listen. Those of the older pair do if nothing is under way.
    pub(super) fn end_listeners(&self) {
        for session in self.by_id.borrow().values() {
            session.streams.end_listeners(RETRY_CLOSING_MS);
            if !session.client.is_busy() {
                session.streams.end_only();
            }
        }
    }

    /// Has everything written that the next daemon has to know.
    pub(super) async fn close(&self) {
        self.persistence.store.close().await;
    }

    /// Ends all of them in this daemon. The next one may go on with them.
    pub(super) fn end_all(&self) {
        let all = std::mem::take(&mut *self.by_id.borrow_mut());
        for session in all.values() {
            session.end();
        }
    }

    pub(super) fn gauges(&self) -> Gauges {
        let sessions = self.by_id.borrow();
        let streams = sessions.values().map(|session| session.streams.open()).sum();
        let apart = sessions.values().map(|session| session.streams.apart()).sum();
        let kept = sessions.values().map(|session| session.streams.kept()).sum();
        let stored = self.room.taken();
        Gauges { sessions: sessions.len(), streams, apart, kept, stored, ..Gauges::default() }
    }

    /// Returns how many sessions of an earlier daemon were not used yet.
    pub(super) fn dormant(&self) -> usize {
        self.dormant.borrow().len()
    }

    /// How many sessions have begun and are not admitted yet.
    #[cfg(test)]
    pub(super) fn opening(&self) -> usize {
        self.opening.borrow().len()
    }

    /// Opens the stream of a call.
    pub(super) fn open_call(session: &Rc<Session>, events: bool) -> Lease {
        let manner = StreamMode { events, polls: events && session.polls() };
        let response_stream = session.streams.open_call(manner);
        Lease::new(Rc::clone(session), response_stream, 0)
    }

    /// Opens a stream that listens.
    pub(super) fn open_listener(session: &Rc<Session>) -> Lease {
        let response_stream = session.streams.open_listener(session.polls());
        Lease::new(Rc::clone(session), response_stream, 0)
    }

    /// Opens the only stream of the older pair.
    pub(super) fn open_only(session: &Rc<Session>) -> Lease {
        let response_stream = session.streams.open_only();
        Lease::new(Rc::clone(session), response_stream, 0)
    }

    /// What tells the events of a session from those of others. It is no secret.
    fn random_tag(&self) -> Result<u64, Refused> {
        let mut salt = [0; 4];
        getrandom::fill(&mut salt).map_err(|cause| Refused::NoRandomness(cause.to_string()))?;
        Ok(self.persistence.generation.event_tag(u32::from_ne_bytes(salt)))
    }

    /// Takes up a stream again after an event of it, unless more than `max` are open; `None`
    /// if nothing more is said there.
    pub(super) fn take_up(
        session: &Rc<Session>,
        after: EventId,
        max: usize,
    ) -> Result<Option<Lease>, Refused> {
        Ok(match session.streams.take_up(after, max)? {
            TakenUp::Over => None,
            TakenUp::On(response_stream, connection) => {
                Some(Lease::new(Rc::clone(session), response_stream, connection))
            }
        })
    }
}
