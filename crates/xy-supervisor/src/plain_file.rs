//! Opening a file that somebody may have replaced by something else.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading. A pipe in its place is an error and never waited for.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let no_waiting = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(no_waiting).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::other("it is not a regular file"))
}
