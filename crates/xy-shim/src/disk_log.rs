//! Writes records as lines to the log file, and handles a disk that fails.
//!
//! The records of a round are gathered into one write. A failing disk costs lines, but neither
//! memory nor the server. Lost lines are counted, and the count is the first line written once the
//! disk works again. This module knows nothing of the daemon.

use std::time::{Duration, Instant};

use crate::log_file::{AppendError, RotatingFile};
use crate::wire::{LogOrder, flags};

/// How often a failing disk is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How far a file may exceed its size to keep a split line in one file.
const SPLIT_LINE_SLACK: u64 = 1024 * 1024;

/// Buffer size at which records are written before the round ends.
const MAX_BUFFERED: usize = 256 * 1024;

/// Buffer capacity that an idle log retains.
const RETAINED_CAPACITY: usize = 4 * 1024;

/// The log file of a server.
#[derive(Debug)]
pub struct DiskLog {
    file: RotatingFile,
    buffer: Vec<u8>,
    /// For each stream: set if its last record did not end a line.
    mid_line: [bool; 2],
    /// Set if everything on disk ends with the end of a line, so that a new file may begin.
    may_rotate: bool,
    failure: Option<WriteFailure>,
}

#[derive(Debug)]
struct WriteFailure {
    problem: String,
    lost: u64,
    retry_at: Instant,
}

impl DiskLog {
    /// Opens the log, so that a disk that cannot be written is known from the start.
    pub fn open(order: &LogOrder, now: Instant) -> Self {
        let mut log = Self {
            file: RotatingFile::new(&order.file, order.max_bytes, order.generations),
            buffer: Vec::new(),
            mid_line: [false; 2],
            may_rotate: true,
            failure: None,
        };
        if let Err(error) = log.file.append(b"", now) {
            log.record_failure(&error, 0, now);
        }
        log
    }

    /// Appends one record.
    pub fn put(&mut self, flags: u8, line: &[u8], now: Instant) {
        let stream = usize::from(flags & flags::STDERR != 0);
        self.mid_line[stream] = flags & flags::UNTERMINATED != 0;
        if let Some(failure) = &mut self.failure
            && now < failure.retry_at
        {
            failure.lost += 1;
            return;
        }
        let entry = prefix(flags).len() + line.len() + 1;
        if self.size_with(entry) > self.file.max_bytes().saturating_add(SPLIT_LINE_SLACK) {
            self.write(now);
            self.may_rotate = true; // Even an endless line must respect the limit.
        }
        put_line(&mut self.buffer, flags, line);
        let is_full = self.size_with(0) >= self.file.max_bytes() && self.is_between_lines();
        if is_full || self.buffer.len() >= MAX_BUFFERED {
            self.write(now);
        }
    }

    /// Ends a stream: its last record ends a line, with or without a newline.
    pub fn end_stream(&mut self, stderr: bool) {
        self.mid_line[usize::from(stderr)] = false;
    }

    /// Writes the buffered records, or retries a failing disk if that is due.
    pub fn flush(&mut self, now: Instant) {
        let is_due = self.failure.as_ref().is_none_or(|failure| now >= failure.retry_at);
        if is_due && !(self.failure.is_none() && self.buffer.is_empty()) {
            self.write(now);
        }
    }

    /// Writes everything at the end of the log, or counts it as lost.
    pub fn finish(&mut self, now: Instant) {
        if let Some(failure) = &mut self.failure {
            failure.retry_at = now;
        }
        self.flush(now);
    }

    /// Returns the device, inode and size of the file; `None` if a record is not in it.
    pub fn position(&mut self, now: Instant) -> Option<(u64, u64, u64)> {
        self.flush(now);
        self.file.position().filter(|_| self.failure.is_none())
    }

    /// Returns why the log cannot be written at the moment.
    pub fn problem(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| failure.problem.as_str())
    }

    /// Returns when a failing disk is due for a retry.
    pub fn deadline(&self) -> Option<Instant> {
        self.failure.as_ref().map(|failure| failure.retry_at)
    }

    /// Releases memory after a burst.
    pub fn trim(&mut self) {
        self.buffer.shrink_to(RETAINED_CAPACITY);
    }

    fn write(&mut self, now: Instant) {
        if let Err(error) = self.write_all(now) {
            let lost = count_lines(&self.buffer[error.written..]);
            self.record_failure(&error, lost, now);
        }
        self.buffer.clear();
        self.may_rotate = self.is_between_lines();
    }

    fn write_all(&mut self, now: Instant) -> Result<(), AppendError> {
        if let Some(failure) = &self.failure {
            let nothing_written = |error| AppendError { written: 0, ..error };
            let notice = failure.notice();
            self.file
                .append_when(self.may_rotate, notice.as_bytes(), now)
                .map_err(nothing_written)?;
            self.failure = None;
        }
        self.file.append_when(self.may_rotate, &self.buffer, now)
    }

    fn record_failure(&mut self, error: &AppendError, lost: u64, now: Instant) {
        let before = self.failure.as_ref().map_or(0, |failure| failure.lost);
        self.failure = Some(WriteFailure {
            problem: error.to_string(),
            lost: before + lost,
            retry_at: now + RETRY_INTERVAL,
        });
    }

    fn size_with(&self, entry: usize) -> u64 {
        self.file.size() + (self.buffer.len() + entry) as u64
    }

    fn is_between_lines(&self) -> bool {
        self.mid_line == [false; 2]
    }
}

impl WriteFailure {
    /// Returns the line about lost lines for the file; empty if none were lost.
    fn notice(&self) -> String {
        match self.lost {
            0 => String::new(),
            1 => format!("[xy] 1 line was not written: {}\n", self.problem),
            lost => format!("[xy] {lost} lines were not written: {}\n", self.problem),
        }
    }
}

/// Appends one record in the form that it has in the file.
pub fn put_line(lines: &mut Vec<u8>, flags: u8, line: &[u8]) {
    lines.extend_from_slice(prefix(flags));
    lines.extend_from_slice(line);
    lines.push(b'\n');
}

fn prefix(flags: u8) -> &'static [u8] {
    match (flags & flags::STDERR != 0, flags & flags::CONTINUED != 0) {
        (false, false) => b"[out] ",
        (false, true) => b"[out+] ",
        (true, false) => b"[err] ",
        (true, true) => b"[err+] ",
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

#[cfg(test)]
mod tests;
