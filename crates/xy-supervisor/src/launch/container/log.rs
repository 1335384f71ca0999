//! The output of a container, to where that of processes goes: its file and the ring.
//!
//! A task of its own, so that no disk that hangs holds up a server: a slow one is waited for, as a
//! shim does; what one that hangs has no room for is counted, and the count is told. What a later
//! daemon has to know of it is in a ledger (`log/ledger.rs`), before it is anywhere else.

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
use xy_shim::wire::{LogOrder, LogPlace, Record, flags, put_record, records};

use self::ledger::{Half, State};
use super::missed::{Known, Place, UNLIKE};
use crate::launch::millis;
use crate::logs::history::History;
use crate::logs::{FILE_BYTES, FILE_GENERATIONS, LogBook};
use crate::wait::time_of_day;

mod ledger;
mod redo;

pub(super) use self::ledger::{Ledger, older};

/// Pieces that wait for the disk; an engine's are at most 32 KiB long, and most are a line.
const WAITING: usize = 512;

/// A disk that takes longer for all of them hangs.
const HANGS_AFTER: Duration = Duration::from_secs(2);

/// So many pieces are written at once.
const AT_ONCE: usize = WAITING;

/// More records than this are not entered and written at once: what a killed daemon has not written
/// is in one file of the log or in two, and never in three.
const ENTRY_BYTES: usize = 64 * 1024;

/// A long piece is taken in parts.
const PART: usize = 16 * 1024;

/// Where output goes.
#[derive(Debug, Clone)]
pub(super) struct LogSink {
    pieces: mpsc::Sender<Piece>,
    dropped: Arc<Dropped>,
    /// The disk hung when it was last waited for.
    hangs: Arc<AtomicBool>,
    /// So many bytes of stdout and of stderr have been logged.
    logged: Arc<[AtomicU64; 2]>,
}

/// What of stdout and of stderr there was no room for since somebody last looked.
#[derive(Debug, Default)]
struct Dropped {
    pieces: [AtomicU64; 2],
    /// Which byte comes after them; 0 if that is not counted here.
    ends: [AtomicU64; 2],
}

/// The same, for whoever has looked.
#[derive(Debug, Default)]
struct Lost {
    pieces: [u64; 2],
    ends: [u64; 2],
}

impl Lost {
    fn each(&self) -> impl Iterator<Item = (u64, u64)> {
        self.pieces.into_iter().zip(self.ends)
    }
}

impl Dropped {
    fn add(&self, is_stderr: bool, ends: Option<u64>) {
        let stream = usize::from(is_stderr);
        self.ends[stream].fetch_max(ends.unwrap_or(0), Ordering::Relaxed);
        self.pieces[stream].fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> Lost {
        let taken = |of: &[AtomicU64; 2]| [0, 1].map(|it| of[it].swap(0, Ordering::Relaxed));
        Lost { pieces: taken(&self.pieces), ends: taken(&self.ends) }
    }
}

#[derive(Debug)]
enum Piece {
    Said {
        is_stderr: bool,
        bytes: Bytes,
        /// Which byte of all that the container has said there comes after it; `None` if that is
        /// not counted here.
        ends: Option<u64>,
        at: SystemTime,
    },
    /// Something is missing here, up to this byte, if that is known.
    Missing { is_stderr: bool, ends: Option<u64>, at: SystemTime },
    /// What came before is to be on disk when this is answered.
    Finish {
        /// Nothing comes after it, so half a line is a line.
        is_over: bool,
        done: oneshot::Sender<()>,
    },
}

/// What an earlier daemon has logged of a container.
pub(super) struct Past {
    pub(super) ledger: Ledger,
    pub(super) book: LogBook,
    /// How what has been logged of stdout and of stderr ends.
    pub(super) known: Known,
}

/// Takes up the log at `file` where an earlier daemon has left it, by the ledger at `ledger`: lines
/// that were about to be written are written. Where there is none, or it does not know what was
/// `noted` later, the lines are numbered anew. The stdout of a stdio server is not for its log, so
/// no ledger has to know that.
pub(super) fn take_up(ledger: PathBuf, file: &Path, noted: Place, is_stdio: bool) -> Past {
    take_up_by(&order(file), ledger, noted, is_stdio)
}

fn take_up_by(order: &LogOrder, ledger: PathBuf, noted: Place, is_stdio: bool) -> Past {
    let knows_all = |[out, err]: [u64; 2]| err >= noted.err && (is_stdio || out >= noted.out);
    let found = Ledger::find(ledger.clone()).filter(|(found, _)| knows_all(found.logged()));
    let file = Path::new(&order.file);
    let Some((ledger, entries)) = found else {
        let book = LogBook::new(History::note(file));
        let ledger = Ledger::begin(ledger, [noted.out, noted.err]);
        ledger.clear(); // What is left of it has other numbers.
        return Past { ledger, book, known: [None, None] };
    };
    if let Some(last) = entries.last() {
        redo::settle(order, last);
    }
    let book = LogBook::of_adopted(file, entries.first().and_then(|it| it.before));
    for entry in &entries {
        book.push(entry.next_seq, &entry.records);
    }
    let known = [false, true].map(|it| {
        let end = ledger::end_of(&entries, ledger.state(), it);
        let is_all = ledger.logged()[usize::from(it)] == end.len() as u64;
        (is_all || end.len() >= UNLIKE).then_some(end)
    });
    Past { ledger, book, known }
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
    /// A log that goes on where its ledger ends, and what keeps it from being written, as long as
    /// something does.
    pub(super) fn open(
        file: &Path,
        book: Arc<LogBook>,
        ledger: Ledger,
    ) -> (Self, watch::Receiver<Option<String>>) {
        let (pieces, waiting) = mpsc::channel(WAITING);
        let (trouble, troubled) = watch::channel(None);
        let dropped = Arc::<Dropped>::default();
        let logged = Arc::new(ledger.logged().map(AtomicU64::new));
        let order = LogOrder { next_seq: book.next_seq(), ..order(file) };
        let told = logged.clone();
        let open = move || Log::open(&order, book, ledger, told);
        tokio::spawn(write(open, waiting, trouble, dropped.clone()));
        (Self { pieces, dropped, hangs: Arc::default(), logged }, troubled)
    }

    /// Takes some bytes as they came, and waits for a disk that is slow. `ends` is which byte of
    /// all that the container has said there comes after them.
    pub(super) async fn write(&self, is_stderr: bool, bytes: Bytes, ends: u64) {
        if self.pieces.capacity() > 0 {
            self.hangs.store(false, Ordering::Relaxed);
        } else if !self.hangs.load(Ordering::Relaxed) {
            let room = timeout(HANGS_AFTER, self.pieces.reserve()).await;
            self.hangs.store(room.is_err(), Ordering::Relaxed);
        }
        self.put(is_stderr, bytes, Some(ends));
    }

    /// Takes some bytes as they came. Never waits.
    pub(super) fn put(&self, is_stderr: bool, bytes: Bytes, ends: Option<u64>) {
        self.send(is_stderr, ends, Piece::Said { is_stderr, bytes, ends, at: time_of_day() });
    }

    /// Has the log say that something is missing here, up to this byte, if that is known. Never waits.
    pub(super) fn miss(&self, is_stderr: bool, ends: Option<u64>) {
        self.send(is_stderr, ends, Piece::Missing { is_stderr, ends, at: time_of_day() });
    }

    fn send(&self, is_stderr: bool, ends: Option<u64>, piece: Piece) {
        if self.pieces.try_send(piece).is_err() {
            self.dropped.add(is_stderr, ends);
        }
    }

    /// How many bytes of stdout or of stderr have been logged, or are known not to be.
    pub(super) fn logged(&self, is_stderr: bool) -> u64 {
        self.logged[usize::from(is_stderr)].load(Ordering::Relaxed)
    }

    /// Resolves when everything is on disk that can be. Nothing comes after it.
    pub(super) async fn finish(&self) {
        self.written(true).await;
    }

    /// The same, but another daemon goes on with it: half a line is left to that.
    pub(super) async fn leave(&self) {
        self.written(false).await;
    }

    async fn written(&self, is_over: bool) {
        let (done, is_done) = oneshot::channel();
        if self.pieces.send(Piece::Finish { is_over, done }).await.is_ok() {
            let _ = is_done.await; // A writer that is gone has written what it could.
        }
    }
}

/// Writes what comes until nobody is left who could say anything.
async fn write(
    open: impl FnOnce() -> Log + Send + 'static,
    mut waiting: mpsc::Receiver<Piece>,
    trouble: watch::Sender<Option<String>>,
    dropped: Arc<Dropped>,
) {
    let Ok(mut log) = spawn_blocking(open).await else { return };
    let mut pieces = Vec::new();
    while waiting.recv_many(&mut pieces, AT_ONCE).await > 0 {
        let batch = std::mem::take(&mut pieces);
        let lost = dropped.take();
        let written = spawn_blocking(move || {
            let finished = log.take(batch, &lost);
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
    ledger: Ledger,
    /// Records that are nowhere yet, and the number of the first.
    batch: Vec<u8>,
    batch_seq: u64,
    next_seq: u64,
    logged: [u64; 2],
    /// The same, for others, once it is so.
    told: Arc<[AtomicU64; 2]>,
}

impl Log {
    fn open(
        order: &LogOrder,
        book: Arc<LogBook>,
        ledger: Ledger,
        told: Arc<[AtomicU64; 2]>,
    ) -> Self {
        let disk = DiskLog::open(order, Instant::now().into_std());
        let [out, err] = &ledger.state().halves;
        let mut log = Self {
            splitters: [out, err].map(|it| Splitter::resumed(&it.bytes, it.continued)),
            disk,
            book,
            batch: Vec::new(),
            batch_seq: order.next_seq,
            next_seq: order.next_seq,
            logged: ledger.logged(),
            ledger,
            told,
        };
        log.commit(); // Its numbers go on also if nothing is said before a kill.
        log
    }

    /// Writes some pieces; answers who waits for that.
    fn take(&mut self, pieces: Vec<Piece>, lost: &Lost) -> Vec<oneshot::Sender<()>> {
        let mut finished = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Said { is_stderr, bytes, ends, at } => {
                    self.hear(is_stderr, &bytes, ends, at);
                }
                Piece::Missing { is_stderr, ends, at } => self.miss(is_stderr, ends, at),
                Piece::Finish { is_over, done } => {
                    self.commit();
                    if is_over || !self.ledger.is_kept() {
                        self.end();
                    }
                    finished.push(done);
                }
            }
        }
        // There was no room because these pieces waited, so what was lost came after them.
        for (is_stderr, (pieces, ends)) in [false, true].into_iter().zip(lost.each()) {
            if pieces > 0 {
                let line =
                    format!("{pieces} pieces of its output were not kept: the disk is too slow");
                self.say(is_stderr, &line, time_of_day());
            }
            // Nobody will have it any more, so it counts: who goes on is not to wait for it.
            let logged = &mut self.logged[usize::from(is_stderr)];
            *logged = ends.max(*logged);
        }
        self.commit();
        finished
    }

    fn hear(&mut self, is_stderr: bool, bytes: &[u8], ends: Option<u64>, at: SystemTime) {
        let stream = usize::from(is_stderr);
        let mut left = bytes.len();
        for part in bytes.chunks(PART) {
            left -= part.len();
            let mut splitter = std::mem::take(&mut self.splitters[stream]);
            splitter.push(part, |more, line| self.record(is_stderr, more, line, at));
            self.splitters[stream] = splitter;
            if let Some(ends) = ends {
                self.logged[stream] = ends.saturating_sub(left as u64);
            }
            if self.batch.len() >= ENTRY_BYTES {
                self.commit();
            }
        }
        if let Some(ends) = ends {
            self.logged[stream] = ends; // Also if nothing of it could be had.
        }
    }

    /// Something is missing here, and was never heard.
    fn miss(&mut self, is_stderr: bool, ends: Option<u64>, at: SystemTime) {
        let logged = &mut self.logged[usize::from(is_stderr)];
        let bytes = ends.map(|ends| ends.saturating_sub(*logged));
        *logged = ends.unwrap_or(*logged);
        let line = match bytes {
            Some(bytes) => {
                format!("{bytes} bytes of its output are missing: its engine lacks them")
            }
            None => "some of its output may be missing: its engine lacks it".to_owned(),
        };
        self.say(is_stderr, &line, at);
    }

    /// A line of ours, where something is missing: what comes after it does not go on the line before.
    fn say(&mut self, is_stderr: bool, line: &str, at: SystemTime) {
        self.end_line(is_stderr, at);
        self.record(is_stderr, 0, &[ledger::OURS, line.as_bytes()].concat(), at);
    }

    fn end_line(&mut self, is_stderr: bool, at: SystemTime) {
        let mut splitter = std::mem::take(&mut self.splitters[usize::from(is_stderr)]);
        splitter.finish(|more, line| self.record(is_stderr, more, line, at));
    }

    /// The last lines may have no newline.
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

    /// Enters what there is in the ledger, then writes it, then has it shown: in this order.
    fn commit(&mut self) {
        let now = Instant::now().into_std();
        let state = self.state();
        if !self.batch.is_empty() || state != *self.ledger.state() {
            let next_seq = self.batch_seq;
            let before = self.disk.place(now);
            let before =
                before.map(|(device, inode, bytes)| LogPlace { device, inode, bytes, next_seq });
            self.ledger.enter(state, before, &self.batch);
        }
        for record in records(&self.batch) {
            self.disk.put(record.flags, record.line, now);
        }
        self.disk.flush(now);
        for (told, logged) in self.told.iter().zip(self.logged) {
            told.store(logged, Ordering::Relaxed);
        }
        self.book.push(self.next_seq, &self.batch);
        self.batch.clear();
        self.batch_seq = self.next_seq;
    }

    fn state(&self) -> State {
        let [out, err] = &self.splitters;
        let halves = [out, err].map(|splitter| {
            let (bytes, continued) = splitter.half();
            Half { bytes: bytes.to_vec(), continued }
        });
        State { next_seq: self.next_seq, logged: self.logged, halves }
    }
}

#[cfg(test)]
mod tests;
