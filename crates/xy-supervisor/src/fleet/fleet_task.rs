//! The task of the fleet: it owns all state and applies one request after another.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use xy_config::settings::{Isolation, ServerSettings};
use xy_protocol::server::{ServerName, Wanted};

use super::capacity::Usage;
use super::{Command, FleetParts, Member, Roster, owner_for, settings_for};
use crate::desired::DesiredState;
use crate::instance::{Holder, InstanceHandle, InstanceKey, StateChange};
use crate::lifecycle::{Event, Retirement, State};
use crate::locks::{is_held, lock_file};
use crate::logs::history::History;
use crate::logs::{self, LogBook, instance_log};
use crate::runtime_servers::RuntimeServers;
use crate::task::{Origin, Parts, Predecessor, Task};

pub(super) struct FleetTask {
    pub(super) parts: FleetParts,
    pub(super) desired: DesiredState,
    /// The desired state in the file, which differs while the file cannot be written.
    pub(super) stored: DesiredState,
    /// The added servers that survive restarts of the daemon.
    pub(super) runtime_servers: RuntimeServers,
    pub(super) published: watch::Sender<Arc<Roster>>,
    pub(super) changes: broadcast::Sender<StateChange>,
    pub(super) tasks: JoinSet<()>,
    /// The memory of instances, if it is limited.
    pub(super) measured: watch::Receiver<Usage>,
    /// The task that measures memory; ends with the fleet task.
    pub(super) measuring: JoinSet<()>,
    /// Retired instances that may still be ending, so that successors wait for them.
    pub(super) leaving: HashMap<InstanceKey, InstanceHandle>,
}

impl FleetTask {
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        loop {
            let command = tokio::select! {
                biased;
                Some(_) = self.tasks.join_next() => {
                    self.clean_up_retired();
                    continue;
                }
                command = queue.recv() => command,
            };
            let Some(command) = command else { break };
            match command {
                Command::Hold { key, reply } => {
                    let _ = reply.send(self.hold(key).await); // The caller may have left.
                }
                Command::Release { key } => self.release(&key).await,
                Command::Add { settings, reply } => {
                    let _ = reply.send(self.add(&settings)); // The caller may have left.
                }
                Command::Establish { settings, reply } => {
                    let _ = reply.send(self.establish(&settings).await); // As above.
                }
                Command::Remove { name, reply } => {
                    let _ = reply.send(self.remove_server(&name).await); // As above.
                }
                Command::Update { settings, reply } => {
                    let _ = reply.send(self.update(settings).await); // As above.
                }
                Command::Operate { operation, names, reply } => {
                    let _ = reply.send(self.operate(operation, names).await); // As above.
                }
                Command::Apply { servers, broken, reply } => {
                    let applied = self.apply(servers, &broken).await;
                    let _ = reply.send(applied); // The caller may have left.
                }
                Command::Adopt { adopted, is_broken } => {
                    self.adopt_late(*adopted, is_broken).await;
                }
                Command::HandOver { reply } => {
                    queue.close();
                    self.hand_over_all().await;
                    let _ = reply.send(()); // The caller may have left.
                    return;
                }
                Command::Shutdown { reply } => {
                    queue.close();
                    self.shutdown().await;
                    let _ = reply.send(()); // The caller may have left.
                    return;
                }
            }
        }
        self.shutdown().await;
    }

    /// Forgets instances that have ended, and removes the lock and the log of client instances. The
    /// log of the last failing one is kept.
    fn clean_up_retired(&mut self) {
        let parts = &self.parts;
        let roster = self.published.borrow().clone();
        let is_kept = |key: &InstanceKey| {
            let failed = roster.get(&key.server).and_then(|it| it.last_failed.as_ref());
            failed.is_some_and(|it| it.instance.key() == key)
        };
        self.leaving.retain(|key, instance| {
            let is_gone = instance.now().life.state == State::Retired;
            if is_gone && key.holder != Holder::Shared {
                // No successor waits for this lock: one of the same client would have taken its
                // predecessor out of this map.
                let _ = std::fs::remove_file(lock_file(&parts.locks_dir, key));
                if key.holder.is_client() && !is_kept(key) {
                    logs::remove_log(&parts.logs_dir, key);
                }
            }
            !is_gone
        });
    }

    /// Retires instances. Their successors wait for their end.
    pub(super) async fn retire(
        &mut self,
        instances: impl IntoIterator<Item = InstanceHandle>,
        why: Retirement,
    ) {
        for instance in instances {
            let _ = instance.request(Event::RetireRequested(why)).await; // May be retired already.
            self.leaving.insert(instance.key().clone(), instance);
        }
    }

    /// Adds a server to the roster. Returns its instance, unless it shares one or has one per
    /// client.
    pub(super) fn add_to_roster(
        &mut self,
        roster: &mut Roster,
        settings: &Arc<ServerSettings>,
    ) -> Option<InstanceHandle> {
        if let Some(owner) = owner_for(roster, settings) {
            self.member(roster, settings).owner = Some(owner);
            return None;
        }
        if settings.isolation == Isolation::Client {
            self.member(roster, settings);
            return None;
        }
        Some(self.create_instance(roster, &InstanceKey::shared(settings.name.clone()), settings))
    }

    /// Returns the member of a server with new settings, and adds it if needed.
    pub(super) fn member<'r>(
        &self,
        roster: &'r mut Roster,
        settings: &Arc<ServerSettings>,
    ) -> &'r mut Member {
        let wanted = self.wanted(&settings.name);
        let member = roster.entry(settings.name.clone()).or_insert_with(|| Member {
            settings: settings.clone(),
            wanted,
            owner: None,
            instances: BTreeMap::new(),
            last_failed: None,
            is_failing: false,
        });
        member.settings = settings.clone();
        member
    }

    /// Creates a new instance.
    pub(super) fn create_instance(
        &mut self,
        roster: &mut Roster,
        key: &InstanceKey,
        settings: &Arc<ServerSettings>,
    ) -> InstanceHandle {
        let logs = Arc::new(LogBook::new(History::note(&instance_log(&self.parts.logs_dir, key))));
        let origin = self.predecessor_of(key, settings).map_or(Origin::New, Origin::Replacement);
        let handle = self.spawn_task(key, settings_for(key.holder, settings), logs, origin);
        self.member(roster, settings).instances.insert(key.holder, handle.clone());
        handle
    }

    /// Spawns the task of an instance.
    pub(super) fn spawn_task(
        &mut self,
        key: &InstanceKey,
        settings: Arc<ServerSettings>,
        logs: Arc<LogBook>,
        origin: Origin,
    ) -> InstanceHandle {
        let (task, handle) = Task::new(Parts {
            key: key.clone(),
            settings,
            wanted: self.wanted(&key.server),
            launcher: self.parts.launcher.clone(),
            logs,
            changes: self.changes.clone(),
            origin,
        });
        self.tasks.spawn(task.run());
        handle
    }

    pub(super) fn wanted(&self, server: &ServerName) -> Wanted {
        if self.desired.stopped.contains(server) { Wanted::Down } else { Wanted::Up }
    }

    async fn hand_over_all(&mut self) {
        let roster = self.published.borrow().clone();
        let living = roster.values().flat_map(|member| member.instances.values());
        let mut leaving = JoinSet::new();
        for instance in living.chain(self.leaving.values()) {
            let instance = instance.clone();
            leaving.spawn(async move { instance.hand_over().await });
        }
        while leaving.join_next().await.is_some() {}
        while self.tasks.join_next().await.is_some() {}
    }

    fn predecessor_of(
        &mut self,
        key: &InstanceKey,
        settings: &ServerSettings,
    ) -> Option<Predecessor> {
        let lock = lock_file(&self.parts.locks_dir, key);
        let of_key = || self.ending_with_key(key, settings.share_key.as_deref()?);
        let other = if self.leaving.contains_key(key) { None } else { of_key() };
        let removed = self.leaving.remove(key).or(other).map(Predecessor::Removed);
        removed.or_else(|| is_held(&lock).then_some(Predecessor::Orphan(lock)))
    }

    async fn shutdown(&mut self) {
        let roster = self.published.borrow().clone();
        let living = roster.values().flat_map(|member| member.instances.values().cloned());
        let living: Vec<InstanceHandle> = living.collect();
        self.retire(living, Retirement::DaemonEnds).await;
        while self.tasks.join_next().await.is_some() {}
        self.clean_up_retired();
    }
}
