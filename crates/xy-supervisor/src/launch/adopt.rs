//! Adoption of the shims that an earlier daemon left.
//!
//! A shim is found by its lock: while that is held, its server may be running. The lock file names
//! the shim's socket and process; both are checked against the process that answers there.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::net::UnixStream;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use xy_protocol::server::ServerName;
use xy_shim::identity::Identity;
use xy_shim::wire::{self, Order, Report, StatusReport};

use super::home::is_of_home;
use super::orphans::LifeFilter;
use super::process::ProcessLauncher;
use super::shim_link::{LinkEvent, ShimLink};
use super::shim_process::ShimProcess;
use super::{LaunchOrder, LifeHandle};
use crate::instance_key::InstanceKey;
use crate::lifecycle::Note;
use crate::locks::{LOCK_POLL_INTERVAL, held_locks, holder, is_held, until_free};
use crate::logs::{LogBook, instance_log};
use crate::wait::millis;

/// Time for a shim to reply before it is asked again.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Total time for a shim to reply. A busy shim, or one that waits for a disk, is slow but not dead.
const SILENCE_LIMIT: Duration = Duration::from_mins(2);

/// How long a starting daemon waits for all shims before it accepts clients.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(4);

/// Time for a killed shim to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Stop grace of a server whose settings are unknown.
const UNKNOWN_GRACE: Duration = Duration::from_secs(10);

/// A life that an earlier daemon started and this daemon has taken over.
#[derive(Debug)]
pub struct AdoptedLife {
    /// Key of its instance.
    pub key: InstanceKey,
    /// The note that the earlier daemon left.
    pub note: Note,
    /// How it was when it was adopted.
    pub status: StatusReport,
    /// When the status was received; its ages count back from here.
    pub status_at: Instant,
    /// Its handle, with the events since then.
    pub handle: LifeHandle,
    /// Its log.
    pub logs: Arc<LogBook>,
}

impl AdoptedLife {
    /// Returns the name of its server.
    pub fn server(&self) -> &ServerName {
        &self.key.server
    }

    /// Returns the settings of its server, as they were when its file was last read.
    pub fn settings(&self) -> &Arc<xy_config::settings::ServerSettings> {
        &self.note.settings
    }
}

/// Instances whose shims or engines have not answered yet.
#[derive(Debug)]
pub struct PendingAdoptions {
    attempts: JoinSet<Option<AdoptedLife>>,
    launcher: Arc<ProcessLauncher>,
    /// Adoptions of containers, which have no shim.
    containers: JoinSet<Option<AdoptedLife>>,
}

impl PendingAdoptions {
    /// Adds adoptions of containers whose engines have not answered yet.
    #[must_use]
    pub fn and(mut self, containers: JoinSet<Option<AdoptedLife>>) -> Self {
        self.containers = containers;
        self
    }

    /// Returns true if no adoption is pending.
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty() && self.containers.is_empty()
    }

    /// Returns the next adopted instance, or `None` once no adoption is pending.
    pub async fn next(&mut self) -> Option<AdoptedLife> {
        loop {
            tokio::select! {
                Some(attempt) = self.attempts.join_next() => match attempt.ok().flatten() {
                    Some(adopted) => return Some(adopted),
                    None => self.launcher.sweep().await, // Its shim may have been killed.
                },
                Some(attempt) = self.containers.join_next() => {
                    if let Some(adopted) = attempt.ok().flatten() {
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
enum AdoptError {
    #[error("it does not answer")]
    Silent,
    #[error("it speaks version {0} and this daemon {own}", own = wire::PROTOCOL)]
    Version(u32),
    #[error("another process listens at its socket")]
    Stranger,
    #[error("no process listens at its socket: {0}")]
    Unreachable(#[source] io::Error),
    #[error("a resource is exhausted: {0}")]
    Io(#[from] io::Error),
}

impl AdoptError {
    /// Returns how long retrying is worthwhile. A slow shim may recover; one that exists but cannot
    /// be reached will not become reachable.
    fn retry_limit(&self) -> Duration {
        match self {
            Self::Silent | Self::Io(_) => SILENCE_LIMIT,
            Self::Unreachable(_) => REPLY_TIMEOUT,
            Self::Version(_) | Self::Stranger => Duration::ZERO,
        }
    }
}

/// Life ids of this home that no shim owns any more.
struct UnownedLives {
    home: String,
    owned: HashSet<String>,
}

impl LifeFilter for UnownedLives {
    fn owns(&self, life: &str) -> bool {
        is_of_home(life, &self.home)
    }

    fn is_over(&self, life: &str) -> bool {
        self.owns(life) && !self.owned.contains(life)
    }
}

/// A shim that has reported its full status.
struct ShimConnection {
    link: ShimLink,
    status: StatusReport,
    at: Instant,
    logs: Arc<LogBook>,
}

impl ProcessLauncher {
    /// Takes over all instances that earlier daemons left, and kills processes that no shim owns.
    ///
    /// A shim that cannot be taken over is told to stop; it holds its lock until its server has
    /// ended. Slow shims are returned as pending.
    pub async fn adopt_all(self: &Arc<Self>) -> (Vec<AdoptedLife>, PendingAdoptions) {
        let mut attempts = JoinSet::new();
        let held = held_locks(self.locks_dir()).unwrap_or_else(|error| {
            tracing::error!(%error, "no server can be taken over: the locks cannot be read");
            Vec::new()
        });
        for (key, lock) in held {
            let launcher = self.clone();
            attempts.spawn(async move { launcher.adopt(key, lock).await });
        }
        let mut adopted: Vec<AdoptedLife> = Vec::new();
        let give_up_at = Instant::now() + STARTUP_TIMEOUT;
        while let Ok(Some(attempt)) = timeout_at(give_up_at, attempts.join_next()).await {
            adopted.extend(attempt.ok().flatten());
        }
        self.sweep().await;
        (adopted, PendingAdoptions { attempts, launcher: self.clone(), containers: JoinSet::new() })
    }

    /// Kills processes that carry a mark of this home but belong to no living shim.
    async fn sweep(&self) {
        let Some(owned) = self.owned_lives() else {
            tracing::warn!(
                "did not search for processes of earlier daemons: the owner of a lock is unknown"
            );
            return;
        };
        let unowned = UnownedLives { home: self.home().to_owned(), owned };
        let left = self.shims().end_orphans(Arc::new(unowned)).await;
        if !left.is_empty() {
            tracing::error!(pids = ?left, "processes of an earlier daemon could not be killed");
        }
    }

    /// Returns the life ids owned by a shim or by this daemon. Returns `None` if one of the shims
    /// does not identify itself.
    pub(super) fn owned_lives(&self) -> Option<HashSet<String>> {
        let held = held_locks(self.locks_dir()).ok()?;
        let minded = held.iter().map(|(_, lock)| Some(holder(lock)?.life));
        minded.chain(self.shims().helpers().into_iter().map(Some)).collect()
    }

    /// Takes over one server, if its shim is running.
    async fn adopt(self: Arc<Self>, key: InstanceKey, lock: PathBuf) -> Option<AdoptedLife> {
        let server = &key;
        let began_at = Instant::now();
        loop {
            if !is_held(&lock) {
                return None; // It exited, or never started.
            }
            let identity = holder(&lock).filter(Identity::is_alive);
            if let Some(identity) = &identity {
                match self.connect(server, identity).await {
                    Ok(connection) => {
                        return self.take_over(key, lock, identity.clone(), connection);
                    }
                    Err(AdoptError::Silent) if identity.is_stopped() && identity.holds(&lock) => {
                        tracing::error!(%server, pid = identity.pid, "its shim hangs, and is killed");
                        identity.signal(Signal::KILL);
                        // The processes it leaves are killed once its lock is free.
                        let _ = timeout(EXIT_TIMEOUT, until_free(&lock)).await;
                        return None;
                    }
                    Err(why) if began_at.elapsed() < why.retry_limit() => {
                        tracing::debug!(%server, %why, "its shim has not started yet");
                    }
                    Err(why @ (AdoptError::Silent | AdoptError::Io(_))) => {
                        tracing::error!(%server, "it cannot be taken over: {why}; leaving it running");
                        return None;
                    }
                    Err(why) => {
                        tracing::error!(%server, "it cannot be taken over, and is ended: {why}");
                        if identity.holds(&lock) {
                            identity.signal(Signal::TERM); // A shim stops its server first.
                        }
                        return None;
                    }
                }
            }
            if identity.is_none() && began_at.elapsed() >= REPLY_TIMEOUT {
                tracing::error!(%server, "it cannot be taken over: its shim does not identify itself");
                return None;
            }
            sleep(LOCK_POLL_INTERVAL).await;
        }
    }

    /// Connects to a shim and asks for the status of its server.
    async fn connect(
        &self,
        key: &InstanceKey,
        who: &Identity,
    ) -> Result<ShimConnection, AdoptError> {
        let socket = PathBuf::from(&who.socket);
        let connecting = spawn_blocking(move || xy_shim::listener::connect(&socket));
        let stream = timeout(REPLY_TIMEOUT, connecting)
            .await
            .map_err(|_| AdoptError::Silent)?
            .map_err(io::Error::other)?
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    AdoptError::Unreachable(error)
                }
                _ => AdoptError::Io(error),
            })?;
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let peer = stream.peer_cred()?;
        let is_it = peer.pid().is_none_or(|pid| u32::try_from(pid) == Ok(who.pid));
        if !is_it || peer.uid() != rustix::process::geteuid().as_raw() {
            return Err(AdoptError::Stranger);
        }
        let mut link = ShimLink::new(stream, Vec::new());
        link.queue(&Order::Hello { protocol: wire::PROTOCOL });
        let status = timeout(REPLY_TIMEOUT, receive_status(&mut link)).await;
        let status = status.map_err(|_| AdoptError::Silent)??;
        if link.descriptors() != status.passed.iter().filter(|is_passed| **is_passed).count() {
            // No descriptors were left.
            return Err(io::Error::from(io::ErrorKind::OutOfMemory).into());
        }
        let log_file = instance_log(self.logs_dir(), key);
        let logs = Arc::new(LogBook::adopted(&log_file, status.logged));
        Ok(ShimConnection { link, status, at: Instant::now(), logs })
    }

    /// Takes responsibility for a server whose shim has answered.
    fn take_over(
        &self,
        key: InstanceKey,
        lock: PathBuf,
        identity: Identity,
        connection: ShimConnection,
    ) -> Option<AdoptedLife> {
        let server = &key;
        let ShimConnection { mut link, status, at: status_at, logs } = connection;
        let Some(note) = Note::parse(&link.take_note()) else {
            tracing::error!(%server, "no saved state of this server: starting a new instance");
            let grace_ms = millis(UNKNOWN_GRACE);
            let unread = link.take_unread();
            link.queue_unparsed(&unread);
            link.queue(&Order::Stop { grace_ms, for_good: true });
            tokio::spawn(async move { timeout(UNKNOWN_GRACE, link.detach(&logs)).await });
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
        let driver_note = note.speaker.clone();
        let handle = self.drive_adopted(order, (shim, link), &status, life, driver_note);
        Some(AdoptedLife { key, note, status, status_at, handle, logs })
    }
}

async fn receive_status(link: &mut ShimLink) -> Result<StatusReport, AdoptError> {
    let no_book = LogBook::default(); // Records come after the status.
    loop {
        match link.next(&no_book).await? {
            LinkEvent::Report(Report::Status(status)) => return Ok(status),
            LinkEvent::Report(Report::Refused { protocol }) => {
                return Err(AdoptError::Version(protocol));
            }
            LinkEvent::Report(_) | LinkEvent::Writable => {}
            LinkEvent::Closed => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}
