//! Whose tasks and elicitations the ids are that servers give out. Pure.
//!
//! Such an id is said long after the call it came from is answered, so its owner is written
//! down. What nobody owns is nobody's: an id that is unknown, or that a server has given to
//! two clients, reaches no one.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::InstanceKey;

use crate::retained::Retained;
use crate::upstream::ECHO;

/// Tasks of one client.
pub(crate) const MOST_TASKS: usize = 1000;

/// Elicitations of one client that are not completed.
const MOST_ELICITATIONS: usize = 1000;

/// Ids in all.
const MOST: usize = 100_000;

/// An id that is longer is not remembered.
pub(crate) const LONGEST_ID: usize = 1024;

/// A server may keep a task a little longer than it said.
const GRACE: Duration = Duration::from_secs(60);

/// Tasks are forgotten after this time, whatever their server says.
const LONGEST_LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Whose everything is.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    tasks: HashMap<InstanceKey, HashMap<Box<str>, Task>>,
    elicitations: HashMap<InstanceKey, HashMap<Box<str>, Owner>>,
    count: u64,
}

/// Whose something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// One client's, for as long as it is there.
    Client(u64),
    /// That of whoever has this token, in the revision in which a client is there for one
    /// request, and comes back for its tasks as another.
    Token(u64),
    /// Several were given the same.
    Unclear,
}

impl Owner {
    fn and(self, client: u64) -> Self {
        if self == Self::Client(client) { self } else { Self::Unclear }
    }
}

/// One task of a server.
#[derive(Debug)]
struct Task {
    owner: Owner,
    /// The name of its server under which it was begun.
    asked: ServerName,
    /// How many there were before it.
    place: u64,
    /// It is forgotten then.
    ends: Instant,
    state: State,
    /// What its progress is told under, to us and to the client.
    token: Option<(u64, Box<str>)>,
    /// Its server may say something about it without naming it.
    is_spoken_of: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// It may be worked on.
    Working,
    Over,
    /// Its server has ended, like this.
    UnansweredCall(String),
}

/// What a server says of a new task.
#[derive(Debug, Clone)]
pub(crate) struct NewTask<'t> {
    pub(crate) id: &'t str,
    /// The name of its server under which it was begun.
    pub(crate) asked: &'t ServerName,
    /// How long it is kept; `None` for ever.
    pub(crate) life: Option<Duration>,
    pub(crate) token: Option<(u64, Box<str>)>,
}

/// Where a task is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// This client has none of this id.
    Nowhere,
    /// With this instance, whose server was asked for it under this name.
    At(InstanceKey, ServerName),
    /// It was with this instance, which has ended like this; the same name.
    UnansweredCall(InstanceKey, ServerName, String),
    /// Several servers have one of this id.
    Several,
}

impl Owners {
    /// A server has begun a task for a client.
    pub(crate) fn begun(&mut self, at: &InstanceKey, client: u64, new: NewTask<'_>, now: Instant) {
        self.begun_for(at, Owner::Client(client), new, now);
    }

    /// A server has begun a task for somebody. One more than there may be is not remembered,
    /// so that whoever asks for it is told that there is none.
    pub(crate) fn begun_for(
        &mut self,
        at: &InstanceKey,
        owner: Owner,
        new: NewTask<'_>,
        now: Instant,
    ) {
        self.forget_old(now);
        let is_full = self.count_of(owner) >= MOST_TASKS || self.len() >= MOST;
        if new.id.len() > LONGEST_ID || is_full {
            return;
        }
        self.count += 1;
        let task = Task {
            owner,
            asked: new.asked.clone(),
            place: self.count,
            ends: now + kept_for(new.life),
            state: State::Working,
            token: new.token,
            is_spoken_of: matches!(owner, Owner::Client(_)),
        };
        let tasks = self.tasks.entry(at.clone()).or_default();
        match tasks.get_mut(new.id) {
            Some(old)
                if old.owner != task.owner && !matches!(old.state, State::UnansweredCall(_)) =>
            {
                old.owner = Owner::Unclear;
            }
            _ => drop(tasks.insert(new.id.into(), task)),
        }
    }

    /// How many tasks somebody has.
    fn count_of(&self, owner: Owner) -> usize {
        let all = self.tasks.values().flat_map(HashMap::values);
        all.filter(|task| task.owner == owner).count()
    }

    /// How many tasks a client has whose time is not over.
    pub(crate) fn tasks_now(&mut self, client: u64, now: Instant) -> usize {
        self.forget_old(now);
        self.count_of(Owner::Client(client))
    }

    /// Whether whoever has this token may have one more task. If not, one that is over makes
    /// room: what came of it was told with the news that it is over.
    pub(crate) fn has_room_for(&mut self, token: u64, now: Instant) -> bool {
        let owner = Owner::Token(token);
        if self.len() < MOST_TASKS || self.count_of(owner) < MOST_TASKS && self.len() < MOST {
            return true; // Nearly always, without looking at each of them.
        }
        self.forget_old(now);
        if self.count_of(owner) >= MOST_TASKS {
            self.forget_one_over(owner);
        }
        self.count_of(owner) < MOST_TASKS && self.len() < MOST
    }

    /// Forgets the oldest task of somebody that is not worked on.
    fn forget_one_over(&mut self, owner: Owner) {
        let all = self.tasks.values().flat_map(HashMap::values);
        let over = all.filter(|task| task.owner == owner && task.state != State::Working);
        if let Some(place) = over.map(|task| task.place).min() {
            for tasks in self.tasks.values_mut() {
                tasks.retain(|_, task| task.place != place);
            }
            self.tasks.retain(|_, tasks| !tasks.is_empty());
        }
    }

    /// Who owns a task of this instance.
    pub(crate) fn owner_of_task(&self, at: &InstanceKey, id: &str) -> Option<u64> {
        match self.owner_of(at, id) {
            Some(Owner::Client(client)) => Some(client),
            _ => None,
        }
    }

    /// The same, whoever that may be.
    pub(crate) fn owner_of(&self, at: &InstanceKey, id: &str) -> Option<Owner> {
        let task = self.tasks.get(at)?.get(id)?;
        match (task.owner, &task.state) {
            // A later life of the server may give the same id to somebody else.
            (Owner::Unclear, _) | (_, State::UnansweredCall(_)) => None,
            (owner, _) => Some(owner),
        }
    }

    /// The name of its server under which a task was begun.
    pub(crate) fn asked_as(&self, at: &InstanceKey, id: &str) -> Option<&ServerName> {
        Some(&self.tasks.get(at)?.get(id)?.asked)
    }

    /// Whether an instance may be working on a task of somebody.
    pub(crate) fn is_worked_on(&self, at: &InstanceKey, owner: Owner, id: &str) -> bool {
        let task = self.tasks.get(at).and_then(|tasks| tasks.get(id));
        task.is_some_and(|task| task.owner == owner && task.state == State::Working)
    }

    /// How many tasks of an instance can be asked about.
    pub(crate) fn kept_at(&self, at: &InstanceKey, now: Instant) -> usize {
        let tasks = self.tasks.get(at).into_iter().flat_map(HashMap::values);
        tasks
            .filter(|task| !matches!(task.state, State::UnansweredCall(_)) && now < task.ends)
            .count()
    }

    /// Whether a server has been heard of this task, whosever it is.
    pub(crate) fn knows_task(&self, at: &InstanceKey, id: &str) -> bool {
        self.tasks.get(at).is_some_and(|tasks| tasks.contains_key(id))
    }

    /// Where a client's task is, at any server.
    pub(crate) fn find(&self, client: u64, id: &str) -> Found {
        self.find_for(Owner::Client(client), id, |_, _| true)
    }

    /// Where somebody's task is, at any instance that is theirs to ask under that name.
    pub(crate) fn find_for(
        &self,
        owner: Owner,
        id: &str,
        is_theirs: impl Fn(&InstanceKey, &ServerName) -> bool,
    ) -> Found {
        let mut found = Found::Nowhere;
        for (at, tasks) in &self.tasks {
            let Some(task) = tasks.get(id) else { continue };
            if task.owner != owner || !is_theirs(at, &task.asked) {
                continue;
            }
            found = match (&task.state, found) {
                (State::UnansweredCall(why), Found::Nowhere) => {
                    Found::UnansweredCall(at.clone(), task.asked.clone(), why.clone())
                }
                (State::UnansweredCall(_), found) => found,
                (_, Found::At(..) | Found::Several) => Found::Several,
                (_, Found::Nowhere | Found::UnansweredCall(..)) => {
                    Found::At(at.clone(), task.asked.clone())
                }
            };
        }
        found
    }

    /// Where all tasks of a client are that are not lost, and the names under which they were
    /// begun; the oldest first.
    pub(crate) fn all_of(&self, client: u64) -> Vec<(InstanceKey, ServerName, Box<str>)> {
        let mut all: Vec<(u64, InstanceKey, ServerName, Box<str>)> = Vec::new();
        for (at, tasks) in &self.tasks {
            for (id, task) in tasks {
                let is_lost = matches!(task.state, State::UnansweredCall(_));
                if task.owner == Owner::Client(client) && !is_lost {
                    all.push((task.place, at.clone(), task.asked.clone(), id.clone()));
                }
            }
        }
        all.sort_unstable_by_key(|(place, ..)| *place);
        all.into_iter().map(|(_, at, asked, id)| (at, asked, id)).collect()
    }

    /// A task is not worked on any more; it can still be asked about.
    pub(crate) fn ended(&mut self, at: &InstanceKey, id: &str) {
        if let Some(task) = self.tasks.get_mut(at).and_then(|tasks| tasks.get_mut(id))
            && task.state == State::Working
        {
            task.state = State::Over;
        }
    }

    /// A server says of a task that it keeps it for so long.
    pub(crate) fn keeps(&mut self, at: &InstanceKey, id: &str, life: Duration, now: Instant) {
        if let Some(task) = self.tasks.get_mut(at).and_then(|tasks| tasks.get_mut(id)) {
            task.ends = now + kept_for(Some(life));
        }
    }

    /// Whose progress is told under this token, and what they call it.
    pub(crate) fn by_token(&self, at: &InstanceKey, token: u64) -> Option<(u64, &str)> {
        let tasks = self.tasks.get(at)?;
        tasks.values().find_map(|task| match (&task.token, task.owner) {
            (Some((ours, theirs)), Owner::Client(client)) if *ours == token => {
                Some((client, &**theirs))
            }
            _ => None,
        })
    }

    /// Whether the instance may be working on a task of somebody else.
    pub(crate) fn works_for_others(&self, at: &InstanceKey, client: u64, now: Instant) -> bool {
        let tasks = self.tasks.get(at).into_iter().flat_map(HashMap::values);
        let mut others =
            tasks.filter(|task| task.is_spoken_of && task.owner != Owner::Client(client));
        others.any(|task| task.state == State::Working && now < task.ends)
    }

    /// A client is asked to do something elsewhere; its server will say when that is done.
    pub(crate) fn elicited(&mut self, at: &InstanceKey, client: u64, id: &str) {
        let mine = Owner::Client(client);
        let all = self.elicitations.values().flat_map(HashMap::values);
        let is_full = all.filter(|it| **it == mine).count() >= MOST_ELICITATIONS;
        if id.len() > LONGEST_ID || is_full || self.len() >= MOST {
            return;
        }
        let known = self.elicitations.entry(at.clone()).or_default();
        known.entry(id.into()).and_modify(|owner| *owner = owner.and(client)).or_insert(mine);
    }

    /// That is done: whose it was.
    pub(crate) fn completed(&mut self, at: &InstanceKey, id: &str) -> Option<u64> {
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

    /// A client has gone. What is worked on for it is nobody's, for a while.
    pub(crate) fn left(&mut self, client: u64, now: Instant) {
        for tasks in self.tasks.values_mut() {
            tasks.retain(|_, task| {
                let is_theirs = task.owner == Owner::Client(client);
                if is_theirs {
                    task.owner = Owner::Unclear;
                    task.ends = task.ends.min(now + ECHO);
                    task.token = None;
                }
                !is_theirs || task.state == State::Working
            });
        }
        self.tasks.retain(|_, tasks| !tasks.is_empty());
        for known in self.elicitations.values_mut() {
            known.retain(|_, owner| *owner != Owner::Client(client));
        }
        self.elicitations.retain(|_, known| !known.is_empty());
    }

    /// An instance has ended, like this.
    pub(crate) fn lost(&mut self, at: &InstanceKey, why: &str) {
        self.elicitations.remove(at);
        let Some(tasks) = self.tasks.get_mut(at) else { return };
        tasks.retain(|_, task| {
            task.state = State::UnansweredCall(why.to_owned());
            task.token = None;
            task.owner != Owner::Unclear
        });
        if tasks.is_empty() {
            self.tasks.remove(at);
        }
    }

    fn forget_old(&mut self, now: Instant) {
        for tasks in self.tasks.values_mut() {
            tasks.retain(|_, task| now < task.ends);
        }
        self.tasks.retain(|_, tasks| !tasks.is_empty());
    }

    /// How much is kept.
    pub(crate) fn count(&self, census: &mut Retained) {
        census.add("tasks", self.tasks.values().map(HashMap::len).sum());
        census.add("elicitations", self.elicitations.values().map(HashMap::len).sum());
        census.add("owning_instances", self.tasks.len() + self.elicitations.len());
    }

    /// How many ids are remembered.
    pub(crate) fn len(&self) -> usize {
        self.tasks.values().map(HashMap::len).sum::<usize>()
            + self.elicitations.values().map(HashMap::len).sum::<usize>()
    }
}

/// For how long a task is remembered that its server keeps for so long.
fn kept_for(life: Option<Duration>) -> Duration {
    life.map_or(LONGEST_LIFE, |life| life.saturating_add(GRACE)).min(LONGEST_LIFE)
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
        NewTask { id, asked: &NAME, life: Some(Duration::from_secs(10)), token: None }
    }

    fn lost() -> Found {
        Found::UnansweredCall(at("s"), ServerName::new("n").unwrap(), "it crashed".to_owned())
    }

    fn found(server: &str) -> Found {
        Found::At(at(server), ServerName::new("n").unwrap())
    }

    #[test]
    fn a_task_is_its_clients_alone() {
        let (mut all, now) = (Owners::default(), Instant::now());
        all.begun(&at("s"), 1, new("t"), now);
        assert_eq!(all.owner_of_task(&at("s"), "t"), Some(1));
        assert_eq!(all.find(1, "t"), found("s"));
        assert_eq!((all.find(2, "t"), all.find(1, "u")), (Found::Nowhere, Found::Nowhere));
        let own = InstanceKey { holder: Holder::Client(1), ..at("s") };
        assert_eq!(all.owner_of_task(&own, "t"), None, "another instance");
        all.begun(&at("r"), 1, new("t"), now);
        assert_eq!(all.find(1, "t"), Found::Several);
        all.begun(&at("s"), 2, new("t"), now);
        assert_eq!(all.owner_of_task(&at("s"), "t"), None, "it was given to two");
        assert_eq!((all.find(2, "t"), all.find(1, "t")), (Found::Nowhere, found("r")));
    }

    #[test]
    fn what_is_worked_on_for_others_is_known_until_it_is_over() {
        let (mut all, now) = (Owners::default(), Instant::now());
        let works = |all: &Owners, now| all.works_for_others(&at("s"), 2, now);
        all.begun(&at("s"), 1, new("t"), now);
        assert!(works(&all, now) && !all.works_for_others(&at("s"), 1, now));
        all.ended(&at("s"), "t");
        assert!(!works(&all, now));
        assert_eq!(all.owner_of_task(&at("s"), "t"), Some(1), "it can be asked about");
        all.begun(&at("s"), 1, new("u"), now);
        all.left(1, now);
        assert_eq!(all.owner_of_task(&at("s"), "u"), None);
        assert!(works(&all, now) && !works(&all, now + ECHO));
        all.begun(&at("s"), 2, new("v"), now + ECHO);
        assert_eq!(all.len(), 1, "what is old is forgotten");
    }

    #[test]
    fn a_task_of_a_server_that_has_ended_is_lost_and_says_why() {
        let (mut all, now) = (Owners::default(), Instant::now());
        let token = Some((7, "\"p\"".into()));
        all.begun(&at("s"), 1, NewTask { token, ..new("t") }, now);
        assert_eq!(all.by_token(&at("s"), 7), Some((1, "\"p\"")));
        all.lost(&at("s"), "it crashed");
        assert_eq!(all.find(1, "t"), lost());
        assert_eq!((all.by_token(&at("s"), 7), all.owner_of_task(&at("s"), "t")), (None, None));
        assert_eq!(all.all_of(1), []);
        all.begun(&at("s"), 2, new("t"), now);
        assert_eq!(all.owner_of_task(&at("s"), "t"), Some(2), "the next life's own");
    }

    #[test]
    fn an_elicitation_is_completed_once_and_at_its_own_client() {
        let mut all = Owners::default();
        all.elicited(&at("s"), 1, "e");
        assert_eq!(all.completed(&at("r"), "e"), None);
        assert_eq!((all.completed(&at("s"), "e"), all.completed(&at("s"), "e")), (Some(1), None));
        all.elicited(&at("s"), 1, "e");
        all.elicited(&at("s"), 2, "e");
        assert_eq!(all.completed(&at("s"), "e"), None, "it was given to two");
        all.elicited(&at("s"), 1, "e");
        all.elicited(&at("s"), 2, "f");
        all.left(1, Instant::now());
        assert_eq!(all.completed(&at("s"), "e"), None);
        all.lost(&at("s"), "");
        assert_eq!((all.completed(&at("s"), "f"), all.len()), (None, 0));
    }

    #[test]
    fn nothing_grows_without_a_bound() {
        let (mut all, now) = (Owners::default(), Instant::now());
        for number in 0..2 * MOST_TASKS {
            all.begun(&at("s"), 1, new(&number.to_string()), now);
            all.elicited(&at("s"), 1, &number.to_string());
        }
        all.begun(&at("s"), 2, new(&"x".repeat(LONGEST_ID + 1)), now);
        all.elicited(&at("s"), 2, &"x".repeat(LONGEST_ID + 1));
        assert_eq!(
            (all.count_of(Owner::Client(1)), all.len()),
            (MOST_TASKS, MOST_TASKS + MOST_ELICITATIONS)
        );
        assert_eq!(all.tasks_now(1, now + Duration::from_secs(10) + GRACE), 0);
        let first: Vec<_> = all.all_of(1);
        assert_eq!(first, []);
    }

    #[test]
    fn a_task_of_a_token_is_found_by_whoever_has_that_and_asks_where_it_is() {
        let (mut all, now) = (Owners::default(), Instant::now());
        let (mine, other) = (Owner::Token(1), Owner::Token(2));
        let find = |all: &Owners, owner| all.find_for(owner, "t", |_, _| true);
        all.begun_for(&at("s"), mine, new("t"), now);
        assert_eq!(find(&all, mine), found("s"));
        assert_eq!((find(&all, other), all.find(1, "t")), (Found::Nowhere, Found::Nowhere));
        assert_eq!(all.find_for(mine, "t", |_, _| false), Found::Nowhere, "another instance");
        assert!(!all.works_for_others(&at("s"), 1, now), "what is said of it names it");
        all.left(1, now);
        assert_eq!(all.owner_of(&at("s"), "t"), Some(mine), "no client takes it along");
        all.begun_for(&at("r"), mine, new("t"), now);
        assert_eq!(find(&all, mine), Found::Several);
        all.begun_for(&at("r"), other, new("t"), now);
        assert_eq!(find(&all, mine), found("s"), "at the other it was given to two");
        assert_eq!((find(&all, other), all.owner_of(&at("r"), "t")), (Found::Nowhere, None));
        all.lost(&at("s"), "it crashed");
        assert_eq!(find(&all, mine), lost());
    }

    #[test]
    fn a_task_is_kept_for_as_long_as_its_server_says_last() {
        let (mut all, now) = (Owners::default(), Instant::now());
        all.begun_for(&at("s"), Owner::Token(1), new("t"), now);
        all.keeps(&at("s"), "t", Duration::MAX, now);
        all.forget_old(now + Duration::from_secs(1000));
        assert!(all.is_worked_on(&at("s"), Owner::Token(1), "t"));
        all.keeps(&at("s"), "t", Duration::ZERO, now);
        all.forget_old(now + GRACE);
        assert!(!all.knows_task(&at("s"), "t"));
    }

    #[test]
    fn what_is_over_makes_room_and_what_is_worked_on_does_not() {
        let (mut all, now) = (Owners::default(), Instant::now());
        let mine = Owner::Token(1);
        for number in 0..MOST_TASKS {
            assert!(all.has_room_for(1, now));
            all.begun_for(&at("s"), mine, new(&number.to_string()), now);
        }
        assert!(!all.has_room_for(1, now) && all.has_room_for(2, now));
        all.begun_for(&at("s"), mine, new("more"), now);
        assert_eq!(all.find_for(mine, "more", |_, _| true), Found::Nowhere);
        all.ended(&at("s"), "7");
        assert!(all.has_room_for(1, now));
        assert_eq!((all.len(), all.knows_task(&at("s"), "7")), (MOST_TASKS - 1, false));
        assert!(all.has_room_for(1, now), "it was made once");
        all.begun_for(&at("s"), mine, new("more"), now);
        assert!(!all.has_room_for(1, now));
        assert!(all.has_room_for(1, now + Duration::from_secs(10) + GRACE));
        assert_eq!(all.len(), 0, "what is old is forgotten");
    }
}
