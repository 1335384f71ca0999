//! The content of a log file before this daemon, for `logs` after a restart.
//!
//! The end of the history is recorded once, when the daemon starts. The file may be rotated
//! afterwards, so it is found again by its inode.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use xy_shim::wire::LogPosition;

use super::{FILE_GENERATIONS, Line};
use xy_config::trust::open as open_file;

/// Maximum bytes of history that are read.
const MAX_HISTORY_BYTES: u64 = 256 * 1024;

/// The end of a log file when the daemon started.
#[derive(Debug)]
pub struct History {
    file: PathBuf,
    device: u64,
    inode: u64,
    length: u64,
}

impl History {
    /// Records where the log at `file` ends now. Returns `None` if it is missing or empty.
    pub fn note(file: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(file).ok()?;
        (metadata.len() > 0).then(|| Self {
            file: file.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
        })
    }

    /// Returns the history up to a position that the shim has recorded.
    pub(super) fn at(file: &Path, position: LogPosition) -> Self {
        let LogPosition { device, inode, bytes: length, .. } = position;
        Self { file: file.to_owned(), device, inode, length }
    }

    /// Returns the last `count` lines, oldest first; none if the file cannot be read any more.
    pub fn last_lines(&self, count: usize) -> Vec<Line> {
        let Some(text) = self.open().and_then(|mut file| self.read_end(&mut file).ok()) else {
            return Vec::new();
        };
        let lines: Vec<Line> = text.split(|&byte| byte == b'\n').filter_map(parse).collect();
        lines[lines.len().saturating_sub(count)..].to_vec()
    }

    /// Opens the file, wherever rotation has moved it.
    fn open(&self) -> Option<File> {
        let rotated = (1..=FILE_GENERATIONS).map(|n| {
            let mut path = self.file.clone().into_os_string();
            path.push(format!(".{n}"));
            PathBuf::from(path)
        });
        std::iter::once(self.file.clone())
            .chain(rotated)
            .filter_map(|path| open_file(&path).ok())
            .find(|file| file.metadata().is_ok_and(|metadata| self.is_same_file(&metadata)))
    }

    fn is_same_file(&self, metadata: &Metadata) -> bool {
        (metadata.dev(), metadata.ino()) == (self.device, self.inode)
            && metadata.len() >= self.length
    }

    fn read_end(&self, file: &mut File) -> io::Result<Vec<u8>> {
        let start = self.length.saturating_sub(MAX_HISTORY_BYTES);
        file.seek(SeekFrom::Start(start))?;
        let mut text = Vec::new();
        file.take(self.length - start).read_to_end(&mut text)?;
        if start > 0 {
            // The first line is most likely incomplete.
            let first_whole = text.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            text.drain(..first_whole);
        }
        Ok(text)
    }
}

/// Parses a line of a log file. Returns `None` if it is no output of the server.
fn parse(line: &[u8]) -> Option<Line> {
    let tags = [
        (b"[out] ".as_slice(), false, false),
        (b"[err] ", true, false),
        (b"[out+] ", false, true),
        (b"[err+] ", true, true),
    ];
    tags.into_iter().find_map(|(tag, is_stderr, continued)| {
        let bytes = line.strip_prefix(tag)?.to_vec();
        Some(Line { seq: None, unix_millis: None, is_stderr, continued, bytes })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(|line| String::from_utf8_lossy(&line.bytes).into_owned()).collect()
    }

    #[test]
    fn last_lines_are_returned_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.log");
        std::fs::write(&file, "[out] one\n[err] two\n[xy] not the server's\n[err+] three\n")
            .unwrap();
        let lines = History::note(&file).unwrap().last_lines(2);
        assert_eq!(texts(&lines), ["two", "three"]);
        assert!(lines[0].is_stderr && lines[1].continued);
    }

    #[test]
    fn later_lines_are_no_history_after_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.log");
        std::fs::write(&file, "[out] old\n").unwrap();
        let history = History::note(&file).unwrap();
        std::fs::OpenOptions::new()
            .append(true)
            .open(&file)
            .and_then(|mut file| io::Write::write_all(&mut file, b"[out] new\n"))
            .unwrap();
        std::fs::rename(&file, folder.path().join("a.log.1")).unwrap();
        std::fs::write(&file, "[out] newer\n").unwrap();
        assert_eq!(texts(&history.last_lines(10)), ["old"]);
    }

    #[test]
    fn truncated_or_deleted_log_has_no_history() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.log");
        std::fs::write(&file, "[out] old\n").unwrap();
        let history = History::note(&file).unwrap();
        std::fs::write(&file, "").unwrap();
        assert!(history.last_lines(10).is_empty());
        std::fs::remove_file(&file).unwrap();
        assert!(history.last_lines(10).is_empty());
    }

    #[test]
    fn long_file_is_read_from_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.log");
        let lines: Vec<_> = (0..100_000).map(|n| format!("[out] line {n:06}\n")).collect();
        std::fs::write(&file, lines.concat()).unwrap();
        let lines = History::note(&file).unwrap().last_lines(usize::MAX);
        assert!(lines.len() < 20_000);
        assert!(texts(&lines).iter().all(|line| line.len() == "line 000000".len()));
        assert_eq!(texts(&lines).last().unwrap(), "line 099999");
    }
}
