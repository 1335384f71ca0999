//! A log file that only ever contains whole lines, and that rotates itself.
//!
//! Once the file has reached its size it becomes `<file>.1`, `.1` becomes `.2` and so on, and a new
//! file is begun. Its only writer rotates it by rename, between two appends. An append that fails
//! half-way is cut back to its last whole line. Nothing is buffered: the caller learns how much was
//! written, and decides.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the path is checked, in case another process has moved or deleted the file.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Open flags. Should the path be a FIFO, a missing reader must not block the shim.
const NONBLOCKING: libc::c_int = libc::O_NONBLOCK | libc::O_NOCTTY;

/// A log file with older generations beside it.
#[derive(Debug)]
pub struct RotatingFile {
    path: PathBuf,
    max_bytes: u64,
    generations: u32,
    open: Option<OpenFile>,
}

/// Lines that could not be appended.
#[derive(Debug, thiserror::Error)]
#[error("could not {step} {}: {}", path.display(), message_of(cause))]
pub struct AppendError {
    /// The step that failed.
    pub step: &'static str,
    /// The log file.
    pub path: PathBuf,
    /// Number of bytes of whole lines that were written all the same.
    pub written: usize,
    /// The cause.
    #[source]
    pub cause: io::Error,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    file_id: FileId,
    /// False for a device or a pipe, which has no size and is never rotated.
    is_regular: bool,
    size: u64,
    /// Set if a partial line is at the end and could not be cut off.
    is_torn: bool,
    check_at: Instant,
}

/// A file, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl RotatingFile {
    /// Creates a log at `path`, which is opened by the first append. A file is rotated once it has
    /// `max_bytes`, and `generations` older ones are kept.
    pub fn new(path: impl Into<PathBuf>, max_bytes: u64, generations: u32) -> Self {
        Self { path: path.into(), max_bytes, generations, open: None }
    }

    /// Appends whole lines with one write, after a rotation if the file is full.
    ///
    /// Creates the file and its folders if they are missing (0600, 0700). With no lines, it only
    /// checks that lines could be appended.
    pub fn append(&mut self, whole_lines: &[u8], now: Instant) -> Result<(), AppendError> {
        self.append_when(true, whole_lines, now)
    }

    /// Appends whole lines, and rotates before only if `may_rotate`.
    pub(crate) fn append_when(
        &mut self,
        may_rotate: bool,
        whole_lines: &[u8],
        now: Instant,
    ) -> Result<(), AppendError> {
        self.open_or_check(now).map_err(|cause| self.error("open", 0, cause))?;
        if may_rotate && !whole_lines.is_empty() && self.size() >= self.max_bytes {
            self.rotate(now).map_err(|cause| self.error("rotate", 0, cause))?;
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let appended = open.write(whole_lines);
        if appended.is_err() {
            open.check_at = now; // The next append checks the path first.
        }
        appended.map_err(|(written, cause)| self.error("write", written, cause))
    }

    /// Returns the size of the current file.
    pub(crate) fn size(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.size)
    }

    /// Returns the device, inode and size of the file; `None` if it is not open or not a regular
    /// file.
    pub(crate) fn position(&self) -> Option<(u64, u64, u64)> {
        let open = self.open.as_ref().filter(|open| open.is_regular)?;
        Some((open.file_id.device, open.file_id.inode, open.size))
    }

    /// Returns the size at which the file is rotated.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    fn open_or_check(&mut self, now: Instant) -> io::Result<()> {
        if let Some(open) = &mut self.open
            && (now < open.check_at || open.recheck_path(&self.path, now))
        {
            return Ok(());
        }
        self.open = None;
        self.open = Some(open_or_create(&self.path, now)?);
        Ok(())
    }

    fn rotate(&mut self, now: Instant) -> io::Result<()> {
        // Only the file written here may be renamed, not a new one of another process.
        if let Some(open) = &mut self.open
            && !open.recheck_path(&self.path, now)
        {
            self.open = Some(open_or_create(&self.path, now)?);
            return Ok(());
        }
        for older in (1..self.generations).rev() {
            rename_if_exists(&self.generation(older), &self.generation(older + 1))?;
        }
        if self.generations == 0 {
            std::fs::remove_file(&self.path)?;
        } else {
            rename_if_exists(&self.path, &self.generation(1))?;
        }
        self.open = None;
        self.open = Some(create_new(&self.path, now)?);
        Ok(())
    }

    fn generation(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    fn error(&self, step: &'static str, written: usize, cause: io::Error) -> AppendError {
        AppendError { step, path: self.path.clone(), written, cause }
    }
}

impl OpenFile {
    fn new(file: File, now: Instant) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let is_regular = metadata.is_file();
        Ok(Self {
            file_id: FileId::of(&metadata),
            is_regular,
            size: if is_regular { metadata.len() } else { 0 },
            is_torn: false,
            check_at: now + CHECK_INTERVAL,
            file,
        })
    }

    /// Updates the size of the file. Returns true if the path still leads to this file.
    fn recheck_path(&mut self, path: &Path, now: Instant) -> bool {
        let Ok(metadata) = std::fs::metadata(path) else { return false };
        if self.is_regular {
            self.size = metadata.len(); // Another process may have truncated it.
        }
        self.check_at = now + CHECK_INTERVAL;
        FileId::of(&metadata) == self.file_id
    }

    /// Writes all lines. Otherwise returns how many bytes of whole lines were written.
    fn write(&mut self, lines: &[u8]) -> Result<(), (usize, io::Error)> {
        if self.is_torn && !lines.is_empty() {
            self.file.write_all(b"\n").map_err(|cause| (0, cause))?;
            self.is_torn = false;
        }
        let mut written = 0;
        while written < lines.len() {
            match self.file.write(&lines[written..]) {
                Ok(0) => {
                    return Err((
                        self.truncate_partial_line(lines, written),
                        ErrorKind::WriteZero.into(),
                    ));
                }
                Ok(count) => written += count,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err((self.truncate_partial_line(lines, written), cause)),
            }
        }
        if self.is_regular {
            self.size += written as u64;
        }
        Ok(())
    }

    /// Cuts a partial line off the end. Returns how many bytes of whole lines remain.
    fn truncate_partial_line(&mut self, lines: &[u8], written: usize) -> usize {
        let whole = whole_lines(&lines[..written]);
        let torn = (written - whole) as u64;
        if torn > 0 {
            let cut = self.file.metadata().and_then(|it| self.file.set_len(it.len() - torn));
            self.is_torn = cut.is_err();
        }
        whole
    }
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Returns how many of the bytes are whole lines.
fn whole_lines(bytes: &[u8]) -> usize {
    memchr::memrchr(b'\n', bytes).map_or(0, |newline| newline + 1)
}

fn open_or_create(path: &Path, now: Instant) -> io::Result<OpenFile> {
    match open_options().create(true).open(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => {
            if let Some(dir) = path.parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            }
            OpenFile::new(open_options().create(true).open(path)?, now)
        }
        Err(cause) if cause.raw_os_error() == Some(libc::ELOOP) => open_linked_device(path, now),
        opened => OpenFile::new(opened?, now),
    }
}

fn create_new(path: &Path, now: Instant) -> io::Result<OpenFile> {
    match open_options().create_new(true).open(path) {
        // Another process has created the file, which is as good.
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => open_or_create(path, now),
        created => OpenFile::new(created?, now),
    }
}

/// Opens a device through a symbolic link, such as one to `/dev/null`. A regular file behind a link
/// could belong to another user, so it is refused.
fn open_linked_device(path: &Path, now: Instant) -> io::Result<OpenFile> {
    let mut open_options = OpenOptions::new();
    let open = OpenFile::new(open_options.append(true).custom_flags(NONBLOCKING).open(path)?, now)?;
    if open.is_regular {
        return Err(io::Error::other("it is a link to a file, which xy does not follow"));
    }
    Ok(open)
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600).custom_flags(NONBLOCKING | libc::O_NOFOLLOW);
    options
}

fn rename_if_exists(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

/// Returns the system's message without the error number.
fn message_of(cause: &io::Error) -> String {
    let mut message = cause.to_string();
    if let Some(number) = message.find(" (os error") {
        message.truncate(number);
    }
    message
}

#[cfg(test)]
mod tests;
