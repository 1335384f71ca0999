//! What every handler can reach.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use xy_config::settings::{Profiles, ServerSettings};
use xy_config::{Broken, Earlier, LastGood, Loaded, Paths};
use xy_gateway::Admin;
use xy_gateway::http::{ListenState, ListeningSocket, Token};
use xy_protocol::control::{LimitHit, quoted};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{MAX_NAME_LENGTH, ServerEntry, ServerName};
use xy_supervisor::fleet::{AddError, Applied, Closed, Fleet, Member};
use xy_supervisor::instance::InstanceHandle;
use xy_supervisor::journal::Journal;
use xy_supervisor::launch::container::ContainerLauncher;
use xy_supervisor::launch::container::is_run_by_cli;
use xy_supervisor::launch::process::ProcessLauncher;
use xy_supervisor::reload::ServerMap;

use crate::bad_files::{BadFile, Faults};
use crate::earlier::EarlierTransitions;
use crate::files::Lock;
use crate::self_test::Flight;
use crate::sockets::Sockets;
use crate::tokens::Tokens;
use crate::{last_good, limits};

/// A name this unlike every known one gets no suggestion.
const LIKENESS: f64 = 0.7;

/// Told while another program holds the port, after the reason why nobody can come in.
const SQUATTER: &str = "; another program holds this port, and tokens that clients send to it may \
                        be stolen: free the port or change `listen` in xy.kdl, then run `xy token \
                        rotate`";

/// The daemon, as its handlers see it.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) fleet: Fleet,
    pub(crate) journal: Journal,
    pub(crate) paths: Paths,
    pub(crate) started_at: Instant,
    /// Whether the daemon shall end, and how.
    pub(crate) ending: watch::Sender<Ending>,
    next_subscription: AtomicU64,
    /// Reading all files takes a while and a thread: whoever wants to waits its turn.
    reading: Arc<Semaphore>,
    /// In milliseconds.
    longest_grace: AtomicU64,
    /// Whether there ever was one that an engine has to end.
    has_containers: AtomicBool,
    /// The gateway's, once there is one.
    admin: OnceLock<Admin>,
    /// Why the HTTP gateway is not listening, beyond what the gateway itself reports.
    no_token: OnceLock<String>,
    /// Servers that are being added: until that is done, nobody else adds them.
    adding: Mutex<BTreeSet<ServerName>>,
    /// What it listens at.
    pub(crate) sockets: Sockets,
    /// What starts processes, and finds those that nobody owns.
    pub(crate) processes: Arc<ProcessLauncher>,
    /// The same for containers.
    pub(crate) containers: ContainerLauncher,
    /// The lock, if it was taken again because the first was lost with its folder.
    lock: Mutex<Option<Lock>>,
    /// What happened to servers under earlier daemons.
    pub(crate) earlier: EarlierTransitions,
    /// The self-test that is under way.
    pub(crate) self_test: Flight,
    /// Tokens as the gateway knows them.
    token_news: watch::Receiver<Arc<Vec<Token>>>,
    /// The tokens that were made for clients over HTTP.
    pub(crate) tokens: Arc<Mutex<Tokens>>,
    /// What profiles show, by the files.
    pub(crate) profiles: watch::Sender<Arc<Profiles>>,
    /// What is wrong with the files in use.
    pub(crate) faults: watch::Sender<Arc<Faults>>,
}

/// A server that is being added, for as long as this lives.
pub(crate) struct Underway<'d> {
    daemon: &'d Daemon,
    name: ServerName,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.daemon.names_underway().remove(&self.name);
    }
}

/// How a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Not yet.
    No,
    /// With all its servers.
    Shutdown,
    /// Without them: another daemon goes on.
    Handover,
    /// Nothing is left to be done but to go.
    HandedOver,
}

impl Daemon {
    pub(crate) fn new(
        fleet: Fleet,
        journal: Journal,
        paths: Paths,
        sockets: Sockets,
        (processes, containers): (Arc<ProcessLauncher>, ContainerLauncher),
    ) -> Self {
        let tokens = Tokens::read(&paths);
        let (token_news, tokens) = (tokens.news(), Arc::new(Mutex::new(tokens)));
        Self {
            fleet,
            journal,
            paths,
            started_at: Instant::now(),
            ending: watch::Sender::new(Ending::No),
            next_subscription: AtomicU64::new(1),
            reading: Arc::new(Semaphore::new(1)),
            longest_grace: AtomicU64::new(0),
            has_containers: AtomicBool::new(false),
            admin: OnceLock::new(),
            no_token: OnceLock::new(),
            adding: Mutex::default(),
            sockets,
            processes,
            containers,
            lock: Mutex::default(),
            earlier: EarlierTransitions::default(),
            self_test: Flight::default(),
            profiles: watch::Sender::new(Arc::default()),
            faults: watch::Sender::new(Arc::default()),
            token_news,
            tokens,
        }
    }

    /// The gateway is there.
    pub(crate) fn open_admin(&self, admin: Admin, no_token: Option<String>) {
        let _ = self.admin.set(admin); // There is only ever one.
        if let Some(problem) = no_token {
            let _ = self.no_token.set(problem); // The same.
        }
    }

    /// Returns the socket that listens for HTTP, once there is a gateway.
    pub(crate) fn listening_socket(&self) -> Option<&ListeningSocket> {
        self.admin.get().map(Admin::listening_socket)
    }

    /// Holds a lock for as long as the daemon lives. An older one is of no file any more.
    pub(crate) fn keep_lock(&self, lock: Lock) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
    }

    /// Where people ask the gateway.
    pub(crate) fn admin(&self) -> Result<&Admin, CallError> {
        let not_yet = || CallError::new(ErrorKind::NotRunning, "the gateway is not there yet");
        self.admin.get().ok_or_else(|| not_yet().hint("try again in a moment"))
    }

    /// Adds what the gateway knows that could be better about a server.
    pub(crate) fn advise(&self, entry: &mut ServerEntry) {
        entry.warnings.extend(self.admin.get().into_iter().flat_map(|it| it.advice(&entry.name)));
    }

    /// Where clients come in over HTTP, or why they cannot; neither if they are not meant to.
    pub(crate) fn gateway_url(&self) -> (Option<String>, Option<String>) {
        if let Some(problem) = self.no_token.get() {
            return (None, Some(problem.clone()));
        }
        match self.admin.get().and_then(Admin::listening) {
            Some(ListenState::Listening { addr }) => (Some(format!("http://{addr}/mcp")), None),
            Some(ListenState::Taken { addr, cause, in_use, .. }) => {
                let stolen = if in_use { SQUATTER } else { "" };
                let problem = format!("HTTP gateway is not listening: {addr}: {cause}{stolen}");
                (None, Some(format!("{problem}; trying again")))
            }
            None => (None, None),
        }
    }

    /// Limits that kept clients out lately, with the names of their tokens.
    pub(crate) fn limit_hits(&self) -> Vec<LimitHit> {
        let Some(admin) = self.admin.get() else { return Vec::new() };
        let tokens = self.token_news.borrow();
        let by = |token: Option<u64>| match token {
            None => "unauthenticated".to_owned(),
            Some(0) => "local clients".to_owned(),
            Some(id) => match tokens.iter().find(|it| it.id == id) {
                Some(token) => token.name.clone(),
                // A token that was removed meanwhile, or there are none at all.
                None => "any client".to_owned(),
            },
        };
        let wire = |hit: xy_gateway::LimitHit| LimitHit {
            limit: hit.limit.to_owned(),
            by: by(hit.token),
            times: hit.times,
        };
        admin.limit_hits().into_iter().map(wire).collect()
    }

    /// Has the daemon end like this, unless it is ending already.
    pub(crate) fn end(&self, how: Ending) {
        self.ending.send_if_modified(|ending| {
            let is_first = *ending == Ending::No;
            if is_first {
                *ending = how;
            }
            is_first
        });
    }

    /// A number for a new stream, never given twice.
    pub(crate) fn new_subscription(&self) -> u64 {
        self.next_subscription.fetch_add(1, Ordering::Relaxed)
    }

    /// While the turn is held nobody reads the files, nor makes the servers what they say.
    pub(crate) async fn turn(&self) -> Result<OwnedSemaphorePermit, CallError> {
        self.reading.clone().acquire_owned().await.map_err(|cause| {
            CallError::new(ErrorKind::Internal, "the files could not be read").cause(cause)
        })
    }

    /// Reads the files, away from everything that has to stay quick. While the turn is
    /// held nobody else reads them, so whoever read last also applies last.
    pub(crate) async fn load(&self) -> Result<(Loaded, OwnedSemaphorePermit), CallError> {
        let failed = || CallError::new(ErrorKind::Internal, "the files could not be read");
        let turn = self.turn().await?;
        let paths = self.paths.clone();
        let living = self.fleet.roster().keys().cloned().collect();
        // The turn goes with the reading, which goes on even if the asker has left.
        tokio::task::spawn_blocking(move || {
            let last_good = last_good::read(&paths.last_good_file);
            let earlier = Earlier { last_good, living };
            (xy_config::load_after(&paths, &limits::kept(), &earlier), turn)
        })
        .await
        .map_err(|cause| failed().cause(cause))
    }

    /// Keeps the texts that are in use now for a daemon that finds bad ones.
    pub(crate) async fn keep_good(&self, texts: LastGood) {
        let file = self.paths.last_good_file.clone();
        // It says itself what failed.
        let _ = tokio::task::spawn_blocking(move || last_good::keep(&file, &texts)).await;
    }

    /// What is wrong with the files in use.
    pub(crate) fn faults(&self) -> Arc<Faults> {
        self.faults.borrow().clone()
    }

    /// The file for which a server has failed. A server that is there has not.
    pub(crate) fn bad_file(&self, name: &str) -> Option<(ServerName, BadFile)> {
        if self.fleet.roster().contains_key(name) {
            return None;
        }
        self.faults.borrow().servers.get_key_value(name).map(cloned)
    }

    /// Forgets that the file of a server was bad. Whoever calls it holds the turn.
    pub(crate) fn forget_bad_file(&self, name: &ServerName, shown: &str) {
        self.faults.send_modify(|faults| Arc::make_mut(faults).forget(name, shown));
    }

    /// All servers that have failed for their files.
    pub(crate) fn bad_files(&self) -> Vec<(ServerName, BadFile)> {
        let roster = self.fleet.roster();
        let faults = self.faults();
        faults.servers.iter().filter(|(name, _)| !roster.contains_key(*name)).map(cloned).collect()
    }

    /// Makes the servers what the files say.
    pub(crate) async fn apply(
        &self,
        servers: ServerMap,
        broken: Broken,
    ) -> Result<Applied, CallError> {
        self.note_graces(servers.values());
        self.fleet.apply(servers, broken).await.map_err(closed)
    }

    /// Shows clients what the profiles say now; which of them are new, gone or others.
    pub(crate) async fn show(&self, profiles: Profiles) -> Result<ChangedProfiles, CallError> {
        let profiles = Arc::new(profiles);
        let before = self.profiles.send_replace(profiles.clone());
        if let Some(admin) = self.admin.get() {
            admin.show(profiles.clone()).await?;
        }
        Ok(ChangedProfiles::between(&before, &profiles))
    }

    /// Makes one server what its file says.
    pub(crate) async fn update(&self, settings: Arc<ServerSettings>) -> Result<Applied, CallError> {
        self.note_graces([&settings]);
        self.fleet.update(settings).await.map_err(closed)
    }

    /// Begins a server that no file configures.
    pub(crate) async fn add(
        &self,
        settings: Arc<ServerSettings>,
    ) -> Result<Option<InstanceHandle>, AddError> {
        self.note_graces([&settings]);
        self.fleet.add(settings).await
    }

    /// Whoever has this adds the server alone; `None` if somebody else does.
    pub(crate) fn begin_adding(&self, name: &ServerName) -> Option<Underway<'_>> {
        let is_first = self.names_underway().insert(name.clone());
        is_first.then(|| Underway { daemon: self, name: name.clone() })
    }

    fn names_underway(&self) -> MutexGuard<'_, BTreeSet<ServerName>> {
        self.adding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_graces<'s>(&self, servers: impl IntoIterator<Item = &'s Arc<ServerSettings>>) {
        for one in servers {
            self.longest_grace.fetch_max(millis(one.rules.stop.grace), Ordering::Relaxed);
            let by_cli = one.process().is_some_and(is_run_by_cli);
            self.has_containers.fetch_or(one.container().is_some() || by_cli, Ordering::Relaxed);
        }
    }

    /// Whether the servers are in other hands: who waited for one has to ask there.
    pub(crate) fn check_not_handed_over(&self) -> Result<(), CallError> {
        match *self.ending.borrow() {
            Ending::No | Ending::Shutdown => Ok(()),
            Ending::Handover | Ending::HandedOver => {
                let message = "another daemon has taken over while this was being done";
                Err(CallError::new(ErrorKind::NotAllowed, message)
                    .hint("it goes on there: see `xy list`"))
            }
        }
    }

    /// The longest grace that any server ever had here: one that was removed may still have it.
    pub(crate) fn longest_grace(&self) -> Duration {
        Duration::from_millis(self.longest_grace.load(Ordering::Relaxed))
    }

    /// Whether any server ever was a container, also by a CLI: one that was removed may still be
    /// ending.
    pub(crate) fn has_containers(&self) -> bool {
        self.has_containers.load(Ordering::Relaxed)
    }

    /// The server of this name, or an error that names the nearest.
    pub(crate) fn find(&self, name: &str) -> Result<Member, CallError> {
        let roster = self.fleet.roster();
        roster.get(name).cloned().ok_or_else(|| self.not_found(name))
    }

    /// Why nothing can be asked of a server: its file is bad, or there is none of that name.
    pub(crate) fn not_found(&self, name: &str) -> CallError {
        if let Some((name, bad)) = self.bad_file(name) {
            return bad.refusal(&name);
        }
        let roster = self.fleet.roster();
        let hint = match nearest(name, roster.keys().map(ServerName::as_str)) {
            Some(known) => format!("did you mean `{known}`?"),
            None => "`xy list` shows all servers".to_owned(),
        };
        let message = format!("no server named `{}`", quoted(name));
        CallError::new(ErrorKind::ServerNotFound, message).hint(hint)
    }
}

fn cloned((name, bad): (&ServerName, &BadFile)) -> (ServerName, BadFile) {
    (name.clone(), bad.clone())
}

/// The profiles that are new, gone or others, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedProfiles {
    /// All of them.
    pub(crate) all: Vec<String>,
    /// Those that are new.
    pub(crate) added: Vec<String>,
    /// Those that are gone.
    pub(crate) removed: Vec<String>,
}

impl ChangedProfiles {
    pub(crate) fn between(before: &Profiles, now: &Profiles) -> Self {
        let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        let mut changed = Self::default();
        for name in names {
            match (before.get(name), now.get(name)) {
                (before, now) if before == now => continue,
                (None, _) => changed.added.push(name.clone()),
                (_, None) => changed.removed.push(name.clone()),
                _ => {}
            }
            changed.all.push(name.clone());
        }
        changed
    }
}

/// The known name that was probably meant, if one is near enough.
pub(crate) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    if name.len() > 2 * MAX_NAME_LENGTH {
        return None; // Comparing takes time with the length, and no name is that long.
    }
    known
        .map(|known| (likeness(name, known), known))
        .filter(|(likeness, _)| *likeness >= LIKENESS)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

/// From 0 to 1. One slip of the finger is near, also in a name of three letters.
fn likeness(name: &str, known: &str) -> f64 {
    let is_slip = known.len() > 2 && strsim::damerau_levenshtein(name, known) == 1;
    strsim::jaro_winkler(name, known).max(if is_slip { LIKENESS } else { 0.0 })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The daemon is going while somebody still asks.
pub(crate) fn closed(Closed: Closed) -> CallError {
    CallError::new(ErrorKind::NotAllowed, "the daemon is shutting down")
        .hint("start it again with `xy daemon`")
}

#[cfg(test)]
mod tests {
    use xy_config::profile::ProfileSettings;

    use super::*;

    #[test]
    fn new_profiles_and_those_that_are_gone_are_told_apart() {
        let profiles = |all: &[(&str, &str)]| -> Profiles {
            let one = |&(name, file): &(&str, &str)| {
                (name.to_owned(), Arc::new(ProfileSettings::closed(name, file)))
            };
            all.iter().map(one).collect()
        };
        let before = profiles(&[("gone", "1"), ("other", "1"), ("same", "1")]);
        let now = profiles(&[("new", "1"), ("other", "2"), ("same", "1")]);
        let changed = ChangedProfiles::between(&before, &now);
        assert_eq!(changed.all, ["gone", "new", "other"]);
        assert_eq!((changed.added, changed.removed), (vec!["new".into()], vec!["gone".into()]));
    }

    #[test]
    fn the_nearest_name_is_found_when_it_is_near_enough() {
        let known = ["github", "one", "two"];
        let table = [
            ("git", Some("github")),
            ("gihtub", Some("github")),
            ("oen", Some("one")),
            ("towo", Some("two")),
            ("zebra", None),
            ("", None),
        ];
        for (name, meant) in table {
            assert_eq!(nearest(name, known.into_iter()), meant, "{name}");
        }
        assert_eq!(nearest(&"github".repeat(20), known.into_iter()), None);
    }
}
