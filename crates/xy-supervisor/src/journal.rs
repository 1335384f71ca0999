//! The journal: every change of state, numbered, for those who follow and for those who come
//! later, also after the daemon was killed.
//!
//! One task owns it. It hears what all instances tell, gives each entry its number, hands it
//! to followers, and writes it to disk behind their backs: a slow or full disk delays nobody.
//! What could not be kept is told in the journal itself as a number of skipped entries.

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

pub use self::entry::{Change, Entry, What};
pub use self::file::MAX_FILE;
use self::write::Writer;
use crate::instance::StateChange;
use crate::wait::time_of_day;

/// So many entries are kept in memory; older ones are on disk.
const RECENT: usize = 512;

/// Entries a follower may lag behind before it is told that it missed some.
const LIVE: usize = 1024;

/// How long followers may take to hear the last entries.
const FOLLOWERS_WITHIN: Duration = Duration::from_millis(500);

/// Askers beyond so many wait their turn.
const ASKS: usize = 16;

/// The journal, as others hold it.
#[derive(Debug, Clone)]
pub struct Journal {
    shared: Arc<Shared>,
    asks: mpsc::Sender<Ask>,
}

/// The task that keeps it: to be ended last, so that nothing is missing.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    /// Closes once nobody follows any more.
    followers: mpsc::Receiver<()>,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    file: PathBuf,
    /// What tells this daemon's numbers from another's.
    boot: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    next_seq: u64,
    recent: VecDeque<Arc<Entry>>,
    problem: Option<String>,
    /// Gone at the end, so that followers come to theirs.
    live: Option<Live>,
}

/// Where followers hear of entries, and what each holds for as long as it follows.
#[derive(Debug)]
struct Live {
    entries: broadcast::Sender<Arc<Entry>>,
    presence: mpsc::Sender<()>,
}

/// Entries from a moment on, and those before it: none is in both, none in neither.
#[derive(Debug)]
pub struct Following {
    /// What was still in memory.
    recent: Vec<Arc<Entry>>,
    /// What comes from now on.
    pub live: Follower,
}

/// Entries as they come.
#[derive(Debug)]
pub struct Follower {
    entries: broadcast::Receiver<Arc<Entry>>,
    _presence: Option<mpsc::Sender<()>>,
}

impl Follower {
    /// The next entry, or how many were missed, or the end. Cancel-safe.
    pub async fn recv(&mut self) -> Result<Arc<Entry>, RecvError> {
        self.entries.recv().await
    }
}

impl Following {
    /// What was still in memory, oldest first.
    pub fn recent(&self) -> &[Arc<Entry>] {
        &self.recent
    }
}

/// Reads the entries of a journal that no daemon keeps now, oldest first, and what kept some
/// from being read.
pub fn read_disk(file: &Path) -> (Vec<Arc<Entry>>, Option<String>) {
    let (entries, problem) = file::read(file);
    (entry::joined(entries, &[]), problem)
}

impl Journal {
    /// Begins a journal of all `changes` from now on, kept in `file` beside what is there.
    pub fn begin(file: &Path, changes: broadcast::Receiver<StateChange>) -> (Self, Keeper) {
        let boot = format!("{:016x}", RandomState::new().build_hasher().finish());
        let (presence, followers) = mpsc::channel(1);
        let live = Some(Live { entries: broadcast::Sender::new(LIVE), presence });
        let state = State { next_seq: 1, recent: VecDeque::new(), problem: None, live };
        let shared = Arc::new(Shared { file: file.to_owned(), boot, state: Mutex::new(state) });
        let (end, is_ending) = oneshot::channel();
        let (asks, asked) = mpsc::channel(ASKS);
        let writer = Writer::new(file);
        let keeping = Keeping { shared: shared.clone(), changes, asked, writer, is_ending };
        let task = tokio::spawn(keeping.run());
        (Self { shared: shared.clone(), asks }, Keeper { shared, followers, end, task })
    }

    /// Every entry from now on, and what was before: all that instances have told until now.
    pub async fn follow(&self) -> Following {
        let (reply, following) = oneshot::channel();
        let _ = self.asks.send(Ask::Follow(reply)).await; // A task that is gone has noted everything.
        following.await.unwrap_or_else(|_| self.shared.follow())
    }

    /// Notes that somebody asked to change a server, after all that instances have told.
    pub async fn note_asked(&self, asked: Change) {
        let _ = self.asks.send(Ask::Note(asked)).await; // A daemon that ends notes nothing more.
    }

    /// The last `count` entries before `following`, of one server or of all, oldest first.
    /// Reads the disk; a problem with that is told, and what is in memory is there anyway.
    pub fn before(
        &self,
        following: &Following,
        count: usize,
        server: Option<&str>,
    ) -> (Vec<Arc<Entry>>, Option<String>) {
        let (kept, problem) = file::read(&self.shared.file);
        let all = entry::joined(kept, &following.recent);
        let about = |entry: &Arc<Entry>| server.is_none_or(|name| entry.is_about(name));
        let mut chosen: Vec<Arc<Entry>> = all.into_iter().filter(about).collect();
        (chosen.split_off(chosen.len().saturating_sub(count)), problem)
    }

    /// Returns the entries of earlier daemons, oldest first. Reads the disk.
    pub fn earlier(&self) -> Vec<Arc<Entry>> {
        let is_earlier = |entry: &Arc<Entry>| entry.boot != self.shared.boot;
        read_disk(&self.shared.file).0.into_iter().filter(is_earlier).collect()
    }

    /// Whether the journal has anything about a server. Reads the disk.
    pub fn knows(&self, server: &ServerName) -> bool {
        let (found, _) = self.before(&self.shared.follow(), usize::MAX, Some(server.as_str()));
        found.iter().any(|entry| entry.change().is_some())
    }

    /// Why nothing can be written now, if so.
    pub fn problem(&self) -> Option<String> {
        self.shared.state().problem.clone()
    }
}

impl Keeper {
    /// Brings everything that was told until now to disk, and to followers, whose streams end.
    pub async fn end(mut self) {
        let _ = self.end.send(()); // A task that is gone has nothing left.
        let _ = self.task.await; // The same.
        self.shared.state().live = None;
        // Nobody sends anything: it closes. Who is slow is not waited for.
        let _ = timeout(FOLLOWERS_WITHIN, self.followers.recv()).await;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self) -> Following {
        // Under one lock: whoever is in one of them is not in the other.
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

    /// Gives an entry its number, and to all who follow.
    fn publish(&self, time: Timestamp, what: What) -> Arc<Entry> {
        let mut state = self.state();
        let seq = state.next_seq;
        state.next_seq += 1;
        let entry = Arc::new(Entry { time, boot: self.boot.clone(), seq, what });
        if state.recent.len() == RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back(entry.clone());
        if let Some(live) = &state.live {
            let _ = live.entries.send(entry.clone()); // Nobody may be following.
        }
        entry
    }
}

/// What the task of a journal is asked.
#[derive(Debug)]
enum Ask {
    /// To follow from now on.
    Follow(oneshot::Sender<Following>),
    /// To note this.
    Note(Change),
}

struct Keeping {
    shared: Arc<Shared>,
    changes: broadcast::Receiver<StateChange>,
    asked: mpsc::Receiver<Ask>,
    writer: Writer,
    is_ending: oneshot::Receiver<()>,
}

impl Keeping {
    async fn run(mut self) {
        loop {
            tokio::select! {
                change = self.changes.recv() => match change {
                    Ok(change) => self.note(&change),
                    Err(RecvError::Lagged(count)) => self.note_skipped(count),
                    Err(RecvError::Closed) => break,
                },
                Some(asked) = self.asked.recv() => {
                    self.note_the_rest(); // What was told before is not to come.
                    match asked {
                        // The asker may have left.
                        Ask::Follow(reply) => drop(reply.send(self.shared.follow())),
                        Ask::Note(asked) => {
                            let time = Timestamp::from(time_of_day());
                            self.writer.put(&self.shared.publish(time, What::Asked(asked)));
                        }
                    }
                }
                () = self.writer.turn() => {}
                _ = &mut self.is_ending => break,
            }
            self.writer.go_on();
            self.tell_problem();
        }
        self.note_the_rest();
        self.writer.finish().await;
        self.tell_problem();
    }

    fn note(&mut self, change: &StateChange) {
        let time = Timestamp::from(change.transition.at);
        self.writer.put(&self.shared.publish(time, What::of(change)));
    }

    /// So much was told while nobody here listened.
    fn note_skipped(&mut self, count: u64) {
        tracing::warn!(count, "the journal of events was too slow, and misses some");
        let time = Timestamp::from(time_of_day());
        self.writer.put(&self.shared.publish(time, What::Skipped { count }));
    }

    fn note_the_rest(&mut self) {
        loop {
            match self.changes.try_recv() {
                Ok(change) => self.note(&change),
                Err(TryRecvError::Lagged(count)) => self.note_skipped(count),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn tell_problem(&self) {
        let now = self.writer.problem();
        let mut state = self.shared.state();
        if state.problem.as_deref() == now {
            return;
        }
        if let Some(problem) = now {
            tracing::warn!("{problem}");
        } else {
            tracing::info!("the journal of events can be written again");
        }
        state.problem = now.map(str::to_owned);
    }
}

#[cfg(test)]
mod tests;
