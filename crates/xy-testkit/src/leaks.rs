//! Detection of leaks: processes, sockets and files that a test has left behind.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use crate::process::{Proc, kill_marked, marked_processes};
use crate::wait::poll;

/// Maximum time for the processes of a test to exit after their daemon.
const DIE_TIMEOUT: Duration = Duration::from_secs(3);

/// The files that xy may leave in a home for the next daemon, besides configuration.
const KEPT: [&str; 18] = [
    "state/xy/logs/",
    "state/xy/shims/",
    "state/xy/xy.pid",
    "state/xy/wishes.json",
    "state/xy/added.json",
    "state/xy/last-good.json",
    "state/xy/daemon.log",
    "state/xy/events.jsonl",
    "state/xy/events.jsonl.1",
    "state/xy/token",
    "state/xy/tokens.json",
    // The socket links that a killed daemon leaves behind.
    "state/xy/xy.sock",
    "state/xy/xy-mcp.sock",
    "state/xy/manage-token",
    "state/xy/state-key",
    "state/xy/http-sessions",
    "state/xy/manifests/",
    // The engines that have run containers; the next daemon removes leftovers there.
    "state/xy/containers/_engines.json",
];

/// Waits up to `DIE_TIMEOUT`, then kills all processes that still carry `mark`. Returns a
/// description of each.
pub(crate) fn processes(mark: &str) -> Vec<String> {
    if poll(DIE_TIMEOUT, || is_quiet(mark)).is_some() {
        return Vec::new();
    }
    let left = marked_processes(mark);
    // Kills repeatedly: a supervisor may start another process before it is killed itself.
    let _ = poll(DIE_TIMEOUT, || {
        for process in marked_processes(mark) {
            kill_marked(process.pid, mark);
        }
        is_quiet(mark)
    });
    left.iter().map(describe).collect()
}

/// Returns true if no process carries `mark`. Checks twice, as a process has no environment for a
/// moment during `exec`.
fn is_quiet(mark: &str) -> bool {
    marked_processes(mark).is_empty() && marked_processes(mark).is_empty()
}

fn describe(process: &Proc) -> String {
    let Proc { pid, cmdline, state } = process;
    if *state == 'Z' {
        return format!("process {pid} is dead but was not reaped: {cmdline}");
    }
    format!("process {pid} was still alive ({state}) and has been killed: {cmdline}")
}

/// Returns all unexpected files in `root`. `allowed` holds prefixes of paths relative to `root`.
pub(crate) fn files(root: &Path, allowed: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    walk(root, "", &mut found);
    let is_allowed = |path: &str| allowed.iter().any(|start| path.starts_with(start.as_str()));
    let mut left: Vec<String> = found
        .into_iter()
        .filter(|(path, _)| !is_allowed(path))
        .filter(|(path, is_socket)| *is_socket || !is_kept(path))
        .map(|(path, is_socket)| format!("{} {path}", if is_socket { "socket" } else { "file" }))
        .collect();
    left.sort();
    left
}

fn is_kept(path: &str) -> bool {
    let is_config = path.starts_with("config/")
        && Path::new(path).extension().is_some_and(|extension| extension == "kdl");
    let is_state = KEPT
        .iter()
        .any(|kept| if kept.ends_with('/') { path.starts_with(kept) } else { path == *kept });
    is_config || is_state
}

/// Collects the paths of all entries except folders; the `bool` is true for sockets.
fn walk(folder: &Path, prefix: &str, found: &mut Vec<(String, bool)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), &format!("{path}/"), found),
            Ok(kind) => found.push((path, kind.is_socket())),
            Err(_) => {} // The entry was removed meanwhile.
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn root_with(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir_in("/tmp").unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    #[test]
    fn files_of_next_daemon_are_allowed() {
        let root = root_with(&[
            "config/xy/xy.kdl",
            "config/xy/servers/a.kdl",
            "state/xy/xy.pid",
            "state/xy/wishes.json",
            "state/xy/added.json",
            "state/xy/logs/a.log.1",
        ]);
        assert_eq!(files(root.path(), &[]), [""; 0]);
    }

    #[test]
    fn unexpected_files_are_reported() {
        let root = root_with(&["state/xy/wishes.json.tmp", "run/x", "config/xy/servers/a.kdl~"]);
        let left = ["file config/xy/servers/a.kdl~", "file run/x", "file state/xy/wishes.json.tmp"];
        assert_eq!(files(root.path(), &[]), left);
        let allowed = ["state/xy/wishes.json.".to_owned(), "run/".to_owned()];
        assert_eq!(files(root.path(), &allowed), left[..1]);
    }

    #[test]
    fn leaked_sockets_are_named() {
        let root = root_with(&["state/xy/logs/a.log"]);
        let _listener = UnixListener::bind(root.path().join("state/xy/logs/s")).unwrap();
        assert_eq!(files(root.path(), &[]), ["socket state/xy/logs/s"]);
    }
}
