//! Writes the file of a server that was added permanently.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use xy_config::FileText;

/// Creates a file atomically, and never replaces one. The file may hold secrets, so only its owner
/// can read it.
pub(crate) fn create(file: &FileText) -> io::Result<()> {
    let (Some(folder), Some(name)) = (file.path.parent(), file.path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    fs::create_dir_all(folder)?;
    // Hidden files are not read as servers.
    let temporary = folder.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = (|| {
        let mut out = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        out.write_all(file.text.as_bytes())?;
        out.sync_all()?;
        fs::hard_link(&temporary, &file.path)?; // Unlike a rename, it replaces nothing.
        File::open(folder)?.sync_all()
    })();
    let _ = fs::remove_file(&temporary); // It may not exist; the result of writing matters.
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn text(path: &Path, text: &str) -> FileText {
        FileText { path: path.to_owned(), shown: "a.kdl".into(), text: text.into() }
    }

    #[test]
    fn file_is_created_privately_in_a_missing_folder() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("servers/a.kdl");
        create(&text(&path, "command \"x\"\n")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "command \"x\"\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "nothing else is left");
    }

    #[test]
    fn existing_file_is_never_replaced() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.kdl");
        fs::write(&path, "mine").unwrap();
        let refused = create(&text(&path, "other")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }
}
