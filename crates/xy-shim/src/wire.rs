//! The words between the daemon and a shim.
//!
//! A frame is a little-endian `u32` length, one byte that says what it is, and a
//! body of `length - 1` bytes: JSON for orders and reports, raw bytes for output.
//! The conversation of one life:
//!
//! ```text
//! daemon                                   shim
//!    │ ── Start ──────────────────────────► │  forks, execs
//!    │ ◄────────────── Started + 2 fds ──── │  (or StartFailed, and it ends)
//!    │ ◄────────────────────────── Log ──── │  batches, as output comes
//!    │ ── Stray ──────────────────────────► │  stdout lines that were no protocol
//!    │ ── Note ───────────────────────────► │  kept for a daemon that comes later
//!    │ ── Stop ───────────────────────────► │  close stdin, TERM, KILL
//!    │ ◄─────────────────────── Exited ──── │  the server is gone
//!    │ ── Stray … Finish ─────────────────► │  what was left in the stdout pipe
//!    │ ◄──────────────── Log, then EOF ──── │  everything is on disk; the shim ends
//! ```
//!
//! The two descriptors with `Started` are the daemon's ends of the server's stdin
//! and stdout, in this order; only [`Stdout::Passed`] has them. EOF on the daemon's
//! side means that the daemon is gone. Another one finds the shim by its lock and its
//! socket, and takes over what is there:
//!
//! ```text
//! another daemon                           shim
//!    │ ── Hello ──────────────────────────► │  (or Refused, and EOF)
//!    │ ◄─────────────────────── Note ────── │  as it was left
//!    │ ◄───────────────────── Unread ────── │  what stdout said meanwhile
//!    │ ◄──────────────── Status + fds ───── │  pid, age, how it ended if it did
//!    │ ◄────────────────────────── Log ──── │  the latest again, then as output comes
//! ```
//!
//! `Hello` and `Refused` are the same in every version.

use serde::{Deserialize, Serialize};

pub use crate::confine::{
    Confined, Containment, KeptBy, Limit, LimitName, LimitsOrder, MemoryLimit, Oom,
};

/// Version of this conversation; a shim refuses a `Start` or a `Hello` of another one.
pub const PROTOCOL: u32 = if cfg!(feature = "other-protocol") { 1_000_002 } else { 2 };

/// No frame is longer: a longer one is a broken peer.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

/// The longest note: it holds what a file says of a server, and a little more.
pub const MAX_NOTE: usize = MAX_FRAME / 2;

/// The longest line kept as one record; a longer one is split.
pub const MAX_LINE: usize = 64 * 1024;

const KIND_ORDER: u8 = 1;
const KIND_STRAY: u8 = 2;
const KIND_REPORT: u8 = 3;
const KIND_LOG: u8 = 4;
const KIND_NOTE: u8 = 5;
const KIND_UNREAD: u8 = 6;

/// What the daemon tells the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Start the server. The first order of the first daemon, once.
    Start(Box<StartOrder>),
    /// The first order of any later daemon: tell me everything.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
    },
    /// End the server: close its stdin, then TERM, then KILL at the end of the grace.
    Stop {
        /// How long it may take before the KILL.
        grace_ms: u64,
        /// Nobody will ask how it ended, should the daemon be gone by then.
        #[serde(default)]
        for_good: bool,
    },
    /// Other rules for what happens when the daemon is gone.
    Rules(GoneRules),
    /// A message too long to be written to stdin in one piece is about to be written.
    WriteBegins,
    /// It has been written.
    WriteEnds,
    /// The life is over and nothing more will come: flush and end.
    Finish,
}

/// How to start a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The program: a path, or a name to look up on the server's PATH.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Set over the shim's own environment, from which every `XY_*` is taken out first.
    pub env: Vec<(String, String)>,
    /// Where it runs; the shim's own folder if absent.
    pub working_dir: Option<String>,
    /// Who reads its stdout.
    pub stdout: Stdout,
    /// Whether its stdin is a pipe, whose end the daemon gets; otherwise it is empty. One
    /// whose stdout the daemon reads has it anyway.
    #[serde(default)]
    pub has_stdin: bool,
    /// Where its output is kept.
    pub log: LogOrder,
    /// What happens when the daemon is gone.
    pub gone: GoneRules,
    /// How many files it may have open, where that is not what the shim may.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// What tells this life from all others.
    pub life: String,
    /// Where a later daemon finds the shim; without it the server ends with the daemon.
    ///
    /// The shim's stdout is then a locked file: it is held for as long as anything of the
    /// server may live, and says who holds it.
    #[serde(default)]
    pub socket: Option<String>,
    /// The first note.
    #[serde(default)]
    pub note: String,
    /// What it may use.
    #[serde(default)]
    pub limits: LimitsOrder,
}

/// What happens when the daemon is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoneRules {
    /// So long another daemon is waited for, before the server is ended.
    pub orphan_ms: u64,
    /// How long that stop may take.
    pub grace_ms: u64,
}

/// Who reads a server's stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdout {
    /// The daemon: it gets the ends of stdin and stdout.
    Passed,
    /// The shim: it goes to the log.
    Logged,
}

/// Where output is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogOrder {
    /// The file; older generations are `<file>.1`, `.2` ….
    pub file: String,
    /// A new file is begun once the current one has this size.
    pub max_bytes: u64,
    /// How many older ones are kept.
    pub generations: u32,
    /// The number of the first record.
    pub next_seq: u64,
}

/// What the shim tells the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The server's program runs (its exec succeeded).
    Started {
        /// The leader of its processes.
        pid: u32,
        /// A later daemon will find it.
        #[serde(default)]
        lasting: bool,
        /// How it is held together and limited.
        #[serde(default)]
        confined: Confined,
    },
    /// It could not be started; the shim ends.
    StartFailed(StartFault),
    /// The answer to `Hello`.
    Status(StatusReport),
    /// A `Hello` of another version; the shim waits for another daemon.
    Refused {
        /// The shim's version.
        protocol: u32,
    },
    /// It is held together by something else than was said.
    Confined(Confined),
    /// The server is gone.
    Exited(ExitReport),
    /// The log could not be written, or can again.
    LogTrouble {
        /// Why not; absent when it works again.
        problem: Option<String>,
    },
}

/// What has become of a server, for a daemon that did not start it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The leader of its processes.
    pub pid: u32,
    /// How long ago it was started.
    pub age_ms: u64,
    /// How long ago the note was left.
    pub note_age_ms: u64,
    /// Which of its stdin and stdout come with this report, in this order.
    pub passed: [bool; 2],
    /// A daemon left in the middle of a message on stdin.
    #[serde(default)]
    pub torn: bool,
    /// Its end has been asked for.
    #[serde(default)]
    pub stopping: bool,
    /// How it ended, if it has.
    #[serde(default)]
    pub exited: Option<PastExit>,
    /// How it is held together and limited.
    #[serde(default)]
    pub confined: Confined,
    /// How far its log is on disk, unless that cannot be written.
    #[serde(default)]
    pub logged: Option<LogPlace>,
}

/// A place in a log file, whatever its name is by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPlace {
    /// The device of the file.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// So much of it is from before.
    pub bytes: u64,
    /// The number of the first record that is not in it, nor in an older one.
    pub next_seq: u64,
}

/// An end that may have been a while ago.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastExit {
    /// How.
    pub report: ExitReport,
    /// When.
    pub ms_ago: u64,
}

/// How a server ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitReport {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether the shim had been told to end it (or had to, the daemon being gone).
    pub asked: bool,
    /// Processes below the shim that did not even die of a KILL.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub survivors: Vec<u32>,
    /// Whether the kernel killed any of it for want of memory, and why.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oom: Option<Oom>,
}

/// Why a server could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFault {
    /// What went wrong, for a person.
    pub problem: Problem,
    /// The system's error number, where there is one.
    pub errno: Option<i32>,
}

/// What kept a server from starting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// No such file, or not on PATH.
    ProgramNotFound,
    /// It is there but may not be executed.
    NotExecutable,
    /// The working folder is not a folder.
    NoWorkingDir,
    /// It must not run without this limit.
    LimitNotKept {
        /// Which.
        limit: String,
        /// Why it cannot be kept.
        why: String,
    },
    /// The shim speaks another version.
    Protocol {
        /// The shim's.
        expected: u32,
    },
    /// Anything else the system said; `errno` tells whether trying again can help.
    System {
        /// The step that failed and the system's words.
        what: String,
    },
}

/// Bits of a record's flags.
pub mod flags {
    /// It came from stderr; otherwise from stdout.
    pub const STDERR: u8 = 1;
    /// It continues the record before it of the same stream.
    pub const CONTINUED: u8 = 2;
    /// Its line did not end with a newline: the line was too long, or the stream ended.
    pub const UNTERMINATED: u8 = 4;
}

/// One line of output, or a piece of a very long one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its number: one counter for both streams, without gaps.
    pub seq: u64,
    /// When it was read, in milliseconds since 1970.
    pub unix_millis: u64,
    /// See [`flags`].
    pub flags: u8,
    /// The bytes, without the newline.
    pub line: &'a [u8],
}

const RECORD_HEADER: usize = 8 + 8 + 1 + 4;

/// Appends one record to the body of a batch.
pub fn put_record(batch: &mut Vec<u8>, record: Record<'_>) {
    batch.extend_from_slice(&record.seq.to_le_bytes());
    batch.extend_from_slice(&record.unix_millis.to_le_bytes());
    batch.push(record.flags);
    let length = u32::try_from(record.line.len()).expect("a record is at most MAX_LINE long");
    batch.extend_from_slice(&length.to_le_bytes());
    batch.extend_from_slice(record.line);
}

/// The size of a record in a batch.
pub fn record_size(line: &[u8]) -> usize {
    RECORD_HEADER + line.len()
}

/// The records of a batch's body, one after another; ends at the first that is cut short.
pub fn records(mut batch: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        let (record, rest) = split_record(batch)?;
        batch = rest;
        Some(record)
    })
}

fn split_record(batch: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let (seq, rest) = batch.split_first_chunk::<8>()?;
    let (unix_millis, rest) = rest.split_first_chunk::<8>()?;
    let (&flags, rest) = rest.split_first()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (line, rest) = rest.split_at_checked(length)?;
    let record = Record {
        seq: u64::from_le_bytes(*seq),
        unix_millis: u64::from_le_bytes(*unix_millis),
        flags,
        line,
    };
    Some((record, rest))
}

/// One frame, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Daemon to shim.
    Order(Order),
    /// Daemon to shim: bytes of stdout that were not protocol, as they were read.
    Stray(&'a [u8]),
    /// Shim to daemon.
    Report(Report),
    /// Shim to daemon: every record before `next_seq` that was not dropped has been sent.
    Log {
        /// The number the next record will have.
        next_seq: u64,
        /// See [`records`].
        batch: &'a [u8],
    },
    /// Daemon to shim: keep this. Shim to a later daemon: this was kept.
    Note(&'a [u8]),
    /// Bytes of stdout that come before what is in the pipe. Shim to a later daemon: what
    /// was said meanwhile; what of it has not come back as `Stray` when this one leaves is
    /// said again to the next one. Daemon to shim: all that it was sent has been used; before
    /// it leaves, all but this.
    Unread(&'a [u8]),
}

/// Why bytes are no frame. The peer is broken or of another version: hang up.
#[derive(Debug, thiserror::Error)]
pub enum BadFrame {
    /// Longer than any frame.
    #[error("a frame of {0} bytes is over the limit of {MAX_FRAME}")]
    TooLong(usize),
    /// A kind nobody knows, or an empty frame.
    #[error("a frame of an unknown kind")]
    UnknownKind,
    /// A body that is not what its kind says.
    #[error("a frame that cannot be read: {0}")]
    Body(#[from] serde_json::Error),
}

/// Takes the first whole frame off `bytes`: the frame and how many bytes it took.
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, BadFrame> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_FRAME {
        return Err(BadFrame::TooLong(length));
    }
    let Some((frame, _)) = rest.split_at_checked(length) else { return Ok(None) };
    let (&kind, body) = frame.split_first().ok_or(BadFrame::UnknownKind)?;
    let frame = match kind {
        KIND_ORDER => Frame::Order(serde_json::from_slice(body)?),
        KIND_STRAY => Frame::Stray(body),
        KIND_REPORT => Frame::Report(serde_json::from_slice(body)?),
        KIND_LOG => {
            let (next_seq, batch) = body.split_first_chunk::<8>().ok_or(BadFrame::UnknownKind)?;
            Frame::Log { next_seq: u64::from_le_bytes(*next_seq), batch }
        }
        KIND_NOTE => Frame::Note(body),
        KIND_UNREAD => Frame::Unread(body),
        _ => return Err(BadFrame::UnknownKind),
    };
    Ok(Some((frame, 4 + length)))
}

/// Appends an order; only one to start can be too long, by what a file says.
pub fn put_order(out: &mut Vec<u8>, order: &Order) -> Result<(), BadFrame> {
    let body = serde_json::to_vec(order).expect("an order is plain values, which serialise");
    if body.len() >= MAX_FRAME {
        return Err(BadFrame::TooLong(body.len()));
    }
    put_frame(out, KIND_ORDER, &[&body]);
    Ok(())
}

/// Appends stray output.
pub fn put_stray(out: &mut Vec<u8>, bytes: &[u8]) {
    put_frame(out, KIND_STRAY, &[bytes]);
}

/// Appends a note of at most [`MAX_NOTE`].
pub fn put_note(out: &mut Vec<u8>, note: &[u8]) {
    put_frame(out, KIND_NOTE, &[note]);
}

/// Appends output that nobody has read, in as many frames as it takes.
pub fn put_unread(out: &mut Vec<u8>, bytes: &[u8]) {
    for part in bytes.chunks(MAX_FRAME / 2) {
        put_frame(out, KIND_UNREAD, &[part]);
    }
}

/// Appends that everything that was lent has been used.
pub fn put_all_read(out: &mut Vec<u8>) {
    put_frame(out, KIND_UNREAD, &[]);
}

/// Appends a report.
pub fn put_report(out: &mut Vec<u8>, report: &Report) {
    let body = serde_json::to_vec(report).expect("a report is plain values, which serialise");
    put_frame(out, KIND_REPORT, &[&body]);
}

/// Appends a batch of records.
pub fn put_log(out: &mut Vec<u8>, next_seq: u64, batch: &[u8]) {
    put_frame(out, KIND_LOG, &[&next_seq.to_le_bytes(), batch]);
}

fn put_frame(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    assert!(length <= MAX_FRAME, "a frame is made of bounded parts");
    let length = u32::try_from(length).expect("MAX_FRAME fits in 32 bits");
    out.extend_from_slice(&length.to_le_bytes());
    out.push(kind);
    for part in parts {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn orders_and_reports_survive_the_wire() {
        let order = Order::Stop { grace_ms: 5, for_good: false };
        let report = Report::Exited(ExitReport {
            code: None,
            signal: Some(9),
            asked: true,
            survivors: Vec::new(),
            oom: None,
        });
        let mut bytes = Vec::new();
        put_order(&mut bytes, &order).unwrap();
        put_report(&mut bytes, &report);
        put_stray(&mut bytes, b"x\n");

        let (frame, used) = parse(&bytes).unwrap().unwrap();
        assert_eq!(frame, Frame::Order(order));
        let bytes = &bytes[used..];
        let (frame, used) = parse(bytes).unwrap().unwrap();
        assert_eq!(frame, Frame::Report(report));
        let (frame, _) = parse(&bytes[used..]).unwrap().unwrap();
        assert_eq!(frame, Frame::Stray(b"x\n"));
    }

    #[test]
    fn half_a_frame_is_no_frame_yet() {
        let mut bytes = Vec::new();
        put_order(&mut bytes, &Order::Finish).unwrap();
        for end in 0..bytes.len() {
            assert!(parse(&bytes[..end]).unwrap().is_none());
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_it_is_read() {
        let bytes = u32::MAX.to_le_bytes();
        assert!(matches!(parse(&bytes), Err(BadFrame::TooLong(_))));
    }

    proptest! {
        #[test]
        fn records_survive_a_batch(
            lines in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..20)
        ) {
            let mut batch = Vec::new();
            for (seq, line) in (7..).zip(&lines) {
                put_record(&mut batch, Record { seq, unix_millis: 1, flags: flags::STDERR, line });
            }
            prop_assert_eq!(batch.len(), lines.iter().map(|line| record_size(line)).sum::<usize>());
            let back: Vec<_> = records(&batch).map(|record| record.line.to_vec()).collect();
            prop_assert_eq!(back, lines);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let _ = records(&bytes).count();
        }
    }
}
