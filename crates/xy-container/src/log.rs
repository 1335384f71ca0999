//! The log of a container: its file and the ring in memory.
//!
//! A separate task writes it, so that a hanging disk holds up no server. A slow disk is waited for,
//! as a shim does. Output that a hanging disk has no room for is counted, and the log shows the
//! count.
//!
//! The state that a later daemon needs is entered in a ledger (`log/ledger.rs`) before it is
//! written anywhere else.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use xy_shim::disk_log::DiskLog;
use xy_shim::lines::Splitter;
use xy_shim::wire::{LogOrder, LogPosition, Record, flags, put_record, records};
use xy_supervisor::logs::history::History;
use xy_supervisor::logs::{FILE_BYTES, FILE_GENERATIONS, LogBook};
use xy_supervisor::wait::millis;
use xy_supervisor::wait::time_of_day;

use self::ledger::{PartialLine, State};
use crate::log_gap::{KnownTails, MIN_MATCH_BYTES, OutputPosition};

mod ledger;
mod replay;

pub(crate) use self::ledger::{Ledger, older};

/// Number of pieces that may wait for the disk. A piece is at most 32 KiB long, and most are one
/// line.
const QUEUE_CAPACITY: usize = 512;

/// Time after which a disk that has taken none of them counts as hanging.
const HANG_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of pieces that are written at once.
const BATCH_SIZE: usize = QUEUE_CAPACITY;

/// Size of the records from which they are committed. So the records that a killed daemon has not
/// written belong to at most two files of the log.
const ENTRY_BYTES: usize = 64 * 1024;

/// Size of the parts in which a long piece is split into lines.
const CHUNK_BYTES: usize = 16 * 1024;

/// The sender of a container's output to its log.
#[derive(Debug, Clone)]
pub(crate) struct LogSink {
    pieces: mpsc::Sender<Piece>,
    dropped: Arc<DropCounters>,
    /// True if the disk hung when it was last waited for.
    hangs: Arc<AtomicBool>,
    /// Number of bytes of stdout and of stderr that have been logged.
    logged: Arc<[AtomicU64; 2]>,
}

/// Pieces of stdout and of stderr that found no room since the last commit.
#[derive(Debug, Default)]
struct DropCounters {
    pieces: [AtomicU64; 2],
    /// Offset after the last of them; 0 if it is not known.
    end_offset: [AtomicU64; 2],
}

/// A snapshot of the counters.
#[derive(Debug, Default)]
struct DroppedOutput {
    pieces: [u64; 2],
    end_offset: [u64; 2],
}

impl DroppedOutput {
    fn each(&self) -> impl Iterator<Item = (u64, u64)> {
        self.pieces.into_iter().zip(self.end_offset)
    }
}

impl DropCounters {
    fn add(&self, is_stderr: bool, end_offset: Option<u64>) {
        let stream = usize::from(is_stderr);
        self.end_offset[stream].fetch_max(end_offset.unwrap_or(0), Ordering::Relaxed);
        self.pieces[stream].fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> DroppedOutput {
        let taken = |of: &[AtomicU64; 2]| [0, 1].map(|it| of[it].swap(0, Ordering::Relaxed));
        DroppedOutput { pieces: taken(&self.pieces), end_offset: taken(&self.end_offset) }
    }
}

#[derive(Debug)]
enum Piece {
    Output {
        is_stderr: bool,
        bytes: Bytes,
        /// Offset in the container's stream after these bytes; `None` if they are not counted.
        end_offset: Option<u64>,
        at: SystemTime,
    },
    /// A gap in the output, up to this offset, if that is known.
    Missing { is_stderr: bool, end_offset: Option<u64>, at: SystemTime },
    /// Answers once everything before it is on disk.
    Finish {
        /// No output follows, so a partial line is complete.
        is_over: bool,
        done: oneshot::Sender<()>,
    },
}

/// The log of a container as an earlier daemon left it.
pub(crate) struct RecoveredLog {
    pub(crate) ledger: Ledger,
    pub(crate) book: LogBook,
    /// The end of the logged stdout and stderr.
    pub(crate) known: KnownTails,
}

/// Recovers the log at `file` with the ledger that an earlier daemon left. Lines that were entered
/// but not written are written now.
///
/// The ledger is discarded if it is missing, or if it lags behind the `noted` position; lines are
/// then numbered anew. The stdout of a stdio server is not logged, so it is not compared.
pub(crate) fn recover(
    ledger: PathBuf,
    file: &Path,
    noted: OutputPosition,
    is_stdio: bool,
) -> RecoveredLog {
    recover_with(&order(file), ledger, noted, is_stdio)
}

fn recover_with(
    order: &LogOrder,
    ledger: PathBuf,
    noted: OutputPosition,
    is_stdio: bool,
) -> RecoveredLog {
    let knows_all = |[out, err]: [u64; 2]| err >= noted.err && (is_stdio || out >= noted.out);
    let found = Ledger::find(ledger.clone()).filter(|(found, _)| knows_all(found.logged()));
    let file = Path::new(&order.file);
    let Some((ledger, entries)) = found else {
        let book = LogBook::new(History::note(file));
        let ledger = Ledger::begin(ledger, [noted.out, noted.err]);
        ledger.clear(); // Its remains have other line numbers.
        return RecoveredLog { ledger, book, known: [None, None] };
    };
    if let Some(last) = entries.last() {
        replay::apply(order, last);
    }
    let book = LogBook::adopted(file, entries.first().and_then(|it| it.before));
    for entry in &entries {
        book.push(entry.next_seq, &entry.records);
    }
    let known = [false, true].map(|it| {
        let end = ledger::tail_of(&entries, ledger.state(), it);
        let is_all = ledger.logged()[usize::from(it)] == end.len() as u64;
        (is_all || end.len() >= MIN_MATCH_BYTES).then_some(end)
    });
    RecoveredLog { ledger, book, known }
}

fn order(file: &Path) -> LogOrder {
    LogOrder {
        file: file.to_string_lossy().into_owned(),
        max_bytes: FILE_BYTES,
        generations: FILE_GENERATIONS,
        next_seq: 1,
    }
}

impl LogSink {
    /// Opens a log that continues where its ledger ends. The receiver holds the reason while the
    /// log cannot be written.
    pub(crate) fn open(
        file: &Path,
        book: Arc<LogBook>,
        ledger: Ledger,
    ) -> (Self, watch::Receiver<Option<String>>) {
        let (pieces, waiting) = mpsc::channel(QUEUE_CAPACITY);
        let (trouble, troubled) = watch::channel(None);
        let dropped = Arc::<DropCounters>::default();
        let logged = Arc::new(ledger.logged().map(AtomicU64::new));
        let order = LogOrder { next_seq: book.next_seq(), ..order(file) };
        let published = logged.clone();
        let open = move || Log::open(&order, book, ledger, published);
        tokio::spawn(write(open, waiting, trouble, dropped.clone()));
        (Self { pieces, dropped, hangs: Arc::default(), logged }, troubled)
    }

    /// Logs some bytes, and waits for a slow disk. `ends` is the offset in the container's stream
    /// after them.
    pub(crate) async fn write(&self, is_stderr: bool, bytes: Bytes, end_offset: u64) {
        if self.pieces.capacity() > 0 {
            self.hangs.store(false, Ordering::Relaxed);
        } else if !self.hangs.load(Ordering::Relaxed) {
            let room = timeout(HANG_TIMEOUT, self.pieces.reserve()).await;
            self.hangs.store(room.is_err(), Ordering::Relaxed);
        }
        self.put(is_stderr, bytes, Some(end_offset));
    }

    /// Logs some bytes. Never waits.
    pub(crate) fn put(&self, is_stderr: bool, bytes: Bytes, end_offset: Option<u64>) {
        self.send(
            is_stderr,
            end_offset,
            Piece::Output { is_stderr, bytes, end_offset, at: time_of_day() },
        );
    }

    /// Logs a gap in the output, up to this offset, if that is known. Never waits.
    pub(crate) fn mark_gap(&self, is_stderr: bool, end_offset: Option<u64>) {
        self.send(
            is_stderr,
            end_offset,
            Piece::Missing { is_stderr, end_offset, at: time_of_day() },
        );
    }

    fn send(&self, is_stderr: bool, end_offset: Option<u64>, piece: Piece) {
        if self.pieces.try_send(piece).is_err() {
            self.dropped.add(is_stderr, end_offset);
        }
    }

    /// Returns how many bytes of a stream have been logged, or are known to be lost.
    pub(crate) fn logged(&self, is_stderr: bool) -> u64 {
        self.logged[usize::from(is_stderr)].load(Ordering::Relaxed)
    }

    /// Ends the log. Resolves once everything is on disk that can be written.
    pub(crate) async fn finish(&self) {
        self.written(true).await;
    }

    /// Leaves the log to another daemon, with its partial lines. Resolves once everything is on
    /// disk that can be written.
    pub(crate) async fn leave(&self) {
        self.written(false).await;
    }

    async fn written(&self, is_over: bool) {
        let (done, is_done) = oneshot::channel();
        if self.pieces.send(Piece::Finish { is_over, done }).await.is_ok() {
            let _ = is_done.await; // A writer that is gone has written what it could.
        }
    }
}

/// Writes pieces until all senders are dropped.
async fn write(
    open: impl FnOnce() -> Log + Send + 'static,
    mut waiting: mpsc::Receiver<Piece>,
    trouble: watch::Sender<Option<String>>,
    dropped: Arc<DropCounters>,
) {
    let Ok(mut log) = spawn_blocking(open).await else { return };
    let mut pieces = Vec::new();
    while waiting.recv_many(&mut pieces, BATCH_SIZE).await > 0 {
        let batch = std::mem::take(&mut pieces);
        let lost = dropped.take();
        let written = spawn_blocking(move || {
            let finished = log.take(batch, &lost);
            (log, finished)
        });
        let Ok((back, finished)) = written.await else { return };
        log = back;
        trouble.send_if_modified(|published| {
            let now = log.disk.problem().map(str::to_owned);
            let new_engine = *published != now;
            *published = now;
            new_engine
        });
        for done in finished {
            let _ = done.send(()); // The receiver may be gone.
        }
    }
}

struct Log {
    splitters: [Splitter; 2],
    disk: DiskLog,
    book: Arc<LogBook>,
    ledger: Ledger,
    /// Records that are not committed yet, and the number of the first.
    batch: Vec<u8>,
    batch_seq: u64,
    next_seq: u64,
    logged: [u64; 2],
    /// Published copy of `logged`, updated after each commit.
    published: Arc<[AtomicU64; 2]>,
}

impl Log {
    fn open(
        order: &LogOrder,
        book: Arc<LogBook>,
        ledger: Ledger,
        published: Arc<[AtomicU64; 2]>,
    ) -> Self {
        let disk = DiskLog::open(order, Instant::now().into_std());
        let [out, err] = &ledger.state().partial_lines;
        let mut log = Self {
            splitters: [out, err].map(|it| Splitter::resume(&it.bytes, it.continued)),
            disk,
            book,
            batch: Vec::new(),
            batch_seq: order.next_seq,
            next_seq: order.next_seq,
            logged: ledger.logged(),
            ledger,
            published,
        };
        log.commit(); // The line numbers must continue even if nothing is written before a kill.
        log
    }

    /// Writes some pieces; returns whom to answer.
    fn take(&mut self, pieces: Vec<Piece>, lost: &DroppedOutput) -> Vec<oneshot::Sender<()>> {
        let mut finished = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Output { is_stderr, bytes, end_offset, at } => {
                    self.log_output(is_stderr, &bytes, end_offset, at);
                }
                Piece::Missing { is_stderr, end_offset, at } => {
                    self.log_gap(is_stderr, end_offset, at);
                }
                Piece::Finish { is_over, done } => {
                    self.commit();
                    if is_over || !self.ledger.is_kept() {
                        self.end();
                    }
                    finished.push(done);
                }
            }
        }
        // The dropped output came after these pieces, which filled the queue.
        for (is_stderr, (pieces, end_offset)) in [false, true].into_iter().zip(lost.each()) {
            if pieces > 0 {
                let line =
                    format!("{pieces} chunks of its output were dropped: the disk is too slow");
                self.log_own_line(is_stderr, &line, time_of_day());
            }
            // The dropped output is lost for good. It counts as logged, so that no task waits for
            // it.
            let logged = &mut self.logged[usize::from(is_stderr)];
            *logged = end_offset.max(*logged);
        }
        self.commit();
        finished
    }

    fn log_output(
        &mut self,
        is_stderr: bool,
        bytes: &[u8],
        end_offset: Option<u64>,
        at: SystemTime,
    ) {
        let stream = usize::from(is_stderr);
        let mut left = bytes.len();
        for part in bytes.chunks(CHUNK_BYTES) {
            left -= part.len();
            let mut splitter = std::mem::take(&mut self.splitters[stream]);
            splitter.push(part, |more, line| self.record(is_stderr, more, line, at));
            self.splitters[stream] = splitter;
            if let Some(end_offset) = end_offset {
                self.logged[stream] = end_offset.saturating_sub(left as u64);
            }
            if self.batch.len() >= ENTRY_BYTES {
                self.commit();
            }
        }
        if let Some(end_offset) = end_offset {
            self.logged[stream] = end_offset; // Also if the bytes themselves are missing.
        }
    }

    /// Logs a gap in the output.
    fn log_gap(&mut self, is_stderr: bool, end_offset: Option<u64>, at: SystemTime) {
        let logged = &mut self.logged[usize::from(is_stderr)];
        let bytes = end_offset.map(|end_offset| end_offset.saturating_sub(*logged));
        *logged = end_offset.unwrap_or(*logged);
        let line = match bytes {
            Some(bytes) => {
                format!("{bytes} bytes of its output are missing in the engine's log")
            }
            None => "some of its output may be missing in the engine's log".to_owned(),
        };
        self.log_own_line(is_stderr, &line, at);
    }

    /// Logs a line of xy's own where output is missing. It ends the line before, so that nothing is
    /// joined across the gap.
    fn log_own_line(&mut self, is_stderr: bool, line: &str, at: SystemTime) {
        self.end_line(is_stderr, at);
        self.record(is_stderr, 0, &[ledger::OWN_PREFIX_BYTES, line.as_bytes()].concat(), at);
    }

    fn end_line(&mut self, is_stderr: bool, at: SystemTime) {
        let mut splitter = std::mem::take(&mut self.splitters[usize::from(is_stderr)]);
        splitter.finish(|more, line| self.record(is_stderr, more, line, at));
    }

    /// Ends the log. The last lines may have no newline.
    fn end(&mut self) {
        for is_stderr in [false, true] {
            self.end_line(is_stderr, time_of_day());
        }
        self.commit();
        self.disk.end_stream(false);
        self.disk.end_stream(true);
        self.disk.finish(Instant::now().into_std());
    }

    fn record(&mut self, is_stderr: bool, more: u8, line: &[u8], at: SystemTime) {
        let flags = more | if is_stderr { flags::STDERR } else { 0 };
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let record = Record { seq: self.next_seq, unix_millis: millis(since), flags, line };
        put_record(&mut self.batch, record);
        self.next_seq += 1;
    }

    /// Enters the batch in the ledger, then writes it, then shows it: in this order.
    fn commit(&mut self) {
        let now = Instant::now().into_std();
        let state = self.state();
        if !self.batch.is_empty() || state != *self.ledger.state() {
            let next_seq = self.batch_seq;
            let before = self.disk.position(now);
            let before =
                before.map(|(device, inode, bytes)| LogPosition { device, inode, bytes, next_seq });
            self.ledger.enter(state, before, &self.batch);
        }
        for record in records(&self.batch) {
            self.disk.put(record.flags, record.line, now);
        }
        self.disk.flush(now);
        for (published, logged) in self.published.iter().zip(self.logged) {
            published.store(logged, Ordering::Relaxed);
        }
        self.book.push(self.next_seq, &self.batch);
        self.batch.clear();
        self.batch_seq = self.next_seq;
    }

    fn state(&self) -> State {
        let [out, err] = &self.splitters;
        let partial_lines = [out, err].map(|splitter| {
            let (bytes, continued) = splitter.partial_line();
            PartialLine { bytes: bytes.to_vec(), continued }
        });
        State { next_seq: self.next_seq, logged: self.logged, partial_lines }
    }
}

#[cfg(test)]
mod tests;
