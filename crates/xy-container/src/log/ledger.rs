//! The ledger of a container's log: the last lines with their numbers and times, and how much of
//! the container's output has been logged.
//!
//! A later daemon reads it, should this one be killed; a process has a shim for that. An entry is
//! made with one write *before* its lines go to the log's file. So the last entry says what the
//! file must contain (`replay.rs`). A truncated entry is ignored.
//!
//! Nothing is synced, as no container survives its machine. There are two files. The older one is
//! deleted when the other is full, and each begins with the complete state.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use xy_config::trust::{open as open_file, open_own};
use xy_shim::wire::{LogPosition, MAX_LINE, Record, flags, record_size, records};
use xy_supervisor::logs::{OWN_PREFIX, RING_BYTES};

/// Prefix of lines that are not the container's.
pub(super) const OWN_PREFIX_BYTES: &[u8] = OWN_PREFIX.as_bytes();

/// Maximum length of the known end of the output.
const TAIL_BYTES: usize = 4096;

const FORMAT: &[u8] = b"xy lines 1\n";

/// Size of a full file. Both files together contain all lines in the ring.
const FILE_BYTES: u64 = RING_BYTES as u64;

/// Maximum size that is read.
const MAX_LEDGER_BYTES: u64 = 4 * FILE_BYTES;

/// Flag of a partial line: it extends that of the entry before.
const GROWS: u8 = 1;
/// Flag of a partial line: parts of its line are in the log already.
const CONTINUED: u8 = 2;

/// How far a log is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct State {
    /// The number of the next line.
    pub(super) next_seq: u64,
    /// Bytes of stdout and of stderr that have been logged.
    pub(super) logged: [u64; 2],
    /// Their lines that are not complete yet.
    pub(super) partial_lines: [PartialLine; 2],
}

/// The beginning of a line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PartialLine {
    pub(super) bytes: Vec<u8>,
    /// Parts of its line are in the log already.
    pub(super) continued: bool,
}

/// Lines that were logged at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of the line after them.
    pub(super) next_seq: u64,
    /// The end of the log's file before them, if it was known.
    pub(super) before: Option<LogPosition>,
    pub(super) records: Vec<u8>,
}

/// The ledger of one container.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    open: Option<OpenFile>,
    state: State,
    /// True if the last write has failed.
    is_failing: bool,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    bytes: u64,
}

impl Ledger {
    /// Creates an empty ledger for a container with that many logged bytes. Nothing is written yet.
    pub(crate) fn begin(path: PathBuf, logged: [u64; 2]) -> Self {
        let state = State { logged, ..State::default() };
        Self { path, open: None, state, is_failing: false }
    }

    /// Opens the ledger that an earlier daemon left, if it can be understood.
    pub(super) fn find(path: PathBuf) -> Option<(Self, Vec<Entry>)> {
        let (mut state, mut entries) = (State::default(), Vec::new());
        parse(&read(&older(&path)), &mut state, &mut entries);
        let whole = parse(&read(&path), &mut state, &mut entries) as u64;
        // A damaged rest is cut off, or the file begun anew.
        let open = (whole > 0).then(|| open_at(&path, whole).ok()).flatten();
        let found = Self { path, open, state, is_failing: false };
        (!entries.is_empty()).then_some((found, entries))
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Returns how many bytes of stdout and of stderr have been logged.
    pub(crate) fn logged(&self) -> [u64; 2] {
        self.state.logged
    }

    /// Returns true if the next daemon will know the current state.
    pub(super) fn is_kept(&self) -> bool {
        !self.is_failing
    }

    /// Enters lines, or only the growth of a partial line. If that fails, the ledger is deleted, as
    /// no daemon could continue it; the next entry tries again.
    pub(super) fn enter(&mut self, state: State, before: Option<LogPosition>, lines: &[u8]) {
        let entered = self.append(&state, before, lines);
        self.state = state;
        if let Err(error) = &entered {
            if !self.is_failing {
                let file = self.path.display();
                tracing::warn!(%file, %error, "the ledger cannot be written: a later daemon renumbers its lines");
            }
            self.open = None;
            self.clear();
        }
        self.is_failing = entered.is_err();
    }

    /// Removes both files.
    pub(super) fn clear(&self) {
        for path in [&self.path, &older(&self.path)] {
            let _ = fs::remove_file(path); // It may not exist.
        }
    }

    fn append(
        &mut self,
        state: &State,
        before: Option<LogPosition>,
        lines: &[u8],
    ) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|open| open.bytes >= FILE_BYTES) {
            self.open = None;
            fs::rename(&self.path, older(&self.path))?;
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => OpenFile { file: create(&self.path)?, bytes: 0 },
        };
        let open = self.open.insert(open);
        let is_first = open.bytes == 0;
        let mut bytes = if is_first { FORMAT.to_vec() } else { Vec::new() };
        let earlier = (!is_first).then_some(&self.state);
        put_entry(&mut bytes, earlier, state, before, lines)?;
        open.file.write_all(&bytes)?;
        open.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Returns the last logged bytes of a stream, as the container wrote them. Pure.
pub(super) fn tail_of(entries: &[Entry], state: &State, is_stderr: bool) -> Vec<u8> {
    let mut parts = vec![state.partial_lines[usize::from(is_stderr)].bytes.clone()];
    let mut length = parts[0].len();
    for entry in entries.iter().rev() {
        let of_stream = |it: &Record<'_>| (it.flags & flags::STDERR != 0) == is_stderr;
        let lines: Vec<_> = records(&entry.records).filter(of_stream).collect();
        for record in lines.iter().rev() {
            if length >= TAIL_BYTES || record.line.starts_with(OWN_PREFIX_BYTES) {
                return joined(parts); // Output is missing before a line of our own.
            }
            let newline: &[u8] = if record.flags & flags::UNTERMINATED == 0 { b"\n" } else { b"" };
            let part = [record.line, newline].concat();
            length += part.len();
            parts.push(part);
        }
    }
    joined(parts)
}

/// Joins parts in reverse order, up to the maximum length. Pure.
fn joined(parts: Vec<Vec<u8>>) -> Vec<u8> {
    let bytes: Vec<u8> = parts.into_iter().rev().flatten().collect();
    bytes[bytes.len().saturating_sub(TAIL_BYTES)..].to_vec()
}

/// Returns the path of the older file.
pub(crate) fn older(path: &Path) -> PathBuf {
    let mut older = path.as_os_str().to_owned();
    older.push("-older");
    older.into()
}

fn create(path: &Path) -> io::Result<File> {
    let _ = fs::remove_file(path); // An old entry here is useless, and may not be a regular file.
    File::options().append(true).create_new(true).mode(0o600).open(path)
}

fn open_at(path: &Path, bytes: u64) -> io::Result<OpenFile> {
    let file = open_own(File::options().append(true), path)?;
    file.set_len(bytes)?;
    Ok(OpenFile { file, bytes })
}

/// Reads a file; returns nothing if it cannot be ours.
fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = open_file(path).and_then(|file| file.take(MAX_LEDGER_BYTES).read_to_end(&mut bytes));
    read.map(|_| bytes).unwrap_or_default()
}

/// Appends one entry. Pure.
fn put_entry(
    bytes: &mut Vec<u8>,
    earlier: Option<&State>,
    state: &State,
    before: Option<LogPosition>,
    lines: &[u8],
) -> io::Result<()> {
    let mut body = Vec::with_capacity(lines.len() + 128);
    let (device, inode, length) = before.map_or((0, 0, 0), |it| (it.device, it.inode, it.bytes));
    let [out, err] = state.logged;
    for number in [state.next_seq, out, err, device, inode, length] {
        body.extend_from_slice(&number.to_le_bytes());
    }
    for (stream, half) in state.partial_lines.iter().enumerate() {
        let earlier = earlier.map(|it| it.partial_lines[stream].bytes.as_slice());
        let grown = earlier.and_then(|earlier| half.bytes.strip_prefix(earlier));
        let flags = if grown.is_some() { GROWS } else { 0 };
        body.push(flags | if half.continued { CONTINUED } else { 0 });
        put_bytes(&mut body, grown.unwrap_or(&half.bytes))?;
    }
    body.extend_from_slice(lines);
    put_bytes(bytes, &body)
}

/// Appends bytes after their length. Pure.
fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(bytes);
    Ok(())
}

/// Parses entries up to the first that is not whole; returns the length of the whole ones. Pure.
fn parse(file: &[u8], state: &mut State, entries: &mut Vec<Entry>) -> usize {
    let Some(mut rest) = file.strip_prefix(FORMAT) else { return 0 };
    let mut whole = 0;
    let mut earlier = None;
    while let Some((body, after)) = split_bytes(rest)
        && let Some((next, entry)) = parse_entry(body, earlier.as_ref())
    {
        rest = after;
        whole = file.len() - rest.len();
        entries.push(entry);
        state.clone_from(earlier.insert(next));
    }
    whole
}

/// Parses one entry and the state after it; returns `None` if it makes no sense. Pure.
fn parse_entry(mut body: &[u8], earlier: Option<&State>) -> Option<(State, Entry)> {
    let mut numbers = [0; 6];
    for number in &mut numbers {
        let (bytes, rest) = body.split_first_chunk::<8>()?;
        (*number, body) = (u64::from_le_bytes(*bytes), rest);
    }
    let [next_seq, out, err, device, inode, length] = numbers;
    let mut partial_lines: [PartialLine; 2] = Default::default();
    for (stream, half) in partial_lines.iter_mut().enumerate() {
        let (flags, rest) = body.split_first()?;
        let (bytes, rest) = split_bytes(rest)?;
        body = rest;
        if flags & GROWS != 0 {
            half.bytes.clone_from(&earlier?.partial_lines[stream].bytes);
        }
        half.bytes.extend_from_slice(bytes);
        if half.bytes.len() > MAX_LINE {
            return None; // Such a line would have been logged in parts.
        }
        half.continued = flags & CONTINUED != 0;
    }
    let count = records(body).count() as u64;
    let first_seq = next_seq.checked_sub(count)?;
    let is_in_order = records(body).zip(first_seq..).all(|(record, seq)| record.seq == seq);
    let is_whole = records(body).map(|it| record_size(it.line)).sum::<usize>() == body.len();
    if !is_in_order || !is_whole {
        return None;
    }
    let before = LogPosition { device, inode, bytes: length, next_seq: first_seq };
    let before = (inode != 0).then_some(before);
    let state = State { next_seq, logged: [out, err], partial_lines };
    Some((state, Entry { next_seq, before, records: body.to_vec() }))
}

/// Splits off the bytes that `put_bytes` has appended. Pure.
fn split_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests;
