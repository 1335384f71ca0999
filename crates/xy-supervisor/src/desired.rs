//! The desired state, kept across daemon restarts: which servers operators have stopped.
//!
//! The file is written atomically. A damaged file is quarantined with a warning, never trusted
//! and never deleted.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xy_protocol::server::ServerName;

use xy_config::atomic_file::{quarantine, read_bounded, write_atomically};

const FORMAT: u32 = 1;

/// Maximum size of the file. A larger file counts as damaged.
const MAX_FILE: u64 = 1024 * 1024;

/// The servers that operators stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// The servers that stay down until an operator starts them.
    pub stopped: BTreeSet<ServerName>,
}

#[derive(Serialize, Deserialize)]
struct StoredDesiredState {
    format: u32,
    stopped: BTreeSet<ServerName>,
}

impl DesiredState {
    /// Reads the file. Quarantines a damaged file and returns a message about it. Fails if the
    /// file cannot be read at all, as a server that an operator stopped must not start.
    pub fn read(file: &Path) -> io::Result<(Self, Option<String>)> {
        let text = match read_bounded(file, MAX_FILE) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Self::default(), None));
            }
            Err(error) => return Err(error),
        };
        Ok(match serde_json::from_slice::<StoredDesiredState>(&text) {
            Ok(stored) if stored.format == FORMAT => (Self { stopped: stored.stopped }, None),
            Ok(stored) => damaged(file, &format!("format {} is unknown", stored.format)),
            Err(error) => damaged(file, &error.to_string()),
        })
    }

    /// Writes the file atomically.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let stored = StoredDesiredState { format: FORMAT, stopped: self.stopped.clone() };
        let mut text = serde_json::to_vec_pretty(&stored)?;
        text.push(b'\n');
        write_atomically(file, &text)
    }
}

fn damaged(file: &Path, problem: &str) -> (DesiredState, Option<String>) {
    (DesiredState::default(), Some(quarantine(file, problem)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn stopped(names: &[&str]) -> DesiredState {
        DesiredState { stopped: names.iter().map(|name| ServerName::new(name).unwrap()).collect() }
    }

    fn make_pipe(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn desired_state_survives_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        stopped(&["a", "b"]).write(&file).unwrap();
        assert_eq!(DesiredState::read(&file).unwrap(), (stopped(&["a", "b"]), None));
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file is left");
    }

    #[test]
    fn file_of_first_release_is_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        fs::write(&file, r#"{"format":1,"stopped":["github"]}"#).unwrap();
        assert_eq!(DesiredState::read(&file).unwrap(), (stopped(&["github"]), None));
    }

    #[test]
    fn missing_file_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            DesiredState::read(&folder.path().join("x")).unwrap(),
            (DesiredState::default(), None)
        );
    }

    #[test]
    fn damaged_file_is_quarantined_and_reported() {
        for text in
            ["", "{", "[]", r#"{"format":9,"stopped":[]}"#, r#"{"format":1,"stopped":["__"]}"#]
        {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("wishes.json");
            fs::write(&file, text).unwrap();
            let (read, message) = DesiredState::read(&file).unwrap();
            assert_eq!(read, DesiredState::default());
            assert!(message.unwrap().contains("wishes.json.damaged"));
            assert_eq!(
                fs::read_to_string(folder.path().join("wishes.json.damaged")).unwrap(),
                text
            );
        }
    }

    #[test]
    fn damaged_file_does_not_replace_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        for text in ["first", "second"] {
            fs::write(&file, text).unwrap();
            DesiredState::read(&file).unwrap();
        }
        let kept = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(kept("wishes.json.damaged"), "first");
        assert_eq!(kept("wishes.json.damaged-2"), "second");
    }

    #[test]
    fn unreadable_file_is_an_error_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        fs::create_dir(&file).unwrap();
        assert!(DesiredState::read(&file).is_err());
        fs::remove_dir(&file).unwrap();
        make_pipe(&file);
        assert!(DesiredState::read(&file).is_err(), "a pipe is not waited for");
        assert!(file.exists());
    }

    #[test]
    fn pipe_in_place_of_temporary_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        let in_the_way = folder.path().join("wishes.json.new");
        make_pipe(&in_the_way);
        stopped(&["a"]).write(&file).unwrap();
        assert_eq!(DesiredState::read(&file).unwrap().0, stopped(&["a"]));
    }

    #[test]
    fn failed_write_leaves_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wishes.json");
        stopped(&["a"]).write(&file).unwrap();
        fs::create_dir(folder.path().join("wishes.json.new")).unwrap();
        assert!(stopped(&["b"]).write(&file).is_err());
        assert_eq!(DesiredState::read(&file).unwrap().0, stopped(&["a"]));
    }
}
