//! All servers: one owner of the roster, of operators' wishes and of every task.
//!
//! Whoever reads takes the roster as it is now; whoever changes something asks the
//! fleet's own task, which applies one request after another. It never waits for a
//! server to settle: that is for the asker, who gets the handles to wait on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use xy_config::Broken;
use xy_config::settings::ServerSettings;
use xy_protocol::server::{ServerName, ServerState, Wanted};

use crate::instance::{Holder, InstanceHandle, InstanceKey, StateChange};
use crate::launch::Launch;
use crate::launch::adopt::Adopted;
use crate::lifecycle::{Event, State};
use crate::locks::{is_held, lock_file};
use crate::logs::history::History;
use crate::logs::{LogBook, log_file};
use crate::reload::{Plan, ServerMap, diff};
use crate::task::{Before, Parts, Predecessor, Task};
use crate::wait::time_of_day;
use crate::wishes::Wishes;

/// Requests wait here while one is being applied.
const COMMANDS: usize = 64;

/// Changes a listener may lag behind before it is told that it missed some.
const CHANGES: usize = 1024;

/// One server and all its instances.
#[derive(Debug, Clone)]
pub struct Member {
    /// What its file says.
    pub settings: Arc<ServerSettings>,
    /// Its instances, by whom they live for.
    pub instances: BTreeMap<Holder, InstanceHandle>,
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
    /// Its state before.
    pub before: ServerState,
    /// To wait on.
    pub instance: InstanceHandle,
}

/// What became of a request.
#[derive(Debug, Default)]
pub struct AskOutcome {
    /// The servers, in the order of their names.
    pub asked: Vec<Asked>,
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

enum Command {
    Ask { ask: Ask, names: Option<Vec<String>>, reply: oneshot::Sender<AskOutcome> },
    Apply { servers: ServerMap, broken: Broken, reply: oneshot::Sender<Applied> },
    Adopt { adopted: Box<Adopted>, is_broken: bool },
    LetGo { reply: oneshot::Sender<()> },
    Shutdown { reply: oneshot::Sender<()> },
}

/// What a fleet is made of.
pub struct FleetParts {
    /// Starts instances.
    pub launcher: Arc<dyn Launch>,
    /// What operators want.
    pub wishes: Wishes,
    /// Where that is kept.
    pub wishes_file: PathBuf,
    /// Where logs are kept.
    pub logs_dir: PathBuf,
    /// Where shims hold their locks.
    pub locks_dir: PathBuf,
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
        let (commands, queue) = mpsc::channel(COMMANDS);
        let (published, roster) = watch::channel(Arc::default());
        let changes = broadcast::Sender::new(CHANGES);
        let mut owner = Owner {
            kept: parts.wishes.clone(),
            wishes: parts.wishes.clone(),
            parts,
            published,
            changes: changes.clone(),
            tasks: JoinSet::new(),
            leaving: HashMap::new(),
        };
        for one in adopted {
            owner.adopt(one);
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

struct Owner {
    parts: FleetParts,
    wishes: Wishes,
    /// What the file says of them: another thing while it cannot be written.
    kept: Wishes,
    published: watch::Sender<Arc<Roster>>,
    changes: broadcast::Sender<StateChange>,
    tasks: JoinSet<()>,
    /// Removed instances that may not be gone yet, so that a successor waits for them.
    leaving: HashMap<InstanceKey, InstanceHandle>,
}

impl Owner {
    async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        while let Some(command) = queue.recv().await {
            while self.tasks.try_join_next().is_some() {}
            self.leaving.retain(|_, instance| instance.now().life.state != State::Retired);
            match command {
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

    async fn ask(&mut self, ask: Ask, names: Option<Vec<String>>) -> AskOutcome {
        let roster = self.published.borrow().clone();
        let mut outcome = AskOutcome::default();
        let (known, unknown): (Vec<_>, Vec<_>) = names
            .unwrap_or_else(|| roster.keys().map(ToString::to_string).collect())
            .into_iter()
            .collect::<BTreeSet<_>>() // Named twice is asked once.
            .into_iter()
            .partition(|name| roster.contains_key(name.as_str()));
        outcome.unknown = unknown;
        if let Err(problem) = self.remember(ask, &known, &roster).await {
            outcome.warnings.push(problem);
        }
        let event = match ask {
            Ask::Start => Event::StartRequested,
            Ask::Stop => Event::StopRequested,
            Ask::Restart => Event::RestartRequested,
        };
        for instance in known.iter().flat_map(|name| roster[name.as_str()].instances.values()) {
            let before = instance.now().state();
            if instance.request(event.clone()).await.is_ok() {
                outcome.asked.push(Asked { before, instance: instance.clone() });
            }
        }
        outcome
    }

    /// Keeps what the operator wants. If it cannot be kept, it is done all the same.
    async fn remember(
        &mut self,
        ask: Ask,
        names: &[String],
        roster: &Roster,
    ) -> Result<(), String> {
        let mut wishes = self.wishes.clone();
        for name in names {
            let Some((name, _)) = roster.get_key_value(name.as_str()) else {
                continue;
            };
            match ask {
                Ask::Stop => wishes.stopped.insert(name.clone()),
                Ask::Start | Ask::Restart => wishes.stopped.remove(name),
            };
        }
        self.keep(wishes).await.map_err(|problem| {
            format!("this will be forgotten when the daemon restarts: {problem}")
        })
    }

    async fn keep(&mut self, wishes: Wishes) -> Result<(), String> {
        self.wishes = wishes.clone();
        if self.wishes == self.kept {
            return Ok(());
        }
        let file = self.parts.wishes_file.clone();
        let shown = file.display().to_string();
        match tokio::task::spawn_blocking(move || wishes.write(&file)).await {
            Ok(Ok(())) => {
                self.kept = self.wishes.clone();
                Ok(())
            }
            Ok(Err(error)) => Err(format!("{shown} could not be written: {error}")),
            Err(error) => Err(format!("{shown} could not be written: {error}")),
        }
    }

    async fn apply(&mut self, servers: ServerMap, broken: &Broken) -> Applied {
        let mut roster = Roster::clone(&self.published.borrow());
        let plan = diff(&settings_of(&roster), &servers);
        let mut leaving = Vec::new();
        let mut coming = Vec::new();
        for name in &plan.removed {
            leaving.extend(self.remove(&mut roster, name).await);
        }
        for settings in plan.added.iter().filter_map(|name| servers.get(name)) {
            coming.push(self.add(&mut roster, settings));
        }
        for (names, event) in
            [(&plan.restarted, Event::ProcessChanged), (&plan.updated, Event::RulesChanged)]
        {
            for settings in names.iter().filter_map(|name| servers.get(name)) {
                coming.extend(reconfigure(&mut roster, settings, &event).await);
            }
        }
        self.published.send_replace(Arc::new(roster));
        self.forget_wishes_but(&servers, broken).await;
        Applied { plan, leaving, coming }
    }

    async fn remove(&mut self, roster: &mut Roster, name: &ServerName) -> Vec<InstanceHandle> {
        let Some(member) = roster.remove(name) else {
            return Vec::new();
        };
        let instances: Vec<_> = member.instances.into_values().collect();
        for instance in &instances {
            let _ = instance.request(Event::RetireRequested).await; // Gone is what we want.
            self.leaving.insert(instance.key().clone(), instance.clone());
        }
        instances
    }

    fn add(&mut self, roster: &mut Roster, settings: &Arc<ServerSettings>) -> InstanceHandle {
        let key = InstanceKey::shared(settings.name.clone());
        let log_file = log_file(&self.parts.logs_dir, &settings.name);
        let logs = Arc::new(LogBook::new(History::note(&log_file)));
        let before = self.predecessor_of(&key).map_or(Before::Nothing, Before::Ending);
        self.begin(roster, key, settings.clone(), logs, before)
    }

    /// Spawns the task of an instance, which from now on is one of us.
    fn begin(
        &mut self,
        roster: &mut Roster,
        key: InstanceKey,
        settings: Arc<ServerSettings>,
        logs: Arc<LogBook>,
        before: Before,
    ) -> InstanceHandle {
        let (task, handle) = Task::new(Parts {
            key: key.clone(),
            settings: settings.clone(),
            wanted: self.wanted(&key.server),
            launcher: self.parts.launcher.clone(),
            logs,
            changes: self.changes.clone(),
            before,
        });
        self.tasks.spawn(task.run());
        let instances = BTreeMap::from([(key.holder, handle.clone())]);
        roster.insert(key.server, Member { settings, instances });
        handle
    }

    fn wanted(&self, server: &ServerName) -> Wanted {
        if self.wishes.stopped.contains(server) { Wanted::Down } else { Wanted::Up }
    }

    /// Goes on with a server that an earlier daemon started, as its file was then.
    fn adopt(&mut self, adopted: Adopted) {
        let Adopted { key, note, status, greeted_at, instance, logs } = adopted;
        let wanted = self.wanted(&key.server);
        let life = note.life(&status, wanted, greeted_at.into_std());
        let pid = status.exited.is_none().then_some(status.pid);
        let ended_at = status
            .exited
            .as_ref()
            .and_then(|exited| time_of_day().checked_sub(Duration::from_millis(exited.ms_ago)));
        let unheard = match wanted {
            // It may have been kept and not yet been done.
            Wanted::Down => Some(Event::StopRequested),
            Wanted::Up => note.unheard(&status),
        };
        let before = Before::Living { life, instance, pid, ended_at, unheard };
        let mut roster = Roster::clone(&self.published.borrow());
        self.begin(&mut roster, key, note.settings, logs, before);
        self.published.send_replace(Arc::new(roster));
    }

    /// Replaces whoever waited for the end of this one, with what its file says by now.
    async fn adopt_late(&mut self, adopted: Adopted, is_broken: bool) {
        let name = adopted.key.server.clone();
        let wanted = self.published.borrow().get(&name).cloned();
        for waiting in wanted.iter().flat_map(|member| member.instances.values()) {
            waiting.let_go().await;
        }
        self.adopt(adopted);
        let mut servers = settings_of(&self.published.borrow());
        match (wanted, servers.get_mut(&name)) {
            (Some(member), Some(settings)) => *settings = member.settings,
            (None, Some(settings)) if is_broken => {
                Arc::make_mut(settings).source.is_outdated = true;
            }
            _ => _ = servers.remove(&name),
        }
        self.apply(servers, &Broken::Every).await;
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

    fn predecessor_of(&mut self, key: &InstanceKey) -> Option<Predecessor> {
        let lock = lock_file(&self.parts.locks_dir, key);
        let removed = self.leaving.remove(key).map(Predecessor::Removed);
        removed.or_else(|| is_held(&lock).then_some(Predecessor::Orphan(lock)))
    }

    /// Wishes are for servers that there are; one that comes back later is a new one.
    async fn forget_wishes_but(&mut self, servers: &ServerMap, broken: &Broken) {
        let mut wishes = self.wishes.clone();
        wishes.stopped.retain(|name| servers.contains_key(name) || broken.contains(name));
        if let Err(problem) = self.keep(wishes).await {
            tracing::warn!("{problem}");
        }
    }

    async fn shutdown(&mut self) {
        let roster = self.published.borrow().clone();
        for instance in roster.values().flat_map(|member| member.instances.values()) {
            let _ = instance.request(Event::RetireRequested).await; // Gone is what we want.
        }
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Gives a server's instances other settings; answers those that begin a new life by it.
async fn reconfigure(
    roster: &mut Roster,
    settings: &Arc<ServerSettings>,
    event: &Event,
) -> Vec<InstanceHandle> {
    let Some(member) = roster.get_mut(&settings.name) else {
        return Vec::new();
    };
    member.settings = settings.clone();
    let mut coming = Vec::new();
    for instance in member.instances.values() {
        let _ = instance.reconfigure(event.clone(), settings.clone()).await; // Gone: nothing to do.
        if instance.now().life.wanted == Wanted::Up {
            coming.push(instance.clone());
        }
    }
    coming
}

#[cfg(test)]
mod tests;
