//! A client's session over HTTP: a conversation, and the streams that belong to it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::counts::{Counts, Gauges};
use super::event::EventId;
use super::guard::{Guest, Who};
use super::mailbox::Manner;
use super::postbox::{Lease, Postbox, TakenUp};
use super::refused::{Refused, Shared};
use super::room::Room;
use super::route::Place;
use crate::era;
use crate::front::{Conversation, Entry, Front, Stay, View};

/// A session that is idle for so long makes room for others when there is none.
const FORSAKEN_AFTER: Duration = Duration::from_secs(60);

/// However long a session may be idle, this often one looks, also at what is too old to be
/// held for a stream.
const SWEEP_AT_LEAST_EVERY: Duration = Duration::from_secs(60);

type ById = RefCell<HashMap<SessionId, Rc<Session>>>;

/// What a client shows to go on with its session: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SessionId(u128);

impl SessionId {
    fn random() -> Result<Self, Refused> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).map_err(|cause| Refused::NoRandomness(cause.to_string()))?;
        Ok(Self(u128::from_ne_bytes(bits)))
    }

    /// As [`fmt::Display`] writes it, and in no other way.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let is_ours = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let text = std::str::from_utf8(text).ok()?;
        if text.len() != 32 || !text.as_bytes().iter().all(is_ours) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Self)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(…)") // Whoever reads it in a log could go on with the session.
    }
}

/// Which transport a session is spoken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Streamable HTTP: streams come and go.
    Streamable,
    /// The older pair: everything is said on one stream, and ends with it.
    Older,
}

/// One client's session.
pub(super) struct Session {
    id: SessionId,
    way: Way,
    among: Weak<ById>,
    view: View,
    who: Who,
    conversation: Rc<dyn Conversation>,
    postbox: Rc<Postbox>,
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
    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    pub(super) fn conversation(&self) -> &dyn Conversation {
        &*self.conversation
    }

    pub(super) fn postbox(&self) -> &Postbox {
        &self.postbox
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
        self.conversation.version().is_some_and(era::has_polling)
    }

    /// A stream of it has lost its connection.
    pub(super) fn lost_stream(&self) {
        self.touch();
        if self.way == Way::Older {
            if let Some(among) = self.among.upgrade() {
                among.borrow_mut().remove(&self.id);
            }
            self.end();
        }
    }

    /// It was used just now.
    pub(super) fn touch(&self) {
        self.used_at.set(Instant::now());
    }

    /// When it has been idle for too long; `None` while something is open.
    fn expires_at(&self, idle: Duration) -> Option<Instant> {
        if self.postbox.open() > 0 {
            return None;
        }
        self.used_at.get().checked_add(idle) // What no clock can hold is never.
    }

    fn belongs_to(&self, guest: &Guest<'_>, place: Place<'_>) -> bool {
        self.way == Way::Streamable && self.who == guest.who && place.is(&self.view)
    }

    /// Ends it, once.
    fn end(&self) {
        if !self.over.replace(true) {
            self.conversation.close();
            self.postbox.end();
        }
    }
}

/// All sessions.
pub(super) struct Sessions {
    by_id: Rc<ById>,
    /// Sessions that have begun and whose `initialize` is not answered yet.
    opening: RefCell<Vec<Who>>,
    /// What all of them hold for their clients.
    room: Rc<Room>,
    front: Rc<dyn Front>,
    counts: Rc<Counts>,
    max: usize,
}

impl Sessions {
    pub(super) fn new(front: Rc<dyn Front>, counts: Rc<Counts>, max: usize) -> Self {
        Self {
            by_id: Rc::default(),
            opening: RefCell::default(),
            room: Room::for_all(),
            front,
            counts,
            max,
        }
    }

    /// Checks that there is room for one more session of a token.
    fn check_room(&self, who: Who) -> Result<(), Refused> {
        let count = |is_counted: &dyn Fn(Who) -> bool| {
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
    fn make_room(&self, may_go: impl Fn(Who) -> bool) -> bool {
        let mut all: Vec<Rc<Session>> = self.by_id.borrow().values().cloned().collect();
        all.retain(|session| may_go(session.who));
        let idle =
            all.iter().filter_map(|session| Some((session.expires_at(FORSAKEN_AFTER)?, session)));
        let Some((since, forsaken)) = idle.min_by_key(|(since, _)| *since) else { return false };
        if since > Instant::now() {
            return false;
        }
        forsaken.end();
        self.by_id.borrow_mut().remove(&forsaken.id);
        true
    }

    /// Begins a session, which is not to be found before it is [admitted](Opening::admit).
    pub(super) fn open(
        &self,
        guest: &Guest<'_>,
        place: Place<'_>,
        way: Way,
    ) -> Result<Opening<'_>, Refused> {
        self.check_room(guest.who)?;
        let id = SessionId::random()?;
        let room = Room::for_session(&self.room);
        let postbox = Rc::new(Postbox::new(random_tag()?, room, Rc::clone(&self.counts)));
        let (view, may_manage, who) = (place.to_view(), guest.may_manage, guest.who.number());
        let entry = Entry {
            view,
            may_manage,
            stay: Stay::Long,
            who,
            bound: guest.profile.map(str::to_owned),
        };
        let conversation = self.front.open(entry, Rc::clone(&postbox) as _)?;
        let session = Rc::new(Session {
            id,
            way,
            among: Rc::downgrade(&self.by_id),
            view: place.to_view(),
            who: guest.who,
            conversation,
            postbox,
            order: Rc::default(),
            used_at: Cell::new(Instant::now()),
            over: Cell::new(false),
        });
        self.opening.borrow_mut().push(guest.who);
        Ok(Opening { session, sessions: self, admitted: false })
    }

    /// The session with this id, if it is this guest's and was begun at this place.
    pub(super) fn find(
        &self,
        id: SessionId,
        guest: &Guest<'_>,
        place: Place<'_>,
    ) -> Result<Rc<Session>, Refused> {
        let sessions = self.by_id.borrow();
        let session = sessions.get(&id).filter(|session| session.belongs_to(guest, place));
        session.inspect(|session| session.touch()).cloned().ok_or(Refused::UnknownSession)
    }

    /// The session with this id that is spoken over the older pair, if it is this guest's.
    pub(super) fn find_older(
        &self,
        id: SessionId,
        guest: &Guest<'_>,
    ) -> Result<Rc<Session>, Refused> {
        let sessions = self.by_id.borrow();
        let is_it = |session: &&Rc<Session>| session.way == Way::Older && session.who == guest.who;
        sessions.get(&id).filter(is_it).cloned().ok_or(Refused::UnknownSession)
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &Session) {
        self.by_id.borrow_mut().remove(&session.id);
        session.end();
    }

    /// Ends those whose tokens are not there any more.
    pub(super) fn end_without(&self, is_there: impl Fn(u64) -> bool) {
        let all: Vec<Rc<Session>> = self.by_id.borrow().values().cloned().collect();
        for session in all.iter().filter(|it| !is_there(it.who.number())) {
            self.end(session);
        }
    }

    /// Ends what has been idle for too long, and says when to look again.
    pub(super) fn sweep(&self, idle: Duration) -> Instant {
        let now = Instant::now();
        let mut next = now + idle.min(SWEEP_AT_LEAST_EVERY);
        let mut expired = Vec::new();
        for session in self.by_id.borrow().values() {
            session.postbox.sweep(now);
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
        next
    }

    /// Ends all streams that only listen. Those of the older pair do if nothing is under way.
    pub(super) fn end_listeners(&self) {
        for session in self.by_id.borrow().values() {
            session.postbox.end_listeners();
            if !session.conversation.is_busy() {
                session.postbox.end_only();
            }
        }
    }

    /// Ends all of them.
    pub(super) fn end_all(&self) {
        let all = std::mem::take(&mut *self.by_id.borrow_mut());
        for session in all.values() {
            session.end();
        }
    }

    pub(super) fn gauges(&self) -> Gauges {
        let sessions = self.by_id.borrow();
        let streams = sessions.values().map(|session| session.postbox.open()).sum();
        let apart = sessions.values().map(|session| session.postbox.apart()).sum();
        let kept = sessions.values().map(|session| session.postbox.kept()).sum();
        let stored = self.room.taken();
        Gauges { sessions: sessions.len(), streams, apart, kept, stored, ..Gauges::default() }
    }

    /// How many sessions have begun and are not admitted yet.
    #[cfg(test)]
    pub(super) fn opening(&self) -> usize {
        self.opening.borrow().len()
    }

    /// Opens the stream of a call.
    pub(super) fn open_call(session: &Rc<Session>, events: bool) -> Lease {
        let manner = Manner { events, polls: events && session.polls() };
        let mailbox = session.postbox.open_call(manner);
        Lease::new(Rc::clone(session), mailbox, 0)
    }

    /// Opens a stream that listens.
    pub(super) fn open_listener(session: &Rc<Session>) -> Lease {
        let mailbox = session.postbox.open_listener(session.polls());
        Lease::new(Rc::clone(session), mailbox, 0)
    }

    /// Opens the only stream of the older pair.
    pub(super) fn open_only(session: &Rc<Session>) -> Lease {
        let mailbox = session.postbox.open_only();
        Lease::new(Rc::clone(session), mailbox, 0)
    }

    /// Takes up a stream again after an event of it, unless more than `max` are open; `None`
    /// if nothing more is said there.
    pub(super) fn take_up(
        session: &Rc<Session>,
        after: EventId,
        max: usize,
    ) -> Result<Option<Lease>, Refused> {
        Ok(match session.postbox.take_up(after, max)? {
            TakenUp::Over => None,
            TakenUp::On(mailbox, connection) => {
                Some(Lease::new(Rc::clone(session), mailbox, connection))
            }
        })
    }
}

/// What tells the events of a session from those of others. It is no secret.
fn random_tag() -> Result<u32, Refused> {
    let mut bits = [0; 4];
    getrandom::fill(&mut bits).map_err(|cause| Refused::NoRandomness(cause.to_string()))?;
    Ok(u32::from_ne_bytes(bits))
}

/// A session whose `initialize` is not answered yet. Unless it is admitted it ends with this,
/// also if the client leaves meanwhile.
pub(super) struct Opening<'s> {
    session: Rc<Session>,
    sessions: &'s Sessions,
    admitted: bool,
}

impl Opening<'_> {
    pub(super) fn session(&self) -> &Rc<Session> {
        &self.session
    }

    /// From now on it can be found.
    pub(super) fn admit(mut self) -> SessionId {
        let session = Rc::clone(&self.session);
        session.touch();
        let id = session.id();
        self.sessions.by_id.borrow_mut().insert(id, session);
        self.admitted = true;
        id
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut opening = self.sessions.opening.borrow_mut();
        if let Some(place) = opening.iter().position(|who| *who == self.session.who) {
            opening.swap_remove(place);
        }
        drop(opening);
        if !self.admitted {
            self.session.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_visible_text_and_reads_back_as_itself_only() {
        let id = SessionId::random().unwrap();
        let text = id.to_string();
        assert_eq!(text.len(), 32);
        assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(SessionId::parse(text.as_bytes()) == Some(id));
        for other in ["", "0", "+0000000000000000000000000000000", &text.replace(|_| true, "F")] {
            assert!(SessionId::parse(other.as_bytes()).is_none(), "{other}");
        }
        assert!(!format!("{id:?}").contains(&text));
    }

    #[test]
    fn no_two_ids_are_the_same() {
        assert!(SessionId::random().unwrap() != SessionId::random().unwrap());
    }
}
