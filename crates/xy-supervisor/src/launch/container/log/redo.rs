//! Whether the last lines that were entered in a ledger are in the log's file, and writing those
//! that are not: a daemon may be killed between the two, also in the middle of a line.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio::time::Instant;
use xy_shim::disk_log::{DiskLog, put_line};
use xy_shim::wire::{LogOrder, LogPlace, records};

use super::ledger::Entry;
use crate::plain_file::{open_file, open_own};

/// What is in the file, from where it ended before the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    /// That file is gone, or somebody has cut it: nobody can tell.
    Gone,
    /// It still is the file of the log.
    Here(Vec<u8>),
    /// It was full, and another has begun.
    Full { here: Vec<u8>, next: Vec<u8> },
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Redo {
    /// So many bytes at the end of the file are half a line, and are cut off.
    half: usize,
    /// So many lines are there. The others are written.
    there: usize,
}

/// Decides what is to be done for `lines` to be in the file, once each. Pure.
fn decide(lines: &[u8], found: &Found) -> Option<Redo> {
    let (there, last) = match found {
        Found::Gone => return None,
        Found::Here(here) => (here.clone(), here.as_slice()),
        Found::Full { here, next } => ([here.as_slice(), next].concat(), next.as_slice()),
    };
    // What is there and is none of ours was written by somebody else.
    if there.len() >= lines.len() || !lines.starts_with(&there) {
        return None;
    }
    let half = there.len() - whole(&there);
    let there = memchr::memchr_iter(b'\n', &there).count();
    // Nobody but us leaves half a line, and then there is no next file yet.
    (half <= last.len()).then_some(Redo { half, there })
}

/// How many of the bytes are whole lines. Pure.
fn whole(bytes: &[u8]) -> usize {
    memchr::memrchr(b'\n', bytes).map_or(0, |newline| newline + 1)
}

/// Has the lines of the last entry be in the file.
pub(super) fn settle(order: &LogOrder, last: &Entry) {
    let Some(before) = last.before else { return };
    let mut lines = Vec::new();
    for record in records(&last.records) {
        put_line(&mut lines, record.flags, record.line);
    }
    let file = Path::new(&order.file);
    let Some(redo) = decide(&lines, &look(file, before, lines.len())) else { return };
    if redo.half > 0
        && let Err(error) = cut(file, redo.half)
    {
        tracing::warn!(file = order.file, %error, "half a line stays in a log");
    }
    let now = Instant::now().into_std();
    let mut disk = DiskLog::open(order, now);
    for record in records(&last.records).skip(redo.there) {
        disk.put(record.flags, record.line, now);
    }
    disk.finish(now);
    if let Some(problem) = disk.problem() {
        tracing::warn!("lines are missing in a log: {problem}");
    }
}

/// Looks what is there after `before`, up to so many bytes.
fn look(file: &Path, before: LogPlace, most: usize) -> Found {
    let older = PathBuf::from(format!("{}.1", file.display()));
    let read = |path: &Path, from: u64| read(path, from, most);
    if is_at(file, before) {
        read(file, before.bytes).map_or(Found::Gone, Found::Here)
    } else if is_at(&older, before) {
        let next = match read(file, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            next => next,
        };
        match (read(&older, before.bytes), next) {
            (Ok(here), Ok(next)) => Found::Full { here, next },
            _ => Found::Gone,
        }
    } else {
        Found::Gone
    }
}

/// Whether the file of which `before` speaks is there, and has all that it had then.
fn is_at(path: &Path, before: LogPlace) -> bool {
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

/// Takes so many bytes off the end of a file.
fn cut(path: &Path, bytes: usize) -> io::Result<()> {
    let file = open_own(File::options().write(true), path)?;
    let length = file.metadata()?.len();
    file.set_len(length.saturating_sub(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_there_is_written_again() {
        let lines = b"[err] one\n[out] two\n[err+] three\n";
        let here = |it: &[u8]| Found::Here(it.to_vec());
        let full =
            |here: &[u8], next: &[u8]| Found::Full { here: here.to_vec(), next: next.to_vec() };
        let redo = |half, there| Some(Redo { half, there });
        let table = [
            ("nothing yet", here(b""), redo(0, 0)),
            ("half of the first", here(b"[err] o"), redo(7, 0)),
            ("the first", here(b"[err] one\n"), redo(0, 1)),
            ("half of the second", here(b"[err] one\n["), redo(1, 1)),
            ("all but the last byte", here(&lines[..lines.len() - 1]), redo(12, 2)),
            ("all", here(lines), None),
            ("all, and more", here(b"[err] one\n[out] two\n[err+] three\n[out] x\n"), None),
            ("something else", here(b"[xy] 1 line was not written: x\n"), None),
            ("a new file is to begin", full(b"", b""), redo(0, 0)),
            ("it was full before", full(b"", b"[err] one\n[out]"), redo(5, 1)),
            ("it is full since", full(b"[err] one\n", b""), redo(0, 1)),
            ("some in each", full(b"[err] one\n", b"[out] two\n[e"), redo(2, 2)),
            ("all, in both", full(b"[err] one\n", &lines[10..]), None),
            ("half a line that cannot be ours", full(b"[err] on", b""), None),
            ("it is gone", Found::Gone, None),
        ];
        for (name, found, expected) in table {
            assert_eq!(decide(lines, &found), expected, "{name}");
        }
    }
}
