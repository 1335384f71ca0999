//! Which file a server's program is, and why it is none.
//!
//! Found before the fork, so that the reason can be told apart from all the others.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::wire::{Problem, StartFault};

/// Where programs are looked for when the server has no PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The file to execute: `program` itself if it is a path, else the first on `search_path`
/// that may be executed. Relative ones are relative to `folder`.
pub(crate) fn find(
    program: &str,
    search_path: Option<OsString>,
    folder: &Path,
) -> Result<PathBuf, StartFault> {
    if program.contains('/') {
        check(&folder.join(program))?;
        return Ok(PathBuf::from(program));
    }
    let mut fault = StartFault { problem: Problem::ProgramNotFound, errno: None };
    if program.is_empty() {
        return Err(fault); // Joined to a folder it would be that folder.
    }
    let search_path = search_path.unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    for place in search_path.as_bytes().split(|byte| *byte == b':') {
        // An empty place is the folder itself, as in a shell.
        let place = if place.is_empty() { b"." } else { place };
        let candidate = Path::new(OsStr::from_bytes(place)).join(program);
        match check(&folder.join(&candidate)) {
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
        _ => Problem::System { what: format!("look at the program: {cause}") },
    };
    StartFault { problem, errno: cause.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Two folders; `tool` is executable in the second only, `broken` in neither.
    fn folders() -> (tempfile::TempDir, OsString) {
        let home = tempfile::tempdir().unwrap();
        let mut places = Vec::new();
        for (place, mode) in [("first", 0o600), ("second", 0o700)] {
            let folder = home.path().join(place);
            fs::create_dir(&folder).unwrap();
            for (name, mode) in [("tool", mode), ("broken", 0o600)] {
                fs::write(folder.join(name), "#!/bin/sh\n").unwrap();
                fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
            }
            places.push(folder);
        }
        let search_path = std::env::join_paths(&places).unwrap();
        (home, search_path)
    }

    fn problem(found: Result<PathBuf, StartFault>) -> Problem {
        found.unwrap_err().problem
    }

    #[test]
    fn a_name_is_the_first_on_the_path_that_may_be_executed() {
        let (home, search_path) = folders();
        let found = find("tool", Some(search_path), home.path()).unwrap();
        assert_eq!(found, home.path().join("second/tool"));
    }

    #[test]
    fn a_name_without_an_executable_file_is_told_apart_from_no_file() {
        let (home, search_path) = folders();
        let find = |name| find(name, Some(search_path.clone()), home.path());
        assert_eq!(problem(find("broken")), Problem::NotExecutable);
        assert_eq!(problem(find("nothing")), Problem::ProgramNotFound);
        assert_eq!(problem(find("")), Problem::ProgramNotFound);
    }

    #[test]
    fn relative_paths_and_places_are_relative_to_the_working_folder() {
        let (home, _) = folders();
        let found = find("second/tool", None, home.path()).unwrap();
        assert_eq!(found, Path::new("second/tool"));
        let found = find("tool", Some("second".into()), home.path()).unwrap();
        assert_eq!(found, Path::new("second/tool"));
        let found = find("tool", Some(OsString::new()), &home.path().join("second")).unwrap();
        assert_eq!(found, Path::new("./tool"));
    }

    #[test]
    fn a_folder_is_not_a_program() {
        let (home, _) = folders();
        assert_eq!(problem(find("./second", None, home.path())), Problem::NotExecutable);
        assert_eq!(problem(find("./second/tool/x", None, home.path())), Problem::ProgramNotFound);
    }

    #[test]
    fn without_a_path_the_usual_places_are_searched() {
        assert!(find("sh", None, Path::new("/")).is_ok());
    }
}
