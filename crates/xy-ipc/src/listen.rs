//! Binding the control socket: never over a living daemon, never over a foreign file.
//!
//! Called only by who holds the daemon's lock. A client sees the old socket or the
//! new one, never one that is not ready: it is made under another name, closed to
//! others before it listens, and then renamed.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind as bind_address, connect, listen};
use tokio::net::UnixListener;

use crate::socket;

/// Connections that may wait to be accepted: a shell loop over all verbs fits many times.
const BACKLOG: i32 = 128;

/// Why the socket could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody listens there: a daemon with another state folder.
    #[error("another daemon listens at `{}`", .path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// The path holds something that is not ours to delete.
    #[error("`{}` exists and is not a socket", .path.display())]
    NotASocket {
        /// What is in the way.
        path: PathBuf,
    },
    /// The system refused.
    #[error("could not listen at `{}`", .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
}

/// A socket that listens, and its file.
#[derive(Debug)]
pub struct Bound {
    /// For [`crate::serve`].
    pub listener: UnixListener,
    /// Removes the file when dropped.
    pub file: SocketFile,
}

/// The file of a socket; removed when dropped, if it is still ours.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Option<Identity>,
}

impl SocketFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is where it was made, and no other has taken its place.
    pub fn is_in_place(&self) -> bool {
        let found = fs::symlink_metadata(&self.path).ok();
        self.identity.is_some() && found.as_ref().map(identity) == self.identity
    }

    /// Removes it, unless another has taken its place.
    pub fn remove(self) {
        drop(self);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_in_place() {
            // If it cannot be removed it is stale, and the next daemon replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, inside a tokio runtime; a stale socket there is replaced.
pub fn bind(path: &Path) -> Result<Bound, BindError> {
    let failed = |cause: io::Error| BindError::Io { path: path.to_owned(), cause };
    refuse_if_taken(path)?;
    let temporary = temporary_sibling(path);
    remove_stale(&temporary)?;

    let socket = socket::new().map_err(|errno| failed(errno.into()))?;
    let address = SocketAddrUnix::new(&temporary).map_err(|errno| failed(errno.into()))?;
    bind_address(&socket, &address).map_err(|errno| failed(errno.into()))?;
    // From here on a failure takes the temporary file with it.
    let mut file = SocketFile { identity: None, path: temporary };
    file.identity = Some(identity(&fs::symlink_metadata(&file.path).map_err(failed)?));
    fs::set_permissions(&file.path, Permissions::from_mode(0o600)).map_err(failed)?;
    listen(&socket, BACKLOG).map_err(|errno| failed(errno.into()))?;
    let listener = into_tokio(socket).map_err(failed)?;
    fs::rename(&file.path, path).map_err(failed)?;
    path.clone_into(&mut file.path);
    Ok(Bound { listener, file })
}

fn into_tokio(socket: OwnedFd) -> io::Result<UnixListener> {
    UnixListener::from_std(socket.into())
}

/// What tells one file from another: its number may be given again, to one that is made later.
type Identity = (u64, u64, i64, i64);

fn identity(found: &Metadata) -> Identity {
    (found.dev(), found.ino(), found.mtime(), found.mtime_nsec())
}

/// What is at `path` itself, links not followed.
fn look_at(path: &Path) -> Result<Option<Metadata>, BindError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => Ok(Some(found)),
        Ok(_) => Err(BindError::NotASocket { path: path.to_owned() }),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(BindError::Io { path: path.to_owned(), cause }),
    }
}

fn refuse_if_taken(path: &Path) -> Result<(), BindError> {
    if look_at(path)?.is_none() {
        return Ok(());
    }
    let tried = SocketAddrUnix::new(path).and_then(|address| connect(socket::new()?, &address));
    match tried {
        // A full backlog is somebody's backlog.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::InUse { path: path.to_owned() }),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        Err(errno) => Err(BindError::Io { path: path.to_owned(), cause: errno.into() }),
    }
}

fn remove_stale(temporary: &Path) -> Result<(), BindError> {
    if look_at(temporary)?.is_none() {
        return Ok(());
    }
    fs::remove_file(temporary).map_err(|cause| BindError::Io { path: temporary.to_owned(), cause })
}

/// A name beside `path` of the same length, since sockets' paths are short of room.
fn temporary_sibling(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let ending = if name.ends_with(b"bind") { b"temp" } else { b"bind" };
    let kept = name.len().saturating_sub(ending.len());
    let mut sibling = name[..kept].to_vec();
    sibling.extend_from_slice(&ending[..name.len() - kept]);
    path.with_file_name(std::ffi::OsString::from_vec(sibling))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixStream;

    use tempfile::TempDir;

    use super::*;

    fn a_path() -> (TempDir, PathBuf) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("xy.sock");
        (folder, path)
    }

    fn names_in(folder: &TempDir) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_bound_socket_accepts_is_private_and_leaves_nothing_else() {
        let (folder, path) = a_path();
        let bound = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names_in(&folder), ["xy.sock"]);
        UnixStream::connect(&path).unwrap();
        bound.listener.accept().await.unwrap();
        assert!(bound.file.is_in_place());
        bound.file.remove();
        assert!(names_in(&folder).is_empty());
    }

    #[tokio::test]
    async fn a_living_daemon_is_left_alone() {
        let (_folder, path) = a_path();
        let bound = bind(&path).unwrap();
        assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
        UnixStream::connect(&path).unwrap();
        drop(bound);
    }

    #[tokio::test]
    async fn a_stale_socket_and_a_stale_temporary_one_are_replaced() {
        let (folder, path) = a_path();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(std::os::unix::net::UnixListener::bind(folder.path().join("xy.bind")).unwrap());
        let _bound = bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(names_in(&folder), ["xy.sock"]);
    }

    #[tokio::test]
    async fn a_foreign_file_is_never_deleted() {
        let (_folder, path) = a_path();
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_foreign_file_under_the_temporary_name_is_never_deleted() {
        let (folder, path) = a_path();
        fs::write(folder.path().join("xy.bind"), "precious").unwrap();
        assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(names_in(&folder), ["xy.bind"]);
    }

    #[tokio::test]
    async fn a_link_is_not_followed_even_if_it_leads_to_a_stale_socket() {
        let (folder, path) = a_path();
        let target = folder.path().join("target");
        drop(std::os::unix::net::UnixListener::bind(&target).unwrap());
        symlink(&target, &path).unwrap();
        assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(names_in(&folder), ["target", "xy.sock"]);
    }

    #[tokio::test]
    async fn a_socket_that_another_has_replaced_is_not_removed() {
        let (folder, path) = a_path();
        let bound = bind(&path).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!bound.file.is_in_place());
        drop(bound);
        assert_eq!(names_in(&folder), ["moved", "xy.sock"]);
    }

    #[tokio::test]
    async fn a_missing_folder_and_a_path_too_long_are_errors_not_panics() {
        let (folder, _) = a_path();
        let missing = folder.path().join("no/xy.sock");
        assert!(matches!(bind(&missing), Err(BindError::Io { .. })));
        let long = folder.path().join("x".repeat(200));
        assert!(matches!(bind(&long), Err(BindError::Io { .. })));
    }

    #[test]
    fn the_temporary_name_has_the_same_length() {
        for (name, expected) in [("xy.sock", "xy.bind"), ("a", "b"), ("x.bind", "x.temp")] {
            assert_eq!(temporary_sibling(Path::new(name)), Path::new(expected));
        }
    }
}
