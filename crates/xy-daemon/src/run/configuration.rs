//! Loads the configuration when a daemon starts, and decides whether it starts with it.

use std::collections::BTreeSet;

use xy_config::{BrokenServers, LastGood, Paths, PriorState, Settings};
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::RuntimeServers;
use xy_supervisor::instance::Holder;
use xy_supervisor::launch::adopt::AdoptedLife;
use xy_supervisor::reload::ServerMap;

use crate::bad_files::{self, Faults, Strictness, may_start};
use crate::{check, last_good, limits};

/// The configuration of a daemon that starts.
pub(super) struct Configuration {
    /// The servers to run.
    pub(super) servers: ServerMap,
    /// The servers for which the files have no usable settings.
    pub(super) broken: BrokenServers,
    /// The problems of the files.
    pub(super) faults: Faults,
    /// All other settings.
    pub(super) settings: Settings,
    /// The texts in use, to be stored as the last good ones.
    pub(super) texts: LastGood,
}

impl Configuration {
    /// Reads the files. Adopted servers whose files cannot be used keep their current settings.
    pub(super) fn load(
        paths: &Paths,
        strictness: Strictness,
        adopted: &[AdoptedLife],
        added: &RuntimeServers,
        has_living: bool,
    ) -> Result<Self, CallError> {
        let living: BTreeSet<_> = adopted.iter().map(|one| one.server().clone()).collect();
        let last_good = last_good::read(&paths.last_good_file);
        let loaded =
            xy_config::load_with(paths, &limits::supported(), &PriorState { last_good, living });
        if !may_start(strictness, &loaded, has_living) {
            // The report is about the files, not about the last good texts that would replace them.
            let loaded = xy_config::load(paths, &limits::supported());
            let refused = check::refusal(&loaded, "the daemon did not start");
            return Err(CallError { kind: ErrorKind::ConfigInvalid, ..refused });
        }
        for problem in &loaded.problems {
            if problem.is_error() {
                tracing::error!(file = problem.file, "{}", problem.message);
            } else {
                tracing::warn!(file = problem.file, "{}", problem.message);
            }
        }
        let is_kept = |one: &&AdoptedLife| {
            let is_shared = one.key.holder == Holder::Shared; // A second process has other settings.
            is_shared && loaded.broken.contains(one.server()) && !one.settings().source.added
        };
        let mut kept = ServerMap::new();
        for one in adopted.iter().filter(is_kept) {
            tracing::error!(server = %one.server(), "its file cannot be used: it keeps its current settings");
            kept.insert(one.server().clone(), one.settings().clone());
        }
        let (mut servers, mut faults) = bad_files::sort(&loaded, &kept, paths);
        // Servers that were added at run time have no file, so bad files do not affect them.
        for (name, settings) in &added.servers {
            servers.entry(name.clone()).or_insert_with(|| settings.clone());
            faults.servers.remove(name);
        }
        for (name, bad) in &faults.servers {
            tracing::error!(server = %name, "not started: {}", bad.reason);
        }
        let (broken, texts) = (loaded.broken, loaded.bad.texts);
        Ok(Self { servers, broken, faults, settings: loaded.settings, texts })
    }
}
