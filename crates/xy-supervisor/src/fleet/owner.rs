//! The fleet's own task: applies one request after another, and owns what they change.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use xy_config::settings::{Isolation, ServerSettings};
use xy_protocol::server::{ServerName, Wanted};

use super::room::Usage;
use super::{Command, FleetParts, Member, Roster};
use super::{holding, sharing};
use crate::added::AddedServers;
use crate::instance::{Holder, InstanceHandle, InstanceKey, StateChange};
use crate::lifecycle::{Event, Retirement, State};
use crate::locks::{is_held, lock_file};
use crate::logs::history::History;
use crate::logs::{self, LogBook, instance_log};
use crate::task::{Before, Parts, Predecessor, Task};
use crate::wishes::Wishes;

pub(super) struct Owner {
    pub(super) parts: FleetParts,
    pub(super) wishes: Wishes,
    /// What the file says of them: another thing while it cannot be written.
    pub(super) kept: Wishes,
    /// What the file of added servers says, or would if it could be written.
    pub(super) added: AddedServers,
    pub(super) published: watch::Sender<Arc<Roster>>,
    pub(super) changes: broadcast::Sender<StateChange>,
    pub(super) tasks: JoinSet<()>,
    /// What instances use, if that is limited.
    pub(super) measured: watch::Receiver<Usage>,
    /// Who measures that: ends with the owner.
    pub(super) measuring: JoinSet<()>,
    /// Removed instances that may not be gone yet, so that a successor waits for them.
    pub(super) leaving: HashMap<InstanceKey, InstanceHandle>,
}

impl Owner {
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        loop {
            let command = tokio::select! {
                biased;
                Some(_) = self.tasks.join_next() => {
                    self.forget_gone();
                    continue;
                }
                command = queue.recv() => command,
            };
            let Some(command) = command else { break };
            match command {
                Command::Hold { key, reply } => {
                    let _ = reply.send(self.hold(key).await); // The asker may have left.
                }
                Command::Release { key } => self.release(&key).await,
                Command::Add { settings, reply } => {
                    let _ = reply.send(self.add(&settings)); // The asker may have left.
                }
                Command::Establish { settings, reply } => {
                    let _ = reply.send(self.establish(&settings).await); // The same.
                }
                Command::Remove { name, reply } => {
                    let _ = reply.send(self.remove_now(&name).await); // The same.
                }
                Command::Update { settings, reply } => {
                    let _ = reply.send(self.update(settings).await); // The same.
                }
                Command::Ask { ask, names, reply } => {
                    let _ = reply.send(self.ask(ask, names).await); // The asker may have left.
                }
                Command::Apply { servers, broken, reply } => {
                    let applied = self.apply(servers, &broken).await;
                    let _ = reply.send(applied); // The asker may have left.
                }
                Command::Adopt { adopted, is_broken } => {
                    self.adopt_late(*adopted, is_broken).await;
                }
                Command::LetGo { reply } => {
                    queue.close();
                    self.let_go().await;
                    let _ = reply.send(()); // The asker may have left.
                    return;
                }
                Command::Shutdown { reply } => {
                    queue.close();
                    self.shutdown().await;
                    let _ = reply.send(()); // The asker may have left.
                    return;
                }
            }
        }
        self.shutdown().await;
    }

    /// Forgets those who have left; with a client goes all that was for it alone, but for the
    /// log of the last one that was failing.
    fn forget_gone(&mut self) {
        let parts = &self.parts;
        let roster = self.published.borrow().clone();
        let is_kept = |key: &InstanceKey| {
            let failed = roster.get(&key.server).and_then(|it| it.last_failed.as_ref());
            failed.is_some_and(|it| it.instance.key() == key)
        };
        self.leaving.retain(|key, instance| {
            let is_gone = instance.now().life.state == State::Retired;
            if is_gone && key.holder != Holder::Shared {
                // Nobody waits for this lock: a client of the same number would have taken
                // its predecessor from here.
                let _ = std::fs::remove_file(lock_file(&parts.locks_dir, key));
                if key.holder.is_client() && !is_kept(key) {
                    logs::forget(&parts.logs_dir, key);
                }
            }
            !is_gone
        });
    }

    /// Ends instances for good; whoever succeeds one waits for its end.
    pub(super) async fn retire(
        &mut self,
        instances: impl IntoIterator<Item = InstanceHandle>,
        why: Retirement,
    ) {
        for instance in instances {
            let _ = instance.request(Event::RetireRequested(why)).await; // Gone is what we want.
            self.leaving.insert(instance.key().clone(), instance);
        }
    }

    /// A server joins, with its instance unless that comes with clients.
    pub(super) fn join(
        &mut self,
        roster: &mut Roster,
        settings: &Arc<ServerSettings>,
    ) -> Option<InstanceHandle> {
        if let Some(owner) = sharing::owner_for(roster, settings) {
            self.member(roster, settings).owner = Some(owner);
            return None;
        }
        if settings.isolation == Isolation::Client {
            self.member(roster, settings);
            return None;
        }
        Some(self.bear(roster, &InstanceKey::shared(settings.name.clone()), settings))
    }

    /// The server in the roster, with these settings from now on.
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

    /// Begins a new instance.
    pub(super) fn bear(
        &mut self,
        roster: &mut Roster,
        key: &InstanceKey,
        settings: &Arc<ServerSettings>,
    ) -> InstanceHandle {
        let logs = Arc::new(LogBook::new(History::note(&instance_log(&self.parts.logs_dir, key))));
        let before = self.predecessor_of(key, settings).map_or(Before::Nothing, Before::Ending);
        let handle = self.begin(key, holding::settings_for(key.holder, settings), logs, before);
        self.member(roster, settings).instances.insert(key.holder, handle.clone());
        handle
    }

    /// Spawns the task of an instance.
    pub(super) fn begin(
        &mut self,
        key: &InstanceKey,
        settings: Arc<ServerSettings>,
        logs: Arc<LogBook>,
        before: Before,
    ) -> InstanceHandle {
        let (task, handle) = Task::new(Parts {
            key: key.clone(),
            settings,
            wanted: self.wanted(&key.server),
            launcher: self.parts.launcher.clone(),
            logs,
            changes: self.changes.clone(),
            before,
        });
        self.tasks.spawn(task.run());
        handle
    }

    pub(super) fn wanted(&self, server: &ServerName) -> Wanted {
        if self.wishes.stopped.contains(server) { Wanted::Down } else { Wanted::Up }
    }

    async fn let_go(&mut self) {
        let roster = self.published.borrow().clone();
        let living = roster.values().flat_map(|member| member.instances.values());
        let mut leaving = JoinSet::new();
        for instance in living.chain(self.leaving.values()) {
            let instance = instance.clone();
            leaving.spawn(async move { instance.let_go().await });
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
        self.forget_gone();
    }
}
