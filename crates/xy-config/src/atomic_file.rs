//! Atomic writes of xy's own files (temporary file, fsync, rename), and quarantine of damaged
//! ones. A damaged file is renamed, never trusted and never deleted.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::trust::open;

/// Reads at most the first `limit` bytes of a file.
pub fn read_bounded(file: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let opened = open(file)?;
    let mut text = Vec::new();
    opened.take(limit).read_to_end(&mut text)?;
    Ok(text)
}

/// Renames a damaged file to `<file>.damaged`, or `.damaged-2` and so on. Returns a message that
/// names the problem and the new file.
pub fn quarantine(file: &Path, problem: &str) -> String {
    let names = std::iter::once("damaged".to_owned()).chain((2..).map(|n| format!("damaged-{n}")));
    let mut candidates = names.map(|ending| sibling(file, &ending));
    let aside = candidates.find(|path| !path.exists()).expect("numbers do not run out");
    let kept = match fs::rename(file, &aside) {
        Ok(()) => format!("it was moved to {}", aside.display()),
        Err(error) => format!("it could not be moved: {error}"),
    };
    format!("{} cannot be read: {problem}; {kept}", file.display())
}

fn sibling(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Writes a file completely or not at all. Only its owner can read it.
pub fn write_atomically(file: &Path, text: &[u8]) -> io::Result<()> {
    replace(file, text, true)
}

/// Writes a file completely or not at all, unless the machine dies. Only its owner can read it.
/// For state that matters after the death of a daemon only: nothing is synced to the disk.
pub fn write_unsynced(file: &Path, text: &[u8]) -> io::Result<()> {
    replace(file, text, false)
}

fn replace(file: &Path, text: &[u8], is_synced: bool) -> io::Result<()> {
    let temporary = sibling(file, "new");
    let written = (|| {
        if let Err(error) = fs::remove_file(&temporary)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut out = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        out.write_all(text)?;
        if !is_synced {
            return fs::rename(&temporary, file);
        }
        out.sync_all()?;
        fs::rename(&temporary, file)?;
        file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // May not exist; the first error is reported.
    }
    written
}
