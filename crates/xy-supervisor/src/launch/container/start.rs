//! The beginning of a container's life: name, engine, image, container, stream, start, in this
//! order.
//!
//! Whoever asks for a stop meanwhile is heard while an engine or an image is looked for or fetched,
//! and before the start; what has been made by then is removed again.

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
use xy_shim::grip::Word;

use super::Shared;
use super::create::{self, LABEL_HOME, LABEL_INSTANCE};
use super::engine::{Engine, HasImage, is_name_taken};
use super::faults;
use super::grip::{self, Grip};
use super::kept::{Keeper, PlaceFile};
use super::log::Ledger;
use super::pull;
use super::reconcile::Hold;
use super::stream;
use crate::launch::{LaunchOrder, Progress, millis};
use crate::lifecycle::LaunchFault;
use crate::wait::time_of_day;

/// How often a name that an earlier container of ours still has is tried again.
const NAME_TRIES: u32 = 5;
const NAME_AGAIN: Duration = Duration::from_millis(200);

/// How long it may take to undo what was begun.
const UNDO_WITHIN: Duration = Duration::from_secs(20);

/// A container that runs.
pub(super) struct Begun {
    pub(super) engine: Engine,
    pub(super) id: String,
    pub(super) pid: u32,
    /// None of one that has ended.
    pub(super) attached: Option<AttachContainerResults>,
    /// Who holds its stream while there is no daemon, if that has to be held.
    pub(super) grip: Option<Grip>,
    pub(super) keeper: Keeper,
    /// How far what it says has been heard.
    pub(super) place: PlaceFile,
    /// What is in its log.
    pub(super) ledger: Ledger,
    /// That it is ours.
    pub(super) hold: Hold,
}

/// What a container that was started has besides.
struct Running {
    pid: u32,
    attached: AttachContainerResults,
    grip: Option<Grip>,
    keeper: Keeper,
}

/// Why there is none.
pub(super) enum NotBegun {
    /// Somebody asked for its end meanwhile.
    Cancelled,
    Fault(LaunchFault),
    /// Its engine is not there now, or does not answer.
    Away(LaunchFault),
}

impl From<LaunchFault> for NotBegun {
    fn from(fault: LaunchFault) -> Self {
        Self::Fault(fault)
    }
}

/// Whether the end was asked for.
pub(super) type Cancelled = watch::Receiver<bool>;

/// Begins a life.
pub(super) async fn begin(
    shared: Arc<Shared>,
    order: LaunchOrder,
    progress: watch::Sender<Option<Progress>>,
    mut cancelled: Cancelled,
) -> Result<Begun, NotBegun> {
    let settings = order.settings.container().ok_or_else(no_container)?;
    let name = create::name(&shared.home, &order.key);
    // What an earlier daemon left may still be on its way to be taken over.
    let hold = tokio::select! {
        hold = shared.owned.hold(&name) => hold,
        _ = cancelled.wait_for(|is_cancelled| *is_cancelled) => return Err(NotBegun::Cancelled),
    };
    // One that does not answer may take half a minute to be given up.
    let found = tokio::select! {
        found = Engine::find(settings) => found,
        _ = cancelled.wait_for(|is_cancelled| *is_cancelled) => return Err(NotBegun::Cancelled),
    };
    let engine = found.map_err(|why| match faults::no_engine(&why) {
        fault if fault.permanent => NotBegun::Fault(fault),
        fault => NotBegun::Away(fault),
    })?;
    shared.engines.saw(&engine.socket);
    if let Some(missing) = missing_folder(settings).await {
        return Err(faults::no_folder(&order.settings, &missing).into());
    }
    have_image(&shared, &engine, &order, &progress, &mut cancelled).await?;
    let mut body = create::body(settings, &shared.home, &order.key, &shared.new_life());
    loop {
        let begun = match make(&shared, &engine, &order, &body, &name).await {
            Err(why) => Err(why),
            Ok(id) => {
                let begun = run(&shared, &engine, &order, &id, &cancelled).await;
                if begun.is_err() {
                    let _ = timeout(UNDO_WITHIN, engine.remove(&id)).await; // Else it is found later.
                }
                begun.map(|running| (id, running))
            }
        };
        match begun {
            Ok((id, Running { pid, attached, grip, keeper })) => {
                let attached = Some(attached);
                let place = keeper.place();
                let ledger = Ledger::begin(keeper.lines(), [0; 2]);
                let begun = Begun { engine, id, pid, attached, grip, keeper, place, ledger, hold };
                return Ok(begun);
            }
            Err(NotRun::Cancelled) => return Err(NotBegun::Cancelled),
            // Some engines see that when they make it, others when they start it.
            Err(NotRun::Refused(why)) if has_init(&body) && faults::is_for_want_of_init(&why) => {
                if shared.engines.lacks_init(&engine.socket) {
                    let socket = engine.socket.display();
                    tracing::warn!(%socket, "this engine has no init: containers run without one");
                }
                if let Some(host) = &mut body.host_config {
                    host.init = Some(false);
                }
            }
            Err(NotRun::Refused(why)) => {
                return Err(faults::not_started(&order.settings, &name, &why).into());
            }
        }
    }
}

/// Why a container is not there, or does not run.
enum NotRun {
    Cancelled,
    Refused(Error),
}

impl From<Error> for NotRun {
    fn from(why: Error) -> Self {
        Self::Refused(why)
    }
}

/// A folder that is to be mounted and does not exist: some engines would make it.
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

async fn have_image(
    shared: &Shared,
    engine: &Engine,
    order: &LaunchOrder,
    progress: &watch::Sender<Option<Progress>>,
    cancelled: &mut Cancelled,
) -> Result<(), NotBegun> {
    let server = &order.settings;
    let settings = server.container().ok_or_else(no_container)?;
    let image = &settings.image;
    let refused = |why: Error| faults::not_started(server, image, &why);
    let platform = settings.platform.as_deref();
    let found = tokio::select! {
        found = engine.look_for(image, platform) => found.map_err(refused)?,
        _ = cancelled.wait_for(|is_cancelled| *is_cancelled) => return Err(NotBegun::Cancelled),
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
        _ = cancelled.wait_for(|is_cancelled| *is_cancelled) => return Err(NotBegun::Cancelled),
    };
    progress.send_replace(None); // What comes now is not the fetch.
    match pulled {
        Ok(()) => Ok(()),
        // An older one is better than none, if there is one.
        Err(why) if is_there => {
            let why = why.words();
            tracing::warn!(server = %order.key, image, "not fetched anew, the one here is used: {why}");
            Ok(())
        }
        Err(why) => Err(faults::not_pulled(server, image, &why).into()),
    }
}

/// Makes the container. One of this name that an earlier life of ours left is removed first.
async fn make(
    shared: &Shared,
    engine: &Engine,
    order: &LaunchOrder,
    body: &ContainerCreateBody,
    name: &str,
) -> Result<String, NotRun> {
    let platform = order.settings.container().and_then(|it| it.platform.as_deref());
    let mut tries = 0;
    loop {
        match engine.create(name, platform, body.clone()).await {
            Ok(id) => return Ok(id),
            Err(why) if is_name_taken(&why) && tries < NAME_TRIES => {
                tries += 1;
                match left_by_us(shared, engine, order, name).await {
                    None => return Err(why.into()),
                    Some(id) => grip::end_at(shared, &grip::path(&shared.kept_dir, &id)).await,
                }
                let _ = timeout(UNDO_WITHIN, engine.remove(name)).await; // It is tried again.
                sleep(NAME_AGAIN).await;
            }
            Err(why) => return Err(why.into()),
        }
    }
}

fn has_init(body: &ContainerCreateBody) -> bool {
    body.host_config.as_ref().is_some_and(|host| host.init == Some(true))
}

/// The id of whoever has the name, if it carries our labels: nobody else's is ever touched.
async fn left_by_us(
    shared: &Shared,
    engine: &Engine,
    order: &LaunchOrder,
    name: &str,
) -> Option<String> {
    let Some(seen) = engine.labels(name).await.ok()? else {
        return Some(String::new()); // It has gone meanwhile.
    };
    let is_ours = seen.labels.get(LABEL_HOME) == Some(&shared.home)
        && seen.labels.get(LABEL_INSTANCE) == Some(&order.key.to_string());
    is_ours.then_some(seen.id)
}

/// Attaches, keeps what a later daemon has to know, and starts: so nothing is missed.
async fn run(
    shared: &Shared,
    engine: &Engine,
    order: &LaunchOrder,
    id: &str,
    cancelled: &Cancelled,
) -> Result<Running, NotRun> {
    let mut keeper = Keeper::new(&shared.kept_dir, &order.key, id, &engine.socket);
    keeper.forget(); // Whatever is there is of an earlier one.
    let (attached, grip) = attach(shared, engine, order, id, &keeper).await?;
    let now = millis(time_of_day().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    keeper.change(|kept| {
        (kept.began_ms, kept.noted_ms) = (now, now);
        kept.note = String::from_utf8_lossy(&order.note).into_owned();
        kept.held = grip.is_some();
    });
    let started = async {
        if *cancelled.borrow() {
            return Err(NotRun::Cancelled);
        }
        engine.start(id).await?;
        let state = engine.state(id).await?.unwrap_or_default();
        Ok(u32::try_from(state.pid.unwrap_or_default()).unwrap_or_default())
    };
    match started.await {
        Ok(pid) => {
            if let Some(grip) = &grip {
                grip.tell(Word::Leader(pid));
            }
            Ok(Running { pid, attached, grip, keeper })
        }
        Err(why) => {
            if let Some(grip) = grip {
                grip.end(shared).await;
            }
            keeper.forget();
            Err(why)
        }
    }
}

/// Attaches. A stream of messages must not go with this daemon, so it is held by somebody else as
/// well. What cannot be held (the disk is full) is not started the less: with Podman it ends with
/// its daemon, and with Docker the next one attaches anew.
async fn attach(
    shared: &Shared,
    engine: &Engine,
    order: &LaunchOrder,
    id: &str,
    keeper: &Keeper,
) -> Result<(AttachContainerResults, Option<Grip>), NotRun> {
    if order.settings.transport() != Transport::Stdio {
        return Ok((engine.attach(id).await?, None));
    }
    let stream = engine.attach_apart(id).await?;
    let held = stream.try_clone().map_err(Error::from)?;
    let (grip, taken) = match keeper.begin_taken() {
        Ok(taken) => (Grip::begin(shared, id, held).await, Some(taken)),
        Err(error) => (Err(error), None),
    };
    let grip = grip.inspect_err(|error| {
        tracing::warn!(server = %order.key, %error, "nobody holds its stream for the next daemon");
    });
    let (attached, _) = stream::resume(stream, taken).map_err(Error::from)?;
    Ok((attached, grip.ok()))
}
