//! The journal: a numbered record of every change of state. Followers read it live, and clients
//! read it later, also after the daemon was killed.
//!
//! One task owns the journal. It receives the changes of all instances, numbers each entry, hands
//! it to followers, and writes it to disk in the background. A slow or full disk delays no
//! follower. Entries that could not be written are recorded as a count of skipped entries.

mod entry;
mod file;
mod write;

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use xy_protocol::server::ServerName;
use xy_protocol::time::Timestamp;

pub use self::entry::{Change, Entry, EntryKind};
pub use self::file::MAX_FILE;
use self::write::Writer;
use crate::instance::StateChange;
use crate::wait::time_of_day;

/// Number of entries kept in memory; older entries are on disk.
const MAX_RECENT: usize = 512;

/// Number of entries that a follower may lag behind before it misses some.
const FOLLOWER_CAPACITY: usize = 1024;

/// How long followers may take to receive the last entries.
const FOLLOWERS_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of queued requests.
const REQUEST_QUEUE_CAPACITY: usize = 16;

/// A handle of the journal.
#[derive(Debug, Clone)]
pub struct Journal {
    shared: Arc<SharedState>,
    requests: mpsc::Sender<Request>,
}

/// The task of the journal. It is ended last, so that no change is missing.
#[derive(Debug)]
pub struct JournalTask {
    shared: Arc<SharedState>,
    /// Closes once the last follower is dropped.
    followers: mpsc::Receiver<()>,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct SharedState {
    file: PathBuf,
    /// The identity of this daemon run. Entry numbers of different runs do not compare.
    boot: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    next_seq: u64,
    recent: VecDeque<Arc<Entry>>,
    problem: Option<String>,
    /// Dropped at the end, which ends all followers.
    live: Option<Live>,
}

/// The channel to followers, and the sender that each of them holds while it follows.
#[derive(Debug)]
struct Live {
    entries: broadcast::Sender<Arc<Entry>>,
    presence: mpsc::Sender<()>,
}

/// The recent entries and a follower of all later ones. No entry is in both, and none is missing.
#[derive(Debug)]
pub struct Following {
    /// The entries in memory.
    recent: Vec<Arc<Entry>>,
    /// The entries from now on.
    pub live: Follower,
}

/// A live stream of entries.
#[derive(Debug)]
pub struct Follower {
    entries: broadcast::Receiver<Arc<Entry>>,
    _presence: Option<mpsc::Sender<()>>,
}

impl Follower {
    /// Returns the next entry, the number of missed entries, or the end. Cancel-safe.
    pub async fn recv(&mut self) -> Result<Arc<Entry>, RecvError> {
        self.entries.recv().await
    }
}

impl Following {
    /// Returns the entries in memory, oldest first.
    pub fn recent(&self) -> &[Arc<Entry>] {
        &self.recent
    }
}

/// Reads the entries of a journal file, oldest first. Also returns the problem if some could not
/// be read.
pub fn read_disk(file: &Path) -> (Vec<Arc<Entry>>, Option<String>) {
    let (entries, problem) = file::read(file);
    (entry::merge(entries, &[]), problem)
}

impl Journal {
    /// Starts a journal of all `changes` from now on, which appends to `file`.
    pub fn begin(file: &Path, changes: broadcast::Receiver<StateChange>) -> (Self, JournalTask) {
        let boot = format!("{:016x}", RandomState::new().build_hasher().finish());
        let (presence, followers) = mpsc::channel(1);
        let live = Some(Live { entries: broadcast::Sender::new(FOLLOWER_CAPACITY), presence });
        let state = State { next_seq: 1, recent: VecDeque::new(), problem: None, live };
        let shared =
            Arc::new(SharedState { file: file.to_owned(), boot, state: Mutex::new(state) });
        let (end, is_ending) = oneshot::channel();
        let (requests, received) = mpsc::channel(REQUEST_QUEUE_CAPACITY);
        let writer = Writer::new(file);
        let recorder =
            Recorder { shared: shared.clone(), changes, requests: received, writer, is_ending };
        let task = tokio::spawn(recorder.run());
        (Self { shared: shared.clone(), requests }, JournalTask { shared, followers, end, task })
    }

    /// Follows the journal. All changes that instances have broadcast before are recorded first.
    pub async fn follow(&self) -> Following {
        let (reply, following) = oneshot::channel();
        // A task that has ended has recorded everything.
        let _ = self.requests.send(Request::Follow(reply)).await;
        following.await.unwrap_or_else(|_| self.shared.follow())
    }

    /// Records a user's request to change a server, after all changes so far.
    pub async fn record_request(&self, change: Change) {
        let _ = self.requests.send(Request::Record(change)).await; // The daemon may be ending.
    }

    /// Returns the last `count` entries before `following`, of one server or of all, oldest first.
    /// Reads the disk. If that fails, returns the problem and the entries in memory.
    pub fn before(
        &self,
        following: &Following,
        count: usize,
        server: Option<&str>,
    ) -> (Vec<Arc<Entry>>, Option<String>) {
        let (kept, problem) = file::read(&self.shared.file);
        let all = entry::merge(kept, &following.recent);
        let about = |entry: &Arc<Entry>| server.is_none_or(|name| entry.is_about(name));
        let mut chosen: Vec<Arc<Entry>> = all.into_iter().filter(about).collect();
        (chosen.split_off(chosen.len().saturating_sub(count)), problem)
    }

    /// Returns the entries of earlier daemons, oldest first. Reads the disk.
    pub fn earlier(&self) -> Vec<Arc<Entry>> {
        let is_earlier = |entry: &Arc<Entry>| entry.boot != self.shared.boot;
        read_disk(&self.shared.file).0.into_iter().filter(is_earlier).collect()
    }

    /// Returns true if the journal has an entry of a server. Reads the disk.
    pub fn knows(&self, server: &ServerName) -> bool {
        let (found, _) = self.before(&self.shared.follow(), usize::MAX, Some(server.as_str()));
        found.iter().any(|entry| entry.change().is_some())
    }

    /// Returns why the journal cannot be written now, if that is so.
    pub fn problem(&self) -> Option<String> {
        self.shared.state().problem.clone()
    }
}

impl JournalTask {
    /// Writes all changes so far to disk, hands them to followers, and ends their streams.
    pub async fn end(mut self) {
        let _ = self.end.send(()); // The task may have ended.
        let _ = self.task.await; // As above.
        self.shared.state().live = None;
        // The channel closes when the last follower is dropped. Slow followers are not awaited.
        let _ = timeout(FOLLOWERS_TIMEOUT, self.followers.recv()).await;
    }
}

impl SharedState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self) -> Following {
        // Both under one lock, so that no entry is in both.
        let state = self.state();
        let recent = state.recent.iter().cloned().collect();
        let live = match &state.live {
            Some(live) => Follower {
                entries: live.entries.subscribe(),
                _presence: Some(live.presence.clone()),
            },
            None => Follower { entries: broadcast::channel(1).1, _presence: None },
        };
        Following { recent, live }
    }

    /// Numbers an entry and hands it to all followers.
    fn publish(&self, time: Timestamp, kind: EntryKind) -> Arc<Entry> {
        let mut state = self.state();
        let seq = state.next_seq;
        state.next_seq += 1;
        let entry = Arc::new(Entry { time, boot: self.boot.clone(), seq, kind });
        if state.recent.len() == MAX_RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back(entry.clone());
        if let Some(live) = &state.live {
            let _ = live.entries.send(entry.clone()); // There may be no follower.
        }
        entry
    }
}

/// A request to the task of the journal.
#[derive(Debug)]
enum Request {
    /// Follows from now on.
    Follow(oneshot::Sender<Following>),
    /// Records a user's request.
    Record(Change),
}

struct Recorder {
    shared: Arc<SharedState>,
    changes: broadcast::Receiver<StateChange>,
    requests: mpsc::Receiver<Request>,
    writer: Writer,
    is_ending: oneshot::Receiver<()>,
}

impl Recorder {
    async fn run(mut self) {
        loop {
            tokio::select! {
                change = self.changes.recv() => match change {
                    Ok(change) => self.record(&change),
                    Err(RecvError::Lagged(count)) => self.record_skipped(count),
                    Err(RecvError::Closed) => break,
                },
                Some(request) = self.requests.recv() => {
                    self.record_pending(); // Earlier changes come first.
                    match request {
                        // The caller may have left.
                        Request::Follow(reply) => drop(reply.send(self.shared.follow())),
                        Request::Record(change) => {
                            let time = Timestamp::from(time_of_day());
                            let kind = EntryKind::Requested(change);
                            self.writer.put(&self.shared.publish(time, kind));
                        }
                    }
                }
                () = self.writer.progress() => {}
                _ = &mut self.is_ending => break,
            }
            self.writer.start_write();
            self.update_problem();
        }
        self.record_pending();
        self.writer.finish().await;
        self.update_problem();
    }

    fn record(&mut self, change: &StateChange) {
        let time = Timestamp::from(change.transition.at);
        self.writer.put(&self.shared.publish(time, EntryKind::of(change)));
    }

    /// Records the number of changes that this task has missed.
    fn record_skipped(&mut self, count: u64) {
        tracing::warn!(count, "the event journal was too slow and skipped some changes");
        let time = Timestamp::from(time_of_day());
        self.writer.put(&self.shared.publish(time, EntryKind::Skipped { count }));
    }

    fn record_pending(&mut self) {
        loop {
            match self.changes.try_recv() {
                Ok(change) => self.record(&change),
                Err(TryRecvError::Lagged(count)) => self.record_skipped(count),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    /// Publishes and logs a change of the write problem.
    fn update_problem(&self) {
        let now = self.writer.problem();
        let mut state = self.shared.state();
        if state.problem.as_deref() == now {
            return;
        }
        if let Some(problem) = now {
            tracing::warn!("{problem}");
        } else {
            tracing::info!("the event journal can be written again");
        }
        state.problem = now.map(str::to_owned);
    }
}

#[cfg(test)]
mod tests;
