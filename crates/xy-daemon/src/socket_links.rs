//! Symlinks in the state folder to sockets that are elsewhere.
//!
//! The location of the sockets depends on the daemon's `XDG_RUNTIME_DIR`, and many MCP clients
//! start their servers without that variable. Clients look in the state folder first
//! (`Paths::control_socket_candidates`), which holds the sockets or these links to them.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

use xy_config::Paths;

/// The symlinks of this daemon. Dropping this removes them.
#[derive(Debug)]
pub(crate) struct SocketLinks(Vec<(PathBuf, PathBuf)>);

impl SocketLinks {
    /// Creates the symlinks, in place of those of an earlier daemon. A failure is logged: only
    /// clients that need the symlink are affected.
    pub(crate) fn create(paths: &Paths) -> Self {
        let mut socket_links = Vec::new();
        for socket in [&paths.control_socket, &paths.mcp_socket] {
            let Some(name) = socket.file_name() else { continue };
            let link = paths.state_dir.join(name);
            let result =
                if link == *socket { remove_link(&link) } else { create_link(&link, socket) };
            match result {
                Ok(()) if link != *socket => socket_links.push((link, socket.clone())),
                Ok(()) => {}
                Err(problem) => {
                    let link = link.display();
                    tracing::warn!(%link, %problem, "could not create the socket link");
                }
            }
        }
        Self(socket_links)
    }
}

impl Drop for SocketLinks {
    fn drop(&mut self) {
        for (link, socket) in &self.0 {
            // Another daemon's link, or a missing one, is left alone.
            if fs::read_link(link).is_ok_and(|target| target == *socket) {
                let _ = fs::remove_file(link);
            }
        }
    }
}

fn create_link(link: &Path, socket: &Path) -> io::Result<()> {
    remove_link(link)?;
    match fs::symlink_metadata(link) {
        // A stale socket: this daemon holds the lock.
        Ok(found) if found.file_type().is_socket() => fs::remove_file(link)?,
        Ok(_) => return Err(io::Error::other("it is not a socket; move it away")),
        Err(_) => {}
    }
    symlink(socket, link)
}

/// Removes a symlink. Any other file stays.
pub(crate) fn remove_link(link: &Path) -> io::Result<()> {
    match fs::symlink_metadata(link) {
        Ok(found) if found.is_symlink() => fs::remove_file(link),
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
    fn link_to_a_socket_elsewhere_is_removed_with_the_daemon() {
        let root = tempfile::tempdir().unwrap();
        let paths = paths(root.path(), Some("/run/somewhere"));
        let link = root.path().join("state/xy/xy-mcp.sock");
        symlink("/an/old/one", &link).unwrap();
        let socket_links = SocketLinks::create(&paths);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/run/somewhere/xy-mcp.sock"));
        drop(socket_links);
        assert!(fs::symlink_metadata(&link).is_err());
    }

    #[test]
    fn link_replaces_a_stale_socket_but_no_file() {
        let root = tempfile::tempdir().unwrap();
        let paths = paths(root.path(), Some("/run/somewhere"));
        let [control, mcp] = ["xy.sock", "xy-mcp.sock"].map(|it| paths.state_dir.join(it));
        drop(std::os::unix::net::UnixListener::bind(&control).unwrap());
        fs::write(&mcp, "precious").unwrap();
        let _socket_links = SocketLinks::create(&paths);
        assert_eq!(fs::read_link(&control).unwrap(), paths.control_socket);
        assert_eq!(fs::read_to_string(&mcp).unwrap(), "precious");
    }

    #[test]
    fn stale_link_is_removed_when_the_socket_is_in_the_state_folder() {
        let root = tempfile::tempdir().unwrap();
        let paths = paths(root.path(), None);
        symlink("/an/old/one", &paths.control_socket).unwrap();
        drop(SocketLinks::create(&paths));
        assert!(fs::symlink_metadata(&paths.control_socket).is_err());
    }
}
