//! Connects without the risk of waiting for ever.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, connect as connect_to};
use xy_config::trust::{TrustError, check_socket_folder};
use xy_shim::listener::is_same_user;

use crate::socket;

/// How long a connection may wait in the daemon's backlog.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between attempts while the backlog is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no socket.
    #[error("nothing listens at `{}`", .path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// There is a socket, but no process listens at it.
    #[error("nothing listens at `{}`, though the socket is there", .path.display())]
    Refused {
        /// The path.
        path: PathBuf,
    },
    /// The socket belongs to another user.
    #[error("no permission to connect to `{}`", .path.display())]
    NoPermission {
        /// The path.
        path: PathBuf,
    },
    /// Another user could listen there in the daemon's place.
    #[error("others could listen in the daemon's place: {untrusted}")]
    Unsafe {
        /// The directory of the socket, and the reason.
        untrusted: TrustError,
    },
    /// Another user listens there. Nothing was sent.
    #[error("a process of another user listens at `{}`", .path.display())]
    Foreign {
        /// The path.
        path: PathBuf,
    },
    /// A process listens but does not accept.
    #[error("the process that listens at `{}` does not accept connections", .path.display())]
    TimedOut {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("could not connect to `{}`", .path.display())]
    Other {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

/// A connection, and the socket it was made to.
#[derive(Debug)]
pub struct Connection {
    /// The connection.
    pub stream: UnixStream,
    /// The path of the socket itself, with links resolved.
    pub socket: PathBuf,
}

/// Connects to the first of `paths` at which a process listens. A path holds the socket, a link to
/// it, or nothing; a stale socket is skipped.
pub(super) fn find(paths: &[PathBuf]) -> Result<Connection, ConnectError> {
    let mut tried: Vec<(PathBuf, ConnectError)> = Vec::new();
    for path in paths {
        let socket = resolve_link(path);
        if tried.iter().any(|(other, _)| *other == socket) {
            continue;
        }
        match connect(&socket) {
            Ok(stream) => return Ok(Connection { stream, socket }),
            Err(error) => tried.push((socket, error)),
        }
    }
    let mut errors = tried.into_iter().map(|(_, error)| error);
    let last = errors.next_back().unwrap_or(ConnectError::NoSocket { path: PathBuf::new() });
    // The error of an unusable socket says more than that of a missing one.
    Err(errors
        .find(|error| !error.is_not_listening())
        .filter(|_| last.is_not_listening())
        .unwrap_or(last))
}

/// Returns the target of a link, or the path itself. The link is resolved here because its own path
/// may be too long for a socket.
fn resolve_link(path: &Path) -> PathBuf {
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::read_link(path).map_or_else(|_| path.to_owned(), |target| folder.join(target))
}

impl ConnectError {
    /// Returns true if no daemon listens there: no socket, or a stale one.
    pub fn is_not_listening(&self) -> bool {
        matches!(self, Self::NoSocket { .. } | Self::Refused { .. })
    }
}

/// Connects to the daemon of this user at `path`. Nothing is sent to another user.
pub(super) fn connect(path: &Path) -> Result<UnixStream, ConnectError> {
    // If there is no socket, an overlong path or an unsafe directory does not matter.
    if std::fs::symlink_metadata(path).is_err_and(|cause| is_missing(&cause)) {
        return Err(ConnectError::NoSocket { path: path.to_owned() });
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    check_socket_folder(folder).map_err(|untrusted| ConnectError::Unsafe { untrusted })?;
    let stream = connect_with_timeout(path, CONNECT_TIMEOUT)?;
    if is_same_user(stream.as_fd()) {
        Ok(stream)
    } else {
        Err(ConnectError::Foreign { path: path.to_owned() })
    }
}

fn is_missing(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a blocking client has no clock that tests could pause"
)]
fn connect_with_timeout(path: &Path, timeout: Duration) -> Result<UnixStream, ConnectError> {
    let deadline = Instant::now() + timeout;
    loop {
        match try_connect(path) {
            Ok(stream) => return Ok(stream),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                // A full backlog does not signal when it has room again.
                std::thread::sleep(RETRY_INTERVAL);
            }
            Err(errno) => return Err(explain(path.to_owned(), errno)),
        }
    }
}

fn try_connect(path: &Path) -> Result<UnixStream, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket::new()?;
    connect_to(&socket, &address)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket.into())
}

fn explain(path: PathBuf, errno: Errno) -> ConnectError {
    match errno {
        Errno::NOENT | Errno::NOTDIR => ConnectError::NoSocket { path },
        Errno::CONNREFUSED => ConnectError::Refused { path },
        Errno::ACCESS | Errno::PERM => ConnectError::NoPermission { path },
        Errno::AGAIN => ConnectError::TimedOut { path },
        _ => ConnectError::Other { path, cause: errno.into() },
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn connect_errors_are_distinct() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("xy.sock");
        assert!(matches!(connect(&path), Err(ConnectError::NoSocket { .. })));
        drop(UnixListener::bind(&path).unwrap());
        assert!(matches!(connect(&path), Err(ConnectError::Refused { .. })));
        let inside_a_file = folder.path().join("xy.sock/x");
        assert!(matches!(connect(&inside_a_file), Err(ConnectError::NoSocket { .. })));
        let too_long = folder.path().join("x".repeat(300));
        assert!(matches!(connect(&too_long), Err(ConnectError::Other { .. })));
        assert!(matches!(explain(path, Errno::ACCESS), ConnectError::NoPermission { .. }));
    }

    #[test]
    fn first_live_socket_is_found() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        let connection = |paths: &[&str]| {
            let paths: Vec<_> = paths.iter().map(|name| at(name)).collect();
            find(&paths).map(|connection| connection.socket)
        };
        let _living = UnixListener::bind(at("living")).unwrap();
        let _other = UnixListener::bind(at("other")).unwrap();
        drop(UnixListener::bind(at("stale")).unwrap());
        std::fs::write(at("file"), "").unwrap();
        for (link, target) in [("to-living", "living"), ("to-stale", "stale"), ("to-none", "none")]
        {
            symlink(at(target), at(link)).unwrap();
        }
        symlink("living", at("relative")).unwrap();
        let long = "x".repeat(250);
        symlink(at("living"), at(&long)).unwrap();
        for paths in [
            ["living", "other"],
            ["to-living", "other"],
            ["relative", "other"],
            [&long, "other"],
            ["none", "living"],
            ["stale", "living"],
            ["to-stale", "living"],
            ["to-none", "living"],
            ["file", "living"],
        ] {
            assert_eq!(connection(&paths).unwrap(), at("living"), "{paths:?}");
        }
        for paths in [["none", "none"], ["to-none", "none"], ["stale", "none"], ["none", "stale"]] {
            assert!(connection(&paths).unwrap_err().is_not_listening(), "{paths:?}");
        }
        let nothing_there = "y".repeat(250);
        assert!(connection(&[&nothing_there, "none"]).unwrap_err().is_not_listening());
    }

    #[test]
    fn unusable_socket_is_reported_before_a_missing_one() {
        let folder = TempDir::new().unwrap();
        let long = folder.path().join("x".repeat(250));
        std::fs::write(&long, "").unwrap();
        let none = folder.path().join("none");
        for paths in [[long.clone(), none.clone()], [none, long]] {
            let error = find(&paths).unwrap_err();
            assert!(matches!(error, ConnectError::Other { .. }), "{error:?}");
        }
    }

    #[test]
    fn writable_folder_is_refused() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("xy.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        for mode in [0o777, 0o1777, 0o703] {
            std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            let refused = connect(&path);
            assert!(matches!(refused, Err(ConnectError::Unsafe { .. })), "{mode:o} {refused:?}");
        }
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(connect(&path).is_ok());
    }

    /// Only root can listen as another user, and only Linux lets a single thread do so.
    #[cfg(target_os = "linux")]
    #[test]
    fn nothing_is_sent_to_a_listener_of_another_user() {
        use std::io::Read;

        use rustix::process::{Uid, geteuid};

        if !geteuid().is_root() {
            println!("SKIPPED: only root can become another user");
            return;
        }
        let own_folder = TempDir::new().unwrap();
        let foreign_folder = TempDir::new().unwrap();
        std::fs::set_permissions(foreign_folder.path(), Permissions::from_mode(0o777)).unwrap();
        let (path, bound) =
            (own_folder.path().join("xy.sock"), foreign_folder.path().join("xy.sock"));
        let listener = {
            let bound = bound.clone();
            let as_nobody = std::thread::spawn(move || {
                rustix::thread::set_thread_uid(Uid::from_raw(65_534)).unwrap();
                UnixListener::bind(bound).unwrap()
            });
            as_nobody.join().unwrap()
        };
        std::fs::rename(bound, &path).unwrap();
        let refused = find(&[path]);
        assert!(matches!(refused, Err(ConnectError::Foreign { .. })), "{refused:?}");
        let (mut stream, mut text) = (listener.accept().unwrap().0, String::new());
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn full_backlog_times_out() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("xy.sock");
        let socket = socket::new().unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let _first = try_connect(&path).unwrap();
        let refused = connect_with_timeout(&path, Duration::from_millis(30));
        assert!(matches!(refused, Err(ConnectError::TimedOut { .. })), "{refused:?}");
    }
}
