//! A file that only ever gets whole lines, and makes room for itself.
//!
//! Once the file has its size it becomes `<file>.1`, `.1` becomes `.2` and so on, and
//! a new one is begun: by rename, by its only writer, between two appends. An append
//! that fails half-way is cut back to its last whole line. Nothing is kept for later:
//! the caller is told how much was written, and decides.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the path is checked: somebody may have moved or deleted the file.
const CHECKED_EVERY: Duration = Duration::from_secs(1);

/// Should the path be a fifo, no reader must make us wait.
const NO_WAITING: libc::c_int = libc::O_NONBLOCK | libc::O_NOCTTY;

/// A log file with older generations beside it.
#[derive(Debug)]
pub struct RotatingFile {
    path: PathBuf,
    max_bytes: u64,
    generations: u32,
    open: Option<Open>,
}

/// Lines that could not be appended.
#[derive(Debug, thiserror::Error)]
#[error("could not {step} {}: {}", path.display(), in_words(cause))]
pub struct NotAppended {
    /// What could not be done.
    pub step: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// How many bytes of whole lines were written all the same.
    pub written: usize,
    /// Why.
    #[source]
    pub cause: io::Error,
}

#[derive(Debug)]
struct Open {
    file: File,
    identity: Identity,
    /// A device or a pipe has no size, and is never moved away.
    is_regular: bool,
    size: u64,
    /// Half a line is at the end and could not be cut off.
    is_torn: bool,
    check_at: Instant,
}

/// Which file it is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl RotatingFile {
    /// A log at `path`, not opened before the first append: a new file is begun once
    /// one has `max_bytes`, and `generations` older ones are kept.
    pub fn new(path: impl Into<PathBuf>, max_bytes: u64, generations: u32) -> Self {
        Self { path: path.into(), max_bytes, generations, open: None }
    }

    /// Appends whole lines with one write, after making room if the file is full.
    ///
    /// The file and its folders are created if missing (0600, 0700). With no lines at
    /// all it only makes sure that lines could be appended.
    pub fn append(&mut self, whole_lines: &[u8], now: Instant) -> Result<(), NotAppended> {
        self.append_when(true, whole_lines, now)
    }

    /// Appends, and makes room before only if `may_rotate`.
    pub(crate) fn append_when(
        &mut self,
        may_rotate: bool,
        whole_lines: &[u8],
        now: Instant,
    ) -> Result<(), NotAppended> {
        self.open_or_check(now).map_err(|cause| self.failed("open", 0, cause))?;
        if may_rotate && !whole_lines.is_empty() && self.size() >= self.max_bytes {
            self.rotate(now).map_err(|cause| self.failed("rotate", 0, cause))?;
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let appended = open.write(whole_lines);
        if appended.is_err() {
            open.check_at = now; // The next try begins with a fresh look at the path.
        }
        appended.map_err(|(written, cause)| self.failed("write", written, cause))
    }

    /// The size of the current file.
    pub(crate) fn size(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.size)
    }

    /// Which file it is, and its size; `None` if it is not open, or no file.
    pub(crate) fn place(&self) -> Option<(u64, u64, u64)> {
        let open = self.open.as_ref().filter(|open| open.is_regular)?;
        Some((open.identity.device, open.identity.inode, open.size))
    }

    /// When the file is full.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    fn open_or_check(&mut self, now: Instant) -> io::Result<()> {
        if let Some(open) = &mut self.open
            && (now < open.check_at || open.is_still_at(&self.path, now))
        {
            return Ok(());
        }
        self.open = None;
        self.open = Some(open_or_create(&self.path, now)?);
        Ok(())
    }

    fn rotate(&mut self, now: Instant) -> io::Result<()> {
        // What is renamed must be what we have written, not somebody's new file.
        if let Some(open) = &mut self.open
            && !open.is_still_at(&self.path, now)
        {
            self.open = Some(open_or_create(&self.path, now)?);
            return Ok(());
        }
        for older in (1..self.generations).rev() {
            rename_if_there(&self.generation(older), &self.generation(older + 1))?;
        }
        if self.generations == 0 {
            std::fs::remove_file(&self.path)?;
        } else {
            rename_if_there(&self.path, &self.generation(1))?;
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

    fn failed(&self, step: &'static str, written: usize, cause: io::Error) -> NotAppended {
        NotAppended { step, path: self.path.clone(), written, cause }
    }
}

impl Open {
    fn new(file: File, now: Instant) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let is_regular = metadata.is_file();
        Ok(Self {
            identity: Identity::of(&metadata),
            is_regular,
            size: if is_regular { metadata.len() } else { 0 },
            is_torn: false,
            check_at: now + CHECKED_EVERY,
            file,
        })
    }

    /// Whether the path still leads to this file; learns the file's size from it.
    fn is_still_at(&mut self, path: &Path, now: Instant) -> bool {
        let Ok(metadata) = std::fs::metadata(path) else { return false };
        if self.is_regular {
            self.size = metadata.len(); // Somebody may have cut it.
        }
        self.check_at = now + CHECKED_EVERY;
        Identity::of(&metadata) == self.identity
    }

    /// Writes all, or says how many bytes of whole lines were written.
    fn write(&mut self, lines: &[u8]) -> Result<(), (usize, io::Error)> {
        if self.is_torn && !lines.is_empty() {
            self.file.write_all(b"\n").map_err(|cause| (0, cause))?;
            self.is_torn = false;
        }
        let mut written = 0;
        while written < lines.len() {
            match self.file.write(&lines[written..]) {
                Ok(0) => return Err((self.cut_back(lines, written), ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err((self.cut_back(lines, written), cause)),
            }
        }
        if self.is_regular {
            self.size += written as u64;
        }
        Ok(())
    }

    /// Takes half a line off the end; answers how many bytes of whole lines stay.
    fn cut_back(&mut self, lines: &[u8], written: usize) -> usize {
        let whole = whole_lines(&lines[..written]);
        let torn = (written - whole) as u64;
        if torn > 0 {
            let cut = self.file.metadata().and_then(|it| self.file.set_len(it.len() - torn));
            self.is_torn = cut.is_err();
        }
        whole
    }
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// How many of the bytes are whole lines.
fn whole_lines(bytes: &[u8]) -> usize {
    memchr::memrchr(b'\n', bytes).map_or(0, |newline| newline + 1)
}

fn open_or_create(path: &Path, now: Instant) -> io::Result<Open> {
    match options().create(true).open(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => {
            if let Some(folder) = path.parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            }
            Open::new(options().create(true).open(path)?, now)
        }
        Err(cause) if cause.raw_os_error() == Some(libc::ELOOP) => behind_link(path, now),
        opened => Open::new(opened?, now),
    }
}

fn create_new(path: &Path, now: Instant) -> io::Result<Open> {
    match options().create_new(true).open(path) {
        // Somebody was quicker; their file is as good.
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => open_or_create(path, now),
        created => Open::new(created?, now),
    }
}

/// Opens the device that a link leads to, such as `/dev/null`. A file behind a link could be
/// anybody's, and is refused.
fn behind_link(path: &Path, now: Instant) -> io::Result<Open> {
    let mut options = OpenOptions::new();
    let open = Open::new(options.append(true).custom_flags(NO_WAITING).open(path)?, now)?;
    if open.is_regular {
        return Err(io::Error::other("it is a link to a file, and xy writes through none"));
    }
    Ok(open)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600).custom_flags(NO_WAITING | libc::O_NOFOLLOW);
    options
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

/// The system's words without its number.
fn in_words(cause: &io::Error) -> String {
    let mut words = cause.to_string();
    if let Some(number) = words.find(" (os error") {
        words.truncate(number);
    }
    words
}

#[cfg(test)]
mod tests;
