//! A session before it can be found.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use super::{Session, SessionId, Sessions};
use crate::era;
use crate::http::guard::Identity;
use crate::http::record::{self, Change, Record};
use crate::http::refused::Refused;
use crate::http::route::Endpoint;
use crate::http::store::Kept;

/// A session whose `initialize` is not answered yet. Unless it is admitted it ends with this,
/// also if the client leaves meanwhile.
pub(in crate::http) struct Opening<'s> {
    pub(super) session: Rc<Session>,
    pub(super) sessions: &'s Sessions,
    pub(super) admitted: bool,
}

impl Opening<'_> {
    pub(in crate::http) fn session(&self) -> &Rc<Session> {
        &self.session
    }

    /// Keeps a record of it for the next daemon; from then on it can be found.
    pub(in crate::http) async fn admit(
        self,
        initialize: &[u8],
        (identity, place): (&Identity<'_>, Endpoint<'_>),
    ) -> Result<SessionId, Refused> {
        let persistence = &self.sessions.persistence;
        let number = random_number()?;
        let revision = self.session.client.version().unwrap_or(era::LATEST);
        let (id, key) = persistence.seal(number, (identity, place), revision)?;
        let record = Record {
            session: number,
            key,
            owner: self.session.owner.as_ref().map(record::owner_text),
            initialize: String::from_utf8_lossy(initialize).into_owned(),
            initialized: false,
            level: None,
            subscriptions: BTreeSet::new(),
            tags: VecDeque::from([self.session.recorder.tag()]),
            calls: VecDeque::new(),
        };
        self.session.recorder.set_session(Some(number));
        let kept = persistence.store.keep(Change::Begin(Box::new(record))).await;
        let number = (kept != Kept::No).then_some(number);
        self.admit_as(&id, number)
    }

    /// From now on it can be found. It ends with its only stream, and so with this daemon.
    pub(in crate::http) fn admit_older(self) -> Result<SessionId, Refused> {
        let id = format!("{:032x}", random_number()?);
        self.admit_as(&id, None)
    }

    /// Makes it findable, unless its token was rotated or removed while it opened.
    pub(super) fn admit_as(mut self, id: &str, number: Option<u128>) -> Result<SessionId, Refused> {
        let id = SessionId(id.into());
        let session = Rc::clone(&self.session);
        session.recorder.set_session(number);
        if !self.sessions.is_owner_valid(&session) {
            return Err(Refused::UnknownSession);
        }
        session.touch();
        let _ = session.id.set(id.clone()); // It has none yet.
        self.sessions.by_id.borrow_mut().insert(id.clone(), session);
        self.admitted = true;
        Ok(id)
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
            self.sessions.end(&self.session);
        }
    }
}

fn random_number() -> Result<u128, Refused> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|cause| Refused::NoRandomness(cause.to_string()))?;
    Ok(u128::from_ne_bytes(bits))
}
