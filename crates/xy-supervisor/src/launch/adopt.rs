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

use tokio::net::UnixStream;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};
use xy_protocol::server::ServerName;
use xy_shim::identity::Identity;
use xy_shim::wire::{self, Order, Report, StatusReport};

use super::orphans::Lives;
use super::process::ProcessLauncher;
use super::shim_link::{Heard, ShimLink};
use super::shim_process::ShimProcess;
use super::{Instance, LaunchOrder, millis};
use crate::instance::InstanceKey;
use crate::lifecycle::note::Note;
use crate::locks::{LOOK_AGAIN, held_locks, holder, is_held, until_free};
use crate::logs::{LogBook, log_file};

/// How long a shim may take to answer before it is asked again.
const SAYS_WITHIN: Duration = Duration::from_secs(3);

/// How long it may take in all: one that has just been started, or waits for a disk.
const SILENT_WITHIN: Duration = Duration::from_secs(10);

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

    /// What its file said when that was last read.
    pub fn settings(&self) -> &Arc<xy_config::settings::ServerSettings> {
        &self.note.settings
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
    #[error("it cannot be spoken with")]
    Io(#[from] io::Error),
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
    /// cannot be taken over ends by itself, and holds its lock until then.
    pub async fn adopt_all(self: &Arc<Self>) -> Vec<Adopted> {
        let mut tries = JoinSet::new();
        let held = held_locks(self.locks_dir()).unwrap_or_else(|error| {
            tracing::error!(%error, "nobody can be taken over: the locks cannot be read");
            Vec::new()
        });
        for (server, lock) in held {
            let launcher = self.clone();
            tries.spawn(async move { launcher.adopt(server, lock).await });
        }
        let mut adopted: Vec<Adopted> = Vec::new();
        while let Some(tried) = tries.join_next().await {
            adopted.extend(tried.ok().flatten());
        }
        self.sweep().await;
        adopted
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

    /// The lives that some shim minds; `None` if one of them does not say which it is.
    fn owned_lives(&self) -> Option<HashSet<String>> {
        let held = held_locks(self.locks_dir()).ok()?;
        held.iter().map(|(_, lock)| Some(holder(lock)?.life)).collect()
    }

    /// Takes over one server, if it is there.
    async fn adopt(self: Arc<Self>, server: ServerName, lock: PathBuf) -> Option<Adopted> {
        let give_up_at = Instant::now() + SILENT_WITHIN;
        loop {
            if !is_held(&lock) {
                return None; // It ended, or had not begun.
            }
            let identity = holder(&lock).filter(Identity::is_alive);
            if let Some(identity) = &identity {
                match self.greet(&server, identity).await {
                    Ok(greeted) => return self.take(server, lock, identity.clone(), greeted),
                    Err(NotAdopted::Silent)
                        if identity.is_stopped() || Instant::now() >= give_up_at =>
                    {
                        tracing::error!(%server, pid = identity.pid, "its shim hangs, and is killed");
                        identity.kill();
                        // What it leaves is swept once its lock is free.
                        let _ = timeout(GONE_WITHIN, until_free(&lock)).await;
                        return None;
                    }
                    Err(why @ (NotAdopted::Io(_) | NotAdopted::Silent))
                        if Instant::now() < give_up_at =>
                    {
                        tracing::debug!(%server, %why, "its shim is not there yet");
                    }
                    Err(why) => {
                        tracing::error!(
                            %server,
                            "it cannot be taken over: {why}; it ends by itself, after the \
                             `orphan-timeout` it was started with"
                        );
                        return None;
                    }
                }
            }
            if Instant::now() >= give_up_at {
                tracing::error!(%server, "it cannot be taken over: its shim does not say who it is");
                return None;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Asks a shim what has become of its server.
    async fn greet(&self, server: &ServerName, who: &Identity) -> Result<Greeted, NotAdopted> {
        let socket = PathBuf::from(&who.socket);
        let connecting = spawn_blocking(move || xy_shim::door::connect(&socket));
        let stream = timeout(SAYS_WITHIN, connecting)
            .await
            .map_err(|_| NotAdopted::Silent)?
            .map_err(io::Error::other)??;
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
        let log_file = log_file(self.logs_dir(), server);
        let logs = Arc::new(LogBook::of_adopted(&log_file, status.logged));
        Ok(Greeted { link, status, at: Instant::now(), logs })
    }

    /// From here on the server is ours.
    fn take(
        &self,
        server: ServerName,
        lock: PathBuf,
        identity: Identity,
        greeted: Greeted,
    ) -> Option<Adopted> {
        let Greeted { mut link, status, at: greeted_at, logs } = greeted;
        let Some(note) = Note::parse(&link.take_note()) else {
            tracing::error!(%server, "nothing is known of this server: it is started anew");
            let grace_ms = millis(UNKNOWN_GRACE);
            link.queue(&Order::Stop { grace_ms, for_good: true });
            tokio::spawn(async move { timeout(UNKNOWN_GRACE, link.leave(&logs)).await });
            return None;
        };
        tracing::info!(%server, pid = status.pid, "taken over from an earlier daemon");
        let key = InstanceKey::shared(server);
        let order = LaunchOrder {
            key: key.clone(),
            settings: note.settings.clone(),
            logs: logs.clone(),
            note: Vec::new(),
        };
        let life = identity.life.clone();
        let shim = ShimProcess::Adopted { identity, lock };
        let instance = self.drive_adopted(order, shim, link, &status, life);
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
pub(super) fn is_of_home(life: &str, home: &str) -> bool {
    life.strip_prefix(home).is_some_and(|rest| rest.starts_with('-'))
}

/// What tells the homes of several daemons on one machine apart: the folder itself, as the
/// same path may be another folder in another container.
pub(super) fn home_id(locks_dir: &Path) -> String {
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
