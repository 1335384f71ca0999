//! The locks that shims hold, which show whether an instance exists and which shim runs it.
//!
//! The daemon takes a lock before it starts a shim, and the shim inherits it. So the lock is never
//! free while the server may exist, whichever process is killed. The shim holds the lock until all
//! processes of its server have ended, and writes its identity into the file.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::sleep;
use xy_protocol::server::ServerName;
use xy_shim::identity::{Identity, MAX_IDENTITY};

use crate::instance_key::{Holder, InstanceKey};
use xy_config::trust::{open as open_file, open_own};

/// How often a held lock is polled, as its release cannot be observed.
pub(crate) const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the lock file of an instance.
pub fn lock_file(locks_dir: &Path, key: &InstanceKey) -> PathBuf {
    locks_dir.join(format!("{key}.lock"))
}

/// Takes a lock for a shim that is about to be started. Returns `None` if a shim holds it.
pub(crate) fn take(lock: &Path) -> io::Result<Option<File>> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = open_own(&mut options, lock)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(cause)) => return Err(cause),
    }
    file.set_len(0)?; // Removes the identity of the last holder.
    Ok(Some(file))
}

/// Returns the identity of the shim in a lock file, if it can be read.
pub(crate) fn holder(lock: &Path) -> Option<Identity> {
    let mut text = Vec::new();
    open_file(lock).ok()?.take(MAX_IDENTITY).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Returns true if a shim holds the lock, or if that is unknown.
pub(crate) fn is_held(lock: &Path) -> bool {
    match open_file(lock) {
        Ok(file) => is_locked(&file),
        Err(error) => is_resource_error(&error),
    }
}

/// Returns true if the system was short of resources, so that the error says nothing of the file.
fn is_resource_error(error: &io::Error) -> bool {
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR, Errno::IO];
    Errno::from_io_error(error).is_some_and(|errno| short.contains(&errno))
}

fn is_locked(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Waits until the lock is free. Cancel-safe.
pub(crate) async fn until_free(lock: &Path) {
    while is_held(lock) {
        sleep(LOCK_POLL_INTERVAL).await;
    }
}

/// Returns the held locks in a folder, with their instances.
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

/// Removes the locks of unknown servers and unused sockets. Call it only before the daemon starts
/// any server: a process that opens a lock must find the same file that others lock.
pub fn remove_stale(locks_dir: &Path, is_known: impl Fn(&ServerName) -> bool) {
    let Ok(held) = held_locks(locks_dir) else { return };
    let held: Vec<PathBuf> = held.into_iter().map(|(_, lock)| lock).collect();
    let in_use: Vec<PathBuf> =
        held.iter().filter_map(|lock| Some(holder(lock)?.socket.into())).collect();
    for entry in fs::read_dir(locks_dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_needed = match key_of(&path) {
            // A client instance is never resumed, as a later client may have the same number.
            Some(key) => {
                held.contains(&path) || (key.holder == Holder::Shared && is_known(&key.server))
            }
            // A shim that has not written its identity yet may use any socket.
            None => in_use.contains(&path) || in_use.len() < held.len(),
        };
        if !is_needed {
            let _ = fs::remove_file(path); // A leftover is harmless.
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lock_is_held_while_its_file_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let key = InstanceKey::shared(ServerName::new("a").unwrap());
        let path = lock_file(folder.path(), &key);
        assert!(!is_held(&path), "it does not exist");
        let file = take(&path).unwrap().unwrap();
        assert!(is_held(&path) && take(&path).unwrap().is_none());
        drop(file);
        assert!(!is_held(&path));
    }

    #[test]
    fn taking_lock_clears_identity_of_last_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let text = r#"{"protocol":2,"pid":1,"began":2,"boot":"b","life":"l","socket":"s"}"#;
        fs::write(&path, text).unwrap();
        assert_eq!(holder(&path).unwrap().life, "l");
        let _lock = take(&path).unwrap().unwrap();
        assert_eq!(holder(&path), None);
    }

    #[test]
    fn invalid_identity_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        for text in ["", "{", "[]", "1234", &"x".repeat(100_000)] {
            fs::write(&path, text).unwrap();
            assert_eq!(holder(&path), None);
        }
    }

    #[test]
    fn free_locks_of_unknown_servers_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| File::create(folder.path().join(name)).unwrap();
        make("known.lock");
        make("gone.lock");
        make("known@1.lock");
        make("stale.sock");
        let mut held = make("ending.lock");
        held.lock().unwrap();
        remove_stale(folder.path(), |name| name.as_str() == "known");
        let left = |name: &str| folder.path().join(name).exists();
        assert!(left("known.lock") && left("ending.lock") && !left("gone.lock"));
        assert!(!left("known@1.lock"), "client instances are never resumed");
        assert!(left("stale.sock"), "it may belong to the holder without identity");

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
        remove_stale(folder.path(), |name| name.as_str() == "known");
        assert!(left("used.sock") && !left("stale.sock"));
    }
}
