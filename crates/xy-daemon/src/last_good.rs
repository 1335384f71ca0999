//! The last good texts of `xy.kdl` and of profiles, stored for a daemon that finds bad files.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xy_config::LastGood;
use xy_config::atomic_file::write_atomically;
use xy_config::stored_file::StoredFile;

/// Maximum size of the file. `xy.kdl` and 200 profiles of usual size need a hundredth of it. Larger
/// texts are not stored, and then a bad file keeps the next daemon from starting.
const MAX_FILE: u64 = 16 << 20;

#[derive(Default, Serialize, Deserialize)]
struct LastGoodFile {
    files: LastGood,
}

impl StoredFile for LastGoodFile {
    const FORMAT: u32 = 1;
    const FILE_SIZE: u64 = MAX_FILE;
    const IS_PRETTY: bool = false;
}

/// Reads the stored texts. A damaged file is moved aside, which is logged.
pub(crate) fn read(file: &Path) -> LastGood {
    let (stored, message) = LastGoodFile::read(file).unwrap_or_else(|cause| {
        let message = format!("{} cannot be read: {cause}", file.display());
        (LastGoodFile::default(), Some(message))
    });
    if let Some(message) = message {
        tracing::warn!("{message}");
    }
    stored.files
}

/// Reads the stored texts without changing any file.
pub(crate) fn read_only(file: &Path) -> LastGood {
    LastGoodFile::peek(file).unwrap_or_default().files
}

/// Stores the texts, unless they are stored already. Logs a failure.
pub(crate) fn write(file: &Path, texts: &LastGood) {
    if *texts == read(file) {
        return;
    }
    let shown = file.display();
    let written = LastGoodFile { files: texts.clone() }.to_text().and_then(|text| {
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
    use super::*;

    #[test]
    fn damaged_file_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("last-good.json");
        assert!(read(&file).is_empty());
        let texts = LastGood::from([("xy.kdl".to_owned(), "strict #true".to_owned())]);
        write(&file, &texts);
        assert_eq!(read(&file), texts);
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
