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
use crate::wire::{self, LogOrder, Record, Report, flags};

/// A batch this long goes out before its round ends.
const BATCH: usize = 256 * 1024;

/// So much of the latest is held back while the daemon has no room; then it gets that.
const HELD: usize = 256 * 1024;

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
    /// The latest batches that the daemon had no room for, each with the number after it.
    held: VecDeque<(u64, Vec<u8>)>,
    next_seq: u64,
    /// What the daemon has been told of `next_seq`.
    told_seq: u64,
    /// What it has been told of the disk.
    told_problem: Option<String>,
}

impl Log {
    pub(crate) fn open(order: &LogOrder, now: Instant) -> Self {
        let records = Records {
            disk: DiskLog::open(order, now),
            batch: Vec::new(),
            held: VecDeque::new(),
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

    /// When the log wants another round even if nothing comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.records.disk.deadline()
    }

    /// Gives memory back after a burst.
    pub(crate) fn trim(&mut self) {
        self.splitters.iter_mut().for_each(Splitter::trim);
        self.records.disk.trim();
        self.records.batch.shrink_to(KEPT);
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

    /// Sends what was held back, then the batch; what there is no room for is held back.
    fn send_batch(&mut self, out: &mut Outbox) {
        while let Some((next_seq, batch)) = self.held.front()
            && out.put_log(*next_seq, batch)
        {
            self.told_seq = *next_seq;
            self.held.pop_front();
        }
        if self.told_seq == self.next_seq || self.batch.is_empty() {
            return;
        }
        if self.held.is_empty() && out.put_log(self.next_seq, &self.batch) {
            self.told_seq = self.next_seq;
            self.batch.clear();
        } else {
            self.hold_back();
        }
    }

    /// Adds the batch to what is held back, and forgets the oldest of that.
    fn hold_back(&mut self) {
        match self.held.back_mut() {
            // Small ones are gathered, so that there are never many.
            Some((next_seq, held)) if held.len() + self.batch.len() <= HELD / 4 => {
                *next_seq = self.next_seq;
                held.append(&mut self.batch);
            }
            _ => self.held.push_back((self.next_seq, std::mem::take(&mut self.batch))),
        }
        while self.held.len() > 1
            && self.held.iter().map(|(_, batch)| batch.len()).sum::<usize>() > HELD
        {
            self.held.pop_front();
        }
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
