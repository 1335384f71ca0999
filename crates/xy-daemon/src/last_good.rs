//! The last good texts of `xy.kdl` and of profiles, kept for a daemon that finds a bad one.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xy_config::LastGood;
use xy_supervisor::whole_file::{put_aside, read_bounded, write_whole};

const FORMAT: u32 = 1;

/// Maximum size of the file. `xy.kdl` and 200 profiles of usual size need a hundredth of it; with
/// more, nothing is kept, and a bad file keeps the next daemon from starting.
const MAX_FILE: u64 = 16 << 20;

#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    files: LastGood,
}

/// Reads the kept texts. A damaged file is put aside and told.
pub(crate) fn read(file: &Path) -> LastGood {
    parse(file).unwrap_or_else(|problem| {
        match problem {
            Problem::Unreadable(cause) => {
                tracing::warn!("{} cannot be read: {cause}", file.display());
            }
            Problem::Damaged(cause) => {
                let told = put_aside(file, &cause);
                tracing::warn!("{told}");
            }
        }
        LastGood::new()
    })
}

/// Reads the kept texts, and changes nothing.
pub(crate) fn look(file: &Path) -> LastGood {
    parse(file).unwrap_or_default()
}

enum Problem {
    Unreadable(io::Error),
    Damaged(String),
}

fn parse(file: &Path) -> Result<LastGood, Problem> {
    let text = match read_bounded(file, MAX_FILE + 1) {
        Ok(text) => text,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(LastGood::new()),
        Err(cause) => return Err(Problem::Unreadable(cause)),
    };
    match serde_json::from_slice::<Stored>(&text) {
        Ok(stored) if stored.format == FORMAT => Ok(stored.files),
        Ok(stored) => Err(Problem::Damaged(format!("format {} is unknown", stored.format))),
        Err(cause) => Err(Problem::Damaged(cause.to_string())),
    }
}

/// Keeps the texts, unless they are kept already.
pub(crate) fn keep(file: &Path, texts: &LastGood) {
    if *texts == read(file) {
        return;
    }
    let shown = file.display();
    let stored = Stored { format: FORMAT, files: texts.clone() };
    let written = serde_json::to_vec(&stored).map_err(io::Error::from).and_then(|text| {
        if text.len() as u64 > MAX_FILE {
            std::fs::remove_file(file).or_else(|cause| match cause.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(cause),
            })?; // An outdated text could show clients more than the latest one.
            return Err(io::Error::other(format!("it would be larger than {MAX_FILE} bytes")));
        }
        write_whole(file, &text)
    });
    if let Err(cause) = written {
        tracing::warn!("`{shown}`, the last good configuration, cannot be written: {cause}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn texts_are_kept_privately_and_damage_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("last-good.json");
        assert!(read(&file).is_empty());
        let texts = LastGood::from([("xy.kdl".to_owned(), "strict #true".to_owned())]);
        keep(&file, &texts);
        assert_eq!(read(&file), texts);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&file, "{").unwrap();
        assert!(read(&file).is_empty());
        assert!(folder.path().join("last-good.json.damaged").exists());
    }

    #[test]
    fn too_much_text_leaves_nothing_outdated() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("last-good.json");
        keep(&file, &LastGood::from([("xy.kdl".to_owned(), String::new())]));
        let large = "x".repeat(usize::try_from(MAX_FILE).unwrap());
        keep(&file, &LastGood::from([("xy.kdl".to_owned(), large)]));
        assert!(read(&file).is_empty());
    }
}
