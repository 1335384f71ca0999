//! Starts the daemon's parts in order, and stops them in reverse order.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::oneshot;
use tokio::time::timeout;
use xy_config::load::supervision;
use xy_config::stored_file::StoredFile;
use xy_config::supervision::Supervision;
use xy_config::{BrokenServers, Paths, trust};
use xy_container::{CliLauncher, ContainerLauncher};
use xy_ipc::listen::{BindError, BoundSocket};
use xy_protocol::error::{CallError, ErrorKind};
use xy_shim::env_mark::MARK;
use xy_supervisor::RuntimeServers;
use xy_supervisor::desired::DesiredState;
use xy_supervisor::fleet::{Fleet, FleetParts, changes_channel};
use xy_supervisor::journal::Journal;
use xy_supervisor::launch::Launchers;
use xy_supervisor::launch::adopt::{AdoptedLife, PendingAdoptions};
use xy_supervisor::launch::home::{home_id, is_of_home};
use xy_supervisor::launch::process::{ProcessLauncher, ShimProgram};
use xy_supervisor::launch::remote::RemoteLauncher;
use xy_supervisor::locks::remove_stale;
use xy_supervisor::logs::remove_client_logs;
use xy_supervisor::protocol::ProtocolDriver;

use crate::bad_files::Strictness;
use crate::daemon::{Daemon, Phase};
use crate::files::{self, FilesError, Lock};
use crate::gateway::{self, ControlPlane};
use crate::handlers::Handlers;
use crate::limits;
use crate::logging::{self, LogTo};
use crate::socket_links::SocketLinks;
use crate::sockets::{Socket, Sockets};
use crate::start_error::not_started;
use crate::takeover;

mod configuration;
mod signals;

use configuration::Configuration;
use signals::Signals;

/// The minimum time for the shutdown of all servers: shims have to write their logs to disk.
const MIN_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The additional time for container engines, which have to kill and remove containers.
const ENGINE_SHUTDOWN_EXTRA: Duration = Duration::from_secs(30);

/// Maximum time for telling all shims that another daemon will attach.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(8);

/// The interval at which the daemon checks that the folder of its sockets exists.
const SOCKET_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time for the gateway to start listening, and for clients to read their last lines.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for writing the last events to disk.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of worker threads. With two, one slow request does not block the others.
const THREADS: usize = 2;

/// The number of threads for file access: reading the configuration, storing the desired state.
const BLOCKING_THREADS: usize = 4;

/// The limit of open files: enough for a thousand servers and all clients at once.
const FILE_LIMIT: u64 = 16_384;

/// The options of a daemon.
#[derive(Debug, Clone)]
pub struct Options {
    /// The paths of all files and sockets.
    pub paths: Paths,
    /// The destination of the daemon's own log.
    pub log: LogTo,
    /// True if the daemon takes over from one that is running.
    pub replace: bool,
    /// Decides whether the daemon starts with a bad file.
    pub strictness: Strictness,
}

/// Runs the daemon until a signal or a request ends it.
pub fn run(options: Options) -> Result<(), CallError> {
    logging::start(&options.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(|cause| not_started().cause(cause))?;
    // Processes that a dead shim leaves behind become children of the daemon, which ends them.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let lock_file = options.paths.lock_file.clone();
    let outcome = runtime.block_on(serve(options));
    let outcome = match outcome {
        Ok(Phase::HandedOver) => {
            let was_replaced = runtime.block_on(takeover::wait_for_successor(&lock_file));
            if was_replaced { Ok(()) } else { Err(takeover::restart_in_place()) }
        }
        ended => ended.map(drop),
    };
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn serve(options: Options) -> Result<Phase, CallError> {
    let Options { paths, replace, strictness, .. } = options;
    let (_lock, inherited) = acquire_lock(&paths, replace, strictness).await?;
    // Everything that can fail happens before servers are adopted. Otherwise a daemon that fails to
    // start would take adopted servers down with it.
    let _socket_links = SocketLinks::create(&paths);
    let mut signals = Signals::new().map_err(|cause| not_started().cause(cause))?;
    let BoundSocket { listener, file } =
        xy_ipc::listen::bind(&paths.control_socket).map_err(|error| no_socket(&error))?;
    let (control, new_control_listeners) =
        Socket::of_control(file, &paths.control_socket_candidates()[0]);
    let desired = read_desired_state(&paths)?;
    let added = read_added(&paths)?;
    limits::prepare().await;
    let mcp = xy_ipc::listen::bind(&paths.mcp_socket).map_err(|error| no_socket(&error))?;
    let mcp_listener = mcp.listener.into_std().map_err(|cause| not_started().cause(cause))?;
    let (mcp, new_mcp_listeners) = Socket::of_gateway(mcp.file, &paths.mcp_socket_candidates()[0]);
    let (driver, connections) = xy_gateway::driver();
    let processes = Arc::new(launcher(&paths, driver.clone())?);
    let containers = ContainerLauncher::new(
        paths.state_dir.join("containers"),
        paths.logs_dir.clone(),
        driver.clone(),
        &processes,
    );
    let (adopted, pending) = adopt(&processes, &containers).await;
    let reconciling = tokio::spawn(containers.clone().reconcile());
    let has_living = !adopted.is_empty() || !pending.is_empty();
    let configuration = Configuration::load(&paths, strictness, &adopted, &added, has_living)?;
    let Configuration { servers, broken, faults, settings, texts } = configuration;
    remove_stale(&paths.shims_dir, |name| servers.contains_key(name));
    remove_client_logs(&paths.logs_dir);
    let parts = FleetParts {
        limits: settings.instances,
        launcher: Arc::new(launchers(&processes, &containers, driver)),
        desired,
        desired_state_file: paths.desired_state_file.clone(),
        runtime_servers: added,
        runtime_servers_file: paths.runtime_servers_file.clone(),
        logs_dir: paths.logs_dir.clone(),
        locks_dir: paths.shims_dir.clone(),
    };
    let sockets = Sockets { control, mcp };
    let changes = changes_channel();
    let (journal, keeper) = Journal::begin(&paths.events_file, changes.subscribe());
    let fleet = Fleet::spawn_with_changes(parts, adopted, changes);
    let daemon = Arc::new(Daemon::new(fleet, journal, paths, sockets, (processes, containers)));
    tracing::info!(
        pid = std::process::id(),
        servers = servers.len(),
        socket = %daemon.paths.control_socket.display(),
        "ready"
    );
    let (http, listen_problem) = {
        let mut tokens = daemon.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        gateway::http_parts(&settings.gateway, &daemon.paths, &mut tokens, inherited)
    };
    daemon.apply(servers, broken.clone()).await?;
    daemon.faults.send_replace(Arc::new(faults));
    daemon.set_profiles(settings.profiles).await?;
    daemon.save_last_good(texts).await;
    // The gateway starts last, so that the first client finds all servers.
    let gateway = xy_gateway::Gateway::start(xy_gateway::Parts {
        http,
        connections,
        local: mcp_listener,
        replacement_local: new_mcp_listeners,
        park: settings.park,
        instances_max: settings.instances.most,
        tokens: daemon.tokens.lock().unwrap_or_else(PoisonError::into_inner).subscribe(),
        manifests_dir: daemon.paths.manifests_dir.clone(),
        state_key: gateway::state_key(&daemon.paths).map_err(|cause| not_started().cause(cause))?,
        control: Arc::new(ControlPlane::here(daemon.clone())),
        profiles: daemon.profiles.borrow().clone(),
        roster: daemon.fleet.watch_roster(),
        changes: daemon.fleet.changes(),
    });
    let gateway = gateway.map_err(|cause| not_started().cause(cause))?;
    daemon.set_admin(gateway.admin(), listen_problem);
    // So that `info` can report the address.
    let _ = timeout(DRAIN_TIMEOUT, gateway.wait_until_bound()).await;
    let pending = tokio::spawn(adopt_late(daemon.clone(), pending, broken));

    let (close, closed) = oneshot::channel::<()>();
    let handlers = Arc::new(Handlers(daemon.clone()));
    let control_server =
        xy_ipc::server::serve_replaceable(listener, new_control_listeners, handlers, async {
            let _ = closed.await; // Dropped or sent, the server has to stop.
        });
    let control_server = tokio::spawn(control_server);
    let ended = run_until_end(&daemon, &mut signals).await;
    reconciling.abort();
    pending.abort(); // Shims that have not answered wait for the next daemon.
    if timeout(JOURNAL_TIMEOUT, keeper.end()).await.is_err() {
        tracing::warn!("the last events are not in the journal: the disk is too slow");
    }
    drop(close);
    let _ = timeout(DRAIN_TIMEOUT, control_server).await; // Pending requests end here.
    daemon.sockets.control.remove();
    daemon.sockets.mcp.remove();
    end_gateway(gateway, &ended).await;
    tracing::info!("ended");
    ended
}

/// Moves sockets to the state folder when their own folder is gone. A runtime folder disappears
/// after its user's last logout. Never resolves.
async fn move_sockets(daemon: &Daemon) -> Infallible {
    let mut check = tokio::time::interval(SOCKET_CHECK_INTERVAL);
    loop {
        check.tick().await;
        for socket in [&daemon.sockets.control, &daemon.sockets.mcp] {
            if socket.has_lost_folder() {
                match socket.rebind() {
                    Ok(()) => tracing::warn!(socket = %socket.path().display(), "moved a socket"),
                    Err(error) => tracing::debug!(%error, "could not move a socket"),
                }
            }
        }
    }
}

/// Stops the gateway. After a handover, the next daemon continues its sessions.
async fn end_gateway(mut gateway: xy_gateway::Gateway, ended: &Result<Phase, CallError>) {
    let how = match ended {
        Ok(Phase::HandedOver) => xy_gateway::Shutdown::HandOver,
        _ => xy_gateway::Shutdown::Stop,
    };
    // It logs its failures.
    let _ = tokio::task::spawn_blocking(move || gateway.shut_down(how)).await;
}

/// Waits until the daemon has to end, then leaves its servers to another daemon or stops them.
async fn run_until_end(daemon: &Arc<Daemon>, signals: &mut Signals) -> Result<Phase, CallError> {
    let end = tokio::select! {
        end = signals.until_end(daemon) => end,
        never = move_sockets(daemon) => match never {},
    };
    if end != Phase::HandingOver {
        daemon.phase.send_replace(Phase::ShuttingDown);
        return end_servers(daemon, signals).await.map(|()| Phase::ShuttingDown);
    }
    if timeout(RELEASE_TIMEOUT, daemon.fleet.hand_over()).await.is_err() {
        tracing::warn!(
            "some shims did not confirm the handover; they will notice the daemon's exit"
        );
    }
    daemon.phase.send_replace(Phase::HandedOver);
    Ok(Phase::HandedOver)
}

/// Prepares folders and takes the lock, so that this daemon is the only one. Also returns the HTTP
/// listener of the daemon that it replaces.
async fn acquire_lock(
    paths: &Paths,
    replace: bool,
    strictness: Strictness,
) -> Result<(Lock, Option<TcpListener>), CallError> {
    paths.check_socket().map_err(|cause| not_started().cause(cause))?;
    files::create_folders(paths).map_err(|error| no_files(&error))?;
    check_socket_folder(paths)?;
    check_not_inside(paths)?;
    check_supervision_enabled(paths)?;
    let inherited =
        if replace { takeover::request_handover(paths, strictness).await? } else { None };
    let wait = if replace { takeover::EXIT_TIMEOUT } else { Duration::ZERO };
    let lock = Lock::take_within(wait, &paths.lock_file).await.map_err(|error| no_files(&error))?;
    Ok((lock, inherited))
}

/// Refuses a socket folder that another user can write: that user could listen in the daemon's
/// place.
fn check_socket_folder(paths: &Paths) -> Result<(), CallError> {
    let folder = paths.control_socket.parent().unwrap_or(&paths.state_dir);
    trust::check_socket_folder(folder).map_err(|untrusted| {
        not_started()
            .cause(format!("another user could listen on its socket: {untrusted}"))
            .hint(untrusted.remedy_of_sockets(paths.socket_variable()))
    })
}

/// Refuses to start inside one of the daemon's own servers: the daemon would end with that server.
fn check_not_inside(paths: &Paths) -> Result<(), CallError> {
    let is_inside =
        std::env::var(MARK).is_ok_and(|mark| is_of_home(&mark, &home_id(&paths.shims_dir)));
    if !is_inside {
        return Ok(());
    }
    let server = std::env::var("XY_SERVER").unwrap_or_default();
    Err(not_started()
        .cause(format!(
            "it was started inside its own server `{server}`, and would end with that server"
        ))
        .hint("start it from a terminal, or as a service"))
}

/// Returns the launchers of all server kinds.
fn launchers(
    processes: &Arc<ProcessLauncher>,
    containers: &ContainerLauncher,
    driver: Arc<dyn ProtocolDriver>,
) -> Launchers {
    Launchers {
        processes: Arc::new(CliLauncher::new(processes.clone(), containers.clone())),
        remotes: RemoteLauncher::new(driver),
        containers: Arc::new(containers.clone()),
    }
}

/// Adopts the servers that an earlier daemon left running.
async fn adopt(
    processes: &Arc<ProcessLauncher>,
    containers: &ContainerLauncher,
) -> (Vec<AdoptedLife>, PendingAdoptions) {
    let ((adopted, pending), (in_containers, late_ones)) =
        tokio::join!(processes.adopt_all(), containers.adopt_all());
    let adopted =
        adopted.into_iter().map(|adopted_server| containers.with_cli_cleanup(adopted_server));
    (adopted.chain(in_containers).collect(), pending.and(late_ones))
}

async fn adopt_late(daemon: Arc<Daemon>, mut pending: PendingAdoptions, broken: BrokenServers) {
    while let Some(adopted) = pending.next().await {
        let is_broken = broken.contains(adopted.server());
        daemon.fleet.adopt(daemon.containers.with_cli_cleanup(adopted), is_broken).await;
    }
}

/// Refuses to start if supervision is switched off. A setting that cannot be parsed is reported
/// later, with all other problems of the files.
fn check_supervision_enabled(paths: &Paths) -> Result<(), CallError> {
    let Ok(Supervision::Off(by)) = supervision(paths) else { return Ok(()) };
    Err(not_started().cause(by.cause()).hint(format!(
        "{}; or run one server without a daemon: `xy connect --direct <server>`",
        by.remedy()
    )))
}

fn read_desired_state(paths: &Paths) -> Result<DesiredState, CallError> {
    let file = &paths.desired_state_file;
    let (desired, problem) = DesiredState::read(file).map_err(|cause| {
        let file = file.display();
        not_started()
            .cause(format!(
                "`{file}`, which lists the servers that stay stopped, cannot be read: {cause}"
            ))
            .hint("make it readable, or move it away and stop those servers again")
    })?;
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
    Ok(desired)
}

fn read_added(paths: &Paths) -> Result<RuntimeServers, CallError> {
    let file = &paths.runtime_servers_file;
    let (added, problem) = RuntimeServers::read(file).map_err(|cause| {
        let file = file.display();
        not_started()
            .cause(format!("`{file}`, which lists the added servers, cannot be read: {cause}"))
            .hint("make it readable, or move it away and add those servers again")
    })?;
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
    Ok(added)
}

fn launcher(paths: &Paths, driver: Arc<dyn ProtocolDriver>) -> Result<ProcessLauncher, CallError> {
    let shim = ShimProgram::this_binary().map_err(|cause| not_started().cause(cause))?;
    let (logs_dir, locks_dir) = (paths.logs_dir.clone(), paths.shims_dir.clone());
    Ok(ProcessLauncher::new(shim, logs_dir, locks_dir, raise_file_limit(), driver))
}

/// Raises the limit of open files, since a daemon needs several descriptors per server and shells
/// allow few. Returns the daemon's original limit, which servers get.
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

/// Returns the maximum time for stopping all servers.
fn shutdown_timeout(longest_grace: Duration, has_containers: bool) -> Duration {
    let for_engines = if has_containers { ENGINE_SHUTDOWN_EXTRA } else { Duration::ZERO };
    (longest_grace * 2).max(MIN_SHUTDOWN_TIMEOUT) + for_engines
}

/// Stops all servers at the same time.
async fn end_servers(daemon: &Daemon, signals: &mut Signals) -> Result<(), CallError> {
    let limit = shutdown_timeout(daemon.longest_grace(), daemon.has_containers());
    tracing::info!(servers = daemon.fleet.roster().len(), ?limit, "stopping all servers");
    let problem = tokio::select! {
        done = timeout(limit, daemon.fleet.shutdown()) => match done {
            Ok(()) => return Ok(()),
            Err(_) => format!("they did not all end within {limit:?}"),
        },
        () = signals.end() => "a second signal ended the daemon".to_owned(),
    };
    let hint = if daemon.has_containers() {
        "their shims stop the processes, and the next daemon stops the containers"
    } else {
        "their shims stop them"
    };
    Err(CallError::new(ErrorKind::TimedOut, "the daemon exited before all servers had stopped")
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
            "it holds the lock `{}`; query it with `xy list`, replace it with \
             `xy daemon --replace`, or stop it with `xy shutdown`",
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
        BindError::NotASocket { .. } => "move it away: xy deletes only files that it created",
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
    fn shutdown_timeout_is_twice_the_longest_grace_plus_engine_time() {
        let seconds = Duration::from_secs;
        assert_eq!(shutdown_timeout(seconds(10), false), seconds(20));
        assert_eq!(shutdown_timeout(seconds(1), false), seconds(5));
        assert_eq!(shutdown_timeout(seconds(1), true), seconds(35));
    }
}
