//! A ring of recent output and a live tail, per instance.
//!
//! Batches are kept as the shim sent them and shared with followers without copying.
//! Every record has a number; a gap in the numbers is what a follower did not see, so
//! shown plus skipped is always all. A slow follower never slows the writer.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;
use xy_protocol::server::ServerName;
use xy_shim::wire::{self, LogPlace, Record, flags};

pub mod history;

use history::History;

use crate::instance::InstanceKey;

/// A log file is rotated at this size.
pub const FILE_BYTES: u64 = 10_000_000;

/// So many older log files are kept.
pub const FILE_GENERATIONS: u32 = 5;

/// The log of a server.
pub fn log_file(logs_dir: &Path, server: &ServerName) -> PathBuf {
    logs_dir.join(format!("{server}.log"))
}

/// The log of an instance: the server's own if all clients share it.
pub fn instance_log(logs_dir: &Path, key: &InstanceKey) -> PathBuf {
    logs_dir.join(format!("{key}.log"))
}

/// Removes the log of an instance that lived for one client, when both are gone.
pub(crate) fn forget(logs_dir: &Path, key: &InstanceKey) {
    let file = instance_log(logs_dir, key);
    let older = (1..=FILE_GENERATIONS).map(|n| file.with_extension(format!("log.{n}")));
    for file in std::iter::once(file.clone()).chain(older) {
        let _ = std::fs::remove_file(file); // It may never have said anything.
    }
}

/// Removes what instances for clients of earlier daemons have logged.
pub fn forget_clients(logs_dir: &Path) {
    for entry in std::fs::read_dir(logs_dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let key = name.to_str().and_then(|it| it.split_once(".log")).map(|(key, _)| key);
        let key = key.and_then(InstanceKey::parse);
        if key.is_some_and(|key| key.holder.is_client()) {
            let _ = std::fs::remove_file(entry.path()); // What stays does no harm.
        }
    }
}

/// How much recent output is kept per instance.
pub const RING_BYTES: usize = 1024 * 1024;

/// What keeping one batch costs beside its bytes.
const BATCH_COST: usize = 96;

/// How much one read of a follower takes at most, so that it lets others go on.
const PAGE_BYTES: usize = 128 * 1024;

/// How each line begins that xy itself writes to the log of a server.
pub const OWN_PREFIX: &str = "xy: ";

/// Recent output of one instance.
#[derive(Debug)]
pub struct LogBook {
    ring: Mutex<Ring>,
    /// The number the next record will have.
    head: watch::Sender<u64>,
    /// What the file held when the book was begun: the records before this number.
    history: Option<History>,
    history_ends: u64,
}

#[derive(Debug, Default)]
struct Ring {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// The number of the first record that was ever in it.
    first_seq: Option<u64>,
}

#[derive(Debug, Clone)]
struct Batch {
    /// One more than the number of its last record.
    end_seq: u64,
    count: usize,
    bytes: Bytes,
}

/// One line as it is shown: a record of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its number; `None` if it is older than this daemon.
    pub seq: Option<u64>,
    /// When it was read, in milliseconds since 1970; `None` if that was not kept.
    pub unix_millis: Option<u64>,
    /// Whether it came from stderr.
    pub is_stderr: bool,
    /// Whether it goes on the line before it.
    pub continued: bool,
    /// Its bytes.
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
    /// An empty book; `history` is what the file held before.
    pub fn new(history: Option<History>) -> Self {
        Self { ring: Mutex::default(), head: watch::Sender::new(1), history, history_ends: 1 }
    }

    /// An empty book of a server that an earlier daemon started. Its latest records come
    /// again; the file holds those before `place`, many of which are the same.
    pub(crate) fn of_adopted(file: &Path, place: Option<LogPlace>) -> Self {
        let history = place.map(|place| History::at(file, place));
        let history_ends = place.map_or(1, |place| place.next_seq);
        Self { history_ends, ..Self::new(history) }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // Nothing in here panics half-way, so a poisoned ring is still whole.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number the next record will have.
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

    /// Takes a batch from the shim; an empty one only tells how far the numbers are.
    pub fn push(&self, next_seq: u64, batch: &[u8]) {
        if !batch.is_empty() {
            let count = wire::records(batch).count();
            let bytes = Bytes::copy_from_slice(batch);
            let mut ring = self.ring();
            ring.bytes += bytes.len() + BATCH_COST;
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

    /// The last `count` lines, oldest first, and the follower that goes on after them.
    pub fn tail(self: &Arc<Self>, count: usize) -> (Vec<Line>, Follower) {
        let head = self.head.subscribe();
        // Who asks for no line of the past is not told of those it has missed, either.
        let numbered = if count == 0 { *head.borrow() } else { 1 };
        let (mut lines, first_seq, next_seq) = {
            let ring = self.ring();
            let end = ring.batches.back().map_or(self.history_ends, |batch| batch.end_seq);
            (ring.last(count), ring.reaches_back_to(self.history_ends), end.max(numbered))
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

    /// Lines of the file from before the record `first_seq`, which is in the ring.
    fn older_lines(&self, history: &History, first_seq: u64, count: usize) -> Vec<Line> {
        let both = self.history_ends.saturating_sub(first_seq);
        let both = usize::try_from(both).unwrap_or(usize::MAX);
        let mut lines = history.last_lines(count.saturating_add(both));
        lines.truncate(lines.len().saturating_sub(both));
        lines
    }

    /// Returns the first line of stdout from number `seq` on that is still in memory. What a
    /// stdio server logs there is not MCP.
    pub fn first_stdout(&self, seq: u64) -> Option<Line> {
        let ring = self.ring();
        let records = ring.batches.iter().flat_map(|batch| wire::records(&batch.bytes));
        let mut stdout = records.filter(|it| it.seq >= seq && it.flags & flags::STDERR == 0);
        stdout.next().map(Line::from)
    }

    /// The last `count` lines of stderr that are still in memory, oldest first.
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
    /// Forgets the oldest batches beyond the bound; the newest always stays.
    fn trim(&mut self) {
        while self.bytes > RING_BYTES && self.batches.len() > 1 {
            if let Some(batch) = self.batches.pop_front() {
                self.bytes -= batch.bytes.len() + BATCH_COST;
            }
        }
    }

    /// The number of its first record, if that is still the first that ever was in it;
    /// `otherwise` while there was none.
    fn reaches_back_to(&self, otherwise: u64) -> Option<u64> {
        match (self.batches.front(), self.first_seq) {
            (Some(batch), Some(first)) => Some(first).filter(|first| batch.first_seq() == *first),
            _ => Some(otherwise),
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

    /// The batches from number `seq` on, up to a page.
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

/// Reads on as output comes.
#[derive(Debug)]
pub struct Follower {
    book: Arc<LogBook>,
    head: watch::Receiver<u64>,
    next_seq: u64,
}

/// What a follower got: lines in order, and how many it missed in between.
#[derive(Debug)]
pub struct Page {
    batches: Vec<Batch>,
    from_seq: u64,
    to_seq: u64,
}

/// One thing in a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A line.
    Shown(Record<'a>),
    /// So many lines were missed here.
    Skipped(u64),
}

impl Follower {
    /// Waits for the next page. Cancel-safe: what was not returned comes again.
    pub async fn next(&mut self) -> Page {
        let next_seq = self.next_seq;
        let seen = self.head.wait_for(|head| *head > next_seq).await.map(|head| *head);
        // The book holds the sender, and we hold the book: it cannot be gone.
        let Ok(head) = seen else { std::future::pending().await };
        let batches = self.book.ring().page(self.next_seq);
        // What is not in the ring although its number was given has been dropped.
        let to_seq = batches.last().map_or(head, |batch| batch.end_seq);
        let page = Page { batches, from_seq: self.next_seq, to_seq };
        self.next_seq = to_seq;
        page
    }

    /// Whether everything so far has been returned.
    pub fn is_caught_up(&self) -> bool {
        *self.head.borrow() <= self.next_seq
    }
}

impl Page {
    /// Whether there is most likely more.
    pub fn is_full(&self) -> bool {
        self.batches.iter().map(|batch| batch.bytes.len()).sum::<usize>() >= PAGE_BYTES
    }

    /// Its items, in order.
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
