//! The output of a server: cut into records, numbered, kept, and told to the daemon.
//!
//! The daemon gets what it has room for; what it misses it learns from the numbers. What
//! it misses is never the latest: the last words of a server are the ones that matter.

use std::collections::VecDeque;
use std::time::Instant;

use crate::clock::Moment;
use crate::control::Outbox;
use crate::disk_log::DiskLog;
use crate::lines::Splitter;
use crate::wire::{self, LogOrder, LogPlace, Record, Report, flags};

/// A batch this long goes out before its round ends.
const BATCH: usize = 256 * 1024;

/// So much of the latest is remembered: for a daemon that has no room now, and for one
/// that comes later.
const REMEMBERED: usize = 256 * 1024;

/// What a quiet log keeps allocated.
const KEPT: usize = 4 * 1024;

/// Where output came from.
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

/// Where records go.
#[derive(Debug)]
struct Records {
    disk: DiskLog,
    batch: Vec<u8>,
    /// The latest batches, oldest first. Once one is unsent, so are all after it.
    latest: VecDeque<Latest>,
    next_seq: u64,
    /// What the daemon has been told of `next_seq`.
    told_seq: u64,
    /// What it has been told of the disk.
    told_problem: Option<String>,
}

/// A few records, one after another.
#[derive(Debug)]
struct Latest {
    /// The number after them.
    end_seq: u64,
    batch: Vec<u8>,
    is_sent: bool,
}

impl Log {
    pub(crate) fn open(order: &LogOrder, now: Instant) -> Self {
        let records = Records {
            disk: DiskLog::open(order, now),
            batch: Vec::new(),
            latest: VecDeque::new(),
            next_seq: order.next_seq,
            told_seq: order.next_seq,
            told_problem: None,
        };
        Self { splitters: Default::default(), records }
    }

    /// Takes bytes as they were read.
    pub(crate) fn take(&mut self, stream: Stream, bytes: &[u8], read: Moment, out: &mut Outbox) {
        let records = &mut self.records;
        self.splitters[stream.index()].push(bytes, |flags, line| {
            records.put(stream.flag() | flags, line, read, out);
        });
    }

    /// A stream has ended, maybe in the middle of a line.
    pub(crate) fn end_stream(&mut self, stream: Stream, read: Moment, out: &mut Outbox) {
        let records = &mut self.records;
        self.splitters[stream.index()].finish(|flags, line| {
            records.put(stream.flag() | flags, line, read, out);
        });
        records.disk.end_stream(stream == Stream::Err);
    }

    /// Writes and tells what this round has brought.
    pub(crate) fn end_round(&mut self, now: Instant, out: &mut Outbox) {
        self.records.disk.flush(now);
        self.records.tell_problem(out);
        self.records.send_batch(out);
    }

    /// Ends both streams; this time the daemon misses nothing.
    pub(crate) fn finish(&mut self, read: Moment, out: &mut Outbox) {
        out.take_everything();
        self.end_stream(Stream::Out, read, out);
        self.end_stream(Stream::Err, read, out);
        self.records.disk.finish(read.at);
        self.end_round(read.at, out);
    }

    /// How far everything is on disk.
    pub(crate) fn place(&mut self, now: Instant) -> Option<LogPlace> {
        let (device, inode, bytes) = self.records.disk.place(now)?;
        Some(LogPlace { device, inode, bytes, next_seq: self.records.next_seq })
    }

    /// Another daemon has come: it gets all that is remembered.
    pub(crate) fn begin_again(&mut self, out: &mut Outbox) {
        self.records.begin_again();
        self.records.send_batch(out);
    }

    /// When the log wants another round even if nothing comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.records.disk.deadline()
    }

    /// Gives memory back after a burst.
    pub(crate) fn trim(&mut self) {
        self.splitters.iter_mut().for_each(Splitter::trim);
        self.records.disk.trim();
        self.records.batch.shrink_to(KEPT);
        self.records.latest.iter_mut().for_each(|latest| latest.batch.shrink_to_fit());
    }
}

impl Records {
    fn put(&mut self, flags: u8, line: &[u8], read: Moment, out: &mut Outbox) {
        self.disk.put(flags, line, read.at);
        if self.batch.len() + wire::record_size(line) > BATCH {
            self.send_batch(out);
        }
        let record = Record { seq: self.next_seq, unix_millis: read.unix_millis, flags, line };
        wire::put_record(&mut self.batch, record);
        self.next_seq += 1;
    }

    /// Sends what has not been sent; what there is no room for waits, the latest of it.
    fn send_batch(&mut self, out: &mut Outbox) {
        self.send_latest(out);
        if self.batch.is_empty() {
            return;
        }
        let is_next = self.latest.back().is_none_or(|it| it.is_sent);
        let is_sent = is_next && out.put_log(self.next_seq, &self.batch);
        if is_sent {
            self.told_seq = self.next_seq;
        }
        self.remember(is_sent);
    }

    fn send_latest(&mut self, out: &mut Outbox) {
        for latest in self.latest.iter_mut().filter(|latest| !latest.is_sent) {
            if !out.put_log(latest.end_seq, &latest.batch) {
                return;
            }
            latest.is_sent = true;
            self.told_seq = latest.end_seq;
        }
        if self.told_seq < self.next_seq && self.batch.is_empty() && out.put_log(self.next_seq, &[])
        {
            self.told_seq = self.next_seq; // The numbers alone: nothing of it is remembered.
        }
    }

    /// Nothing has been told to this daemon yet.
    fn begin_again(&mut self) {
        self.told_seq = 0;
        self.told_problem = None;
        for latest in &mut self.latest {
            latest.is_sent = false;
        }
    }

    /// Adds the batch to the latest, and forgets the oldest of them.
    fn remember(&mut self, is_sent: bool) {
        let end_seq = self.next_seq;
        match self.latest.back_mut() {
            // Small ones are gathered, so that there are never many.
            Some(last)
                if last.is_sent == is_sent
                    && last.batch.len() + self.batch.len() <= REMEMBERED / 4 =>
            {
                last.end_seq = end_seq;
                last.batch.append(&mut self.batch);
            }
            _ => {
                let batch = std::mem::take(&mut self.batch);
                self.latest.push_back(Latest { end_seq, batch, is_sent });
            }
        }
        while self.latest.len() > 1 && self.remembered() > REMEMBERED {
            if let Some(Latest { mut batch, .. }) = self.latest.pop_front()
                && self.batch.capacity() == 0
            {
                batch.clear();
                self.batch = batch; // Its memory is there already.
            }
        }
    }

    fn remembered(&self) -> usize {
        self.latest.iter().map(|latest| latest.batch.len()).sum()
    }

    fn tell_problem(&mut self, out: &mut Outbox) {
        let problem = self.disk.problem();
        if problem != self.told_problem.as_deref() {
            self.told_problem = problem.map(str::to_owned);
            out.put_report(&Report::LogTrouble { problem: self.told_problem.clone() });
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
