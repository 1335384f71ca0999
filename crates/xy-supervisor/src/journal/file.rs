//! The journal on disk: two files of bounded size. A torn line, left by a killed writer or a full
//! disk, is one unreadable line; the lines around it stay readable.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::entry::Entry;
use xy_config::atomic_file::read_bounded;
use xy_config::trust::open_own;

/// Maximum size of each of the two files.
pub const MAX_FILE: u64 = 1024 * 1024;

/// Returns the file of the older entries.
pub(super) fn older(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Appends whole lines without an fsync: a killed daemon loses nothing, a power failure the last
/// few. After an error the file is truncated to its old length, if possible.
pub(super) fn append(file: &Path, lines: &[u8]) -> io::Result<()> {
    let mut out = open(file)?;
    let mut length = out.metadata()?.len();
    if length > 0 && length + lines.len() as u64 + 1 > MAX_FILE {
        fs::rename(file, older(file))?;
        out = open(file)?;
        length = out.metadata()?.len();
    }
    let written = end_torn_line(&mut out, length).and_then(|()| out.write_all(lines));
    if written.is_err() {
        let _ = out.set_len(length); // Otherwise a torn line stays, which readers skip.
    }
    written
}

fn open(file: &Path) -> io::Result<File> {
    open_own(File::options().read(true).append(true).create(true).mode(0o600), file)
}

fn end_torn_line(out: &mut File, length: u64) -> io::Result<()> {
    let mut last = [b'\n'];
    if length > 0 {
        out.read_exact_at(&mut last, length - 1)?;
    }
    if last == [b'\n'] { Ok(()) } else { out.write_all(b"\n") }
}

/// Reads all entries on disk, oldest first, and skips lines that are no entries. Also returns the
/// problem if a file could not be read.
pub(super) fn read(file: &Path) -> (Vec<Entry>, Option<String>) {
    let mut entries = Vec::new();
    let mut problem = None;
    for file in [&older(file), file] {
        match read_bounded(file, MAX_FILE) {
            Ok(text) => entries.extend(
                text.split(|byte| *byte == b'\n')
                    .filter_map(|line| serde_json::from_slice::<Entry>(line).ok()),
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => problem = Some(format!("could not read {}: {error}", file.display())),
        }
    }
    (entries, problem)
}
