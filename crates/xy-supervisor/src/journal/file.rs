//! The journal on disk: two files, each bounded. A line that was torn (its writer was killed,
//! the disk was full) is one line that cannot be read; nothing around it is lost.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::entry::Entry;
use crate::plain_file::open_own;
use crate::whole_file::read_bounded;

/// No file of the journal grows larger; the older of the two is as large at most.
pub const MAX_FILE: u64 = 1024 * 1024;

/// Where the older entries are.
pub(super) fn older(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Appends whole lines. They do not wait for the platter: a killed daemon loses nothing, a
/// machine without power the last few. After an error the file is as it was, if that can be.
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
        let _ = out.set_len(length); // What is left of it is a torn line, and dealt with as such.
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

/// All entries on disk, oldest first, and what kept some from being read. A line that is none
/// of ours is left out.
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
            Err(error) => problem = Some(format!("{} cannot be read: {error}", file.display())),
        }
    }
    (entries, problem)
}
