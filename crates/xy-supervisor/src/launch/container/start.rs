//! The beginning of a container's life: engine, image, container, stream, start, in this order.
//!
//! Whoever asks for a stop meanwhile is heard between any two steps and during a pull; what
//! has been made by then is removed again.

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

use super::Shared;
use super::create::{self, LABEL_HOME, LABEL_INSTANCE};
use super::engine::{Engine, is_name_taken};
use super::faults;
use super::kept::Keeper;
use super::pull::{self, NotPulled};
use crate::launch::{LaunchOrder, millis};
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
    pub(super) keeper: Keeper,
}

/// Why there is none.
pub(super) enum NotBegun {
    /// Somebody asked for its end meanwhile.
    Cancelled,
    Fault(LaunchFault),
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
    progress: watch::Sender<Option<String>>,
    mut cancelled: Cancelled,
) -> Result<Begun, NotBegun> {
    let settings = order.settings.container().ok_or_else(no_container)?;
    let engine = Engine::find(settings).await.map_err(|why| faults::no_engine(&why))?;
    shared.engines.saw(&engine.socket);
    if let Some(missing) = missing_folder(settings).await {
        return Err(faults::no_folder(&order.settings, &missing).into());
    }
    have_image(&engine, &order, settings, &progress, &mut cancelled).await?;
    let name = create::name(&shared.home, &order.key);
    let id = make(&shared, &engine, &order, settings, &name).await?;
    let begun = run(&shared, &engine, &order, &name, &id, &cancelled).await;
    if begun.is_err() {
        let _ = timeout(UNDO_WITHIN, engine.remove(&id)).await; // Else it is found later.
    }
    begun
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
    engine: &Engine,
    order: &LaunchOrder,
    settings: &ContainerSettings,
    progress: &watch::Sender<Option<String>>,
    cancelled: &mut Cancelled,
) -> Result<(), NotBegun> {
    let server = &order.settings;
    let image = &settings.image;
    let refused = |why: Error| faults::not_started(server, image, &why);
    let is_there = engine.has_image(image).await.map_err(refused)?;
    match settings.pull {
        Pull::Never if !is_there => return Err(faults::no_image(server, image).into()),
        Pull::Never => return Ok(()),
        Pull::Missing if is_there => return Ok(()),
        Pull::Missing | Pull::Always => {}
    }
    let pulled = tokio::select! {
        pulled = pull::pull(engine, image, settings.platform.as_deref(), progress) => pulled,
        _ = cancelled.wait_for(|is_cancelled| *is_cancelled) => return Err(NotBegun::Cancelled),
    };
    match pulled {
        Ok(()) => Ok(()),
        // An older one is better than none, if there is one.
        Err(why) if is_there => {
            tracing::warn!(server = %order.key, image, "not fetched anew: {}", why.words());
            Ok(())
        }
        Err(NotPulled::Refused(why)) => Err(faults::not_pulled(server, image, &why).into()),
        Err(why) => Err(LaunchFault {
            permanent: false,
            message: format!("the image `{image}` could not be fetched: {}", why.words()),
            hint: Some("see whether its registry can be reached; it is tried again".into()),
        }
        .into()),
    }
}

/// Makes the container. One of this name that an earlier life of ours left is removed first.
async fn make(
    shared: &Shared,
    engine: &Engine,
    order: &LaunchOrder,
    settings: &ContainerSettings,
    name: &str,
) -> Result<String, NotBegun> {
    let life = shared.new_life();
    let platform = settings.platform.as_deref();
    let mut body = create::body(settings, &shared.home, &order.key, &life);
    let mut tries = 0;
    loop {
        match engine.create(name, platform, body.clone()).await {
            Ok(id) => return Ok(id),
            Err(why) if is_name_taken(&why) && tries < NAME_TRIES => {
                tries += 1;
                if !is_left_by_us(shared, engine, order, name).await {
                    return Err(faults::not_started(&order.settings, name, &why).into());
                }
                let _ = timeout(UNDO_WITHIN, engine.remove(name)).await; // It is tried again.
                sleep(NAME_AGAIN).await;
            }
            Err(why) if faults::is_for_want_of_init(&why) && has_init(&body) => {
                tracing::warn!(server = %order.key, "its engine has no init: it runs without one");
                if let Some(host) = &mut body.host_config {
                    host.init = Some(false);
                }
            }
            Err(why) => return Err(faults::not_started(&order.settings, name, &why).into()),
        }
    }
}

fn has_init(body: &ContainerCreateBody) -> bool {
    body.host_config.as_ref().is_some_and(|host| host.init == Some(true))
}

/// Whether whoever has the name carries our labels: nobody else's is ever touched.
async fn is_left_by_us(shared: &Shared, engine: &Engine, order: &LaunchOrder, name: &str) -> bool {
    match engine.labels(name).await {
        Ok(Some(seen)) => {
            let instance = order.key.to_string();
            seen.labels.get(LABEL_HOME) == Some(&shared.home)
                && seen.labels.get(LABEL_INSTANCE) == Some(&instance)
        }
        Ok(None) => true, // It has gone meanwhile.
        Err(_) => false,
    }
}

/// Attaches, keeps what a later daemon has to know, and starts: so nothing is missed.
async fn run(
    shared: &Shared,
    engine: &Engine,
    order: &LaunchOrder,
    name: &str,
    id: &str,
    cancelled: &Cancelled,
) -> Result<Begun, NotBegun> {
    let refused = |why: Error| faults::not_started(&order.settings, name, &why);
    let attached = engine.attach(id).await.map_err(refused)?;
    let mut keeper = Keeper::new(&shared.kept_dir, &order.key, id, &engine.socket);
    keeper.forget(); // Whatever is there is of an earlier one.
    let now = millis(time_of_day().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    keeper.change(|kept| {
        (kept.began_ms, kept.noted_ms) = (now, now);
        kept.note = String::from_utf8_lossy(&order.note).into_owned();
    });
    let started = async {
        if *cancelled.borrow() {
            return Err(NotBegun::Cancelled);
        }
        engine.start(id).await.map_err(refused)?;
        let state = engine.state(id).await.map_err(refused)?.unwrap_or_default();
        Ok(u32::try_from(state.pid.unwrap_or_default()).unwrap_or_default())
    };
    match started.await {
        Ok(pid) => {
            let (engine, attached) = (engine.clone(), Some(attached));
            Ok(Begun { engine, id: id.to_owned(), pid, attached, keeper })
        }
        Err(why) => {
            keeper.forget();
            Err(why)
        }
    }
}
