//! The disk behind session records: a thread of its own, so that no call waits for a file.
//!
//! The thread owns the journal. What it is told is in its memory first, and then in the file.
//! If the file cannot be written, the next change writes all of it anew. A disk that hangs
//! delays nobody for longer than [`KEEP_WITHIN`].

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use xy_config::trust;
use xy_supervisor::whole_file::{put_aside, write_whole};

use super::record::{Change, FILE_BYTES_MAX, Journal, Record};
use super::session_id::{KeyBytes, Keyring, derive};

/// How long an answer waits for the disk. A session whose change takes longer is served all the
/// same, but may be unknown to the next daemon.
pub(super) const KEEP_WITHIN: Duration = Duration::from_secs(2);

/// How long reading the journal may take at the start.
const OPEN_WITHIN: Duration = Duration::from_secs(5);

/// Changes that wait for the disk.
const WAITING_MAX: usize = 1024;

/// Bytes that are appended before the file is written anew, beside as much as it holds.
const COMPACT_AFTER: usize = 1024 * 1024;

/// Where records are kept across daemons.
pub(super) struct Store {
    changes: RefCell<Option<mpsc::Sender<Job>>>,
    /// Sessions of which a change was lost: what is kept of them is not true any more.
    outdated: RefCell<HashSet<u128>>,
    has_warned: Cell<bool>,
    thread: Cell<Option<JoinHandle<()>>>,
}

/// A change, and who waits for it.
struct Job {
    change: Change,
    tell: Option<oneshot::Sender<Kept>>,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// It is in the file.
    Yes,
    /// It is not there yet: the disk fails or hangs.
    Later,
    /// It never will be.
    No,
}

/// What an earlier daemon has left.
pub(super) struct Left {
    pub(super) epoch: u64,
    pub(super) keys: Keyring,
    pub(super) records: Vec<Record>,
}

impl Store {
    /// Keeps nothing.
    pub(super) fn none() -> (Self, Left) {
        let mut key = KeyBytes::default();
        let mut epoch = [0; 8];
        // Without randomness no session begins at all.
        let _ = getrandom::fill(&mut key).and_then(|()| getrandom::fill(&mut epoch));
        let epoch = u64::from_ne_bytes(epoch);
        let left = Left { epoch, keys: Keyring::new(&[(1, key)]), records: Vec::new() };
        (Self::of(None, None), left)
    }

    fn of(changes: Option<mpsc::Sender<Job>>, thread: Option<JoinHandle<()>>) -> Self {
        Self {
            changes: RefCell::new(changes),
            outdated: RefCell::default(),
            has_warned: Cell::new(false),
            thread: Cell::new(thread),
        }
    }

    /// Begins to keep records in `file`, with what is there.
    pub(super) async fn open(file: PathBuf, state_key: &[u8]) -> (Self, Left) {
        let key = derive(state_key);
        Self::open_with(move || Disk::open(file), key).await
    }

    async fn open_with<F: Journaled>(
        open: impl FnOnce() -> (F, Journal) + Send + 'static,
        key: KeyBytes,
    ) -> (Self, Left) {
        let (changes, jobs) = mpsc::channel(WAITING_MAX);
        let (tell, told) = oneshot::channel();
        let work = move || {
            let (disk, mut journal) = open();
            journal.use_key(key);
            let mut keeper = Keeper { disk, journal, appended: 0, is_behind: true };
            keeper.rewrite();
            let left = Left {
                epoch: keeper.journal.epoch,
                keys: Keyring::new(&keeper.journal.keys),
                records: keeper.journal.records().cloned().collect(),
            };
            if tell.send(left).is_ok() {
                keeper.run(jobs);
            }
        };
        let thread = std::thread::Builder::new().name("sessions".into()).spawn(work);
        let told = async { Ok((thread?, timeout(OPEN_WITHIN, told).await??)) };
        let told: Result<_, Box<dyn std::error::Error>> = told.await;
        match told {
            Ok((thread, left)) => (Self::of(Some(changes), Some(thread)), left),
            Err(cause) => {
                tracing::warn!(
                    "HTTP sessions end with this daemon: their records cannot be read: {cause}"
                );
                Self::none()
            }
        }
    }

    /// Keeps a change, and waits for that, but not for ever.
    pub(super) async fn keep(&self, change: Change) -> Kept {
        let (tell, told) = oneshot::channel();
        if !self.send(Job { change, tell: Some(tell) }) {
            return Kept::No;
        }
        let kept = match timeout(KEEP_WITHIN, told).await {
            Ok(Ok(kept)) => kept,
            Ok(Err(_)) => Kept::No,
            Err(_) => Kept::Later,
        };
        self.note(kept);
        kept
    }

    /// Keeps a change soon.
    pub(super) fn keep_soon(&self, change: Change) {
        self.send(Job { change, tell: None });
    }

    fn send(&self, job: Job) -> bool {
        let changes = self.changes.borrow();
        let Some(changes) = &*changes else { return false };
        if job.change.is_too_large() {
            self.note(Kept::No); // Many of these must not wait for the disk.
            return false;
        }
        let mut outdated = self.outdated.borrow_mut();
        while let Some(session) = outdated.iter().next().copied() {
            let forget = Job { change: Change::End(session), tell: None };
            if changes.try_send(forget).is_err() {
                break;
            }
            outdated.remove(&session);
        }
        let is_dispensable = job.change.is_dispensable();
        let (session, begins) = (job.change.session(), matches!(job.change, Change::Begin(_)));
        let is_sent = outdated.is_empty() && changes.try_send(job).is_ok();
        if !is_sent && !begins && !is_dispensable {
            outdated.insert(session); // No more than have a record.
        }
        drop(outdated);
        if !is_sent && is_dispensable {
            tracing::debug!(
                "an event stream is not in the record of its session: the disk is slow"
            );
        } else if !is_sent {
            self.note(Kept::Later);
        }
        is_sent
    }

    /// Warns once that sessions are not kept, until they are again.
    fn note(&self, kept: Kept) {
        let has_warned = self.has_warned.replace(kept != Kept::Yes);
        let why = match kept {
            Kept::Later => "the disk is full, or too slow",
            Kept::No => "its record is too large, or there are too many",
            Kept::Yes => return,
        };
        if !has_warned {
            tracing::warn!("a session over HTTP is served, but may end with this daemon: {why}");
        }
    }

    /// Has everything written that waits, within a limit.
    pub(super) async fn close(&self) {
        self.changes.replace(None);
        let Some(thread) = self.thread.take() else { return };
        let joined = tokio::task::spawn_blocking(move || thread.join());
        if timeout(KEEP_WITHIN, joined).await.is_err() {
            tracing::warn!("the last changes of HTTP sessions are not kept: the disk is too slow");
        }
    }
}

/// A file that a journal is written to; a seam for tests.
trait Journaled: Send + 'static {
    /// Adds to its end, whole or not at all.
    fn append(&mut self, text: &[u8]) -> io::Result<()>;

    /// Replaces all of it.
    fn rewrite(&mut self, text: &[u8]) -> io::Result<()>;
}

/// The thread's side.
struct Keeper<F> {
    disk: F,
    journal: Journal,
    /// Bytes that were appended since the file was written whole.
    appended: usize,
    /// Whether the file lacks something that the journal has.
    is_behind: bool,
}

impl<F: Journaled> Keeper<F> {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(Job { change, tell }) = jobs.blocking_recv() {
            let kept = self.keep(&change);
            if let Some(tell) = tell {
                let _ = tell.send(kept); // The caller may have timed out.
            }
        }
        if self.is_behind {
            self.rewrite(); // The disk may have room again.
        }
    }

    fn keep(&mut self, change: &Change) -> Kept {
        if !self.journal.apply(change) {
            return Kept::No;
        }
        if !self.is_behind {
            let text = Journal::encode_change(change);
            self.appended += text.len();
            self.is_behind = self.disk.append(&text).is_err();
        }
        let is_long = self.appended > COMPACT_AFTER + 2 * self.journal.size();
        if self.is_behind || is_long {
            self.rewrite();
        }
        if self.is_behind { Kept::Later } else { Kept::Yes }
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

/// A journal on disk.
struct Disk {
    path: PathBuf,
    file: Option<(File, u64)>,
}

impl Disk {
    /// Reads what is there. A journal that is damaged, a link, or open to others is put aside,
    /// and another begins.
    fn open(path: PathBuf) -> (Self, Journal) {
        let journal = match Self::read(&path) {
            Ok(text) => Journal::decode(&text).map_err(Some),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Err(None),
            Err(cause) => Err(Some(cause.to_string())),
        };
        let journal = journal.unwrap_or_else(|problem| {
            if let Some(problem) = problem {
                let told = put_aside(&path, &problem);
                tracing::warn!("HTTP sessions begin anew: {told}");
            }
            Journal::new(random_epoch())
        });
        (Self { path, file: None }, journal)
    }

    fn read(path: &Path) -> io::Result<Vec<u8>> {
        let file = trust::open_own(File::options().read(true), path)?;
        trust::check(path, &file.metadata()?)?; // Who may write it may have put sessions there.
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

impl Journaled for Disk {
    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let Some((file, length)) = &mut self.file else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if *length > FILE_BYTES_MAX / 2 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if let Err(cause) = file.write_all(text) {
            let _ = file.set_len(*length); // If that fails too, all of it is written anew.
            self.file = None;
            return Err(cause);
        }
        *length += text.len() as u64;
        Ok(())
    }

    fn rewrite(&mut self, text: &[u8]) -> io::Result<()> {
        self.file = None;
        write_whole(&self.path, text)?;
        self.file = Some(Self::reopen(&self.path)?);
        Ok(())
    }
}

fn random_epoch() -> u64 {
    let mut bits = [0; 8];
    let _ = getrandom::fill(&mut bits); // Ids are sealed with randomness too, or not at all.
    u64::from_ne_bytes(bits)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use super::super::record::tests::record;
    use super::super::record::{INITIALIZE_BYTES_MAX, RECORD_BYTES_MAX, StreamedCall};
    use super::super::session_id::{Claims, endpoint};
    use super::*;
    use crate::era::LATEST;
    use crate::frontend::View;

    /// A disk that fails or hangs when it is told to.
    #[derive(Clone, Default)]
    struct Fake(Arc<(Mutex<State>, Condvar)>);

    #[derive(Default)]
    struct State {
        text: Vec<u8>,
        is_full: bool,
        hangs: bool,
        rewritten: usize,
    }

    impl Fake {
        fn set(&self, set: impl FnOnce(&mut State)) {
            set(&mut self.0.0.lock().unwrap());
            self.0.1.notify_all();
        }

        fn write(&self, write: impl FnOnce(&mut State)) -> io::Result<()> {
            let state = self.0.0.lock().unwrap();
            let mut state = self.0.1.wait_while(state, |state| state.hangs).unwrap();
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

    impl Journaled for Fake {
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
        let disk = disk.clone();
        Store::open_with(move || (disk, Journal::new(1)), [1; 32]).await.0
    }

    #[tokio::test]
    async fn next_daemon_finds_what_was_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sessions");
        let (store, left) = Store::open(file.clone(), b"secret").await;
        assert!(left.records.is_empty());
        assert_eq!(store.keep(begin(1)).await, Kept::Yes);
        assert_eq!(store.keep(begin(2)).await, Kept::Yes);
        assert_eq!(store.keep(Change::End(1)).await, Kept::Yes);
        store.keep_soon(Change::Initialized(2));
        store.close().await;
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
        assert_eq!(mode & 0o777, 0o600);

        let (_store, again) = Store::open(file, b"secret").await;
        assert_eq!((again.epoch, again.keys.current()), (left.epoch, left.keys.current()));
        assert_eq!(again.records, [Record { initialized: true, ..record(2) }]);
    }

    #[tokio::test]
    async fn previous_key_opens_ids_as_long_as_they_have_records() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sessions");
        let (store, left) = Store::open(file.clone(), b"one").await;
        let claims = Claims {
            session: 1,
            epoch: left.epoch,
            home: 1,
            owner: None,
            endpoint: endpoint(&View::All),
            revision: LATEST,
            made_at: 0,
        };
        let id = left.keys.seal(&claims).unwrap();
        assert_eq!(store.keep(begin(1)).await, Kept::Yes);
        store.close().await;
        let (store, again) = Store::open(file.clone(), b"two").await;
        assert!(again.keys.open(&id) == Some(claims));
        assert_ne!(again.keys.current(), left.keys.current());
        assert_eq!(store.keep(Change::End(1)).await, Kept::Yes);
        store.close().await;
        let (_store, last) = Store::open(file, b"two").await;
        assert!(last.keys.open(&id).is_none());
    }

    #[tokio::test]
    async fn damaged_journal_is_put_aside_and_another_begins() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sessions");
        let (store, left) = Store::open(file.clone(), b"secret").await;
        assert_eq!(store.keep(begin(1)).await, Kept::Yes);
        store.close().await;
        std::fs::write(&file, "nonsense\n").unwrap();
        let (store, again) = Store::open(file.clone(), b"secret").await;
        assert!(again.records.is_empty() && again.epoch != left.epoch);
        assert_eq!(store.keep(begin(2)).await, Kept::Yes);
        store.close().await;
        assert!(folder.path().join("sessions.damaged").exists());
        assert_eq!(Store::open(file, b"secret").await.1.records, [record(2)]);
    }

    #[tokio::test]
    async fn journal_that_others_could_have_written_is_not_used() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (file, real) = (folder.path().join("sessions"), folder.path().join("real"));
        let begun = || async {
            let (store, left) = Store::open(file.clone(), b"secret").await;
            assert!(left.records.is_empty());
            assert_eq!(store.keep(begin(1)).await, Kept::Yes);
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
    async fn change_that_no_record_has_room_for_does_not_wait() {
        let disk = Fake::default();
        let store = store(&disk).await;
        assert_eq!(store.keep(begin(1)).await, Kept::Yes);
        disk.set(|state| state.hangs = true);
        let uri = "u".repeat(RECORD_BYTES_MAX + 1);
        assert_eq!(store.keep(Change::Subscribe(1, uri)).await, Kept::No);
        let initialize = "i".repeat(INITIALIZE_BYTES_MAX + 1);
        let large = Box::new(Record { initialize, ..record(2) });
        assert_eq!(store.keep(Change::Begin(large)).await, Kept::No);
        disk.set(|state| state.hangs = false);
        store.close().await;
        assert_eq!(disk.journal().records().count(), 1);
    }

    #[tokio::test]
    async fn full_disk_is_made_up_for_once_it_has_room() {
        let disk = Fake::default();
        let store = store(&disk).await;
        assert_eq!(store.keep(begin(1)).await, Kept::Yes);
        disk.set(|state| state.is_full = true);
        assert_eq!(store.keep(begin(2)).await, Kept::Later);
        assert_eq!(store.keep(Change::End(1)).await, Kept::Later);
        assert_eq!(disk.journal().records().count(), 1);
        disk.set(|state| state.is_full = false);
        assert_eq!(store.keep(begin(3)).await, Kept::Yes);
        let mut kept: Vec<u128> = disk.journal().records().map(|it| it.session).collect();
        kept.sort_unstable();
        assert_eq!(kept, [2, 3]);
        store.close().await;
    }

    #[tokio::test]
    async fn full_disk_that_has_room_at_the_end_is_made_up_for() {
        let disk = Fake::default();
        let store = store(&disk).await;
        disk.set(|state| state.is_full = true);
        assert_eq!(store.keep(begin(1)).await, Kept::Later);
        disk.set(|state| state.is_full = false);
        store.close().await;
        assert_eq!(disk.journal().records().count(), 1);
    }

    #[tokio::test]
    async fn session_does_not_end_for_streams_that_could_not_be_recorded() {
        let disk = Fake::default();
        let store = store(&disk).await;
        assert_eq!(store.keep(begin(1)).await, Kept::Yes);
        disk.set(|state| state.hangs = true);
        for stream in 0..=2 * WAITING_MAX as u64 {
            let request = stream.to_string();
            let call = StreamedCall { tag: 5, stream, request, answered_at: None };
            store.keep_soon(Change::Call(1, call));
            store.keep_soon(Change::StreamEnd(1, 5, stream));
        }
        disk.set(|state| state.hangs = false);
        while store.keep(begin(2)).await == Kept::No {}
        store.close().await;
        assert_eq!(disk.journal().records().count(), 2);
    }

    #[tokio::test]
    async fn hanging_disk_delays_an_answer_for_a_while_only() {
        let disk = Fake::default();
        let store = store(&disk).await;
        disk.set(|state| state.hangs = true);
        tokio::time::pause(); // The clock jumps to the limit, as nothing else happens.
        assert_eq!(store.keep(begin(1)).await, Kept::Later);
        store.keep_soon(begin(2));
        for _ in 0..WAITING_MAX {
            store.keep_soon(Change::Initialized(1));
        }
        assert_eq!(store.keep(begin(3)).await, Kept::No, "there is no room for it");
        assert_eq!(store.keep(Change::End(2)).await, Kept::No);
        tokio::time::resume();
        disk.set(|state| state.hangs = false);
        // The lost end is made up for.
        while store.keep(begin(4)).await == Kept::No {}
        store.close().await;
        let mut kept: Vec<u128> = disk.journal().records().map(|it| it.session).collect();
        kept.sort_unstable();
        assert_eq!(kept, [4], "1 and 2 lost changes, and 3 was never taken");
    }

    #[tokio::test]
    async fn file_is_compacted() {
        let disk = Fake::default();
        let store = store(&disk).await;
        assert_eq!(store.keep(begin(1)).await, Kept::Yes);
        for number in 0..=COMPACT_AFTER / 32 {
            let level = if number % 2 == 0 { "error" } else { "debug" };
            assert_eq!(store.keep(Change::Level(1, Some(level.to_owned()))).await, Kept::Yes);
        }
        store.close().await;
        let state = disk.0.0.lock().unwrap();
        assert!(state.rewritten > 1 && state.text.len() < COMPACT_AFTER + 64 * 1024);
    }
}
