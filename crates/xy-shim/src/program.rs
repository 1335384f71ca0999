//! Finds the program file of a server, or the reason why there is none.
//!
//! The search runs before the fork, so that this reason can be distinguished from all others.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::wire::{Problem, StartFault};

/// Search path for a server without PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Returns the file to execute: `program` itself if it contains a slash, else the first executable
/// file of that name on `search_path`. Relative paths are relative to `dir`.
pub(crate) fn find(
    program: &str,
    search_path: Option<OsString>,
    dir: &Path,
) -> Result<PathBuf, StartFault> {
    if program.contains('/') {
        check(&dir.join(program))?;
        return Ok(PathBuf::from(program));
    }
    let mut fault = StartFault { problem: Problem::ProgramNotFound, errno: None };
    if program.is_empty() {
        return Err(fault); // Joined to a directory, an empty name would be that directory.
    }
    let search_path = search_path.unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    for search_dir in search_path.as_bytes().split(|byte| *byte == b':') {
        // An empty entry means the working directory, as in a shell.
        let search_dir = if search_dir.is_empty() { b"." } else { search_dir };
        let candidate = Path::new(OsStr::from_bytes(search_dir)).join(program);
        match check(&dir.join(&candidate)) {
            Ok(()) => return Ok(candidate),
            Err(other) if other.problem == Problem::NotExecutable => fault = other,
            Err(_) => {}
        }
    }
    Err(fault)
}

fn check(path: &Path) -> Result<(), StartFault> {
    let metadata = fs::metadata(path).map_err(|cause| fault_of(&cause))?;
    if !metadata.is_file() {
        let errno = Some(Errno::ACCESS.raw_os_error());
        return Err(StartFault { problem: Problem::NotExecutable, errno });
    }
    access(path, Access::EXEC_OK).map_err(|errno| fault_of(&errno.into()))
}

fn fault_of(cause: &io::Error) -> StartFault {
    let problem = match Errno::from_io_error(cause) {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => Problem::ProgramNotFound,
        Some(Errno::ACCESS | Errno::PERM | Errno::LOOP) => Problem::NotExecutable,
        _ => Problem::System { what: format!("inspect the program: {cause}") },
    };
    StartFault { problem, errno: cause.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Creates two directories; `tool` is executable only in the second, `broken` in neither.
    fn search_dirs() -> (tempfile::TempDir, OsString) {
        let temp = tempfile::tempdir().unwrap();
        let mut dirs = Vec::new();
        for (search_dir, mode) in [("first", 0o600), ("second", 0o700)] {
            let dir = temp.path().join(search_dir);
            fs::create_dir(&dir).unwrap();
            for (name, mode) in [("tool", mode), ("broken", 0o600)] {
                fs::write(dir.join(name), "#!/bin/sh\n").unwrap();
                fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
            }
            dirs.push(dir);
        }
        let search_path = std::env::join_paths(&dirs).unwrap();
        (temp, search_path)
    }

    fn problem(found: Result<PathBuf, StartFault>) -> Problem {
        found.unwrap_err().problem
    }

    #[test]
    fn first_executable_on_the_path_is_found() {
        let (temp, search_path) = search_dirs();
        let found = find("tool", Some(search_path), temp.path()).unwrap();
        assert_eq!(found, temp.path().join("second/tool"));
    }

    #[test]
    fn non_executable_differs_from_not_found() {
        let (temp, search_path) = search_dirs();
        let find = |name| find(name, Some(search_path.clone()), temp.path());
        assert_eq!(problem(find("broken")), Problem::NotExecutable);
        assert_eq!(problem(find("nothing")), Problem::ProgramNotFound);
        assert_eq!(problem(find("")), Problem::ProgramNotFound);
    }

    #[test]
    fn relative_paths_start_at_the_working_dir() {
        let (temp, _) = search_dirs();
        let found = find("second/tool", None, temp.path()).unwrap();
        assert_eq!(found, Path::new("second/tool"));
        let found = find("tool", Some("second".into()), temp.path()).unwrap();
        assert_eq!(found, Path::new("second/tool"));
        let found = find("tool", Some(OsString::new()), &temp.path().join("second")).unwrap();
        assert_eq!(found, Path::new("./tool"));
    }

    #[test]
    fn directory_is_not_a_program() {
        let (temp, _) = search_dirs();
        assert_eq!(problem(find("./second", None, temp.path())), Problem::NotExecutable);
        assert_eq!(problem(find("./second/tool/x", None, temp.path())), Problem::ProgramNotFound);
    }

    #[test]
    fn default_path_is_searched_without_path() {
        assert!(find("sh", None, Path::new("/")).is_ok());
    }
}
