//! What operators want, kept across daemon restarts: which servers stay down.
//!
//! The file is written whole (temporary file, fsync, rename). A damaged one is put
//! aside with a warning, never trusted and never deleted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xy_protocol::server::ServerName;

const FORMAT: u32 = 1;

/// No wishes are longer than this; a larger file is not ours.
const MAX_FILE: u64 = 1024 * 1024;

/// The servers that operators stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// They stay down until somebody starts them.
    pub stopped: BTreeSet<ServerName>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    stopped: BTreeSet<ServerName>,
}

impl Wishes {
    /// Reads the file; what is wrong with it is told, and nobody is kept down by it.
    pub fn read(file: &Path) -> (Self, Option<String>) {
        let text = match read_bounded(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::none(),
            Err(error) => return put_aside(file, &error.to_string()),
        };
        match serde_json::from_slice::<Stored>(&text) {
            Ok(stored) if stored.format == FORMAT => (Self { stopped: stored.stopped }, None),
            Ok(stored) => put_aside(file, &format!("format {} is unknown", stored.format)),
            Err(error) => put_aside(file, &error.to_string()),
        }
    }

    fn none() -> (Self, Option<String>) {
        (Self::default(), None)
    }

    /// Writes the file, whole or not at all.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let stored = Stored { format: FORMAT, stopped: self.stopped.clone() };
        let mut text = serde_json::to_vec_pretty(&stored)?;
        text.push(b'\n');
        write_whole(file, &text)
    }
}

fn read_bounded(file: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(file)?.len() > MAX_FILE {
        return Err(io::Error::other("it is far too large"));
    }
    fs::read(file)
}

fn put_aside(file: &Path, problem: &str) -> (Wishes, Option<String>) {
    let aside = sibling(file, "damaged");
    let kept = match fs::rename(file, &aside) {
        Ok(()) => format!("it is kept as {}", aside.display()),
        Err(error) => format!("it could not be put aside: {error}"),
    };
    let told = format!("{} cannot be read: {problem}; {kept}", file.display());
    (Wishes::default(), Some(told))
}

fn sibling(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

fn write_whole(file: &Path, text: &[u8]) -> io::Result<()> {
    let temporary = sibling(file, "new");
    let written = (|| {
        let mut out =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        out.write_all(text)?;
        out.sync_all()?;
        fs::rename(&temporary, file)?;
        file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // It may not exist; the error above is the news.
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(names: &[&str]) -> Wishes {
        Wishes { stopped: names.iter().map(|name| ServerName::new(name).unwrap()).collect() }
    }

    #[test]
    fn wishes_survive_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        wishes(&["a", "b"]).write(&file).unwrap();
        assert_eq!(Wishes::read(&file), (wishes(&["a", "b"]), None));
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file is left");
    }

    #[test]
    fn the_file_of_the_first_release_is_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        fs::write(&file, r#"{"format":1,"stopped":["github"]}"#).unwrap();
        assert_eq!(Wishes::read(&file), (wishes(&["github"]), None));
    }

    #[test]
    fn no_file_means_no_wishes() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Wishes::read(&folder.path().join("x")), (Wishes::default(), None));
    }

    #[test]
    fn a_damaged_file_is_put_aside_and_told() {
        for text in
            ["", "{", "[]", r#"{"format":9,"stopped":[]}"#, r#"{"format":1,"stopped":["__"]}"#]
        {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("wishes.json");
            fs::write(&file, text).unwrap();
            let (read, told) = Wishes::read(&file);
            assert_eq!(read, Wishes::default());
            assert!(told.unwrap().contains("wishes.json.damaged"));
            assert_eq!(
                fs::read_to_string(folder.path().join("wishes.json.damaged")).unwrap(),
                text
            );
        }
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        wishes(&["a"]).write(&file).unwrap();
        fs::create_dir(folder.path().join("wishes.json.new")).unwrap();
        assert!(wishes(&["b"]).write(&file).is_err());
        assert_eq!(Wishes::read(&file).0, wishes(&["a"]));
    }
}
