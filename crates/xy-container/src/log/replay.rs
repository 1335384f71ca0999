//! Replay of the last ledger entry into the log's file. A daemon may be killed between the two
//! writes, or in the middle of a line, so the missing lines are written now.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio::time::Instant;
use xy_config::trust::{open as open_file, open_own};
use xy_shim::disk_log::{DiskLog, put_line};
use xy_shim::wire::{LogOrder, LogPosition, records};

use super::ledger::Entry;

/// The content of the file after the position where it ended before the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FileTail {
    /// The file is gone, or was truncated: nothing is known.
    Gone,
    /// It still is the current file of the log.
    Here(Vec<u8>),
    /// It was full, and the next file has begun.
    Full { here: Vec<u8>, next: Vec<u8> },
}

/// A decision on how to complete a log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Replay {
    /// Bytes at the end of the file that are a partial line, and are cut off.
    half: usize,
    /// Lines that are present. The others are written.
    there: usize,
}

/// Decides how `lines` get into the file, once each. Pure.
fn decide(lines: &[u8], found: &FileTail) -> Option<Replay> {
    let (there, last) = match found {
        FileTail::Gone => return None,
        FileTail::Here(here) => (here.clone(), here.as_slice()),
        FileTail::Full { here, next } => ([here.as_slice(), next].concat(), next.as_slice()),
    };
    // Other output there was written by another program.
    if there.len() >= lines.len() || !lines.starts_with(&there) {
        return None;
    }
    let half = there.len() - whole(&there);
    let there = memchr::memchr_iter(b'\n', &there).count();
    // Only an interrupted write leaves a partial line, and then the next file has not begun.
    (half <= last.len()).then_some(Replay { half, there })
}

/// Returns the length of the whole lines. Pure.
fn whole(bytes: &[u8]) -> usize {
    memchr::memrchr(b'\n', bytes).map_or(0, |newline| newline + 1)
}

/// Writes the lines of the last entry that are missing in the file.
pub(super) fn apply(order: &LogOrder, last: &Entry) {
    let Some(before) = last.before else { return };
    let mut lines = Vec::new();
    for record in records(&last.records) {
        put_line(&mut lines, record.flags, record.line);
    }
    let file = Path::new(&order.file);
    let Some(replay) = decide(&lines, &read_tail(file, before, lines.len())) else { return };
    if replay.half > 0
        && let Err(error) = cut(file, replay.half)
    {
        tracing::warn!(file = order.file, %error, "a partial line remains in the log");
    }
    let now = Instant::now().into_std();
    let mut disk = DiskLog::open(order, now);
    for record in records(&last.records).skip(replay.there) {
        disk.put(record.flags, record.line, now);
    }
    disk.finish(now);
    if let Some(problem) = disk.problem() {
        tracing::warn!("log lines lost: {problem}");
    }
}

/// Reads the file after the position `before`, up to `most` bytes.
fn read_tail(file: &Path, before: LogPosition, most: usize) -> FileTail {
    let older = PathBuf::from(format!("{}.1", file.display()));
    let read = |path: &Path, from: u64| read(path, from, most);
    if is_at(file, before) {
        read(file, before.bytes).map_or(FileTail::Gone, FileTail::Here)
    } else if is_at(&older, before) {
        let next = match read(file, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            next => next,
        };
        match (read(&older, before.bytes), next) {
            (Ok(here), Ok(next)) => FileTail::Full { here, next },
            _ => FileTail::Gone,
        }
    } else {
        FileTail::Gone
    }
}

/// Returns true if this is the file of `before`, with everything it contained then.
fn is_at(path: &Path, before: LogPosition) -> bool {
    std::fs::metadata(path).is_ok_and(|it| {
        (it.dev(), it.ino()) == (before.device, before.inode) && it.len() >= before.bytes
    })
}

fn read(path: &Path, from: u64, most: usize) -> io::Result<Vec<u8>> {
    let mut file = open_file(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Cuts bytes off the end of a file.
fn cut(path: &Path, bytes: usize) -> io::Result<()> {
    let file = open_own(File::options().write(true), path)?;
    let length = file.metadata()?.len();
    file.set_len(length.saturating_sub(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_writes_only_missing_lines() {
        let lines = b"[err] one\n[out] two\n[err+] three\n";
        let here = |it: &[u8]| FileTail::Here(it.to_vec());
        let full =
            |here: &[u8], next: &[u8]| FileTail::Full { here: here.to_vec(), next: next.to_vec() };
        let replay = |half, there| Some(Replay { half, there });
        let table = [
            ("nothing yet", here(b""), replay(0, 0)),
            ("half of the first", here(b"[err] o"), replay(7, 0)),
            ("the first", here(b"[err] one\n"), replay(0, 1)),
            ("half of the second", here(b"[err] one\n["), replay(1, 1)),
            ("all but the last byte", here(&lines[..lines.len() - 1]), replay(12, 2)),
            ("all", here(lines), None),
            ("all, and more", here(b"[err] one\n[out] two\n[err+] three\n[out] x\n"), None),
            ("something else", here(b"[xy] 1 line was not written: x\n"), None),
            ("a new file is to begin", full(b"", b""), replay(0, 0)),
            ("it was full before", full(b"", b"[err] one\n[out]"), replay(5, 1)),
            ("it is full since", full(b"[err] one\n", b""), replay(0, 1)),
            ("some in each", full(b"[err] one\n", b"[out] two\n[e"), replay(2, 2)),
            ("all, in both", full(b"[err] one\n", &lines[10..]), None),
            ("half a line that cannot be ours", full(b"[err] on", b""), None),
            ("it is gone", FileTail::Gone, None),
        ];
        for (name, found, expected) in table {
            assert_eq!(decide(lines, &found), expected, "{name}");
        }
    }
}
