//! The output of a container, to where that of processes goes: its file and the ring.
//!
//! A task of its own, so that no disk that hangs holds up a server: a slow one is waited for, as a
//! shim does; what one that hangs has no room for is counted, and the count is told.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use xy_shim::disk_log::DiskLog;
use xy_shim::lines::Splitter;
use xy_shim::wire::{LogOrder, Record, flags, put_record};

use crate::launch::millis;
use crate::logs::{FILE_BYTES, FILE_GENERATIONS, LogBook};
use crate::wait::time_of_day;

/// Pieces that wait for the disk; an engine's are at most 32 KiB long, and most are a line.
const WAITING: usize = 512;

/// A disk that takes longer for all of them hangs.
const HANGS_AFTER: Duration = Duration::from_secs(2);

/// So many pieces are written at once.
const AT_ONCE: usize = WAITING;

/// Where output goes.
#[derive(Debug, Clone)]
pub(super) struct LogSink {
    pieces: mpsc::Sender<Piece>,
    dropped: Arc<AtomicU64>,
    /// The disk hung when it was last waited for.
    hangs: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Piece {
    Said {
        is_stderr: bool,
        bytes: Bytes,
        at: SystemTime,
    },
    /// What came before is to be on disk when this is answered.
    Finish(oneshot::Sender<()>),
}

impl LogSink {
    /// A log, and what keeps it from being written, as long as something does.
    pub(super) fn open(file: &Path, book: Arc<LogBook>) -> (Self, watch::Receiver<Option<String>>) {
        let (pieces, waiting) = mpsc::channel(WAITING);
        let (trouble, troubled) = watch::channel(None);
        let dropped = Arc::new(AtomicU64::new(0));
        let order = LogOrder {
            file: file.to_string_lossy().into_owned(),
            max_bytes: FILE_BYTES,
            generations: FILE_GENERATIONS,
            next_seq: book.next_seq(),
        };
        tokio::spawn(write(order, book, waiting, trouble, dropped.clone()));
        (Self { pieces, dropped, hangs: Arc::default() }, troubled)
    }

    /// Takes some bytes as they came, and waits for a disk that is slow.
    pub(super) async fn write(&self, is_stderr: bool, bytes: Bytes) {
        if self.pieces.capacity() > 0 {
            self.hangs.store(false, Ordering::Relaxed);
        } else if !self.hangs.load(Ordering::Relaxed) {
            let room = timeout(HANGS_AFTER, self.pieces.reserve()).await;
            self.hangs.store(room.is_err(), Ordering::Relaxed);
        }
        self.put(is_stderr, bytes);
    }

    /// Takes some bytes as they came. Never waits.
    pub(super) fn put(&self, is_stderr: bool, bytes: Bytes) {
        let piece = Piece::Said { is_stderr, bytes, at: time_of_day() };
        if self.pieces.try_send(piece).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Resolves when everything is on disk that can be.
    pub(super) async fn finish(&self) {
        let (done, is_done) = oneshot::channel();
        if self.pieces.send(Piece::Finish(done)).await.is_ok() {
            let _ = is_done.await; // A writer that is gone has written what it could.
        }
    }
}

/// Writes what comes until nobody is left who could say anything.
async fn write(
    order: LogOrder,
    book: Arc<LogBook>,
    mut waiting: mpsc::Receiver<Piece>,
    trouble: watch::Sender<Option<String>>,
    dropped: Arc<AtomicU64>,
) {
    let opened = spawn_blocking(move || Log::open(&order, book)).await;
    let Ok(mut log) = opened else { return };
    let mut pieces = Vec::new();
    while waiting.recv_many(&mut pieces, AT_ONCE).await > 0 {
        let batch = std::mem::take(&mut pieces);
        let lost = dropped.swap(0, Ordering::Relaxed);
        let written = spawn_blocking(move || {
            let finished = log.take(batch, lost);
            (log, finished)
        });
        let Ok((back, finished)) = written.await else { return };
        log = back;
        trouble.send_if_modified(|told| {
            let now = log.disk.problem().map(str::to_owned);
            let is_news = *told != now;
            *told = now;
            is_news
        });
        for done in finished {
            let _ = done.send(()); // Nobody may wait any more.
        }
    }
}

struct Log {
    splitters: [Splitter; 2],
    disk: DiskLog,
    book: Arc<LogBook>,
    next_seq: u64,
}

impl Log {
    fn open(order: &LogOrder, book: Arc<LogBook>) -> Self {
        let disk = DiskLog::open(order, Instant::now().into_std());
        Self { splitters: Default::default(), disk, next_seq: order.next_seq, book }
    }

    /// Writes some pieces; answers who waits for that.
    fn take(&mut self, pieces: Vec<Piece>, lost: u64) -> Vec<oneshot::Sender<()>> {
        let mut batch = Vec::new();
        let mut finished = Vec::new();
        if lost > 0 {
            let line =
                format!("xy: {lost} pieces of its output were not kept: the disk is too slow\n");
            self.put(true, line.as_bytes(), time_of_day(), &mut batch);
        }
        for piece in pieces {
            match piece {
                Piece::Said { is_stderr, bytes, at } => self.put(is_stderr, &bytes, at, &mut batch),
                Piece::Finish(done) => {
                    self.end(&mut batch);
                    finished.push(done);
                }
            }
        }
        self.disk.flush(Instant::now().into_std());
        self.book.push(self.next_seq, &batch);
        finished
    }

    fn put(&mut self, is_stderr: bool, bytes: &[u8], at: SystemTime, batch: &mut Vec<u8>) {
        let stream = usize::from(is_stderr);
        let mut splitter = std::mem::take(&mut self.splitters[stream]);
        splitter.push(bytes, |more, line| self.record(is_stderr, more, line, at, batch));
        self.splitters[stream] = splitter;
    }

    /// The last lines may have no newline.
    fn end(&mut self, batch: &mut Vec<u8>) {
        for is_stderr in [false, true] {
            let mut splitter = std::mem::take(&mut self.splitters[usize::from(is_stderr)]);
            splitter.finish(|more, line| self.record(is_stderr, more, line, time_of_day(), batch));
            self.disk.end_stream(is_stderr);
        }
        self.disk.finish(Instant::now().into_std());
    }

    fn record(
        &mut self,
        is_stderr: bool,
        more: u8,
        line: &[u8],
        at: SystemTime,
        batch: &mut Vec<u8>,
    ) {
        let flags = more | if is_stderr { flags::STDERR } else { 0 };
        self.disk.put(flags, line, Instant::now().into_std());
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let record = Record { seq: self.next_seq, unix_millis: millis(since), flags, line };
        put_record(batch, record);
        self.next_seq += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_streams_are_in_the_file_and_in_the_ring_to_the_last_word() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("one.log");
        let book = Arc::new(LogBook::default());
        let (log, _troubled) = LogSink::open(&file, book.clone());
        log.put(false, Bytes::from_static(b"one\ntw"));
        log.put(true, Bytes::from_static(b"oops\n"));
        log.put(false, Bytes::from_static(b"o"));
        log.finish().await;
        let written = std::fs::read_to_string(&file).unwrap();
        assert_eq!(written, "[out] one\n[err] oops\n[out] two\n");
        let (lines, _) = book.tail(10);
        let shown: Vec<_> = lines.iter().map(|line| (line.is_stderr, line.bytes.clone())).collect();
        assert_eq!(
            shown,
            [(false, b"one".to_vec()), (true, b"oops".to_vec()), (false, b"two".to_vec())]
        );
    }

    #[tokio::test]
    async fn a_disk_that_is_only_slow_costs_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("one.log");
        let (log, _troubled) = LogSink::open(&file, Arc::new(LogBook::default()));
        for _ in 0..20 * WAITING {
            log.write(true, Bytes::from_static(b"line\n")).await;
        }
        log.finish().await;
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 20 * WAITING);
    }

    #[tokio::test]
    async fn a_disk_that_cannot_be_written_is_told_and_holds_up_nobody() {
        let (log, mut troubled) =
            LogSink::open(Path::new("/proc/nowhere/one.log"), Arc::new(LogBook::default()));
        for _ in 0..10 * WAITING {
            log.write(true, Bytes::from_static(b"line\n")).await;
        }
        log.finish().await;
        assert!(troubled.wait_for(Option::is_some).await.unwrap().is_some());
    }
}
