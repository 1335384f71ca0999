//! All servers: one owner of the roster, of operators' wishes and of every task.
//!
//! Whoever reads takes the roster as it is now; whoever changes something asks the
//! fleet's own task, which applies one request after another. It never waits for a
//! server to settle: that is for the asker, who gets the handles to wait on.
//!
//! A server that all clients share has one instance, from the start of the daemon on. One
//! with `isolation "client"` has an instance for each client that holds it, and none else.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use xy_config::Broken;
use xy_config::load::MAX_SERVER_FILES;
use xy_config::settings::{InstanceSettings, ServerSettings};
use xy_protocol::server::{ServerName, ServerState, Wanted};

use self::owner::Owner;
use crate::added::AddedServers;
use crate::instance::{Holder, InstanceHandle, InstanceKey, Snapshot, StateChange};
use crate::launch::Launch;
use crate::launch::adopt::Adopted;
use crate::reload::{Plan, ServerMap};
use crate::wishes::Wishes;

mod adopting;
mod asking;
mod changing;
mod errors;
mod holding;
mod owner;
mod room;
mod sharing;

pub use errors::{AddError, EstablishError, HoldError};
pub use room::NoRoom;

/// Requests wait here while one is being applied.
const COMMANDS: usize = 64;

/// Changes a listener may lag behind before it is told that it missed some.
const CHANGES: usize = 1024;

/// So many instances one server may have for clients, those that are ending among them:
/// each is a whole process tree.
pub const MAX_CLIENT_INSTANCES: usize = 64;

/// So often room is made for one that is to come.
const MOST_TRIES: usize = 8;

/// So many servers there may be in all.
pub const MAX_SERVERS: usize = MAX_SERVER_FILES;

/// One server and all its instances.
#[derive(Debug, Clone)]
pub struct Member {
    /// What its file says.
    pub settings: Arc<ServerSettings>,
    /// What operators want of it, also while it has no instance.
    pub wanted: Wanted,
    /// The server whose instances these are, if it is another with the same `share-key`.
    pub owner: Option<ServerName>,
    /// Its instances, by whom they live for.
    pub instances: BTreeMap<Holder, InstanceHandle>,
    /// The last client instance that was failing when its client left. Only one is kept: its
    /// log can be large.
    pub last_failed: Option<Arc<FailedInstance>>,
    /// No client instance has worked since `last_failed`.
    pub is_failing: bool,
}

/// A client instance that was failing when its client left.
#[derive(Debug)]
pub struct FailedInstance {
    /// The retired instance; its log is kept.
    pub instance: InstanceHandle,
    /// Its last state before it was retired.
    pub last: Snapshot,
    /// When it was retired.
    pub at: SystemTime,
}

impl Member {
    /// The instances that are its own, and not another's that it shares.
    pub fn own_instances(&self) -> impl Iterator<Item = &InstanceHandle> {
        self.instances.values().filter(|it| it.key().server == self.settings.name)
    }

    /// Whether its name is down, though its process may live for others that share it.
    pub fn is_hidden(&self) -> bool {
        self.settings.share_key.is_some() && self.wanted == Wanted::Down
    }
}

/// All servers, as they are now.
pub type Roster = BTreeMap<ServerName, Member>;

/// What an operator asks of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Be up.
    Start,
    /// Be down, also after a restart of the daemon.
    Stop,
    /// Begin a new life.
    Restart,
}

/// A server that was asked something.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Its name, which is not that of its instance if it shares another's.
    pub name: ServerName,
    /// Its state before.
    pub before: ServerState,
    /// What was wanted of it before: its instance may run for others of whom it is wanted.
    pub wanted_before: Wanted,
    /// To wait on.
    pub instance: InstanceHandle,
}

/// A server that was asked something and has no instance of its own now, so all is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unheld {
    /// Its name.
    pub name: ServerName,
    /// What was wanted of it before.
    pub wanted_before: Wanted,
    /// Whether it runs in no process, also in none that it shares.
    pub is_nowhere: bool,
}

/// What became of a request.
#[derive(Debug, Default)]
pub struct AskOutcome {
    /// The instances, in the order of their servers' names.
    pub asked: Vec<Asked>,
    /// The servers that have none.
    pub unheld: Vec<Unheld>,
    /// Names that nobody bears.
    pub unknown: Vec<String>,
    /// What went wrong beside it.
    pub warnings: Vec<String>,
}

/// What a reload did.
#[derive(Debug)]
pub struct Applied {
    /// What was done to each server.
    pub plan: Plan,
    /// The removed ones: they are ending.
    pub leaving: Vec<InstanceHandle>,
    /// The added and the restarted ones: they are starting.
    pub coming: Vec<InstanceHandle>,
}

/// The fleet has been shut down.
#[derive(Debug, thiserror::Error)]
#[error("the daemon is shutting down")]
pub struct Closed;

/// A server that is there no more.
#[derive(Debug)]
pub struct Removed {
    /// Its instances: they are ending.
    pub leaving: Vec<InstanceHandle>,
    /// What went wrong beside it.
    pub warnings: Vec<String>,
}

enum Command {
    Hold { key: InstanceKey, reply: oneshot::Sender<Result<InstanceHandle, HoldError>> },
    Release { key: InstanceKey },
    Add { settings: Arc<ServerSettings>, reply: oneshot::Sender<AddReply> },
    Establish { settings: Arc<ServerSettings>, reply: oneshot::Sender<Result<(), EstablishError>> },
    Remove { name: ServerName, reply: oneshot::Sender<Option<Removed>> },
    Update { settings: Arc<ServerSettings>, reply: oneshot::Sender<Applied> },
    Ask { ask: Ask, names: Option<Vec<String>>, reply: oneshot::Sender<AskOutcome> },
    Apply { servers: ServerMap, broken: Broken, reply: oneshot::Sender<Applied> },
    Adopt { adopted: Box<Adopted>, is_broken: bool },
    LetGo { reply: oneshot::Sender<()> },
    Shutdown { reply: oneshot::Sender<()> },
}

type AddReply = Result<Option<InstanceHandle>, AddError>;

/// What a fleet is made of.
pub struct FleetParts {
    /// Starts instances.
    pub launcher: Arc<dyn Launch>,
    /// What operators want.
    pub wishes: Wishes,
    /// Where that is kept.
    pub wishes_file: PathBuf,
    /// The servers that no file configures.
    pub added: AddedServers,
    /// Where those are kept.
    pub added_file: PathBuf,
    /// Where logs are kept.
    pub logs_dir: PathBuf,
    /// Where shims hold their locks.
    pub locks_dir: PathBuf,
    /// How many instances there may be, and how much they may use.
    pub limits: InstanceSettings,
}

/// Where a fleet tells its changes.
pub fn changes_channel() -> broadcast::Sender<StateChange> {
    broadcast::Sender::new(CHANGES)
}

/// All servers, as others hold them.
#[derive(Debug, Clone)]
pub struct Fleet {
    commands: mpsc::Sender<Command>,
    roster: watch::Receiver<Arc<Roster>>,
    changes: broadcast::Sender<StateChange>,
}

impl Fleet {
    /// A fleet of those that earlier daemons left, which knows its operators' wishes. Its
    /// task ends with `shutdown`, or with `let_go`.
    pub fn spawn(parts: FleetParts, adopted: Vec<Adopted>) -> Self {
        Self::spawn_heard(parts, adopted, changes_channel())
    }

    /// The same for those who want to hear every change from the first on, as they have
    /// subscribed before: `changes` is from [`changes_channel`].
    pub fn spawn_heard(
        parts: FleetParts,
        adopted: Vec<Adopted>,
        changes: broadcast::Sender<StateChange>,
    ) -> Self {
        let (commands, queue) = mpsc::channel(COMMANDS);
        let (published, roster) = watch::channel(Arc::default());
        let (usage, measured) = watch::channel(room::Usage::default());
        let measuring = room::keep_measured(parts.limits, roster.clone(), usage);
        let mut owner = Owner {
            measured,
            measuring: JoinSet::new(),
            kept: parts.wishes.clone(),
            wishes: parts.wishes.clone(),
            added: parts.added.clone(),
            parts,
            published,
            changes: changes.clone(),
            tasks: JoinSet::new(),
            leaving: HashMap::new(),
        };
        for one in adopted {
            owner.adopt(one);
        }
        if owner.parts.limits.memory.is_some() {
            owner.measuring.spawn(measuring);
        }
        tokio::spawn(owner.run(queue));
        Self { commands, roster, changes }
    }

    /// All servers, as they are now.
    pub fn roster(&self) -> Arc<Roster> {
        self.roster.borrow().clone()
    }

    /// All servers, as they are now and whenever one comes or goes.
    pub fn watch_roster(&self) -> watch::Receiver<Arc<Roster>> {
        self.roster.clone()
    }

    /// Changes of state from now on.
    pub fn changes(&self) -> broadcast::Receiver<StateChange> {
        self.changes.subscribe()
    }

    /// Asks something of the named servers, or of all; resolves when it has been applied.
    pub async fn ask(&self, ask: Ask, names: Option<Vec<String>>) -> Result<AskOutcome, Closed> {
        let (reply, outcome) = oneshot::channel();
        self.commands.send(Command::Ask { ask, names, reply }).await.map_err(|_| Closed)?;
        outcome.await.map_err(|_| Closed)
    }

    /// Makes the servers what `servers` says; resolves when it has been applied. Of those
    /// that are `broken` nothing is known now, so nothing is forgotten either.
    pub async fn apply(&self, servers: ServerMap, broken: Broken) -> Result<Applied, Closed> {
        let (reply, applied) = oneshot::channel();
        let command = Command::Apply { servers, broken, reply };
        self.commands.send(command).await.map_err(|_| Closed)?;
        applied.await.map_err(|_| Closed)
    }

    /// Makes one server what `settings` say, and leaves the others alone. One that is not
    /// there any more stays away.
    pub async fn update(&self, settings: Arc<ServerSettings>) -> Result<Applied, Closed> {
        let (reply, applied) = oneshot::channel();
        self.commands.send(Command::Update { settings, reply }).await.map_err(|_| Closed)?;
        applied.await.map_err(|_| Closed)
    }

    /// The instance of a server that is for this holder: a client's own under `isolation
    /// "client"`, which begins here unless it is there, or the one that all share. One that
    /// sleeps is woken. If there is no room for it, one that nobody uses goes.
    pub async fn hold(
        &self,
        server: &ServerName,
        holder: Holder,
    ) -> Result<InstanceHandle, HoldError> {
        let key = InstanceKey { server: server.clone(), holder };
        for _ in 0..MOST_TRIES {
            match self.hold_now(key.clone()).await {
                // Others may come and take the place.
                Err(HoldError::NoRoom(_)) if self.make_room().await => {}
                held => return held,
            }
        }
        self.hold_now(key).await
    }

    /// Starts or wakes an instance as [`Self::hold`] does, if there is room for it now.
    pub async fn hold_if_room(
        &self,
        server: &ServerName,
        holder: Holder,
    ) -> Result<InstanceHandle, HoldError> {
        self.hold_now(InstanceKey { server: server.clone(), holder }).await
    }

    async fn hold_now(&self, key: InstanceKey) -> Result<InstanceHandle, HoldError> {
        let (reply, held) = oneshot::channel();
        let sent = self.commands.send(Command::Hold { key, reply }).await;
        sent.map_err(|_| HoldError::Closed)?;
        held.await.unwrap_or(Err(HoldError::Closed))
    }

    /// Ends for good what this client alone had; what others share goes on.
    pub async fn release(&self, server: &ServerName, client: u64) {
        let key = InstanceKey { server: server.clone(), holder: Holder::Client(client) };
        // A fleet that is gone has ended it, or let go of it.
        let _ = self.commands.send(Command::Release { key }).await;
    }

    /// Begins a server that no file configures, `source.added` among its settings. It will
    /// not be there after a restart of the daemon unless it is established. Answers its
    /// instance, if it has one without any client.
    pub async fn add(
        &self,
        settings: Arc<ServerSettings>,
    ) -> Result<Option<InstanceHandle>, AddError> {
        let (reply, added) = oneshot::channel();
        let sent = self.commands.send(Command::Add { settings, reply }).await;
        sent.map_err(|_| AddError::Closed)?;
        added.await.unwrap_or(Err(AddError::Closed))
    }

    /// Keeps an added server across restarts of the daemon; or, if `settings` name a file
    /// of its own, leaves that to the file.
    pub async fn establish(&self, settings: Arc<ServerSettings>) -> Result<(), EstablishError> {
        let (reply, done) = oneshot::channel();
        let sent = self.commands.send(Command::Establish { settings, reply }).await;
        sent.map_err(|_| EstablishError::Closed)?;
        done.await.unwrap_or(Err(EstablishError::Closed))
    }

    /// Removes a server, whoever configured it; resolves when it is out of the roster. `None`
    /// if there is none of that name.
    pub async fn remove(&self, name: &ServerName) -> Result<Option<Removed>, Closed> {
        let (reply, removed) = oneshot::channel();
        let command = Command::Remove { name: name.clone(), reply };
        self.commands.send(command).await.map_err(|_| Closed)?;
        removed.await.map_err(|_| Closed)
    }

    /// Ends all servers at the same time; resolves when all are gone.
    pub async fn shutdown(&self) {
        let (reply, done) = oneshot::channel();
        if self.commands.send(Command::Shutdown { reply }).await.is_ok() {
            let _ = done.await; // A fleet that is gone has nothing left to end.
        }
        // Another may have asked first: the fleet is gone when its roster has no owner.
        let mut roster = self.roster.clone();
        while roster.changed().await.is_ok() {}
    }

    /// Goes on with a server that was slow to answer: until now it was waited for. One whose
    /// file `is_broken` goes on as it was.
    pub async fn adopt(&self, adopted: Adopted, is_broken: bool) {
        let adopted = Box::new(adopted);
        // A fleet that is gone ends, or lets go of, all that it had.
        let _ = self.commands.send(Command::Adopt { adopted, is_broken }).await;
    }

    /// Leaves all servers to themselves: another daemon will take them over. Resolves when
    /// all are on their own.
    pub async fn let_go(&self) {
        let (reply, done) = oneshot::channel();
        if self.commands.send(Command::LetGo { reply }).await.is_ok() {
            let _ = done.await; // A fleet that is gone has nothing left to let go.
        }
    }

    /// Resolves when the fleet takes no more requests: it was shut down, or has failed.
    pub async fn closed(&self) {
        self.commands.closed().await;
    }

    /// What the files said when they were last applied.
    pub fn settings(&self) -> ServerMap {
        settings_of(&self.roster())
    }
}

fn settings_of(roster: &Roster) -> ServerMap {
    roster.iter().map(|(name, member)| (name.clone(), member.settings.clone())).collect()
}

#[cfg(test)]
mod tests;
