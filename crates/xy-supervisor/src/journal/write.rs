//! Writes entries to disk, one batch after another, on a blocking thread.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::entry::{Entry, EntryKind};
use super::file;
use crate::wait::until;

/// Maximum bytes that wait for the disk, including the batch being written. Entries beyond it are
/// only counted.
const MAX_PENDING_BYTES: usize = 256 * 1024;

/// Delay after a write error before the next attempt.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The queue of entries to write, and the write in progress.
#[derive(Debug)]
pub(super) struct Writer {
    file: PathBuf,
    pending: Vec<u8>,
    /// The last dropped entry, and the number of dropped entries.
    dropped: Option<(Entry, u64)>,
    writing: Option<JoinHandle<WriteResult>>,
    /// The size of the batch being written, which returns to the queue after an error.
    in_flight: usize,
    /// The earliest time of the next attempt.
    retry_at: Option<Instant>,
    problem: Option<String>,
}

/// The result of a write: after an error, the batch and the error.
type WriteResult = Result<(), (Vec<u8>, io::Error)>;

impl Writer {
    pub(super) fn new(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            pending: Vec::new(),
            dropped: None,
            writing: None,
            in_flight: 0,
            retry_at: None,
            problem: None,
        }
    }

    /// Returns why entries cannot be written now, if that is so.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Queues an entry.
    pub(super) fn put(&mut self, entry: &Entry) {
        let line = line_of(entry);
        let queued = self.pending.len() + self.in_flight;
        if self.dropped.is_none() && queued + line.len() <= MAX_PENDING_BYTES {
            self.pending.extend(line);
            return;
        }
        let count = self.dropped.as_ref().map_or(0, |(_, count)| *count) + 1;
        self.dropped = Some((entry.clone(), count));
    }

    /// Resolves when a batch is written, or when the next attempt is due. Cancel-safe.
    pub(super) async fn progress(&mut self) {
        match &mut self.writing {
            None => {
                until(self.retry_at).await;
                self.retry_at = None;
            }
            Some(writing) => {
                let written = writing.await;
                self.writing = None;
                self.in_flight = 0;
                self.on_written(written.unwrap_or(Ok(()))); // A panicked thread lost the batch.
            }
        }
    }

    /// Starts to write the queue, unless a write is in progress or a delay applies.
    pub(super) fn start_write(&mut self) {
        if self.writing.is_some() || self.retry_at.is_some() {
            return;
        }
        let batch = self.batch();
        if !batch.is_empty() {
            let file = self.file.clone();
            self.in_flight = batch.len();
            self.writing = Some(tokio::task::spawn_blocking(move || write(&file, batch)));
        }
    }

    /// Writes the queue, or as much of it as the disk takes now.
    pub(super) async fn finish(&mut self) {
        self.retry_at = None;
        loop {
            self.start_write();
            if self.writing.is_none() {
                return; // All is written, or the disk fails.
            }
            self.progress().await;
        }
    }

    /// Takes the queue, followed by the count of dropped entries.
    fn batch(&mut self) -> Vec<u8> {
        let mut batch = std::mem::take(&mut self.pending);
        if let Some((last, count)) = self.dropped.take() {
            batch.extend(line_of(&Entry { kind: EntryKind::Skipped { count }, ..last }));
        }
        batch
    }

    fn on_written(&mut self, written: WriteResult) {
        let Err((mut batch, error)) = written else {
            self.problem = None;
            return;
        };
        batch.append(&mut self.pending);
        self.pending = batch;
        let file = self.file.display();
        self.problem = Some(format!(
            "events are not stored: could not write {file}: {error}; xy keeps trying"
        ));
        self.retry_at = Some(Instant::now() + RETRY_DELAY);
    }
}

fn write(file: &Path, batch: Vec<u8>) -> WriteResult {
    file::append(file, &batch).map_err(|error| (batch, error))
}

fn line_of(entry: &Entry) -> Vec<u8> {
    // Serialising plain values cannot fail.
    let mut line = serde_json::to_vec(entry).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::time_of_day;

    #[tokio::test]
    async fn batch_in_flight_counts_against_limit() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(&folder.path().join("events.jsonl"));
        let kind = EntryKind::Skipped { count: 1 };
        let entry = Entry { time: time_of_day().into(), boot: "b".to_owned(), seq: 1, kind };
        let fits = MAX_PENDING_BYTES / line_of(&entry).len();
        for _ in 0..fits {
            writer.put(&entry);
        }
        assert!(writer.dropped.is_none());
        writer.start_write();
        assert!(writer.pending.is_empty());
        writer.put(&entry);
        assert!(writer.pending.is_empty() && writer.dropped.is_some());
        writer.finish().await;
        writer.put(&entry);
        assert!(!writer.pending.is_empty() && writer.dropped.is_none());
    }
}
