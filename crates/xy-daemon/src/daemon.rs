//! The state that all request handlers share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use xy_config::settings::{Profiles, ServerSettings};
use xy_config::{BrokenServers, LastGood, LoadedConfig, Paths, PriorState};
use xy_container::ContainerLauncher;
use xy_gateway::Admin;
use xy_http::{ListenState, ListeningSocket, Token};
use xy_protocol::control::{LimitHit, quoted};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{MAX_NAME_LENGTH, ServerEntry, ServerName};
use xy_supervisor::fleet::{AddError, Fleet, FleetClosed, Member, ReloadOutcome};
use xy_supervisor::instance::InstanceHandle;
use xy_supervisor::journal::Journal;
use xy_supervisor::launch::container_cli::is_run_by_cli;
use xy_supervisor::launch::process::ProcessLauncher;
use xy_supervisor::reload::ServerMap;

use crate::bad_files::{BadFile, Faults};
use crate::files::Lock;
use crate::single_flight::SingleFlight;
use crate::sockets::Sockets;
use crate::tokens::Tokens;
use crate::transition_history::TransitionHistory;
use crate::{last_good, limits};

/// The minimum similarity of a name that is suggested for an unknown one.
const MIN_SIMILARITY: f64 = 0.7;

/// The warning that follows the reason why the HTTP gateway is not listening, if another program
/// holds the port.
const PORT_TAKEN_WARNING: &str = "; another program holds this port, and may steal tokens that \
                                  clients send to it: free the port or change `listen` in xy.kdl, \
                                  then run `xy token rotate`";

/// The daemon, as its request handlers see it.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) fleet: Fleet,
    pub(crate) journal: Journal,
    pub(crate) paths: Paths,
    pub(crate) started_at: Instant,
    /// The phase of the daemon's life: serving, or ending in one of two ways.
    pub(crate) phase: watch::Sender<Phase>,
    next_subscription: AtomicU64,
    /// The configuration lock. Reading all files takes time and a thread, so readers take turns.
    config_lock: Arc<Semaphore>,
    /// The longest grace period of any server so far, in milliseconds.
    longest_grace: AtomicU64,
    /// True if any server so far was a container, which its engine has to end.
    has_containers: AtomicBool,
    /// The gateway's admin interface, once the gateway is running.
    admin: OnceLock<Admin>,
    /// Why the HTTP gateway is not listening, beyond what the gateway itself reports.
    listen_problem: OnceLock<String>,
    /// The names of servers that are being added. A second request for the same name is refused.
    adding: Mutex<BTreeSet<ServerName>>,
    /// The sockets on which the daemon listens.
    pub(crate) sockets: Sockets,
    /// The launcher of processes, which also finds orphaned ones.
    pub(crate) processes: Arc<ProcessLauncher>,
    /// The launcher of containers, which also finds orphaned ones.
    pub(crate) containers: ContainerLauncher,
    /// The daemon's lock, if it was taken again after its file was lost with its folder.
    lock: Mutex<Option<Lock>>,
    /// The state changes of servers under earlier daemons.
    pub(crate) transition_history: TransitionHistory,
    /// The self-test that is running, if any.
    pub(crate) self_test: SingleFlight,
    /// The tokens that the gateway accepts, updated on each change.
    token_updates: watch::Receiver<Arc<Vec<Token>>>,
    /// The tokens for clients over HTTP.
    pub(crate) tokens: Arc<Mutex<Tokens>>,
    /// The profiles in use, by name.
    pub(crate) profiles: watch::Sender<Arc<Profiles>>,
    /// The problems of the configuration files in use.
    pub(crate) faults: watch::Sender<Arc<Faults>>,
}

/// The reservation of the name of a server that is being added. Dropping it frees the name.
pub(crate) struct NameReservation<'d> {
    daemon: &'d Daemon,
    name: ServerName,
}

impl Drop for NameReservation<'_> {
    fn drop(&mut self) {
        self.daemon.reserved_names().remove(&self.name);
    }
}

/// The phase of a daemon's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It serves requests.
    Serving,
    /// It stops all its servers, then exits.
    ShuttingDown,
    /// It leaves its servers running for another daemon, then exits.
    HandingOver,
    /// It has handed over its servers, and only has to exit.
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
        let (token_updates, tokens) = (tokens.subscribe(), Arc::new(Mutex::new(tokens)));
        Self {
            fleet,
            journal,
            paths,
            started_at: Instant::now(),
            phase: watch::Sender::new(Phase::Serving),
            next_subscription: AtomicU64::new(1),
            config_lock: Arc::new(Semaphore::new(1)),
            longest_grace: AtomicU64::new(0),
            has_containers: AtomicBool::new(false),
            admin: OnceLock::new(),
            listen_problem: OnceLock::new(),
            adding: Mutex::default(),
            sockets,
            processes,
            containers,
            lock: Mutex::default(),
            transition_history: TransitionHistory::default(),
            self_test: SingleFlight::default(),
            profiles: watch::Sender::new(Arc::default()),
            faults: watch::Sender::new(Arc::default()),
            token_updates,
            tokens,
        }
    }

    /// Stores the gateway's admin interface, and the problem that keeps it from listening, if any.
    pub(crate) fn set_admin(&self, admin: Admin, listen_problem: Option<String>) {
        let _ = self.admin.set(admin); // Called once.
        if let Some(problem) = listen_problem {
            let _ = self.listen_problem.set(problem);
        }
    }

    /// Returns the socket that listens for HTTP, once there is a gateway.
    pub(crate) fn listening_socket(&self) -> Option<&ListeningSocket> {
        self.admin.get().map(Admin::listening_socket)
    }

    /// Keeps a lock for as long as the daemon lives. The file of an earlier lock no longer exists.
    pub(crate) fn hold_lock(&self, lock: Lock) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
    }

    /// Returns the gateway's admin interface, or an error while the gateway is starting.
    pub(crate) fn admin(&self) -> Result<&Admin, CallError> {
        let not_yet = || CallError::new(ErrorKind::NotRunning, "the gateway is still starting");
        self.admin.get().ok_or_else(|| not_yet().hint("try again in a moment"))
    }

    /// Adds the gateway's advice about a server to the warnings of its entry.
    pub(crate) fn add_advice(&self, entry: &mut ServerEntry) {
        entry.warnings.extend(self.admin.get().into_iter().flat_map(|it| it.advice(&entry.name)));
    }

    /// Returns the URL of the HTTP gateway, or the problem that keeps it from listening. Both are
    /// `None` if HTTP is not configured.
    pub(crate) fn gateway_url(&self) -> (Option<String>, Option<String>) {
        if let Some(problem) = self.listen_problem.get() {
            return (None, Some(problem.clone()));
        }
        match self.admin.get().and_then(Admin::listening) {
            Some(ListenState::Listening { addr }) => (Some(format!("http://{addr}/mcp")), None),
            Some(ListenState::Unavailable { addr, cause, in_use, .. }) => {
                let stolen = if in_use { PORT_TAKEN_WARNING } else { "" };
                let problem = format!("HTTP gateway is not listening: {addr}: {cause}{stolen}");
                (None, Some(format!("{problem}; trying again")))
            }
            None => (None, None),
        }
    }

    /// Returns the limits that recently rejected clients, with the names of the clients' tokens.
    pub(crate) fn limit_hits(&self) -> Vec<LimitHit> {
        let Some(admin) = self.admin.get() else { return Vec::new() };
        let tokens = self.token_updates.borrow();
        let by = |token: Option<u64>| match token {
            None => "unauthenticated".to_owned(),
            Some(0) => "local clients".to_owned(),
            Some(id) => match tokens.iter().find(|it| it.id == id) {
                Some(token) => token.name.clone(),
                // The token was removed meanwhile, or tokens are not required.
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

    /// Moves the daemon to the given phase, unless it is already ending.
    pub(crate) fn end(&self, next: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_serving = *phase == Phase::Serving;
            if is_serving {
                *phase = next;
            }
            is_serving
        });
    }

    /// Returns the id of a new stream. No id is returned twice.
    pub(crate) fn next_subscription_id(&self) -> u64 {
        self.next_subscription.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes the configuration lock. Its holder alone reads the files and applies them to the
    /// servers.
    pub(crate) async fn lock_configuration(&self) -> Result<OwnedSemaphorePermit, CallError> {
        self.config_lock.clone().acquire_owned().await.map_err(|cause| {
            CallError::new(ErrorKind::Internal, "the files could not be read").cause(cause)
        })
    }

    /// Reads the files on a blocking thread. The returned lock ensures that the latest read is also
    /// the latest to be applied.
    pub(crate) async fn load(&self) -> Result<(LoadedConfig, OwnedSemaphorePermit), CallError> {
        let failed = || CallError::new(ErrorKind::Internal, "the files could not be read");
        let config_lock = self.lock_configuration().await?;
        let paths = self.paths.clone();
        let living = self.fleet.roster().keys().cloned().collect();
        // The lock moves into the blocking task, which continues even if the requester has left.
        tokio::task::spawn_blocking(move || {
            let last_good = last_good::read(&paths.last_good_file);
            let earlier = PriorState { last_good, living };
            (xy_config::load_with(&paths, &limits::supported(), &earlier), config_lock)
        })
        .await
        .map_err(|cause| failed().cause(cause))
    }

    /// Stores the configuration texts in use, for a daemon that later finds bad files.
    pub(crate) async fn save_last_good(&self, texts: LastGood) {
        let file = self.paths.last_good_file.clone();
        // `last_good::write` logs its failures.
        let _ = tokio::task::spawn_blocking(move || last_good::write(&file, &texts)).await;
    }

    /// Returns the problems of the configuration files in use.
    pub(crate) fn faults(&self) -> Arc<Faults> {
        self.faults.borrow().clone()
    }

    /// Returns the bad file for which a server has failed. A server that is in the roster has not
    /// failed for its file.
    pub(crate) fn bad_file(&self, name: &str) -> Option<(ServerName, BadFile)> {
        if self.fleet.roster().contains_key(name) {
            return None;
        }
        self.faults.borrow().servers.get_key_value(name).map(cloned)
    }

    /// Removes the record that the file of a server is bad. The caller holds the configuration
    /// lock.
    pub(crate) fn forget_bad_file(&self, name: &ServerName, shown: &str) {
        self.faults.send_modify(|faults| Arc::make_mut(faults).forget(name, shown));
    }

    /// Returns all servers that have failed for their files.
    pub(crate) fn bad_files(&self) -> Vec<(ServerName, BadFile)> {
        let roster = self.fleet.roster();
        let faults = self.faults();
        faults.servers.iter().filter(|(name, _)| !roster.contains_key(*name)).map(cloned).collect()
    }

    /// Applies the files to the servers: starts, stops and updates them.
    pub(crate) async fn apply(
        &self,
        servers: ServerMap,
        broken: BrokenServers,
    ) -> Result<ReloadOutcome, CallError> {
        self.record_shutdown_needs(servers.values());
        self.fleet.apply(servers, broken).await.map_err(shutting_down_error)
    }

    /// Publishes new profiles to the gateway. Returns which profiles were added, removed or
    /// changed.
    pub(crate) async fn set_profiles(
        &self,
        profiles: Profiles,
    ) -> Result<ChangedProfiles, CallError> {
        let profiles = Arc::new(profiles);
        let before = self.profiles.send_replace(profiles.clone());
        if let Some(admin) = self.admin.get() {
            admin.set_profiles(profiles.clone()).await?;
        }
        Ok(ChangedProfiles::between(&before, &profiles))
    }

    /// Updates one server so that it matches its file.
    pub(crate) async fn update(
        &self,
        settings: Arc<ServerSettings>,
    ) -> Result<ReloadOutcome, CallError> {
        self.record_shutdown_needs([&settings]);
        self.fleet.update(settings).await.map_err(shutting_down_error)
    }

    /// Starts a server that no file configures.
    pub(crate) async fn add(
        &self,
        settings: Arc<ServerSettings>,
    ) -> Result<Option<InstanceHandle>, AddError> {
        self.record_shutdown_needs([&settings]);
        self.fleet.add(settings).await
    }

    /// Reserves the name of a server that is being added. Returns `None` if another request holds
    /// it.
    pub(crate) fn reserve_name(&self, name: &ServerName) -> Option<NameReservation<'_>> {
        let is_first = self.reserved_names().insert(name.clone());
        is_first.then(|| NameReservation { daemon: self, name: name.clone() })
    }

    fn reserved_names(&self) -> MutexGuard<'_, BTreeSet<ServerName>> {
        self.adding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_shutdown_needs<'s>(
        &self,
        servers: impl IntoIterator<Item = &'s Arc<ServerSettings>>,
    ) {
        for one in servers {
            self.longest_grace.fetch_max(millis(one.rules.stop.grace), Ordering::Relaxed);
            let by_cli = one.process().is_some_and(is_run_by_cli);
            self.has_containers.fetch_or(one.container().is_some() || by_cli, Ordering::Relaxed);
        }
    }

    /// Returns an error if another daemon has taken over the servers. The user has to ask that
    /// daemon.
    pub(crate) fn check_not_handed_over(&self) -> Result<(), CallError> {
        match *self.phase.borrow() {
            Phase::Serving | Phase::ShuttingDown => Ok(()),
            Phase::HandingOver | Phase::HandedOver => {
                let message = "another daemon took over before the request completed";
                Err(CallError::new(ErrorKind::NotAllowed, message)
                    .hint("that daemon continues it: see `xy list`"))
            }
        }
    }

    /// Returns the longest grace period of any server so far: a server that was removed may still
    /// use it.
    pub(crate) fn longest_grace(&self) -> Duration {
        Duration::from_millis(self.longest_grace.load(Ordering::Relaxed))
    }

    /// Returns true if any server so far was a container, also one run by an engine's CLI. A
    /// container that was removed may still be stopping.
    pub(crate) fn has_containers(&self) -> bool {
        self.has_containers.load(Ordering::Relaxed)
    }

    /// Returns the server with this name, or an error that suggests the nearest name.
    pub(crate) fn find(&self, name: &str) -> Result<Member, CallError> {
        let roster = self.fleet.roster();
        roster.get(name).cloned().ok_or_else(|| self.not_found(name))
    }

    /// Returns why a server cannot be used: its file is bad, or no server has that name.
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

/// The names of the profiles that were added, removed or changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedProfiles {
    /// All of these profiles.
    pub(crate) all: Vec<String>,
    /// The profiles that were added.
    pub(crate) added: Vec<String>,
    /// The profiles that were removed.
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

/// Returns the known name that was probably meant, if one is similar enough.
pub(crate) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    if name.len() > 2 * MAX_NAME_LENGTH {
        return None; // No name is that long, and the comparison takes time.
    }
    known
        .map(|known| (similarity(name, known), known))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

/// Returns the similarity of two names, from 0 to 1. A single typo counts as similar, even in a
/// name of three letters.
fn similarity(name: &str, known: &str) -> f64 {
    let is_typo = known.len() > 2 && strsim::damerau_levenshtein(name, known) == 1;
    strsim::jaro_winkler(name, known).max(if is_typo { MIN_SIMILARITY } else { 0.0 })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the error for a request that arrives while the daemon is shutting down.
pub(crate) fn shutting_down_error(FleetClosed: FleetClosed) -> CallError {
    CallError::new(ErrorKind::NotAllowed, "the daemon is shutting down")
        .hint("start it again with `xy daemon`")
}

#[cfg(test)]
mod tests {
    use xy_config::profile::ProfileSettings;

    use super::*;

    #[test]
    fn profile_changes_are_classified() {
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
    fn similar_names_are_suggested() {
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
