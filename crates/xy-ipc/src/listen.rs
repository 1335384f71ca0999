//! Binds the control socket, but never over that of a running daemon and never over a foreign file.
//!
//! Only the holder of the daemon's lock may call this. A client sees the old socket or the new one,
//! never one that is not ready: the socket is created under a temporary name, made private before
//! it listens, and then renamed.

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

/// Maximum number of connections that wait to be accepted, more than a shell loop over all commands
/// needs.
const BACKLOG: i32 = 128;

/// Why the socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another daemon, with another state directory, listens there.
    #[error("another daemon listens at `{}`", .path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The path holds a file that is not a socket and must not be deleted.
    #[error("`{}` exists and is not a socket", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("could not listen at `{}`", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

/// A listening socket and its file.
#[derive(Debug)]
pub struct BoundSocket {
    /// The listener, for [`crate::serve`].
    pub listener: UnixListener,
    /// The file, which is removed on drop.
    pub file: SocketFile,
}

/// The file of a socket. It is removed on drop, unless another file has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    file_id: Option<FileId>,
}

impl SocketFile {
    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the file is still at its path and has not been replaced.
    pub fn is_in_place(&self) -> bool {
        let found = fs::symlink_metadata(&self.path).ok();
        self.file_id.is_some() && found.as_ref().map(file_id) == self.file_id
    }

    /// Removes the file, unless another has replaced it.
    pub fn remove(self) {
        drop(self);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_in_place() {
            // A file that cannot be removed is stale, and the next daemon replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path` and replaces a stale socket there. Must be called inside a Tokio runtime.
pub fn bind(path: &Path) -> Result<BoundSocket, BindError> {
    let failed = |cause: io::Error| BindError::Io { path: path.to_owned(), cause };
    check_not_in_use(path)?;
    let temporary = temporary_sibling(path);
    remove_stale(&temporary)?;

    let socket = socket::new().map_err(|errno| failed(errno.into()))?;
    let address = SocketAddrUnix::new(&temporary).map_err(|errno| failed(errno.into()))?;
    bind_address(&socket, &address).map_err(|errno| failed(errno.into()))?;
    // From here on, a failure removes the temporary file.
    let mut file = SocketFile { file_id: None, path: temporary };
    file.file_id = Some(file_id(&fs::symlink_metadata(&file.path).map_err(failed)?));
    fs::set_permissions(&file.path, Permissions::from_mode(0o600)).map_err(failed)?;
    listen(&socket, BACKLOG).map_err(|errno| failed(errno.into()))?;
    let listener = into_tokio(socket).map_err(failed)?;
    fs::rename(&file.path, path).map_err(failed)?;
    path.clone_into(&mut file.path);
    Ok(BoundSocket { listener, file })
}

fn into_tokio(socket: OwnedFd) -> io::Result<UnixListener> {
    UnixListener::from_std(socket.into())
}

/// Identifies a file. The inode alone may be reused by a later file.
type FileId = (u64, u64, i64, i64);

fn file_id(found: &Metadata) -> FileId {
    (found.dev(), found.ino(), found.mtime(), found.mtime_nsec())
}

/// Returns the metadata of the socket at `path` itself, without following links.
fn socket_metadata(path: &Path) -> Result<Option<Metadata>, BindError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => Ok(Some(found)),
        Ok(_) => Err(BindError::NotASocket { path: path.to_owned() }),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(BindError::Io { path: path.to_owned(), cause }),
    }
}

fn check_not_in_use(path: &Path) -> Result<(), BindError> {
    if socket_metadata(path)?.is_none() {
        return Ok(());
    }
    let result = SocketAddrUnix::new(path).and_then(|address| connect(socket::new()?, &address));
    match result {
        // A full backlog belongs to a running process.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::InUse { path: path.to_owned() }),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        Err(errno) => Err(BindError::Io { path: path.to_owned(), cause: errno.into() }),
    }
}

fn remove_stale(temporary: &Path) -> Result<(), BindError> {
    if socket_metadata(temporary)?.is_none() {
        return Ok(());
    }
    fs::remove_file(temporary).map_err(|cause| BindError::Io { path: temporary.to_owned(), cause })
}

/// Returns a temporary name beside `path`. It has the same length, because socket paths are
/// limited.
fn temporary_sibling(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let suffix = if name.ends_with(b"bind") { b"temp" } else { b"bind" };
    let prefix_length = name.len().saturating_sub(suffix.len());
    let mut sibling = name[..prefix_length].to_vec();
    sibling.extend_from_slice(&suffix[..name.len() - prefix_length]);
    path.with_file_name(std::ffi::OsString::from_vec(sibling))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixStream;

    use tempfile::TempDir;

    use super::*;

    fn socket_path() -> (TempDir, PathBuf) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("xy.sock");
        (folder, path)
    }

    fn file_names(folder: &TempDir) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn bound_socket_accepts_and_is_private() {
        let (folder, path) = socket_path();
        let bound = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(file_names(&folder), ["xy.sock"]);
        UnixStream::connect(&path).unwrap();
        bound.listener.accept().await.unwrap();
        assert!(bound.file.is_in_place());
        bound.file.remove();
        assert!(file_names(&folder).is_empty());
    }

    #[tokio::test]
    async fn socket_of_a_running_daemon_is_kept() {
        let (_folder, path) = socket_path();
        let bound = bind(&path).unwrap();
        assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
        UnixStream::connect(&path).unwrap();
        drop(bound);
    }

    #[tokio::test]
    async fn stale_sockets_are_replaced() {
        let (folder, path) = socket_path();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(std::os::unix::net::UnixListener::bind(folder.path().join("xy.bind")).unwrap());
        let _bound = bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(file_names(&folder), ["xy.sock"]);
    }

    #[tokio::test]
    async fn foreign_file_is_never_deleted() {
        let (_folder, path) = socket_path();
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn foreign_temporary_file_is_never_deleted() {
        let (folder, path) = socket_path();
        fs::write(folder.path().join("xy.bind"), "precious").unwrap();
        assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(file_names(&folder), ["xy.bind"]);
    }

    #[tokio::test]
    async fn link_is_not_followed() {
        let (folder, path) = socket_path();
        let target = folder.path().join("target");
        drop(std::os::unix::net::UnixListener::bind(&target).unwrap());
        symlink(&target, &path).unwrap();
        assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(file_names(&folder), ["target", "xy.sock"]);
    }

    #[tokio::test]
    async fn replaced_socket_is_not_removed() {
        let (folder, path) = socket_path();
        let bound = bind(&path).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!bound.file.is_in_place());
        drop(bound);
        assert_eq!(file_names(&folder), ["moved", "xy.sock"]);
    }

    #[tokio::test]
    async fn missing_folder_and_long_path_are_errors() {
        let (folder, _) = socket_path();
        let missing = folder.path().join("no/xy.sock");
        assert!(matches!(bind(&missing), Err(BindError::Io { .. })));
        let long = folder.path().join("x".repeat(200));
        assert!(matches!(bind(&long), Err(BindError::Io { .. })));
    }

    #[test]
    fn temporary_name_has_the_same_length() {
        for (name, expected) in [("xy.sock", "xy.bind"), ("a", "b"), ("x.bind", "x.temp")] {
            assert_eq!(temporary_sibling(Path::new(name)), Path::new(expected));
        }
    }
}
