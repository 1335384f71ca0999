//! The recent output of each instance, as a ring buffer with live followers.
//!
//! Batches are stored as the shim sent them, and shared with followers without copying. Records
//! are numbered, and a gap in the numbers is what a follower missed. So shown plus skipped lines
//! are always all lines. A slow follower never delays the writer.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;
use xy_protocol::server::ServerName;
use xy_shim::wire::{self, LogPosition, Record, flags};

pub mod history;

use history::History;

use crate::instance_key::InstanceKey;

/// Size at which a log file is rotated.
pub const FILE_BYTES: u64 = 10_000_000;

/// Number of rotated log files that are kept.
pub const FILE_GENERATIONS: u32 = 5;

/// Returns the log file of a server.
pub fn log_file(logs_dir: &Path, server: &ServerName) -> PathBuf {
    logs_dir.join(format!("{server}.log"))
}

/// Returns the log file of an instance, which is that of the server if the instance is shared.
pub fn instance_log(logs_dir: &Path, key: &InstanceKey) -> PathBuf {
    logs_dir.join(format!("{key}.log"))
}

/// Removes the log of a client instance that has ended.
pub(crate) fn remove_log(logs_dir: &Path, key: &InstanceKey) {
    let file = instance_log(logs_dir, key);
    let older = (1..=FILE_GENERATIONS).map(|n| file.with_extension(format!("log.{n}")));
    for file in std::iter::once(file.clone()).chain(older) {
        let _ = std::fs::remove_file(file); // It may not exist.
    }
}

/// Removes the logs of client instances of earlier daemons.
pub fn remove_client_logs(logs_dir: &Path) {
    for entry in std::fs::read_dir(logs_dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let key = name.to_str().and_then(|it| it.split_once(".log")).map(|(key, _)| key);
        let key = key.and_then(InstanceKey::parse);
        if key.is_some_and(|key| key.holder.is_client()) {
            let _ = std::fs::remove_file(entry.path()); // A leftover is harmless.
        }
    }
}

/// Maximum bytes of recent output per instance.
pub const RING_BYTES: usize = 1024 * 1024;

/// Memory that one batch takes beside its bytes.
const BATCH_OVERHEAD: usize = 96;

/// Maximum bytes of a page, so that one follower does not block others.
const PAGE_BYTES: usize = 128 * 1024;

/// Prefix of each line that xy itself writes to the log of a server.
pub const OWN_PREFIX: &str = "xy: ";

/// The recent output of one instance.
#[derive(Debug)]
pub struct LogBook {
    ring: Mutex<Ring>,
    /// The number of the next record.
    head: watch::Sender<u64>,
    /// The content of the file before this log book.
    history: Option<History>,
    /// The number of the first record that is not in the history.
    history_ends: u64,
}

#[derive(Debug, Default)]
struct Ring {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// The number of the first record that was ever pushed.
    first_seq: Option<u64>,
}

#[derive(Debug, Clone)]
struct Batch {
    /// The number after that of the last record.
    end_seq: u64,
    count: usize,
    bytes: Bytes,
}

/// One line of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The number of the line; `None` if it is older than this daemon.
    pub seq: Option<u64>,
    /// When the line was read, in Unix milliseconds; `None` if that is unknown.
    pub unix_millis: Option<u64>,
    /// Whether the line comes from stderr.
    pub is_stderr: bool,
    /// Whether the line continues the line before it.
    pub continued: bool,
    /// The bytes of the line.
    pub bytes: Vec<u8>,
}

impl From<Record<'_>> for Line {
    fn from(record: Record<'_>) -> Self {
        Self {
            seq: Some(record.seq),
            unix_millis: Some(record.unix_millis),
            is_stderr: record.flags & flags::STDERR != 0,
            continued: record.flags & flags::CONTINUED != 0,
            bytes: record.line.to_vec(),
        }
    }
}

impl Default for LogBook {
    fn default() -> Self {
        Self::new(None)
    }
}

impl LogBook {
    /// Creates an empty log book; `history` is the earlier content of the file.
    pub fn new(history: Option<History>) -> Self {
        Self { ring: Mutex::default(), head: watch::Sender::new(1), history, history_ends: 1 }
    }

    /// Creates an empty log book of an adopted instance. The shim sends the latest records again;
    /// the file holds the records before `position`, which include many of them.
    pub fn adopted(file: &Path, position: Option<LogPosition>) -> Self {
        let history = position.map(|position| History::at(file, position));
        let history_ends = position.map_or(1, |position| position.next_seq);
        Self { history_ends, ..Self::new(history) }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // No critical section panics half-way, so a poisoned ring is still consistent.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the next record.
    pub fn next_seq(&self) -> u64 {
        *self.head.borrow()
    }

    /// Returns true if the server itself wrote a line from number `seq` on. Lines of xy do not
    /// count; lines that are not in memory do.
    pub fn has_written_since(&self, seq: u64) -> bool {
        let ring = self.ring();
        let records = ring.batches.iter().flat_map(|batch| wire::records(&batch.bytes));
        let (mut own, mut is_own) = (0, false);
        for record in records {
            let is_stdout = record.flags & flags::STDERR == 0;
            let is_continued = record.flags & flags::CONTINUED != 0;
            let begins_own = record.line.starts_with(OWN_PREFIX.as_bytes());
            is_own = is_stdout && if is_continued { is_own } else { begins_own };
            own += u64::from(is_own && record.seq >= seq);
        }
        self.next_seq().saturating_sub(seq) > own
    }

    /// Appends a batch from the shim. An empty batch only advances the numbers.
    pub fn push(&self, next_seq: u64, batch: &[u8]) {
        if !batch.is_empty() {
            let count = wire::records(batch).count();
            let bytes = Bytes::copy_from_slice(batch);
            let mut ring = self.ring();
            ring.bytes += bytes.len() + BATCH_OVERHEAD;
            let batch = Batch { end_seq: next_seq, count, bytes };
            ring.first_seq.get_or_insert(batch.first_seq());
            ring.batches.push_back(batch);
            ring.trim();
        }
        self.head.send_if_modified(|head| {
            let grown = next_seq > *head;
            *head = next_seq.max(*head);
            grown
        });
    }

    /// Returns the last `count` lines, oldest first, and a follower that continues after them.
    pub fn tail(self: &Arc<Self>, count: usize) -> (Vec<Line>, Follower) {
        let head = self.head.subscribe();
        // A follower without past lines does not report earlier lines as skipped, either.
        let from_seq = if count == 0 { *head.borrow() } else { 1 };
        let (mut lines, first_seq, next_seq) = {
            let ring = self.ring();
            let end = ring.batches.back().map_or(self.history_ends, |batch| batch.end_seq);
            (ring.last(count), ring.first_seq_or(self.history_ends), end.max(from_seq))
        };
        if lines.len() < count
            && let Some(first_seq) = first_seq
            && let Some(history) = &self.history
        {
            let mut older = self.older_lines(history, first_seq, count - lines.len());
            older.append(&mut lines);
            lines = older;
        }
        (lines, Follower { book: self.clone(), head, next_seq })
    }

    /// Returns lines of the file before the record `first_seq`, the first one of the ring.
    fn older_lines(&self, history: &History, first_seq: u64, count: usize) -> Vec<Line> {
        let overlap = self.history_ends.saturating_sub(first_seq);
        let overlap = usize::try_from(overlap).unwrap_or(usize::MAX);
        let mut lines = history.last_lines(count.saturating_add(overlap));
        lines.truncate(lines.len().saturating_sub(overlap));
        lines
    }

    /// Returns the first line of stdout from number `seq` on that is still in memory. Of a stdio
    /// server's stdout, only lines that are not MCP messages are logged.
    pub fn first_stdout(&self, seq: u64) -> Option<Line> {
        let ring = self.ring();
        let records = ring.batches.iter().flat_map(|batch| wire::records(&batch.bytes));
        let mut stdout = records.filter(|it| it.seq >= seq && it.flags & flags::STDERR == 0);
        stdout.next().map(Line::from)
    }

    /// Returns the last `count` lines of stderr that are still in memory, oldest first.
    pub fn last_stderr(&self, count: usize) -> Vec<Line> {
        let mut last = VecDeque::new();
        for batch in &self.ring().batches {
            for record in wire::records(&batch.bytes) {
                if record.flags & flags::STDERR == 0 {
                    continue;
                }
                last.push_back(Line::from(record));
                if last.len() > count {
                    last.pop_front();
                }
            }
        }
        last.into()
    }
}

impl Ring {
    /// Drops the oldest batches beyond the limit; the newest always stays.
    fn trim(&mut self) {
        while self.bytes > RING_BYTES && self.batches.len() > 1 {
            if let Some(batch) = self.batches.pop_front() {
                self.bytes -= batch.bytes.len() + BATCH_OVERHEAD;
            }
        }
    }

    /// Returns the number of the first record that was ever pushed, if it is still in the ring.
    /// Returns `default` if nothing was pushed yet.
    fn first_seq_or(&self, default: u64) -> Option<u64> {
        match (self.batches.front(), self.first_seq) {
            (Some(batch), Some(first)) => Some(first).filter(|first| batch.first_seq() == *first),
            _ => Some(default),
        }
    }

    fn last(&self, count: usize) -> Vec<Line> {
        let mut first = self.batches.len();
        let mut found = 0;
        while first > 0 && found < count {
            first -= 1;
            found += self.batches[first].count;
        }
        let skip = found.saturating_sub(count);
        let records = self.batches.range(first..).flat_map(|batch| wire::records(&batch.bytes));
        records.skip(skip).take(count).map(Line::from).collect()
    }

    /// Returns the batches from number `seq` on, up to a page.
    fn page(&self, seq: u64) -> Vec<Batch> {
        let first = self.batches.partition_point(|batch| batch.end_seq <= seq);
        let mut bytes = 0;
        let in_page = |batch: &&Batch| {
            let fits = bytes < PAGE_BYTES;
            bytes += batch.bytes.len();
            fits
        };
        self.batches.range(first..).take_while(in_page).cloned().collect()
    }
}

impl Batch {
    fn first_seq(&self) -> u64 {
        wire::records(&self.bytes).next().map_or(self.end_seq, |record| record.seq)
    }
}

/// A reader of live output.
#[derive(Debug)]
pub struct Follower {
    book: Arc<LogBook>,
    head: watch::Receiver<u64>,
    next_seq: u64,
}

/// The lines that one read of a follower returned, in order, with counts of missed lines.
#[derive(Debug)]
pub struct Page {
    batches: Vec<Batch>,
    from_seq: u64,
    to_seq: u64,
}

/// An item of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A line.
    Shown(Record<'a>),
    /// The number of lines that were missed here.
    Skipped(u64),
}

impl Follower {
    /// Waits for the next page. Cancel-safe: no line is lost.
    pub async fn next(&mut self) -> Page {
        let next_seq = self.next_seq;
        let waited = self.head.wait_for(|head| *head > next_seq).await.map(|head| *head);
        // The follower holds the log book, which holds the sender, so the channel is open.
        let Ok(head) = waited else { std::future::pending().await };
        let batches = self.book.ring().page(self.next_seq);
        // Numbered records that are not in the ring have been dropped.
        let to_seq = batches.last().map_or(head, |batch| batch.end_seq);
        let page = Page { batches, from_seq: self.next_seq, to_seq };
        self.next_seq = to_seq;
        page
    }

    /// Returns true if all lines so far have been returned.
    pub fn is_caught_up(&self) -> bool {
        *self.head.borrow() <= self.next_seq
    }
}

impl Page {
    /// Returns true if the page is full, so that more lines are likely.
    pub fn is_full(&self) -> bool {
        self.batches.iter().map(|batch| batch.bytes.len()).sum::<usize>() >= PAGE_BYTES
    }

    /// Calls `each` with the items, in order.
    pub fn for_each(&self, mut each: impl FnMut(Item<'_>)) {
        let mut next = self.from_seq;
        for record in self.batches.iter().flat_map(|batch| wire::records(&batch.bytes)) {
            if record.seq < next {
                continue;
            }
            if record.seq > next {
                each(Item::Skipped(record.seq - next));
            }
            next = record.seq + 1;
            each(Item::Shown(record));
        }
        if self.to_seq > next {
            each(Item::Skipped(self.to_seq - next));
        }
    }
}

#[cfg(test)]
mod tests;
