//! Creation of the recording file: always new, private to its owner, never through a link.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use xy_protocol::error::{CallError, ErrorKind};

/// Creates the file. If `path` is a folder, creates a uniquely named file in it.
pub(super) fn create(path: &Path) -> Result<File, CallError> {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|it| it.is_dir());
    let path = if is_folder { path.join(new_name()) } else { path.to_path_buf() };
    // `create_new` fails for everything that exists, links included.
    let created = File::options().write(true).create_new(true).mode(0o600).open(&path);
    created.map_err(|cause| {
        let is_link = fs::symlink_metadata(&path).is_ok_and(|it| it.is_symlink());
        not_created(&path, &cause, is_link)
    })
}

/// Returns a name that differs for each start.
fn new_name() -> PathBuf {
    let started = crate::clock::now().to_string().replace(':', "-");
    format!("xy-{started}-{}.jsonl", std::process::id()).into()
}

/// Returns the error for a file that could not be created.
fn not_created(path: &Path, cause: &io::Error, is_link: bool) -> CallError {
    let name = path.display();
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder.display().to_string(),
        _ => ".".to_owned(),
    };
    let error = |kind| CallError::new(kind, format!("the session cannot be recorded to `{name}`"));
    match cause.kind() {
        io::ErrorKind::AlreadyExists if is_link => error(ErrorKind::InvalidParams)
            .cause("it is a symbolic link, and a recording is never written through one")
            .hint("name a file that does not exist yet"),
        io::ErrorKind::AlreadyExists => error(ErrorKind::InvalidParams)
            .cause("it exists, and a recording never overwrites a file")
            .hint("name a file that does not exist yet, or a folder for a new file at each start"),
        io::ErrorKind::NotFound => error(ErrorKind::InvalidParams)
            .cause(format!("there is no folder `{folder}`"))
            .hint(format!("create it with `mkdir -p {folder}`")),
        _ => error(ErrorKind::Internal)
            .cause(cause)
            .hint("name a file in a folder that you may write, with room on its disk"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn refused(path: &Path) -> String {
        let error = create(path).unwrap_err();
        format!("{}; {}; {}", error.message, error.cause.unwrap(), error.hint.unwrap())
    }

    #[test]
    fn file_is_new_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::write(&path, "kept").unwrap();
        assert!(refused(&path).contains("it exists"), "{}", refused(&path));
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        fs::create_dir(inside("folder")).unwrap();
        for target in ["nothing", "folder"] {
            let link = inside(&format!("to-{target}"));
            symlink(inside(target), &link).unwrap();
            assert!(refused(&link).contains("it is a symbolic link"), "{}", refused(&link));
        }
        assert!(!inside("nothing").exists());
        assert_eq!(fs::read_dir(inside("folder")).unwrap().count(), 0);
    }

    #[test]
    fn folder_gets_a_new_file() {
        let folder = tempfile::tempdir().unwrap();
        create(folder.path()).unwrap();
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(files.len(), 1);
        let path = files[0].path();
        assert_eq!(path.extension().unwrap(), "jsonl", "{}", path.display());
    }

    #[test]
    fn missing_and_unwritable_folders_differ() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no/such.jsonl");
        assert!(refused(&missing).contains("create it with `mkdir -p"), "{}", refused(&missing));
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = not_created(Path::new("/srv/a.jsonl"), &denied, false);
        assert_eq!(error.message, "the session cannot be recorded to `/srv/a.jsonl`");
        assert_eq!(error.cause.as_deref(), Some("permission denied"));
        let hint = "name a file in a folder that you may write, with room on its disk";
        assert_eq!(error.hint.as_deref(), Some(hint));
    }
}
