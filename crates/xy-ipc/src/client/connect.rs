//! Connecting without the risk of waiting for ever.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, connect as connect_to};

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

pub(super) fn connect(path: &Path) -> Result<UnixStream, ConnectError> {
    connect_within(path, CONNECT_WITHIN)
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
