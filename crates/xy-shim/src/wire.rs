//! Messages between the daemon and a shim.
//!
//! A frame is a little-endian `u32` length, one byte for its kind, and a body of `length - 1`
//! bytes: JSON for orders and reports, raw bytes for output. The messages of one life are:
//!
//! ```text
//! daemon                                   shim
//!    │ ── Start ──────────────────────────► │  forks, execs
//!    │ ◄────────────── Started + 2 fds ──── │  (or StartFailed, then the shim ends)
//!    │ ◄────────────────────────── Log ──── │  batches, as output arrives
//!    │ ── UnparsedOutput ─────────────────► │  stdout lines that were not protocol
//!    │ ── Note ───────────────────────────► │  kept for the next daemon
//!    │ ── Stop ───────────────────────────► │  close stdin, TERM, KILL
//!    │ ◄─────────────────────── Exited ──── │  the server is gone
//!    │ ── UnparsedOutput … Finish ────────► │  the rest of the stdout pipe
//!    │ ◄──────────────── Log, then EOF ──── │  everything is on disk; the shim ends
//! ```
//!
//! The two descriptors with `Started` are the daemon's ends of the server's stdin and stdout, in
//! this order. Only [`Stdout::Passed`] has both. EOF from the daemon means that it is gone. Another
//! daemon finds the shim by its lock and its socket, and takes over:
//!
//! ```text
//! another daemon                           shim
//!    │ ── Hello ──────────────────────────► │  (or Refused, and EOF)
//!    │ ◄─────────────────────── Note ────── │  as the last daemon left it
//!    │ ◄───────────────────── Unread ────── │  stdout written meanwhile
//!    │ ◄──────────────── Status + fds ───── │  pid, age, exit report if it has exited
//!    │ ◄────────────────────────── Log ──── │  the latest again, then as output arrives
//! ```
//!
//! `Hello` and `Refused` are the same in every version.

use serde::{Deserialize, Serialize};

pub use crate::confine::{
    Confinement, Containment, EnforcedBy, Limit, LimitName, LimitsOrder, MemoryLimit, Oom,
};

/// Version of this protocol. A shim refuses a `Start` or a `Hello` of another version.
pub const PROTOCOL: u32 = if cfg!(feature = "other-protocol") { 1_000_002 } else { 2 };

/// Maximum size of a frame. A peer that sends a larger one is broken.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

/// Maximum size of a note, enough for a server's configuration and a little more.
pub const MAX_NOTE: usize = MAX_FRAME / 2;

/// Maximum length of a line kept as one record. A longer line is split.
pub const MAX_LINE: usize = 64 * 1024;

const KIND_ORDER: u8 = 1;
const KIND_UNPARSED_OUTPUT: u8 = 2;
const KIND_REPORT: u8 = 3;
const KIND_LOG: u8 = 4;
const KIND_NOTE: u8 = 5;
const KIND_UNREAD: u8 = 6;

/// An order from the daemon to the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Starts the server. The first order of the first daemon, sent once.
    Start(Box<StartOrder>),
    /// Introduces a later daemon and asks for the state. The first order of that daemon.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
    },
    /// Stops the server: close its stdin, then TERM, then KILL at the end of the grace.
    Stop {
        /// Time until the KILL.
        grace_ms: u64,
        /// This daemon may have exited by then, and no other daemon will query the exit status.
        #[serde(default)]
        for_good: bool,
    },
    /// Replaces the policy for the time without a daemon.
    Rules(OrphanPolicy),
    /// A message too long for one write to stdin is about to be written.
    WriteBegins,
    /// The message has been written.
    WriteEnds,
    /// No more unparsed output will follow the exit: write everything and end.
    Finish,
}

/// How to start a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The program: a path, or a name to look up on the server's PATH.
    pub program: String,
    /// The arguments.
    pub args: Vec<String>,
    /// Set over the shim's own environment, from which every `XY_*` variable is removed first.
    pub env: Vec<(String, String)>,
    /// The working directory; the shim's own if absent.
    pub working_dir: Option<String>,
    /// The reader of the server's stdout.
    pub stdout: Stdout,
    /// Gives the server a pipe as stdin, whose end the daemon gets; otherwise stdin is empty. A
    /// server whose stdout the daemon reads has the pipe anyway.
    #[serde(default)]
    pub has_stdin: bool,
    /// Where output is logged.
    pub log: LogOrder,
    /// The policy for the time without a daemon.
    pub gone: OrphanPolicy,
    /// Limit of open files, if it differs from the shim's.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// The ID of the life.
    pub life: String,
    /// Where a later daemon finds the shim; without it the server ends with the daemon.
    ///
    /// The shim's stdout is then a locked file. The lock is held for as long as any process of the
    /// server may live, and the file identifies the holder.
    #[serde(default)]
    pub socket: Option<String>,
    /// The first note.
    #[serde(default)]
    pub note: String,
    /// The limits of the server.
    #[serde(default)]
    pub limits: LimitsOrder,
}

/// The policy for the time without a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanPolicy {
    /// How long the shim waits for another daemon before it stops the server.
    pub orphan_ms: u64,
    /// How long that stop may take.
    pub grace_ms: u64,
}

/// The reader of a server's stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdout {
    /// The daemon, which gets the ends of stdin and stdout.
    Passed,
    /// The shim, which logs it.
    Logged,
}

/// Where output is logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogOrder {
    /// The file; older generations are `<file>.1`, `.2` ….
    pub file: String,
    /// Size at which the file is rotated.
    pub max_bytes: u64,
    /// Number of older files that are kept.
    pub generations: u32,
    /// The number of the first record.
    pub next_seq: u64,
}

/// A report from the shim to the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The server runs: its exec succeeded.
    Started {
        /// The leader of the server's processes.
        pid: u32,
        /// A later daemon can find this shim.
        #[serde(default)]
        lasting: bool,
        /// How the server is contained and limited.
        #[serde(default)]
        confined: Confinement,
    },
    /// The server could not be started; the shim ends.
    StartFailed(StartFault),
    /// The answer to `Hello`.
    Status(StatusReport),
    /// The answer to a `Hello` of another version. The shim waits for another daemon.
    Refused {
        /// The shim's version.
        protocol: u32,
    },
    /// The server is contained otherwise than was reported.
    Confined(Confinement),
    /// The server is gone.
    Exited(ExitReport),
    /// The log cannot be written, or can be written again.
    LogTrouble {
        /// The reason; absent once writing works again.
        problem: Option<String>,
    },
}

/// The state of a server, for a daemon that did not start it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The leader of the server's processes.
    pub pid: u32,
    /// Time since the server was started.
    pub age_ms: u64,
    /// Time since the note was left.
    pub note_age_ms: u64,
    /// Which of the ends of stdin and stdout come with this report, in this order.
    pub passed: [bool; 2],
    /// A daemon left in the middle of a message to stdin.
    #[serde(default)]
    pub torn: bool,
    /// A stop has been requested.
    #[serde(default)]
    pub stopping: bool,
    /// How the server exited, if it has.
    #[serde(default)]
    pub exited: Option<PastExit>,
    /// How the server is contained and limited.
    #[serde(default)]
    pub confined: Confinement,
    /// How far the log is on disk, unless it cannot be written.
    #[serde(default)]
    pub logged: Option<LogPosition>,
}

/// A position in a log file, whatever its name is by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// The device of the file.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Number of bytes before this position.
    pub bytes: u64,
    /// The number of the first record that is neither in this file nor in an older one.
    pub next_seq: u64,
}

/// An exit that may have been a while ago.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastExit {
    /// How the server exited.
    pub report: ExitReport,
    /// Time since the exit.
    pub ms_ago: u64,
}

/// How a server exited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitReport {
    /// Exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Set if the shim was told to stop it, or had to because the daemon was gone.
    pub asked: bool,
    /// Processes below the shim that did not even die of SIGKILL.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub survivors: Vec<u32>,
    /// Why the kernel killed a process of the server for lack of memory, if it did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oom: Option<Oom>,
}

/// Why a server could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFault {
    /// The reason.
    pub problem: Problem,
    /// The system's error number, if there is one.
    pub errno: Option<i32>,
}

/// The reason why a server could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// There is no such file, or it is not on PATH.
    ProgramNotFound,
    /// The file exists but may not be executed.
    NotExecutable,
    /// The working directory is not a directory.
    NoWorkingDir,
    /// A limit cannot be enforced, and the server must not run without it.
    LimitNotKept {
        /// The limit.
        limit: String,
        /// Why it cannot be enforced.
        why: String,
    },
    /// The shim speaks another version.
    Protocol {
        /// The shim's version.
        expected: u32,
    },
    /// Any other error of the system; `errno` tells whether a retry can help.
    System {
        /// The step that failed and the system's message.
        what: String,
    },
}

/// Bits of a record's flags.
pub mod flags {
    /// The record is from stderr; otherwise from stdout.
    pub const STDERR: u8 = 1;
    /// The record continues the previous one of the same stream.
    pub const CONTINUED: u8 = 2;
    /// The record does not end with a newline: the line was too long, or the stream ended.
    pub const UNTERMINATED: u8 = 4;
}

/// One line of output, or a piece of a very long one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The number of the record: one counter for both streams, without gaps.
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

/// Returns the size of a record in a batch.
pub fn record_size(line: &[u8]) -> usize {
    RECORD_HEADER + line.len()
}

/// Returns the records of a batch's body. Ends at the first that is cut short.
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

/// A parsed frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Daemon to shim: an order.
    Order(Order),
    /// Daemon to shim: bytes of stdout that were not protocol, as they were read.
    UnparsedOutput(&'a [u8]),
    /// Shim to daemon: a report.
    Report(Report),
    /// Shim to daemon: records. Every record before `next_seq` that was not dropped has been sent.
    Log {
        /// The number that the next record will have.
        next_seq: u64,
        /// The records, see [`records`].
        batch: &'a [u8],
    },
    /// Daemon to shim: a note to keep. Shim to a later daemon: the note.
    Note(&'a [u8]),
    /// Bytes of stdout that precede those in the pipe.
    ///
    /// - Shim to a later daemon: stdout written meanwhile. The part that has not come back as
    ///   `UnparsedOutput` when this daemon leaves is sent again to the next one.
    /// - Daemon to shim, empty: everything that was sent has been used.
    /// - Daemon to shim, before it leaves: everything but these bytes has been used.
    Unread(&'a [u8]),
}

/// Why bytes are not a frame. The peer is broken or speaks another version: hang up.
#[derive(Debug, thiserror::Error)]
pub enum BadFrame {
    /// The frame is longer than [`MAX_FRAME`].
    #[error("a frame of {0} bytes is over the limit of {MAX_FRAME}")]
    TooLong(usize),
    /// The frame is empty, or of an unknown kind.
    #[error("a frame of an unknown kind")]
    UnknownKind,
    /// The body does not match the kind.
    #[error("a frame that cannot be read: {0}")]
    Body(#[from] serde_json::Error),
}

/// Parses the first whole frame of `bytes`. Returns it with the number of bytes it took.
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
        KIND_UNPARSED_OUTPUT => Frame::UnparsedOutput(body),
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

/// Appends an order. Only an order to start can be too long, if the configuration is.
pub fn put_order(out: &mut Vec<u8>, order: &Order) -> Result<(), BadFrame> {
    let body = serde_json::to_vec(order).expect("an order is plain values, which serialise");
    if body.len() >= MAX_FRAME {
        return Err(BadFrame::TooLong(body.len()));
    }
    put_frame(out, KIND_ORDER, &[&body]);
    Ok(())
}

/// Appends unparsed output.
pub fn put_unparsed_output(out: &mut Vec<u8>, bytes: &[u8]) {
    put_frame(out, KIND_UNPARSED_OUTPUT, &[bytes]);
}

/// Appends a note of at most [`MAX_NOTE`].
pub fn put_note(out: &mut Vec<u8>, note: &[u8]) {
    put_frame(out, KIND_NOTE, &[note]);
}

/// Appends unread output, in as many frames as it takes.
pub fn put_unread(out: &mut Vec<u8>, bytes: &[u8]) {
    for part in bytes.chunks(MAX_FRAME / 2) {
        put_frame(out, KIND_UNREAD, &[part]);
    }
}

/// Appends the message that all lent output has been used.
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
    fn orders_and_reports_round_trip() {
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
        put_unparsed_output(&mut bytes, b"x\n");

        let (frame, used) = parse(&bytes).unwrap().unwrap();
        assert_eq!(frame, Frame::Order(order));
        let bytes = &bytes[used..];
        let (frame, used) = parse(bytes).unwrap().unwrap();
        assert_eq!(frame, Frame::Report(report));
        let (frame, _) = parse(&bytes[used..]).unwrap().unwrap();
        assert_eq!(frame, Frame::UnparsedOutput(b"x\n"));
    }

    #[test]
    fn partial_frame_is_not_parsed() {
        let mut bytes = Vec::new();
        put_order(&mut bytes, &Order::Finish).unwrap();
        for end in 0..bytes.len() {
            assert!(parse(&bytes[..end]).unwrap().is_none());
        }
    }

    #[test]
    fn oversized_frame_is_refused_by_its_length() {
        let bytes = u32::MAX.to_le_bytes();
        assert!(matches!(parse(&bytes), Err(BadFrame::TooLong(_))));
    }

    proptest! {
        #[test]
        fn records_round_trip(
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
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let _ = records(&bytes).count();
        }
    }
}
