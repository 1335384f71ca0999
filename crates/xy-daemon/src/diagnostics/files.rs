//! The state of files and folders, without their contents.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use xy_config::Paths;
use xy_protocol::control::FileState;
use xy_protocol::server::ServerName;
use xy_supervisor::logs::{FILE_GENERATIONS, log_file};

/// Returns the paths of all files and folders, by purpose.
pub(super) fn named(paths: &Paths) -> BTreeMap<String, String> {
    let all = [
        ("config_dir", &paths.config_dir),
        ("servers_dir", &paths.servers_dir),
        ("daemon_file", &paths.daemon_file),
        ("state_dir", &paths.state_dir),
        ("logs_dir", &paths.logs_dir),
        ("control_socket", &paths.control_socket),
        ("mcp_socket", &paths.mcp_socket),
        ("lock_file", &paths.lock_file),
        ("daemon_log", &paths.daemon_log),
    ];
    all.into_iter().map(|(name, path)| (name.to_owned(), path.display().to_string())).collect()
}

/// Returns the state of xy's own files, and of MCP clients' files that it reads.
pub(super) fn of_home(paths: &Paths, mcp_json: &[PathBuf]) -> Vec<FileState> {
    let all = [
        &paths.config_dir,
        &paths.servers_dir,
        &paths.daemon_file,
        &paths.state_dir,
        &paths.logs_dir,
        &paths.shims_dir,
        &paths.manifests_dir,
        &paths.control_socket,
        &paths.mcp_socket,
        &paths.lock_file,
        &paths.desired_state_file,
        &paths.runtime_servers_file,
        &paths.daemon_log,
        &paths.token_file,
        &paths.manage_token_file,
        &paths.state_key_file,
    ];
    all.into_iter().chain(mcp_json).map(|path| state_of(path)).collect()
}

/// Returns the state of a server's log, and of its existing older generations.
pub(super) fn logs_of(paths: &Paths, server: &ServerName) -> Vec<FileState> {
    let latest = log_file(&paths.logs_dir, server);
    let older = (1..=FILE_GENERATIONS).map(|it| latest.with_extension(format!("log.{it}")));
    let older = older.map(|file| state_of(&file)).filter(|it| it.kind != "missing");
    std::iter::once(state_of(&latest)).chain(older).collect()
}

fn state_of(path: &Path) -> FileState {
    let mut state = FileState {
        path: path.display().to_string(),
        kind: "missing".to_owned(),
        bytes: None,
        mode: None,
        problem: None,
    };
    match fs::symlink_metadata(path) {
        Ok(found) => {
            let kind = found.file_type();
            let word = match () {
                () if kind.is_file() => "file",
                () if kind.is_dir() => "folder",
                () if kind.is_socket() => "socket",
                () => "other",
            };
            word.clone_into(&mut state.kind);
            state.bytes = kind.is_file().then_some(found.len());
            state.mode = Some(format!("{:o}", found.mode() & 0o7777));
        }
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
        Err(cause) => state.problem = Some(cause.to_string()),
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_kind_has_a_name() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("file"), "12345").unwrap();
        fs::create_dir(at("folder")).unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let kinds =
            ["file", "folder", "link", "socket", "missing"].map(|it| state_of(&at(it)).kind);
        assert_eq!(kinds, ["file", "folder", "other", "socket", "missing"]);
        assert_eq!(state_of(&at("file")).bytes, Some(5));
        let inside = state_of(&at("file/inside"));
        assert!(inside.problem.is_some(), "{inside:?}");
    }
}
