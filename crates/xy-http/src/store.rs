//! Writes session records to disk, on a thread of its own: no call waits for a file.
//!
//! The thread owns the journal. A change is applied in memory first and then written to the file.
//! If writing fails, the next change rewrites the whole file. A disk that hangs delays a response
//! by at most [`SAVE_TIMEOUT`].

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use xy_config::atomic_file::{quarantine, write_atomically};
use xy_config::trust;

use crate::record::{Change, FILE_BYTES_MAX, Journal, Record};
use crate::session_id::{KeyBytes, Keyring, derive};

/// How long a response waits for the disk. If saving takes longer, the session is served anyway,
/// but the next daemon may not know it.
pub(super) const SAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long reading the journal may take at startup.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of changes that wait for the disk.
const WAITING_MAX: usize = 1024;

/// The number of appended bytes after which the file is rewritten, in addition to twice the size of
/// the journal.
const COMPACT_THRESHOLD: usize = 1024 * 1024;

/// Stores session records across daemons.
pub(super) struct Store {
    changes: RefCell<Option<mpsc::Sender<Job>>>,
    /// Sessions that lost a change, so that their records are wrong.
    outdated: RefCell<HashSet<u128>>,
    has_warned: Cell<bool>,
    thread: Cell<Option<JoinHandle<()>>>,
}

/// A change, and the sender for its outcome.
struct Job {
    change: Change,
    reply: Option<oneshot::Sender<SaveOutcome>>,
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SaveOutcome {
    /// It is in the file.
    Saved,
    /// It is not in the file yet: the disk fails or hangs.
    Delayed,
    /// It will not be saved.
    Rejected,
}

/// The state that an earlier daemon saved.
pub(super) struct SavedState {
    pub(super) epoch: u64,
    pub(super) keys: Keyring,
    pub(super) records: Vec<Record>,
}

impl Store {
    /// Returns a store that saves nothing.
    pub(super) fn none() -> (Self, SavedState) {
        let mut key = KeyBytes::default();
        let mut epoch = [0; 8];
        // Without randomness no session can begin.
        let _ = getrandom::fill(&mut key).and_then(|()| getrandom::fill(&mut epoch));
        let epoch = u64::from_ne_bytes(epoch);
        let saved = SavedState { epoch, keys: Keyring::new(&[(1, key)]), records: Vec::new() };
        (Self::with_writer(None, None), saved)
    }

    fn with_writer(changes: Option<mpsc::Sender<Job>>, thread: Option<JoinHandle<()>>) -> Self {
        Self {
            changes: RefCell::new(changes),
            outdated: RefCell::default(),
            has_warned: Cell::new(false),
            thread: Cell::new(thread),
        }
    }

    /// Opens the journal at `file`, and returns its contents.
    pub(super) async fn open(file: PathBuf, state_key: &[u8]) -> (Self, SavedState) {
        let key = derive(state_key);
        Self::open_with(move || Disk::open(file), key).await
    }

    async fn open_with<F: JournalFile>(
        open: impl FnOnce() -> (F, Journal) + Send + 'static,
        key: KeyBytes,
    ) -> (Self, SavedState) {
        let (changes, jobs) = mpsc::channel(WAITING_MAX);
        let (reply, replied) = oneshot::channel();
        let work = move || {
            let (disk, mut journal) = open();
            journal.use_key(key);
            let mut writer = Writer { disk, journal, appended: 0, is_behind: true };
            writer.rewrite();
            let saved = SavedState {
                epoch: writer.journal.epoch,
                keys: Keyring::new(&writer.journal.keys),
                records: writer.journal.records().cloned().collect(),
            };
            if reply.send(saved).is_ok() {
                writer.run(jobs);
            }
        };
        let thread = std::thread::Builder::new().name("sessions".into()).spawn(work);
        let replied = async { Ok((thread?, timeout(OPEN_TIMEOUT, replied).await??)) };
        let replied: Result<_, Box<dyn std::error::Error>> = replied.await;
        match replied {
            Ok((thread, saved)) => (Self::with_writer(Some(changes), Some(thread)), saved),
            Err(cause) => {
                tracing::warn!(
                    "HTTP sessions end with this daemon: their records cannot be read: {cause}"
                );
                Self::none()
            }
        }
    }

    /// Saves a change, and waits for the outcome within a limit.
    pub(super) async fn save(&self, change: Change) -> SaveOutcome {
        let (reply, replied) = oneshot::channel();
        if !self.send(Job { change, reply: Some(reply) }) {
            return SaveOutcome::Rejected;
        }
        let outcome = match timeout(SAVE_TIMEOUT, replied).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => SaveOutcome::Rejected,
            Err(_) => SaveOutcome::Delayed,
        };
        self.warn_once(outcome);
        outcome
    }

    /// Saves a change without waiting.
    pub(super) fn save_soon(&self, change: Change) {
        self.send(Job { change, reply: None });
    }

    fn send(&self, job: Job) -> bool {
        let changes = self.changes.borrow();
        let Some(changes) = &*changes else { return false };
        if job.change.is_too_large() {
            self.warn_once(SaveOutcome::Rejected); // Many of these must not wait for the disk.
            return false;
        }
        let mut outdated = self.outdated.borrow_mut();
        while let Some(session) = outdated.iter().next().copied() {
            let forget = Job { change: Change::End(session), reply: None };
            if changes.try_send(forget).is_err() {
                break;
            }
            outdated.remove(&session);
        }
        let is_optional = job.change.is_optional();
        let (session, begins) = (job.change.session(), matches!(job.change, Change::Begin(_)));
        let is_sent = outdated.is_empty() && changes.try_send(job).is_ok();
        if !is_sent && !begins && !is_optional {
            outdated.insert(session); // Not more than there are records.
        }
        drop(outdated);
        if !is_sent && is_optional {
            tracing::debug!("could not record an event stream: the disk is too slow");
        } else if !is_sent {
            self.warn_once(SaveOutcome::Delayed);
        }
        is_sent
    }

    /// Logs a warning when sessions stop being saved, once until they are saved again.
    fn warn_once(&self, outcome: SaveOutcome) {
        let has_warned = self.has_warned.replace(outcome != SaveOutcome::Saved);
        let why = match outcome {
            SaveOutcome::Delayed => "the disk is full, or too slow",
            SaveOutcome::Rejected => "its record is too large, or there are too many",
            SaveOutcome::Saved => return,
        };
        if !has_warned {
            tracing::warn!("an HTTP session cannot be stored and may not survive a restart: {why}");
        }
    }

    /// Writes all waiting changes, within a limit.
    pub(super) async fn close(&self) {
        self.changes.replace(None);
        let Some(thread) = self.thread.take() else { return };
        let joined = tokio::task::spawn_blocking(move || thread.join());
        if timeout(SAVE_TIMEOUT, joined).await.is_err() {
            tracing::warn!(
                "the last changes of HTTP sessions were not stored: the disk is too slow"
            );
        }
    }
}

/// The file of a journal. Tests replace it.
trait JournalFile: Send + 'static {
    /// Appends `text` completely or not at all.
    fn append(&mut self, text: &[u8]) -> io::Result<()>;

    /// Replaces the contents.
    fn rewrite(&mut self, text: &[u8]) -> io::Result<()>;
}

/// The state of the writing thread.
struct Writer<F> {
    disk: F,
    journal: Journal,
    /// The number of bytes appended since the last rewrite.
    appended: usize,
    /// Whether the file lacks a change of the journal.
    is_behind: bool,
}

impl<F: JournalFile> Writer<F> {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(Job { change, reply }) = jobs.blocking_recv() {
            let outcome = self.save(&change);
            if let Some(reply) = reply {
                let _ = reply.send(outcome); // The caller may have timed out.
            }
        }
        if self.is_behind {
            self.rewrite(); // The disk may have space again.
        }
    }

    fn save(&mut self, change: &Change) -> SaveOutcome {
        if !self.journal.apply(change) {
            return SaveOutcome::Rejected;
        }
        if !self.is_behind {
            let text = Journal::encode_change(change);
            self.appended += text.len();
            self.is_behind = self.disk.append(&text).is_err();
        }
        let is_long = self.appended > COMPACT_THRESHOLD + 2 * self.journal.size();
        if self.is_behind || is_long {
            self.rewrite();
        }
        if self.is_behind { SaveOutcome::Delayed } else { SaveOutcome::Saved }
    }

    fn rewrite(&mut self) {
        self.appended = 0;
        if let Err(cause) = self.disk.rewrite(&self.journal.encode()) {
            self.is_behind = true;
            tracing::debug!(%cause, "the records of HTTP sessions could not be written");
        } else {
            self.is_behind = false;
        }
    }
}

/// A journal file on disk.
struct Disk {
    path: PathBuf,
    file: Option<(File, u64)>,
}

impl Disk {
    /// Reads the journal. Moves a journal aside that is damaged, a link or writable by others, and
    /// starts an empty one.
    fn open(path: PathBuf) -> (Self, Journal) {
        let journal = match Self::read(&path) {
            Ok(text) => Journal::decode(&text).map_err(Some),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Err(None),
            Err(cause) => Err(Some(cause.to_string())),
        };
        let journal = journal.unwrap_or_else(|problem| {
            if let Some(problem) = problem {
                let note = quarantine(&path, &problem);
                tracing::warn!("stored HTTP sessions are discarded: {note}");
            }
            Journal::new(random_epoch())
        });
        (Self { path, file: None }, journal)
    }

    fn read(path: &Path) -> io::Result<Vec<u8>> {
        let file = trust::open_own(File::options().read(true), path)?;
        trust::check(path, &file.metadata()?)?; // Anyone with write access may have added sessions.
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
        Ok(text)
    }

    fn reopen(path: &Path) -> io::Result<(File, u64)> {
        let file = trust::open_own(File::options().append(true), path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    }
}

impl JournalFile for Disk {
    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let Some((file, length)) = &mut self.file else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if *length > FILE_BYTES_MAX / 2 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if let Err(cause) = file.write_all(text) {
            let _ = file.set_len(*length); // If that fails too, the whole file is rewritten.
            self.file = None;
            return Err(cause);
        }
        *length += text.len() as u64;
        Ok(())
    }

    fn rewrite(&mut self, text: &[u8]) -> io::Result<()> {
        self.file = None;
        write_atomically(&self.path, text)?;
        self.file = Some(Self::reopen(&self.path)?);
        Ok(())
    }
}

fn random_epoch() -> u64 {
    let mut bits = [0; 8];
    let _ = getrandom::fill(&mut bits); // Session ids need randomness anyway.
    u64::from_ne_bytes(bits)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use xy_mcp::revision::LATEST;

    use super::super::record::tests::record;
    use super::super::record::{INITIALIZE_BYTES_MAX, RECORD_BYTES_MAX, StreamedCall};
    use super::super::session_id::{Claims, endpoint_digest};
    use super::*;
    use crate::frontend::View;

    /// A disk that fails or hangs on demand.
    #[derive(Clone, Default)]
    pub(crate) struct Fake(Arc<(Mutex<State>, Condvar)>);

    #[derive(Default)]
    struct State {
        text: Vec<u8>,
        is_full: bool,
        hangs: bool,
        /// True while a write waits for the disk to continue.
        is_waiting: bool,
        rewritten: usize,
    }

    impl Fake {
        /// Opens a store with an empty journal on this disk.
        pub(crate) async fn open(&self) -> (Store, SavedState) {
            let disk = self.clone();
            Store::open_with(move || (disk, Journal::new(1)), [1; 32]).await
        }

        /// Makes all writes wait from now on, or lets them continue.
        pub(crate) fn set_hanging(&self, hangs: bool) {
            self.set(|state| state.hangs = hangs);
        }

        /// Returns true while a write waits.
        pub(crate) fn is_waiting(&self) -> bool {
            self.0.0.lock().unwrap().is_waiting
        }

        /// Returns the number of records in the file.
        pub(crate) fn records(&self) -> usize {
            self.journal().records().count()
        }

        fn set(&self, set: impl FnOnce(&mut State)) {
            set(&mut self.0.0.lock().unwrap());
            self.0.1.notify_all();
        }

        fn write(&self, write: impl FnOnce(&mut State)) -> io::Result<()> {
            let state = self.0.0.lock().unwrap();
            let hangs = |state: &mut State| {
                state.is_waiting = state.hangs;
                state.hangs
            };
            let mut state = self.0.1.wait_while(state, hangs).unwrap();
            if state.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            write(&mut state);
            Ok(())
        }

        fn journal(&self) -> Journal {
            Journal::decode(&self.0.0.lock().unwrap().text).unwrap()
        }
    }

    impl JournalFile for Fake {
        fn append(&mut self, text: &[u8]) -> io::Result<()> {
            self.write(|state| state.text.extend_from_slice(text))
        }

        fn rewrite(&mut self, text: &[u8]) -> io::Result<()> {
            self.write(|state| {
                state.text = text.to_vec();
                state.rewritten += 1;
            })
        }
    }

    fn begin(session: u128) -> Change {
        Change::Begin(Box::new(record(session)))
    }

    async fn store(disk: &Fake) -> Store {
        disk.open().await.0
    }

    #[tokio::test]
    async fn next_daemon_restores_saved_records() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sessions");
        let (store, saved) = Store::open(file.clone(), b"secret").await;
        assert!(saved.records.is_empty());
        assert_eq!(store.save(begin(1)).await, SaveOutcome::Saved);
        assert_eq!(store.save(begin(2)).await, SaveOutcome::Saved);
        assert_eq!(store.save(Change::End(1)).await, SaveOutcome::Saved);
        store.save_soon(Change::Initialized(2));
        store.close().await;
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
        assert_eq!(mode & 0o777, 0o600);

        let (_store, again) = Store::open(file, b"secret").await;
        assert_eq!((again.epoch, again.keys.current()), (saved.epoch, saved.keys.current()));
        assert_eq!(again.records, [Record { initialized: true, ..record(2) }]);
    }

    #[tokio::test]
    async fn previous_key_opens_ids_that_have_records() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sessions");
        let (store, saved) = Store::open(file.clone(), b"one").await;
        let claims = Claims {
            session: 1,
            epoch: saved.epoch,
            home: 1,
            owner: None,
            endpoint: endpoint_digest(&View::All),
            revision: LATEST,
            made_at: 0,
        };
        let id = saved.keys.seal(&claims).unwrap();
        assert_eq!(store.save(begin(1)).await, SaveOutcome::Saved);
        store.close().await;
        let (store, again) = Store::open(file.clone(), b"two").await;
        assert!(again.keys.open(&id) == Some(claims));
        assert_ne!(again.keys.current(), saved.keys.current());
        assert_eq!(store.save(Change::End(1)).await, SaveOutcome::Saved);
        store.close().await;
        let (_store, last) = Store::open(file, b"two").await;
        assert!(last.keys.open(&id).is_none());
    }

    #[tokio::test]
    async fn damaged_journal_is_moved_away_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sessions");
        let (store, saved) = Store::open(file.clone(), b"secret").await;
        assert_eq!(store.save(begin(1)).await, SaveOutcome::Saved);
        store.close().await;
        std::fs::write(&file, "nonsense\n").unwrap();
        let (store, again) = Store::open(file.clone(), b"secret").await;
        assert!(again.records.is_empty() && again.epoch != saved.epoch);
        assert_eq!(store.save(begin(2)).await, SaveOutcome::Saved);
        store.close().await;
        assert!(folder.path().join("sessions.damaged").exists());
        assert_eq!(Store::open(file, b"secret").await.1.records, [record(2)]);
    }

    #[tokio::test]
    async fn journal_writable_by_others_is_not_used() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (file, real) = (folder.path().join("sessions"), folder.path().join("real"));
        let begun = || async {
            let (store, saved) = Store::open(file.clone(), b"secret").await;
            assert!(saved.records.is_empty());
            assert_eq!(store.save(begin(1)).await, SaveOutcome::Saved);
            store.close().await;
        };
        begun().await;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        begun().await;
        assert!(folder.path().join("sessions.damaged").exists());
        std::fs::rename(&file, &real).unwrap();
        symlink(&real, &file).unwrap();
        let before = std::fs::read(&real).unwrap();
        begun().await;
        assert!(!file.is_symlink() && folder.path().join("sessions.damaged-2").is_symlink());
        assert_eq!(std::fs::read(&real).unwrap(), before);
    }

    #[tokio::test]
    async fn too_large_change_is_rejected_at_once() {
        let disk = Fake::default();
        let store = store(&disk).await;
        assert_eq!(store.save(begin(1)).await, SaveOutcome::Saved);
        disk.set(|state| state.hangs = true);
        let uri = "u".repeat(RECORD_BYTES_MAX + 1);
        assert_eq!(store.save(Change::Subscribe(1, uri)).await, SaveOutcome::Rejected);
        let initialize = "i".repeat(INITIALIZE_BYTES_MAX + 1);
        let large = Box::new(Record { initialize, ..record(2) });
        assert_eq!(store.save(Change::Begin(large)).await, SaveOutcome::Rejected);
        disk.set(|state| state.hangs = false);
        store.close().await;
        assert_eq!(disk.journal().records().count(), 1);
    }

    #[tokio::test]
    async fn full_disk_is_caught_up_when_it_has_room() {
        let disk = Fake::default();
        let store = store(&disk).await;
        assert_eq!(store.save(begin(1)).await, SaveOutcome::Saved);
        disk.set(|state| state.is_full = true);
        assert_eq!(store.save(begin(2)).await, SaveOutcome::Delayed);
        assert_eq!(store.save(Change::End(1)).await, SaveOutcome::Delayed);
        assert_eq!(disk.journal().records().count(), 1);
        disk.set(|state| state.is_full = false);
        assert_eq!(store.save(begin(3)).await, SaveOutcome::Saved);
        let mut sessions: Vec<u128> = disk.journal().records().map(|it| it.session).collect();
        sessions.sort_unstable();
        assert_eq!(sessions, [2, 3]);
        store.close().await;
    }

    #[tokio::test]
    async fn full_disk_is_caught_up_at_shutdown() {
        let disk = Fake::default();
        let store = store(&disk).await;
        disk.set(|state| state.is_full = true);
        assert_eq!(store.save(begin(1)).await, SaveOutcome::Delayed);
        disk.set(|state| state.is_full = false);
        store.close().await;
        assert_eq!(disk.journal().records().count(), 1);
    }

    #[tokio::test]
    async fn unrecorded_streams_do_not_end_a_session() {
        let disk = Fake::default();
        let store = store(&disk).await;
        assert_eq!(store.save(begin(1)).await, SaveOutcome::Saved);
        disk.set(|state| state.hangs = true);
        for stream in 0..=2 * WAITING_MAX as u64 {
            let request = stream.to_string();
            let call = StreamedCall { tag: 5, stream, request, answered_at: None };
            store.save_soon(Change::Call(1, call));
            store.save_soon(Change::StreamEnd(1, 5, stream));
        }
        disk.set(|state| state.hangs = false);
        while store.save(begin(2)).await == SaveOutcome::Rejected {}
        store.close().await;
        assert_eq!(disk.journal().records().count(), 2);
    }

    #[tokio::test]
    async fn hanging_disk_delays_an_answer_only_briefly() {
        let disk = Fake::default();
        let store = store(&disk).await;
        disk.set(|state| state.hangs = true);
        tokio::time::pause(); // The clock jumps to the timeout, as nothing else happens.
        assert_eq!(store.save(begin(1)).await, SaveOutcome::Delayed);
        store.save_soon(begin(2));
        for _ in 0..WAITING_MAX {
            store.save_soon(Change::Initialized(1));
        }
        assert_eq!(store.save(begin(3)).await, SaveOutcome::Rejected, "there is no room for it");
        assert_eq!(store.save(Change::End(2)).await, SaveOutcome::Rejected);
        tokio::time::resume();
        disk.set(|state| state.hangs = false);
        // The lost `End` is made up for.
        while store.save(begin(4)).await == SaveOutcome::Rejected {}
        store.close().await;
        let mut sessions: Vec<u128> = disk.journal().records().map(|it| it.session).collect();
        sessions.sort_unstable();
        assert_eq!(sessions, [4], "1 and 2 lost changes, and 3 was never taken");
    }

    #[tokio::test]
    async fn file_is_compacted() {
        let disk = Fake::default();
        let store = store(&disk).await;
        assert_eq!(store.save(begin(1)).await, SaveOutcome::Saved);
        for number in 0..=COMPACT_THRESHOLD / 32 {
            let level = if number % 2 == 0 { "error" } else { "debug" };
            assert_eq!(
                store.save(Change::Level(1, Some(level.to_owned()))).await,
                SaveOutcome::Saved
            );
        }
        store.close().await;
        let state = disk.0.0.lock().unwrap();
        assert!(state.rewritten > 1 && state.text.len() < COMPACT_THRESHOLD + 64 * 1024);
    }
}
