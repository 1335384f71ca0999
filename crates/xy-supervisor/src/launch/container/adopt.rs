//! Going on with containers that an earlier daemon began.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use xy_protocol::server::Transport;
use xy_shim::wire::{self, Confined, ExitReport, PastExit, StatusReport};

use super::attach::with_fresh;
use super::engine::Engine;
use super::fate::{self, Fate, Now};
use super::kept::{self, Keeper, Kept};
use super::life::Driver;
use super::missed::{self, Missed};
use super::start::Begun;
use super::{ContainerLauncher, create};
use crate::instance::InstanceKey;
use crate::launch::adopt::Adopted;
use crate::launch::{Instance, LaunchOrder, millis};
use crate::lifecycle::note::Note;
use crate::logs::history::History;
use crate::logs::{LogBook, instance_log};
use crate::wait::time_of_day;

/// How long a daemon waits for all engines before it opens its door.
const MOST_WITHIN: Duration = Duration::from_secs(10);

/// How long one that nothing is known of may take to be removed.
const REMOVE_WITHIN: Duration = Duration::from_secs(20);

impl ContainerLauncher {
    /// Goes on with everything that earlier daemons left, where its engine answers. What is
    /// left of the others is removed when their servers are started anew.
    pub async fn adopt_all(&self) -> Vec<Adopted> {
        let mut tries = JoinSet::new();
        for (key, kept, is_torn) in kept::all(&self.shared.kept_dir) {
            // From here on nobody takes it for one that nobody owns.
            self.shared.owned.take(&create::name(&self.shared.home, &key));
            self.shared.engines.saw(&kept.socket);
            let launcher = self.clone();
            tries.spawn(async move {
                let adopted = launcher.adopt(key.clone(), kept, is_torn).await;
                if adopted.is_none() {
                    let name = create::name(&launcher.shared.home, &key);
                    launcher.shared.owned.release(&name);
                }
                adopted
            });
        }
        let mut adopted = Vec::new();
        let give_up_at = Instant::now() + MOST_WITHIN;
        while let Ok(Some(tried)) = timeout_at(give_up_at, tries.join_next()).await {
            adopted.extend(tried.ok().flatten());
        }
        adopted
    }

    async fn adopt(&self, key: InstanceKey, kept: Kept, is_torn: bool) -> Option<Adopted> {
        let server = &key;
        let engine = match Engine::at(&kept.socket).await {
            Ok(engine) => engine,
            Err(why) => {
                tracing::error!(%server, "its container cannot be taken over: {why}");
                return None;
            }
        };
        let keeper = Keeper::of(&self.shared.kept_dir, &key, kept);
        let Some(note) = Note::parse(keeper.kept().note.as_bytes()) else {
            tracing::error!(%server, "nothing is known of this server: it is started anew");
            let _ = timeout(REMOVE_WITHIN, engine.remove(&keeper.kept().container)).await;
            keeper.forget();
            return None;
        };
        let memory = note.settings.container().and_then(|it| it.memory);
        let id = keeper.kept().container.clone();
        let now = fate::look(&engine, &id, memory).await;
        let fate = match now {
            Ok(Now::Runs { .. } | Now::Paused { .. }) => None,
            Ok(Now::Ended(end)) => Some(Fate::Ended(end)),
            Ok(Now::Removed) => {
                tracing::warn!(%server, "its container is gone: it is started anew");
                keeper.forget();
                return None;
            }
            Err(why) => {
                tracing::error!(%server, %why, "its container cannot be taken over");
                return None;
            }
        };
        let pid = match now {
            Ok(Now::Runs { pid } | Now::Paused { pid }) => pid,
            _ => 0,
        };
        // First the stream, then the log: what comes in between comes twice, and never not at all.
        let mut attached = match fate {
            None => Some(engine.attach(&id).await.ok()?),
            Some(_) => None,
        };
        let missed = missed::read(&engine, &id, keeper.place().read()).await;
        let (missed, is_torn) = match (missed, &mut attached) {
            (Ok(missed), Some(attached)) => {
                (with_fresh(missed, &mut attached.output).await, is_torn)
            }
            (Ok(missed), None) => (missed, is_torn),
            (Err(why), _) => {
                tracing::error!(%server, "{why}: it is started anew");
                (Missed::default(), true)
            }
        };
        tracing::info!(%server, pid, container = id, "taken over from an earlier daemon");
        // That was no end of its own: nothing is counted, and it is started anew.
        let is_cut_off = fate.is_some()
            && engine.closes_stdin
            && note.settings.transport() == Transport::Stdio
            && !keeper.kept().stopping;
        let status = status(keeper.kept(), pid, is_torn || is_cut_off, fate.as_ref());
        let logs = book(&self.shared.logs_dir, &key);
        let order = LaunchOrder {
            key: key.clone(),
            settings: note.settings.clone(),
            logs: logs.clone(),
            note: Vec::new(),
        };
        let (instance, ends) = Instance::pair();
        let begun = Begun { engine, id, pid, attached, keeper };
        let driver = Driver::new(self.shared.clone(), order, ends, begun);
        tokio::spawn(driver.run_adopted(missed, note.speaker.clone(), fate, status.stopping));
        Some(Adopted { key, note, status, greeted_at: Instant::now(), instance, logs })
    }
}

fn book(logs_dir: &Path, key: &InstanceKey) -> Arc<LogBook> {
    Arc::new(LogBook::new(History::note(&instance_log(logs_dir, key))))
}

/// What a shim would have said.
fn status(kept: &Kept, pid: u32, torn: bool, fate: Option<&Fate>) -> StatusReport {
    let now = time_of_day();
    let since = |ms: u64| {
        millis(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()).saturating_sub(ms)
    };
    let exited = fate.map(|fate| {
        let (exit, at) = match fate {
            Fate::Ended(end) => (end.exit, end.at),
            Fate::Removed | Fate::Lost(_) => (crate::lifecycle::Exit::UNSEEN, None),
        };
        let ago = at.and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
        let report = ExitReport {
            code: exit.code,
            signal: exit.signal,
            asked: kept.stopping,
            survivors: Vec::new(),
            oom: None,
        };
        PastExit { report, ms_ago: millis(ago) }
    });
    StatusReport {
        protocol: wire::PROTOCOL,
        pid,
        age_ms: since(kept.began_ms),
        note_age_ms: since(kept.noted_ms),
        passed: [false; 2],
        torn,
        stopping: kept.stopping,
        exited,
        confined: Confined::default(),
        logged: None,
    }
}
