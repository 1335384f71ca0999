//! The start of a container: name, engine, image, container, stream, start, in this order.
//!
//! It can be cancelled while an engine or an image is looked for or fetched, and before the start.
//! Whatever has been created by then is removed.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bollard::container::AttachContainerResults;
use bollard::errors::Error;
use bollard::models::ContainerCreateBody;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use xy_config::settings::{ContainerSettings, MountSource, Pull};
use xy_protocol::server::Transport;
use xy_shim::stream_holder::HolderCommand;
use xy_supervisor::launch::{LaunchOrder, Progress};
use xy_supervisor::lifecycle::LaunchFault;
use xy_supervisor::wait::millis;
use xy_supervisor::wait::time_of_day;

use crate::create::{self, LABEL_HOME, LABEL_INSTANCE};
use crate::engine::{Engine, HasImage, is_name_taken};
use crate::faults;
use crate::log::Ledger;
use crate::owned_names::NameLease;
use crate::pull;
use crate::shared::SharedState;
use crate::state_file::{PositionFile, StateFile};
use crate::stream;
use crate::stream_holder::{self, StreamHolder};

/// Number of attempts to create a container while an earlier one of ours has its name.
const NAME_TRIES: u32 = 5;
const NAME_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Time to undo a failed start.
const UNDO_TIMEOUT: Duration = Duration::from_secs(20);

/// A container that runs.
pub(crate) struct StartedContainer {
    pub(crate) engine: Engine,
    pub(crate) id: String,
    pub(crate) pid: u32,
    /// `None` if the container has exited.
    pub(crate) attached: Option<AttachContainerResults>,
    /// Holds its stream while there is no daemon, if that is necessary.
    pub(crate) stream_holder: Option<StreamHolder>,
    pub(crate) state_file: StateFile,
    /// How far its output has been received.
    pub(crate) position: PositionFile,
    /// The record of the output that has been logged.
    pub(crate) ledger: Ledger,
    /// Ownership of its name.
    pub(crate) lease: NameLease,
}

/// The resources of a running container.
struct RunningContainer {
    pid: u32,
    attached: AttachContainerResults,
    stream_holder: Option<StreamHolder>,
    state_file: StateFile,
}

/// Why there is no container.
pub(crate) enum StartError {
    /// The start was cancelled.
    Cancelled,
    Fault(LaunchFault),
    /// The engine is absent or does not answer.
    Away(LaunchFault),
}

impl From<LaunchFault> for StartError {
    fn from(fault: LaunchFault) -> Self {
        Self::Fault(fault)
    }
}

/// Becomes true when the start is cancelled.
pub(crate) type Cancelled = watch::Receiver<bool>;

/// Starts a container.
pub(crate) async fn begin(
    shared: Arc<SharedState>,
    order: LaunchOrder,
    progress: watch::Sender<Option<Progress>>,
    mut cancelled: Cancelled,
) -> Result<StartedContainer, StartError> {
    let settings = order.settings.container().ok_or_else(no_container)?;
    let name = create::name(&shared.home, &order.key);
    // A container of an earlier daemon may still be in adoption.
    let lease = tokio::select! {
        lease = shared.owned.lease(&name) => lease,
        _ = cancelled.wait_for(|is_cancelled| *is_cancelled) => return Err(StartError::Cancelled),
    };
    // An engine that does not answer may take half a minute to be given up.
    let found = tokio::select! {
        found = Engine::find(settings) => found,
        _ = cancelled.wait_for(|is_cancelled| *is_cancelled) => return Err(StartError::Cancelled),
    };
    let engine = found.map_err(|why| match faults::no_engine(&why) {
        fault if fault.permanent => StartError::Fault(fault),
        fault => StartError::Away(fault),
    })?;
    shared.engines.record_use(&engine.socket);
    if let Some(missing) = missing_folder(settings).await {
        return Err(faults::no_folder(&order.settings, &missing).into());
    }
    ensure_image(&shared, &engine, &order, &progress, &mut cancelled).await?;
    let mut body = create::body(settings, &shared.home, &order.key, &shared.new_life());
    loop {
        let started = match make(&shared, &engine, &order, &body, &name).await {
            Err(why) => Err(why),
            Ok(id) => {
                let started = run(&shared, &engine, &order, &id, &cancelled).await;
                if started.is_err() {
                    // A container that remains is removed later.
                    let _ = timeout(UNDO_TIMEOUT, engine.remove(&id)).await;
                }
                started.map(|running| (id, running))
            }
        };
        match started {
            Ok((id, RunningContainer { pid, attached, stream_holder, state_file })) => {
                let attached = Some(attached);
                let position = state_file.position_file();
                let ledger = Ledger::begin(state_file.ledger_path(), [0; 2]);
                let started = StartedContainer {
                    engine,
                    id,
                    pid,
                    attached,
                    stream_holder,
                    state_file,
                    position,
                    ledger,
                    lease,
                };
                return Ok(started);
            }
            Err(RunError::Cancelled) => return Err(StartError::Cancelled),
            // Some engines notice a missing init when a container is created, others when it
            // starts.
            Err(RunError::Refused(why)) if has_init(&body) && faults::is_missing_init(&why) => {
                if shared.engines.record_missing_init(&engine.socket) {
                    let socket = engine.socket.display();
                    tracing::warn!(%socket, "this engine has no init: containers run without one");
                }
                if let Some(host) = &mut body.host_config {
                    host.init = Some(false);
                }
            }
            Err(RunError::Refused(why)) => {
                return Err(faults::not_started(&order.settings, &name, &why).into());
            }
        }
    }
}

/// Why a container does not exist or does not run.
enum RunError {
    Cancelled,
    Refused(Error),
}

impl From<Error> for RunError {
    fn from(why: Error) -> Self {
        Self::Refused(why)
    }
}

/// Returns a folder that is to be mounted and does not exist, as some engines would create it.
async fn missing_folder(settings: &ContainerSettings) -> Option<String> {
    let folders = settings.volumes.iter().filter_map(|volume| match &volume.source {
        MountSource::Folder(path) => Some(path.clone()),
        MountSource::Volume(_) => None,
    });
    let folders: Vec<String> = folders.collect();
    let is_missing = |path: &String| {
        std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let looked = spawn_blocking(move || folders.into_iter().find(is_missing));
    looked.await.ok().flatten()
}

fn no_container() -> LaunchFault {
    LaunchFault { permanent: true, message: "there is no container to start".into(), hint: None }
}

async fn ensure_image(
    shared: &SharedState,
    engine: &Engine,
    order: &LaunchOrder,
    progress: &watch::Sender<Option<Progress>>,
    cancelled: &mut Cancelled,
) -> Result<(), StartError> {
    let server = &order.settings;
    let settings = server.container().ok_or_else(no_container)?;
    let image = &settings.image;
    let refused = |why: Error| faults::not_started(server, image, &why);
    let platform = settings.platform.as_deref();
    let found = tokio::select! {
        found = engine.find_image(image, platform) => found.map_err(refused)?,
        _ = cancelled.wait_for(|is_cancelled| *is_cancelled) => return Err(StartError::Cancelled),
    };
    let is_there = found == HasImage::Yes;
    match settings.pull {
        Pull::Never if let HasImage::ForOther(is_for) = found => {
            return Err(faults::other_platform(server, image, &is_for).into());
        }
        Pull::Never if !is_there => return Err(faults::no_image(server, image).into()),
        Pull::Never => return Ok(()),
        Pull::Missing if is_there => return Ok(()),
        Pull::Missing | Pull::Always => {}
    }
    let pulled = tokio::select! {
        pulled = pull::pull(engine, image, platform, &shared.shims, progress) => pulled,
        _ = cancelled.wait_for(|is_cancelled| *is_cancelled) => return Err(StartError::Cancelled),
    };
    progress.send_replace(None); // The pull is over.
    match pulled {
        Ok(()) => Ok(()),
        // The present image is better than none.
        Err(why) if is_there => {
            let why = faults::pull_words(&why);
            tracing::warn!(server = %order.key, image, "the image could not be pulled, the present one is used: {why}");
            Ok(())
        }
        Err(why) => Err(faults::not_pulled(server, image, &why).into()),
    }
}

/// Creates the container, after removing one with this name that an earlier life has left.
async fn make(
    shared: &SharedState,
    engine: &Engine,
    order: &LaunchOrder,
    body: &ContainerCreateBody,
    name: &str,
) -> Result<String, RunError> {
    let platform = order.settings.container().and_then(|it| it.platform.as_deref());
    let mut tries = 0;
    loop {
        match engine.create(name, platform, body.clone()).await {
            Ok(id) => return Ok(id),
            Err(why) if is_name_taken(&why) && tries < NAME_TRIES => {
                tries += 1;
                match own_leftover(shared, engine, order, name).await {
                    None => return Err(why.into()),
                    Some(id) => stream_holder::end_for(shared, &id).await,
                }
                // The creation is tried again.
                let _ = timeout(UNDO_TIMEOUT, engine.remove(name)).await;
                sleep(NAME_RETRY_INTERVAL).await;
            }
            Err(why) => return Err(why.into()),
        }
    }
}

fn has_init(body: &ContainerCreateBody) -> bool {
    body.host_config.as_ref().is_some_and(|host| host.init == Some(true))
}

/// Returns the id of the container with this name if it carries our labels; any other is left
/// alone.
async fn own_leftover(
    shared: &SharedState,
    engine: &Engine,
    order: &LaunchOrder,
    name: &str,
) -> Option<String> {
    let Some(container) = engine.labels(name).await.ok()? else {
        return Some(String::new()); // It has gone meanwhile.
    };
    let is_ours = container.labels.get(LABEL_HOME) == Some(&shared.home)
        && container.labels.get(LABEL_INSTANCE) == Some(&order.key.to_string());
    is_ours.then_some(container.id)
}

/// Attaches, saves the state for a later daemon, and starts the container. This order loses no
/// output.
async fn run(
    shared: &SharedState,
    engine: &Engine,
    order: &LaunchOrder,
    id: &str,
    cancelled: &Cancelled,
) -> Result<RunningContainer, RunError> {
    let mut state_file = StateFile::new(&shared.state_dir, &order.key, id, &engine.socket);
    state_file.remove(); // Any files are those of an earlier container.
    let (attached, stream_holder) = attach(shared, engine, order, id, &state_file).await?;
    let now = millis(time_of_day().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    state_file.change(|state| {
        (state.began_ms, state.noted_ms) = (now, now);
        state.note = String::from_utf8_lossy(&order.note).into_owned();
        state.held = stream_holder.is_some();
    });
    let started = async {
        if *cancelled.borrow() {
            return Err(RunError::Cancelled);
        }
        engine.start(id).await?;
        let state = engine.state(id).await?.unwrap_or_default();
        Ok(u32::try_from(state.pid.unwrap_or_default()).unwrap_or_default())
    };
    match started.await {
        Ok(pid) => {
            if let Some(stream_holder) = &stream_holder {
                stream_holder.send(HolderCommand::Leader(pid));
            }
            Ok(RunningContainer { pid, attached, stream_holder, state_file })
        }
        Err(why) => {
            if let Some(stream_holder) = stream_holder {
                stream_holder.end(shared).await;
            }
            state_file.remove();
            Err(why)
        }
    }
}

/// Attaches. The stream of a stdio server must survive this daemon, so a holder keeps it open too.
///
/// If there can be no holder, such as on a full disk, the container starts all the same. With
/// Podman it ends with its daemon; with Docker the next daemon attaches anew.
async fn attach(
    shared: &SharedState,
    engine: &Engine,
    order: &LaunchOrder,
    id: &str,
    state_file: &StateFile,
) -> Result<(AttachContainerResults, Option<StreamHolder>), RunError> {
    if order.settings.transport() != Transport::Stdio {
        return Ok((engine.attach(id).await?, None));
    }
    let stream = engine.attach_raw(id).await?;
    let held = stream.try_clone().map_err(Error::from)?;
    let (stream_holder, taken) = match state_file.create_read_journal() {
        Ok(taken) => (StreamHolder::spawn(shared, id, held).await, Some(taken)),
        Err(error) => (Err(error), None),
    };
    let stream_holder = stream_holder.inspect_err(|error| {
        tracing::warn!(server = %order.key, %error, "no stream holder could be started: the next daemon cannot take over the stream");
    });
    let (attached, _) = stream::resume(stream, taken).map_err(Error::from)?;
    Ok((attached, stream_holder.ok()))
}
