//! The state of sessions that outlives the daemon: sealed ids and records on disk.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::HttpError;
use crate::generation::Generation;
use crate::guard::Identity;
use crate::record::Record;
use crate::route::Endpoint;
use crate::session_id::{Claims, Keyring, endpoint_digest};
use crate::store::{SavedState, Store};

/// Where sessions are stored.
#[derive(Debug, Clone)]
pub struct SessionFile {
    /// The path of the journal.
    pub path: PathBuf,
    /// The unique number of the state folder.
    pub home: u64,
    /// The secret that seals session ids.
    pub state_key: String,
    /// The generation of this daemon.
    pub generation: Generation,
}

/// The state of sessions that outlives the daemon.
pub(super) struct Persistence {
    pub(super) store: Rc<Store>,
    pub(super) generation: Generation,
    keys: Keyring,
    epoch: u64,
    home: u64,
}

impl Persistence {
    /// Opens the file, and returns the records of an earlier daemon.
    pub(super) async fn open(file: SessionFile) -> (Self, Vec<Record>) {
        let SessionFile { path, home, state_key, generation } = file;
        let opened = Store::open(path, state_key.as_bytes()).await;
        Self::with_store(opened, home, generation)
    }

    /// Uses an open store, and returns the records of an earlier daemon.
    pub(super) fn with_store(
        (store, saved): (Store, SavedState),
        home: u64,
        generation: Generation,
    ) -> (Self, Vec<Record>) {
        let SavedState { epoch, keys, records } = saved;
        (Self { store: Rc::new(store), generation, keys, epoch, home }, records)
    }

    /// Returns a persistence that saves nothing: sessions end with the daemon.
    pub(super) fn none() -> Self {
        let (store, SavedState { epoch, keys, .. }) = Store::none();
        Self { store: Rc::new(store), generation: Generation::draw(), keys, epoch, home: 0 }
    }

    /// Returns the id of a new session, and the number of the key that sealed it.
    pub(super) fn seal(
        &self,
        session: u128,
        (identity, endpoint): (&Identity<'_>, Endpoint<'_>),
        revision: &'static str,
    ) -> Result<(String, u32), HttpError> {
        #[expect(clippy::disallowed_methods, reason = "another process uses it")]
        let made_at = SystemTime::now().duration_since(UNIX_EPOCH);
        let claims = Claims {
            session,
            epoch: self.epoch,
            home: self.home,
            owner: identity.owner(),
            endpoint: endpoint_digest(&endpoint.to_view()),
            revision,
            made_at: made_at.map_or(0, |since| since.as_secs()),
        };
        Ok((self.keys.seal(&claims)?, self.keys.current()))
    }

    /// Returns the claims of an id, if they match this identity, endpoint and journal.
    pub(super) fn claims(
        &self,
        id: &str,
        identity: &Identity<'_>,
        endpoint: Endpoint<'_>,
    ) -> Option<Claims> {
        self.keys.open(id).filter(|claims| {
            claims.epoch == self.epoch
                && claims.home == self.home
                && claims.owner == identity.owner()
                && claims.endpoint == endpoint_digest(&endpoint.to_view())
        })
    }
}
