//! Signposts in the state folder to sockets that are elsewhere.
//!
//! Where the daemon's sockets are depends on its `XDG_RUNTIME_DIR`, and many MCP clients start
//! their servers without it. Clients look in the state folder first (`Paths::control_places`),
//! which holds the sockets or these links to them.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

use xy_config::Paths;

/// The signposts of this daemon; they go with it.
#[derive(Debug)]
pub(crate) struct Signs(Vec<(PathBuf, PathBuf)>);

impl Signs {
    /// Puts them up, in place of those of an earlier daemon. One that cannot be put up is
    /// missed only by those who need it.
    pub(crate) fn put(paths: &Paths) -> Self {
        let mut signs = Vec::new();
        for socket in [&paths.control_socket, &paths.mcp_socket] {
            let Some(name) = socket.file_name() else { continue };
            let sign = paths.state_dir.join(name);
            let problem = if sign == *socket { take_down(&sign) } else { put_one(&sign, socket) };
            match problem {
                Ok(()) if sign != *socket => signs.push((sign, socket.clone())),
                Ok(()) => {}
                Err(problem) => {
                    tracing::warn!(sign = %sign.display(), %problem, "could not create the socket link");
                }
            }
        }
        Self(signs)
    }
}

impl Drop for Signs {
    fn drop(&mut self) {
        for (sign, socket) in &self.0 {
            // Another daemon's sign, or none, is left alone.
            if fs::read_link(sign).is_ok_and(|leads_to| leads_to == *socket) {
                let _ = fs::remove_file(sign);
            }
        }
    }
}

fn put_one(sign: &Path, socket: &Path) -> io::Result<()> {
    take_down(sign)?;
    match fs::symlink_metadata(sign) {
        // A stale socket: we hold the lock.
        Ok(found) if found.file_type().is_socket() => fs::remove_file(sign)?,
        Ok(_) => return Err(io::Error::other("it is not a socket; move it away")),
        Err(_) => {}
    }
    symlink(socket, sign)
}

/// Removes a sign, and nothing else.
pub(crate) fn take_down(sign: &Path) -> io::Result<()> {
    match fs::symlink_metadata(sign) {
        Ok(found) if found.is_symlink() => fs::remove_file(sign),
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(cause),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn paths(root: &Path, runtime: Option<&str>) -> Paths {
        fs::create_dir_all(root.join("state/xy")).unwrap();
        let variable = |name: &str| match name {
            "XDG_STATE_HOME" => Some(root.join("state").into_os_string()),
            "XDG_RUNTIME_DIR" => runtime.map(OsString::from),
            _ => None,
        };
        Paths::resolve(root, variable).unwrap()
    }

    #[test]
    fn a_sign_leads_to_a_socket_elsewhere_and_goes_with_its_daemon() {
        let root = tempfile::tempdir().unwrap();
        let paths = paths(root.path(), Some("/run/somewhere"));
        let sign = root.path().join("state/xy/xy-mcp.sock");
        symlink("/an/old/one", &sign).unwrap();
        let signs = Signs::put(&paths);
        assert_eq!(fs::read_link(&sign).unwrap(), Path::new("/run/somewhere/xy-mcp.sock"));
        drop(signs);
        assert!(fs::symlink_metadata(&sign).is_err());
    }

    #[test]
    fn a_stale_socket_makes_room_and_a_file_does_not() {
        let root = tempfile::tempdir().unwrap();
        let paths = paths(root.path(), Some("/run/somewhere"));
        let [control, mcp] = ["xy.sock", "xy-mcp.sock"].map(|it| paths.state_dir.join(it));
        drop(std::os::unix::net::UnixListener::bind(&control).unwrap());
        fs::write(&mcp, "precious").unwrap();
        let _signs = Signs::put(&paths);
        assert_eq!(fs::read_link(&control).unwrap(), paths.control_socket);
        assert_eq!(fs::read_to_string(&mcp).unwrap(), "precious");
    }

    #[test]
    fn a_socket_that_is_there_itself_needs_none_and_old_ones_are_taken_down() {
        let root = tempfile::tempdir().unwrap();
        let paths = paths(root.path(), None);
        symlink("/an/old/one", &paths.control_socket).unwrap();
        drop(Signs::put(&paths));
        assert!(fs::symlink_metadata(&paths.control_socket).is_err());
    }
}
