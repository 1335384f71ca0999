//! Connecting without the risk of waiting for ever.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, connect as connect_to};
use xy_config::trust::{Untrusted, check_socket_folder};
use xy_shim::door::is_ours;

use crate::socket;

/// How long a daemon may leave us in its backlog.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// The wait before the next try at a full backlog.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no socket.
    #[error("nothing listens at `{}`", .path.display())]
    NoSocket {
        /// Where it would be.
        path: PathBuf,
    },
    /// There is a socket, and nobody behind it.
    #[error("nothing listens at `{}`, though the socket is there", .path.display())]
    Refused {
        /// Where.
        path: PathBuf,
    },
    /// The socket is another user's.
    #[error("no permission to connect to `{}`", .path.display())]
    NoPermission {
        /// Where.
        path: PathBuf,
    },
    /// Another user can listen there in the daemon's place.
    #[error("others could listen in the daemon's place: {untrusted}")]
    Unsafe {
        /// The folder of the socket, and why.
        untrusted: Untrusted,
    },
    /// Another user listens there. Nothing was said.
    #[error("a process of another user listens at `{}`", .path.display())]
    Foreign {
        /// Where.
        path: PathBuf,
    },
    /// Somebody listens and does not accept.
    #[error("whoever listens at `{}` does not accept connections", .path.display())]
    TimedOut {
        /// Where.
        path: PathBuf,
    },
    /// The system refused.
    #[error("could not connect to `{}`", .path.display())]
    Other {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
}

/// A connection, and the socket it was made at.
#[derive(Debug)]
pub struct Found {
    /// The connection.
    pub stream: UnixStream,
    /// The socket itself, if a link led there.
    pub socket: PathBuf,
}

/// Connects to the first of `places` that somebody listens at. A place holds the socket, a link
/// to it, or nothing; a stale one is passed over.
pub(super) fn find(places: &[PathBuf]) -> Result<Found, ConnectError> {
    let mut tried: Vec<(PathBuf, ConnectError)> = Vec::new();
    for place in places {
        let socket = behind_link(place);
        if tried.iter().any(|(other, _)| *other == socket) {
            continue;
        }
        match connect(&socket) {
            Ok(stream) => return Ok(Found { stream, socket }),
            Err(error) => tried.push((socket, error)),
        }
    }
    let mut errors = tried.into_iter().map(|(_, error)| error);
    let last = errors.next_back().unwrap_or(ConnectError::NoSocket { path: PathBuf::new() });
    // A socket that could not be used says more than one that is not there.
    Err(errors
        .find(|error| !error.is_not_listening())
        .filter(|_| last.is_not_listening())
        .unwrap_or(last))
}

/// Returns where a link leads, or the place itself. A link is not left to the system: its own
/// path may be too long for a socket's.
fn behind_link(place: &Path) -> PathBuf {
    let folder = place.parent().unwrap_or(Path::new("/"));
    std::fs::read_link(place).map_or_else(|_| place.to_owned(), |target| folder.join(target))
}

impl ConnectError {
    /// Returns true if no daemon listens there: no socket, or a stale one.
    pub fn is_not_listening(&self) -> bool {
        matches!(self, Self::NoSocket { .. } | Self::Refused { .. })
    }
}

/// Connects to the daemon of this user that listens at `path`. Nothing is said to anyone else.
pub(super) fn connect(path: &Path) -> Result<UnixStream, ConnectError> {
    // Where nothing is, a path that is too long is no problem, and nor is the folder.
    if std::fs::symlink_metadata(path).is_err_and(|cause| is_missing(&cause)) {
        return Err(ConnectError::NoSocket { path: path.to_owned() });
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    check_socket_folder(folder).map_err(|untrusted| ConnectError::Unsafe { untrusted })?;
    let stream = connect_within(path, CONNECT_WITHIN)?;
    if is_ours(stream.as_fd()) {
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
fn connect_within(path: &Path, within: Duration) -> Result<UnixStream, ConnectError> {
    let give_up_at = Instant::now() + within;
    loop {
        match try_once(path) {
            Ok(stream) => return Ok(stream),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < give_up_at => {
                // A full backlog gives no sign when it has room again.
                std::thread::sleep(TRY_AGAIN_AFTER);
            }
            Err(errno) => return Err(explain(path.to_owned(), errno)),
        }
    }
}

fn try_once(path: &Path) -> Result<UnixStream, Errno> {
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
    fn each_reason_for_no_connection_has_its_name() {
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
    fn the_first_living_socket_is_found() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        let found = |places: &[&str]| {
            let places: Vec<_> = places.iter().map(|name| at(name)).collect();
            find(&places).map(|found| found.socket)
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
        for places in [
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
            assert_eq!(found(&places).unwrap(), at("living"), "{places:?}");
        }
        for places in [["none", "none"], ["to-none", "none"], ["stale", "none"], ["none", "stale"]]
        {
            assert!(found(&places).unwrap_err().is_not_listening(), "{places:?}");
        }
        let nothing_there = "y".repeat(250);
        assert!(found(&[&nothing_there, "none"]).unwrap_err().is_not_listening());
    }

    #[test]
    fn a_socket_that_cannot_be_used_is_told_before_one_that_is_not_there() {
        let folder = TempDir::new().unwrap();
        let long = folder.path().join("x".repeat(250));
        std::fs::write(&long, "").unwrap();
        let none = folder.path().join("none");
        for places in [[long.clone(), none.clone()], [none, long]] {
            let error = find(&places).unwrap_err();
            assert!(matches!(error, ConnectError::Other { .. }), "{error:?}");
        }
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
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
    fn a_listener_of_another_user_is_told_nothing() {
        use std::io::Read;

        use rustix::process::{Uid, geteuid};

        if !geteuid().is_root() {
            println!("SKIPPED: only root can become another user");
            return;
        }
        let ours = TempDir::new().unwrap();
        let theirs = TempDir::new().unwrap();
        std::fs::set_permissions(theirs.path(), Permissions::from_mode(0o777)).unwrap();
        let (path, bound) = (ours.path().join("xy.sock"), theirs.path().join("xy.sock"));
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
        let (mut heard, mut text) = (listener.accept().unwrap().0, String::new());
        heard.read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_backlog_is_not_waited_for_without_end() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("xy.sock");
        let socket = socket::new().unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let _first = try_once(&path).unwrap();
        let refused = connect_within(&path, Duration::from_millis(30));
        assert!(matches!(refused, Err(ConnectError::TimedOut { .. })), "{refused:?}");
    }
}
