//! Builds everything, in order; takes it down in reverse.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::oneshot;
use tokio::time::timeout;
use xy_config::load::supervision;
use xy_config::supervision::Supervision;
use xy_config::{Broken, Paths, trust};
use xy_ipc::listen::{BindError, Bound};
use xy_protocol::error::{CallError, ErrorKind};
use xy_shim::marked::MARK;
use xy_supervisor::AddedServers;
use xy_supervisor::fleet::{Fleet, FleetParts, changes_channel};
use xy_supervisor::journal::Journal;
use xy_supervisor::launch::EveryLauncher;
use xy_supervisor::launch::adopt::{Adopted, Stragglers, home_id, is_of_home};
use xy_supervisor::launch::container::ContainerLauncher;
use xy_supervisor::launch::process::{ProcessLauncher, ShimProgram};
use xy_supervisor::launch::remote::RemoteLauncher;
use xy_supervisor::locks::tidy_up;
use xy_supervisor::logs::forget_clients;
use xy_supervisor::speak::Speak;
use xy_supervisor::wishes::Wishes;

use crate::bad_files::Strictness;
use crate::daemon::{Daemon, Ending};
use crate::files::{self, FilesError, Lock};
use crate::gateway::{self, Plane};
use crate::handlers::Handlers;
use crate::limits;
use crate::logging::{self, LogTo};
use crate::signs::Signs;
use crate::sockets::{Socket, Sockets};
use crate::takeover;

mod configuration;
mod signals;

use configuration::Configuration;
use signals::Signals;

/// However short the graces are, shims get this long to bring their logs to disk.
const LEAST_SHUTDOWN: Duration = Duration::from_secs(5);

/// So much longer a daemon waits at its end for container engines, which have to kill and remove.
const ENGINE_SHUTDOWN: Duration = Duration::from_secs(30);

/// How long shims may take to hear that another daemon will come.
const LET_GO_WITHIN: Duration = Duration::from_secs(8);

/// How often to look whether the folder of the sockets is still there.
const SOCKETS_EVERY: Duration = Duration::from_secs(5);

/// How long front ends get to read their last lines.
const DOOR_WITHIN: Duration = Duration::from_secs(2);

/// How long the disk may take for the last events.
const JOURNAL_WITHIN: Duration = Duration::from_secs(2);

/// Two threads: one slow request must not hold up the rest.
const THREADS: usize = 2;

/// For files: reading the configuration, keeping wishes.
const BLOCKING_THREADS: usize = 4;

/// Open files: enough for a thousand servers and all front ends at once.
const FILE_LIMIT: u64 = 16_384;

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where everything is.
    pub paths: Paths,
    /// Where the daemon's own log goes.
    pub log: LogTo,
    /// Take over from a daemon that runs.
    pub replace: bool,
    /// Whether to start with a bad file.
    pub strictness: Strictness,
}

/// Runs the daemon until it is told to end.
pub fn run(options: Options) -> Result<(), CallError> {
    logging::start(&options.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(|cause| not_started().cause(cause))?;
    // What a shim that dies leaves behind falls to the daemon, which ends it.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let lock_file = options.paths.lock_file.clone();
    let outcome = runtime.block_on(serve(options));
    let outcome = match outcome {
        Ok(Ending::HandedOver) => {
            let came = runtime.block_on(takeover::somebody_came(&lock_file));
            if came { Ok(()) } else { Err(takeover::go_on()) }
        }
        ended => ended.map(drop),
    };
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

pub(crate) fn not_started() -> CallError {
    CallError::new(ErrorKind::Internal, "the daemon did not start")
}

async fn serve(options: Options) -> Result<Ending, CallError> {
    let Options { paths, replace, strictness, .. } = options;
    let (_lock, inherited) = take_place(&paths, replace, strictness).await?;
    // Everything that can fail comes before the servers that are there: who has been taken
    // over would end with a daemon that does not start.
    let _signs = Signs::put(&paths);
    let mut signals = Signals::new().map_err(|cause| not_started().cause(cause))?;
    let Bound { listener, file } =
        xy_ipc::listen::bind(&paths.control_socket).map_err(|error| no_socket(&error))?;
    let (control, again) = Socket::of_control(file, &paths.control_places()[0]);
    let wishes = read_wishes(&paths)?;
    let added = read_added(&paths)?;
    limits::prepare().await;
    let mcp = xy_ipc::listen::bind(&paths.mcp_socket).map_err(|error| no_socket(&error))?;
    let mcp_listener = mcp.listener.into_std().map_err(|cause| not_started().cause(cause))?;
    let (mcp, mcp_again) = Socket::of_gateway(mcp.file, &paths.mcp_places()[0]);
    let (speaker, lines) = xy_gateway::speaker();
    let processes = Arc::new(launcher(&paths, speaker.clone())?);
    let containers = ContainerLauncher::new(
        paths.state_dir.join("containers"),
        paths.logs_dir.clone(),
        speaker.clone(),
        &processes,
    );
    let (adopted, stragglers) = adopt(&processes, &containers).await;
    let reconciling = tokio::spawn(containers.clone().reconcile());
    let remotes = RemoteLauncher::new(speaker);
    let launcher =
        EveryLauncher { processes: processes.clone(), remotes, containers: containers.clone() };
    let has_living = !adopted.is_empty() || !stragglers.is_empty();
    let configuration = Configuration::load(&paths, strictness, &adopted, &added, has_living)?;
    let Configuration { servers, broken, faults, settings, texts } = configuration;
    tidy_up(&paths.shims_dir, |name| servers.contains_key(name));
    forget_clients(&paths.logs_dir);
    let parts = FleetParts {
        limits: settings.instances,
        launcher: Arc::new(launcher),
        wishes,
        wishes_file: paths.wishes_file.clone(),
        added,
        added_file: paths.added_file.clone(),
        logs_dir: paths.logs_dir.clone(),
        locks_dir: paths.shims_dir.clone(),
    };
    let sockets = Sockets { control, mcp };
    let changes = changes_channel();
    let (journal, keeper) = Journal::begin(&paths.events_file, changes.subscribe());
    let fleet = Fleet::spawn_heard(parts, adopted, changes);
    let daemon = Arc::new(Daemon::new(fleet, journal, paths, sockets, (processes, containers)));
    tracing::info!(
        pid = std::process::id(),
        servers = servers.len(),
        socket = %daemon.paths.control_socket.display(),
        "ready"
    );
    let (http, no_token) = {
        let mut tokens = daemon.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        gateway::http(&settings.gateway, &daemon.paths, &mut tokens, inherited)
    };
    daemon.apply(servers, broken.clone()).await?;
    daemon.faults.send_replace(Arc::new(faults));
    daemon.show(settings.profiles).await?;
    daemon.keep_good(texts).await;
    // Only now, so that the first client finds all servers there.
    let gateway = xy_gateway::Gateway::start(xy_gateway::Parts {
        http,
        lines,
        local: mcp_listener,
        local_again: mcp_again,
        park: settings.park,
        instances_max: settings.instances.most,
        tokens: daemon.tokens.lock().unwrap_or_else(PoisonError::into_inner).news(),
        manifests_dir: daemon.paths.manifests_dir.clone(),
        key: gateway::key(&daemon.paths).map_err(|cause| not_started().cause(cause))?,
        control: Arc::new(Plane::here(daemon.clone())),
        profiles: daemon.profiles.borrow().clone(),
        roster: daemon.fleet.watch_roster(),
        changes: daemon.fleet.changes(),
    });
    let gateway = gateway.map_err(|cause| not_started().cause(cause))?;
    daemon.open_admin(gateway.admin(), no_token);
    let _ = timeout(DOOR_WITHIN, gateway.settled()).await; // So that `info` can say where.
    let stragglers = tokio::spawn(adopt_late(daemon.clone(), stragglers, broken));

    let (close, closed) = oneshot::channel::<()>();
    let handlers = Arc::new(Handlers(daemon.clone()));
    let door = xy_ipc::server::serve_renewed(listener, again, handlers, async {
        let _ = closed.await; // Dropped or sent: either way it is time.
    });
    let door = tokio::spawn(door);
    let ended = until_over(&daemon, &mut signals).await;
    reconciling.abort();
    stragglers.abort(); // Who has not answered by now waits for the next daemon.
    if timeout(JOURNAL_WITHIN, keeper.end()).await.is_err() {
        tracing::warn!("the last events are not in the journal: the disk is too slow");
    }
    drop(close);
    let _ = timeout(DOOR_WITHIN, door).await; // Whoever still asks has waited long enough.
    daemon.sockets.control.remove();
    daemon.sockets.mcp.remove();
    end_gateway(gateway, &ended).await;
    tracing::info!("ended");
    ended
}

/// Moves sockets to the state folder when their folder is gone, as a runtime folder is after its
/// user's last logout. Never resolves.
async fn move_sockets(daemon: &Daemon) -> Infallible {
    let mut look = tokio::time::interval(SOCKETS_EVERY);
    loop {
        look.tick().await;
        for socket in [&daemon.sockets.control, &daemon.sockets.mcp] {
            if socket.has_lost_folder() {
                match socket.renew() {
                    Ok(()) => tracing::warn!(socket = %socket.path().display(), "moved a socket"),
                    Err(error) => tracing::debug!(%error, "could not move a socket"),
                }
            }
        }
    }
}

/// Ends the gateway; the next daemon goes on with what this one hands over.
async fn end_gateway(mut gateway: xy_gateway::Gateway, ended: &Result<Ending, CallError>) {
    let how = match ended {
        Ok(Ending::HandedOver) => xy_gateway::End::ForAnother,
        _ => xy_gateway::End::ForGood,
    };
    let _ = tokio::task::spawn_blocking(move || gateway.end(how)).await; // It logs its failures.
}

/// Waits until the daemon is to end, and leaves its servers to another or ends them.
async fn until_over(daemon: &Arc<Daemon>, signals: &mut Signals) -> Result<Ending, CallError> {
    let end = tokio::select! {
        end = signals.until_end(daemon) => end,
        never = move_sockets(daemon) => match never {},
    };
    if end != Ending::Handover {
        daemon.ending.send_replace(Ending::Shutdown);
        return end_servers(daemon, signals).await.map(|()| Ending::Shutdown);
    }
    if timeout(LET_GO_WITHIN, daemon.fleet.let_go()).await.is_err() {
        tracing::warn!("not every shim has heard the goodbye; it will see us gone");
    }
    daemon.ending.send_replace(Ending::HandedOver);
    Ok(Ending::HandedOver)
}

/// Has everything ready that a daemon needs before it is one, and is the only one. Returns also
/// the socket for HTTP of the one before.
async fn take_place(
    paths: &Paths,
    replace: bool,
    strictness: Strictness,
) -> Result<(Lock, Option<TcpListener>), CallError> {
    paths.check_socket().map_err(|cause| not_started().cause(cause))?;
    files::make_folders(paths).map_err(|error| no_files(&error))?;
    check_socket_folder(paths)?;
    check_not_inside(paths)?;
    check_switched_on(paths)?;
    let inherited = if replace { takeover::ask(paths, strictness).await? } else { None };
    let wait = if replace { takeover::GONE_WITHIN } else { Duration::ZERO };
    let lock = Lock::take_within(wait, &paths.lock_file).await.map_err(|error| no_files(&error))?;
    Ok((lock, inherited))
}

/// In a folder that another user can write, that user could listen in the daemon's place.
fn check_socket_folder(paths: &Paths) -> Result<(), CallError> {
    let folder = paths.control_socket.parent().unwrap_or(&paths.state_dir);
    trust::check_socket_folder(folder).map_err(|untrusted| {
        not_started()
            .cause(format!("others could listen in its place: {untrusted}"))
            .hint(untrusted.remedy_of_sockets(paths.socket_variable()))
    })
}

/// A daemon below one of its own servers would end itself with that server.
fn check_not_inside(paths: &Paths) -> Result<(), CallError> {
    let ours = std::env::var(MARK).is_ok_and(|mark| is_of_home(&mark, &home_id(&paths.shims_dir)));
    if !ours {
        return Ok(());
    }
    let server = std::env::var("XY_SERVER").unwrap_or_default();
    Err(not_started()
        .cause(format!(
            "it was started from inside its own server `{server}`, and would end with it"
        ))
        .hint("start it from a terminal, or as a service"))
}

/// Goes on with what an earlier daemon has left.
async fn adopt(
    processes: &Arc<ProcessLauncher>,
    containers: &ContainerLauncher,
) -> (Vec<Adopted>, Stragglers) {
    let ((adopted, stragglers), (in_containers, late_ones)) =
        tokio::join!(processes.adopt_all(), containers.adopt_all());
    let adopted = adopted.into_iter().map(|one| one.tidied_by(containers));
    (adopted.chain(in_containers).collect(), stragglers.and(late_ones))
}

async fn adopt_late(daemon: Arc<Daemon>, mut stragglers: Stragglers, broken: Broken) {
    while let Some(adopted) = stragglers.next().await {
        let is_broken = broken.contains(adopted.server());
        daemon.fleet.adopt(adopted.tidied_by(&daemon.containers), is_broken).await;
    }
}

/// Whoever switches supervision off does not want a daemon that supervises. What cannot be
/// understood is told with all that is wrong in the files.
fn check_switched_on(paths: &Paths) -> Result<(), CallError> {
    let Ok(Supervision::Off(by)) = supervision(paths) else { return Ok(()) };
    Err(not_started().cause(by.cause()).hint(format!(
        "{}; or run one server without a daemon: `xy connect --direct <server>`",
        by.remedy()
    )))
}

fn read_wishes(paths: &Paths) -> Result<Wishes, CallError> {
    let file = &paths.wishes_file;
    let (wishes, problem) = Wishes::read(file).map_err(|cause| {
        let file = file.display();
        not_started()
            .cause(format!("`{file}`, which says who stays stopped, cannot be read: {cause}"))
            .hint("make it readable, or move it away and stop those servers again")
    })?;
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
    Ok(wishes)
}

fn read_added(paths: &Paths) -> Result<AddedServers, CallError> {
    let file = &paths.added_file;
    let (added, problem) = AddedServers::read(file).map_err(|cause| {
        let file = file.display();
        not_started()
            .cause(format!("`{file}`, which says what was added, cannot be read: {cause}"))
            .hint("make it readable, or move it away and add those servers again")
    })?;
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
    Ok(added)
}

fn launcher(paths: &Paths, speaker: Arc<dyn Speak>) -> Result<ProcessLauncher, CallError> {
    let shim = ShimProgram::this_binary().map_err(|cause| not_started().cause(cause))?;
    let (logs_dir, locks_dir) = (paths.logs_dir.clone(), paths.shims_dir.clone());
    Ok(ProcessLauncher::new(shim, logs_dir, locks_dir, raise_file_limit(), speaker))
}

/// A daemon needs a few descriptors per server, and shells allow few. Answers the limit
/// that servers shall have: the one the daemon was given.
fn raise_file_limit() -> Option<u64> {
    let given = getrlimit(Resource::Nofile);
    let wanted = given.maximum.map_or(FILE_LIMIT, |maximum| maximum.min(FILE_LIMIT));
    let current = given.current?;
    if current < wanted {
        let raised = Rlimit { current: Some(wanted), maximum: given.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, limit = current, "the limit of open files could not be raised");
        }
    }
    Some(current)
}

/// How long the end of all servers may take.
fn shutdown_within(longest_grace: Duration, has_containers: bool) -> Duration {
    let for_engines = if has_containers { ENGINE_SHUTDOWN } else { Duration::ZERO };
    (longest_grace * 2).max(LEAST_SHUTDOWN) + for_engines
}

/// Ends all servers at the same time.
async fn end_servers(daemon: &Daemon, signals: &mut Signals) -> Result<(), CallError> {
    let limit = shutdown_within(daemon.longest_grace(), daemon.has_containers());
    tracing::info!(servers = daemon.fleet.roster().len(), ?limit, "ending all servers");
    let problem = tokio::select! {
        done = timeout(limit, daemon.fleet.shutdown()) => match done {
            Ok(()) => return Ok(()),
            Err(_) => format!("they did not all end within {limit:?}"),
        },
        () = signals.end() => "told twice to end".to_owned(),
    };
    let hint = if daemon.has_containers() {
        "processes are being ended by their shims, and containers by the next daemon"
    } else {
        "each is being ended by its own shim"
    };
    Err(CallError::new(ErrorKind::TimedOut, "the daemon ended before all of its servers")
        .cause(problem)
        .hint(hint))
}

fn no_files(error: &FilesError) -> CallError {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let hint = match error {
        FilesError::Folder { .. } => {
            "make it a folder that you can write to, or set XDG_STATE_HOME to another".to_owned()
        }
        FilesError::Untrusted { untrusted } => {
            format!("{}, or set XDG_STATE_HOME to another folder", untrusted.remedy())
        }
        FilesError::Lock { .. } => "make it writable, or set XDG_STATE_HOME".to_owned(),
        FilesError::Held { path, .. } => format!(
            "it holds the lock `{}`; talk to it with `xy list`, take its place with \
             `xy daemon --replace`, or end it with `xy shutdown`",
            path.display()
        ),
    };
    let cause = cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
    not_started().cause(cause).hint(hint)
}

fn no_socket(error: &BindError) -> CallError {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let hint = match error {
        BindError::InUse { .. } => "two daemons need two XDG_RUNTIME_DIR folders",
        BindError::NotASocket { .. } => "move it away: xy never deletes what it did not make",
        BindError::Io { .. } => {
            "make it a folder that you can write to, or set XDG_RUNTIME_DIR to another"
        }
    };
    let cause = cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
    not_started().cause(cause).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_all_takes_twice_the_longest_grace_and_what_engines_need() {
        let seconds = Duration::from_secs;
        assert_eq!(shutdown_within(seconds(10), false), seconds(20));
        assert_eq!(shutdown_within(seconds(1), false), seconds(5));
        assert_eq!(shutdown_within(seconds(1), true), seconds(35));
    }
}
