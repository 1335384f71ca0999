//! Sessions that no request can find yet.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use xy_mcp::revision;

use super::{Session, SessionId, Sessions};
use crate::error::HttpError;
use crate::guard::Identity;
use crate::record::{self, Change, Record};
use crate::route::Endpoint;
use crate::store::SaveOutcome;

/// A session whose `initialize` is not answered yet. Unless it is registered, dropping this ends
/// it, for example because the client disconnects.
pub(crate) struct PendingSession<'s> {
    pub(super) session: Rc<Session>,
    pub(super) sessions: &'s Sessions,
    pub(super) is_registered: bool,
}

impl PendingSession<'_> {
    pub(crate) fn session(&self) -> &Rc<Session> {
        &self.session
    }

    /// Records the session for the next daemon and makes it available to requests.
    pub(crate) async fn register(
        self,
        initialize: &[u8],
        (identity, endpoint): (&Identity<'_>, Endpoint<'_>),
    ) -> Result<SessionId, HttpError> {
        let persistence = &self.sessions.persistence;
        let number = random_number()?;
        let revision = self.session.client.version().unwrap_or(revision::LATEST);
        let (id, key) = persistence.seal(number, (identity, endpoint), revision)?;
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
        let outcome = persistence.store.save(Change::Begin(Box::new(record))).await;
        let number = (outcome != SaveOutcome::Rejected).then_some(number);
        self.register_as(&id, number)
    }

    /// Makes a legacy session available to requests. It has no record: it ends with its only
    /// stream.
    pub(crate) fn register_legacy(self) -> Result<SessionId, HttpError> {
        let id = format!("{:032x}", random_number()?);
        self.register_as(&id, None)
    }

    /// Makes the session available to requests, unless its token was rotated or removed meanwhile.
    pub(super) fn register_as(
        mut self,
        id: &str,
        number: Option<u128>,
    ) -> Result<SessionId, HttpError> {
        let id = SessionId(id.into());
        let session = Rc::clone(&self.session);
        session.recorder.set_session(number);
        if !self.sessions.is_owner_valid(&session) {
            return Err(HttpError::UnknownSession);
        }
        session.touch();
        let _ = session.id.set(id.clone()); // It is not set yet.
        self.sessions.by_id.borrow_mut().insert(id.clone(), session);
        self.is_registered = true;
        Ok(id)
    }
}

impl Drop for PendingSession<'_> {
    fn drop(&mut self) {
        let mut pending = self.sessions.pending.borrow_mut();
        if let Some(index) = pending.iter().position(|token_id| *token_id == self.session.token_id)
        {
            pending.swap_remove(index);
        }
        drop(pending);
        if !self.is_registered {
            self.sessions.end(&self.session);
        }
    }
}

fn random_number() -> Result<u128, HttpError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|cause| HttpError::NoRandomness(cause.to_string()))?;
    Ok(u128::from_ne_bytes(bits))
}
