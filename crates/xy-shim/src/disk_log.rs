//! Records to lines on disk, and what to do when the disk says no.
//!
//! Gathers the records of a round into one write. A disk that fails costs lines, never
//! memory and never the server: they are counted, and the count is the first line
//! written once the disk works again. Knows nothing of the daemon.

use std::time::{Duration, Instant};

use crate::log_file::{NotAppended, RotatingFile};
use crate::wire::{LogOrder, flags};

/// How often a failing disk is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// How far a file may grow so that a split line stays in one piece.
const SLACK: u64 = 1024 * 1024;

/// More than this is not gathered before it is written.
const GATHERED: usize = 256 * 1024;

/// What a quiet log keeps allocated.
const KEPT: usize = 4 * 1024;

/// The log file of a server.
#[derive(Debug)]
pub struct DiskLog {
    file: RotatingFile,
    gathered: Vec<u8>,
    /// Per stream: its last record was not the end of a line.
    mid_line: [bool; 2],
    /// Everything on disk ends with the end of a line: a new file may begin here.
    may_rotate: bool,
    trouble: Option<Trouble>,
}

#[derive(Debug)]
struct Trouble {
    problem: String,
    lost: u64,
    retry_at: Instant,
}

impl DiskLog {
    /// Opens the log, so that a disk that cannot be written is known from the start.
    pub fn open(order: &LogOrder, now: Instant) -> Self {
        let mut log = Self {
            file: RotatingFile::new(&order.file, order.max_bytes, order.generations),
            gathered: Vec::new(),
            mid_line: [false; 2],
            may_rotate: true,
            trouble: None,
        };
        if let Err(failed) = log.file.append(b"", now) {
            log.note_trouble(&failed, 0, now);
        }
        log
    }

    /// Takes one record.
    pub fn put(&mut self, flags: u8, line: &[u8], now: Instant) {
        let stream = usize::from(flags & flags::STDERR != 0);
        self.mid_line[stream] = flags & flags::UNTERMINATED != 0;
        if let Some(trouble) = &mut self.trouble
            && now < trouble.retry_at
        {
            trouble.lost += 1;
            return;
        }
        let entry = prefix(flags).len() + line.len() + 1;
        if self.size_with(entry) > self.file.max_bytes().saturating_add(SLACK) {
            self.write(now);
            self.may_rotate = true; // No line is so long that the disk has no limit.
        }
        put_line(&mut self.gathered, flags, line);
        let is_full = self.size_with(0) >= self.file.max_bytes() && self.between_lines();
        if is_full || self.gathered.len() >= GATHERED {
            self.write(now);
        }
    }

    /// A stream has ended: its last record ends a line, newline or not.
    pub fn end_stream(&mut self, stderr: bool) {
        self.mid_line[usize::from(stderr)] = false;
    }

    /// Writes what was gathered, or tries the disk again if it is time.
    pub fn flush(&mut self, now: Instant) {
        let is_due = self.trouble.as_ref().is_none_or(|trouble| now >= trouble.retry_at);
        if is_due && !(self.trouble.is_none() && self.gathered.is_empty()) {
            self.write(now);
        }
    }

    /// Writes everything, or counts it as lost: nothing comes after.
    pub fn finish(&mut self, now: Instant) {
        if let Some(trouble) = &mut self.trouble {
            trouble.retry_at = now;
        }
        self.flush(now);
    }

    /// Which file everything so far is in, and its size; `None` if something is not.
    pub fn place(&mut self, now: Instant) -> Option<(u64, u64, u64)> {
        self.flush(now);
        self.file.place().filter(|_| self.trouble.is_none())
    }

    /// Why the log cannot be written at the moment.
    pub fn problem(&self) -> Option<&str> {
        self.trouble.as_ref().map(|trouble| trouble.problem.as_str())
    }

    /// When a failing disk wants to be tried again.
    pub fn deadline(&self) -> Option<Instant> {
        self.trouble.as_ref().map(|trouble| trouble.retry_at)
    }

    /// Gives memory back after a burst.
    pub fn trim(&mut self) {
        self.gathered.shrink_to(KEPT);
    }

    fn write(&mut self, now: Instant) {
        if let Err(failed) = self.write_all(now) {
            let lost = count_lines(&self.gathered[failed.written..]);
            self.note_trouble(&failed, lost, now);
        }
        self.gathered.clear();
        self.may_rotate = self.between_lines();
    }

    fn write_all(&mut self, now: Instant) -> Result<(), NotAppended> {
        if let Some(trouble) = &self.trouble {
            let nothing_written = |failed| NotAppended { written: 0, ..failed };
            let note = trouble.note();
            self.file
                .append_when(self.may_rotate, note.as_bytes(), now)
                .map_err(nothing_written)?;
            self.trouble = None;
        }
        self.file.append_when(self.may_rotate, &self.gathered, now)
    }

    fn note_trouble(&mut self, failed: &NotAppended, lost: u64, now: Instant) {
        let before = self.trouble.as_ref().map_or(0, |trouble| trouble.lost);
        self.trouble = Some(Trouble {
            problem: failed.to_string(),
            lost: before + lost,
            retry_at: now + RETRY_EVERY,
        });
    }

    fn size_with(&self, entry: usize) -> u64 {
        self.file.size() + (self.gathered.len() + entry) as u64
    }

    fn between_lines(&self) -> bool {
        self.mid_line == [false; 2]
    }
}

impl Trouble {
    /// What the file says about the lines it lacks; empty if it lacks none.
    fn note(&self) -> String {
        match self.lost {
            0 => String::new(),
            1 => format!("[xy] 1 line was not written: {}\n", self.problem),
            lost => format!("[xy] {lost} lines were not written: {}\n", self.problem),
        }
    }
}

/// Appends one record as it is in the file.
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
