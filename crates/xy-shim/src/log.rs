//! The output of a server: split into records, numbered, written to disk and sent to the daemon.
//!
//! The daemon gets as much as it has room for, and learns from the numbers what it has missed. The
//! latest output is never missed: the last words of a server matter most.

use std::collections::VecDeque;
use std::time::Instant;

use crate::clock::Moment;
use crate::control::Outbox;
use crate::disk_log::DiskLog;
use crate::lines::Splitter;
use crate::wire::{self, LogOrder, LogPosition, Record, Report, flags};

/// Batch size at which a batch is sent before its round ends.
const MAX_BATCH: usize = 256 * 1024;

/// Amount of the latest output that is kept for a daemon that is slow or attaches later.
const MAX_RECENT: usize = 256 * 1024;

/// Buffer capacity that an idle log retains.
const RETAINED_CAPACITY: usize = 4 * 1024;

/// A stream of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// All output of one life.
#[derive(Debug)]
pub(crate) struct Log {
    splitters: [Splitter; 2],
    records: Records,
}

/// The destinations of records.
#[derive(Debug)]
struct Records {
    disk: DiskLog,
    batch: Vec<u8>,
    /// The latest batches, oldest first. Once one is unsent, so are all after it.
    recent: VecDeque<RecentBatch>,
    next_seq: u64,
    /// The `next_seq` last sent to the daemon.
    reported_seq: u64,
    /// The disk problem last reported to the daemon.
    reported_problem: Option<String>,
}

/// A few consecutive records.
#[derive(Debug)]
struct RecentBatch {
    /// The number after the last of them.
    end_seq: u64,
    batch: Vec<u8>,
    is_sent: bool,
}

impl Log {
    pub(crate) fn open(order: &LogOrder, now: Instant) -> Self {
        let records = Records {
            disk: DiskLog::open(order, now),
            batch: Vec::new(),
            recent: VecDeque::new(),
            next_seq: order.next_seq,
            reported_seq: order.next_seq,
            reported_problem: None,
        };
        Self { splitters: Default::default(), records }
    }

    /// Appends bytes as they were read.
    pub(crate) fn append(&mut self, stream: Stream, bytes: &[u8], read: Moment, out: &mut Outbox) {
        let records = &mut self.records;
        self.splitters[stream.index()].push(bytes, |flags, line| {
            records.put(stream.flag() | flags, line, read, out);
        });
    }

    /// Ends a stream, perhaps in the middle of a line.
    pub(crate) fn end_stream(&mut self, stream: Stream, read: Moment, out: &mut Outbox) {
        let records = &mut self.records;
        self.splitters[stream.index()].finish(|flags, line| {
            records.put(stream.flag() | flags, line, read, out);
        });
        records.disk.end_stream(stream == Stream::Err);
    }

    /// Writes and sends the output of this round.
    pub(crate) fn finish_round(&mut self, now: Instant, out: &mut Outbox) {
        self.records.disk.flush(now);
        self.records.report_problem(out);
        self.records.send_batch(out);
    }

    /// Ends both streams. This time the daemon misses nothing.
    pub(crate) fn finish(&mut self, read: Moment, out: &mut Outbox) {
        out.set_unbounded();
        self.end_stream(Stream::Out, read, out);
        self.end_stream(Stream::Err, read, out);
        self.records.disk.finish(read.at);
        self.finish_round(read.at, out);
    }

    /// Returns how far the log is on disk, unless it cannot be written.
    pub(crate) fn position(&mut self, now: Instant) -> Option<LogPosition> {
        let (device, inode, bytes) = self.records.disk.position(now)?;
        Some(LogPosition { device, inode, bytes, next_seq: self.records.next_seq })
    }

    /// Sends all recent output to a newly attached daemon.
    pub(crate) fn replay(&mut self, out: &mut Outbox) {
        self.records.replay();
        self.records.send_batch(out);
    }

    /// Returns when the log needs another round even without new output.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.records.disk.deadline()
    }

    /// Releases memory after a burst.
    pub(crate) fn trim(&mut self) {
        self.splitters.iter_mut().for_each(Splitter::trim);
        self.records.disk.trim();
        self.records.batch.shrink_to(RETAINED_CAPACITY);
        self.records.recent.iter_mut().for_each(|recent| recent.batch.shrink_to_fit());
    }
}

impl Records {
    fn put(&mut self, flags: u8, line: &[u8], read: Moment, out: &mut Outbox) {
        self.disk.put(flags, line, read.at);
        if self.batch.len() + wire::record_size(line) > MAX_BATCH {
            self.send_batch(out);
        }
        let record = Record { seq: self.next_seq, unix_millis: read.unix_millis, flags, line };
        wire::put_record(&mut self.batch, record);
        self.next_seq += 1;
    }

    /// Sends everything unsent. Output for which there is no room waits, as much as is recent.
    fn send_batch(&mut self, out: &mut Outbox) {
        self.send_recent(out);
        if self.batch.is_empty() {
            return;
        }
        let is_next = self.recent.back().is_none_or(|it| it.is_sent);
        let is_sent = is_next && out.put_log(self.next_seq, &self.batch);
        if is_sent {
            self.reported_seq = self.next_seq;
        }
        self.keep_recent(is_sent);
    }

    fn send_recent(&mut self, out: &mut Outbox) {
        for recent in self.recent.iter_mut().filter(|recent| !recent.is_sent) {
            if !out.put_log(recent.end_seq, &recent.batch) {
                return;
            }
            recent.is_sent = true;
            self.reported_seq = recent.end_seq;
        }
        if self.reported_seq < self.next_seq
            && self.batch.is_empty()
            && out.put_log(self.next_seq, &[])
        {
            // The number alone: the records themselves are not recent any more.
            self.reported_seq = self.next_seq;
        }
    }

    /// Marks everything as unsent.
    fn replay(&mut self) {
        self.reported_seq = 0;
        self.reported_problem = None;
        for recent in &mut self.recent {
            recent.is_sent = false;
        }
    }

    /// Adds the batch to the recent ones and drops the oldest of them.
    fn keep_recent(&mut self, is_sent: bool) {
        let end_seq = self.next_seq;
        match self.recent.back_mut() {
            // Small batches are merged, so that there are never many.
            Some(last)
                if last.is_sent == is_sent
                    && last.batch.len() + self.batch.len() <= MAX_RECENT / 4 =>
            {
                last.end_seq = end_seq;
                last.batch.append(&mut self.batch);
            }
            _ => {
                let batch = std::mem::take(&mut self.batch);
                self.recent.push_back(RecentBatch { end_seq, batch, is_sent });
            }
        }
        while self.recent.len() > 1 && self.recent_bytes() > MAX_RECENT {
            if let Some(RecentBatch { mut batch, .. }) = self.recent.pop_front()
                && self.batch.capacity() == 0
            {
                batch.clear();
                self.batch = batch; // Reuses its memory.
            }
        }
    }

    fn recent_bytes(&self) -> usize {
        self.recent.iter().map(|recent| recent.batch.len()).sum()
    }

    fn report_problem(&mut self, out: &mut Outbox) {
        let problem = self.disk.problem();
        if problem != self.reported_problem.as_deref() {
            self.reported_problem = problem.map(str::to_owned);
            out.put_report(&Report::LogTrouble { problem: self.reported_problem.clone() });
        }
    }
}

impl Stream {
    fn index(self) -> usize {
        usize::from(self == Self::Err)
    }

    fn flag(self) -> u8 {
        if self == Self::Err { flags::STDERR } else { 0 }
    }
}

#[cfg(test)]
mod tests;
