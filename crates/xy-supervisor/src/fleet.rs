//! All servers: the owner of the roster, of the desired state and of every instance task.
//!
//! Readers take the current roster. Changes go through the task of the fleet, which applies one
//! request after another. It never waits for a server to settle: callers get handles to wait on.
//!
//! A server that all clients share has one instance, from the start of the daemon on. A server
//! with `isolation "client"` has one instance for each client that holds it, and no other.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use xy_config::BrokenServers;
use xy_config::load::MAX_SERVER_FILES;
use xy_config::settings::{InstanceSettings, ServerSettings};
use xy_protocol::server::{ServerName, ServerState, Wanted};

use self::fleet_task::FleetTask;
use crate::desired::DesiredState;
use crate::instance::{
    Holder, InstanceHandle, InstanceKey, SECOND_IDLE_STOP, Snapshot, StateChange,
};
use crate::launch::Launch;
use crate::launch::adopt::AdoptedLife;
use crate::reload::{Plan, ServerMap};
use crate::runtime_servers::RuntimeServers;

mod adopt;
mod capacity;
mod configure;
mod errors;
mod fleet_task;
mod hold;
mod operate;
mod share;

pub use capacity::NoRoom;
pub use errors::{AddError, EstablishError, HoldError};

/// Maximum number of queued commands.
const COMMAND_QUEUE_CAPACITY: usize = 64;

/// Number of changes that a receiver may lag behind before it misses some.
const CHANGES_CAPACITY: usize = 1024;

/// Maximum number of client instances of one server, including those that are ending. Each is a
/// whole process tree.
pub const MAX_CLIENT_INSTANCES: usize = 64;

/// Maximum number of attempts to make room for an instance.
const MAX_HOLD_ATTEMPTS: usize = 8;

/// Maximum number of servers.
pub const MAX_SERVERS: usize = MAX_SERVER_FILES;

/// One server and all its instances.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its settings.
    pub settings: Arc<ServerSettings>,
    /// The state that operators want, also while it has no instance.
    pub wanted: Wanted,
    /// The server that owns the instances, if that is another with the same `share-key`.
    pub owner: Option<ServerName>,
    /// Its instances, by holder.
    pub instances: BTreeMap<Holder, InstanceHandle>,
    /// The last client instance that was failing when its client left. Only one is kept, as its
    /// log can be large.
    pub last_failed: Option<Arc<FailedInstance>>,
    /// Whether no client instance has worked since `last_failed`.
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
    /// Returns the instances that the server owns itself.
    pub fn own_instances(&self) -> impl Iterator<Item = &InstanceHandle> {
        self.instances.values().filter(|it| it.key().server == self.settings.name)
    }

    /// Returns true if the server is stopped, though its process may run for servers that share it.
    pub fn is_hidden(&self) -> bool {
        self.settings.share_key.is_some() && self.wanted == Wanted::Down
    }
}

/// All servers, by name.
pub type Roster = BTreeMap<ServerName, Member>;

/// An operation of an operator on servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Starts the servers.
    Start,
    /// Stops the servers. They stay stopped after a restart of the daemon.
    Stop,
    /// Starts a new life of each server.
    Restart,
}

/// An operation that was applied to the instance of one server.
#[derive(Debug, Clone)]
pub struct AppliedOperation {
    /// The server. Its instance has another name if another server owns it.
    pub name: ServerName,
    /// The state before the operation.
    pub before: ServerState,
    /// The desired state before the operation. The instance may also run for other servers.
    pub wanted_before: Wanted,
    /// The instance, to wait on.
    pub instance: InstanceHandle,
}

/// A server without an instance of its own, for which an operation is complete at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerWithoutInstance {
    /// The server.
    pub name: ServerName,
    /// The desired state before the operation.
    pub wanted_before: Wanted,
    /// Whether the server has no instance at all, not even a shared one.
    pub is_nowhere: bool,
}

/// The outcome of an operation.
#[derive(Debug, Default)]
pub struct OperationOutcome {
    /// The instances, ordered by the names of their servers.
    pub applied: Vec<AppliedOperation>,
    /// The servers without an instance.
    pub without_instance: Vec<ServerWithoutInstance>,
    /// The names of no server.
    pub unknown: Vec<String>,
    /// Problems that did not prevent the operation.
    pub warnings: Vec<String>,
}

/// The outcome of a reload.
#[derive(Debug)]
pub struct ReloadOutcome {
    /// The change of each server.
    pub plan: Plan,
    /// The instances that are ending.
    pub leaving: Vec<InstanceHandle>,
    /// The instances that are starting.
    pub coming: Vec<InstanceHandle>,
}

/// The fleet has been shut down.
#[derive(Debug, thiserror::Error)]
#[error("the daemon is shutting down")]
pub struct FleetClosed;

/// The outcome of a removal.
#[derive(Debug)]
pub struct RemovedServer {
    /// The instances of the server, which are ending.
    pub leaving: Vec<InstanceHandle>,
    /// Problems that did not prevent the removal.
    pub warnings: Vec<String>,
}

enum Command {
    Hold {
        key: InstanceKey,
        reply: oneshot::Sender<Result<InstanceHandle, HoldError>>,
    },
    Release {
        key: InstanceKey,
    },
    Add {
        settings: Arc<ServerSettings>,
        reply: oneshot::Sender<AddReply>,
    },
    Establish {
        settings: Arc<ServerSettings>,
        reply: oneshot::Sender<Result<(), EstablishError>>,
    },
    Remove {
        name: ServerName,
        reply: oneshot::Sender<Option<RemovedServer>>,
    },
    Update {
        settings: Arc<ServerSettings>,
        reply: oneshot::Sender<ReloadOutcome>,
    },
    Operate {
        operation: Operation,
        names: Option<Vec<String>>,
        reply: oneshot::Sender<OperationOutcome>,
    },
    Apply {
        servers: ServerMap,
        broken: BrokenServers,
        reply: oneshot::Sender<ReloadOutcome>,
    },
    Adopt {
        adopted: Box<AdoptedLife>,
        is_broken: bool,
    },
    HandOver {
        reply: oneshot::Sender<()>,
    },
    Shutdown {
        reply: oneshot::Sender<()>,
    },
}

type AddReply = Result<Option<InstanceHandle>, AddError>;

/// The parts of a fleet.
pub struct FleetParts {
    /// The launcher of instances.
    pub launcher: Arc<dyn Launch>,
    /// The state that operators want.
    pub desired: DesiredState,
    /// The file of the desired state.
    pub desired_state_file: PathBuf,
    /// The servers that no file configures.
    pub runtime_servers: RuntimeServers,
    /// The file of the servers that no file configures.
    pub runtime_servers_file: PathBuf,
    /// The folder of the logs.
    pub logs_dir: PathBuf,
    /// The folder of the locks that shims hold.
    pub locks_dir: PathBuf,
    /// The limits on the number and the memory of all instances.
    pub limits: InstanceSettings,
}

/// Creates the channel on which a fleet broadcasts its changes.
pub fn changes_channel() -> broadcast::Sender<StateChange> {
    broadcast::Sender::new(CHANGES_CAPACITY)
}

/// A handle of the fleet.
#[derive(Debug, Clone)]
pub struct Fleet {
    commands: mpsc::Sender<Command>,
    roster: watch::Receiver<Arc<Roster>>,
    changes: broadcast::Sender<StateChange>,
}

impl Fleet {
    /// Spawns a fleet with the instances that earlier daemons left. Its task ends with `shutdown`
    /// or `hand_over`.
    pub fn spawn(parts: FleetParts, adopted: Vec<AdoptedLife>) -> Self {
        Self::spawn_with_changes(parts, adopted, changes_channel())
    }

    /// Spawns a fleet that broadcasts on `changes`, from [`changes_channel`]. Receivers that have
    /// subscribed before see every change from the first on.
    pub fn spawn_with_changes(
        parts: FleetParts,
        adopted: Vec<AdoptedLife>,
        changes: broadcast::Sender<StateChange>,
    ) -> Self {
        let (commands, queue) = mpsc::channel(COMMAND_QUEUE_CAPACITY);
        let (published, roster) = watch::channel(Arc::default());
        let (usage, measured) = watch::channel(capacity::Usage::default());
        let measuring = capacity::measure_usage(parts.limits, roster.clone(), usage);
        let mut task = FleetTask {
            measured,
            measuring: JoinSet::new(),
            stored: parts.desired.clone(),
            desired: parts.desired.clone(),
            runtime_servers: parts.runtime_servers.clone(),
            parts,
            published,
            changes: changes.clone(),
            tasks: JoinSet::new(),
            leaving: HashMap::new(),
        };
        task.adopt_all(adopted);
        if task.parts.limits.memory.is_some() {
            task.measuring.spawn(measuring);
        }
        tokio::spawn(task.run(queue));
        Self { commands, roster, changes }
    }

    /// Returns all servers as they are now.
    pub fn roster(&self) -> Arc<Roster> {
        self.roster.borrow().clone()
    }

    /// Returns a receiver of the roster that sees all servers that come and go.
    pub fn watch_roster(&self) -> watch::Receiver<Arc<Roster>> {
        self.roster.clone()
    }

    /// Subscribes to changes of state.
    pub fn changes(&self) -> broadcast::Receiver<StateChange> {
        self.changes.subscribe()
    }

    /// Applies an operation to the named servers, or to all. Resolves when it is applied.
    pub async fn operate(
        &self,
        operation: Operation,
        names: Option<Vec<String>>,
    ) -> Result<OperationOutcome, FleetClosed> {
        let (reply, outcome) = oneshot::channel();
        self.commands
            .send(Command::Operate { operation, names, reply })
            .await
            .map_err(|_| FleetClosed)?;
        outcome.await.map_err(|_| FleetClosed)
    }

    /// Replaces the configuration of all servers. Resolves when it is applied. The desired state of
    /// `broken` servers is kept, as their files cannot be read now.
    pub async fn apply(
        &self,
        servers: ServerMap,
        broken: BrokenServers,
    ) -> Result<ReloadOutcome, FleetClosed> {
        let (reply, applied) = oneshot::channel();
        let command = Command::Apply { servers, broken, reply };
        self.commands.send(command).await.map_err(|_| FleetClosed)?;
        applied.await.map_err(|_| FleetClosed)
    }

    /// Replaces the settings of one server. Does nothing if the server has been removed.
    pub async fn update(
        &self,
        settings: Arc<ServerSettings>,
    ) -> Result<ReloadOutcome, FleetClosed> {
        let (reply, applied) = oneshot::channel();
        self.commands.send(Command::Update { settings, reply }).await.map_err(|_| FleetClosed)?;
        applied.await.map_err(|_| FleetClosed)
    }

    /// Returns the instance of a server for `holder`: the client's own with `isolation "client"`,
    /// which is created if needed, or else the shared one. A sleeping instance is woken. If there
    /// is no room, an idle instance is stopped.
    pub async fn hold(
        &self,
        server: &ServerName,
        holder: Holder,
    ) -> Result<InstanceHandle, HoldError> {
        let key = InstanceKey { server: server.clone(), holder };
        for _ in 0..MAX_HOLD_ATTEMPTS {
            match self.hold_now(key.clone()).await {
                // Another request may take the freed place.
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

    /// Retires the client's own instance, if it has one. A shared instance goes on.
    pub async fn release(&self, server: &ServerName, client: u64) {
        let key = InstanceKey { server: server.clone(), holder: Holder::Client(client) };
        // A fleet that has ended has retired or handed over the instance.
        let _ = self.commands.send(Command::Release { key }).await;
    }

    /// Adds a server that no file configures, with `source.added` set. Unless it is established, it
    /// does not survive a restart of the daemon. Returns its shared instance, if it has one.
    pub async fn add(
        &self,
        settings: Arc<ServerSettings>,
    ) -> Result<Option<InstanceHandle>, AddError> {
        let (reply, added) = oneshot::channel();
        let sent = self.commands.send(Command::Add { settings, reply }).await;
        sent.map_err(|_| AddError::Closed)?;
        added.await.unwrap_or(Err(AddError::Closed))
    }

    /// Stores an added server, so that it survives restarts of the daemon. If `settings` name a
    /// file of its own, that file keeps it instead.
    pub async fn establish(&self, settings: Arc<ServerSettings>) -> Result<(), EstablishError> {
        let (reply, done) = oneshot::channel();
        let sent = self.commands.send(Command::Establish { settings, reply }).await;
        sent.map_err(|_| EstablishError::Closed)?;
        done.await.unwrap_or(Err(EstablishError::Closed))
    }

    /// Removes a server, with or without a file. Resolves when it has left the roster. Returns
    /// `None` if there is no server of that name.
    pub async fn remove(&self, name: &ServerName) -> Result<Option<RemovedServer>, FleetClosed> {
        let (reply, removed) = oneshot::channel();
        let command = Command::Remove { name: name.clone(), reply };
        self.commands.send(command).await.map_err(|_| FleetClosed)?;
        removed.await.map_err(|_| FleetClosed)
    }

    /// Stops all servers at the same time. Resolves when all have ended.
    pub async fn shutdown(&self) {
        let (reply, done) = oneshot::channel();
        if self.commands.send(Command::Shutdown { reply }).await.is_ok() {
            let _ = done.await; // A fleet that has ended has no servers.
        }
        // Another caller may have been first. The roster closes when the fleet has ended.
        let mut roster = self.roster.clone();
        while roster.changed().await.is_ok() {}
    }

    /// Adopts an instance whose shim was slow to answer, and which has been waited for until now.
    /// If its file `is_broken`, it keeps its old settings.
    pub async fn adopt(&self, adopted: AdoptedLife, is_broken: bool) {
        let adopted = Box::new(adopted);
        // A fleet that ends retires or hands over all its instances.
        let _ = self.commands.send(Command::Adopt { adopted, is_broken }).await;
    }

    /// Leaves all servers to a later daemon. Resolves when all are released.
    pub async fn hand_over(&self) {
        let (reply, done) = oneshot::channel();
        if self.commands.send(Command::HandOver { reply }).await.is_ok() {
            let _ = done.await; // A fleet that has ended has no servers.
        }
    }

    /// Resolves when the fleet takes no more requests, because it was shut down or has failed.
    pub async fn closed(&self) {
        self.commands.closed().await;
    }

    /// Returns the settings that were applied last.
    pub fn settings(&self) -> ServerMap {
        settings_of(&self.roster())
    }
}

/// Returns the settings of an instance. The second process of a server that speaks both eras
/// sleeps while it is idle.
fn settings_for(holder: Holder, settings: &Arc<ServerSettings>) -> Arc<ServerSettings> {
    let mut settings = settings.clone();
    if let Holder::Era(_) = holder {
        let idle_stop = &mut Arc::make_mut(&mut settings).rules.idle_stop;
        *idle_stop = idle_stop.or(Some(SECOND_IDLE_STOP));
    }
    settings
}

/// Returns the server whose instances a server with these settings shares, if there is one.
fn owner_for(roster: &Roster, settings: &ServerSettings) -> Option<ServerName> {
    let key = settings.share_key.as_ref()?;
    let is_owner = |member: &&Member| {
        member.settings.share_key.as_ref() == Some(key)
            && member.owner.is_none()
            && member.settings.name != settings.name
    };
    roster.values().find(is_owner).map(|member| member.settings.name.clone())
}

fn settings_of(roster: &Roster) -> ServerMap {
    roster.iter().map(|(name, member)| (name.clone(), member.settings.clone())).collect()
}

#[cfg(test)]
mod tests;
