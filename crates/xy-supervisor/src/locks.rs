//! The locks that shims hold: whether an instance of a life before this daemon is there.
//!
//! A shim holds its lock until nothing of its server is left, so a daemon that follows a
//! killed one sees which servers are still being ended, and waits for them.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;
use xy_protocol::server::ServerName;

use crate::instance::InstanceKey;
use crate::plain_file::open_file;

/// How often a held lock is looked at: nobody tells when it is let go.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The lock of an instance.
pub fn lock_file(locks_dir: &Path, key: &InstanceKey) -> PathBuf {
    locks_dir.join(format!("{key}.lock"))
}

/// Whether some shim holds the lock.
pub(crate) fn is_held(lock: &Path) -> bool {
    open_file(lock).is_ok_and(|file| is_locked(&file))
}

fn is_locked(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Waits until nobody holds the lock. Cancel-safe.
pub(crate) async fn until_free(lock: &Path) {
    while is_held(lock) {
        sleep(LOOK_AGAIN).await;
    }
}

/// Removes the locks of servers that there are no more. Only for a daemon that has started
/// nothing yet: whoever opens a lock must find the same file that others lock.
pub fn forget_locks_but(locks_dir: &Path, is_known: impl Fn(&ServerName) -> bool) {
    for entry in fs::read_dir(locks_dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.file_stem().and_then(|stem| ServerName::new(stem.to_str()?).ok());
        if !name.is_some_and(|name| is_known(&name)) && !is_held(&path) {
            let _ = fs::remove_file(path); // A lock that stays does no harm.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_while_somebody_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let key = InstanceKey::shared(ServerName::new("a").unwrap());
        let path = lock_file(folder.path(), &key);
        assert!(!is_held(&path), "there is none");
        let file = File::create(&path).unwrap();
        assert!(!is_held(&path), "nobody holds it");
        file.lock().unwrap();
        assert!(is_held(&path));
        drop(file);
        assert!(!is_held(&path));
    }

    #[test]
    fn locks_of_servers_that_are_gone_are_removed_unless_they_are_held() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| File::create(folder.path().join(name)).unwrap();
        make("known.lock");
        make("gone.lock");
        let held = make("ending.lock");
        held.lock().unwrap();
        forget_locks_but(folder.path(), |name| name.as_str() == "known");
        let left = |name: &str| folder.path().join(name).exists();
        assert!(left("known.lock") && left("ending.lock") && !left("gone.lock"));
    }
}
