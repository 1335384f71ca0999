//! What operators want, kept across daemon restarts: which servers stay down.
//!
//! The file is written whole (temporary file, fsync, rename). A damaged one is put
//! aside with a warning, never trusted and never deleted.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xy_protocol::server::ServerName;

use crate::whole_file::{put_aside, read_bounded, write_whole};

const FORMAT: u32 = 1;

/// No wishes are longer than this; of a larger file only so much is read, and it is damaged.
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
    /// Reads the file. A damaged one is put aside and told; one that cannot be read at all
    /// is an error: nobody may be started whom an operator stopped.
    pub fn read(file: &Path) -> io::Result<(Self, Option<String>)> {
        let text = match read_bounded(file, MAX_FILE) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Self::default(), None));
            }
            Err(error) => return Err(error),
        };
        Ok(match serde_json::from_slice::<Stored>(&text) {
            Ok(stored) if stored.format == FORMAT => (Self { stopped: stored.stopped }, None),
            Ok(stored) => damaged(file, &format!("format {} is unknown", stored.format)),
            Err(error) => damaged(file, &error.to_string()),
        })
    }

    /// Writes the file, whole or not at all.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let stored = Stored { format: FORMAT, stopped: self.stopped.clone() };
        let mut text = serde_json::to_vec_pretty(&stored)?;
        text.push(b'\n');
        write_whole(file, &text)
    }
}

fn damaged(file: &Path, problem: &str) -> (Wishes, Option<String>) {
    (Wishes::default(), Some(put_aside(file, problem)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn wishes(names: &[&str]) -> Wishes {
        Wishes { stopped: names.iter().map(|name| ServerName::new(name).unwrap()).collect() }
    }

    fn make_pipe(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn wishes_survive_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        wishes(&["a", "b"]).write(&file).unwrap();
        assert_eq!(Wishes::read(&file).unwrap(), (wishes(&["a", "b"]), None));
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file is left");
    }

    #[test]
    fn the_file_of_the_first_release_is_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        fs::write(&file, r#"{"format":1,"stopped":["github"]}"#).unwrap();
        assert_eq!(Wishes::read(&file).unwrap(), (wishes(&["github"]), None));
    }

    #[test]
    fn no_file_means_no_wishes() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Wishes::read(&folder.path().join("x")).unwrap(), (Wishes::default(), None));
    }

    #[test]
    fn a_damaged_file_is_put_aside_and_told() {
        for text in
            ["", "{", "[]", r#"{"format":9,"stopped":[]}"#, r#"{"format":1,"stopped":["__"]}"#]
        {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("wishes.json");
            fs::write(&file, text).unwrap();
            let (read, told) = Wishes::read(&file).unwrap();
            assert_eq!(read, Wishes::default());
            assert!(told.unwrap().contains("wishes.json.damaged"));
            assert_eq!(
                fs::read_to_string(folder.path().join("wishes.json.damaged")).unwrap(),
                text
            );
        }
    }

    #[test]
    fn one_damaged_file_does_not_replace_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        for text in ["first", "second"] {
            fs::write(&file, text).unwrap();
            Wishes::read(&file).unwrap();
        }
        let kept = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(kept("wishes.json.damaged"), "first");
        assert_eq!(kept("wishes.json.damaged-2"), "second");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        fs::create_dir(&file).unwrap();
        assert!(Wishes::read(&file).is_err());
        fs::remove_dir(&file).unwrap();
        make_pipe(&file);
        assert!(Wishes::read(&file).is_err(), "a pipe is not waited for");
        assert!(file.exists());
    }

    #[test]
    fn a_pipe_in_the_way_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        let in_the_way = folder.path().join("wishes.json.new");
        make_pipe(&in_the_way);
        wishes(&["a"]).write(&file).unwrap();
        assert_eq!(Wishes::read(&file).unwrap().0, wishes(&["a"]));
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        wishes(&["a"]).write(&file).unwrap();
        fs::create_dir(folder.path().join("wishes.json.new")).unwrap();
        assert!(wishes(&["b"]).write(&file).is_err());
        assert_eq!(Wishes::read(&file).unwrap().0, wishes(&["a"]));
    }
}
