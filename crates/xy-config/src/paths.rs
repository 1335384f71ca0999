//! The paths of xy's files: the XDG folders, on Linux and macOS alike.
//!
//! This module neither creates nor reads files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Maximum length of a socket path: `sun_path` without its final zero.
pub const MAX_SOCKET_PATH: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// All files and folders of xy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The configuration folder, which users write.
    pub config_dir: PathBuf,
    /// The folder with one file per server.
    pub servers_dir: PathBuf,
    /// The folder with one file per profile.
    pub profiles_dir: PathBuf,
    /// The daemon's own settings, `xy.kdl`.
    pub daemon_file: PathBuf,
    /// Files of MCP clients whose servers are read in place. Empty unless the user names some.
    pub mcp_json: Vec<PathBuf>,
    /// The state folder, which xy writes.
    pub state_dir: PathBuf,
    /// The folder with the output of servers.
    pub logs_dir: PathBuf,
    /// The folder with a lock and a socket for each shim.
    pub shims_dir: PathBuf,
    /// The control socket of a daemon with this environment. A running daemon may have had another
    /// environment, so clients use [`Paths::control_socket_candidates`].
    pub control_socket: PathBuf,
    /// The socket of such a daemon for MCP clients of this machine. Clients use
    /// [`Paths::mcp_socket_candidates`].
    pub mcp_socket: PathBuf,
    /// The lock file; its holder is the daemon.
    pub lock_file: PathBuf,
    /// The file with the desired state of each server.
    pub desired_state_file: PathBuf,
    /// The log of a detached daemon.
    pub daemon_log: PathBuf,
    /// The file with the token of HTTP clients.
    pub token_file: PathBuf,
    /// The file with the token of HTTP clients that may manage servers.
    pub manage_token_file: PathBuf,
    /// The file with the digests of named tokens.
    pub tokens_file: PathBuf,
    /// The file with the key that signs state which clients carry from one daemon to the next.
    pub state_key_file: PathBuf,
    /// The file with the sessions of HTTP clients, for the next daemon.
    pub http_sessions_file: PathBuf,
    /// The folder with the latest manifest of each server.
    pub manifests_dir: PathBuf,
    /// The file with the servers that were added while a daemon ran.
    pub runtime_servers_file: PathBuf,
    /// The file with the last good texts of `xy.kdl` and of profiles.
    pub last_good_file: PathBuf,
    /// The journal of server events; older entries are in files beside it.
    pub events_file: PathBuf,
    /// The environment variable that decides where the sockets are.
    socket_variable: &'static str,
}

/// The reason why the paths cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// There is no home folder, which all paths need.
    #[error("there is no home folder: set HOME to an absolute path")]
    NoHome,
    /// The socket path is longer than the system allows.
    #[error(
        "the socket path `{path}` is {length} bytes long, but this system allows {limit}: \
         set {variable} to a shorter folder"
    )]
    SocketTooLong {
        /// The path of the socket.
        path: String,
        /// Its length in bytes.
        length: usize,
        /// The maximum length.
        limit: usize,
        /// The variable to change.
        variable: &'static str,
    },
}

impl Paths {
    /// Returns the paths for the environment of this process.
    pub fn from_env() -> Result<Self, PathError> {
        let home = etcetera::home_dir().map_err(|_| PathError::NoHome)?;
        Self::resolve(&home, |name| std::env::var_os(name))
    }

    /// Returns the paths for a home folder and an environment.
    ///
    /// A variable that is empty or not absolute counts as unset, as the XDG specification requires.
    pub fn resolve(
        home: &Path,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, PathError> {
        if !home.is_absolute() {
            return Err(PathError::NoHome);
        }
        let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let config_dir =
            folder("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")).join("xy");
        let state_home = folder("XDG_STATE_HOME");
        let (socket_dir, socket_variable) = match (folder("XDG_RUNTIME_DIR"), &state_home) {
            (Some(runtime), _) => (Some(runtime), "XDG_RUNTIME_DIR"),
            (None, Some(_)) => (None, "XDG_RUNTIME_DIR or XDG_STATE_HOME"),
            (None, None) => (None, "XDG_RUNTIME_DIR, XDG_STATE_HOME or HOME"),
        };
        let state_dir = state_home.unwrap_or_else(|| home.join(".local/state")).join("xy");
        let socket_dir = socket_dir.unwrap_or_else(|| state_dir.clone());
        Ok(Self {
            servers_dir: config_dir.join("servers"),
            profiles_dir: config_dir.join("profiles"),
            daemon_file: config_dir.join("xy.kdl"),
            config_dir,
            mcp_json: Vec::new(),
            logs_dir: state_dir.join("logs"),
            shims_dir: state_dir.join("shims"),
            control_socket: socket_dir.join("xy.sock"),
            mcp_socket: socket_dir.join("xy-mcp.sock"),
            lock_file: state_dir.join("xy.pid"),
            desired_state_file: state_dir.join("wishes.json"),
            daemon_log: state_dir.join("daemon.log"),
            token_file: state_dir.join("token"),
            manage_token_file: state_dir.join("manage-token"),
            tokens_file: state_dir.join("tokens.json"),
            state_key_file: state_dir.join("state-key"),
            http_sessions_file: state_dir.join("http-sessions"),
            manifests_dir: state_dir.join("manifests"),
            runtime_servers_file: state_dir.join("added.json"),
            last_good_file: state_dir.join("last-good.json"),
            events_file: state_dir.join("events.jsonl"),
            state_dir,
            socket_variable,
        })
    }

    /// Returns the paths at which clients look for the control socket, in this order.
    ///
    /// The state folder holds the socket of its daemon, or a link to it, whatever `XDG_RUNTIME_DIR`
    /// the daemon had. The runtime folder only helps if that link is missing. The default state
    /// folder is not in the list if `XDG_STATE_HOME` names another: its daemon is a separate one.
    pub fn control_socket_candidates(&self) -> [PathBuf; 2] {
        self.socket_candidates(&self.control_socket)
    }

    /// Returns the paths at which clients look for the gateway's socket, in the order of
    /// [`Paths::control_socket_candidates`].
    pub fn mcp_socket_candidates(&self) -> [PathBuf; 2] {
        self.socket_candidates(&self.mcp_socket)
    }

    fn socket_candidates(&self, socket: &Path) -> [PathBuf; 2] {
        let name = socket.file_name().unwrap_or_default();
        [self.state_dir.join(name), socket.to_owned()]
    }

    /// Returns true if a file is in the folder of server files, where xy may change it.
    pub fn is_server_file(&self, file: &Path) -> bool {
        let is_kdl = file.extension().is_some_and(|it| it == "kdl");
        is_kdl && file.parent() == Some(&self.servers_dir)
    }

    /// Returns these paths with `mcp_json` replaced.
    #[must_use]
    pub fn with_mcp_json(self, mcp_json: Vec<PathBuf>) -> Self {
        Self { mcp_json, ..self }
    }

    /// Returns an error if a socket path is too long to bind.
    pub fn check_socket(&self) -> Result<(), PathError> {
        for socket in [&self.control_socket, &self.mcp_socket] {
            let length = socket.as_os_str().len();
            if length > MAX_SOCKET_PATH {
                return Err(PathError::SocketTooLong {
                    path: socket.display().to_string(),
                    length,
                    limit: MAX_SOCKET_PATH,
                    variable: self.socket_variable,
                });
            }
        }
        Ok(())
    }

    /// Returns the variable that moves the sockets to another folder.
    pub fn socket_variable(&self) -> &'static str {
        self.socket_variable
    }

    /// Returns a path as reports show it: relative to the configuration folder if it is inside.
    pub fn shown(&self, path: &Path) -> String {
        let inside = path.strip_prefix(&self.config_dir).ok();
        let shorter = inside.filter(|rest| !rest.as_os_str().is_empty()).unwrap_or(path);
        shorter.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(variables: &[(&str, &str)]) -> Paths {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        };
        Paths::resolve(Path::new("/home/user"), variable).unwrap()
    }

    #[test]
    fn without_variables_everything_is_under_home() {
        let paths = resolve(&[]);
        assert_eq!(paths.servers_dir, Path::new("/home/user/.config/xy/servers"));
        assert_eq!(paths.daemon_file, Path::new("/home/user/.config/xy/xy.kdl"));
        assert_eq!(paths.control_socket, Path::new("/home/user/.local/state/xy/xy.sock"));
        assert_eq!(paths.lock_file, Path::new("/home/user/.local/state/xy/xy.pid"));
        assert_eq!(paths.logs_dir, Path::new("/home/user/.local/state/xy/logs"));
        assert_eq!(paths.desired_state_file, Path::new("/home/user/.local/state/xy/wishes.json"));
        assert_eq!(paths.daemon_log, Path::new("/home/user/.local/state/xy/daemon.log"));
        assert_eq!(paths.mcp_socket, Path::new("/home/user/.local/state/xy/xy-mcp.sock"));
        assert_eq!(paths.token_file, Path::new("/home/user/.local/state/xy/token"));
        assert_eq!(paths.manifests_dir, Path::new("/home/user/.local/state/xy/manifests"));
        assert_eq!(paths.runtime_servers_file, Path::new("/home/user/.local/state/xy/added.json"));
        assert_eq!(paths.events_file, Path::new("/home/user/.local/state/xy/events.jsonl"));
    }

    #[test]
    fn variables_move_their_folder_only() {
        let paths = resolve(&[
            ("XDG_CONFIG_HOME", "/c"),
            ("XDG_STATE_HOME", "/s"),
            ("XDG_RUNTIME_DIR", "/r"),
        ]);
        assert_eq!(paths.servers_dir, Path::new("/c/xy/servers"));
        assert_eq!(paths.state_dir, Path::new("/s/xy"));
        assert_eq!(paths.control_socket, Path::new("/r/xy.sock"));
        assert_eq!(paths.mcp_socket, Path::new("/r/xy-mcp.sock"));
    }

    #[test]
    fn clients_look_in_the_state_folder_first() {
        let with = resolve(&[("XDG_STATE_HOME", "/s"), ("XDG_RUNTIME_DIR", "/r")]);
        assert_eq!(
            with.control_socket_candidates(),
            ["/s/xy/xy.sock", "/r/xy.sock"].map(PathBuf::from)
        );
        assert_eq!(
            with.mcp_socket_candidates(),
            ["/s/xy/xy-mcp.sock", "/r/xy-mcp.sock"].map(PathBuf::from)
        );
        let without = resolve(&[("XDG_STATE_HOME", "/s")]);
        assert_eq!(without.control_socket_candidates()[0], with.control_socket_candidates()[0]);
    }

    #[test]
    fn empty_and_relative_variables_count_as_unset() {
        for value in ["", "relative", "./x", "~/x"] {
            let paths = resolve(&[
                ("XDG_CONFIG_HOME", value),
                ("XDG_STATE_HOME", value),
                ("XDG_RUNTIME_DIR", value),
            ]);
            assert_eq!(paths, resolve(&[]), "{value:?}");
        }
    }

    #[test]
    fn relative_home_is_refused() {
        assert_eq!(Paths::resolve(Path::new(""), |_| None), Err(PathError::NoHome));
    }

    #[test]
    fn socket_path_longer_than_the_system_allows_is_refused() {
        let runtime = |length: usize| format!("/{}", "r".repeat(length - "//xy-mcp.sock".len()));
        let fits = resolve(&[("XDG_RUNTIME_DIR", &runtime(MAX_SOCKET_PATH))]);
        assert_eq!(fits.check_socket(), Ok(()));
        let too_long = resolve(&[("XDG_RUNTIME_DIR", &runtime(MAX_SOCKET_PATH + 1))]);
        let error = too_long.check_socket().unwrap_err().to_string();
        assert!(error.contains("XDG_RUNTIME_DIR") && error.contains("/xy-mcp.sock"), "{error}");
        assert!(error.contains(&(MAX_SOCKET_PATH + 1).to_string()), "{error}");
        assert!(error.contains(&MAX_SOCKET_PATH.to_string()), "{error}");
    }

    #[test]
    fn error_names_the_variable_to_change() {
        let long = format!("/{}", "s".repeat(200));
        let error = resolve(&[("XDG_STATE_HOME", &long)]).check_socket().unwrap_err().to_string();
        assert!(
            error.ends_with("set XDG_RUNTIME_DIR or XDG_STATE_HOME to a shorter folder"),
            "{error}"
        );
    }

    #[test]
    fn files_are_shown_relative_to_the_configuration_folder() {
        let paths = resolve(&[]);
        assert_eq!(paths.shown(&paths.servers_dir.join("a.kdl")), "servers/a.kdl");
        assert_eq!(paths.shown(Path::new("/etc/a.kdl")), "/etc/a.kdl");
        assert_eq!(paths.shown(&paths.config_dir), "/home/user/.config/xy");
    }
}
