//! The ledger of a container's log: the last lines with their numbers and times, and how much of
//! what the container said is in the log.
//!
//! For the next daemon, should this one be killed: a process has a shim that keeps all that. Lines
//! are entered here with one write *before* they go to the log's file, so the last entry says what
//! the file must have (`redo.rs`). An entry that was cut short counts for nothing. Nothing is synced:
//! no container survives its machine. There are two files, the older of which goes when the other is
//! full; each begins with all that has to be known.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use xy_shim::wire::{LogPlace, MAX_LINE, Record, flags, record_size, records};

use crate::logs::{OWN_PREFIX, RING_BYTES};
use crate::plain_file::{open_file, open_own};

/// How a line begins that is not the container's.
pub(super) const OURS: &[u8] = OWN_PREFIX.as_bytes();

/// No more is told of how the output ends.
const KNOWN: usize = 4096;

const FORMAT: &[u8] = b"xy lines 1\n";

/// A file is full then, so both together have all that is in the ring.
const FILE_BYTES: u64 = RING_BYTES as u64;

/// No file of ours is longer.
const LONGEST: u64 = 4 * FILE_BYTES;

/// Of half a line in an entry: it goes on the half that the entry before it has.
const GROWS: u8 = 1;
/// Of half a line in an entry: pieces of it are in the log already.
const CONTINUED: u8 = 2;

/// How far a log is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct State {
    /// The number of the next line.
    pub(super) next_seq: u64,
    /// So many bytes of stdout and of stderr have been logged.
    pub(super) logged: [u64; 2],
    /// Of these, the lines that have no end yet.
    pub(super) halves: [Half; 2],
}

/// The beginning of a line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Half {
    pub(super) bytes: Vec<u8>,
    /// Pieces of its line are in the log already.
    pub(super) continued: bool,
}

/// Some lines that were logged at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of the line after them.
    pub(super) next_seq: u64,
    /// Where the log's file ended before them, if that was known.
    pub(super) before: Option<LogPlace>,
    pub(super) records: Vec<u8>,
}

/// Keeps the ledger of one container.
#[derive(Debug)]
pub(in super::super) struct Ledger {
    path: PathBuf,
    open: Option<Open>,
    state: State,
    /// It could not be written the last time.
    is_failing: bool,
}

#[derive(Debug)]
struct Open {
    file: File,
    bytes: u64,
}

impl Ledger {
    /// An empty one, of a container of which so much has been logged. Nothing is written yet.
    pub(in super::super) fn begin(path: PathBuf, logged: [u64; 2]) -> Self {
        let state = State { logged, ..State::default() };
        Self { path, open: None, state, is_failing: false }
    }

    /// What an earlier daemon has left, if there is something that can be understood.
    pub(super) fn find(path: PathBuf) -> Option<(Self, Vec<Entry>)> {
        let (mut state, mut entries) = (State::default(), Vec::new());
        parse(&read(&older(&path)), &mut state, &mut entries);
        let whole = parse(&read(&path), &mut state, &mut entries) as u64;
        // What is cut off, or cannot be used, is written anew.
        let open = (whole > 0).then(|| open_at(&path, whole).ok()).flatten();
        let found = Self { path, open, state, is_failing: false };
        (!entries.is_empty()).then_some((found, entries))
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// So much of stdout and of stderr has been logged.
    pub(in super::super) fn logged(&self) -> [u64; 2] {
        self.state.logged
    }

    /// Whether the next daemon will know the present state.
    pub(super) fn is_kept(&self) -> bool {
        !self.is_failing
    }

    /// Enters some lines, or only that half a line has grown. If that is not possible, nothing is
    /// kept of what was before either, as nobody could go on with it; the next entry tries again.
    pub(super) fn enter(&mut self, state: State, before: Option<LogPlace>, lines: &[u8]) {
        let entered = self.append(&state, before, lines);
        self.state = state;
        if let Err(error) = &entered {
            if !self.is_failing {
                let file = self.path.display();
                tracing::warn!(%file, %error, "a later daemon would not know the numbers of its lines");
            }
            self.open = None;
            self.clear();
        }
        self.is_failing = entered.is_err();
    }

    /// Removes what is left of an earlier one.
    pub(super) fn clear(&self) {
        for path in [&self.path, &older(&self.path)] {
            let _ = fs::remove_file(path); // It may never have been there.
        }
    }

    fn append(&mut self, state: &State, before: Option<LogPlace>, lines: &[u8]) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|open| open.bytes >= FILE_BYTES) {
            self.open = None;
            fs::rename(&self.path, older(&self.path))?;
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => Open { file: create(&self.path)?, bytes: 0 },
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

/// The last bytes of a stream that were logged, as the container said them. Pure.
pub(super) fn end_of(entries: &[Entry], state: &State, is_stderr: bool) -> Vec<u8> {
    let mut parts = vec![state.halves[usize::from(is_stderr)].bytes.clone()];
    let mut length = parts[0].len();
    for entry in entries.iter().rev() {
        let of_stream = |it: &Record<'_>| (it.flags & flags::STDERR != 0) == is_stderr;
        let lines: Vec<_> = records(&entry.records).filter(of_stream).collect();
        for record in lines.iter().rev() {
            if length >= KNOWN || record.line.starts_with(OURS) {
                return joined(parts); // What is not kept comes before a line of ours.
            }
            let newline: &[u8] = if record.flags & flags::UNTERMINATED == 0 { b"\n" } else { b"" };
            let part = [record.line, newline].concat();
            length += part.len();
            parts.push(part);
        }
    }
    joined(parts)
}

/// Parts in the other order, and no more of them than is wanted. Pure.
fn joined(parts: Vec<Vec<u8>>) -> Vec<u8> {
    let bytes: Vec<u8> = parts.into_iter().rev().flatten().collect();
    bytes[bytes.len().saturating_sub(KNOWN)..].to_vec()
}

/// The name of the older of the two files.
pub(in super::super) fn older(path: &Path) -> PathBuf {
    let mut older = path.as_os_str().to_owned();
    older.push("-older");
    older.into()
}

fn create(path: &Path) -> io::Result<File> {
    let _ = fs::remove_file(path); // What is there is of no use, and may be no file.
    File::options().append(true).create_new(true).mode(0o600).open(path)
}

fn open_at(path: &Path, bytes: u64) -> io::Result<Open> {
    let file = open_own(File::options().append(true), path)?;
    file.set_len(bytes)?;
    Ok(Open { file, bytes })
}

/// What is in a file; nothing if there is none that could be ours.
fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = open_file(path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes));
    read.map(|_| bytes).unwrap_or_default()
}

/// Appends one entry. Pure.
fn put_entry(
    bytes: &mut Vec<u8>,
    earlier: Option<&State>,
    state: &State,
    before: Option<LogPlace>,
    lines: &[u8],
) -> io::Result<()> {
    let mut body = Vec::with_capacity(lines.len() + 128);
    let (device, inode, length) = before.map_or((0, 0, 0), |it| (it.device, it.inode, it.bytes));
    let [out, err] = state.logged;
    for number in [state.next_seq, out, err, device, inode, length] {
        body.extend_from_slice(&number.to_le_bytes());
    }
    for (stream, half) in state.halves.iter().enumerate() {
        let earlier = earlier.map(|it| it.halves[stream].bytes.as_slice());
        let grown = earlier.and_then(|earlier| half.bytes.strip_prefix(earlier));
        let flags = if grown.is_some() { GROWS } else { 0 };
        body.push(flags | if half.continued { CONTINUED } else { 0 });
        put_bytes(&mut body, grown.unwrap_or(&half.bytes))?;
    }
    body.extend_from_slice(lines);
    put_bytes(bytes, &body)
}

/// Appends some bytes, and how many there are before them. Pure.
fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(bytes);
    Ok(())
}

/// Reads the entries of a file, up to the first that is not whole; answers how many bytes are. Pure.
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

/// One entry, and how far the log was after it; `None` if that makes no sense. Pure.
fn parse_entry(mut body: &[u8], earlier: Option<&State>) -> Option<(State, Entry)> {
    let mut numbers = [0; 6];
    for number in &mut numbers {
        let (bytes, rest) = body.split_first_chunk::<8>()?;
        (*number, body) = (u64::from_le_bytes(*bytes), rest);
    }
    let [next_seq, out, err, device, inode, length] = numbers;
    let mut halves: [Half; 2] = Default::default();
    for (stream, half) in halves.iter_mut().enumerate() {
        let (flags, rest) = body.split_first()?;
        let (bytes, rest) = split_bytes(rest)?;
        body = rest;
        if flags & GROWS != 0 {
            half.bytes.clone_from(&earlier?.halves[stream].bytes);
        }
        half.bytes.extend_from_slice(bytes);
        if half.bytes.len() > MAX_LINE {
            return None; // It would have been given out.
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
    let before = LogPlace { device, inode, bytes: length, next_seq: first_seq };
    let before = (inode != 0).then_some(before);
    let state = State { next_seq, logged: [out, err], halves };
    Some((state, Entry { next_seq, before, records: body.to_vec() }))
}

/// The bytes that `put_bytes` has put, and what comes after them. Pure.
fn split_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests;
