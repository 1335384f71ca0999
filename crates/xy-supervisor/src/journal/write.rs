//! Brings lines to disk, one batch after another, on a thread that may wait.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::entry::{Entry, What};
use super::file;
use crate::wait::until;

/// So much waits for a disk that takes nothing, with what is being written; entries beyond it are counted and not kept.
const MAX_WAITING: usize = 256 * 1024;

/// How long after an error the disk is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// What is still to be written, and what is being written.
#[derive(Debug)]
pub(super) struct Writer {
    file: PathBuf,
    waiting: Vec<u8>,
    /// The last that was not kept, and how many there were.
    unkept: Option<(Entry, u64)>,
    writing: Option<JoinHandle<Written>>,
    /// So many bytes are being written: they come back if that fails.
    under_way: usize,
    /// Nothing is tried before.
    again_at: Option<Instant>,
    problem: Option<String>,
}

/// What became of a batch: what is left of it after an error.
type Written = Result<(), (Vec<u8>, io::Error)>;

impl Writer {
    pub(super) fn new(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            waiting: Vec::new(),
            unkept: None,
            writing: None,
            under_way: 0,
            again_at: None,
            problem: None,
        }
    }

    /// Why nothing can be written now, if so.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Takes an entry, to be written soon.
    pub(super) fn put(&mut self, entry: &Entry) {
        let line = line_of(entry);
        let held = self.waiting.len() + self.under_way;
        if self.unkept.is_none() && held + line.len() <= MAX_WAITING {
            self.waiting.extend(line);
            return;
        }
        let count = self.unkept.as_ref().map_or(0, |(_, count)| *count) + 1;
        self.unkept = Some((entry.clone(), count));
    }

    /// Resolves when a batch is written, or when the disk is to be tried again. Cancel-safe.
    pub(super) async fn turn(&mut self) {
        match &mut self.writing {
            None => {
                until(self.again_at).await;
                self.again_at = None;
            }
            Some(writing) => {
                let written = writing.await;
                self.writing = None;
                self.under_way = 0;
                self.judge(written.unwrap_or(Ok(()))); // A thread that is gone took it along.
            }
        }
    }

    /// Begins to write what waits, unless it must wait longer.
    pub(super) fn go_on(&mut self) {
        if self.writing.is_some() || self.again_at.is_some() {
            return;
        }
        let batch = self.batch();
        if !batch.is_empty() {
            let file = self.file.clone();
            self.under_way = batch.len();
            self.writing = Some(tokio::task::spawn_blocking(move || write(&file, batch)));
        }
    }

    /// Writes all that waits, or as much as the disk takes now.
    pub(super) async fn finish(&mut self) {
        self.again_at = None;
        loop {
            self.go_on();
            if self.writing.is_none() {
                return; // All is written, or there is no use in it.
            }
            self.turn().await;
        }
    }

    /// All that waits, and a word of what is missing after it.
    fn batch(&mut self) -> Vec<u8> {
        let mut batch = std::mem::take(&mut self.waiting);
        if let Some((last, count)) = self.unkept.take() {
            batch.extend(line_of(&Entry { what: What::Skipped { count }, ..last }));
        }
        batch
    }

    fn judge(&mut self, written: Written) {
        let Err((mut batch, error)) = written else {
            self.problem = None;
            return;
        };
        batch.append(&mut self.waiting);
        self.waiting = batch;
        let file = self.file.display();
        self.problem = Some(format!(
            "events are not kept: {file} cannot be written: {error}; it is tried again"
        ));
        self.again_at = Some(Instant::now() + TRY_AGAIN_AFTER);
    }
}

fn write(file: &Path, batch: Vec<u8>) -> Written {
    file::append(file, &batch).map_err(|error| (batch, error))
}

fn line_of(entry: &Entry) -> Vec<u8> {
    // Plain values into memory: this cannot fail.
    let mut line = serde_json::to_vec(entry).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::time_of_day;

    #[tokio::test]
    async fn what_is_being_written_counts_for_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(&folder.path().join("events.jsonl"));
        let what = What::Skipped { count: 1 };
        let entry = Entry { time: time_of_day().into(), boot: "b".to_owned(), seq: 1, what };
        let fits = MAX_WAITING / line_of(&entry).len();
        for _ in 0..fits {
            writer.put(&entry);
        }
        assert!(writer.unkept.is_none());
        writer.go_on();
        assert!(writer.waiting.is_empty());
        writer.put(&entry);
        assert!(writer.waiting.is_empty() && writer.unkept.is_some());
        writer.finish().await;
        writer.put(&entry);
        assert!(!writer.waiting.is_empty() && writer.unkept.is_none());
    }
}
