//! Finding the shims that an earlier daemon left, and taking them over.
//!
//! A shim is found by its lock: while that is held, its server may be there. The lock says
//! where the shim listens and who it is; that is checked against who really answers.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::net::UnixStream;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use xy_protocol::server::ServerName;
use xy_shim::identity::Identity;
use xy_shim::wire::{self, Order, Report, StatusReport};

use super::container::ContainerLauncher;
use super::orphans::Lives;
use super::process::ProcessLauncher;
use super::shim_link::{Heard, ShimLink};
use super::shim_process::ShimProcess;
use super::{Instance, LaunchOrder, millis};
use crate::instance::InstanceKey;
use crate::lifecycle::note::Note;
use crate::locks::{LOOK_AGAIN, held_locks, holder, is_held, until_free};
use crate::logs::{LogBook, instance_log};

/// How long a shim may take to answer before it is asked again.
const SAYS_WITHIN: Duration = Duration::from_secs(3);

/// How long it may take in all: one that is busy, or waits for a disk. Slow is not dead.
const SILENT_WITHIN: Duration = Duration::from_mins(2);

/// How long a daemon waits for all of them before it opens its door.
const MOST_WITHIN: Duration = Duration::from_secs(4);

/// How long a killed shim may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// The grace of a server of which nothing is known.
const UNKNOWN_GRACE: Duration = Duration::from_secs(10);

/// A server that an earlier daemon started, and that is ours now.
#[derive(Debug)]
pub struct Adopted {
    pub(crate) key: InstanceKey,
    pub(crate) note: Note,
    pub(crate) status: StatusReport,
    /// What the status says was so then.
    pub(crate) greeted_at: Instant,
    pub(crate) instance: Instance,
    pub(crate) logs: Arc<LogBook>,
}

impl Adopted {
    /// Whose instance it is.
    pub fn server(&self) -> &ServerName {
        &self.key.server
    }

    /// The same, with what a CLI of a container engine may leave removed at its end.
    #[must_use]
    pub fn tidied_by(mut self, containers: &ContainerLauncher) -> Self {
        self.instance = containers.tidied(&self.key, &self.note.settings, None, self.instance);
        self
    }

    /// What its file said when that was last read.
    pub fn settings(&self) -> &Arc<xy_config::settings::ServerSettings> {
        &self.note.settings
    }
}

/// Those that have not answered yet.
#[derive(Debug)]
pub struct Stragglers {
    tries: JoinSet<Option<Adopted>>,
    launcher: Arc<ProcessLauncher>,
    /// Those that have no shim.
    containers: JoinSet<Option<Adopted>>,
}

impl Stragglers {
    /// The same, with containers whose engines have not answered yet.
    #[must_use]
    pub fn and(mut self, containers: JoinSet<Option<Adopted>>) -> Self {
        self.containers = containers;
        self
    }

    /// Whether all have answered.
    pub fn is_empty(&self) -> bool {
        self.tries.is_empty() && self.containers.is_empty()
    }

    /// The next that has answered; `None` when there are no more.
    pub async fn next(&mut self) -> Option<Adopted> {
        loop {
            tokio::select! {
                Some(tried) = self.tries.join_next() => match tried.ok().flatten() {
                    Some(adopted) => return Some(adopted),
                    None => self.launcher.sweep().await, // Its shim may have been killed.
                },
                Some(tried) = self.containers.join_next() => {
                    if let Some(adopted) = tried.ok().flatten() {
                        return Some(adopted);
                    }
                }
                else => return None,
            }
        }
    }
}

/// Why a shim was not taken over.
#[derive(Debug, thiserror::Error)]
enum NotAdopted {
    #[error("it does not answer")]
    Silent,
    #[error("it speaks version {0} and this daemon {ours}", ours = wire::PROTOCOL)]
    Version(u32),
    #[error("somebody else listens at its socket")]
    Stranger,
    #[error("nobody listens at its socket: {0}")]
    Unreachable(#[source] io::Error),
    #[error("something is short: {0}")]
    Io(#[from] io::Error),
}

impl NotAdopted {
    /// So long it is worth to try again: slow is not dead, but who cannot be reached though
    /// it is there will not be a little later.
    fn is_hopeful_for(&self) -> Duration {
        match self {
            Self::Silent | Self::Io(_) => SILENT_WITHIN,
            Self::Unreachable(_) => SAYS_WITHIN,
            Self::Version(_) | Self::Stranger => Duration::ZERO,
        }
    }
}

/// The lives of this home that no shim owns any more.
struct Unowned {
    home: String,
    owned: HashSet<String>,
}

impl Lives for Unowned {
    fn is_ours(&self, life: &str) -> bool {
        is_of_home(life, &self.home)
    }

    fn is_over(&self, life: &str) -> bool {
        self.is_ours(life) && !self.owned.contains(life)
    }
}

/// A shim that has said everything.
struct Greeted {
    link: ShimLink,
    status: StatusReport,
    at: Instant,
    logs: Arc<LogBook>,
}

impl ProcessLauncher {
    /// Takes over everything that earlier daemons left, and ends what nobody owns. What
    /// cannot be taken over is told to end, and holds its lock until it has. Who is slow is
    /// among the rest.
    pub async fn adopt_all(self: &Arc<Self>) -> (Vec<Adopted>, Stragglers) {
        let mut tries = JoinSet::new();
        let held = held_locks(self.locks_dir()).unwrap_or_else(|error| {
            tracing::error!(%error, "nobody can be taken over: the locks cannot be read");
            Vec::new()
        });
        for (key, lock) in held {
            let launcher = self.clone();
            tries.spawn(async move { launcher.adopt(key, lock).await });
        }
        let mut adopted: Vec<Adopted> = Vec::new();
        let give_up_at = Instant::now() + MOST_WITHIN;
        while let Ok(Some(tried)) = timeout_at(give_up_at, tries.join_next()).await {
            adopted.extend(tried.ok().flatten());
        }
        self.sweep().await;
        (adopted, Stragglers { tries, launcher: self.clone(), containers: JoinSet::new() })
    }

    /// Ends what carries a mark of ours and belongs to no shim that is there.
    async fn sweep(&self) {
        let Some(owned) = self.owned_lives() else {
            tracing::warn!("what earlier daemons may have left was not looked for");
            return;
        };
        let unowned = Unowned { home: self.home().to_owned(), owned };
        let left = self.shims().end_orphans(Arc::new(unowned)).await;
        if !left.is_empty() {
            tracing::error!(pids = ?left, "an earlier daemon left these, and they would not die");
        }
    }

    /// The lives that some shim minds, or this daemon itself; `None` if one of the shims does not
    /// say which it is.
    pub(super) fn owned_lives(&self) -> Option<HashSet<String>> {
        let held = held_locks(self.locks_dir()).ok()?;
        let minded = held.iter().map(|(_, lock)| Some(holder(lock)?.life));
        minded.chain(self.shims().helpers().into_iter().map(Some)).collect()
    }

    /// Takes over one server, if it is there.
    async fn adopt(self: Arc<Self>, key: InstanceKey, lock: PathBuf) -> Option<Adopted> {
        let server = &key;
        let began_at = Instant::now();
        loop {
            if !is_held(&lock) {
                return None; // It ended, or had not begun.
            }
            let identity = holder(&lock).filter(Identity::is_alive);
            if let Some(identity) = &identity {
                match self.greet(server, identity).await {
                    Ok(greeted) => return self.take(key, lock, identity.clone(), greeted),
                    Err(NotAdopted::Silent) if identity.is_stopped() && identity.holds(&lock) => {
                        tracing::error!(%server, pid = identity.pid, "its shim hangs, and is killed");
                        identity.signal(Signal::KILL);
                        // What it leaves is swept once its lock is free.
                        let _ = timeout(GONE_WITHIN, until_free(&lock)).await;
                        return None;
                    }
                    Err(why) if began_at.elapsed() < why.is_hopeful_for() => {
                        tracing::debug!(%server, %why, "its shim is not there yet");
                    }
                    Err(why @ (NotAdopted::Silent | NotAdopted::Io(_))) => {
                        tracing::error!(%server, "it cannot be taken over: {why}; it is left alone");
                        return None;
                    }
                    Err(why) => {
                        tracing::error!(%server, "it cannot be taken over, and is ended: {why}");
                        if identity.holds(&lock) {
                            identity.signal(Signal::TERM); // A shim ends its server first.
                        }
                        return None;
                    }
                }
            }
            if identity.is_none() && began_at.elapsed() >= SAYS_WITHIN {
                tracing::error!(%server, "it cannot be taken over: its shim does not say who it is");
                return None;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Asks a shim what has become of its server.
    async fn greet(&self, key: &InstanceKey, who: &Identity) -> Result<Greeted, NotAdopted> {
        let socket = PathBuf::from(&who.socket);
        let connecting = spawn_blocking(move || xy_shim::door::connect(&socket));
        let stream = timeout(SAYS_WITHIN, connecting)
            .await
            .map_err(|_| NotAdopted::Silent)?
            .map_err(io::Error::other)?
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    NotAdopted::Unreachable(error)
                }
                _ => NotAdopted::Io(error),
            })?;
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let peer = stream.peer_cred()?;
        let is_it = peer.pid().is_none_or(|pid| u32::try_from(pid) == Ok(who.pid));
        if !is_it || peer.uid() != rustix::process::geteuid().as_raw() {
            return Err(NotAdopted::Stranger);
        }
        let mut link = ShimLink::new(stream, Vec::new());
        link.queue(&Order::Hello { protocol: wire::PROTOCOL });
        let status = timeout(SAYS_WITHIN, hear_status(&mut link)).await;
        let status = status.map_err(|_| NotAdopted::Silent)??;
        if link.descriptors() != status.passed.iter().filter(|is_passed| **is_passed).count() {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory).into()); // None were left.
        }
        let log_file = instance_log(self.logs_dir(), key);
        let logs = Arc::new(LogBook::of_adopted(&log_file, status.logged));
        Ok(Greeted { link, status, at: Instant::now(), logs })
    }

    /// From here on the server is ours.
    fn take(
        &self,
        key: InstanceKey,
        lock: PathBuf,
        identity: Identity,
        greeted: Greeted,
    ) -> Option<Adopted> {
        let server = &key;
        let Greeted { mut link, status, at: greeted_at, logs } = greeted;
        let Some(note) = Note::parse(&link.take_note()) else {
            tracing::error!(%server, "nothing is known of this server: it is started anew");
            let grace_ms = millis(UNKNOWN_GRACE);
            let unread = link.take_unread();
            link.put_stray(&unread);
            link.queue(&Order::Stop { grace_ms, for_good: true });
            tokio::spawn(async move { timeout(UNKNOWN_GRACE, link.leave(&logs)).await });
            return None;
        };
        tracing::info!(%server, pid = status.pid, "taken over from an earlier daemon");
        let order = LaunchOrder {
            key: key.clone(),
            settings: note.settings.clone(),
            logs: logs.clone(),
            note: Vec::new(),
        };
        let life = identity.life.clone();
        let shim = ShimProcess::Adopted { identity, lock };
        let speaker_note = note.speaker.clone();
        let instance = self.drive_adopted(order, (shim, link), &status, life, speaker_note);
        Some(Adopted { key, note, status, greeted_at, instance, logs })
    }
}

async fn hear_status(link: &mut ShimLink) -> Result<StatusReport, NotAdopted> {
    let no_book = LogBook::default(); // Records come after the status.
    loop {
        match link.next(&no_book).await? {
            Heard::Report(Report::Status(status)) => return Ok(status),
            Heard::Report(Report::Refused { protocol }) => {
                return Err(NotAdopted::Version(protocol));
            }
            Heard::Report(_) | Heard::Room => {}
            Heard::End => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// Whether a daemon of this home began that life.
pub fn is_of_home(life: &str, home: &str) -> bool {
    life.strip_prefix(home).is_some_and(|rest| rest.starts_with('-'))
}

/// What tells the homes of several daemons on one machine apart: the folder itself, as the
/// same path may be another folder in another container.
pub fn home_id(locks_dir: &Path) -> String {
    let (device, inode) = std::fs::metadata(locks_dir).map_or((0, 0), |it| (it.dev(), it.ino()));
    let mut path = locks_dir.canonicalize().unwrap_or_else(|_| locks_dir.to_owned());
    path.push(format!("{device}-{inode}"));
    // FNV-1a: the same in every version, which the standard library's hasher is not.
    let hash =
        path.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}")
}
