//! The last good texts of `xy.kdl` and of profiles, stored for a daemon that finds bad files.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xy_config::LastGood;
use xy_config::atomic_file::{quarantine, read_bounded, write_atomically};

const FORMAT: u32 = 1;

/// Maximum size of the file. `xy.kdl` and 200 profiles of usual size need a hundredth of it. Larger
/// texts are not stored, and then a bad file keeps the next daemon from starting.
const MAX_FILE: u64 = 16 << 20;

#[derive(Serialize, Deserialize)]
struct LastGoodFile {
    format: u32,
    files: LastGood,
}

/// Reads the stored texts. A damaged file is moved aside, which is logged.
pub(crate) fn read(file: &Path) -> LastGood {
    parse(file).unwrap_or_else(|problem| {
        match problem {
            Problem::Unreadable(cause) => {
                tracing::warn!("{} cannot be read: {cause}", file.display());
            }
            Problem::Damaged(cause) => {
                let message = quarantine(file, &cause);
                tracing::warn!("{message}");
            }
        }
        LastGood::new()
    })
}

/// Reads the stored texts without changing any file.
pub(crate) fn read_only(file: &Path) -> LastGood {
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
    match serde_json::from_slice::<LastGoodFile>(&text) {
        Ok(stored) if stored.format == FORMAT => Ok(stored.files),
        Ok(stored) => Err(Problem::Damaged(format!("format {} is unknown", stored.format))),
        Err(cause) => Err(Problem::Damaged(cause.to_string())),
    }
}

/// Stores the texts, unless they are stored already. Logs a failure.
pub(crate) fn write(file: &Path, texts: &LastGood) {
    if *texts == read(file) {
        return;
    }
    let shown = file.display();
    let stored = LastGoodFile { format: FORMAT, files: texts.clone() };
    let written = serde_json::to_vec(&stored).map_err(io::Error::from).and_then(|text| {
        if text.len() as u64 > MAX_FILE {
            std::fs::remove_file(file).or_else(|cause| match cause.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(cause),
            })?; // An outdated profile could expose more than the latest one.
            return Err(io::Error::other(format!("it would be larger than {MAX_FILE} bytes")));
        }
        write_atomically(file, &text)
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
    fn texts_are_private_and_a_damaged_file_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("last-good.json");
        assert!(read(&file).is_empty());
        let texts = LastGood::from([("xy.kdl".to_owned(), "strict #true".to_owned())]);
        write(&file, &texts);
        assert_eq!(read(&file), texts);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&file, "{").unwrap();
        assert!(read(&file).is_empty());
        assert!(folder.path().join("last-good.json.damaged").exists());
    }

    #[test]
    fn oversized_text_removes_the_outdated_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("last-good.json");
        write(&file, &LastGood::from([("xy.kdl".to_owned(), String::new())]));
        let large = "x".repeat(usize::try_from(MAX_FILE).unwrap());
        write(&file, &LastGood::from([("xy.kdl".to_owned(), large)]));
        assert!(read(&file).is_empty());
    }
}
