//! Owners of the task and elicitation ids that servers issue. Pure.
//!
//! Servers use such an id long after answering the call it came from, so its owner is recorded. An
//! id that is unknown, or that a server has issued to two clients, has no owner and reaches no
//! client.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use xy_mcp::tasks::CANCELLED_RETENTION;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::InstanceKey;
use xy_transport::retained::Retained;
use xy_upstream::fault::LossReason;

/// Maximum number of tasks of one client.
pub(crate) const MAX_TASKS: usize = 1000;

/// Maximum number of open elicitations of one client.
const MAX_ELICITATIONS: usize = 1000;

/// Maximum number of ids.
const MAX_IDS: usize = 100_000;

/// Maximum length of an id, in bytes; longer ones are not recorded.
pub(crate) const MAX_ID_BYTES: usize = 1024;

/// How long a record outlives the lifetime that the server has stated.
const GRACE: Duration = Duration::from_secs(60);

/// Maximum lifetime of a task's record, whatever its server says.
const MAX_LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The owners of all ids.
#[derive(Debug, Default)]
pub(crate) struct Ownership {
    tasks: HashMap<InstanceKey, HashMap<Box<str>, Task>>,
    elicitations: HashMap<InstanceKey, HashMap<Box<str>, Owner>>,
    count: u64,
}

/// The owner of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// One client, until it closes.
    Client(u64),
    /// All one-request clients with this token, which return for their tasks as other clients.
    Token(u64),
    /// Ambiguous: issued to several owners.
    Unclear,
}

impl Owner {
    fn combined_with(self, client: u64) -> Self {
        if self == Self::Client(client) { self } else { Self::Unclear }
    }
}

/// One task of a server.
#[derive(Debug)]
struct Task {
    owner: Owner,
    /// The alias of its server under which it began.
    alias: ServerName,
    /// Creation order.
    sequence: u64,
    /// When the record expires.
    ends: Instant,
    state: State,
    /// xy's progress token, and the client's.
    token: Option<(u64, Box<str>)>,
    /// True if the server may send messages about the task without naming it.
    is_implicit: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Possibly in progress.
    Working,
    Over,
    /// Its server has ended, for this reason.
    Lost(LossReason),
}

/// A task that a server has begun.
#[derive(Debug, Clone)]
pub(crate) struct NewTask<'t> {
    pub(crate) id: &'t str,
    /// The alias of its server under which it began.
    pub(crate) alias: &'t ServerName,
    /// The lifetime; `None` if unlimited.
    pub(crate) life: Option<Duration>,
    pub(crate) token: Option<(u64, Box<str>)>,
}

/// The result of looking up a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TaskLookup {
    /// The client has no task of this id.
    NotFound,
    /// The task is at this instance, under this alias.
    At(InstanceKey, ServerName),
    /// The task was at this instance, under this alias, and ended with it for this reason.
    Lost(ServerName, LossReason),
    /// Several servers have a task of this id.
    Ambiguous,
}

impl Ownership {
    /// Records a task of a client.
    pub(crate) fn add_task(
        &mut self,
        at: &InstanceKey,
        client: u64,
        new: NewTask<'_>,
        now: Instant,
    ) {
        self.add_task_for(at, Owner::Client(client), new, now);
    }

    /// Records a task. Beyond a limit nothing is recorded, and the task is reported as unknown.
    pub(crate) fn add_task_for(
        &mut self,
        at: &InstanceKey,
        owner: Owner,
        new: NewTask<'_>,
        now: Instant,
    ) {
        self.remove_expired(now);
        let is_full = self.count_of(owner) >= MAX_TASKS || self.len() >= MAX_IDS;
        if new.id.len() > MAX_ID_BYTES || is_full {
            return;
        }
        self.count += 1;
        let task = Task {
            owner,
            alias: new.alias.clone(),
            sequence: self.count,
            ends: now + record_lifetime(new.life),
            state: State::Working,
            token: new.token,
            is_implicit: matches!(owner, Owner::Client(_)),
        };
        let tasks = self.tasks.entry(at.clone()).or_default();
        match tasks.get_mut(new.id) {
            Some(old) if old.owner != task.owner && !matches!(old.state, State::Lost(_)) => {
                old.owner = Owner::Unclear;
            }
            _ => drop(tasks.insert(new.id.into(), task)),
        }
    }

    /// Returns the number of an owner's tasks.
    fn count_of(&self, owner: Owner) -> usize {
        let all = self.tasks.values().flat_map(HashMap::values);
        all.filter(|task| task.owner == owner).count()
    }

    /// Returns the number of a client's unexpired tasks.
    pub(crate) fn task_count(&mut self, client: u64, now: Instant) -> usize {
        self.remove_expired(now);
        self.count_of(Owner::Client(client))
    }

    /// Returns true if this token may have one more task. May forget a finished task, whose result
    /// was already reported.
    pub(crate) fn has_room_for(&mut self, token: u64, now: Instant) -> bool {
        let owner = Owner::Token(token);
        if self.len() < MAX_TASKS || self.count_of(owner) < MAX_TASKS && self.len() < MAX_IDS {
            return true; // The common case, without counting.
        }
        self.remove_expired(now);
        if self.count_of(owner) >= MAX_TASKS {
            self.forget_oldest_finished(owner);
        }
        self.count_of(owner) < MAX_TASKS && self.len() < MAX_IDS
    }

    /// Forgets the oldest finished task of an owner.
    fn forget_oldest_finished(&mut self, owner: Owner) {
        let all = self.tasks.values().flat_map(HashMap::values);
        let over = all.filter(|task| task.owner == owner && task.state != State::Working);
        if let Some(place) = over.map(|task| task.sequence).min() {
            for tasks in self.tasks.values_mut() {
                tasks.retain(|_, task| task.sequence != place);
            }
            self.tasks.retain(|_, tasks| !tasks.is_empty());
        }
    }

    /// Returns the client that owns a task of this instance.
    pub(crate) fn owner_of_task(&self, at: &InstanceKey, id: &str) -> Option<u64> {
        match self.owner_of(at, id) {
            Some(Owner::Client(client)) => Some(client),
            _ => None,
        }
    }

    /// Returns the owner of a task of this instance.
    pub(crate) fn owner_of(&self, at: &InstanceKey, id: &str) -> Option<Owner> {
        let task = self.tasks.get(at)?.get(id)?;
        match (task.owner, &task.state) {
            // A later life may issue the same id to another owner.
            (Owner::Unclear, _) | (_, State::Lost(_)) => None,
            (owner, _) => Some(owner),
        }
    }

    /// Returns the alias of its server under which a task began.
    pub(crate) fn alias(&self, at: &InstanceKey, id: &str) -> Option<&ServerName> {
        Some(&self.tasks.get(at)?.get(id)?.alias)
    }

    /// Returns true if an instance may be working on a task of `owner`.
    pub(crate) fn is_worked_on(&self, at: &InstanceKey, owner: Owner, id: &str) -> bool {
        let task = self.tasks.get(at).and_then(|tasks| tasks.get(id));
        task.is_some_and(|task| task.owner == owner && task.state == State::Working)
    }

    /// Returns the number of an instance's tasks that can still be queried.
    pub(crate) fn task_count_at(&self, at: &InstanceKey, now: Instant) -> usize {
        let tasks = self.tasks.get(at).into_iter().flat_map(HashMap::values);
        tasks.filter(|task| !matches!(task.state, State::Lost(_)) && now < task.ends).count()
    }

    /// Returns true if the task is recorded, whatever its owner.
    pub(crate) fn knows_task(&self, at: &InstanceKey, id: &str) -> bool {
        self.tasks.get(at).is_some_and(|tasks| tasks.contains_key(id))
    }

    /// Looks up a client's task at all servers.
    pub(crate) fn find(&self, client: u64, id: &str) -> TaskLookup {
        self.find_for(Owner::Client(client), id, |_, _| true)
    }

    /// Looks up an owner's task at the instances and aliases that `is_visible` accepts.
    pub(crate) fn find_for(
        &self,
        owner: Owner,
        id: &str,
        is_visible: impl Fn(&InstanceKey, &ServerName) -> bool,
    ) -> TaskLookup {
        let mut found = TaskLookup::NotFound;
        for (at, tasks) in &self.tasks {
            let Some(task) = tasks.get(id) else { continue };
            if task.owner != owner || !is_visible(at, &task.alias) {
                continue;
            }
            found = match (&task.state, found) {
                (State::Lost(why), TaskLookup::NotFound) => {
                    TaskLookup::Lost(task.alias.clone(), why.clone())
                }
                (State::Lost(_), found) => found,
                (_, TaskLookup::At(..) | TaskLookup::Ambiguous) => TaskLookup::Ambiguous,
                (_, TaskLookup::NotFound | TaskLookup::Lost(..)) => {
                    TaskLookup::At(at.clone(), task.alias.clone())
                }
            };
        }
        found
    }

    /// Returns the instance, alias and id of each task of a client that is not lost; the oldest
    /// first.
    pub(crate) fn all_of(&self, client: u64) -> Vec<(InstanceKey, ServerName, Box<str>)> {
        let mut all: Vec<(u64, InstanceKey, ServerName, Box<str>)> = Vec::new();
        for (at, tasks) in &self.tasks {
            for (id, task) in tasks {
                let is_lost = matches!(task.state, State::Lost(_));
                if task.owner == Owner::Client(client) && !is_lost {
                    all.push((task.sequence, at.clone(), task.alias.clone(), id.clone()));
                }
            }
        }
        all.sort_unstable_by_key(|(place, ..)| *place);
        all.into_iter().map(|(_, at, alias, id)| (at, alias, id)).collect()
    }

    /// Marks a task as finished; it can still be queried.
    pub(crate) fn end_task(&mut self, at: &InstanceKey, id: &str) {
        if let Some(task) = self.tasks.get_mut(at).and_then(|tasks| tasks.get_mut(id))
            && task.state == State::Working
        {
            task.state = State::Over;
        }
    }

    /// Sets the lifetime of a task, as its server states it.
    pub(crate) fn set_lifetime(
        &mut self,
        at: &InstanceKey,
        id: &str,
        life: Duration,
        now: Instant,
    ) {
        if let Some(task) = self.tasks.get_mut(at).and_then(|tasks| tasks.get_mut(id)) {
            task.ends = now + record_lifetime(Some(life));
        }
    }

    /// Returns the client whose task uses this progress token, and the client's own token.
    pub(crate) fn by_token(&self, at: &InstanceKey, token: u64) -> Option<(u64, &str)> {
        let tasks = self.tasks.get(at)?;
        tasks.values().find_map(|task| match (&task.token, task.owner) {
            (Some((own, client_token)), Owner::Client(client)) if *own == token => {
                Some((client, &**client_token))
            }
            _ => None,
        })
    }

    /// Returns true if an instance may be working on a task of another owner.
    pub(crate) fn has_tasks_of_others(&self, at: &InstanceKey, client: u64, now: Instant) -> bool {
        let tasks = self.tasks.get(at).into_iter().flat_map(HashMap::values);
        let mut others =
            tasks.filter(|task| task.is_implicit && task.owner != Owner::Client(client));
        others.any(|task| task.state == State::Working && now < task.ends)
    }

    /// Records an elicitation that its server will report as completed.
    pub(crate) fn add_elicitation(&mut self, at: &InstanceKey, client: u64, id: &str) {
        let mine = Owner::Client(client);
        let all = self.elicitations.values().flat_map(HashMap::values);
        let is_full = all.filter(|it| **it == mine).count() >= MAX_ELICITATIONS;
        if id.len() > MAX_ID_BYTES || is_full || self.len() >= MAX_IDS {
            return;
        }
        let known = self.elicitations.entry(at.clone()).or_default();
        known
            .entry(id.into())
            .and_modify(|owner| *owner = owner.combined_with(client))
            .or_insert(mine);
    }

    /// Removes a completed elicitation; returns its client.
    pub(crate) fn complete_elicitation(&mut self, at: &InstanceKey, id: &str) -> Option<u64> {
        let known = self.elicitations.get_mut(at)?;
        let owner = known.remove(id);
        if known.is_empty() {
            self.elicitations.remove(at);
        }
        match owner? {
            Owner::Client(client) => Some(client),
            Owner::Token(_) | Owner::Unclear => None,
        }
    }

    /// Removes a closed client. Its unfinished tasks stay without an owner for a while.
    pub(crate) fn remove_client(&mut self, client: u64, now: Instant) {
        for tasks in self.tasks.values_mut() {
            tasks.retain(|_, task| {
                let is_owned = task.owner == Owner::Client(client);
                if is_owned {
                    task.owner = Owner::Unclear;
                    task.ends = task.ends.min(now + CANCELLED_RETENTION);
                    task.token = None;
                }
                !is_owned || task.state == State::Working
            });
        }
        self.tasks.retain(|_, tasks| !tasks.is_empty());
        for known in self.elicitations.values_mut() {
            known.retain(|_, owner| *owner != Owner::Client(client));
        }
        self.elicitations.retain(|_, known| !known.is_empty());
    }

    /// Marks the tasks of an ended instance as lost.
    pub(crate) fn lose_instance(&mut self, at: &InstanceKey, why: &LossReason) {
        self.elicitations.remove(at);
        let Some(tasks) = self.tasks.get_mut(at) else { return };
        tasks.retain(|_, task| {
            task.state = State::Lost(why.clone());
            task.token = None;
            task.owner != Owner::Unclear
        });
        if tasks.is_empty() {
            self.tasks.remove(at);
        }
    }

    fn remove_expired(&mut self, now: Instant) {
        for tasks in self.tasks.values_mut() {
            tasks.retain(|_, task| now < task.ends);
        }
        self.tasks.retain(|_, tasks| !tasks.is_empty());
    }

    /// Adds the retained counts to `census`.
    pub(crate) fn count(&self, census: &mut Retained) {
        census.add("tasks", self.tasks.values().map(HashMap::len).sum());
        census.add("elicitations", self.elicitations.values().map(HashMap::len).sum());
        census.add("owning_instances", self.tasks.len() + self.elicitations.len());
    }

    /// Returns the number of recorded ids.
    pub(crate) fn len(&self) -> usize {
        self.tasks.values().map(HashMap::len).sum::<usize>()
            + self.elicitations.values().map(HashMap::len).sum::<usize>()
    }
}

/// Returns how long a task of this lifetime is recorded.
fn record_lifetime(life: Option<Duration>) -> Duration {
    life.map_or(MAX_LIFE, |life| life.saturating_add(GRACE)).min(MAX_LIFE)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use xy_supervisor::instance::Holder;

    use super::*;

    fn at(server: &str) -> InstanceKey {
        InstanceKey::shared(ServerName::new(server).unwrap())
    }

    fn new(id: &str) -> NewTask<'_> {
        static NAME: LazyLock<ServerName> = LazyLock::new(|| ServerName::new("n").unwrap());
        NewTask { id, alias: &NAME, life: Some(Duration::from_secs(10)), token: None }
    }

    fn lost() -> TaskLookup {
        TaskLookup::Lost(ServerName::new("n").unwrap(), LossReason::server("crashed"))
    }

    fn found(server: &str) -> TaskLookup {
        TaskLookup::At(at(server), ServerName::new("n").unwrap())
    }

    #[test]
    fn task_belongs_to_its_client() {
        let (mut all, now) = (Ownership::default(), Instant::now());
        all.add_task(&at("s"), 1, new("t"), now);
        assert_eq!(all.owner_of_task(&at("s"), "t"), Some(1));
        assert_eq!(all.find(1, "t"), found("s"));
        assert_eq!(
            (all.find(2, "t"), all.find(1, "u")),
            (TaskLookup::NotFound, TaskLookup::NotFound)
        );
        let own = InstanceKey { holder: Holder::Client(1), ..at("s") };
        assert_eq!(all.owner_of_task(&own, "t"), None, "another instance");
        all.add_task(&at("r"), 1, new("t"), now);
        assert_eq!(all.find(1, "t"), TaskLookup::Ambiguous);
        all.add_task(&at("s"), 2, new("t"), now);
        assert_eq!(all.owner_of_task(&at("s"), "t"), None, "it was given to two");
        assert_eq!((all.find(2, "t"), all.find(1, "t")), (TaskLookup::NotFound, found("r")));
    }

    #[test]
    fn tasks_of_others_are_known_until_they_end() {
        let (mut all, now) = (Ownership::default(), Instant::now());
        let works = |all: &Ownership, now| all.has_tasks_of_others(&at("s"), 2, now);
        all.add_task(&at("s"), 1, new("t"), now);
        assert!(works(&all, now) && !all.has_tasks_of_others(&at("s"), 1, now));
        all.end_task(&at("s"), "t");
        assert!(!works(&all, now));
        assert_eq!(all.owner_of_task(&at("s"), "t"), Some(1), "it can be asked about");
        all.add_task(&at("s"), 1, new("u"), now);
        all.remove_client(1, now);
        assert_eq!(all.owner_of_task(&at("s"), "u"), None);
        assert!(works(&all, now) && !works(&all, now + CANCELLED_RETENTION));
        all.add_task(&at("s"), 2, new("v"), now + CANCELLED_RETENTION);
        assert_eq!(all.len(), 1, "what is old is forgotten");
    }

    #[test]
    fn task_of_an_ended_server_is_lost_with_a_reason() {
        let (mut all, now) = (Ownership::default(), Instant::now());
        let token = Some((7, "\"p\"".into()));
        all.add_task(&at("s"), 1, NewTask { token, ..new("t") }, now);
        assert_eq!(all.by_token(&at("s"), 7), Some((1, "\"p\"")));
        all.lose_instance(&at("s"), &LossReason::server("crashed"));
        assert_eq!(all.find(1, "t"), lost());
        assert_eq!((all.by_token(&at("s"), 7), all.owner_of_task(&at("s"), "t")), (None, None));
        assert_eq!(all.all_of(1), []);
        all.add_task(&at("s"), 2, new("t"), now);
        assert_eq!(all.owner_of_task(&at("s"), "t"), Some(2), "the next life's own");
    }

    #[test]
    fn elicitation_completes_once_for_its_client() {
        let mut all = Ownership::default();
        all.add_elicitation(&at("s"), 1, "e");
        assert_eq!(all.complete_elicitation(&at("r"), "e"), None);
        assert_eq!(
            (all.complete_elicitation(&at("s"), "e"), all.complete_elicitation(&at("s"), "e")),
            (Some(1), None)
        );
        all.add_elicitation(&at("s"), 1, "e");
        all.add_elicitation(&at("s"), 2, "e");
        assert_eq!(all.complete_elicitation(&at("s"), "e"), None, "it was given to two");
        all.add_elicitation(&at("s"), 1, "e");
        all.add_elicitation(&at("s"), 2, "f");
        all.remove_client(1, Instant::now());
        assert_eq!(all.complete_elicitation(&at("s"), "e"), None);
        all.lose_instance(&at("s"), &LossReason::server(""));
        assert_eq!((all.complete_elicitation(&at("s"), "f"), all.len()), (None, 0));
    }

    #[test]
    fn tasks_and_elicitations_are_limited() {
        let (mut all, now) = (Ownership::default(), Instant::now());
        for number in 0..2 * MAX_TASKS {
            all.add_task(&at("s"), 1, new(&number.to_string()), now);
            all.add_elicitation(&at("s"), 1, &number.to_string());
        }
        all.add_task(&at("s"), 2, new(&"x".repeat(MAX_ID_BYTES + 1)), now);
        all.add_elicitation(&at("s"), 2, &"x".repeat(MAX_ID_BYTES + 1));
        assert_eq!(
            (all.count_of(Owner::Client(1)), all.len()),
            (MAX_TASKS, MAX_TASKS + MAX_ELICITATIONS)
        );
        assert_eq!(all.task_count(1, now + Duration::from_secs(10) + GRACE), 0);
        let first: Vec<_> = all.all_of(1);
        assert_eq!(first, []);
    }

    #[test]
    fn task_of_a_token_is_found_only_with_that_token_and_instance() {
        let (mut all, now) = (Ownership::default(), Instant::now());
        let (mine, other) = (Owner::Token(1), Owner::Token(2));
        let find = |all: &Ownership, owner| all.find_for(owner, "t", |_, _| true);
        all.add_task_for(&at("s"), mine, new("t"), now);
        assert_eq!(find(&all, mine), found("s"));
        assert_eq!(
            (find(&all, other), all.find(1, "t")),
            (TaskLookup::NotFound, TaskLookup::NotFound)
        );
        assert_eq!(all.find_for(mine, "t", |_, _| false), TaskLookup::NotFound, "another instance");
        assert!(!all.has_tasks_of_others(&at("s"), 1, now), "what is said of it names it");
        all.remove_client(1, now);
        assert_eq!(all.owner_of(&at("s"), "t"), Some(mine), "no client takes it along");
        all.add_task_for(&at("r"), mine, new("t"), now);
        assert_eq!(find(&all, mine), TaskLookup::Ambiguous);
        all.add_task_for(&at("r"), other, new("t"), now);
        assert_eq!(find(&all, mine), found("s"), "at the other it was given to two");
        assert_eq!((find(&all, other), all.owner_of(&at("r"), "t")), (TaskLookup::NotFound, None));
        all.lose_instance(&at("s"), &LossReason::server("crashed"));
        assert_eq!(find(&all, mine), lost());
    }

    #[test]
    fn task_lifetime_is_the_last_one_reported() {
        let (mut all, now) = (Ownership::default(), Instant::now());
        all.add_task_for(&at("s"), Owner::Token(1), new("t"), now);
        all.set_lifetime(&at("s"), "t", Duration::MAX, now);
        all.remove_expired(now + Duration::from_secs(1000));
        assert!(all.is_worked_on(&at("s"), Owner::Token(1), "t"));
        all.set_lifetime(&at("s"), "t", Duration::ZERO, now);
        all.remove_expired(now + GRACE);
        assert!(!all.knows_task(&at("s"), "t"));
    }

    #[test]
    fn only_finished_tasks_make_room() {
        let (mut all, now) = (Ownership::default(), Instant::now());
        let mine = Owner::Token(1);
        for number in 0..MAX_TASKS {
            assert!(all.has_room_for(1, now));
            all.add_task_for(&at("s"), mine, new(&number.to_string()), now);
        }
        assert!(!all.has_room_for(1, now) && all.has_room_for(2, now));
        all.add_task_for(&at("s"), mine, new("more"), now);
        assert_eq!(all.find_for(mine, "more", |_, _| true), TaskLookup::NotFound);
        all.end_task(&at("s"), "7");
        assert!(all.has_room_for(1, now));
        assert_eq!((all.len(), all.knows_task(&at("s"), "7")), (MAX_TASKS - 1, false));
        assert!(all.has_room_for(1, now), "it was made once");
        all.add_task_for(&at("s"), mine, new("more"), now);
        assert!(!all.has_room_for(1, now));
        assert!(all.has_room_for(1, now + Duration::from_secs(10) + GRACE));
        assert_eq!(all.len(), 0, "what is old is forgotten");
    }
}
