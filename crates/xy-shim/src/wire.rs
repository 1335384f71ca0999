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
//!    │ ── Stop ───────────────────────────► │  close stdin, TERM, KILL
//!    │ ◄─────────────────────── Exited ──── │  the server is gone
//!    │ ── Stray … Finish ─────────────────► │  what was left in the stdout pipe
//!    │ ◄──────────────── Log, then EOF ──── │  everything is on disk; the shim ends
//! ```
//!
//! The two descriptors with `Started` are the daemon's ends of the server's stdin
//! and stdout, in this order; only [`Stdout::Passed`] has them. EOF on the daemon's
//! side means that the daemon is gone: the shim ends its server and itself.

use serde::{Deserialize, Serialize};

/// Version of this conversation; a shim refuses a `Start` of another one.
pub const PROTOCOL: u32 = 1;

/// No frame is longer: a longer one is a broken peer.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

/// The longest line kept as one record; a longer one is split.
pub const MAX_LINE: usize = 64 * 1024;

const KIND_ORDER: u8 = 1;
const KIND_STRAY: u8 = 2;
const KIND_REPORT: u8 = 3;
const KIND_LOG: u8 = 4;

/// What the daemon tells the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Start the server. The first order, once.
    Start(Box<StartOrder>),
    /// End the server: close its stdin, then TERM, then KILL at the end of the grace.
    Stop {
        /// How long it may take before the KILL.
        grace_ms: u64,
    },
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
    /// Where its output is kept.
    pub log: LogOrder,
    /// How long a stop may take when the daemon is gone.
    pub grace_ms: u64,
    /// How many files it may have open, where that is not what the shim may.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// Held for as long as anything of the server may live: no two of them at a time.
    #[serde(default)]
    pub lock: Option<String>,
}

/// Who reads a server's stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdout {
    /// The daemon: it gets the ends of stdin and stdout.
    Passed,
    /// The shim: it goes to the log, and stdin is empty.
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
    },
    /// It could not be started; the shim ends.
    StartFailed(StartFault),
    /// The server is gone.
    Exited(ExitReport),
    /// The log could not be written, or can again.
    LogTrouble {
        /// Why not; absent when it works again.
        problem: Option<String>,
    },
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
    /// Another shim holds the lock: its server is still there.
    StillThere,
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
        let order = Order::Stop { grace_ms: 5 };
        let report = Report::Exited(ExitReport {
            code: None,
            signal: Some(9),
            asked: true,
            survivors: Vec::new(),
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
