//! The locks that shims hold: whether an instance is there, and who holds it.
//!
//! The daemon takes a lock before it starts a shim, and the shim inherits it. So there is
//! no moment in which a server may be there and its lock is free, whoever is killed when.
//! The shim holds it until nothing of its server is left, and says in it who it is.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::sleep;
use xy_protocol::server::ServerName;
use xy_shim::identity::{Identity, MAX_IDENTITY};

use crate::instance::{Holder, InstanceKey};
use crate::plain_file::{open_file, open_own};

/// How often a held lock is looked at: nobody tells when it is let go.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The lock of an instance.
pub fn lock_file(locks_dir: &Path, key: &InstanceKey) -> PathBuf {
    locks_dir.join(format!("{key}.lock"))
}

/// Takes a lock that nobody holds, for a shim that is about to be started. `None` if
/// somebody does.
pub(crate) fn take(lock: &Path) -> io::Result<Option<File>> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = open_own(&mut options, lock)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(cause)) => return Err(cause),
    }
    file.set_len(0)?; // Whoever held it before is not there any more.
    Ok(Some(file))
}

/// Who holds a lock, as far as the file says.
pub(crate) fn holder(lock: &Path) -> Option<Identity> {
    let mut text = Vec::new();
    open_file(lock).ok()?.take(MAX_IDENTITY).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Whether some shim holds the lock. If that cannot be seen, somebody may.
pub(crate) fn is_held(lock: &Path) -> bool {
    match open_file(lock) {
        Ok(file) => is_locked(&file),
        Err(error) => is_short_of_something(&error),
    }
}

/// Whether the system could not look, rather than that there is nothing to be seen.
fn is_short_of_something(error: &io::Error) -> bool {
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR, Errno::IO];
    Errno::from_io_error(error).is_some_and(|errno| short.contains(&errno))
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

/// The locks in a folder that somebody holds, with the instances they are for.
pub(crate) fn held_locks(locks_dir: &Path) -> io::Result<Vec<(InstanceKey, PathBuf)>> {
    let mut held = Vec::new();
    for entry in fs::read_dir(locks_dir)? {
        let lock = entry?.path();
        if let Some(key) = key_of(&lock).filter(|_| is_held(&lock)) {
            held.push((key, lock));
        }
    }
    Ok(held)
}

fn key_of(lock: &Path) -> Option<InstanceKey> {
    let is_lock = lock.extension().is_some_and(|extension| extension == "lock");
    InstanceKey::parse(lock.file_stem().filter(|_| is_lock)?.to_str()?)
}

/// Removes the locks of servers that there are no more, and sockets that nobody listens
/// at. Only for a daemon that has started nothing yet: whoever opens a lock must find the
/// same file that others lock.
pub fn tidy_up(locks_dir: &Path, is_known: impl Fn(&ServerName) -> bool) {
    let Ok(held) = held_locks(locks_dir) else { return };
    let held: Vec<PathBuf> = held.into_iter().map(|(_, lock)| lock).collect();
    let in_use: Vec<PathBuf> =
        held.iter().filter_map(|lock| Some(holder(lock)?.socket.into())).collect();
    for entry in fs::read_dir(locks_dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_needed = match key_of(&path) {
            // No client comes back to its instance: a later one may have the same number.
            Some(key) => {
                held.contains(&path) || (key.holder == Holder::Shared && is_known(&key.server))
            }
            // One whose holder has not said yet where it listens may be any.
            None => in_use.contains(&path) || in_use.len() < held.len(),
        };
        if !is_needed {
            let _ = fs::remove_file(path); // What stays does no harm.
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_lock_is_held_while_somebody_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let key = InstanceKey::shared(ServerName::new("a").unwrap());
        let path = lock_file(folder.path(), &key);
        assert!(!is_held(&path), "there is none");
        let file = take(&path).unwrap().unwrap();
        assert!(is_held(&path) && take(&path).unwrap().is_none());
        drop(file);
        assert!(!is_held(&path));
    }

    #[test]
    fn whoever_takes_a_lock_takes_the_name_of_the_holder_before_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let text = r#"{"protocol":2,"pid":1,"began":2,"boot":"b","life":"l","socket":"s"}"#;
        fs::write(&path, text).unwrap();
        assert_eq!(holder(&path).unwrap().life, "l");
        let _lock = take(&path).unwrap().unwrap();
        assert_eq!(holder(&path), None);
    }

    #[test]
    fn what_is_no_identity_names_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        for text in ["", "{", "[]", "1234", &"x".repeat(100_000)] {
            fs::write(&path, text).unwrap();
            assert_eq!(holder(&path), None);
        }
    }

    #[test]
    fn locks_of_servers_that_are_gone_are_removed_unless_they_are_held() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| File::create(folder.path().join(name)).unwrap();
        make("known.lock");
        make("gone.lock");
        make("known@1.lock");
        make("stale.sock");
        let mut held = make("ending.lock");
        held.lock().unwrap();
        tidy_up(folder.path(), |name| name.as_str() == "known");
        let left = |name: &str| folder.path().join(name).exists();
        assert!(left("known.lock") && left("ending.lock") && !left("gone.lock"));
        assert!(!left("known@1.lock"), "no client comes back to it");
        assert!(left("stale.sock"), "it may be that of the one who has not said");

        let socket = make("used.sock");
        let identity = Identity {
            protocol: 2,
            pid: 1,
            began: 2,
            boot: "b".into(),
            life: "l".into(),
            socket: folder.path().join("used.sock").to_str().unwrap().into(),
        };
        held.write_all(&serde_json::to_vec(&identity).unwrap()).unwrap();
        drop(socket);
        tidy_up(folder.path(), |name| name.as_str() == "known");
        assert!(left("used.sock") && !left("stale.sock"));
    }
}
