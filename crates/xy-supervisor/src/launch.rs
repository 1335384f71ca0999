//! The seam behind which an instance is started, heard of and ended.
//!
//! A launcher answers at once and reports through [`News`]; nothing here blocks the
//! task that asks. One [`Instance`] is one life: after its last news nothing of that life is
//! left here.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use reap::Reaped;
use tokio::sync::{mpsc, watch};
use xy_config::settings::{EngineKind, ServerKind, ServerSettings};
pub use xy_shim::wire::{Confined, Containment, KeptBy, Limit, LimitName};

use crate::instance::InstanceKey;
use crate::lifecycle::{Exit, LaunchFault};
use crate::logs::LogBook;
use crate::speak::{Checkup, Rest};

pub mod adopt;
pub mod container;
pub mod direct;
mod driver;
mod fault;
mod limits;
mod orphans;
pub mod process;
mod reap;
pub mod remote;
mod shim_link;
mod shim_process;
mod speech;

/// News of one life; few, so a small queue never fills while its reader is sane.
const NEWS: usize = 16;

/// A life is asked to stop, to stop for good and to be killed once each, and rules change
/// rarely; more than that is never in flight.
const ASKS: usize = 16;

/// One is made after the other.
const CHECKUPS: usize = 1;

/// Starts instances.
pub trait Launch: Send + Sync + 'static {
    /// Begins a life; what becomes of it is told by its news.
    fn launch(&self, order: LaunchOrder) -> Instance;
}

/// Begins each life as what its server is.
#[derive(Debug)]
pub struct EveryLauncher {
    /// For processes of this machine.
    pub processes: Arc<process::ProcessLauncher>,
    /// For those that live somewhere else.
    pub remotes: remote::RemoteLauncher,
    /// For containers.
    pub containers: container::ContainerLauncher,
}

impl Launch for EveryLauncher {
    fn launch(&self, order: LaunchOrder) -> Instance {
        match order.settings.kind {
            ServerKind::Process(_) => {
                let (key, settings) = (order.key.clone(), order.settings.clone());
                let (order, begins) = self.containers.labelled(order);
                let life = self.processes.launch(order);
                self.containers.tidied(&key, &settings, begins, life)
            }
            ServerKind::Remote(_) => self.remotes.launch(order),
            ServerKind::Container(_) => self.containers.launch(order),
        }
    }
}

/// What to start.
#[derive(Debug, Clone)]
pub struct LaunchOrder {
    /// Whose life it is.
    pub key: InstanceKey,
    /// What its file says.
    pub settings: Arc<ServerSettings>,
    /// Where its output goes.
    pub logs: Arc<LogBook>,
    /// The first note of this life: see [`Instance::notes`].
    pub note: Vec<u8>,
}

/// One thing heard of a life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Its program runs.
    Launched {
        /// The leader of its processes.
        pid: u32,
    },
    /// What it needs is being fetched, which may take long: how far that is.
    Preparing(Progress),
    /// Whoever speaks with it says that it is ready.
    Ready,
    /// Whoever speaks with it says that it cannot be spoken with, and why.
    Unfit(String),
    /// The same, while it was asked something that it need not know.
    UnfitOnProbe(String),
    /// The gateway says that it must not be used, and why: it is to be ended for good.
    Unusable(String),
    /// The gateway needs a new life of it, and why: nothing is counted.
    StartOver(String),
    /// Whoever speaks with it says that nobody uses it, and why it may go: nothing is asked of
    /// it any more.
    Idle(String),
    /// It lives somewhere else and does not answer, for this reason. The last news.
    Unreachable(String),
    /// It refuses to be spoken with, for this reason, and nobody here can end it. The last news.
    Hopeless(String),
    /// As was asked nobody speaks with it any more; it may live on somewhere else. The last
    /// news.
    Closed,
    /// It could not be started. The last news.
    LaunchFailed(LaunchFault),
    /// What would run it is not there now, or does not answer. The last news.
    Away(LaunchFault),
    /// It is gone, and all it wrote has been kept. The last news.
    Exited(Exit),
    /// The same, while it was asked something that it need not know. The last news.
    ExitedOnProbe(Exit),
    /// It is about to be reported gone, but these processes of it would not die.
    Survivors(Vec<u32>),
    /// No later daemon could find it: its lock or its socket could not be made.
    NotLasting,
    /// Its log cannot be written; `None` when it can again.
    LogTrouble(Option<String>),
    /// How it is held together and limited, before it is told that it runs.
    Confined(Confined),
    /// Which container it is, before it is told that it runs.
    Contained(Arc<Contained>),
}

/// What goes on before a life can begin, and how far that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is done, such as `pulling x:1`.
    pub what: String,
    /// How much of it is done, in hundredths, as far as that can be said.
    pub percent: Option<u8>,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.percent {
            Some(percent) => write!(f, "{} {percent} %", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// The container of a life, as its engine knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contained {
    /// Whose it is.
    pub engine: EngineKind,
    /// The version of that engine, as it says itself.
    pub version: String,
    /// Where that engine listens.
    pub socket: PathBuf,
    /// Its name, by which people find it.
    pub name: String,
    /// The engine's id for it.
    pub id: String,
    /// Whether its leader is a process of this machine, and not of one that its engine has for
    /// itself: then it can be looked at.
    pub is_here: bool,
    /// Whether it ends with this daemon, as its engine then closes its stdin.
    pub ends_with_daemon: bool,
}

/// One thing asked of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// End, gently at first.
    Stop {
        /// By force after this time.
        grace: Duration,
        /// Nobody will ask how it ended.
        for_good: bool,
        /// The server was found hung.
        is_hung: bool,
    },
    /// Live by other rules, should the daemon be gone.
    Rules {
        /// Wait so long for another.
        orphan_timeout: Duration,
        /// End within this time if none comes.
        grace: Duration,
    },
    /// Go on without this daemon: another will come. The last thing asked; nothing more
    /// is heard of this life here.
    LetGo,
    /// End by force.
    Kill,
}

/// One life, as its task holds it. Dropping it ends the life.
#[derive(Debug)]
pub struct Instance {
    /// What is heard of it.
    pub news: mpsc::Receiver<News>,
    /// What is asked of it.
    pub asks: mpsc::Sender<Ask>,
    /// What a later daemon has to know of it, should this one be killed. What is asked
    /// after a note was left is done after it has been left.
    pub notes: watch::Sender<Vec<u8>>,
    /// For whoever speaks with it, if anybody does.
    pub checkups: mpsc::Sender<Checkup>,
    /// The same: it is to go if nobody uses it.
    pub rests: mpsc::Sender<Rest>,
    /// Whether its processes have ended. Its last news may come later.
    pub end: EndMark,
}

/// A mark that the processes of a life have ended. It is set before anybody hears of that end, so
/// that a client which was told and looks sees no living process.
#[derive(Debug, Clone, Default)]
pub struct EndMark(Arc<AtomicBool>);

impl EndMark {
    /// Sets the mark, for good.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns true once the mark is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The launcher's ends of an [`Instance`].
#[derive(Debug)]
pub struct InstanceEnds {
    /// What is heard of it.
    pub news: mpsc::Sender<News>,
    /// What is asked of it.
    pub asks: mpsc::Receiver<Ask>,
    /// The latest note.
    pub notes: watch::Receiver<Vec<u8>>,
    /// For whoever speaks with it. Closed if it is not held any more.
    pub checkups: mpsc::Receiver<Checkup>,
    /// The same.
    pub rests: mpsc::Receiver<Rest>,
    /// To be set when its processes have ended, before anybody is told.
    pub end: EndMark,
}

impl Instance {
    /// A life, and the ends for whoever brings it about.
    pub fn pair() -> (Self, InstanceEnds) {
        let (news_in, news) = mpsc::channel(NEWS);
        let (asks, asks_out) = mpsc::channel(ASKS);
        let (notes, notes_out) = watch::channel(Vec::new());
        let (checkups, checkups_out) = mpsc::channel(CHECKUPS);
        let (rests, rests_out) = mpsc::channel(CHECKUPS);
        let ends = InstanceEnds {
            news: news_in,
            asks: asks_out,
            notes: notes_out,
            checkups: checkups_out,
            rests: rests_out,
            end: EndMark::default(),
        };
        let end = ends.end.clone();
        (Self { news, asks, notes, checkups, rests, end }, ends)
    }
}

/// As the wire counts time.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
