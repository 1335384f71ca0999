//! What of sessions outlives the daemon: their sealed ids, and their records on disk.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::guard::Identity;
use super::record::Record;
use super::refused::Refused;
use super::route::Endpoint;
use super::session_id::{Claims, Keyring, endpoint};
use super::store::{Left, Store};
use crate::generation::Generation;

/// Where sessions are kept.
#[derive(Debug, Clone)]
pub struct SessionFile {
    /// The journal of their records.
    pub path: PathBuf,
    /// The state folder it is in, by a number that no other has.
    pub home: u64,
    /// The secret that session ids are sealed with.
    pub state_key: String,
    /// The daemon's own.
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
    /// Opens the file, and returns the records that an earlier daemon has left.
    pub(super) async fn open(file: SessionFile) -> (Self, Vec<Record>) {
        let (store, left) = Store::open(file.path, file.state_key.as_bytes()).await;
        let Left { epoch, keys, records } = left;
        let (store, generation) = (Rc::new(store), file.generation);
        (Self { store, generation, keys, epoch, home: file.home }, records)
    }

    /// Keeps nothing: sessions end with the daemon.
    pub(super) fn none() -> Self {
        let (store, Left { epoch, keys, .. }) = Store::none();
        Self { store: Rc::new(store), generation: Generation::draw(), keys, epoch, home: 0 }
    }

    /// Returns the id of a session that begins now, and the number of the key that sealed it.
    pub(super) fn seal(
        &self,
        session: u128,
        (identity, place): (&Identity<'_>, Endpoint<'_>),
        revision: &'static str,
    ) -> Result<(String, u32), Refused> {
        #[expect(clippy::disallowed_methods, reason = "another process reads it")]
        let made_at = SystemTime::now().duration_since(UNIX_EPOCH);
        let claims = Claims {
            session,
            epoch: self.epoch,
            home: self.home,
            owner: identity.owner(),
            endpoint: endpoint(&place.to_view()),
            revision,
            made_at: made_at.map_or(0, |since| since.as_secs()),
        };
        Ok((self.keys.seal(&claims)?, self.keys.current()))
    }

    /// Returns the claims of an id, if it belongs to this guest, place and journal.
    pub(super) fn claims(
        &self,
        id: &str,
        identity: &Identity<'_>,
        place: Endpoint<'_>,
    ) -> Option<Claims> {
        self.keys.open(id).filter(|claims| {
            claims.epoch == self.epoch
                && claims.home == self.home
                && claims.owner == identity.owner()
                && claims.endpoint == endpoint(&place.to_view())
        })
    }
}
